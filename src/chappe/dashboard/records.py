"""Records of a topic for people: the newest, those from a moment or an offset on, and those that hold a text.

Everything is bounded: how many records are shown, how many bytes stores are asked for, and how long a search goes on;
what a bound left out is said. Stores are asked as a reader asks them, over connections of this request alone.
"""

from __future__ import annotations

import io
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Final

from chappe.api.log.lines import as_json
from chappe.data.topic import encode_topic
from chappe.defaults import MIB
from chappe.errors import ChappeError, ProtocolError, TimedOut, UsageError
from chappe.log.batch import Batch, Record
from chappe.log.queries import Answer, ReadRequest, Request, SeekAnswer, SeekRequest
from chappe.reading.offsets import KnownPartition
from chappe.security import LogSecurity
from chappe.transports.queries import StoreClient

SHOWN_MAX: Final = 200  # records on a page
SAVED_MAX: Final = 10_000  # ... and in a file
PARTITIONS_MAX: Final = 20  # of a topic, those that were written last
READ_BYTES: Final = MIB  # of one partition for a page
SEARCH_BYTES: Final = 32 * MIB  # of a topic for a search
SEARCH_S: Final = 5.0
ANSWER_S: Final = 3.0


@dataclass(frozen=True, slots=True)
class RecordQuery:
    """A search for records.

    Args:
        count: Records at most.
        since_us: From this moment on, in microseconds since 1970; None: the newest.
        partition: This one alone; empty for all.
        offset: From here on, of the one partition.
        text: Only records whose key, value or a header holds it, upper and lower case alike; empty for all.
    """

    count: int = 50
    since_us: int | None = None
    partition: str = ""
    offset: int | None = None
    text: str = ""


@dataclass(frozen=True, slots=True)
class Found:
    """Records, the newest first if the newest were wanted, else the oldest; and what a person has to know of them."""

    records: tuple[Record, ...]
    note: str = ""


def find(topic: str, held: Mapping[str, KnownPartition], wanted: RecordQuery, security: LogSecurity = None) -> Found:
    """Look into the stores.

    Args:
        topic: Its name, as stores have it.
        held: What all stores together have of each of its partitions.
        wanted: What to look for.
        security: Who we are, if stores have keys.

    Raises:
        UsageError: Of an offset the partition is missing, or there is no such partition.
        TimedOut: No store that has it answers.
    """
    if wanted.offset is not None and not wanted.partition:
        raise UsageError("An offset counts within one partition: choose the partition, too.")
    if wanted.partition and wanted.partition not in held:
        raise UsageError(f"The topic has no partition {wanted.partition!r} any more.")
    names = [wanted.partition] if wanted.partition else sorted(held, key=lambda p: -held[p].timestamp_max)
    notes = []
    if len(names) > PARTITIONS_MAX:
        notes.append(f"looked into the {PARTITIONS_MAX} partitions written last, of {len(names):,}")
    names = names[:PARTITIONS_MAX]
    search = _Search(topic, wanted, security, len(names))
    with closing(search):
        records = [each for name in names for each in search.of(name, held[name])]
    newest = wanted.since_us is None and wanted.offset is None
    records.sort(key=lambda each: (each.timestamp, each.partition, each.offset), reverse=newest)
    notes += search.notes(wanted)
    return Found(tuple(records[: wanted.count]), "; ".join(notes))


