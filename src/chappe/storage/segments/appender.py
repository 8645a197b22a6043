"""The writing side of one topic: the segment being filled, and the ones that are sealed.

Everything here belongs to the thread that writes. A commit is staged, written, synced and only then entered
into the table; if anything fails before that, ``revert`` cuts the file back and the table knows nothing.

Two failures cannot be mended by cutting back: a cut that fails itself, and a failed sync, after which the
kernel may have dropped the pages it could not write. Then the segment is sealed at its last good length (its
index says where that is), and the next write begins another one.

Retention removes whole segments, oldest first, and never one that must stay is passed over: what is left of a partition
is always its newest part. Those go, too, before whose end no partition begins any more, as all were reset. Where
partitions begin then is kept in a small file. A timestamp in the future does not keep a segment for ever: a record
counts as no newer than the last write to its segment.
"""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Final

import msgspec
from crc32c import crc32c

from chappe.data.topic import Filter, decode_topic
from chappe.errors import Damaged
from chappe.log.storage import AppendRecords, Retention
from chappe.storage.segments.blocks import SEGMENT_HEADER, encode_header
from chappe.storage.segments.directory import TopicFolder
from chappe.storage.segments.files import Buffer, encode_name, logged
from chappe.storage.segments.index import Summary, encode_index
from chappe.storage.segments.index_files import forget_index, load_index, note_begun, save_index
from chappe.storage.segments.manifest import Mark
from chappe.storage.segments.table import BlockRow, BlockTable, Spans, widen

logger: Final = logging.getLogger(__name__)
PINS_FILE: Final = "partitions"
_PINS_MAGIC: Final = b"CHPINS1\n"
_pins: Final = msgspec.msgpack.Decoder(list[tuple[bytes, int]])

Pins = dict[str, int]  # partition -> its first offset, where its segments alone would not tell


