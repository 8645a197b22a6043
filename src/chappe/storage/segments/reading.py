"""Reading batches of a partition, and finding out what is the matter with those that cannot be read.

Damage is what was read twice with a wrong checksum. What the disk refuses to give may come back: it is a hole for now,
which other stores may fill, but nothing on disk says so, and it is tried again (``scrub``).
"""

from __future__ import annotations

import errno
import logging
import struct
from collections import deque
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Final

from chappe.defaults import ADDRESS_BYTES_MAX, SUSPECTS_MAX
from chappe.errors import Damaged
from chappe.log.batch import CRC_AT, Batch
from chappe.storage.segments.blocks import HEADER_BYTES, body_is_sound, header_is_sound
from chappe.storage.segments.files import FileOps, encode_name, storage_error
from chappe.storage.segments.index import BlockPiece
from chappe.storage.segments.index_files import Handles
from chappe.storage.segments.scrub import Suspicion
from chappe.storage.segments.slots import Extent, Slot
from chappe.storage.segments.topics import TopicIndex

logger: Final = logging.getLogger(__name__)
_BASE_COUNT: Final = struct.Struct("<QI")  # of a batch, behind its checksum
_GONE: Final = frozenset({errno.EIO, errno.ENOENT})  # what cannot be read; other errors are those of the process


class SegmentReader:
    """Belongs to the thread that reads; ``touch`` is told of partitions that changed."""

    def __init__(self, ops: FileOps, touch: Callable[[TopicIndex, list[Slot]], None]) -> None:
        self.handles = Handles(ops)
        self._ops = ops
        self._touch = touch
        self._suspects: deque[Iterator[tuple[TopicIndex, Slot, Extent, BlockPiece]]] = deque()

    def bodies(self, slot: Slot, index: TopicIndex, offset: int, bytes_max: int) -> Iterator[tuple[bytes, int]]:
        """Batches from ``offset`` on up to the first hole, with the offsets behind them.

        Raises StorageError: the process cannot read, for want of descriptors and the like.
        """
        left = bytes_max
        extent = slot.find(offset)
        while extent is not None:
            try:
                for piece in index.blocks(extent.segment).pieces(slot.name, offset):
                    if left < bytes_max and piece.size - HEADER_BYTES - ADDRESS_BYTES_MAX > left:
                        return  # certainly too large to be wanted
                    body = self._read(slot, index, extent, piece)
                    if body is None:
                        return
                    offset = min(piece.next, extent.next)
                    yield body, offset
                    left -= len(body)
                    if offset == extent.next:
                        break
                else:
                    raise Damaged("its index lacks offsets that it had")
            except (OSError, Damaged) as error:
                if isinstance(error, OSError) and error.errno not in _GONE:
                    raise storage_error(error, f"read topic {slot.topic!r}") from error
                logger.error("topic %r: segment %d cannot be read: %s", slot.topic, extent.segment, error)
                index.set_aside(slot, extent._replace(first=max(extent.first, offset)), None)
                self._touch(index, [slot])
                return
            extent = slot.find(offset) if offset < slot.next else None

    def end_of(self, slot: Slot, index: TopicIndex, offset: int, bytes_max: int) -> int:
        """Return the end of a read from ``offset`` on, if its blocks are sound; 0: not known."""
        size = 0
        frame = HEADER_BYTES + len(encode_name(slot.name))
        try:
            while (extent := slot.find(offset)) is not None:
                for piece in index.blocks(extent.segment).pieces(slot.name, offset):
                    more = piece.size - frame
                    if size and size + more > bytes_max:
                        return offset
                    size += more
                    offset = min(piece.next, extent.next)
                    if size >= bytes_max:
                        return offset
                    if offset == extent.next:
                        break
                else:
                    return 0
        except (OSError, Damaged):  # the reader finds out
            return 0
        return offset if size else 0

    def _read(self, slot: Slot, index: TopicIndex, extent: Extent, piece: BlockPiece) -> bytes | None:
        """Return the batch of a piece; None if that is a hole from now on. Raises OSError if the file cannot be had."""
        try:
            return self._body(slot, index, extent, piece)
        except Damaged as error:
            logger.error("%s", error)
            index.lose(slot, extent, piece)
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            logger.error("topic %r: segment %d cannot be read: %s", slot.topic, extent.segment, error)
            index.set_aside(slot, extent, piece)
        self._touch(index, [slot])
        return None

    def _body(self, slot: Slot, index: TopicIndex, extent: Extent, piece: BlockPiece) -> bytes:
        """Return a piece's batch, clipped. Raises Damaged: read twice, checksum wrong; OSError: unreadable now."""
        fd = self.handles.fd(index.folder, extent.segment)
        seed = index.folder.seed(extent.segment)
        body = self._sound_body(fd, slot, piece, seed)
        if body is None:
            self._ops.drop_cache(fd, piece.position, piece.size)
            body = self._sound_body(fd, slot, piece, seed)
        if body is None:
            raise Damaged(
                f"topic {slot.topic!r}, partition {slot.name!r}: offsets {piece.first} to {piece.next - 1} are damaged "
                f"in segment {extent.segment} at byte {piece.position}"
            )
        first, next_ = max(piece.first, extent.first), min(piece.next, extent.next)
        base, count = _BASE_COUNT.unpack_from(body, CRC_AT)
        if base == first and base + count == next_:
            return body
        return Batch.parse(body, check=False).slice(first, next_)

    def _sound_body(self, fd: int, slot: Slot, piece: BlockPiece, seed: int) -> bytes | None:
        """Return a batch as it is in the file; None if that differs from what was written."""
        head_size = HEADER_BYTES + len(encode_name(slot.name))
        head = self._ops.read_some(fd, head_size, piece.position)
        body = self._ops.read_some(fd, piece.size - head_size, piece.position + head_size)
        whole = len(body) == piece.size - head_size and header_is_sound(head, body, seed, piece.position)
        return body if whole and body_is_sound(body) else None

    # -- what a scrub suspects --------------------------------------------------------------------------

    @property
    def suspicious(self) -> bool:
        return bool(self._suspects)

    def suspect(self, index: TopicIndex, suspicion: Suspicion) -> None:
        """Note a segment's bytes that look wrong; ``examine`` looks at them."""
        if suspicion.gone:
            self._gone(index, suspicion.segment)
            return
        parts = index.parts_within(suspicion.segment, suspicion.first, suspicion.end)
        self._suspects.append((index, *part) for part in parts)

    def _gone(self, index: TopicIndex, number: int) -> None:
        self.handles.forget(index.folder.path, number)  # as long as it is open it looks sound
        for slot in index.slots.values():
            extents = [each for each in slot.all() if each.segment == number]
            for extent in extents:
                index.set_aside(slot, extent, None)
            if extents:
                self._touch(index, [slot])

    def examine(self) -> None:
        """Read some of the suspected bytes: damage becomes a hole."""
        left = SUSPECTS_MAX
        while self._suspects and left > 0:
            try:
                parts = list(islice(self._suspects[0], left))
            except (OSError, Damaged) as error:
                logger.error("a segment that looks damaged cannot be examined: %s", error)
                parts = []
            if len(parts) < left:
                self._suspects.popleft()
            left -= len(parts)
            for index, slot, extent, piece in parts:
                try:
                    self._read(slot, index, extent, piece)
                except OSError as error:
                    logger.error("topic %r: segment %d cannot be examined: %s", slot.topic, extent.segment, error)
