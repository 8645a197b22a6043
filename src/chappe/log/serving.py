"""The answers of a store, from its storage alone: to FETCH, GET-HEADS and HELLO, and to queries."""

from __future__ import annotations

from typing import TypeAlias

from chappe.data.topic import decode_topic
from chappe.errors import ChappeError, StorageError
from chappe.limits import LogLimits
from chappe.log.actions import Action, Publish, Reply
from chappe.log.batch import Batch
from chappe.log.messages import Fetch, Head, RecordMessage
from chappe.log.queries import (
    Answer,
    ErrorAnswer,
    HeadsRequest,
    ReadAnswer,
    ReadRequest,
    SeekAnswer,
    SeekRequest,
    heads_answer,
)
from chappe.log.storage import Hole, LogStorage

Question: TypeAlias = ReadRequest | HeadsRequest | SeekRequest
HEADS_ALL = 1_000_000  # partitions named to one original consumer


def answer_fetch(storage: LogStorage, limits: LogLimits, fetch: Fetch, limit: int) -> tuple[list[Action], int]:
    """At most ``limit`` of the wanted records one by one, for an original; and the offset to go on from.

    If the whole answer ends before the partition does, a DIRECT-HEAD follows: an original consumer asks for the rest
    only when it hears of one (it stops for ever at 100,001 records otherwise). Not before: what it asks for twice
    within a second it does not ask for at all.
    """
    topic, partition = fetch.subject, fetch.topic
    info = storage.partition(topic, partition)
    if info is None or not info.first <= fetch.sequence < info.next:
        return [], fetch.sequence
    actions: list[Action] = []
    offset, size = fetch.sequence, 0
    end = min(info.next, offset + limit)
    while offset < end and size < limits.read_bytes_max:
        try:
            read = storage.read(topic, partition, offset, limits.batch_bytes)
        except StorageError:
            break  # it cannot be read now; who wants it asks again
        if not read.batches:
            break
        for raw in read.batches:
            size += len(raw)
            for record in Batch.parse(raw, check=False).records(topic, partition, offset):
                if record.offset >= end:
                    break
                message = RecordMessage(fetch.address, partition, topic, record.offset, record.value or b"", True)
                actions.append(Publish(message))
                offset = record.offset + 1
    if actions and offset < info.next and offset == fetch.sequence + fetch.count:
        actions.append(Publish(Head(fetch.address, partition, topic, info.next - 1, direct=True)))
    return actions, offset


def answer_heads(storage: LogStorage, prefix: str, requester: str) -> list[Action]:
    """A DIRECT-HEAD for every partition of the topics that start with ``prefix``."""
    return [
        Publish(Head(requester, info.partition, info.topic, info.next - 1, direct=True))
        for info in storage.changed(prefix, 0, HEADS_ALL)
        if info.next > info.first
    ]


def answer_query(
    storage: LogStorage, limits: LogLimits, client: bytes, request_id: bytes, request: Question
) -> tuple[Reply, Hole | None]:
    """The reply to a query, and damage if reading found some."""
    hole: Hole | None = None
    answer: Answer
    batches: tuple[bytes, ...] = ()
    try:
        if isinstance(request, HeadsRequest):
            limit = min(max(request.limit, 1), limits.heads_page)
            infos = storage.changed(decode_topic(request.topic_prefix), request.since, limit)
            answer = heads_answer(infos, request.since, limit, storage.version, storage.scrubbed_us)
        elif isinstance(request, ReadRequest):
            answer, batches, hole = _read(storage, limits, request)
        else:
            topic, partition = decode_topic(request.topic), decode_topic(request.partition)
            known = storage.partition(topic, partition) is not None
            offset = storage.offset_at(topic, partition, request.timestamp) if known else -1
            answer = SeekAnswer(request.topic, request.partition, offset)
    except ChappeError as error:
        answer = ErrorAnswer(str(error))
    return Reply(client, request_id, answer, batches), hole


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
    return ReadAnswer(request.topic, request.partition, info.first, info.next, True, last), read.batches, read.hole
