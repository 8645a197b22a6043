"""Reads the ranges of a task from the stores; in Spark it runs in the executors.

The next request of a partition goes out before the last answer is turned into Arrow, and the first requests of the
following ranges are under way too, so the store works while the task does. A range is asked of one of its stores;
when that does not answer, or does not have what is wanted, the others are asked. Records that no store has any more
are an error, or are skipped with a warning (``failOnDataLoss``).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Final, NamedTuple

from chappe.api.log.sealed import OpenedRead, Unread, UnreadWhy, reader_here
from chappe.arrow import COLUMNS, concat, run_to_arrow
from chappe.data.topic import encode_topic
from chappe.defaults import KIB, MIB
from chappe.errors import OffsetOutOfRange, ProtocolError, Sealed, TimedOut
from chappe.log.batch import Batch
from chappe.log.queries import ReadAnswer, ReadRequest
from chappe.reading.kept import kept
from chappe.reading.offsets import TIME_MAX, TIME_MIN, Range
from chappe.reading.view import discover
from chappe.security import LogSecurity
from chappe.system import time
from chappe.transports.queries import StoreClient

if TYPE_CHECKING:
    import pyarrow as pa

logger = logging.getLogger(__name__)

TIMEOUT_S: Final = 5.0  # then another store is asked
PATIENCE_S: Final = 30.0  # how long stores that are away or behind are waited for before the task fails
PAUSE_S: Final = 0.1  # between two rounds over all stores, doubled up to ...
PAUSE_MAX_S: Final = 2.0
ANSWER_BYTES: Final = 2 * MIB  # asked of a store at once, twice before the first answer
AHEAD: Final = 2  # ranges whose first request is under way before their turn
ROWS_MIN: Final = 10_000  # in one Arrow batch, if available: fewer make Spark slow
ARROW_BYTES: Final = 8 * MIB  # an Arrow batch of at least this size is handed over as it is
APART_BYTES: Final = 64 * KIB  # so large, a batch of a store costs less as an Arrow batch than as a part of one
CLIENTS_MAX: Final = 32  # connections that a worker keeps from task to task

_OUTSIDE: Final = {"topic", "partition", "offset"}  # columns that can be told of what is sealed
_BARE: Final = _OUTSIDE | {"timestamp"}  # columns for which stores need not send keys, headers and values

_clients: dict[tuple[str, LogSecurity], StoreClient] = {}


class Patience:
    """Rounds with growing pauses, of ``pause_max_s`` at most, until ``seconds`` are over."""

    def __init__(self, seconds: float, pause_max_s: float) -> None:
        self._deadline = time.monotonic() + seconds
        self._pause_s = PAUSE_S
        self._pause_max_s = pause_max_s

    def pause(self) -> bool:
        left = self._deadline - time.monotonic()
        if left <= 0:
            return False
        time.sleep(min(self._pause_s, left))
        self._pause_s = min(self._pause_s * 2, self._pause_max_s)
        return True


@dataclass(frozen=True, slots=True, kw_only=True)
class Manner:
    """The manner in which records are read, whichever they are.

    Args:
        towers: Addresses of towers, separated by commas: asked for stores when none is known, or none of a range's
            answers.
        fail_on_data_loss: Whether records that no store has any more are an error, or skipped with a warning.
        columns: What is built of each record.
        patience_s: How long stores that are away or behind are waited for.
        opens: Whether records of sealed topics are opened, if we have the keys; else they are an error.
        security: Who we are, if stores have keys. What is handed to other processes has no passphrase.
        keeps: Whether batches of sealed topics are handed on as they are, as ``kept`` tells.
        raw: Whether every batch is handed on as stores have it, sealed ones too.
    """

    towers: str | None = None
    fail_on_data_loss: bool = True
    columns: tuple[str, ...] = COLUMNS
    patience_s: float = PATIENCE_S
    opens: bool = True
    security: LogSecurity = None
    keeps: bool = False
    raw: bool = False


@dataclass(frozen=True, slots=True)
class ReadTask(Manner):
    """The ranges that one task reads.

    Args:
        ranges: Read in this order.
        since: Batches that are wholly older (microseconds since 1970) are left out.
        until: Batches that are wholly younger are left out.
        turn: Tasks with different numbers begin with different stores.
        apart: Whether a batch of a store may become an Arrow batch of its own, which points into what was received:
            where it is large, and its values, which then are wanted, are most of it. Others are joined into larger
            ones, as all are without.
    """

    ranges: tuple[Range, ...]
    since: int = TIME_MIN
    until: int = TIME_MAX
    turn: int = 0
    apart: bool = False


def read_blocks(task: ReadTask) -> Iterator[tuple[int, int, list[Batch]]]:
    """Yield the task's records as stores keep them: start, end, and the batches that hold start <= offset < end.

    Raises as ``read_task``, and needs no Arrow.
    """
    for _, start, end, batches in _Fetch(task).chunks():
        yield start, end, batches


def read_task(task: ReadTask) -> Iterator[pa.RecordBatch]:
    """Yield the records of the task's ranges, in order.

    Raises:
        OffsetOutOfRange: No store has some of them any more, and that is not to be tolerated.
        TimedOut: A store that may have them did not answer. Trying again later is safe.
        Sealed: Some of them cannot be opened, and that is not to be tolerated.
    """
    parts: list[pa.RecordBatch] = []
    rows = size = 0
    for found, low, high, came in _Fetch(task).chunks():
        for start, end, batches in _in_time(task, low, high, came):
            for run, alone in _runs(task, batches):
                first, next_ = max(start, run[0].base), min(end, run[-1].next)
                made = run_to_arrow(run, found.topic, found.partition, first, next_, task.columns)
                if alone and parts:
                    yield concat(parts)
                    parts, rows, size = [], 0, 0
                parts.append(made)
                rows += next_ - first
                size += made.nbytes
                if alone or rows >= ROWS_MIN or size >= ARROW_BYTES:
                    yield concat(parts)
                    parts, rows, size = [], 0, 0
    if parts:
        yield concat(parts)


def _runs(task: ReadTask, batches: list[Batch]) -> Iterator[tuple[list[Batch], bool]]:
    """Yield neighbours that become Arrow batches together, and whether such a one is to stay by itself."""
    if not task.apart:
        yield batches, False
        return
    for alone, group in groupby(batches, lambda each: _bulky(task.columns, each)):
        if alone:
            yield from (([each], True) for each in group)
        else:
            yield list(group), False


def _bulky(columns: tuple[str, ...], batch: Batch) -> bool:
    """True if an Arrow batch that points into this one is large, and does not keep much that nobody wants."""
    size = len(batch.raw)
    values = None if size < APART_BYTES or "value" not in columns else batch.column("values")
    return values is not None and 2 * len(values.data) >= size


def _in_time(task: ReadTask, start: int, end: int, batches: list[Batch]) -> Iterator[tuple[int, int, list[Batch]]]:
    """Yield the neighbouring batches of which anything may lie between the task's ``since`` and ``until``."""
    if task.since == TIME_MIN and task.until == TIME_MAX:
        yield start, end, batches
        return
    since, until = task.since, task.until
    for fits, group in groupby(batches, lambda each: each.timestamp_max >= since and each.timestamp_min <= until):
        if fits:
            run = list(group)
            yield max(start, run[0].base), min(end, run[-1].next), run