class Appender:
    """Appends to the segments of one topic: goes on with ``table``, a new one if its file does not exist yet.

    ``sealed`` are the other segments, oldest first. An ``indexed`` segment has an index, which must go before anything
    is appended.
    """

    def __init__(self, folder: TopicFolder, table: BlockTable, sealed: list[Summary], indexed: bool) -> None:
        self.folder = folder
        self.table = table
        self.sealed = sealed
        self.fd = -1
        self._ops = folder.ops
        self._seed = folder.seed(table.number)
        self._indexed = indexed
        self._exists = os.path.exists(folder.segment(table.number))
        self._must_seal = False
        self._new_entry = False  # the folder must be synced before the commit counts
        self._staged: list[BlockRow] = []

    @property
    def oldest(self) -> int:
        return self.sealed[0].number if self.sealed else self.table.number

    def is_over(self, segment_bytes: int, segment_entries: int) -> bool:
        """True if the segment must be sealed before the next write."""
        return self._must_seal or self.table.length >= segment_bytes or len(self.table) >= segment_entries

    def write(self, appends: Sequence[AppendRecords]) -> None:
        """Write blocks behind the end, not synced. Raises OSError: ``revert`` must follow."""
        self._staged = []
        self._open()
        position = self.table.length
        starts: dict[str, int] = {}
        addresses: dict[str, bytes] = {}
        buffers: list[Buffer] = []
        for place, each in enumerate(appends):
            name = each.partition
            address = addresses.get(name)
            if address is None:
                address = addresses[name] = encode_name(name)
                known = self.table.start(name)
                starts[name] = each.base if known is None else known
            header = encode_header(self._seed, position, address, each, starts[name], place)
            buffers += (header, each.body)
            size = len(header) + len(each.body)
            self._staged.append(
                BlockRow(name, each.base, each.count, position, size, each.timestamp_min, each.timestamp_max, each.heal)
            )
            position += size
        self._ops.write_all(self.fd, buffers, self.table.length)

    def sync(self) -> None:
        """Make what was written durable. Raises OSError: ``revert`` must follow."""
        try:
            self._ops.fdatasync(self.fd)
        except OSError:
            self._must_seal = True
            raise
        if self._new_entry:
            self._ops.sync_directory(self.folder.path)
            note_begun(self.folder, self.table.number)
            self._new_entry = False

    def mark(self) -> Mark:
        """Return how far the segment will be acknowledged once the staged blocks are."""
        spans: Spans = {}
        for row in self._staged:
            widen(spans, row.partition, row.base, row.base + row.records)
        end = self._staged[-1].position + self._staged[-1].size if self._staged else self.table.length
        return Mark(self.table.number, end, spans)

    def accept(self) -> tuple[int, int]:
        """Enter the blocks into the table; return their first row and the one behind the last."""
        start = len(self.table)
        for row in self._staged:
            self.table.append(row)
        if self._staged:
            self.table.length = self._staged[-1].position + self._staged[-1].size
        self._staged = []
        return start, len(self.table)

    def revert(self) -> None:
        """Undo what was written since the last ``accept``; never raises."""
        self._staged = []
        if not self._exists:
            return
        try:
            fd = self.fd if self.fd >= 0 else self._ops.open(self.folder.segment(self.table.number), os.O_WRONLY)
            self.fd = fd
            self._ops.ftruncate(fd, self.table.length)
            self._ops.fdatasync(fd)
        except OSError as error:
            logger.warning("cannot cut back a segment of topic %r: %s", self.folder.topic, error)
            self._must_seal = True
        if self._must_seal:
            with logged("cannot seal a segment of topic %r", self.folder.topic):
                self.seal()

    def seal(self, *, durable: bool = True) -> int:
        """Write the segment's index and begin another one; return the number of the sealed one.

        Raises OSError: it is not sealed, and nothing may be appended to it until it is.
        """
        table = self.table
        self._must_seal = True
        if not self._indexed or table.damaged:
            save_index(self.folder, table.number, encode_index(table), durable=durable)
        self._must_seal = False
        self.release()
        self.sealed.append(Summary(table.number, table.length, table.records, *table.times))
        self.table = BlockTable(table.number + 1)
        self._seed = self.folder.seed(self.table.number)
        self._indexed = self._exists = False
        return table.number

    def release(self) -> None:
        if self.fd >= 0:
            self._ops.close(self.fd)
            self.fd = -1

    def close(self) -> None:
        """Write the index, so that the next start need not scan, and close the file."""
        if self._exists and (not self._indexed or self.table.damaged):
            with logged("topic %r is closed without an index and will be scanned", self.folder.topic):
                self.seal(durable=self._must_seal)
        self.release()

    def _open(self) -> None:
        path = self.folder.segment(self.table.number)
        if self._indexed:
            forget_index(self.folder, self.table.number)
            self._indexed = False
            self._new_entry = True
        if self.fd < 0:
            self.fd = self._ops.open(path, os.O_WRONLY | (0 if self._exists else os.O_CREAT | os.O_EXCL))
        if not self._exists:
            self._exists = self._new_entry = True
        if self.table.length < len(SEGMENT_HEADER):
            self._ops.write_all(self.fd, [SEGMENT_HEADER], 0)
            self.table.length = len(SEGMENT_HEADER)


class Policies:
    """Retention by topic or ``prefix*``: the first that matches counts; single topics in front are looked up."""

    def __init__(self, policies: Sequence[tuple[str, Retention]]) -> None:
        self._topics: dict[str, Retention] = {}
        self._others: list[tuple[Filter, Retention]] = []
        for name, policy in policies:
            wanted = Filter.parse(name)
            if self._others or wanted.prefix:
                self._others.append((wanted, policy))
            else:
                self._topics.setdefault(wanted.name, policy)

    def of(self, topic: str) -> Retention:
        found = self._topics.get(topic)
        return found or next((policy for wanted, policy in self._others if wanted.matches(topic)), Retention())


