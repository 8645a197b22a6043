"""A small server for the numbers of a command, which Prometheus reads, and for probes of its health.

Its cost is bounded: each connection has a thread, so they are few; where there are more, the oldest gives way. Silent
clients are cut off. On loopback the host name in a request must be this machine's: a web page cannot reach the server
by pointing a name of its own at 127.0.0.1.

With an identity all is served over TLS, and numbers only to administrators of all topics, by their certificate or a
token. Probes need neither: ``/health/live`` and ``/health/ready`` say yes, or no and why in one sentence.
"""

from __future__ import annotations

import errno
import json
import socket
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from socketserver import ThreadingMixIn
from ssl import SSLSocket
from typing import Any, Final, Protocol
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from chappe.api.metrics import NumbersCollector
from chappe.api.serving import Office, certified, may_be_dialled
from chappe.cli.units import place
from chappe.defaults import HANDSHAKE_TIMEOUT_S
from chappe.errors import AddressInUse, NotPermitted, UsageError
from chappe.observing.numbers import Family
from chappe.security import Keys, LogSecurity, Security, is_loopback

CONNECTIONS_MAX: Final = 16

_CERTIFIED: Final = "chappe.certified"  # in a request's environment, where no header can stand

App = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


class Numbered(Protocol):
    """The numbers and the health of a command; each is asked from a thread of its own."""

    def families(self) -> Iterable[Family]: ...

    def unready(self) -> list[str]:
        """Return a sentence for each part that does not do its work now."""

    def defects(self) -> list[str]:
        """Return a sentence for each part that will not do its work before the command is started again."""


class _MetricsHandler(WSGIRequestHandler):
    timeout = HANDSHAKE_TIMEOUT_S  # of each wait for a byte

    def get_environ(self) -> dict[str, Any]:
        tls = self.connection if isinstance(self.connection, SSLSocket) else None
        return {**super().get_environ(), _CERTIFIED: certified(tls)}

    def log_message(self, format: str, *args: object) -> None:
        """Keep requests off standard error, where the base class logs them."""


class MetricsServer(ThreadingMixIn, WSGIServer):
    """Serves ``app`` from a thread of its own until it is closed, over TLS if there is an ``office``.

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


@dataclass(frozen=True, slots=True)
class RunNumbers:
    """The numbers of a command that is no member; ``why`` is empty while it does its work."""

    count: Callable[[], Iterable[Family]]
    why: Callable[[], str]

    def families(self) -> Iterable[Family]:
        return self.count()

    def unready(self) -> list[str]:
        why = self.why()
        return [why] if why else []

    def defects(self) -> list[str]:
        return []


def serve_numbers(numbered: Numbered, where: str, security: Security | Keys) -> MetricsServer:
    """Serve numbers and health at ``[HOST:]PORT``, with the security of the command's members.

    Raises:
        AddressInUse: Another program listens there.
        UsageError: prometheus-client is not installed, or nothing can listen there.
        ConfigError: The permissions are not as the authority signed them.
    """
    try:
        from prometheus_client import CollectorRegistry, ProcessCollector, make_wsgi_app
    except ImportError as error:
        raise UsageError("--metrics needs prometheus-client; run: pip install 'chappe[metrics]'") from error
    host, port = place(where)
    of_log: LogSecurity = security if isinstance(security, Keys) or security == "plain" else None
    office = Office.of(of_log, host, "numbers")
    registry = CollectorRegistry(auto_describe=False)
    ProcessCollector(registry=registry)
    registry.register(NumbersCollector(numbered.families))
    app = make_wsgi_app(registry)
    try:
        return MetricsServer(
            _with_health(app if office is None else guarded(office, app), numbered), host, port, office
        )
    except (OSError, OverflowError) as error:
        if getattr(error, "errno", None) == errno.EADDRINUSE:
            raise AddressInUse(
                f"port {port} on {host} is in use: stop the program that listens there, or choose another: --metrics"
            ) from None
        raise UsageError(f"cannot listen on {host}:{port}: {getattr(error, 'strerror', None) or error}") from None


def _with_health(app: App, numbered: Numbered) -> App:
    asked = {"/health/live": ("live", numbered.defects), "/health/ready": ("ready", numbered.unready)}

    def routed(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        path = environ.get("PATH_INFO", "")
        if path not in asked:
            return app(environ, start_response)
        word, ask = asked[path]
        why = ask()
        answer = {word: not why} | ({"why": "; ".join(why)} if why else {})
        start_response(
            "503 Service Unavailable" if why else "200 OK",
            [("Content-Type", "application/json"), ("Cache-Control", "no-store")],
        )
        return [json.dumps(answer).encode() + b"\n"]

    return routed


def _on_loopback(app: App) -> App:
    def careful(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        if may_be_dialled([environ.get("HTTP_HOST", "")], frozenset()):
            return app(environ, start_response)
        start_response("403 Forbidden", [("Content-Type", "text/plain")])
        return [b"this is not the name of this machine\n"]

    return careful


def guarded(office: Office, app: App) -> App:
    """Serve ``app`` only to clients that ``office`` lets in."""

    def careful(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        given = [environ[each] for each in ("HTTP_AUTHORIZATION",) if each in environ]
        try:
            office.check(environ.get("REMOTE_ADDR", ""), environ[_CERTIFIED], given)
        except NotPermitted as why:
            start_response("401 Unauthorized", [("Content-Type", "text/plain"), ("WWW-Authenticate", "Bearer")])
            return [f"{why}\n".encode()]
        return app(environ, start_response)

    return careful
