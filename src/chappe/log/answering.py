"""Answers to those who missed something: of a producer from what it keeps, of a store from its storage.

FETCHes of originals are answered record by record and piece by piece. A hundred thousand single records take seconds. A
member that sends them in one go sends no beacons and takes no acknowledgements meanwhile, and its peers drop it.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

from chappe.core import Effect, Publish, Reply
from chappe.data.topic import decode_topic
from chappe.errors import ChappeError
from chappe.limits import LOG_LIMITS, LogLimits
from chappe.log.batch import Batch, bare
from chappe.log.messages import BatchMessage, Fetch, Head, RecordMessage
from chappe.log.queries import (
    Answer,
    ErrorAnswer,
    HeadsRequest,
    QueryReply,
    ReadAnswer,
    ReadRequest,
    SeekAnswer,
    SeekRequest,
    heads_answer,
)
from chappe.log.storage import Hole, LogStorage

PAUSE_S: Final = 0.001  # between two pieces, so that everything else gets its turn
HEADS_ALL: Final = 1_000_000  # partitions named to one original consumer

Piece: TypeAlias = Callable[[Fetch, int], tuple[list[Effect], int]]
Question: TypeAlias = ReadRequest | HeadsRequest | SeekRequest


def single_records(wanted: Fetch, bodies: Iterable[bytes], first: int, end: int) -> tuple[list[Effect], int]:
    """Answer an original with the records at ``first`` <= n < ``end``, and return the offset to go on from."""
    actions: list[Effect] = []
    for body in bodies:
        batch = Batch.parse(body, check=False)  # whose headers need not decode: originals have none
        if batch.sealed is not None:  # an original can do nothing with it: the first record has all, the others nothing
            for offset in range(max(first, batch.base), min(end, batch.next)):
                content = bytes(batch.sealed) if offset == batch.base else b""
                actions.append(
                    Publish(RecordMessage(wanted.address, wanted.topic, wanted.subject, offset, content, True))
                )
                first = offset + 1
            continue
        for record in batch.records(wanted.subject, wanted.topic, first, with_headers=False):
            if record.offset >= end:
                return actions, first
            message = RecordMessage(
                wanted.address, wanted.topic, wanted.subject, record.offset, record.value or b"", True
            )
            actions.append(Publish(message))
            first = record.offset + 1
    return actions, first


class Answering:
    """FETCHes under way, each in its turn.

    ``piece`` answers a FETCH with at most a given number of records. It returns these and the offset to go on from,
    which is that of the FETCH if there is no more.
    """

    def __init__(self, piece: Piece, limits: LogLimits = LOG_LIMITS) -> None:
        self._piece = piece
        self._limits = limits
        self._waiting: dict[tuple[str, str, str], Fetch] = {}
        self.due = math.inf

    def fetch(self, wanted: Fetch, now: float) -> list[Effect]:
        """Begin to answer. A requester that asks again did not get the answer: it begins anew."""
        wanted = replace(wanted, count=min(wanted.count, self._limits.fetch_records_max))
        key = (wanted.address, wanted.topic, wanted.subject)
        if key in self._waiting or len(self._waiting) < self._limits.answers_max:
            self._waiting[key] = wanted
        return self.serve(now) if self.due == math.inf else []

    def serve(self, now: float) -> list[Effect]:
        if not self._waiting:
            self.due = math.inf
            return []
        key = next(iter(self._waiting))
        wanted = self._waiting.pop(key)
        actions, reached = self._piece(wanted, min(wanted.count, self._limits.answer_records))
        left = wanted.count - (reached - wanted.sequence)
        if reached > wanted.sequence and left > 0:
            self._waiting[key] = replace(wanted, sequence=reached, count=left)
        self.due = now + PAUSE_S if self._waiting else math.inf
        return actions

    def gone(self, requester: str) -> None:
        for key in [each for each in self._waiting if each[0] == requester]:
            del self._waiting[key]


@dataclass(frozen=True, slots=True)
class _KeptBatch:
    base: int
    next: int
    body: bytes


class KeptBytes:
    def __init__(self) -> None:
        self.total = 0


class KeptBatches:
    """Batches of a partition in order, gapless but for damage in a journal. ``shared`` counts their bytes, too."""

    def __init__(
        self, topic: str, address: str, shared: KeptBytes | None = None, limits: LogLimits = LOG_LIMITS
    ) -> None:
        self._limits = limits
        self._topic = topic
        self._address = address
        self._batches: deque[_KeptBatch] = deque()
        self.bytes = 0
        self._shared = KeptBytes() if shared is None else shared

    @property
    def first(self) -> int | None:
        return self._batches[0].base if self._batches else None

    def add(self, base: int, next_: int, body: bytes) -> None:
        self._batches.append(_KeptBatch(base, next_, body))
        self.bytes += len(body)
        self._shared.total += len(body)

    def drop_before(self, offset: int) -> bool:
        before = len(self._batches)
        while self._batches and self._batches[0].next <= offset:
            self._drop_oldest()
        return len(self._batches) < before

    def shrink(self, bytes_max: int) -> None:
        """Drop the oldest batches beyond a bound, but never the newest."""
        while self.bytes > bytes_max and len(self._batches) > 1:
            self._drop_oldest()

    def answer(self, requester: str, first: int, count: int, end: int) -> tuple[list[Effect], int]:
        """Return batches of the wanted range before ``end``, at least one and at most ``read_bytes_max``.

        If the wanted offset is not kept, or was damaged in the journal, the answer starts at the next one that is: the
        requester then knows that only stores have the rest. Batches are sent whole, so the offset behind the answer is
        returned as well, 0 if there is none.
        """
        actions: list[Effect] = []
        size = reached = last = 0
        for kept in self._batches:
            if kept.next <= first:
                continue
            last = last or min(max(first, kept.base) + count, end)
            if kept.base >= last or size >= self._limits.read_bytes_max:
                break
            size += len(kept.body)
            reached = kept.next
            actions.append(Publish(BatchMessage(requester, self._address, self._topic, kept.body, direct=True)))
        return actions, reached

    def piece(self, wanted: Fetch, limit: int) -> tuple[list[Effect], int]:
        """Return single records for an original, and the offset to go on from.

        Records that are no longer kept get no answer: an original would take the records behind them for a gap and ask
        again.
        """
        bodies = self._without_gap(wanted.sequence)
        return single_records(wanted, bodies, wanted.sequence, wanted.sequence + limit)

    def _without_gap(self, offset: int) -> Iterator[bytes]:
        for kept in self._batches:
            if kept.next > offset:
                if kept.base > offset:
                    return
                yield kept.body
                offset = kept.next

    def _drop_oldest(self) -> None:
        size = len(self._batches.popleft().body)
        self.bytes -= size
        self._shared.total -= size


def answer_fetch(storage: LogStorage, limits: LogLimits, fetch: Fetch, limit: int) -> tuple[list[Effect], int]:
    """Answer an original with at most ``limit`` of the wanted records, singly; return also the offset to go on from.

    If the whole answer ends before the partition does, a DIRECT-HEAD follows: an original consumer asks for the rest
    only when it hears of one (it stops for ever at 100,001 records otherwise). It does not come earlier, since an
    original ignores a record that it asks for twice within a second.
    """
    topic, partition = fetch.subject, fetch.topic
    info = storage.partition(topic, partition)
    if info is None or not info.first <= fetch.sequence < info.next:
        return [], fetch.sequence
    actions: list[Effect] = []
    offset, size = fetch.sequence, 0
    end = min(info.next, offset + limit)
    while offset < end and size < limits.read_bytes_max:
        try:
            read = storage.read(topic, partition, offset, limits.batch_bytes)
            records, reached = single_records(fetch, read.batches, offset, end)
        except ChappeError:
            break  # it cannot be read now; who wants it asks again
        if not read.batches:
            break
        size += sum(map(len, read.batches))
        actions += records
        offset = reached
    if actions and offset < info.next and offset == fetch.sequence + fetch.count:
        actions.append(Publish(Head(fetch.address, partition, topic, info.next - 1, direct=True)))
    return actions, offset


def answer_heads(storage: LogStorage, prefix: str, requester: str) -> list[Effect]:
    """A DIRECT-HEAD for every partition of the topics that start with ``prefix``."""
    return [
        Publish(Head(requester, info.partition, info.topic, info.next - 1, direct=True))
        for info in storage.changed(prefix, 0, HEADS_ALL)
        if info.next > info.first
    ]


def answer_query(
    storage: LogStorage, limits: LogLimits, client: bytes, request_id: bytes, request: Question, catalogue: int
) -> tuple[Reply, Hole | None]:
    """Return the reply to a query, and damage if reading found some; ``catalogue`` is the version of the store's."""
    hole: Hole | None = None
    answer: Answer
    batches: tuple[bytes, ...] = ()
    try:
        if isinstance(request, HeadsRequest):
            limit = min(max(request.limit, 1), limits.heads_page)
            infos = storage.changed(decode_topic(request.topic_prefix), request.since, limit)
            holes = [hole for topic in {info.topic for info in infos} for hole in storage.holes(topic)]
            answer = heads_answer(
                infos, request.since, limit, storage.version, storage.scrubbed_us, holes, storage.store_id, catalogue
            )
        elif isinstance(request, ReadRequest):
            answer, batches, hole = _read(storage, limits, request)
        else:
            topic, partition = decode_topic(request.topic), decode_topic(request.partition)
            known = storage.partition(topic, partition) is not None
            offset = storage.offset_at(topic, partition, request.timestamp) if known else -1
            answer = SeekAnswer(request.topic, request.partition, offset)
    except ChappeError as error:
        answer = ErrorAnswer(str(error))
    return Reply(client, QueryReply(request_id, answer, batches)), hole


def _read(
    storage: LogStorage, limits: LogLimits, request: ReadRequest
) -> tuple[ReadAnswer, tuple[bytes, ...], Hole | None]:
    topic, partition = decode_topic(request.topic), decode_topic(request.partition)
    info = storage.partition(topic, partition)
    if info is None:
        return ReadAnswer(request.topic, request.partition, 0, 0, False), (), None
    if not info.first <= request.offset < info.next:
        return ReadAnswer(request.topic, request.partition, info.first, info.next, True), (), None
    read = storage.read(topic, partition, request.offset, min(max(request.bytes_max, 1), limits.read_bytes_max))
    last = -1 if read.hole is None else read.hole.last
    batches = tuple(map(bare, read.batches)) if request.bare else read.batches
    answer = ReadAnswer(request.topic, request.partition, info.first, info.next, True, last, read.ahead)
    return answer, batches, read.hole
