"""How a store gets what it missed: the ``GapOwner`` of the gaps in its streams.

It is read from other stores that have it, or else asked of its producer. What nobody answers for is given up after a
while: the store goes on behind it, and remembers what may yet come (``unfilled``).
"""

from __future__ import annotations

import math
from typing import Final

from chappe.core import Report
from chappe.data.topic import encode_topic
from chappe.limits import LogLimits
from chappe.log.actions import Action, Publish
from chappe.log.batch import Batch
from chappe.log.events import RecordsLost
from chappe.log.gap import GIVE_UP_TRIES, Gap, Gaps
from chappe.log.messages import Fetch
from chappe.log.sources import Key, Sources
from chappe.log.storage import Hole
from chappe.log.subscriptions import Subscriptions
from chappe.log.unfilled import Unfilled
from chappe.log.writing import Writer

SILENT_S: Final = 5.0  # a producer not heard for this long is gone


class Backfill:
    """What a store does about what it missed.

    Args:
        address: The store's, to which FETCHes are answered.
        gaps: Those of the streams.
        writer: The streams.
        sources: The other stores.
        unfilled: Remembers what was given up and may yet come.
        subscriptions: Tell which producers are originals.
        limits: How much is asked for, and how long.
    """

    def __init__(
        self,
        address: str,
        gaps: Gaps,
        writer: Writer,
        sources: Sources,
        unfilled: Unfilled,
        subscriptions: Subscriptions,
        limits: LogLimits,
    ) -> None:
        self._address = address
        self._writer = writer
        self._sources = sources
        self._unfilled = unfilled
        self._subscriptions = subscriptions
        self._limits = limits
        self._gaps = gaps
        gaps.owner = self

    # -- as the owner of gaps ---------------------------------------------------------------------------

    def asks_from(self) -> float:
        """When the disk takes writes again; not while too much waits for it."""
        return math.inf if self._writer.paused else self._writer.refusing_until

    def known_to(self, key: Key) -> int:
        """What is on our own disk."""
        return self._writer.stored(key)

    def place(self, key: Key, gap: Gap, now: float) -> list[Action]:
        """Begin a partition that is new where the others begin, if they removed what came before."""
        first = min((first for first, _ in self._sources.ranges(key)), default=0)
        if first <= gap.next or gap.damaged_to > gap.next or not self._writer.unknown(key):
            return []
        gap.next = first
        self._gaps.progress(key, gap)
        return self.take_held(key, gap, now)

    def fetching(self, key: Key, gap: Gap, now: float) -> list[Action]:
        """What its producer answers from now on may not be for what was given up."""
        self._unfilled.wait(key, now + SILENT_S)
        return []

    def patience_s(self, key: Key, gap: Gap, now: float) -> float:
        """None for what comes before a new partition, if all who could have it were asked."""
        # A producer that speaks and does not answer does not hear us: what we lack it may still have.
        deaf = gap.kept_from <= gap.next and now - gap.heard_at < SILENT_S
        patient = deaf or self._sources.ever or not self._writer.unknown(key)
        return self._limits.give_up_s if patient else 0.0

    def pass_over(self, key: Key, gap: Gap, goal: int, now: float) -> list[Action]:
        """Report what is lost; what may yet come is remembered, and nothing behind it is acknowledged."""
        first = min((first for first, _ in self._sources.ranges(key)), default=0)
        damaged = gap.damaged_to > gap.next
        gone = goal <= max(gap.kept_from, 0 if damaged else first) or self._original(key)
        unknown = self._writer.unknown(key)
        if not gone:
            self._unfilled.miss(key, gap.next, goal, now + SILENT_S)
        if unknown:
            if not gone:
                self._writer.begin(key, gap.next, now)
            return []
        reason = "no store or producer has them any more" if gone else "no store or producer answered for them"
        return [Report(RecordsLost(key[0], key[1], gap.next, goal - 1, reason))]

    def take_held(self, key: Key, gap: Gap, now: float) -> list[Action]:
        """Write what is held and begins at or before the next offset."""
        actions = self._writer.go_on(key, self._writer.streams[key], now)
        self._writer.prune(key)
        return actions

    # -- what was given up ------------------------------------------------------------------------------

    def ask_to_fill(self, key: Key, now: float) -> list[Action]:
        """A producer speaks: ask it for what nobody had when we went past it."""
        if self._unfilled.tries(key) >= GIVE_UP_TRIES and self._original(key):
            self._unfilled.gone(key, self._writer.stored(key))
        wanted = None if now < self._writer.refusing_until else self._unfilled.ask(key, now)
        return [] if wanted is None else [Publish(Fetch(key[1], self._address, key[0], *wanted))]

    def fill(self, key: Key, batch: Batch, now: float) -> list[Action]:
        """Write what a producer sent of a range that was missing."""
        wanted = self._unfilled.answer(key, batch.base)
        if wanted is None:
            return []
        return self._writer.heal(Hole(*key, wanted[0], wanted[1] - 1), [batch], now)

    def _original(self, key: Key) -> bool:
        """Whether its producer hears us and is an original: it says nothing of what it has no longer."""
        raw = encode_topic(key[1])
        return self._subscriptions.has(b"F" + raw) and not self._subscriptions.has(b"A" + raw)
