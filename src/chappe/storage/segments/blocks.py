"""A block is one batch in a segment file, and scanning a segment finds its blocks again.

A segment is 32 bytes that name it for people, then blocks, one behind the other, of all partitions of one
topic. A block, little endian::

    magic                             4 bytes
    crc32c of all that follows here, the address and the first 8 bytes of the body     u32
    size of the whole block           u32
    length of the address             u8
    flags: 1 = heal                   u8
    place: how many blocks of the same commit stand before this one, 65,535 at most    u16
    count of records                  u32
    base offset                       u64
    start: base offset of the partition's first block in this segment                  u64
    smallest, largest timestamp       2 x i64
    address of the partition          bytes
    body: the batch, see log.batch    bytes

The first eight bytes of a batch are what its own checksum leaves out, so the two checksums together cover
every byte. The header's checksum starts from a number made of the store's id, the topic, the segment's number
and the block's position: bytes that were copied from a segment into a record's value never pass for a block.

``start`` tells, when the beginning of a segment is damaged, from where on a partition is missing.

``place`` tells what was torn from what rotted: a commit begins only when the one before it is synced, so whatever
stands before the first block of a later commit was once on disk. So everything before the first block of the newest
commit was acknowledged, and so was everything in the manifest: bad bytes there are damage. Behind it a power cut may
have left any of the pages: the blocks up to the first bad one are kept, and the rest never counted.
"""

from __future__ import annotations

import errno
import logging
import os
import struct
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from crc32c import crc32c

from chappe.data.topic import decode_topic
from chappe.defaults import BATCH_BYTES_MAX, KIB, MIB
from chappe.log.storage import AppendRecords
from chappe.storage.segments.directory import TopicFolder
from chappe.storage.segments.files import FileOps
from chappe.storage.segments.table import BlockRow, BlockTable, LostOffsets

logger: Final = logging.getLogger(__name__)

SEGMENT_HEADER: Final = b"chappe segment, format 1\n".ljust(32, b"\0")
MAGIC: Final = b"\xc7BK\x01"
HEAL: Final = 1
_CRC: Final = struct.Struct("<I")
PLACE_MAX: Final = 0xFFFF
_FIELDS: Final = struct.Struct("<IBBHIQQqq")
_FIELDS_AT: Final = len(MAGIC) + _CRC.size
HEADER_BYTES: Final = _FIELDS_AT + _FIELDS.size
COVERED_BYTES: Final = 8  # of the body, by the header's checksum
BLOCK_BYTES_MAX: Final = HEADER_BYTES + 255 + BATCH_BYTES_MAX
WINDOW_BYTES: Final = 4 * MIB
_PAGE_BYTES: Final = 4 * KIB
_MASK: Final = 0xFFFF_FFFF


class Block(NamedTuple):
    """A block that a scan found; ``sound`` is False when the header is right and the body is not."""

    position: int
    size: int
    address: bytes
    base: int
    records: int
    start: int
    timestamp_min: int
    timestamp_max: int
    heal: bool
    sound: bool
    place: int

    @property
    def end(self) -> int:
        return self.position + self.size


def encode_header(seed: int, position: int, address: bytes, append: AppendRecords, start: int, place: int) -> bytes:
    """Everything of a block but its body; it begins at ``position``, behind ``place`` others of its commit."""
    body = append.body
    size = HEADER_BYTES + len(address) + len(body)
    flags, low, high = HEAL if append.heal else 0, append.timestamp_min, append.timestamp_max
    counts = min(place, PLACE_MAX), append.count, append.base
    fields = _FIELDS.pack(size, len(address), flags, *counts, start, low, high)
    rest = fields + address
    crc = crc32c(body[:COVERED_BYTES], crc32c(rest, (seed + position) & _MASK))
    return MAGIC + _CRC.pack(crc) + rest


def body_is_sound(body: bytes | memoryview) -> bool:
    if len(body) < COVERED_BYTES:
        return False
    return bool(crc32c(memoryview(body)[COVERED_BYTES:]) == _CRC.unpack_from(body, 4)[0])


def header_is_sound(header: bytes, body: bytes, seed: int, position: int) -> bool:
    """True if ``header`` (with its address) and ``body`` are those of the block at ``position``."""
    if header[:4] != MAGIC or len(header) < HEADER_BYTES:
        return False
    crc = crc32c(body[:COVERED_BYTES], crc32c(header[_FIELDS_AT:], (seed + position) & _MASK))
    return bool(crc == _CRC.unpack_from(header, 4)[0])


