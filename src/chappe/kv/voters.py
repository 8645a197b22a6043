"""Clones that ask all endpoints for a master while none serves: the next one answers them first."""

from __future__ import annotations

from chappe.channel import ASK_HANDSHAKE
from chappe.defaults import STAR_ORIGINAL_SILENT_S, STORE_ASKS_MAX
from chappe.kv import commands as cmd
from chappe.kv.entity import NOBODY, Entity


class Voters:
    """Those that ask while nobody serves, at most ``STORE_ASKS_MAX``."""

    def __init__(self) -> None:
        self._asks: dict[Entity, tuple[float, bytes]] = {}  # who asked, and when, and what to answer to

    def note(self, message: cmd.Message, payload: bytes, now: float) -> None:
        """Nobody serves, and a clone asks."""
        known = self._asks.get(message.sender)
        if known is None and len(self._asks) >= STORE_ASKS_MAX:
            return
        command = message.command
        assert isinstance(command, cmd.MissingEvents)
        if known is not None and cmd.asked(command.seqs) is None:
            payload = known[1]  # which says more
        self._asks[message.sender] = now, payload

    def forget(self, now: float) -> None:
        """Those who have not asked for a while do not wait."""
        self._asks = {who: ask for who, ask in self._asks.items() if now < ask[0] + STAR_ORIGINAL_SILENT_S}

    def take(self) -> list[bytes]:
        """What was asked; somebody serves now."""
        asks, self._asks = self._asks, {}
        return [payload for _, payload in asks.values()]


def asks_aloud(message: cmd.Message) -> bool:
    """Whether a clone looks for a master, whichever there is."""
    command = message.command
    return isinstance(command, cmd.MissingEvents) and message.receiver == NOBODY and command.seqs[:1] == ASK_HANDSHAKE
