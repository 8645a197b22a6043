"""Opening a topic's folder: what is there, mended as far as it can be.

Segments with a valid index are believed without a look inside. Others are scanned: bytes behind the last sound
block are the torn end of a write that was never acknowledged and are cut off; bad bytes before a sound block
are damage, and what they held is missing from the extents, which makes it a hole.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from typing import Final

import msgspec
from crc32c import crc32c

from chappe.drivers.segments.appender import Appender, index_path, segment_path
from chappe.drivers.segments.blocks import SEGMENT_HEADER, Block, scan, segment_seed
from chappe.drivers.segments.files import FileOps, read_file, replace_file
from chappe.drivers.segments.index import Index, Summary, encode_index
from chappe.drivers.segments.table import Lost, Row, Table
from chappe.errors import Damaged

logger: Final = logging.getLogger(__name__)
PINS_FILE: Final = "partitions"
_PINS_MAGIC: Final = b"CHPINS1\n"
_pins: Final = msgspec.msgpack.Decoder(list[tuple[bytes, int]])

Pins = dict[str, int]  # partition -> its first offset, where its segments alone would not tell


def load_pins(ops: FileOps, folder: str) -> Pins:
    """Where partitions start whose records retention removed; empty if there are none."""
    path = os.path.join(folder, PINS_FILE)
    try:
        raw = read_file(ops, path)
    except FileNotFoundError:
        return {}
    body = memoryview(raw)[len(_PINS_MAGIC) + 4 :]
    try:
        if not raw.startswith(_PINS_MAGIC) or raw[8:12] != crc32c(body).to_bytes(4, "little"):
            raise ValueError("checksum")
        return {name.decode("utf-8", "surrogateescape"): first for name, first in _pins.decode(body)}
    except (ValueError, msgspec.DecodeError):
        logger.error("%s is damaged; partitions without any record left begin anew", path)
        return {}


def save_pins(ops: FileOps, folder: str, pins: Pins) -> None:
    """Replace the file of pins; raises OSError."""
    rows = [(name.encode("utf-8", "surrogateescape"), first) for name, first in pins.items()]
    body = msgspec.msgpack.encode(rows)
    head = _PINS_MAGIC + crc32c(body).to_bytes(4, "little")
    replace_file(ops, os.path.join(folder, PINS_FILE), [head, body])


def scan_segment(ops: FileOps, folder: str, topic: str, store_id: str, number: int, *, sealed: bool = False) -> Table:
    """The table of a segment, found by reading all of it; raises OSError if it cannot be read at all.

    What is bad at the end of a ``sealed`` one was acknowledged and is lost; else it was never finished.
    """
    path = segment_path(folder, number)
    fd = ops.open(path, os.O_RDONLY)
    try:
        size = os.fstat(fd).st_size
        table = Table(number)
        end = len(SEGMENT_HEADER)
        bad: list[Block] = []  # seen since the last sound block; damage if another one follows, else the torn end
        for block in scan(ops, fd, size, segment_seed(store_id, topic, number)):
            if not block.sound:
                bad.append(block)
                continue
            if block.position != end:
                logger.error("topic %r: damage in %s, bytes %d to %d", topic, path, end, block.position - 1)
            for each in bad:
                _enter(table, each)
            _enter(table, block)
            bad.clear()
            end = block.position + block.size
        if sealed:
            for each in bad:
                _enter(table, each)
    finally:
        ops.close(fd)
    table.length = end if size >= len(SEGMENT_HEADER) else 0
    if size > end:
        logger.warning(
            "topic %r: %s ends in %d bytes of %s",
            topic,
            path,
            size - end,
            "damage" if sealed else "an unfinished write",
        )
    return table


def _enter(table: Table, block: Block) -> None:
    partition = block.address.decode("utf-8", "surrogateescape")
    if not block.sound:
        table.lost.append(Lost(partition, block.base, block.base + block.records))
        return
    if block.start < block.base and table.start(partition) is None and not block.heal:
        table.lost.append(Lost(partition, block.start, block.base))
    table.append(
        Row(
            partition,
            block.base,
            block.records,
            block.position,
            block.size,
            block.timestamp_min,
            block.timestamp_max,
            block.heal,
        )
    )


def load_index(ops: FileOps, folder: str, topic: str, store_id: str, number: int) -> Index:
    """The index of a sealed segment, made again if it is damaged or missing.

    Raises:
        OSError: The segment cannot be read, or the disk takes no new index.
    """
    path = index_path(folder, number)
    try:
        return Index(read_file(ops, path), number)
    except (OSError, Damaged) as error:
        if isinstance(error, Damaged):
            logger.error("%s is damaged and made again from its segment", path)
    table = scan_segment(ops, folder, topic, store_id, number, sealed=True)
    table.length = max(table.length, len(SEGMENT_HEADER))
    raw = encode_index(table)
    replace_file(ops, path, [raw])
    return Index(raw, number)


class TopicOpener:
    """Opens a topic's folder.

    ``segments()`` gives what each segment has, oldest first; when it is exhausted, ``appender`` goes on with the
    topic. So no more than one index is in memory at a time.
    """

    def __init__(
        self, ops: FileOps, folder: str, topic: str, store_id: str, segment_bytes: int, segment_entries: int
    ) -> None:
        self.newest_us = 0  # when a segment was last written, microseconds since 1970
        self.missing: set[int] = set()  # segments of which only the index is left
        self.appender: Appender
        self._ops = ops
        self._folder = folder
        self._topic = topic
        self._store_id = store_id
        self._segment_bytes = segment_bytes
        self._segment_entries = segment_entries

    def segments(self) -> Iterator[Index | Table]:
        """The sealed segments' indexes, then the table of the one to go on with.

        Raises:
            OSError: One cannot be read or mended.
        """
        segments, indexes = segment_numbers(self._folder)
        newest = max(segments, default=0)
        table, indexed = Table(max(segments | indexes, default=0) + 1), False
        sealed: list[Summary] = []
        for number in sorted(segments | indexes):
            if number in segments:
                mtime_ns = os.stat(segment_path(self._folder, number)).st_mtime_ns
                self.newest_us = max(self.newest_us, mtime_ns // 1000)
            if number == newest and number not in indexes:
                table = scan_segment(self._ops, self._folder, self._topic, self._store_id, number)
            else:
                index = load_index(self._ops, self._folder, self._topic, self._store_id, number)
                if number != newest or not self._has_room(index):
                    if number in segments:
                        sealed.append(index.summary)
                    else:
                        logger.error("topic %r: segment %d is missing", self._topic, number)
                        self.missing.add(number)
                    yield index
                    continue
                table, indexed = index.table(), True
            _cut(self._ops, segment_path(self._folder, number), table.length)
            yield table
        self.appender = Appender(self._ops, self._folder, self._topic, self._store_id, table, sealed, indexed)

    def _has_room(self, index: Index) -> bool:
        """Whether to go on with a segment that a clean end sealed early."""
        return 2 * index.summary.length < self._segment_bytes and 2 * index.entries < self._segment_entries


def segment_numbers(folder: str) -> tuple[set[int], set[int]]:
    """Numbers of the segments and of the indexes in a folder."""
    segments: set[int] = set()
    indexes: set[int] = set()
    for name in os.listdir(folder):
        stem, kind = os.path.splitext(name)
        if len(stem) == 16 and stem.isascii() and stem.isdigit():
            if kind == ".seg":
                segments.add(int(stem))
            elif kind == ".idx":
                indexes.add(int(stem))
    return segments, indexes


def _cut(ops: FileOps, path: str, length: int) -> None:
    """Cut a file to ``length`` if it is longer."""
    fd = ops.open(path, os.O_RDWR)
    try:
        if os.fstat(fd).st_size > length:
            ops.ftruncate(fd, length)
            ops.fsync(fd)
    finally:
        ops.close(fd)