class _Window:
    """A piece of the file in memory; pages that cannot be read are zeros, and ``unreadable`` is set."""

    def __init__(self, ops: FileOps, fd: int, size: int, window_bytes: int, fresh: bool) -> None:
        self._ops = ops
        self._fd = fd
        self._at = 0
        self._data = b""
        self._view = memoryview(b"")
        self._window_bytes = window_bytes
        self._fresh = fresh
        self.size = size
        self.unreadable = False

    def view(self, at: int, length: int) -> memoryview:
        """The bytes from ``at`` on; fewer than ``length`` only at the end of the file."""
        low = at - self._at
        if low < 0 or low + length > len(self._data):
            self._data = self._load(at, min(max(length, self._window_bytes), self.size - at))
            self._view = memoryview(self._data)
            self._at, low = at, 0
        return self._view[low : low + length]

    def find(self, pattern: bytes, at: int) -> int:
        """The position of the next ``pattern``, -1 if there is none."""
        while at + len(pattern) <= self.size:
            self.view(at, len(pattern))
            found = self._data.find(pattern, at - self._at)
            if found >= 0:
                return self._at + found
            at = max(at + 1, self._at + len(self._data) - len(pattern) + 1)
        return -1

    def _load(self, at: int, length: int) -> bytes:
        if self._fresh:
            self._ops.drop_cache(self._fd, at, length)
        try:
            return self._ops.read_all(self._fd, length, at)
        except OSError as error:
            if error.errno != errno.EIO:
                raise
        pieces = []
        for page in range(at, at + length, _PAGE_BYTES):
            wanted = min(_PAGE_BYTES, at + length - page)
            try:
                pieces.append(self._ops.read_all(self._fd, wanted, page))
            except OSError as error:
                if error.errno != errno.EIO:
                    raise
                pieces.append(bytes(wanted))
                self.unreadable = True
        return b"".join(pieces)


def _block_at(window: _Window, at: int, seed: int) -> Block | None:
    head = window.view(at, HEADER_BYTES + 255 + COVERED_BYTES)
    if len(head) < HEADER_BYTES or bytes(head[:4]) != MAGIC:
        return None
    (crc,) = _CRC.unpack_from(head, 4)
    size, length, flags, place, count, base, start, low, high = _FIELDS.unpack_from(head, _FIELDS_AT)
    end = HEADER_BYTES + length
    if not end + COVERED_BYTES <= size <= BLOCK_BYTES_MAX or len(head) < end + COVERED_BYTES:
        return None
    if crc32c(head[_FIELDS_AT : end + COVERED_BYTES], (seed + at) & _MASK) != crc:
        return None
    address = bytes(head[HEADER_BYTES:end])
    body = window.view(at + end, size - end)
    sound = len(body) == size - end and body_is_sound(body)
    return Block(at, size, address, base, count, start, low, high, flags == HEAL, sound, place)


class Scan:
    """The blocks in the first ``size`` bytes of segment ``number``, open as ``fd``, in the order of their positions.

    Bytes that are not a block are skipped up to the next header whose checksum is right. ``fresh``: read from the disk
    even what the system has in memory.
    """

    def __init__(
        self,
        folder: TopicFolder,
        number: int,
        fd: int,
        size: int,
        *,
        window_bytes: int = WINDOW_BYTES,
        fresh: bool = False,
    ) -> None:
        self._window = _Window(folder.ops, fd, size, window_bytes, fresh)
        self._seed = folder.seed(number)

    @property
    def unreadable(self) -> bool:
        """True if the disk refused to give some of the bytes: what they are is not known."""
        return self._window.unreadable

    def __iter__(self) -> Iterator[Block]:
        window = self._window
        at = len(SEGMENT_HEADER)
        while at < window.size:
            block = _block_at(window, at, self._seed)
            if block is not None:
                yield block
                at = block.end
                continue
            at = window.find(MAGIC, at + 1)
            if at < 0:
                return


@dataclass(frozen=True, slots=True)
class Scanned:
    """The content of a segment, as a scan found it.

    ``rotten``: something acknowledged is damaged or gone. ``readable`` is False if the disk refused to give some of
    it, so that nothing may be recorded of what is missing. ``synced`` is False if the disk refused to make durable what
    was read, so that nothing may be appended; what was not known to be durable before is left out.
    """

    table: BlockTable
    size: int
    rotten: bool
    readable: bool
    synced: bool


