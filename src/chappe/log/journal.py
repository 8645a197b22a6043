"""Distributes batches over the files of a producer's journal, and finds them again in a further life.

A journal is a sequence of files, each named by the offset that it begins with; only the newest one is written to. A
batch counts once it is synced, and is synced before the next is written. After any failure the file stays as it is
and the next batch begins a new file, since the result of a failed write or sync is unknown. So a batch at or
after the offset that the next file begins with was never published, and is skipped. The next file may exist as
soon as its creation has begun, so the former one takes no writes from then on.

Each batch lies in a frame: ``MAGIC``, and the CRC-32C of the batch's header, which starts from the partition, the file
and the position. So frames are found behind damaged bytes, and never within a record. A bad end is a write
torn by a crash. Bad bytes before a frame, or before the offset that the next file begins with, had been synced:
they are damage, listed in ``lost``.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, Protocol

from crc32c import crc32c

from chappe.data.topic import encode_topic
from chappe.defaults import SEGMENT_BYTES
from chappe.errors import ProtocolError
from chappe.log.batch import HEADER, Batch

MAGIC: Final = b"CHJ2"
FRAME: Final = struct.Struct("<4sI")  # magic, CRC-32C of the batch's header
ROTATE_BYTES: Final = SEGMENT_BYTES // 8
_MASK: Final = 0xFFFF_FFFF

Offsets = tuple[int, int]  # the first one, and the one after the last


class JournalDisk(Protocol):
    """The files of one journal. All methods raise OSError; a failed operation may have happened all the same."""

    def load(self) -> Iterable[tuple[int, bytes]]:
        """Return the first offset and the durable content of each file."""

    def begin(self, first: int) -> None:
        """Create an empty file durably, and write to it from now on. After a failure the former one stays in use."""

    def write(self, raw: bytes, at: int) -> None: ...

    def sync(self) -> None: ...

    def cut(self, size: int) -> None: ...

    def remove(self, first: int, *, damaged: bool) -> None:
        """Remove a file, or put it aside if it is ``damaged``."""


class JournalFiles:
    """The batches of one partition on ``disk``.

    Raises OSError, as every method does.

    Attributes:
        batches: Batches found that are not known to be stored, oldest first.
        lost: Offsets found of durable batches that are damaged now.
        next_offset: The offset after the last durable one.
    """

    def __init__(self, disk: JournalDisk, topic: str, address: str, rotate_bytes: int = ROTATE_BYTES) -> None:
        self._disk = disk
        self._rotate_bytes = rotate_bytes
        self._of = (topic, address)
        self.batches: list[bytes] = []
        self.lost: list[Offsets] = []
        self.next_offset = 0
        self._firsts: list[int] = []  # the first offset of each file; the last file is written to
        self._damaged: set[int] = set()  # the first offsets of files with damage
        self._load()
        self._size = self._seed = 0
        self._worn = True  # the next batch begins a new file
        self._doubtful = False  # a refused batch may be in the file, with offsets that come again
        self._rotate()

    def append(self, bodies: Sequence[bytes], next_: int) -> None:
        """Make batches before ``next_`` durable: after an OSError none counts, after others ``next_offset`` tells."""
        try:
            if self._worn:
                self._rotate()
            raw = framed(bodies, self._seed, self._size)
            self._disk.write(raw, self._size)
            self._disk.sync()
            self._size += len(raw)
            self._worn = self._size >= self._rotate_bytes
            self.next_offset = next_
        except BaseException:
            self._give_up_file()
            raise

    def settle(self) -> None:
        """Ensure that no refused batch counts, so that its offsets can be reused."""
        if self._doubtful:
            self._rotate()

    def trim(self, offset: int) -> None:
        """Remove files of records before ``offset``, which are stored; after an OSError it keeps more than it must."""
        if offset >= self.next_offset and self._size:
            self._rotate()
        while len(self._firsts) > 1 and self._firsts[1] <= offset:
            self._disk.remove(self._firsts[0], damaged=self._firsts[0] in self._damaged)
            self._firsts.pop(0)

    def _rotate(self) -> None:
        """Begin a new file. It may exist even after a failure, so the former one takes no more writes."""
        self._worn = True
        first = self.next_offset
        self._disk.begin(first)
        if self._firsts[-1:] != [first]:  # else it has no valid batch
            self._firsts.append(first)
        self._seed = seed_of(*self._of, str(first))
        self._size, self._worn, self._doubtful = 0, False, False

    def _give_up_file(self) -> None:
        """Undo a failed write as far as possible, and continue in a new file."""
        self._worn = True
        try:
            self._disk.cut(self._size)
        except OSError:
            self._doubtful = True  # the next file invalidates the batch

    def _load(self) -> None:
        files = sorted(self._disk.load())
        self._firsts = [first for first, _ in files]
        for index, (first, raw) in enumerate(files):
            if index:
                self._go_to(first, self._firsts[index - 1])
            self.next_offset = max(self.next_offset, first)
            end = self._firsts[index + 1] if index + 1 < len(files) else None
            for _, batch in batches_in(raw, seed_of(*self._of, str(first))):
                if batch.base < self.next_offset or (end is not None and batch.next > end):
                    continue  # refused, and repeated in the next file
                self._go_to(batch.base, first)
                self.batches.append(bytes(batch.raw))
                self.next_offset = batch.next

    def _go_to(self, offset: int, file: int) -> None:
        """Move to the start of a batch or file; missing offsets before it were in ``file``."""
        if offset > self.next_offset:
            self.lost.append((self.next_offset, offset))
            self._damaged.add(file)
            self.next_offset = offset


def seed_of(topic: str, address: str, file: str) -> int:
    """Return the seed of the checksums of a file's frames."""
    text = b"\0".join((encode_topic(topic), encode_topic(address), file.encode()))
    return int.from_bytes(hashlib.blake2b(text, digest_size=4).digest(), "little")


def framed(bodies: Sequence[bytes], seed: int, at: int) -> bytes:
    parts: list[bytes] = []
    for body in bodies:
        parts += FRAME.pack(MAGIC, crc32c(body[: HEADER.size], (seed + at) & _MASK)), body
        at += FRAME.size + len(body)
    return b"".join(parts)


def batches_in(raw: bytes, seed: int) -> Iterator[tuple[int, Batch]]:
    """Iterate over a file's sound batches, each with its end. Bytes between are damaged, after the last one torn."""
    at = 0
    while 0 <= at < len(raw):
        batch = _framed_at(raw, at, seed)
        if batch is None:
            at = raw.find(MAGIC, at + 1)
        else:
            at += FRAME.size + len(batch.raw)
            yield at, batch


def _framed_at(raw: bytes, at: int, seed: int) -> Batch | None:
    start = at + FRAME.size
    head = raw[start : start + HEADER.size]
    if raw[at : at + len(MAGIC)] != MAGIC or len(head) < HEADER.size:
        return None
    if FRAME.unpack_from(raw, at)[1] != crc32c(head, (seed + at) & _MASK):
        return None
    size = int.from_bytes(head[20:24], "little")
    try:
        return Batch.parse(raw[start : start + size])
    except ProtocolError:
        return None
