"""Messages that were dropped: reported here, and told to those who published them or would have got them.

An endpoint that drops messages on their way tells their origins and those who would have got them, as far as ways lead
there. Once a second at most, and one message for each peer, origin, topic and reason. What was dropped with a link is
told to the peer when it is back.

Source: none; the original tells nobody. Between endpoints of chappe alone.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from math import inf
from typing import Final, TypeAlias, TypeVar

from chappe.core import Effect, Report
from chappe.defaults import DROPS_REPORT_S, LOSSES_MAX
from chappe.errors import ProtocolError
from chappe.mesh.events import LostElsewhere, MessagesDropped
from chappe.mesh.messages import NOBODY

_LOSS: Final = struct.Struct(">16s16sQB")  # and the topic, the beginning of one that is long
_TOPIC_BYTES_MAX: Final = 255
Key = TypeVar("Key")
_Kind: TypeAlias = tuple[bytes, bytes, bytes, "LossReason"]  # towards, origin, topic, why


class LossReason(IntEnum):
    FULL = 0
    LINK_ENDED = 1
    NO_WAY = 2
    FULL_ON_ONE = 3  # of two ways; on the other one it may have arrived
    NO_WAY_ON_ONE = 4
    EARLY = 6  # nobody knew that their origin is behind who brought them
    NOT_ALLOWED = 7  # by the permissions, to who sent them, or to who would have got them
    LATE = 5  # taken for old ones: ``count`` is the number above which they are not

    @property
    def text(self) -> str:
        return _TEXTS[self]

    @property
    def on_one(self) -> LossReason:
        return _ON_ONE.get(self, self)


_TEXTS: Final = {
    LossReason.FULL: "which takes less than is published",
    LossReason.LINK_ENDED: "to which the link ended",
    LossReason.NO_WAY: "to which no way leads any more",
    LossReason.FULL_ON_ONE: "which takes less than is published, on one of two ways",
    LossReason.NO_WAY_ON_ONE: "to which no way leads any more, on one of two ways",
    LossReason.EARLY: "which has not heard that they come from there",
    LossReason.NOT_ALLOWED: "as the permissions do not allow them",
    LossReason.LATE: "which takes them for old ones",
}
_ON_ONE: Final = {LossReason.FULL: LossReason.FULL_ON_ONE, LossReason.NO_WAY: LossReason.NO_WAY_ON_ONE}
_TOLD_HERE: Final = frozenset({LossReason.NO_WAY, LossReason.NO_WAY_ON_ONE, LossReason.NOT_ALLOWED})


@dataclass(frozen=True, slots=True)
class Loss:
    """``count`` messages of ``origin`` that did not go on to ``towards``; NOBODY for several, or for nobody known.

    ``topic`` is theirs, at most 255 bytes of it; empty for several.
    """

    towards: bytes
    origin: bytes
    count: int
    why: LossReason
    topic: bytes = b""

    def pack(self) -> bytes:
        return _LOSS.pack(self.towards, self.origin, self.count, self.why) + self.topic

    @classmethod
    def parse(cls, payload: bytes) -> Loss:
        """Return the loss in ``payload``; raises ProtocolError if there is none."""
        size = _LOSS.size
        if not size <= len(payload) <= size + _TOPIC_BYTES_MAX or payload[size - 1] not in _REASONS:
            raise ProtocolError("that is not a report of a loss")
        towards, origin, count, why = _LOSS.unpack_from(payload)
        return cls(towards, origin, count, LossReason(why), payload[size:])


_REASONS: Final = frozenset(LossReason)


class Drops:
    """Counts by place, which is a part of a sentence: where and why."""

    def __init__(self) -> None:
        self.total = 0
        self.due = inf  # when a report is
        self._counts: dict[str, int] = {}
        self._reported_at = -inf

    def add(self, where: str, count: int = 1) -> None:
        """Count dropped messages. The places are few: a peer and a reason."""
        self.total += count
        self.due = self._reported_at + DROPS_REPORT_S
        self._counts[where] = self._counts.get(where, 0) + count

    def handle_timeout(self, now: float) -> list[Effect]:
        if now < self.due:
            return []
        self.due = inf
        counts, self._counts = self._counts, {}
        self._reported_at = now
        return [Report(MessagesDropped(where, count)) for where, count in counts.items()]


class Losses:
    """Reports of losses that ``endpoint`` sends and those it got, each at most once a second."""

    def __init__(self, endpoint: bytes) -> None:
        self._endpoint = endpoint
        self.due = inf  # when something is to be told
        self._own: dict[_Kind, int] = {}
        self._missing: dict[_Kind, frozenset[bytes]] = {}  # who does not get them
        self._owed: dict[bytes, int] = {}  # peer that is gone: messages that it does not get
        self._heard: dict[tuple[bytes, _Kind], int] = {}  # by place
        self._told_at = -inf

    def hurry(self) -> None:
        self.due = self._told_at + DROPS_REPORT_S

    def add(
        self, towards: bytes, origin: bytes, topic: bytes, why: LossReason, missing: frozenset[bytes], count: int = 1
    ) -> None:
        """Note messages that were dropped here, and that ``missing`` do not get."""
        key = _count(self._own, (towards, origin, topic[:_TOPIC_BYTES_MAX], why), (towards, NOBODY, b"", why), count)
        if key is not None:
            self._missing[key] = self._missing.get(key, missing) | missing
        self.due = self._told_at + DROPS_REPORT_S

    def owe(self, peer: bytes, count: int) -> None:
        """Note messages that a peer does not get, as its link ended."""
        if count:
            _count(self._owed, peer, None, count)

    def owed(self, peer: bytes) -> int:
        """Return how many messages a peer that is back does not get."""
        return self._owed.pop(peer, 0)

    def heard(self, place: bytes, loss: Loss) -> None:
        """Note a loss that an endpoint reports and that concerns us."""
        _count(self._heard, (place, (loss.towards, loss.origin, loss.topic, loss.why)), None, loss.count)
        self.due = self._told_at + DROPS_REPORT_S

    def take(
        self, now: float, late: Callable[[], dict[bytes, int]] = dict
    ) -> tuple[list[tuple[Loss, frozenset[bytes]]], list[Effect]]:
        """Return the losses to report to others now, each with those who miss it, and the effects to report here.

        ``late`` gives the origins whose messages were taken for old ones, and the numbers that they are to go on above.
        """
        if now < self.due:
            return [], []
        self.due = inf
        own, self._own = self._own, {}
        missing, self._missing = self._missing, {}
        heard, self._heard = self._heard, {}
        self._told_at = now
        losses = [
            (Loss(towards, origin, count, why, topic), missing[towards, origin, topic, why])
            for (towards, origin, topic, why), count in own.items()
        ]
        losses += [(Loss(NOBODY, origin, number, LossReason.LATE), frozenset()) for origin, number in late().items()]
        for (towards, origin, topic, why), count in own.items():
            if origin == self._endpoint and why in _TOLD_HERE:  # nobody else tells us; what was full is in ``Drops``
                heard[origin, (towards, origin, topic, why)] = count
        reports = [
            Report(LostElsewhere(place, towards, origin, count, why.text, topic))
            for (place, (towards, origin, topic, why)), count in heard.items()
        ]
        return losses, list(reports)


def _count(counts: dict[Key, int], key: Key, common: Key | None, count: int) -> Key | None:
    """Count under ``key``, or under ``common`` if there are too many keys; None for not at all. Returns which."""
    found = key if key in counts or len(counts) < LOSSES_MAX else common
    if found is not None:
        counts[found] = counts.get(found, 0) + count
    return found