class _Sorting:
    """Sorts the blocks of a scan; the first ``acknowledged`` bytes are known to have been acknowledged."""

    def __init__(self, table: BlockTable, path: str, acknowledged: int) -> None:
        self.rotten = False
        self._table = table
        self._path = path
        self._acknowledged = acknowledged
        self._settled = len(SEGMENT_HEADER)  # everything before is in the table, or is lost
        self._waiting: deque[Block] = deque()  # of what may be the last commit
        self._end, self._place = self._settled, PLACE_MAX  # of the block before

    def take(self, block: Block) -> None:
        if block.place == 0:
            self._acknowledged = max(self._acknowledged, block.position)
        elif block.position != self._end and block.place < PLACE_MAX and self._place >= block.place - 1:
            self._acknowledged = max(self._acknowledged, self._end)  # its commit begins among the bad bytes
        self._end, self._place = block.end, block.place
        self._waiting.append(block)
        while self._waiting and self._waiting[0].position < self._acknowledged:
            self._settle(self._waiting.popleft())

    def _settle(self, block: Block) -> None:
        if block.position != self._settled:
            self._rot(block.position)
        if not block.sound:
            self._settled = block.position
            self._rot(block.end)
        _enter(self._table, block)
        self._settled = block.end

    def _rot(self, end: int) -> None:
        self.rotten = True
        logger.error("%s is damaged, bytes %d to %d", self._path, self._settled, end - 1)

    def finish(self, size: int, synced: bool) -> None:
        """End after the last block; ``size`` is that of the file."""
        if self._settled < self._acknowledged:
            self._rot(self._acknowledged)
        at = max(self._settled, min(self._acknowledged, size))
        while synced and self._waiting and self._waiting[0].sound and self._waiting[0].position == at:
            block = self._waiting.popleft()
            _enter(self._table, block)
            at = block.end
        self._table.length = at if size >= len(SEGMENT_HEADER) else 0


def scan_segment(folder: TopicFolder, number: int, *, acknowledged: int | None) -> Scanned:
    """Read a segment with so many acknowledged bytes, None: all. Raises OSError: it cannot be opened."""
    path = folder.segment(number)
    with folder.ops.opened(path) as fd:
        size = os.fstat(fd).st_size
        table = BlockTable(number)
        synced = acknowledged is None or _sync(folder.ops, fd, path, acknowledged, size)
        sorting = _Sorting(table, path, size if acknowledged is None else acknowledged)
        blocks = Scan(folder, number, fd, size)
        for block in blocks:
            sorting.take(block)
        sorting.finish(size, synced)
    if blocks.unreadable:
        logger.error("%s cannot be read everywhere; it is read again at the next start", path)
    return Scanned(table, size, sorting.rotten, not blocks.unreadable, synced)


def _sync(ops: FileOps, fd: int, path: str, acknowledged: int, size: int) -> bool:
    """Make the segment durable before it is read, and read the part that was not known to be durable from the disk.

    A killed process may have left pages that were never synced. And where a sync failed before, the system may go on
    showing pages that it could not write: those it drops.
    """
    try:
        ops.fdatasync(fd)
    except OSError as error:
        logger.error("%s cannot be made durable, its last writes are not used: %s", path, error)
        return False
    start = acknowledged - acknowledged % _PAGE_BYTES
    if start < size:
        ops.drop_cache(fd, start, size - start)
    return True


def owns(folder: TopicFolder, number: int) -> bool | None:
    """Look for a block of this store and topic; None if the segment has no room for one, or cannot be read."""
    with folder.ops.opened(folder.segment(number)) as fd:
        size = os.fstat(fd).st_size
        if size <= len(SEGMENT_HEADER):
            return None
        blocks = Scan(folder, number, fd, size, window_bytes=_PAGE_BYTES)
        found = any(True for _ in blocks)
        return found or (None if blocks.unreadable else False)


def _enter(table: BlockTable, block: Block) -> None:
    partition = decode_topic(block.address)
    if not block.sound:
        table.lost.append(LostOffsets(partition, block.base, block.base + block.records))
        return
    if block.start < block.base and table.start(partition) is None and not block.heal:
        table.lost.append(LostOffsets(partition, block.start, block.base))
    place = block.position, block.size, block.timestamp_min, block.timestamp_max
    table.append(BlockRow(partition, block.base, block.records, *place, block.heal))
