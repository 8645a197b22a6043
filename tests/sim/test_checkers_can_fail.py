"""Cores broken on purpose: each promise must be seen to break by some seed among few."""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from typing import Any

import pytest
from tests.sources import needs_sources
from tests.worlds.log import faults, trims
from tests.worlds.log.scenario import Log, Sink
from tests.worlds.log.world import Cores

from chappe.core import Deliver, Effect, Persist, Publish, Reply
from chappe.data.topic import decode_topic
from chappe.errors import StorageError
from chappe.limits import LogLimits
from chappe.log.batch import Batch
from chappe.log.catalogue import Catalogue, _CatalogueChange, merged
from chappe.log.consumer import LogConsumer
from chappe.log.delivery import Delivery, Records
from chappe.log.exactly_once.staged import KeptSinks
from chappe.log.exactly_once.transactions import Transactions
from chappe.log.gap import Gaps
from chappe.log.messages import BatchMessage, Stored
from chappe.log.producer import JournalBatch, JournalTrim, LogProducer
from chappe.log.queries import CommitAnswer, QueryReply, TopicAnswer, TopicEntry
from chappe.log.sources import Key
from chappe.log.storage import AppendRecords, PartitionInfo, WriteRecords
from chappe.log.store import LogStore
from chappe.log.writing import StoreWriter
from chappe.sim.world import Settings


class AcknowledgesBeforeTheWrite(LogStore):
    def handle_message(self, message: Any, now: float) -> list[Effect]:
        actions = super().handle_message(message, now)
        if isinstance(message, BatchMessage):
            end = Batch.parse(message.body).next
            stored = Stored(message.address, self.storage.store_id, message.subject, end - 1)
            return [Publish(stored), *actions]
        return actions


