"""A small server for the numbers of a pipeline, which Prometheus reads; its cost is bounded.

Each connection has a thread, so they are few: where there are more, the oldest gives way. Silent clients are cut off.
On loopback the host name in a request must be this machine's: a web page cannot reach the server by pointing a name of
its own at 127.0.0.1.

With an identity it is served over TLS, to administrators of all topics, by their certificate or a token.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from socketserver import ThreadingMixIn
from ssl import SSLSocket
from typing import Any, Final
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from chappe.api.serving import Office, certified, may_be_dialled
from chappe.defaults import HANDSHAKE_TIMEOUT_S
from chappe.errors import NotPermitted
from chappe.security import is_loopback

CONNECTIONS_MAX: Final = 16

_CERTIFIED: Final = "chappe.certified"  # in a request's environment, where no header can stand

App = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


class _MetricsHandler(WSGIRequestHandler):
    timeout = HANDSHAKE_TIMEOUT_S  # of each wait for a byte

    def get_environ(self) -> dict[str, Any]:
        tls = self.connection if isinstance(self.connection, SSLSocket) else None
        return {**super().get_environ(), _CERTIFIED: certified(tls)}

    def log_message(self, format: str, *args: object) -> None:
        """Keep requests off standard error, where the base class logs them."""


class MetricsServer(ThreadingMixIn, WSGIServer):
    """Serves ``app`` from a thread of its own until it is closed, to clients that ``office`` accepts; None accepts all.

    Raises OSError, OverflowError.
    """

    daemon_threads = True
    request_queue_size = 128  # with the usual 5 a few strangers at once keep others waiting for seconds

    def __init__(self, app: App, host: str, port: int, office: Office | None = None) -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._open: dict[Any, Any] = {}  # who is served, the oldest first: as it was accepted, and the socket now
        self._office = office
        self._guard = threading.Lock()
        super().__init__((host, port), _MetricsHandler)
        self.url = f"http{'' if office is None else 's'}://{host}:{self.server_port}/metrics"
        app = app if office is None else _for(office, app)
        self.set_app(_on_loopback(app) if is_loopback(host) else app)
        self._thread = threading.Thread(target=self.serve_forever, name="chappe-metrics", daemon=True)
        self._thread.start()

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._guard:
            if len(self._open) >= CONNECTIONS_MAX:
                oldest = self._open.pop(next(iter(self._open)))
                with suppress(OSError):
                    oldest.shutdown(socket.SHUT_RDWR)
            self._open[request] = request
        super().process_request(request, client_address)

    def finish_request(self, request: Any, client_address: Any) -> None:
        if self._office is None:
            super().finish_request(request, client_address)
            return
        request.settimeout(HANDSHAKE_TIMEOUT_S)
        with self._guard:
            if request not in self._open:  # it gave way already
                return
            secured = self._office.tls.wrap_socket(request, server_side=True, do_handshake_on_connect=False)
            self._open[request] = secured
        with secured:
            secured.do_handshake()
            super().finish_request(secured, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._guard:
            self._open.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore clients that disconnect in the middle."""

    def close(self) -> None:
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


def _for(office: Office, app: App) -> App:
    def careful(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        given = [environ[each] for each in ("HTTP_AUTHORIZATION",) if each in environ]
        try:
            office.check(environ.get("REMOTE_ADDR", ""), environ[_CERTIFIED], given)
        except NotPermitted as why:
            start_response("401 Unauthorized", [("Content-Type", "text/plain"), ("WWW-Authenticate", "Bearer")])
            return [f"{why}\n".encode()]
        return app(environ, start_response)

    return careful
