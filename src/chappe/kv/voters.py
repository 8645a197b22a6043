"""Clones that look for a master: each that asks aloud is a vote, and those who asked lately are answered first.

A partner that is not heard although its link has not ended is told of to all clones: who does not hear it either asks.
"""

from __future__ import annotations

import math

from chappe.channel import ASK_HANDSHAKE
from chappe.defaults import MASTER_SILENT_S, PAIR_ASKS_MAX, STAR_HEARTBEAT_S, STAR_ORIGINAL_SILENT_S
from chappe.kv import commands as cmd
from chappe.kv.entity import NOBODY, Entity


class Voters:
    """Who asks while nobody serves, so many at most; and when clones are told of a silent partner."""

    def __init__(self) -> None:
        self._asks: dict[Entity, tuple[float, bytes]] = {}  # who asked, and when, and what to answer to
        self._silent_at = math.inf  # since when the partner is silent
        self._said_at = -math.inf  # when clones were told

    @property
    def wait(self) -> bool:
        """Whether somebody asked who was not answered."""
        return bool(self._asks)

    def note(self, message: cmd.Message, payload: bytes, now: float) -> None:
        """Nobody serves, and a clone asks."""
        known = self._asks.get(message.sender)
        if known is None and len(self._asks) >= PAIR_ASKS_MAX:
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

    def are_to_hear(self, silent: bool, now: float) -> bool:
        """Whether clones are to be told that the partner is silent; after ``MASTER_SILENT_S`` they have noticed."""
        if not silent:
            self._silent_at = math.inf
            return False
        self._silent_at = min(self._silent_at, now)
        return now >= self._said_at + STAR_HEARTBEAT_S and now < self._silent_at + MASTER_SILENT_S

    def heard(self, now: float) -> None:
        """They were told."""
        self._said_at = now


def asks_aloud(message: cmd.Message) -> bool:
    """Whether a clone looks for a master, whichever there is."""
    command = message.command
    return isinstance(command, cmd.MissingEvents) and message.receiver == NOBODY and command.seqs[:1] == ASK_HANDSHAKE
