"""Connections of HTTP clients: sockets, certificates, and bounds on clients that ask for nothing.

Such a connection is cut off in time, and the oldest one gives way where there are too many of them.
"""

from __future__ import annotations

import asyncio
import errno
import math
import socket
from typing import Any, Final

from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from chappe.api.serving import certified
from chappe.defaults import HANDSHAKE_TIMEOUT_S, HANDSHAKES_MAX, WEBSOCKET_SPEAK_S
from chappe.errors import AddressInUse, UsageError

BACKLOG: Final = 128
COMPLAIN_S: Final = 60.0  # between two log lines on failures of tasks
CERTIFIED: Final = "certified"  # in the state of a client: the identity that its certificate names
SILENT_MAX: Final = 64  # browsers' connections that have not asked for anything yet


class BriefHttp(H11Protocol):
    """A connection that is closed if it asks for nothing in time, or too many are like it: then the oldest gives way.

    ``waiting`` are all that have not asked for anything yet, the oldest first.
    """

    waiting_max = HANDSHAKES_MAX
    patience_s = WEBSOCKET_SPEAK_S

    def __init__(self, waiting: dict[BriefHttp, None], **given: Any) -> None:
        super().__init__(**given)
        self._waiting = waiting

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        if len(self._waiting) >= self.waiting_max:
            next(iter(self._waiting))._end()
        self._waiting[self] = None
        self._timer = asyncio.get_running_loop().call_later(self.patience_s, self._end)

    def connection_lost(self, exc: Exception | None) -> None:
        self._timer.cancel()
        self.serve()
        super().connection_lost(exc)

    def handle_websocket_upgrade(self, event: Any) -> None:
        self.serve()
        super().handle_websocket_upgrade(event)

    def serve(self) -> None:
        """Keep the connection: it has asked for something, or is gone; safe to call twice."""
        self._waiting.pop(self, None)

    def _end(self) -> None:
        if self in self._waiting:
            del self._waiting[self]
            self.transport.abort()


class PageHttp(BriefHttp):
    """A browser's connection, which is closed if its first request is not whole by ``HANDSHAKE_TIMEOUT_S``."""

    waiting_max = SILENT_MAX
    patience_s = HANDSHAKE_TIMEOUT_S

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.app_state = {**self.app_state, CERTIFIED: certified(transport.get_extra_info("ssl_object"))}

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.cycle is not None:  # a request is whole
            self.serve()


class CertifiedWebSocket(WebSocketsSansIOProtocol):
    """A connection that tells its server which identity its certificate names."""

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        tls = transport.get_extra_info("ssl_object")
        self.app_state = {**self.app_state, CERTIFIED: certified(tls)}


class HandshakeLoop(asyncio.SelectorEventLoop):
    """Cuts off a client that connects and never begins with TLS as soon as elsewhere; the default is 60 s."""

    async def create_server(self, *given: Any, **options: Any) -> asyncio.Server:
        if options.get("ssl") is not None:
            options["ssl_handshake_timeout"] = HANDSHAKE_TIMEOUT_S
        return await super().create_server(*given, **options)


class TaskFailures:
    """Makes asyncio report failures of tasks at most once a minute, so that a client's garbage cannot fill the log."""

    def __init__(self) -> None:
        self._again_at = -math.inf
        self._untold = 0

    def __call__(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if loop.time() < self._again_at:
            self._untold += 1
            return
        self._again_at = loop.time() + COMPLAIN_S
        if self._untold:
            context = {**context, "message": f"{context['message']} (and {self._untold} more since the last one)"}
            self._untold = 0
        loop.default_exception_handler(context)


def listening(host: str, port: int, otherwise: str = "choose another port") -> socket.socket:
    """Return a socket to serve at, ``*`` for all interfaces; port 0 takes any that is free.

    Raises:
        AddressInUse: Somebody listens there; the text says to stop that program, or ``otherwise``.
        UsageError: Nobody can listen there.
    """
    host = "0.0.0.0" if host == "*" else host
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=BACKLOG)
    except (OSError, OverflowError) as error:
        if getattr(error, "errno", None) == errno.EADDRINUSE:
            raise AddressInUse(
                f"port {port} on {host} is in use: stop the program that listens there, or {otherwise}"
            ) from None
        raise UsageError(f"cannot listen on {host}:{port}: {getattr(error, 'strerror', None) or error}") from None