class _Search:
    def __init__(self, topic: str, wanted: RecordQuery, security: LogSecurity, partitions: int) -> None:
        self._topic = topic
        self._wanted = wanted
        self._security = security
        self._clients: dict[str, StoreClient] = {}
        self._silent: dict[str, TimedOut] = {}
        deep = bool(wanted.text) or wanted.count > SHOWN_MAX
        self._bytes = (SEARCH_BYTES if deep else READ_BYTES * PARTITIONS_MAX) // max(1, partitions)
        self._until = time.monotonic() + SEARCH_S
        self._text = wanted.text.casefold()
        self._sealed = self._damaged = self._seen = 0
        self._cut = False

    def close(self) -> None:
        for each in self._clients.values():
            each.close()

    def notes(self, wanted: RecordQuery) -> list[str]:
        found = []
        if wanted.text:
            found.append(f"looked through {self._seen:,} records")
        if self._cut:
            found.append("not through all: narrow it down by time, partition or offset")
        if self._sealed:
            found.append(f"{self._sealed:,} records are sealed for a group and not shown")
        if self._damaged:
            found.append(f"{self._damaged:,} batches cannot be read")
        return found

    def of(self, partition: str, known: KnownPartition) -> list[Record]:
        offset = self._begin(partition, known)
        newest = self._wanted.since_us is None and self._wanted.offset is None
        found: list[Record] = []
        left = self._bytes
        while offset < known.next and left > 0:
            if time.monotonic() > self._until:
                self._cut = True
                break
            names = encode_topic(self._topic), encode_topic(partition)
            read = self._ask(partition, known, ReadRequest(*names, offset, min(left, READ_BYTES)))[1]
            batches = [raw for raw in read if raw]
            if not batches:
                break
            for raw in batches:
                left -= len(raw)
                offset = max(offset + 1, self._take(raw, partition, offset, found))
            if newest:
                del found[: -self._wanted.count]
            elif len(found) >= self._wanted.count:
                break
        self._cut = self._cut or (offset < known.next and bool(self._text))
        return found

    def _take(self, raw: bytes | memoryview, partition: str, offset: int, found: list[Record]) -> int:
        try:
            batch = Batch.parse(raw)
            if batch.sealed is not None:
                self._sealed += batch.count
                return batch.next
            records = list(batch.records(self._topic, partition, max(offset, batch.base)))
        except ProtocolError:
            self._damaged += 1
            return offset + 1
        since = self._wanted.since_us
        for each in records:
            self._seen += 1
            if (since is None or each.timestamp >= since) and (not self._text or self._holds(each)):
                found.append(each)
        return batch.next

    def _holds(self, record: Record) -> bool:
        parts = [record.key, record.value, *(part for name, value in record.headers for part in (name.encode(), value))]
        return any(part and self._text in part.decode("utf-8", "replace").casefold() for part in parts)

    def _begin(self, partition: str, known: KnownPartition) -> int:
        wanted = self._wanted
        if wanted.offset is not None:
            return max(known.first, wanted.offset)
        if wanted.since_us is not None:
            request = SeekRequest(encode_topic(self._topic), encode_topic(partition), wanted.since_us)
            answer = self._ask(partition, known, request)[0]
            return max(known.first, answer.offset if isinstance(answer, SeekAnswer) else known.first)
        back = self._bytes // known.record_bytes if self._text else min(wanted.count, self._bytes // known.record_bytes)
        begin = max(known.first, known.next - max(1, back))
        self._cut = self._cut or (bool(self._text) and begin > known.first)
        return begin

    def _ask(
        self, partition: str, known: KnownPartition, request: Request
    ) -> tuple[Answer, Sequence[bytes | memoryview]]:
        """Ask one store after the other, and one that was silent no more. Raises TimedOut if none answers."""
        problem: ChappeError | None = None
        for endpoint in known.holders:
            if endpoint in self._silent:
                problem = self._silent[endpoint]
                continue
            try:
                return self._connected(endpoint).ask(request)
            except TimedOut as error:
                problem = self._silent[endpoint] = error
            except ProtocolError as error:
                problem = error
        raise TimedOut(f"No store that has partition {partition} answers: {problem or 'none is there'}.")

    def _connected(self, endpoint: str) -> StoreClient:
        if endpoint not in self._clients:
            self._clients[endpoint] = StoreClient(endpoint, ANSWER_S, self._security)
        return self._clients[endpoint]


def as_lines(records: Iterable[Record]) -> bytes:
    """Return lines of JSON, as ``chappe consume --output json`` prints them."""
    return b"".join(map(as_json, records))


def as_parquet(records: Sequence[Record]) -> bytes:
    """Return a Parquet file with the columns of ``read_topic``. Raises UsageError if pyarrow is not installed."""
    from chappe.arrow import schema, shown

    made = schema()  # says so if it is missing
    import pyarrow as pa
    import pyarrow.parquet as parquet

    rows = [
        {
            "topic": shown(each.topic),
            "partition": shown(each.partition),
            "offset": each.offset,
            "timestamp": each.timestamp,
            "key": each.key,
            "value": each.value,
            "headers": [{"key": name, "value": value} for name, value in each.headers],
        }
        for each in records
    ]
    out = io.BytesIO()
    parquet.write_table(pa.Table.from_pylist(rows, schema=made), out)
    return out.getvalue()
