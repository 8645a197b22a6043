"""The place of each message among those of its origin and topic, by which a subscriber sees how many are missing.

An origin counts what it publishes to everybody, each topic by itself. A prefix matches all messages of a topic or none,
so a subscriber to some prefixes sees no holes where nothing is missing. The origin also counts messages that nobody in
reach wants at that moment: a subscriber that was cut off sees how many it missed.

A place is a u64: 24 bits name the counting, 40 bits are the count, from 1 on. Each life of an endpoint has its own
counting, and it begins another one rather than remember too many topics. Places of two countings cannot be compared: a
loss in between is not seen. Commands and messages for one receiver alone have the place 0.

Two designs were refused. Numbers of publications (``mesh.flows``) go over all topics, so every filter leaves holes in
them. A count for each tree tells an endpoint what is missing, but not which of its subscribers wanted it.

Source: the ZeroMQ Guide, chapter 5: a subscriber notices by gaps in the publisher's numbers that it is too slow.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Final
from uuid import UUID

from chappe.defaults import ROUTES_BYTES_MAX
from chappe.limits import MESH_LIMITS
from chappe.mesh.events import Gap
from chappe.mesh.filters import Filter, matches
from chappe.mesh.messages import NOBODY, Message

_COUNT_BITS: Final = 40
COUNT_MAX: Final = (1 << _COUNT_BITS) - 1  # also what of a place is the count
_COUNTINGS: Final = 1 << 24
HOLES_MAX: Final = 64  # of one origin and topic, which late messages may fill; the oldest are forgotten

Key = tuple[bytes, bytes]  # origin and topic
SEVERAL: Final[Key] = NOBODY, b""


class Places:
    """The counts of one origin; ``born_us`` is its life's alone. Beyond ``topics_max`` another counting begins."""

    def __init__(self, born_us: int, topics_max: int) -> None:
        self._counting = born_us % _COUNTINGS << _COUNT_BITS
        self._counts: dict[bytes, int] = {}
        self._bytes = 0  # of topics
        self._max = topics_max

    def take(self, topic: bytes, count: int = 1) -> int:
        """Return the place of the next message to a topic, the first one if they are ``count``."""
        before = self._counts.get(topic)
        if before is None or before + count > COUNT_MAX:
            before = self._begin(topic)
        self._counts[topic] = before + count
        return self._counting + before + 1

    def last(self, topic: bytes) -> int:
        """Return the place of the last message to a topic; 0 if there was none in this counting."""
        count = self._counts.get(topic, 0)
        return self._counting + count if count else 0

    def _begin(self, topic: bytes) -> int:
        self._bytes += len(topic)
        if len(self._counts) >= self._max or self._bytes > ROUTES_BYTES_MAX or topic in self._counts:
            self._counting = ((self._counting >> _COUNT_BITS) + 1) % _COUNTINGS << _COUNT_BITS
            self._counts.clear()
            self._bytes = len(topic)
        return 0


class MessageGaps:
    """The gaps of one subscriber in messages with a place, from the first of an origin and topic that comes."""

    def __init__(self, topics_max: int = MESH_LIMITS.routes_max) -> None:
        self.untold: dict[Key, int] = {}  # how many are missing
        self._last: dict[Key, int] = {}  # the highest place that came
        self._holes: dict[Key, deque[tuple[int, int]]] = {}  # from a place up to another one, both missing
        self._bytes = 0  # of the topics in ``_last``
        self._max = topics_max

    def came(self, messages: Iterable[Message]) -> None:
        """Note messages that came for the subscriber, in this order."""
        known = self._last
        for message in messages:
            place = message.place
            if not place:
                continue
            key = message.origin, message.topic
            last = known.get(key)
            if last is not None and place == last + 1:
                known[key] = place
            elif last is None:
                self._begin(key, place)
            elif place >> _COUNT_BITS != last >> _COUNT_BITS:  # another life, or another counting
                known[key] = place
                self._holes.pop(key, None)
            elif place > last:
                known[key] = place
                self._holes.setdefault(key, deque(maxlen=HOLES_MAX)).append((last + 1, place - 1))
                self._add(key, place - last - 1)
            elif place < last:
                self._fill(key, place)

    def dropped(self, message: Message) -> None:
        """Note a message that was dropped before the subscriber took it."""
        if message.place:
            self._add((message.origin, message.topic), 1)

    def wants(self, wanted: Filter) -> None:
        """Note that the subscriber wants no more than these prefixes: later messages to others are not missing."""
        for key in [key for key in self._last if not matches(wanted, key[1])]:
            del self._last[key]
            self._holes.pop(key, None)
            self._bytes -= len(key[1])

    def take(self) -> list[Gap]:
        untold, self.untold = self.untold, {}
        return [_gap(key, missing) for key, missing in untold.items()]

    def _begin(self, key: Key, place: int) -> None:
        self._bytes += len(key[1])
        if len(self._last) >= self._max or self._bytes > ROUTES_BYTES_MAX:  # of all others the next gap is not seen
            self._last.clear()
            self._holes.clear()
            self._bytes = len(key[1])
        self._last[key] = place

    def _fill(self, key: Key, place: int) -> None:
        """Note a late message: if it was missing, it is no longer."""
        holes = self._holes.get(key, ())
        for at, (first, last) in enumerate(holes):
            if first <= place <= last:
                assert isinstance(holes, deque)
                rest = [each for each in ((first, place - 1), (place + 1, last)) if each[0] <= each[1]]
                self._holes[key] = deque([*list(holes)[:at], *rest, *list(holes)[at + 1 :]], HOLES_MAX)
                self._add(key, -1)
                return

    def _add(self, key: Key, missing: int) -> None:
        if key not in self.untold and len(self.untold) >= self._max:
            key = SEVERAL
        total = self.untold.get(key, 0) + missing
        if total:
            self.untold[key] = total
        else:
            self.untold.pop(key, None)


def _gap(key: Key, missing: int) -> Gap:
    if key == SEVERAL:
        return Gap("", "", missing)
    return Gap(str(UUID(bytes=key[0])), key[1].decode("utf-8", "surrogateescape"), missing)
