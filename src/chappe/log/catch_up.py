"""How a consumer gets what its partitions lack.

It is read from a store that has it, request by request; where no store of ours has it, FETCH asks the producer and
original stores. What nobody has is passed over once everybody was asked for long enough, and reported as lost.
"""

from __future__ import annotations

import math
from itertools import islice
from typing import Final

from chappe.core import Report
from chappe.defaults import RETRY_S
from chappe.errors import ProtocolError
from chappe.limits import LogLimits
from chappe.log.actions import Action, Publish
from chappe.log.batch import Batch
from chappe.log.delivery import Delivery, Partition
from chappe.log.events import OutOfRange, RecordsLost, RecordsMissing
from chappe.log.messages import Fetch
from chappe.log.queries import ReadAnswer
from chappe.log.sources import Key, Source, Sources
from chappe.log.starting import Reset

LOOK_S: Final = 0.05  # how often partitions that miss something are looked at
UNDECIDED_TRIES: Final = 4  # RETRY_S each, for a store to be found that knows where a time begins
GIVE_UP_TRIES: Final = 6  # FETCHes without an answer before a gap that no store can fill is skipped
TELL_S: Final = 5.0  # a gap that is not filled by then is reported, long before it is given up


class CatchUp:
    """What is asked, and of whom, for every partition that is behind.

    Args:
        address: The consumer's, to which FETCHes are answered.
        reset: Where to go on if a position is not, or no longer, there.
        delivery: The partitions.
        sources: The stores, and what each of them has.
        limits: How much is asked for, and how long.
    """

    def __init__(self, address: str, reset: Reset, delivery: Delivery, sources: Sources, limits: LogLimits) -> None:
        self._limits = limits
        self._address = address
        self._reset = reset
        self._delivery = delivery
        self._sources = sources
        self._look_at = -math.inf

    def next_timeout(self) -> float:
        """When partitions are to be looked at again."""
        waiting = self._delivery.behind and not self._delivery.paused and self._sources.reads < self._limits.reads_max
        return self._look_at if waiting else math.inf

    def more(self, now: float) -> list[Action]:
        """Ask for what is missing, as far as the bounds allow."""
        delivery = self._delivery
        if not delivery.behind or delivery.paused:
            return []
        actions: list[Action] = []
        self._look_at = now + LOOK_S
        for key in list(islice(delivery.behind, self._limits.look_max)):
            if self._sources.reads >= self._limits.reads_max:
                break
            delivery.behind.move_to_end(key)  # so that everybody's turn comes
            state = delivery.partitions[key]
            if state.held and state.next is not None and state.held[0].base <= state.next:
                actions += delivery.advance_held(key, state)
            if self._sources.reading(key) or now < state.retry_at or key not in delivery.behind:
                continue
            if state.complete and not state.held and not state.strict:
                del delivery.behind[key]
                continue
            actions += self._get(key, state, now)
        return actions

    # -- answers ----------------------------------------------------------------------------------------

    def read(
        self, store: Source, key: Key, offset: int, answer: ReadAnswer, batches: list[bytes], now: float
    ) -> list[Action]:
        """What a store read for us from ``offset`` on: deliver it and ask for more.

        Raises:
            ProtocolError: One of the batches is none; the store is passed over for a while.
        """
        state = self._delivery.find(key)
        if state is None:
            return self.more(now)  # nobody wants it any more
        store.heads[key] = (answer.first, answer.next)
        if not answer.known:
            del store.heads[key]
        state.head = max(state.head, answer.next)
        try:
            parsed = [Batch.parse(raw) for raw in batches]
        except ProtocolError:
            store.fail(now)
            raise
        if parsed:
            actions = self._take(key, state, parsed)
            return actions + self.more(now)
        if offset != state.next:
            return self.more(now)  # it says nothing of where we are by now
        if answer.hole_last >= 0:
            # Damaged here, another store may have it; when it is healed the store lists the partition again.
            store.heads[key] = (max(answer.first, answer.hole_last + 1), answer.next)
            state.tries += 1
            return self._hole(key, state, answer.hole_last, now)
        if answer.known and state.next >= answer.next:
            state.retry_at = now + RETRY_S / 10
        return self.more(now)

    def _take(self, key: Key, state: Partition, batches: list[Batch]) -> list[Action]:
        """Deliver all of an answer, before anything of it could be asked for again."""
        actions: list[Action] = []
        for batch in batches:
            if state.next is not None and batch.base <= state.next:
                actions += self._delivery.advance(key, state, batch)
            else:
                self._delivery.hold(state, batch)
        return actions

    def fetched(self, state: Partition, base: int) -> None:
        """The answer to a FETCH goes on at ``base``, beyond the next offset."""
        if not 0 < state.kept_from < base:
            state.kept_from = base
        if state.next is not None and not state.held and state.tries and not self._sources.ever:
            # The producer answered from the first record that it still keeps: what came before is not there.
            state.tries = max(state.tries, GIVE_UP_TRIES - 1)

    # -- one partition ----------------------------------------------------------------------------------

    def _get(self, key: Key, state: Partition, now: float) -> list[Action]:
        """Ask whoever may have the next offset of one partition."""
        if not state.tries:
            # Who passed over a gap just now need not wait for the same stores again.
            spent = self._sources.gone_at < state.passed_at and now - state.passed_at < self._limits.pass_over_s
            state.missing_at = now - self._limits.pass_over_s if spent else now
        usable = self._sources.usable(key, now)
        if state.next is None:
            if not usable or self._reset.kind != "time":
                return self._undecided(key, state, now)
            return [self._sources.seek(usable[0], key, self._reset.value, now)]
        having = [each for each in usable if each.has(key, state.next)]
        if having:
            state.fetched = 0
            return [self._sources.read(having[state.tries % len(having)], key, state.next, now)]
        ranges = self._sources.ranges(key)
        first = min((first for first, _ in ranges), default=None)
        last = max((next_ for _, next_ in ranges), default=0)
        damaged = state.hole is not None and state.hole[0] <= state.next <= state.hole[1]
        if first is not None and state.next < first and not damaged:
            return self._out_of_range(key, state, first, last, now)
        if state.strict and first is not None and state.next > max(last, state.head):
            return self._out_of_range(key, state, first, max(last, state.head), now)
        if state.strict and first is not None and state.next == last and state.next >= state.head:
            state.strict = False
            return []
        # What we know of the stores is up to a second old: one of them may have it by now.
        perhaps = [each for each in usable if each.heads[key][0] <= state.next]
        if perhaps and state.tries % 2 == 0 and state.next < max(state.head, state.held[0].base if state.held else 0):
            state.tries += 1
            return [self._sources.read(perhaps[state.tries // 2 % len(perhaps)], key, state.next, now)]
        return self._fetch(key, state, now)

    def _undecided(self, key: Key, state: Partition, now: float) -> list[Action]:
        """No store can say where to start: start with what came live."""
        if state.tries < UNDECIDED_TRIES:
            state.tries += 1
            state.retry_at = now + RETRY_S
            return []
        return self._skip(key, state, state.gap_end)

    def _fetch(self, key: Key, state: Partition, now: float) -> list[Action]:
        """No store of ours has it: ask the producer and original stores, and skip what nobody has."""
        assert state.next is not None
        limit = state.gap_end
        if limit <= state.next:
            state.retry_at = now + RETRY_S
            return []
        damaged = state.hole is not None and state.hole[0] <= state.next <= state.hole[1]
        if state.hole is not None and damaged and self._hopeless(state, now):
            return self._skip_hole(key, state, state.hole[1], now)
        if state.held and self._hopeless(state, now):
            firsts = [first for first, _ in self._sources.ranges(key)]
            goal = min(each for each in (limit, state.kept_from, *firsts) if each > state.next)
            lost = RecordsLost(key[0], key[1], state.next, goal - 1, "no store or producer has them any more")
            state.passed_at = now
            if goal < limit:
                state.next, state.tries = goal, 0
                return [Report(lost), *self._get(key, state, now)]
            return [Report(lost), *self._skip(key, state, limit)]
        listed = damaged or any(next_ > state.next for _, next_ in self._sources.ranges(key))
        if state.tries >= GIVE_UP_TRIES and not state.held and not listed:
            # Announced, but nobody has it: wait until somebody speaks of it again.
            state.tries = 0
            state.head = state.next
            return []
        if state.tries == 1:  # its producer may have it no longer since a store has it: hear of that at once
            self._sources.poll_soon(now)
        # The first time the store may merely not have written it yet: ask again soon.
        state.retry_at = now + (RETRY_S if state.tries else RETRY_S / 10)
        state.tries += 1
        count = min(limit - state.next, self._limits.fetch_records_max)
        state.fetched = state.next + count
        state.kept_from = 0
        fetch = Publish(Fetch(key[1], self._address, key[0], state.next, count))
        last = state.hole[1] if state.hole is not None and damaged else limit - 1
        return [*self._tell(key, state, last, now), fetch]

    def _tell(self, key: Key, state: Partition, last: int, now: float) -> list[Action]:
        """Say once for each gap that it is waited for."""
        assert state.next is not None
        if state.told == state.next or not TELL_S <= now - state.missing_at < self._limits.pass_over_s:
            return []
        state.told = state.next
        return [Report(RecordsMissing(key[0], key[1], state.next, last))]

    def _hopeless(self, state: Partition, now: float) -> bool:
        """Whether everybody was asked for long enough."""
        waited = not self._sources.ever or now - state.missing_at >= self._limits.pass_over_s
        return waited and state.tries >= GIVE_UP_TRIES

    def _skip(self, key: Key, state: Partition, offset: int) -> list[Action]:
        """Go on at ``offset``, where the first held batch begins."""
        state.next = offset
        state.tries = 0
        state.retry_at = 0.0
        if not state.held:
            self._delivery.behind.pop(key, None)
            return []
        return self._delivery.advance_held(key, state)

    def _out_of_range(self, key: Key, state: Partition, first: int, next_: int, now: float) -> list[Action]:
        """The position is not, or no longer, there: report it, and go on where the policy says."""
        assert state.next is not None
        event = OutOfRange(key[0], key[1], state.next, first, next_, state.strict)
        quiet = not state.strict and state.next == 0 and self._reset.kind == "earliest"
        state.next = next_ if self._reset.kind == "latest" or state.next > next_ else first
        state.strict = False
        state.head = max(state.head, next_)
        self._delivery.drop_held(state)
        actions: list[Action] = [] if quiet else [Report(event)]
        return actions + (self._get(key, state, now) if state.next < state.head else [])

    def _hole(self, key: Key, state: Partition, last: int, now: float) -> list[Action]:
        """One store has damage at our position: others are asked; if none has it, it is skipped."""
        assert state.next is not None
        state.hole = (state.next, last)
        others = self._sources.anybody_has(key, state.next)
        if others or not self._hopeless(state, now):
            state.retry_at = 0.0 if others else now + RETRY_S
            return self.more(now)
        return [*self._skip_hole(key, state, last, now), *self.more(now)]

    def _skip_hole(self, key: Key, state: Partition, last: int, now: float) -> list[Action]:
        assert state.next is not None
        lost = RecordsLost(key[0], key[1], state.next, last, "they are damaged on disk and no other store has them")
        state.next = last + 1
        state.tries = 0
        state.retry_at = 0.0
        state.hole = None
        state.passed_at = now
        return [Report(lost)]