def client_of(endpoint: str, security: LogSecurity = None) -> StoreClient:
    client = _clients.pop((endpoint, security), None)
    if type(client) is not StoreClient:  # there is none, or a fork has left it to the parent
        client = StoreClient(endpoint, TIMEOUT_S, security)
    _clients[endpoint, security] = client  # the most recently used is the last
    if len(_clients) > CLIENTS_MAX:
        forget_client(*next(iter(_clients)))
    return client


def forget_client(endpoint: str, security: LogSecurity = None) -> None:
    client = _clients.pop((endpoint, security), None)
    if client is not None:
        client.close()


class _Sent(NamedTuple):
    client: StoreClient
    raw_id: bytes
    offset: int

    def forget(self) -> None:
        self.client.forget([self.raw_id])


@dataclass(slots=True)
class _Round:
    """The answers of all stores to one question that none could answer."""

    lost_to: list[int]  # the first offset after the loss that a store may have
    waiting: list[str]  # stores that did not answer
    behind: list[str]  # stores that do not have the offset yet, or do not know the partition


class _Fetch:
    def __init__(self, task: ReadTask) -> None:
        self._task = task
        self._ahead: dict[int, list[_Sent]] = {}  # requests under way, by range, in order
        self._away: dict[str, None] = {}  # stores that failed during this task: asked last
        # Offsets are known of what is sealed, too.
        self._reader = reader_here(task.security) if set(task.columns) - _OUTSIDE and not task.raw else None
        self._bare = not set(task.columns) - _BARE

    def chunks(self) -> Iterator[tuple[Range, int, int, list[Batch]]]:
        try:
            for index, wanted in enumerate(self._task.ranges):
                for start, end, batches in self._range(index, wanted):
                    for low, high, run in self._opened(wanted, start, end, batches):
                        yield wanted, low, high, run
        finally:  # also when Spark wants no more: late answers must not pile up in the connection
            for under_way in self._ahead.values():
                for sent in under_way:
                    sent.forget()

    def _opened(
        self, wanted: Range, start: int, end: int, batches: list[Batch]
    ) -> Iterator[tuple[int, int, list[Batch]]]:
        """Yield neighbours that can be read: all of them, as a rule."""
        run: list[Batch] = []
        for each in batches:
            if self._reader is None:
                outcome: OpenedRead | Unread = OpenedRead(each)
            elif self._task.keeps and each.sealed is not None:
                outcome = OpenedRead(kept(each, max(start, each.base), min(end, each.next)))
            elif not self._task.opens and each.sealed is not None:
                outcome = Unread(UnreadWhy.NOT_OURS, "they are to stay sealed, and what is made of them would be plain")
            else:
                outcome = self._reader.open(wanted.topic, wanted.partition, each)
            if isinstance(outcome, OpenedRead):
                run.append(outcome.batch)
                continue
            if run:
                yield max(start, run[0].base), min(end, run[-1].next), run
                run = []
            unread = Range(wanted.topic, wanted.partition, max(start, each.base), min(end, each.next))
            text = f"{unread} cannot be read: {outcome.reason}"
            if self._task.fail_on_data_loss or not self._task.opens:
                raise Sealed(text)
            logger.warning("%s; going on without them", text)
        if run:
            yield max(start, run[0].base), min(end, run[-1].next), run

    def _range(self, index: int, wanted: Range) -> Iterator[tuple[int, int, list[Batch]]]:
        offset = wanted.start
        under_way = self._ahead.setdefault(index, [])
        if not under_way and (first := self._send(index, wanted, offset)) is not None:
            under_way.append(first)
        for later in range(index + 1, min(index + 1 + AHEAD, len(self._task.ranges))):
            if later not in self._ahead:
                following = self._send(later, self._task.ranges[later], self._task.ranges[later].start)
                if following is not None:
                    self._ahead[later] = [following]
        while offset < wanted.end:
            sent = under_way.pop(0) if under_way else None
            client = None if sent is None else sent.client
            batches, ahead = ([], 0) if sent is None else self._receive(sent, wanted, offset)
            if not batches:
                offset, batches, client = self._elsewhere(wanted, offset)
            if client is None:
                return
            end = min(batches[-1].next, wanted.end)
            if under_way and (under_way[0].client, under_way[0].offset) != (client, end):  # it has it otherwise by now
                under_way.pop().forget()
            self._go_on(client, wanted, under_way, end, ahead)
            yield offset, end, batches
            offset = end
        del self._ahead[index]

    def _go_on(self, client: StoreClient, wanted: Range, under_way: list[_Sent], end: int, ahead: int) -> None:
        """Ask for what begins at ``end``, and for what comes behind that: the one is read while the other is sent."""
        wants = [end] if not under_way else []
        if end < ahead:
            wants.append(ahead)
        for each in wants:
            if each < wanted.end:
                under_way.append(_Sent(client, client.send(self._request(wanted, each)), each))

    def _send(self, index: int, wanted: Range, offset: int) -> _Sent | None:
        holders = wanted.holders
        if not holders:  # every store was away when this was planned
            return None
        start = (self._task.turn + index) % len(holders)  # tasks and ranges spread over the stores
        turn = holders[start:] + holders[:start]
        endpoint = next((each for each in turn if each not in self._away), turn[0])
        client = client_of(endpoint, self._task.security)
        return _Sent(client, client.send(self._request(wanted, offset)), offset)

    def _receive(self, sent: _Sent, wanted: Range, offset: int) -> tuple[list[Batch], int]:
        """Return an answer's batches and, if told, the next one's end; None for any fault: the slow path finds it."""
        if sent.client is not _clients.get((sent.client.endpoint, self._task.security)):
            return [], 0  # it was closed after it failed another range
        try:
            answer, raws = sent.client.receive(sent.raw_id)
            if not isinstance(answer, ReadAnswer):
                return [], 0
            return _batches(answer, raws, offset, wanted.end), answer.ahead
        except (TimedOut, ProtocolError) as error:
            logger.warning("%s; asking another store for %s", error, wanted)
            self._fail(sent.client.endpoint)
            return [], 0

    def _request(self, wanted: Range, offset: int) -> ReadRequest:
        size = (wanted.end - offset) * wanted.record_bytes
        topic, partition = encode_topic(wanted.topic), encode_topic(wanted.partition)
        return ReadRequest(topic, partition, offset, max(1, min(size, ANSWER_BYTES)), self._bare)

    def _fail(self, endpoint: str) -> None:
        self._away[endpoint] = None
        forget_client(endpoint, self._task.security)

    def _elsewhere(self, wanted: Range, offset: int) -> tuple[int, list[Batch], StoreClient | None]:
        """Ask all stores, with patience; the offset moves on where records are lost and may be.

        No batches and nobody who has them: everything up to the end is lost.
        """
        patience = Patience(self._task.patience_s, PAUSE_MAX_S)
        stores = list(wanted.holders)
        while True:
            found = self._ask_all(wanted, offset, stores)
            if not isinstance(found, _Round):
                return offset, *found
            if found.lost_to and not found.waiting and not found.behind:
                offset = self._lose(wanted, offset, min(found.lost_to))
            elif not patience.pause():
                if found.waiting or not stores:
                    asked = ", ".join(found.waiting) or f"the tower {self._task.towers}"
                    raise TimedOut(f"{_rest(wanted, offset)}: no answer from {asked}; start the store and run again")
                offset = self._lose(wanted, offset, min(found.lost_to, default=wanted.end))
            else:
                stores = self._look_up(stores)
            if offset >= wanted.end:
                return offset, [], None

    def _ask_all(self, wanted: Range, offset: int, stores: Sequence[str]) -> tuple[list[Batch], StoreClient] | _Round:
        said = _Round([], [], [])
        for endpoint in sorted(stores, key=self._away.__contains__):
            client = client_of(endpoint, self._task.security)
            try:
                answer, raws = client.ask(self._request(wanted, offset))
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
        """Ask towers again: stores may have come back at another address."""
        if self._task.towers is None:
            return stores
        return list(dict.fromkeys([*discover(self._task.towers, self._task.security), *stores]))


def _rest(wanted: Range, offset: int) -> Range:
    return Range(wanted.topic, wanted.partition, offset, wanted.end)


def _batches(answer: ReadAnswer, raws: Sequence[bytes | memoryview], offset: int, end: int) -> list[Batch]:
    """Return the checked batches that follow each other from ``offset`` to ``end``. Raises ProtocolError."""
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
