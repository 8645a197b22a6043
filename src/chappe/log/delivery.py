"""What a consumer delivers: each partition in order, and what came early held back beyond its gap, up to a bound."""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from chappe.limits import LOG_LIMITS, LogLimits
from chappe.log.actions import Action, Deliver
from chappe.log.batch import Batch
from chappe.log.sources import Key


@dataclass(slots=True)
class Partition:
    """One partition: how far it was delivered, and what was tried to get what comes next."""

    next: int | None = None  # next offset to deliver; None until decided
    head: int = 0  # offset after the last one known to exist
    held: deque[Batch] = field(default_factory=deque)  # live batches beyond a gap, in order
    live_at: float = -math.inf
    retry_at: float = 0.0
    tries: int = 0
    missing_at: float = 0.0  # when the first of these tries was made
    told: int | None = None  # the offset that was reported as missing
    passed_at: float = -math.inf  # when a gap was passed over last
    fetched: int = 0  # the last FETCH asked for what comes before this; not asked again while that arrives
    kept_from: int = 0  # the last FETCH was answered from here on: the producer has nothing earlier
    delivered: bool = False  # a record of it came
    strict: bool = False  # an offset the user named: out of range is an error, not a reset
    hole: tuple[int, int] | None = None  # first, last of damage met; it counts while ``next`` is within

    @property
    def complete(self) -> bool:
        """Whether everything known to exist was delivered."""
        return self.next is not None and self.next >= self.head

    @property
    def gap_end(self) -> int:
        """The offset after what is missing next, if anything is."""
        return self.held[0].base if self.held else self.head


class Delivery:
    """All partitions of a consumer.

    Args:
        positions: Next offsets from an earlier life; what comes behind them is yet to be got.
        limits: How much is held, and how many positions are kept.
    """

    def __init__(self, positions: Mapping[Key, int], limits: LogLimits = LOG_LIMITS) -> None:
        self._limits = limits
        self.partitions = {
            key: Partition(next=position, head=position, delivered=True) for key, position in positions.items()
        }
        self.settled: dict[Key, int] = {}  # next offsets of those that nothing was heard of for long
        self.behind: OrderedDict[Key, None] = OrderedDict.fromkeys(positions)  # partitions with something to get
        self.held_bytes = 0
        self.queued_bytes = 0  # delivered, and not taken by the application
        self.duplicates = 0

    @property
    def paused(self) -> bool:
        """Whether the application is so far behind that nothing more should be delivered."""
        return self.queued_bytes >= self._limits.consumer_queue_bytes

    def find(self, key: Key) -> Partition | None:
        """The state of a partition, if it has one; one that was settled has all again."""
        state = self.partitions.get(key)
        if state is None and key in self.settled:
            position = self.settled.pop(key)
            state = self.partitions[key] = Partition(next=position, head=position, delivered=True)
        return state

    def settle(self, now: float, listed: Callable[[Key], bool]) -> None:
        """Keep only the positions of partitions without news; ``listed``: whether a store has a partition.

        What was only spoken of, and never came, is forgotten.
        """
        for key, state in list(self.partitions.items()):
            busy = state.held or state.strict or key in self.behind or now - state.live_at < self._limits.settled_s
            if busy or not state.complete:
                continue
            del self.partitions[key]
            if state.next and (state.delivered or listed(key)):
                self.settled[key] = state.next
        if len(self.settled) > self._limits.settled_max:
            unlisted = [key for key in self.settled if not listed(key)]
            for key in unlisted[: len(self.settled) - self._limits.settled_max]:
                del self.settled[key]

    def advance(self, key: Key, state: Partition, batch: Batch) -> list[Action]:
        """Deliver a batch that begins at or before the next offset, and what was held behind it."""
        assert state.next is not None
        if batch.next <= state.next:
            self.duplicates += 1
            return []
        actions = [self._deliver(key, state, batch)]
        while state.held and state.held[0].base <= state.next:
            held = state.held.popleft()
            self.held_bytes -= len(held.raw)
            if held.next > state.next:
                actions.append(self._deliver(key, state, held))
        if state.next >= state.fetched:
            state.retry_at = 0.0
        if key in self.behind and state.next >= state.head and not state.held:
            del self.behind[key]
        return actions

    def advance_held(self, key: Key, state: Partition) -> list[Action]:
        """Deliver the first batch held, which begins at or before the next offset, and those behind it."""
        batch = state.held.popleft()
        self.held_bytes -= len(batch.raw)
        return self.advance(key, state, batch)

    def _deliver(self, key: Key, state: Partition, batch: Batch) -> Action:
        assert state.next is not None
        start, state.next = state.next, batch.next
        state.delivered = True
        state.tries = 0
        state.strict = False
        self.queued_bytes += len(batch.raw)
        return Deliver(key[0], key[1], batch, start)

    def hold(self, state: Partition, batch: Batch) -> None:
        """Keep a batch that came early; in order, without overlap, up to the bound."""
        size = len(batch.raw)
        if self.held_bytes + size > self._limits.held_bytes_max or (state.held and batch.base < state.held[-1].next):
            return
        state.held.append(batch)
        self.held_bytes += size

    def drop_held(self, state: Partition) -> None:
        """Forget what is held; it is read later like everything else."""
        self.held_bytes -= sum(len(batch.raw) for batch in state.held)
        state.held.clear()

    def begin(self, key: Key, offset: int) -> None:
        """Start a partition that was not decided at ``offset``: what is held before that is not wanted."""
        state = self.find(key)
        if state is not None and state.next is None:
            state.next = offset
            while state.held and state.held[0].next <= offset:
                self.held_bytes -= len(state.held.popleft().raw)

    def go_to(self, key: Key, offset: int) -> None:
        """Go on at an offset that the user named."""
        state = self.find(key) or self.partitions.setdefault(key, Partition())
        self.drop_held(state)
        state.next = offset
        state.strict = True
        state.tries = 0
        state.fetched = 0
        self.want(key)

    def want(self, key: Key) -> None:
        """There is something to get of a partition."""
        if key not in self.behind:
            self.behind[key] = None
