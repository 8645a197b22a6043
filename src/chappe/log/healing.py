"""What a store knows of other stores, and what it asks of them.

Once a second each other store is asked what changed there since the last time. Partitions of which it has more
than we do are remembered until we have caught up; damaged ranges are asked of one store after the other.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Final

from chappe.data.topic import encode_topic
from chappe.defaults import POLL_HEADS_S
from chappe.limits import LOG_LIMITS, LogLimits
from chappe.log.actions import Action, Ask
from chappe.log.queries import HeadsAnswer, HeadsRequest, ReadRequest, Request
from chappe.log.storage import Hole, PartitionInfo
from chappe.log.streams import Key

ANSWER_S: Final = 5.0


@dataclass(slots=True)
class _Other:
    endpoint: str
    since: int = 0
    poll_at: float = 0.0
    polling: bool = False
    down_until: float = -math.inf
    ahead: dict[Key, tuple[int, int]] = field(default_factory=dict)  # first, next of what it has more of


@dataclass(frozen=True, slots=True)
class Asked:
    """A request under way: of a partition (``key``), for a ``hole`` of it, or for news (neither)."""

    store: str
    deadline: float
    key: Key | None = None
    hole: Hole | None = None


class Healer:
    """Other stores, and requests under way."""

    def __init__(self, limits: LogLimits = LOG_LIMITS) -> None:
        self._limits = limits
        self._others: dict[str, _Other] = {}
        self._asked: dict[int, Asked] = {}
        self._last_id = 0
        self._turn = 0
        self.ever = False  # whether another store was ever heard of

    def found(self, address: str, endpoint: str, now: float) -> None:
        """Another store said where it answers."""
        self.ever = True
        other = self._others.get(address)
        if other is None and len(self._others) >= self._limits.stores_max:
            silent = next((each for each, known in self._others.items() if not known.since), None)
            if silent is None:
                return
            self.gone(silent)
        if other is None or other.endpoint != endpoint:
            self._others[address] = _Other(endpoint, poll_at=now)

    def gone(self, address: str) -> list[Asked]:
        """Another store left; returns what it will not answer."""
        self._others.pop(address, None)
        return [self._asked.pop(i) for i, asked in list(self._asked.items()) if asked.store == address]

    @property
    def busy(self) -> bool:
        """Whether so many requests are under way that no further one should be made."""
        return len(self._asked) >= self._limits.asks_max

    def polls(self, now: float) -> list[Action]:
        """Ask for news whom it is time to ask."""
        actions: list[Action] = []
        for address, other in self._others.items():
            if now >= other.poll_at and not other.polling:
                other.polling = True
                other.poll_at = now + POLL_HEADS_S
                actions.append(self._ask(address, HeadsRequest(b"", other.since), Asked(address, now + ANSWER_S)))
        return actions

    def overdue(self, now: float) -> list[Asked]:
        """Requests nobody answered in time; the stores asked are passed over for a while."""
        late = [self.answered(i) for i, asked in list(self._asked.items()) if now >= asked.deadline]
        for asked in late:
            if asked is not None and asked.store in self._others:
                self._others[asked.store].down_until = now + ANSWER_S
        return [asked for asked in late if asked is not None]

    def answered(self, request_id: int) -> Asked | None:
        """Which request this id belongs to; it is under way no longer."""
        asked = self._asked.pop(request_id, None)
        if asked is not None and asked.key is None and asked.store in self._others:
            self._others[asked.store].polling = False
        return asked

    def news(self, address: str, answer: HeadsAnswer, now: float) -> list[PartitionInfo]:
        """Note an answer; returns the partitions in it for ``note``."""
        other = self._others.get(address)
        if other is None:
            return []
        other.since = answer.version
        if answer.more:
            other.poll_at = now
        return answer.infos()

    def note(self, address: str, key: Key, first: int, next_: int, ours: int) -> bool:
        """Remember whether another store has more of a partition than ``ours``."""
        other = self._others.get(address)
        if other is None:
            return False
        if next_ > ours:
            other.ahead[key] = (first, next_)
            return True
        other.ahead.pop(key, None)
        return False

    def caught_up(self, key: Key, ours: int) -> None:
        """We have everything of a partition up to ``ours``."""
        for other in self._others.values():
            if key in other.ahead and other.ahead[key][1] <= ours:
                del other.ahead[key]

    def first(self, key: Key) -> int | None:
        """The earliest offset that another store still has of a partition of which it has more."""
        return min((other.ahead[key][0] for other in self._others.values() if key in other.ahead), default=None)

    def read(self, key: Key, offset: int, now: float, tries: int = 0) -> list[Action]:
        """Ask a store that has the offset; nothing if none has."""
        having = [
            address
            for address, other in self._others.items()
            if now >= other.down_until and key in other.ahead and other.ahead[key][0] <= offset < other.ahead[key][1]
        ]
        if not having:
            return []
        address = having[tries % len(having)]
        request = ReadRequest(encode_topic(key[0]), encode_topic(key[1]), offset, self._limits.read_bytes)
        return [self._ask(address, request, Asked(address, now + ANSWER_S, key))]

    def heal(self, hole: Hole, now: float, address: str | None = None) -> list[Action]:
        """Ask a store, or else the next one in turn, for a damaged range; nothing if there is none."""
        usable = [address for address, other in self._others.items() if now >= other.down_until]
        if not usable:
            return []
        if address not in usable:
            self._turn += 1
            address = usable[self._turn % len(usable)]
        key = (hole.topic, hole.partition)
        request = ReadRequest(
            encode_topic(hole.topic), encode_topic(hole.partition), hole.first, self._limits.read_bytes
        )
        return [self._ask(address, request, Asked(address, now + ANSWER_S, key, hole))]

    def next_timeout(self) -> float:
        """When a poll or a deadline is due."""
        due = min((other.poll_at for other in self._others.values() if not other.polling), default=math.inf)
        return min(due, min((asked.deadline for asked in self._asked.values()), default=math.inf))

    def _ask(self, address: str, request: Request, asked: Asked) -> Action:
        self._last_id += 1
        self._asked[self._last_id] = asked
        return Ask(self._others[address].endpoint, self._last_id, request)
