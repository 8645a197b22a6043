"""The journal of a simulated producer, on a disk that refuses or half does operations, and rots."""

from __future__ import annotations

import errno
from collections.abc import Iterable
from contextlib import suppress
from random import Random
from typing import TypeAlias

from chappe.errors import StorageFull
from chappe.log.batch import Batch, Headers
from chappe.log.journal import JournalFiles, Offsets

Gathered: TypeAlias = tuple[bytes | None, bytes | None, Headers, int]  # value, key, headers, timestamp
Backup: TypeAlias = tuple[dict[int, bytes], int]  # the files, and the offset after the last batch

ROTATE_BYTES = 1000
OF = ("topic", "address")  # the same for all: files are never mixed between journals


class _Disk:
    """The files of a journal; a ``JournalDisk``."""

    def __init__(self, rng: Random) -> None:
        self.files: dict[int, bytearray] = {}
        self.refusing = 0.0  # the share of calls that fail
        self.frozen = False  # the folder cannot be synced, nor anything in it removed
        self._rng = rng
        self._file = bytearray()

    def load(self) -> Iterable[tuple[int, bytes]]:
        return [(first, bytes(raw)) for first, raw in self.files.items()]

    def begin(self, first: int) -> None:
        refused = self.frozen or self._refuses()
        if not refused or self.frozen or self._rng.random() < 0.5:  # the file exists, perhaps not durably
            self.files[first] = bytearray()
        if refused:
            raise _full()
        self._file = self.files[first]

    def write(self, raw: bytes, at: int) -> None:
        refused = self._refuses()
        self._file[at:] = raw[: self._rng.randrange(len(raw))] if refused else raw
        if refused:
            raise _full()

    def sync(self) -> None:
        if self._refuses():
            raise _full()

    def cut(self, size: int) -> None:
        if self._refuses():
            raise _full()
        del self._file[size:]

    def remove(self, first: int, *, damaged: bool) -> None:
        if self.frozen or self._refuses():
            raise _full()
        del self.files[first]

    def _refuses(self) -> bool:
        return self.refusing > 0 and self._rng.random() < self.refusing


class Journal:
    """The durable data of one identity: batches on disk, and records that are in no batch yet.

    Args:
        rng: Its own: worlds without bad journals are what they were before there were any.
    """

    def __init__(self, rng: Random) -> None:
        self._disk = _Disk(rng)
        self._files = JournalFiles(self._disk, *OF, ROTATE_BYTES)
        self.batches: list[bytes] = []
        self.next_offset = 0
        self.pending: dict[int, Gathered] = {}  # what has an offset and is in no batch yet
        self.given: dict[int, bytes | None] = {}  # the value of each record that ever got an offset
        self.lives = 0
        self.rolled_back = False  # it was restored from a copy that is older than what was published

    @property
    def refusing(self) -> float:
        """The share of disk operations that fail."""
        return self._disk.refusing

    @refusing.setter
    def refusing(self, share: float) -> None:
        self._disk.refusing = share

    @property
    def lost(self) -> list[Offsets]:
        """Offsets that this life has found damaged."""
        return self._files.lost

    def append(self, body: bytes) -> None:
        """Make a batch durable.

        Raises:
            StorageFull: It is not in the journal; but if its owner dies next, its next life may find it there.
        """
        try:
            self._files.append([body], Batch.parse(body).next)
        except OSError:
            raise StorageFull("the disk of the simulation is full") from None
        self.batches.append(body)
        self._appended()

    def pend(self, offset: int, record: Gathered) -> None:
        """Make a record durable before its sender has the offset. Raises StorageFull."""
        self._settle()
        self.pending[offset] = record
        self.given[offset] = record[0]

    def reopened(self) -> Journal:
        """What a further life finds."""
        self.lives += 1
        refusing, self._disk.refusing = self._disk.refusing, 0.0  # its user tries until it can be opened
        self._files = JournalFiles(self._disk, *OF, ROTATE_BYTES)
        self.batches = list(self._files.batches)
        self._appended()
        self._disk.refusing = refusing
        return self

    def copy(self) -> Backup:
        """A backup."""
        return dict(self._disk.load()), self.next_offset

    def restore(self, backup: Backup) -> None:
        """Have what was copied instead of what is there."""
        self.rolled_back = self.rolled_back or backup[1] < self.next_offset
        self._disk.files = {first: bytearray(raw) for first, raw in backup[0].items()}
        self.next_offset = backup[1]
        for offset in self.pending:
            del self.given[offset]  # it went with the newer journal, and nobody has heard of it
        self.pending = {}

    def trim(self, offset: int, keep: int) -> int:
        """Trim to ``offset``: everything before is stored; with ``keep``, the disk refuses to change the folder.

        Returns the number of stored batches that remain.
        """
        self._disk.frozen = keep > 0
        with suppress(OSError):
            self._files.trim(offset)
        self._disk.frozen = False
        first = min(self._disk.files)
        self.batches = [body for body in self.batches if Batch.parse(body, check=False).base >= first]
        return sum(Batch.parse(body, check=False).next <= offset for body in self.batches)

    def _settle(self) -> None:
        try:
            self._files.settle()
        except OSError:
            raise StorageFull("the disk of the simulation is full") from None

    def _appended(self) -> None:
        """Drop pending records that are in batches now."""
        self.next_offset = self._files.next_offset
        self.pending = {offset: record for offset, record in self.pending.items() if offset >= self.next_offset}


def _full() -> OSError:
    return OSError(errno.ENOSPC, "the disk of the simulation is full")
