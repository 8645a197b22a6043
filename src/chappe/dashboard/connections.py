"""Connections of browsers: who connects and asks for nothing keeps nobody out, and is cut off."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from uvicorn.protocols.http.h11_impl import H11Protocol

from chappe.api.serving import certified
from chappe.defaults import HANDSHAKE_TIMEOUT_S
from chappe.web.server import CERTIFIED

SILENT_MAX: Final = 64  # connections that have not asked for anything yet; beyond it the oldest gives way


class PageHttp(H11Protocol):
    """A connection that is closed if its first request is not whole by ``HANDSHAKE_TIMEOUT_S``.

    ``silent`` are all that have not asked for anything yet, the oldest first.
    """

    def __init__(self, silent: dict[PageHttp, None], **given: Any) -> None:
        super().__init__(**given)
        self._silent = silent

    def connection_made(self, transport: Any) -> None:
        """See asyncio."""
        super().connection_made(transport)
        self.app_state = {**self.app_state, CERTIFIED: certified(transport.get_extra_info("ssl_object"))}
        if len(self._silent) >= SILENT_MAX:
            next(iter(self._silent))._end()
        self._silent[self] = None
        self._timer = asyncio.get_running_loop().call_later(HANDSHAKE_TIMEOUT_S, self._end)

    def data_received(self, data: bytes) -> None:
        """See asyncio."""
        super().data_received(data)
        if self.cycle is not None:  # a request is whole
            self._silent.pop(self, None)

    def connection_lost(self, exc: Exception | None) -> None:
        """See asyncio."""
        self._timer.cancel()
        self._silent.pop(self, None)
        super().connection_lost(exc)

    def handle_websocket_upgrade(self, event: Any) -> None:
        """See uvicorn."""
        self._silent.pop(self, None)
        super().handle_websocket_upgrade(event)

    def _end(self) -> None:
        """Cut it off, if it has still not asked for anything."""
        if self in self._silent:
            del self._silent[self]
            self.transport.abort()