def choose(appender: Appender, policy: Retention, now_us: int) -> list[Summary] | None:
    """Choose the segments to remove by a policy; None: seal the segment being filled first."""
    oldest_us = None if policy.age_s is None else now_us - int(policy.age_s * 1_000_000)
    table = appender.table
    if oldest_us is not None and len(table) and min(table.timestamp_min) < oldest_us:
        return None
    size = table.length + sum(each.length for each in appender.sealed)
    records = table.records + sum(each.records for each in appender.sealed)
    remove: list[Summary] = []
    for each in appender.sealed:
        size -= each.length
        records -= each.records
        if not (
            (policy.bytes is not None and size >= policy.bytes)
            or (policy.records is not None and records >= policy.records)
            or (oldest_us is not None and _newest(appender, each) < oldest_us)
        ):
            break
        remove.append(each)
    return remove


def passed(appender: Appender, pins: Pins) -> list[Summary] | None:
    """The oldest segments that hold nothing any partition still has; None: seal the segment being filled first."""
    found: list[Summary] = []
    for each in appender.sealed:
        try:
            index = load_index(appender.folder, each.number)
        except (Damaged, OSError):
            return found
        if not _is_passed(chain((extent[:3] for extent in index.extents()), index.lost()), pins):
            return found
        found.append(each)
    spans = appender.table.spans()
    if spans and _is_passed(((name, first, next_) for name, (first, next_) in spans.items()), pins):
        return None
    return found


def _is_passed(extents: Iterable[tuple[str, int, int]], pins: Pins) -> bool:
    return all(next_ <= pins.get(partition, 0) for partition, _, next_ in extents)


def _newest(appender: Appender, segment: Summary) -> int:
    try:
        written_ns = os.stat(appender.folder.segment(segment.number)).st_mtime_ns
    except OSError:
        return segment.timestamp_max
    return min(segment.timestamp_max, written_ns // 1000)


def remove_first(appender: Appender, segments: list[Summary]) -> Pins:
    """Make it durable that segments are gone; return their partitions' starts. Raises OSError: none was removed."""
    firsts: Pins = {}
    for each in segments:
        try:
            index = load_index(appender.folder, each.number)
        except Damaged as error:
            logger.error("retention removes a segment that is gone already: %s", error)
            continue
        for partition, _, next_ in chain((each[:3] for each in index.extents()), index.lost()):
            firsts[partition] = max(firsts.get(partition, 0), next_)
    _pin(appender.folder, firsts)
    del appender.sealed[: len(segments)]
    return firsts


def pin_resets(appenders: dict[str, Appender], resets: deque[tuple[str, str, int]]) -> dict[str, Pins]:
    """Make the resets durable, those of topics that are on disk; returns where the partitions of these topics begin.

    Raises OSError: the resets are still to be made durable.
    """
    by_topic: dict[str, Pins] = {}
    asked = list(resets)
    for topic, partition, first in asked:
        if topic in appenders:
            pins = by_topic.setdefault(topic, {})
            pins[partition] = max(pins.get(partition, 0), first)
    pinned = {topic: _pin(appenders[topic].folder, pins) for topic, pins in by_topic.items()}
    for _ in asked:  # others may have come meanwhile
        resets.popleft()
    return pinned


def _pin(folder: TopicFolder, firsts: Pins) -> Pins:
    pins = load_pins(folder)
    for partition, first in firsts.items():
        pins[partition] = max(pins.get(partition, 0), first)
    body = msgspec.msgpack.encode([(encode_name(name), first) for name, first in pins.items()])
    head = _PINS_MAGIC + crc32c(body).to_bytes(4, "little")
    folder.ops.replace_file(os.path.join(folder.path, PINS_FILE), [head, body])
    return pins


def load_pins(folder: TopicFolder) -> Pins:
    """The starts of partitions whose first records are gone, as a small file of the topic says; empty without one."""
    path = os.path.join(folder.path, PINS_FILE)
    try:
        raw = folder.ops.read_file(path)
    except FileNotFoundError:
        return {}
    body = memoryview(raw)[len(_PINS_MAGIC) + 4 :]
    try:
        if not raw.startswith(_PINS_MAGIC) or raw[8:12] != crc32c(body).to_bytes(4, "little"):
            raise ValueError("checksum")
        return {decode_topic(name): first for name, first in _pins.decode(body)}
    except (ValueError, msgspec.DecodeError):
        logger.error("%s is damaged; partitions without any record left begin anew", path)
        return {}
