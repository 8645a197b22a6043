"""The newest record of each key of a topic, for whoever asks: a table beside the storage, made at the first question.

A table is made by reading the topic once, and kept up by reading what is new when it is asked for again; nothing is
done for records that come. Whoever asks gets it in pages, and with the first one how far the table had come in each
partition (the cuts): what comes from there on is read as ever. A record that a page has from behind its cut is left
out by the asker, as it comes again; so a table may go on while it is read.

Within a partition the higher offset is the newer record; among partitions the later timestamp is, as all stores see it.
Records without a key are not in a table, and a key whose newest record is a tombstone has none.

Tables are bounded together, in bytes; the one not asked for longest goes first, and one that alone has more is refused.
One that somebody waits for, or is reading, goes last, the newest of those first: else two that have no room beside each
other would take it from each other for ever. A topic of which something is damaged here is refused: others may have it.

Source: the ZeroMQ Guide's last value cache.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from chappe.data.topic import decode_topic, encode_topic
from chappe.errors import ChappeError
from chappe.limits import LogLimits
from chappe.log.batch import Batch, encode_batch
from chappe.log.queries import Answer, ErrorAnswer, LastAnswer, LastRequest
from chappe.log.storage import LogStorage

PAUSE_S: Final = 0.005  # between two pieces that are read, so that everything else gets its turn
FRESH_S: Final = 1.0  # a table that was complete so lately is not brought up to date before it is told
FORGET_S: Final = 600.0  # a table that nobody has asked for so long goes
ASKED_S: Final = 5.0  # it is read on for so long after somebody has asked
ENTRY_BYTES: Final = 400  # that a key takes beside its record, about
PARTITIONS_MAX: Final = 100_000  # of one topic: their cuts are one message

_Last: TypeAlias = tuple[bytes, int, bytes | None, bytes]  # key, time, value and headers of a record


@dataclass(slots=True)
class _ValuesPart:
    """The records of one partition that are the newest of their keys."""

    name: str
    next: int  # everything before it was looked at
    records: dict[int, _Last] = field(default_factory=dict)
    offsets: list[int] = field(default_factory=list)  # in order; some of them are gone

    def add(self, offset: int, record: _Last) -> None:
        self.records[offset] = record
        self.offsets.append(offset)
        if len(self.offsets) > 2 * len(self.records) + 64:
            self.offsets = list(self.records)  # they were added in order


@dataclass(slots=True)
class _Table:
    """One topic."""

    topic: str
    number: int
    version: int = 0  # of the storage, up to which partitions are known
    parts: dict[str, _ValuesPart] = field(default_factory=dict)
    newest: dict[bytes, tuple[_ValuesPart, int, int]] = field(default_factory=dict)  # by key: where, offset, time
    goals: dict[str, int] = field(default_factory=dict)  # up to where partitions are still to be read
    bytes: int = 0
    asked_at: float = -math.inf
    fresh_at: float = -math.inf
    told: bool = False  # to its end, to the last that asked
    refused: str = ""

    def wanted(self, now: float) -> bool:
        """Whether somebody waits for it, or is reading it."""
        return not self.told and now - self.asked_at < ASKED_S


class LastValues:
    """All tables of one store."""

    def __init__(self, storage: LogStorage, limits: LogLimits) -> None:
        self._storage = storage
        self._limits = limits
        self._tables: dict[str, _Table] = {}  # the one asked for last comes last
        self._number = 0
        self.due = math.inf
        self.held_bytes = 0  # what all tables take, about

    def answer(self, request: LastRequest, now: float) -> tuple[Answer, tuple[bytes, ...]]:
        """The answer and its batches of one record each."""
        topic = decode_topic(request.topic)
        table = self._tables.pop(topic, None)
        if request.table and (table is None or table.number != request.table):
            if table is not None:
                self._tables[topic] = table
            return LastAnswer(request.topic, 0), ()  # it is gone: to be asked for from the beginning
        if table is None:
            self._number += 1
            table = _Table(topic, self._number)
        self._tables[topic] = table
        table.asked_at, table.told = now, False
        if not request.table and not table.goals and now - table.fresh_at > FRESH_S:
            self._look_for_news(table)
            self._read(table, now)
        if table.refused:
            self._drop(topic)
            return ErrorAnswer(table.refused), ()
        if table.goals or topic not in self._tables:
            self.due = min(self.due, now + PAUSE_S)
            return LastAnswer(request.topic, 0, busy=True), ()
        self.due = min(self.due, now + FORGET_S)
        return self._page(table, request)

    def handle_timeout(self, now: float) -> None:
        """Read on what somebody waits for, and forget what nobody asks for."""
        if now < self.due:
            return
        wanted = [each for each in self._tables.values() if each.goals and now - each.asked_at < ASKED_S]
        for table in wanted[:1]:
            self._read(table, now)
        for topic in [topic for topic, each in self._tables.items() if now - each.asked_at >= FORGET_S]:
            self._drop(topic)
        waits = any(each.goals for each in wanted)
        forgets = min((each.asked_at + FORGET_S for each in self._tables.values()), default=math.inf)
        self.due = now + PAUSE_S if waits else forgets

    def invariants(self) -> list[str]:
        """What is not as it must be, one sentence each."""
        found = []
        if self.held_bytes != sum(table.bytes for table in self._tables.values()):
            found.append(f"tables of newest records take other than {self.held_bytes} bytes")
        for table in self._tables.values():
            there = {(key, name) for name, part in table.parts.items() for key, *_ in part.records.values()}
            if there != {(key, part.name) for key, (part, _, _) in table.newest.items()}:
                found.append(f"the table of {table.topic} names other records than it has")
        return found

    # -- reading --------------------------------------------------------------------------------------

    def _look_for_news(self, table: _Table) -> None:
        limit = PARTITIONS_MAX + 1
        changed = self._storage.changed(table.topic, table.version, limit)
        infos = [each for each in changed if each.topic == table.topic]
        if len(changed) == limit or len(infos) + len(table.parts) > PARTITIONS_MAX:
            table.refused = f"topic {table.topic!r} has more than {PARTITIONS_MAX} partitions"
            return
        table.version = self._storage.version
        for info in infos:
            part = table.parts.setdefault(info.partition, _ValuesPart(info.partition, info.first))
            if part.next < info.next:
                table.goals[info.partition] = info.next

    def _read(self, table: _Table, now: float) -> None:
        """The next piece."""
        left = self._limits.last_piece_bytes
        while left > 0 and table.goals and not table.refused:
            name, goal = next(iter(table.goals.items()))
            part = table.parts[name]
            info = self._storage.partition(table.topic, name)
            part.next = max(part.next, goal if info is None else info.first)
            if part.next >= goal:
                del table.goals[name]
                continue
            try:
                read = self._storage.read(table.topic, name, part.next, left)
                for raw in read.batches:
                    left -= len(raw)
                    batch = Batch.parse(raw, check=False)
                    if batch.sealed is not None:
                        self._refuse(table, f"topic {table.topic!r} is sealed: what its keys are is not known here")
                        return
                    self._take(table, part, batch)
            except ChappeError as error:
                self._refuse(table, str(error))
                return
            if not read.batches:
                self._refuse(table, f"records of topic {table.topic!r} are damaged at this store")
                return
        if not table.goals:
            table.fresh_at = now
        self._shrink(table, now)

    def _take(self, table: _Table, part: _ValuesPart, batch: Batch) -> None:
        """Enter the newest record of each key."""
        start, part.next = max(part.next - batch.base, 0), max(part.next, batch.next)
        keys = batch.keys()
        if keys is None:
            return
        last = dict(zip(keys[start:], range(start, batch.count), strict=True))
        last.pop(None, None)
        stamps, values, headers = batch.timestamps(), batch.values(), batch.raw_headers()
        for index in sorted(last.values()):
            key, stamp, value = keys[index], stamps[index], values[index]
            assert key is not None
            before = table.newest.get(key)
            if before is not None:
                there, offset, then = before
                if there is not part and (then, there.name) > (stamp, part.name):
                    continue
                old = there.records.pop(offset)
                self._grow(table, -(ENTRY_BYTES + len(key) + len(old[2] or b"") + len(old[3])))
            offset = batch.base + index
            header = headers[index] if headers else b""
            table.newest[key] = (part, offset, stamp)
            self._grow(table, ENTRY_BYTES + len(key) + len(value or b"") + len(header))
            part.add(offset, (key, stamp, value, header))

    def _shrink(self, read: _Table, now: float) -> None:
        """Let go of tables beyond the bound, after one was read."""
        if read.bytes > self._limits.last_bytes_max:
            mib = self._limits.last_bytes_max >> 20
            self._refuse(read, f"the newest records of topic {read.topic!r} have more than {mib} MiB")
            return
        while self.held_bytes > self._limits.last_bytes_max:
            wanted = {each.topic: each.number for each in self._tables.values() if each.wanted(now)}
            idle = next((topic for topic in self._tables if topic not in wanted and topic != read.topic), None)
            self._drop(idle or max(wanted, key=lambda topic: wanted[topic]))

    def _refuse(self, table: _Table, reason: str) -> None:
        """It takes no room until somebody who waits for it has heard that."""
        table.refused = reason
        self._grow(table, -table.bytes)
        table.parts, table.newest, table.goals = {}, {}, {}

    def _grow(self, table: _Table, size: int) -> None:
        table.bytes += size
        self.held_bytes += size

    def _drop(self, topic: str) -> None:
        self.held_bytes -= self._tables.pop(topic).bytes

    # -- telling --------------------------------------------------------------------------------------

    def _page(self, table: _Table, request: LastRequest) -> tuple[Answer, tuple[bytes, ...]]:
        """The records behind a place."""
        parts = list(table.parts.values())
        cuts = () if request.table else tuple((encode_topic(each.name), each.next) for each in parts)
        names: list[bytes] = []
        bodies: list[bytes] = []
        size, index, after = 0, request.part, request.offset
        while index < len(parts):
            part = parts[index]
            info = self._storage.partition(table.topic, part.name)
            after = max(after, -1 if info is None else info.first - 1)
            for place in range(bisect_right(part.offsets, after), len(part.offsets)):
                if size >= self._limits.read_bytes:
                    return LastAnswer(request.topic, table.number, list(cuts), names, index, after, more=True), (
                        *bodies,
                    )
                after = part.offsets[place]
                record = part.records.get(after)
                if record is None or record[2] is None:
                    continue
                key, stamp, value, header = record
                body = encode_batch(after, [value], stamp, keys=[key], headers=[header] if header else None)
                names.append(encode_topic(part.name))
                bodies.append(body)
                size += len(body)
            index, after = index + 1, -1
        table.told = True
        return LastAnswer(request.topic, table.number, list(cuts), names, index, after), (*bodies,)
