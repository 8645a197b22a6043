"""How a task reads its ranges from the stores. Runs in Spark's executors.

The next request of a partition goes out before the last answer is turned into Arrow, and the first requests of the
following ranges are under way too, so the store works while the task does. A range is asked of one of its stores;
when that does not answer, or does not have what is wanted, the others are asked. Records that no store has any more
are an error, or are skipped with a warning (``failOnDataLoss``).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from chappe.arrow import concat, run_to_arrow
from chappe.data.topic import encode_topic
from chappe.defaults import MIB
from chappe.drivers.queries import StoreClient
from chappe.errors import OffsetOutOfRange, ProtocolError, TimedOut
from chappe.log.batch import Batch
from chappe.log.queries import ReadAnswer, ReadRequest
from chappe.spark.offsets import Range
from chappe.spark.view import discover

if TYPE_CHECKING:
    import pyarrow as pa

logger = logging.getLogger(__name__)

TIMEOUT_S: Final = 5.0  # then another store is asked
PATIENCE_S: Final = 30.0  # how long stores that are away or behind are waited for before the task fails
PAUSE_S: Final = 0.1  # between two rounds over all stores, doubled up to ...
PAUSE_MAX_S: Final = 2.0
ANSWER_BYTES: Final = 2 * MIB  # asked of a store at once
AHEAD: Final = 2  # ranges whose first request is under way before their turn
ROWS_MIN: Final = 10_000  # in one Arrow batch, if there are so many: fewer make Spark slow
ARROW_BYTES: Final = 8 * MIB  # an Arrow batch of at least this size is handed over as it is
CLIENTS_MAX: Final = 32  # connections that an executor's worker keeps from task to task

_clients: dict[str, StoreClient] = {}


@dataclass(frozen=True, slots=True)
class Task:
    """What one Spark task reads."""

    ranges: tuple[Range, ...]
    fail_on_data_loss: bool = True
    tower: str | None = None


def read_task(task: Task, patience_s: float = PATIENCE_S) -> Iterator[pa.RecordBatch]:
    """The records of the task's ranges, in order.

    Raises:
        OffsetOutOfRange: No store has some of them any more, and that is not to be tolerated.
        TimedOut: A store that may have them did not answer. Trying again later is safe.
    """
    parts: list[pa.RecordBatch] = []
    rows = size = 0
    for found, start, end, batches in _Fetch(task, patience_s).chunks():
        parts.append(run_to_arrow(batches, found.topic, found.partition, start, end))
        rows += end - start
        size += parts[-1].nbytes
        if rows >= ROWS_MIN or size >= ARROW_BYTES:
            yield concat(parts)
            parts, rows, size = [], 0, 0
    if parts:
        yield concat(parts)


def _client(endpoint: str) -> StoreClient:
    client = _clients.pop(endpoint, None) or StoreClient(endpoint, TIMEOUT_S)
    _clients[endpoint] = client  # the most recently used is the last
    if len(_clients) > CLIENTS_MAX:
        _drop(next(iter(_clients)))
    return client


def _drop(endpoint: str) -> None:
    client = _clients.pop(endpoint, None)
    if client is not None:
        client.close()


@dataclass(frozen=True, slots=True)
class _Sent:
    client: StoreClient
    raw_id: bytes


@dataclass(slots=True)
class _Round:
    """What all stores said to one question that none could answer."""

    lost_to: list[int]  # the first offset after the loss that a store may have
    waiting: list[str]  # stores that did not answer
    behind: list[str]  # stores that do not have the offset yet, or do not know the partition


class _Fetch:
    def __init__(self, task: Task, patience_s: float) -> None:
        self._task = task
        self._patience_s = patience_s
        self._ahead: dict[int, _Sent] = {}
        self._away: dict[str, None] = {}  # stores that failed during this task: asked last

    def chunks(self) -> Iterator[tuple[Range, int, int, list[Batch]]]:
        """Range, start, end, and the batches that hold start <= n < end."""
        try:
            for index, wanted in enumerate(self._task.ranges):
                for start, end, batches in self._range(index, wanted):
                    yield wanted, start, end, batches
        finally:  # also when Spark wants no more: late answers must not pile up in the connection
            for sent in self._ahead.values():
                sent.client.forget([sent.raw_id])

    def _range(self, index: int, wanted: Range) -> Iterator[tuple[int, int, list[Batch]]]:
        offset = wanted.start
        sent = self._ahead.pop(index, None) or self._send(index, wanted, offset)
        for later in range(index + 1, min(index + 1 + AHEAD, len(self._task.ranges))):
            if later not in self._ahead:
                self._ahead[later] = self._send(later, self._task.ranges[later], self._task.ranges[later].start)
        while offset < wanted.end:
            batches = self._receive(sent, wanted, offset)
            if not batches:
                offset, batches, client = self._elsewhere(wanted, offset)
                if not batches:
                    return
            else:
                client = sent.client
            end = min(batches[-1].next, wanted.end)
            if end < wanted.end:
                sent = _Sent(client, client.send(_request(wanted, end)))
                self._ahead[index] = sent  # so that it is forgotten if Spark stops here
            yield offset, end, batches
            self._ahead.pop(index, None)
            offset = end

    def _send(self, index: int, wanted: Range, offset: int) -> _Sent:
        holders = wanted.holders
        start = index % max(len(holders), 1)  # tasks and ranges spread over the stores
        turn = holders[start:] + holders[:start]
        endpoint = next((each for each in turn if each not in self._away), turn[0])
        client = _client(endpoint)
        return _Sent(client, client.send(_request(wanted, offset)))

    def _receive(self, sent: _Sent, wanted: Range, offset: int) -> list[Batch]:
        """The batches of an answer, or none for any reason: the slow path finds out what is the matter."""
        if sent.client is not _clients.get(sent.client.endpoint):  # closed after it failed another range
            return []
        try:
            answer, raws = sent.client.receive(sent.raw_id)
            return _batches(answer, raws, offset, wanted.end) if isinstance(answer, ReadAnswer) else []
        except (TimedOut, ProtocolError) as error:
            logger.warning("%s; asking another store for %s", error, wanted)
            self._fail(sent.client.endpoint)
            return []

    def _fail(self, endpoint: str) -> None:
        self._away[endpoint] = None
        _drop(endpoint)

    def _elsewhere(self, wanted: Range, offset: int) -> tuple[int, list[Batch], StoreClient]:
        """Ask all stores, with patience; the offset moves on where records are lost and may be.

        No batches: everything up to the end is lost.
        """
        deadline = time.monotonic() + self._patience_s
        pause = PAUSE_S
        stores = list(wanted.holders)
        while True:
            found = self._ask_all(wanted, offset, stores)
            if not isinstance(found, _Round):
                return offset, *found
            if found.lost_to and not found.waiting and not found.behind:
                offset = self._lose(wanted, offset, min(found.lost_to))
            elif time.monotonic() >= deadline:
                if found.waiting or not stores:
                    asked = ", ".join(found.waiting) or f"the tower {self._task.tower}"
                    raise TimedOut(f"{_rest(wanted, offset)}: no answer from {asked}; start the store and run again")
                offset = self._lose(wanted, offset, min(found.lost_to, default=wanted.end))
            else:
                time.sleep(pause)
                pause = min(pause * 2, PAUSE_MAX_S)
                stores = self._look_up(stores)
            if offset >= wanted.end:
                return offset, [], _client(stores[0])

    def _ask_all(self, wanted: Range, offset: int, stores: Sequence[str]) -> tuple[list[Batch], StoreClient] | _Round:
        said = _Round([], [], [])
        for endpoint in sorted(stores, key=self._away.__contains__):
            client = _client(endpoint)
            try:
                answer, raws = client.ask(_request(wanted, offset))
                assert isinstance(answer, ReadAnswer)
                batches = _batches(answer, raws, offset, wanted.end)
            except (TimedOut, ProtocolError) as error:
                logger.warning("%s", error)
                self._fail(endpoint)
                said.waiting.append(endpoint)
                continue
            self._away.pop(endpoint, None)
            if batches:
                return batches, client
            if answer.hole_last >= offset:
                said.lost_to.append(answer.hole_last + 1)
            elif answer.known and offset < answer.first:
                said.lost_to.append(answer.first)
            else:
                said.behind.append(endpoint)
        return said

    def _lose(self, wanted: Range, offset: int, lost_to: int) -> int:
        end = min(lost_to, wanted.end)
        text = f"data loss: no store has {Range(wanted.topic, wanted.partition, offset, end)} any more"
        if self._task.fail_on_data_loss:
            raise OffsetOutOfRange(f"{text}; set failOnDataLoss to false to go on without them")
        logger.warning("%s; going on without them", text)
        return end

    def _look_up(self, stores: list[str]) -> list[str]:
        """Stores may have come back at another address."""
        if self._task.tower is None:
            return stores
        return list(dict.fromkeys([*discover(self._task.tower), *stores]))


def _request(wanted: Range, offset: int) -> ReadRequest:
    size = (wanted.end - offset) * wanted.record_bytes
    return ReadRequest(
        encode_topic(wanted.topic), encode_topic(wanted.partition), offset, max(1, min(size, ANSWER_BYTES))
    )


def _rest(wanted: Range, offset: int) -> Range:
    return Range(wanted.topic, wanted.partition, offset, wanted.end)


def _batches(answer: ReadAnswer, raws: Sequence[bytes], offset: int, end: int) -> list[Batch]:
    """The batches that follow each other from ``offset`` on, before ``end``. Every one is checked.

    Raises ProtocolError.
    """
    found: list[Batch] = []
    for raw in raws:
        if offset >= end:
            break
        batch = Batch.parse(raw)
        if not batch.base <= offset < batch.next:
            break
        found.append(batch)
        offset = batch.next
    if raws and not found:
        raise ProtocolError(f"the store answered with other offsets than {offset} of {answer.partition!r}")
    return found
