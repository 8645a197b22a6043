"""Reading a whole segment to find its blocks, and telling what rotted from what was never finished.

A commit begins only when the one before it is synced. So everything before the first block of the newest commit was
acknowledged, and so was what the manifest says: bad bytes there are damage. Behind it a power cut may have left any of
the pages: the blocks up to the first bad one are kept, and the rest never counted.
"""

from __future__ import annotations

import logging
import os
from collections import deque
from dataclasses import dataclass
from typing import Final

from chappe.data.topic import decode_topic
from chappe.storage.segments.blocks import PLACE_MAX, SEGMENT_HEADER, Block, Scan
from chappe.storage.segments.directory import TopicFolder
from chappe.storage.segments.files import FileOps
from chappe.storage.segments.table import Lost, Row, Table

logger: Final = logging.getLogger(__name__)
_PAGE_BYTES: Final = 4096


@dataclass(frozen=True, slots=True)
class Scanned:
    """What was found in a segment.

    ``rotten``: something acknowledged is damaged or gone. ``readable`` is False if the disk refused to give some of
    it, so that nothing may be recorded of what is missing. ``synced`` is False if the disk refused to make durable what
    was read, so that nothing may be appended; what was not known to be durable before is left out.
    """

    table: Table
    size: int
    rotten: bool
    readable: bool
    synced: bool


class _Sorting:
    """Takes the blocks of a scan; ``acknowledged`` is the number of bytes known to have been."""

    def __init__(self, table: Table, path: str, acknowledged: int) -> None:
        self.rotten = False
        self._table = table
        self._path = path
        self._acknowledged = acknowledged
        self._settled = len(SEGMENT_HEADER)  # everything before is in the table, or is lost
        self._waiting: deque[Block] = deque()  # of what may be the last commit
        self._end, self._place = self._settled, PLACE_MAX  # of the block before

    def take(self, block: Block) -> None:
        """The next block whose header is right."""
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
        """That was the last one; ``size`` is that of the file."""
        if self._settled < self._acknowledged:
            self._rot(self._acknowledged)
        at = max(self._settled, min(self._acknowledged, size))
        while synced and self._waiting and self._waiting[0].sound and self._waiting[0].position == at:
            block = self._waiting.popleft()
            _enter(self._table, block)
            at = block.end
        self._table.length = at if size >= len(SEGMENT_HEADER) else 0


def scan_segment(folder: TopicFolder, number: int, *, acknowledged: int | None) -> Scanned:
    """Read a segment of which so many bytes are known to have been acknowledged; None if all of it was.

    Raises:
        OSError: It cannot be opened.
    """
    path = folder.segment(number)
    with folder.ops.opened(path) as fd:
        size = os.fstat(fd).st_size
        table = Table(number)
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
    """Make durable what is about to be read, and have what was not known to be come from the disk.

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
    """Whether a segment has a block of this store and topic; None if it has no room for one, or cannot be read."""
    with folder.ops.opened(folder.segment(number)) as fd:
        size = os.fstat(fd).st_size
        if size <= len(SEGMENT_HEADER):
            return None
        blocks = Scan(folder, number, fd, size, window_bytes=_PAGE_BYTES)
        found = any(True for _ in blocks)
        return found or (None if blocks.unreadable else False)


def _enter(table: Table, block: Block) -> None:
    partition = decode_topic(block.address)
    if not block.sound:
        table.lost.append(Lost(partition, block.base, block.base + block.records))
        return
    if block.start < block.base and table.start(partition) is None and not block.heal:
        table.lost.append(Lost(partition, block.start, block.base))
    place = block.position, block.size, block.timestamp_min, block.timestamp_max
    table.append(Row(partition, block.base, block.records, *place, block.heal))
