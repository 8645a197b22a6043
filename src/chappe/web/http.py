"""HTTP up to the moment when it becomes a WebSocket: whoever connects asks for one soon."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

from chappe.defaults import WEBSOCKET_SPEAK_S


class BriefHttp(H11Protocol):
    """A connection that is closed if it is not a WebSocket by ``WEBSOCKET_SPEAK_S``."""

    def connection_made(self, transport: Any) -> None:
        """See asyncio."""
        super().connection_made(transport)
        asyncio.get_running_loop().call_later(WEBSOCKET_SPEAK_S, self._end)

    def _end(self) -> None:
        if self.transport.get_protocol() is self:
            self.transport.abort()
