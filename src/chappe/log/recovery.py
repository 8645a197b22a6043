"""How a store gets what it missed: from other stores that have it, or else from its producer.

What nobody answers for is given up after a while, and the store goes on behind it.
"""

from __future__ import annotations

import math
from itertools import islice
from typing import Final

from chappe.core import Report
from chappe.data.topic import encode_topic
from chappe.defaults import RETRY_S
from chappe.errors import ProtocolError
from chappe.limits import LogLimits
from chappe.log.actions import Action, Publish
from chappe.log.batch import Batch
from chappe.log.events import RecordsLost
from chappe.log.healing import Asked, Healer
from chappe.log.messages import Fetch
from chappe.log.queries import Answer, HeadsAnswer, ReadAnswer
from chappe.log.storage import Hole
from chappe.log.streams import Key, Stream
from chappe.log.subscriptions import Subscriptions
from chappe.log.unfilled import Unfilled
from chappe.log.writing import Writer

GIVE_UP_TRIES: Final = 6  # FETCHes without an answer before a gap that nobody can fill is accepted
SILENT_S: Final = 5.0  # a producer not heard for this long is gone
QUIET_S: Final = 1.0  # a partition whose producer spoke this lately is not fetched from other stores
CATCH_UP_S: Final = 0.05  # how often partitions that miss something are looked at


