"""Where Prometheus reads the numbers of a pipeline: a server that costs little, whoever comes and whatever is said.

Each connection has a thread, so they are few: where there are more, the oldest gives way. Who says nothing is cut off.
On loopback the name that was dialled has to be this machine's, so that no page of the web reads along by a name of its
own that means 127.0.0.1.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from socketserver import ThreadingMixIn
from typing import Any, Final
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from chappe.api.serving import may_be_dialled
from chappe.defaults import HANDSHAKE_TIMEOUT_S
from chappe.security import is_loopback

CONNECTIONS_MAX: Final = 16

App = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


class _Handler(WSGIRequestHandler):
    timeout = HANDSHAKE_TIMEOUT_S  # of each wait for a byte

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing."""


class MetricsServer(ThreadingMixIn, WSGIServer):
    """Serves ``app`` from a thread of its own until it is closed. Raises OSError, OverflowError."""

    daemon_threads = True

    def __init__(self, app: App, host: str, port: int) -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._open: dict[Any, None] = {}  # sockets of those who are served, the oldest first
        self._guard = threading.Lock()
        super().__init__((host, port), _Handler)
        self.set_app(_on_loopback(app) if is_loopback(host) else app)
        self._thread = threading.Thread(target=self.serve_forever, name="chappe-metrics", daemon=True)
        self._thread.start()

    def process_request(self, request: Any, client_address: Any) -> None:
        """See socketserver."""
        with self._guard:
            if len(self._open) >= CONNECTIONS_MAX:
                oldest = next(iter(self._open))
                del self._open[oldest]
                with suppress(OSError):
                    oldest.shutdown(socket.SHUT_RDWR)
            self._open[request] = None
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """See socketserver."""
        with self._guard:
            self._open.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Who leaves in the middle is no error of ours."""

    def close(self) -> None:
        """Free the port."""
        self.shutdown()
        self.server_close()
        self._thread.join()


def _on_loopback(app: App) -> App:
    def careful(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        if may_be_dialled([environ.get("HTTP_HOST", "")], frozenset()):
            return app(environ, start_response)
        start_response("403 Forbidden", [("Content-Type", "text/plain")])
        return [b"this is not the name of this machine\n"]

    return careful