class ForgetsHalfOfItsWrite(StoreWriter):
    """Counts all of a write as done of which it hands only the first half to the disk."""

    def write(self, now: float) -> list[Effect]:
        actions = super().write(now)
        return [Persist(WriteRecords(each.job.appends[: (len(each.job.appends) + 1) // 2]))
                if isinstance(each, Persist) else each for each in actions]  # fmt: skip


class NeverAsks(Gaps):
    """Does not fetch from producers, nor from other stores."""

    def pursue(self, *_: Any) -> list[Effect]:
        return []


class HoldsWithoutBound(Gaps):
    def hold(self, gap: Any, batch: Batch) -> None:
        if not gap.held or batch.base >= gap.held[-1].next:
            gap.held = gap.held or deque()
            gap.held.append(batch)
            self.held_bytes += len(batch.raw)


class ChangesWhatItStores(StoreWriter):
    def write(self, now: float) -> list[Effect]:
        actions = super().write(now)
        for each in actions:
            if isinstance(each, Persist):
                self._in_flight = tuple(self._moved(append) for append in each.job.appends)
                return [Persist(WriteRecords(self._in_flight))]
        return actions

    @staticmethod
    def _moved(append: AppendRecords) -> AppendRecords:
        from chappe.log.batch import encode_batch

        body = encode_batch(append.base, [b"?"] * append.count, append.timestamp_min)
        return AppendRecords(append.topic, append.partition, append.base, append.count, 0, 0, body, append.heal)


class Unfenced(Transactions):
    """Lets a run write that another one has taken over from."""

    def _current(self, name: str, run: str, now: float) -> Any:
        sink = self._sinks[name]
        sink.touched_at = now
        return sink


class CommitsAgain(Transactions):
    """Does not look whether a batch is committed."""

    def _commit(self, asked: Any, request: Any, now: float) -> list[Effect]:
        sink = self._current(request.sink, request.run, now)
        sink.state = replace(sink.state, batch=min(sink.state.batch, request.batch - 1))
        return super()._commit(asked, request, now)


class CommitsWhatIsStaged(Transactions):
    """Commits another attempt of a task, whichever there is."""

    def _commit_job(self, sink: Any, request: Any) -> Any:
        job = super()._commit_job(sink, request)
        others = {each.task: each.attempt for each in reversed(sink.staged) if each.batch == request.batch}
        chosen = tuple((task, others.get(task, attempt), *rest) for task, attempt, *rest in job.attempts)
        return replace(job, attempts=chosen)


class AnswersBeforeTheCommit(Transactions):
    def _commit(self, asked: Any, request: Any, now: float) -> list[Effect]:
        return [asked.reply(CommitAnswer(request.batch, False, [])), *super()._commit(asked, request, now)]


class KeepsRows(Transactions):
    """Never removes what was staged."""

    def _discard(self, sink: Any, attempts: Any) -> list[Effect]:
        return []


def with_sinks(broken: type[Transactions]) -> type[LogStore]:
    """A store with these sinks."""

    class Store(LogStore):
        def __init__(self, *arguments: Any, kept: KeptSinks, limits: LogLimits, now: float, **more: Any) -> None:
            super().__init__(*arguments, kept=kept, limits=limits, now=now, **more)
            self.transactions = broken(self.storage.store_id, kept, self._writer.next_offset, limits, now=now)

    Store.__name__ = broken.__name__
    return Store


def with_writer(broken: type[StoreWriter]) -> type[LogStore]:
    """A store that writes like this."""

    class Store(LogStore):
        def __init__(self, *arguments: Any, **more: Any) -> None:
            super().__init__(*arguments, **more)
            self._writer.__class__ = broken

    Store.__name__ = broken.__name__
    return Store


def with_gaps(broken: type[Gaps]) -> type[LogStore]:
    """A store that asks like this for what it missed."""

    class Store(LogStore):
        def __init__(self, *arguments: Any, **more: Any) -> None:
            super().__init__(*arguments, **more)
            self._gaps.__class__ = broken

    Store.__name__ = broken.__name__
    return Store


class SkipsGaps(LogConsumer):
    def _arrived(self, topic: str, partition: str, batch: Batch, now: float, *, live: bool) -> list[Effect]:
        gap = self._beginnings.partition((topic, partition), batch.base, now).gap
        if batch.base > gap.next:
            gap.next = batch.base
        return super()._arrived(topic, partition, batch, now, live=live)


class DeliversTwice(Delivery):
    def _deliver(self, key: Any, state: Any, batch: Batch) -> list[Effect]:
        (action,) = super()._deliver(key, state, batch)
        assert isinstance(action, Deliver)
        found = action.messages
        return [Deliver(action.to, Records(found.topic, found.partition, found.batch, found.batch.base))]

    def advance(self, key: Any, state: Any, batch: Batch) -> list[Effect]:
        actions = super().advance(key, state, batch)
        if not actions and batch.next == state.gap.next:
            return self._deliver(key, state, batch)
        return actions


def with_delivery(broken: type[Delivery]) -> type[LogConsumer]:
    """A consumer that delivers like this."""

    class Consumer(LogConsumer):
        def __init__(self, *arguments: Any, **more: Any) -> None:
            super().__init__(*arguments, **more)
            self._delivery.__class__ = broken

    Consumer.__name__ = broken.__name__
    return Consumer


class ForgetsOneMore(Catalogue):
    """Begins behind a record that is younger than what was to be forgotten."""

    def _first(self, info: PartitionInfo, before: int) -> int:
        return min(info.next, super()._first(info, before) + 1)


class ConfirmsBeforeTheDiskHasIt(Catalogue):
    def _begin(self, change: _CatalogueChange, now: float) -> list[Effect]:
        effects = super()._begin(change, now)
        if change.request is not None:
            answer = TopicAnswer(TopicEntry(change.request.topic), "", change.records)
            effects.append(Reply(change.client, QueryReply(change.request_id, answer)))
        return effects


class ConfirmsWhatIsRefused(Catalogue):
    def retained(self, problem: str, now: float) -> list[Effect]:
        return super().retained("", now)


class KeepsWhatOthersDeleted(Catalogue):
    """Takes entries of others, and forgets no records by them."""

    def _passed_on(self, change: _CatalogueChange, theirs: TopicEntry, now: float) -> list[Effect]:
        both = merged(self.entries.get(decode_topic(theirs.topic)), theirs)
        if both != self.entries.get(decode_topic(theirs.topic)):
            change.entries.append(both)
        return []


def with_catalogue(broken: type[Catalogue]) -> type[LogStore]:
    """A store that trims like this."""

    class Store(LogStore):
        def __init__(self, *arguments: Any, **more: Any) -> None:
            super().__init__(*arguments, **more)
            self.catalogue.__class__ = broken

    Store.__name__ = broken.__name__
    return Store


class ReusesAnOffset(LogProducer):
    def __init__(self, *arguments: Any, next_offset: int = 0, **more: Any) -> None:
        super().__init__(*arguments, next_offset=max(0, next_offset - 1), **more)
        self.next_offset = max(0, self.next_offset - 1)


class ForgetsWhatNobodyHas(LogProducer):
    """Lets go of records as soon as they are published."""

    def flush(self, now: float) -> list[Effect]:
        actions = super().flush(now)
        self._kept.drop_before(self.next_offset)
        return actions


class TellsWhatItsJournalRefused(LogProducer):
    def handle_done(self, job: JournalBatch | JournalTrim, outcome: StorageError | None, now: float) -> list[Effect]:
        effects = super().handle_done(job, None, now)
        return effects if outcome is None else []


class SendsBeforeStoresAnswer(LogProducer):
    def __init__(self, *arguments: Any, resumed: bool = False, **more: Any) -> None:
        super().__init__(*arguments, **more)


class CountsOneStoreTwice(LogProducer):
    """Is content with one acknowledgement, whatever ``min_acks`` says."""

    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self._min_acks = min(self._min_acks, 1)


class AsksWithoutPause(LogConsumer):
    def next_timeout(self) -> float:
        return 0.0


class TakesAnOldListForTheEnd(LogConsumer):
    """Does not wait for what stores list anew."""

    def end_known(self, since: float, now: float) -> bool:
        return self.synced


class EndsBeforeAllIsRead(LogConsumer):
    def lacking(self, end: dict[Key, int]) -> dict[Key, int]:
        return {}


BROKEN: list[tuple[Cores, tuple[str, ...]]] = [
    (Cores(store=AcknowledgesBeforeTheWrite), ("durability",)),
    (Cores(store=with_writer(ForgetsHalfOfItsWrite)), ("durability", "crash", "convergence")),
    (Cores(store=with_gaps(NeverAsks)), ("convergence", "bounds")),
    (Cores(store=with_gaps(HoldsWithoutBound)), ("bounds",)),
    (Cores(store=with_writer(ChangesWhatItStores)), ("contents",)),
    (Cores(store=with_catalogue(ForgetsOneMore)), ("trims",)),
    (Cores(store=with_catalogue(ConfirmsBeforeTheDiskHasIt)), ("trims",)),
    (Cores(store=with_catalogue(ConfirmsWhatIsRefused)), ("trims",)),
    (Cores(store=with_catalogue(KeepsWhatOthersDeleted)), ("trims",)),
    (Cores(store=with_sinks(Unfenced)), ("exactly once",)),
    (Cores(store=with_sinks(CommitsAgain)), ("exactly once",)),
    (Cores(store=with_sinks(CommitsWhatIsStaged)), ("exactly once",)),
    (Cores(store=with_sinks(AnswersBeforeTheCommit)), ("exactly once",)),
    (Cores(store=with_sinks(KeepsRows)), ("exactly once",)),
    (Cores(consumer=SkipsGaps), ("order",)),
    (Cores(consumer=with_delivery(DeliversTwice)), ("order",)),
    (Cores(consumer=AsksWithoutPause), ("no spinning",)),
    (Cores(consumer=TakesAnOldListForTheEnd), ("end",)),
    (Cores(consumer=EndsBeforeAllIsRead), ("end",)),
    (Cores(producer=ReusesAnOffset), ("identity", "order", "contents")),
    (Cores(producer=ForgetsWhatNobodyHas), ("bounds",)),
    (Cores(producer=TellsWhatItsJournalRefused), ("identity", "crash")),
    (Cores(producer=SendsBeforeStoresAnswer), ("identity",)),
    (Cores(producer=CountsOneStoreTwice), ("durability",)),
]


def broken_class(cores: Cores) -> type:
    pairs = ((cores.store, LogStore), (cores.producer, LogProducer), (cores.consumer, LogConsumer))
    return next(used for used, right in pairs if used is not right)


@pytest.mark.provokes_defects
@pytest.mark.parametrize(("cores", "checkers"), BROKEN, ids=lambda each: broken_class(each).__name__
                         if isinstance(each, Cores) else "")  # fmt: skip
def test_a_broken_core_is_caught(cores: Cores, checkers: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    needs_sources()
    monkeypatch.setattr(Log, "settle_max_s", 60.0)
    if cores.producer is SendsBeforeStoresAnswer:  # worlds that restore a backup are few, and so are those it shows in
        monkeypatch.setattr(faults, "RESTORED", 1.0)
    if checkers == ("trims",):
        monkeypatch.setattr(trims, "TRIMS", 1.0)
    kind = Sink if checkers == ("exactly once",) else Log
    seen: list[str] = []
    for seed in range(60):
        failure = kind(seed, cores=cores).play().failure
        if failure is not None:
            seen.append(failure)
            if failure.startswith(checkers):
                return
    pytest.fail(f"no seed saw it as one of {checkers}; seen were {seen[:5]}")


def test_nothing_goes_wrong_where_nothing_is_disturbed() -> None:
    assert [Log(seed, Settings(disturb=False)).play().failure for seed in range(4)] == [None] * 4
