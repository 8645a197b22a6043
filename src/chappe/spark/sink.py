"""``df.write.format("chappe")`` and ``df.writeStream.format("chappe")``: rows become records, exactly once.

Tasks stage their rows at the sink's home (``home.py``), which may be a chain (``chained.py``), under batch, task and
attempt. When Spark has decided which attempts count, the driver has exactly these made visible in one step. A batch
that was committed before is not written again, however often and in whatever order Spark runs its tasks.

Spark makes these objects in one process and pickles them into others: they hold no connection.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from chappe.api.log.sealed import sealing_here
from chappe.data.topic import encode_topic
from chappe.errors import ChappeError, ProtocolError, TimedOut, UsageError
from chappe.log.exactly_once.transactions import sink_address
from chappe.log.queries import Stage
from chappe.reading.fetch import client_of
from chappe.security import LogSecurity
from chappe.spark import chained
from chappe.spark.chained import ChainPlace, ChainStaging
from chappe.spark.columns import RecordColumns
from chappe.spark.encode import EncodedPiece, RowEncoder, sort_rows
from chappe.spark.home import FIND_S, Home, Origin, Sink, SinkStores, begin, found_again, settle
from chappe.spark.options import SinkOptions
from chappe.spark.sentences import untraced
from chappe.transports.queries import StoreClient

if TYPE_CHECKING:
    import pyarrow as pa

    from chappe.api.log.sealed import Sealing

logger = logging.getLogger(__name__)

HOMES_MAX: Final = 16  # that a worker remembers
UNANSWERED_MAX: Final = 8  # pieces under way
POLL_S: Final = 0.02  # between two questions how far the other stores are, doubled up to ...
POLL_MAX_S: Final = 0.5
BATCH_BITS: Final = 32  # of the place that a sealed piece has in its partition ...
TASK_BITS: Final = 16
PIECE_BITS: Final = 16  # ... each of up to 768 KiB
_BEHIND_ALL: Final = (1 << 63) - 1  # no record has this offset

_homes: OrderedDict[Sink, Home] = OrderedDict()


@dataclass(frozen=True, slots=True)
class _Plan:
    columns: RecordColumns
    topic: str | None
    place: SinkStores | ChainPlace
    min_acks: int
    codec: int

    @classmethod
    def make(cls, options: SinkOptions, schema: StructType) -> _Plan:
        columns = RecordColumns.find(schema, options.topic, options.order)
        place: SinkStores | ChainPlace
        if options.chain is not None:
            place = ChainPlace(options.chain, options.patience_s, options.security)
        else:
            place = SinkStores(options.stores, options.towers, options.patience_s, options.security).known()
        return cls(columns, options.topic, place, options.min_acks, options.codec)

    def settle(self, sink: Sink, batch: int) -> Home:
        if isinstance(self.place, ChainPlace):
            return chained.settle(self.place, sink, batch)
        return settle(self.place, sink, batch)

    def begin(self, sink: Sink, batch: int, origins: Sequence[Origin], again: str | None) -> Home:
        if isinstance(self.place, ChainPlace):
            return chained.begin(self.place, sink, batch, origins, again)
        return begin(self.place, sink, batch, origins, again)

    def staging(self, home: Home, sink: Sink, batch: int, task: int, attempt: int) -> Staging | ChainStaging:
        if isinstance(self.place, ChainPlace):
            return ChainStaging(self.place, home, sink, batch, task, attempt)
        return Staging(self.place, home, sink, batch, task, attempt)


class _Ending:
    _plan: _Plan

    @untraced()
    def commit(self, messages: list[WriterCommitMessage | None], batchId: int = 0) -> None:
        staged, place = [each for each in messages if isinstance(each, StagedOutput)], self._plan.place
        if not isinstance(place, ChainPlace):
            commit(place, staged, self._plan.min_acks)
        elif staged:
            named = [(each.task, each.attempt, each.pieces, each.rows) for each in staged]
            chained.commit(place, staged[0].sink, staged[0].batch, named)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int = 0) -> None:
        staged, place = [each for each in messages if isinstance(each, StagedOutput)], self._plan.place
        if not isinstance(place, ChainPlace):
            abort(staged, place.security)
        elif staged:
            chained.abort(place, staged[0].sink, staged[0].batch, [(each.task, each.attempt) for each in staged])


class TopicBatchWriter(_Ending, DataSourceArrowWriter):
    """Writes one DataFrame. Spark makes it once, in the driver."""

    def __init__(self, options: SinkOptions, schema: StructType, overwrite: bool) -> None:
        if options.write_again is not None:
            raise UsageError("`writeAgain` is for streams; a batch write without `writeId` is written again anyway")
        if overwrite:
            raise UsageError('records cannot be overwritten, only appended: use mode("append"), or INSERT INTO')
        self._plan = _Plan.make(options, schema)
        name = f"write {options.write_id}" if options.write_id else str(uuid.uuid4())
        self._sink = Sink(name, str(uuid.uuid4()), lasting=options.write_id is not None)
        self._batch = options.write_batch
        self._home = self._plan.settle(self._sink, self._batch)

    @untraced()
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return _write(iterator, self._plan, self._sink, _homes.get(self._sink, self._home), self._batch)


class TopicStreamWriter(_Ending, DataSourceStreamArrowWriter):
    """Writes one micro-batch. Spark makes it twice for each: for the tasks, and for the commit."""

    def __init__(self, options: SinkOptions, schema: StructType, origins: Sequence[Origin] = ()) -> None:
        if options.write_id is not None:
            raise UsageError("`writeId` is for batch writes; a stream is known by its checkpoint")
        self._plan = _Plan.make(options, schema)
        self._origins = origins
        self._again = options.write_again

    @untraced()
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        sink = Sink(_property("sql.streaming.queryId"), _property("spark.jobGroup.id"), lasting=True)
        batch = int(_property("streaming.sql.batchId"))
        home = _homes.get(sink) or self._plan.begin(sink, batch, self._origins, self._again)
        return _write(iterator, self._plan, sink, home, batch)


def _context() -> TaskContext:
    context = TaskContext.get()
    assert context is not None, "write() was called outside of a task"
    return context


def _property(name: str) -> str:
    found = _context().getLocalProperty(name)
    if not found:
        raise ChappeError(f"Spark does not tell its tasks {name}, so exactly-once cannot be kept; report this")
    return found


def _write(batches: Iterator[pa.RecordBatch], plan: _Plan, sink: Sink, home: Home, batch: int) -> StagedOutput:
    context = _context()
    task, attempt = context.partitionId(), context.taskAttemptId()
    staging = plan.staging(home, sink, batch, task, attempt)
    if batch <= home.committed:
        for _ in batches:  # committed before; but what is upstream, state above all, is only complete when it was read
            pass
    else:
        try:
            encoder = RowEncoder(plan.columns, plan.topic, staging.partitions, task, plan.codec)
            for each in sort_rows(batches, plan.columns.order) if plan.columns.order else batches:
                for piece in encoder.add(each):
                    staging.put(piece)
            for piece in encoder.finish():
                staging.put(piece)
            staging.finish()
        except BaseException:
            staging.give_up()
            raise
    _homes[sink] = staging.home
    while len(_homes) > HOMES_MAX:
        _homes.popitem(last=False)
    return StagedOutput(sink, staging.home, batch, task, attempt, staging.pieces, staging.rows, tuple(staging.topics))


class Staging:
    """Stages the pieces of one attempt of one task, in order, at the sink's home, where they wait for the commit.

    Several are under way at once. A home that falls silent is looked for, and gets again what it has not acknowledged;
    to stage a piece twice is to stage it once.

    Every method raises TimedOut if the home stays away, Fenced if another run took over, StorageFull. If the home moves
    it is looked for among the stores. ``attempt`` is unique among all attempts of the run.
    """

    def __init__(self, stores: SinkStores, home: Home, sink: Sink, batch: int, task: int, attempt: int) -> None:
        self.home = home
        self.pieces = 0
        self.rows = 0
        self.topics: dict[str, None] = {}
        self._stores = stores
        self._sink = sink
        self._place = (batch, task, attempt)
        self._sealing = sealing_here(stores.security)
        self._unanswered: deque[tuple[bytes, Stage, bytes]] = deque()

    def partitions(self, topic: str) -> int:
        return 1

    def put(self, piece: EncodedPiece) -> None:
        """Send a piece; waits for the oldest one if too many are under way."""
        while len(self._unanswered) >= UNANSWERED_MAX:
            self._settle_oldest()
        stage = Stage(self._sink.name, self._sink.run, *self._place, self.pieces, encode_topic(piece.topic))
        self._send(stage, piece.raw if self._sealing is None else self._sealed(self._sealing, piece))
        self.pieces += 1
        self.rows += piece.rows
        self.topics[piece.topic] = None

    def _sealed(self, sealing: Sealing, piece: EncodedPiece) -> bytes:
        """Return the piece as it is staged. Each attempt is a life of its own: nothing is sealed twice with one key."""
        batch, task, _ = self._place
        if not (0 <= batch < 1 << BATCH_BITS and task < 1 << TASK_BITS and self.pieces < 1 << PIECE_BITS):
            raise UsageError(f"batch {batch}, task {task}, piece {self.pieces} is beyond what can be sealed")
        place = (batch << TASK_BITS | task) << PIECE_BITS | self.pieces
        sealing.check(piece.topic)
        return sealing.seal(piece.topic, piece.raw, sink_address(self._sink.name, piece.topic), place)

    def finish(self) -> None:
        while self._unanswered:
            self._settle_oldest()

    def give_up(self) -> None:
        """Make the home discard staged data; if it is unreachable, the data expires later."""
        client = self._client
        client.forget([raw_id for raw_id, _, _ in self._unanswered])
        self._unanswered.clear()
        batch, task, attempt = self._place
        try:
            client.drop(self._sink.name, self._sink.run, batch, [(task, attempt)])
        except ChappeError as error:
            logger.warning("%s", error)

    @property
    def _client(self) -> StoreClient:
        return client_of(self.home.endpoint, self._stores.security)

    def _send(self, stage: Stage, raw: bytes) -> None:
        self._unanswered.append((self._client.send(stage, raw), stage, raw))

    def _settle_oldest(self) -> None:
        try:
            self._client.receive(self._unanswered[0][0])
        except TimedOut:
            self._send_again()
        else:
            self._unanswered.popleft()

    def _send_again(self) -> None:
        self.home = found_again(self._stores, self.home, self._sink.name)
        again, self._unanswered = self._unanswered, deque()
        for _, stage, raw in again:
            self._send(stage, raw)


@dataclass(frozen=True, slots=True)
class StagedOutput(WriterCommitMessage):
    sink: Sink
    home: Home
    batch: int
    task: int
    attempt: int
    pieces: int
    rows: int
    topics: tuple[str, ...]


def commit(stores: SinkStores, staged: Sequence[StagedOutput], min_acks: int) -> None:
    """Make one batch visible; a batch that was committed before stays as it is.

    Raises:
        StagedRowsMissing: The home lost rows in a crash; the batch must be run again.
        TimedOut: The home stays away, or too few stores have the batch. It may be committed: run it again.
        Fenced: Another run took over.
    """
    if not staged:
        return
    first = staged[0]
    if any(each.home.store_id != first.home.store_id for each in staged):
        raise ChappeError("tasks chose different stores for this query's commits; run it again")
    attempts = [(each.task, each.attempt, each.pieces, each.rows) for each in staged]
    home = first.home
    while True:
        try:
            client_of(home.endpoint, stores.security).commit(first.sink.name, first.sink.run, first.batch, attempts)
            break
        except TimedOut as error:
            # it may be busy with this very commit: as long as it answers to anything, it is asked again
            logger.warning("%s", error)
            home = found_again(stores, home, first.sink.name)
    if min_acks > 1:
        _await_copies(stores, home, first.sink.name, {topic for each in staged for topic in each.topics}, min_acks)


def abort(staged: Iterable[StagedOutput], security: LogSecurity = None) -> None:
    """Make the home discard staged data; if it is unreachable, the data expires later."""
    for each in staged:
        client = StoreClient(each.home.endpoint, FIND_S, security)
        try:
            client.drop(each.sink.name, each.sink.run, each.batch, [(each.task, each.attempt)])
        except ChappeError as error:
            logger.warning("%s", error)
            return
        finally:
            client.close()


def _await_copies(stores: SinkStores, home: Home, sink: str, topics: Iterable[str], min_acks: int) -> None:
    """Wait until ``min_acks`` stores, including the home, have all of the sink's records."""
    heads = _heads(home.endpoint, [(topic, sink_address(sink, topic)) for topic in topics], stores.security)
    deadline = time.monotonic() + stores.patience_s
    pause_s = POLL_S
    while True:
        others = [each for each in stores.endpoints if each != home.endpoint]
        holding = 1 + sum(_has(each, heads, stores.security) for each in others)
        if holding >= min_acks:
            return
        if time.monotonic() >= deadline:
            raise TimedOut(
                f"the batch is committed, but only {holding} of {min_acks} stores have it; start the others and run "
                "again, which repeats nothing"
            )
        time.sleep(pause_s)
        if pause_s == POLL_MAX_S:
            stores = stores.looked_up()
        pause_s = min(pause_s * 2, POLL_MAX_S)


def _heads(endpoint: str, partitions: Iterable[tuple[str, str]], security: LogSecurity) -> dict[tuple[str, str], int]:
    """Return the end of each partition in a store: asked for offsets behind every end, it only tells the end."""
    client = client_of(endpoint, security)
    return {(topic, name): client.read(topic, name, _BEHIND_ALL, 1)[0].next for topic, name in partitions}


def _has(endpoint: str, heads: dict[tuple[str, str], int], security: LogSecurity) -> bool:
    try:
        found = _heads(endpoint, heads, security)
    except (TimedOut, ProtocolError) as error:
        logger.warning("%s", error)
        return False
    return all(found[key] >= head for key, head in heads.items())
