"""Messages that were dropped: reported here, and told to those who published them or would have got them.

An endpoint that drops messages on their way to a peer tells their origins and, once it reads again, that peer, which
passes it on to those behind it. Once a second at most, and one message for each peer, origin and reason. What was
dropped with a link is told to the peer when it is back.

Source: none; the original tells nobody. Between endpoints of chappe alone.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from math import inf
from typing import Final, TypeVar

from chappe.core import Report
from chappe.defaults import DROPS_REPORT_S, LOSSES_MAX
from chappe.errors import ProtocolError
from chappe.mesh.actions import Action
from chappe.mesh.events import LostElsewhere, MessagesDropped
from chappe.mesh.messages import NOBODY

_LOSS: Final = struct.Struct(">16s16sQB")
Key = TypeVar("Key")


class Why(IntEnum):
    """Why messages were dropped."""

    FULL = 0
    LINK_ENDED = 1
    TOO_FAR = 2

    @property
    def text(self) -> str:
        """A part of a sentence."""
        return _TEXTS[self]


_TEXTS: Final = {
    Why.FULL: "which takes less than is published",
    Why.LINK_ENDED: "to which the link ended",
    Why.TOO_FAR: "which is too many hops away",
}


@dataclass(frozen=True, slots=True)
class Loss:
    """``count`` messages of ``origin`` that did not go on to ``towards``; NOBODY for several, or for nobody known."""

    towards: bytes
    origin: bytes
    count: int
    why: Why

    def pack(self) -> bytes:
        """Its bytes."""
        return _LOSS.pack(self.towards, self.origin, self.count, self.why)

    @classmethod
    def parse(cls, payload: bytes) -> Loss:
        """The loss in ``payload``; ProtocolError if there is none."""
        if len(payload) != _LOSS.size or payload[-1] not in _REASONS:
            raise ProtocolError("that is no report of a loss")
        towards, origin, count, why = _LOSS.unpack(payload)
        return cls(towards, origin, count, Why(why))


_REASONS: Final = frozenset(Why)


class Drops:
    """Counts by place, which is a part of a sentence: where and why."""

    def __init__(self) -> None:
        self.total = 0
        self.due = inf  # when a report is
        self._counts: dict[str, int] = {}
        self._reported_at = -inf

    def add(self, where: str, count: int = 1) -> None:
        """Count. The places are few: a peer and a reason."""
        self.total += count
        self.due = self._reported_at + DROPS_REPORT_S
        self._counts[where] = self._counts.get(where, 0) + count

    def handle_timeout(self, now: float) -> list[Action]:
        """Report what is due."""
        if now < self.due:
            return []
        self.due = inf
        counts, self._counts = self._counts, {}
        self._reported_at = now
        return [Report(MessagesDropped(where, count)) for where, count in counts.items()]


class Losses:
    """What is to be told to others, and what was told by others; each at most once a second."""

    def __init__(self) -> None:
        self.due = inf  # when something is to be told
        self._own: dict[tuple[bytes, bytes, Why], int] = {}  # towards, origin, why
        self._owed: dict[bytes, int] = {}  # peer that is gone: messages that it does not get
        self._heard: dict[tuple[bytes, bytes, bytes, Why], int] = {}  # place, towards, origin, why
        self._told_at = -inf

    def add(self, towards: bytes, origins: Mapping[bytes, int], why: Why) -> None:
        """Messages were dropped here."""
        for origin, count in origins.items():
            _count(self._own, (towards, origin, why), (towards, NOBODY, why), count)
            self.due = self._told_at + DROPS_REPORT_S

    def owe(self, peer: bytes, count: int) -> None:
        """The link to a peer ended, with messages that it does not get."""
        if count:
            _count(self._owed, peer, None, count)

    def owed(self, peer: bytes) -> int:
        """The peer is back: how many messages it does not get."""
        return self._owed.pop(peer, 0)

    def heard(self, place: bytes, loss: Loss) -> None:
        """An endpoint has told us of a loss that concerns us."""
        key = place, loss.towards, loss.origin, loss.why
        _count(self._heard, key, None, loss.count)
        self.due = self._told_at + DROPS_REPORT_S

    def take(self, now: float) -> tuple[list[Loss], list[Action]]:
        """What is to be told to others now, and what to report here."""
        if now < self.due:
            return [], []
        self.due = inf
        own, self._own = self._own, {}
        heard, self._heard = self._heard, {}
        self._told_at = now
        losses = [Loss(towards, origin, count, why) for (towards, origin, why), count in own.items()]
        reports = [
            Report(LostElsewhere(place, towards, origin, count, why.text))
            for (place, towards, origin, why), count in heard.items()
        ]
        return losses, list(reports)


def _count(counts: dict[Key, int], key: Key, common: Key | None, count: int) -> None:
    """Count under ``key``, or under ``common`` if there are too many keys; None for not at all."""
    found = key if key in counts or len(counts) < LOSSES_MAX else common
    if found is not None:
        counts[found] = counts.get(found, 0) + count