class Recovery:
    """What is asked, and of whom, for every stream that misses something.

    Args:
        address: The store's, to which FETCHes are answered.
        writer: The streams.
        healer: The other stores.
        unfilled: Remembers what was given up and may yet come.
        subscriptions: Tell which producers are originals.
        limits: How much is asked for, and how long.
    """

    def __init__(
        self,
        address: str,
        writer: Writer,
        healer: Healer,
        unfilled: Unfilled,
        subscriptions: Subscriptions,
        limits: LogLimits,
        *,
        now: float,
    ) -> None:
        self._address = address
        self._writer = writer
        self._healer = healer
        self._unfilled = unfilled
        self._subscriptions = subscriptions
        self._limits = limits
        self._catch_up_at = now

    def next_timeout(self) -> float:
        """When partitions are to be looked at again."""
        return self._catch_up_at if self._writer.lagging else math.inf

    def catch_up(self, now: float) -> list[Action]:
        """Ask for what is missing, wherever it is time to."""
        writer = self._writer
        actions: list[Action] = []
        self._catch_up_at = max(now + CATCH_UP_S, writer.refusing_until)
        if now < writer.refusing_until or writer.paused:
            return actions
        for key in list(islice(writer.lagging, self._limits.look_max)):
            del writer.lagging[key]
            stream = writer.streams.get(key)
            if stream is None or not stream.behind:
                continue
            writer.lagging[key] = None  # behind the others, so that everybody's turn comes
            if stream.held or stream.next < stream.said or now - stream.active_at > QUIET_S:
                actions += self.recover(key, stream, now)
        return actions

    def recover(self, key: Key, stream: Stream, now: float) -> list[Action]:
        """Ask another store, or else the producer, for the next record of one partition."""
        writer = self._writer
        if stream.reading or now < max(stream.retry_at, writer.refusing_until) or writer.paused or self._healer.busy:
            return []
        if not stream.tries:
            stream.missing_at = now
        earliest = self._healer.first(key)
        if earliest is not None and earliest > stream.next and not stream.damaged and writer.unknown(key, stream):
            stream.next = earliest  # others removed what came before: begin where they begin
            if stream.held and stream.held[0].base <= stream.next:
                return writer.go_on(key, stream, now)
        actions = self._healer.read(key, stream.next, now, stream.tries)
        if actions:
            stream.reading = True
            stream.fetched = 0
            return actions
        answered = stream.kept_from > stream.next
        # A producer that speaks and does not answer does not hear us: what we lack it may still have.
        deaf = not answered and now - stream.active_at < SILENT_S
        gap = stream.held or earliest is not None or answered
        patient = gap and (deaf or self._healer.ever or not writer.unknown(key, stream))
        if stream.tries >= GIVE_UP_TRIES and not (patient and now - stream.missing_at < self._limits.give_up_s):
            return self._give_up(key, stream, earliest, now)
        # Who has just met us may not hear us yet: ask again soon.
        stream.retry_at = now + (RETRY_S if stream.tries else RETRY_S / 10)
        stream.tries += 1
        limit = stream.held[0].base if stream.held else stream.head
        count = min(limit - stream.next, self._limits.fetch_records_max)
        stream.fetched = stream.next + count
        stream.kept_from = 0
        self._unfilled.wait(key, now + SILENT_S)
        return [Publish(Fetch(key[1], self._address, key[0], stream.next, count))]

    def _give_up(self, key: Key, stream: Stream, earliest: int | None, now: float) -> list[Action]:
        """Nobody has the next record any more: go on with what there is, or wait until somebody speaks."""
        stream.tries = 0
        stream.retry_at = 0.0
        known = (earliest, stream.kept_from, stream.held[0].base if stream.held else None)
        later = [each for each in known if each is not None]
        goal = min((each for each in later if each > stream.next), default=None)
        if goal is None and earliest is not None:
            stream.retry_at = now + RETRY_S  # a store has it that does not answer just now
            return []
        if goal is None:
            stream.head = stream.next
            self._writer.tidy(key, stream)
            return []
        actions: list[Action] = []
        unknown = self._writer.unknown(key, stream)
        told = goal <= max(stream.kept_from, 0 if earliest is None or stream.damaged else earliest)
        gone = told or self._original(key)
        if not unknown:
            reason = "no store or producer has them any more" if gone else "no store or producer answered for them"
            actions.append(Report(RecordsLost(key[0], key[1], stream.next, goal - 1, reason)))
        if not gone:
            self._unfilled.miss(key, stream.next, goal, now + SILENT_S)
            if unknown:
                self._writer.begin(key, stream.next, now)
        stream.next = goal
        if stream.held and stream.held[0].base == goal:
            return actions + self._writer.go_on(key, stream, now)
        return actions + self.recover(key, stream, now)

    def _original(self, key: Key) -> bool:
        """Whether its producer hears us and is an original: it says nothing of what it has no longer."""
        raw = encode_topic(key[1])
        return self._subscriptions.has(b"F" + raw) and not self._subscriptions.has(b"A" + raw)

    # -- other stores -----------------------------------------------------------------------------------

    def listed(self, store: str, answer: HeadsAnswer, now: float) -> list[Action]:
        """Another store said what is new there."""
        for info in self._healer.news(store, answer, now):
            key = (info.topic, info.partition)
            if self._healer.note(store, key, info.first, info.next, self._writer.stored(key)):
                self._writer.lag(key, self._writer.stream(key), info.next)
        return self.catch_up(now)

    def read(self, store: str, key: Key, answer: Answer, batches: list[bytes], now: float) -> list[Batch]:
        """Another store answered for a partition; returns what it has.

        Raises:
            ProtocolError: One of the batches is none; the partition is asked for again later.
        """
        stream = self._writer.stream(key)
        stream.reading = False
        try:
            parsed = [Batch.parse(raw) for raw in batches]
        except ProtocolError:
            stream.tries += 1
            stream.retry_at = now + RETRY_S
            raise
        if isinstance(answer, ReadAnswer) and parsed:
            return parsed
        stream.tries += 1
        stream.retry_at = now + RETRY_S
        if isinstance(answer, ReadAnswer):
            stream.damaged = stream.damaged or answer.hole_last >= 0
            first = max(answer.first, answer.hole_last + 1)  # what is damaged there must come from elsewhere
            self._healer.note(store, key, first, answer.next, self._writer.stored(key))
        return []

    def unanswered(self, asked: list[Asked]) -> None:
        """These requests are under way no longer."""
        for each in asked:
            if each.key is not None and each.hole is None and each.key in self._writer.streams:
                self._writer.streams[each.key].reading = False

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
