"""A producer's journal: batches that may not be stored anywhere yet, so that a restart loses and repeats none.

A directory holds an identity, twice, and files of batches (``log.journal``). A batch is on disk before it is published;
a file goes when everything in it is stored.

What has an offset and is in no batch yet is in the file ``pending``, for a killed process to find it again. Each record
is handed to the operating system as a batch of one, without a sync, before its sender gets the offset. So they survive
whatever ends the process; what ends the machine may take them. A batch that reaches the journal empties the file.
Records of a sealed topic are sealed there, too: those that are found become batches of the journal as they are.

An identity has one journal for its producer's topic, and one for each further topic, in folders below it.
"""

from __future__ import annotations

import errno
import hashlib
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from chappe.data.topic import encode_topic
from chappe.errors import StorageError, StorageFormat
from chappe.log.batch import Batch, Record
from chappe.log.journal import ROTATE_BYTES, JournalFiles, Offsets, batches_in, framed, seed_of
from chappe.storage.segments.files import FileOps, file_ops, hold_identity, storage_error, trying
from chappe.storage.small_files import encode_small, load_twice
from chappe.system.limits import need_descriptors

logger = logging.getLogger(__name__)

IDENTITY: Final = ("identity.json", "identity.copy.json")
PENDING: Final = "pending"
ENDING: Final = ".journal"
NO_TOPIC: Final = ""  # of the identity of a producer that has no topic of its own
ADVICE: Final = (
    "The journal may have records that no store has, so nothing was changed: restore this directory from a backup, or "
    "move it elsewhere, keep it, and begin a new partition"
)


class _JournalIdentity(msgspec.Struct):
    address: str
    topic: str


class _Disk:
    """The files of the journal in ``directory``; a ``JournalDisk``."""

    def __init__(self, directory: Path, ops: FileOps) -> None:
        self._directory = directory
        self._ops = ops
        self._file = -1

    def load(self) -> Iterator[tuple[int, bytes]]:
        paths = sorted(self._directory.glob("*" + ENDING))
        for path in paths:
            if not path.stem.isdecimal():
                raise StorageFormat(f"{path} is not a producer's journal: choose another directory or identity")
        for path in paths:
            with self._ops.opened(str(path)) as file:
                self._ops.fsync(file)  # a killed process may not have synced it, and loaded batches are published
            yield int(path.stem), self._ops.read_file(str(path))

    def begin(self, first: int) -> None:
        file = self._ops.open(self._path(first), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        try:
            self._ops.sync_directory(str(self._directory))
        except BaseException:
            self._ops.close(file)
            raise
        former, self._file = self._file, file  # before closing it: Ctrl-C may come in between
        if former >= 0:
            self._ops.close(former)

    def write(self, raw: bytes, at: int) -> None:
        self._ops.write_all(self._file, [raw], at)

    def sync(self) -> None:
        self._ops.fdatasync(self._file)

    def cut(self, size: int) -> None:
        self._ops.ftruncate(self._file, size)

    def remove(self, first: int, *, damaged: bool) -> None:
        path = self._path(first)
        if damaged:
            self._ops.replace(path, path + ".damaged")
            logger.warning("%s had damaged records; it is kept as %s.damaged", path, path)
        elif os.path.exists(path):
            self._ops.unlink(path)

    def close(self) -> None:
        if self._file >= 0:
            self._ops.close(self._file)
            self._file = -1

    def _path(self, first: int) -> str:
        return str(self._directory / f"{first:020d}{ENDING}")


class Journal:
    """The journal in ``directory``, made if it is not there.

    Args:
        directory: Belongs to one producer; two at once are refused.
        topic: The topic published to; a journal of another topic is refused.
        address: Name of the partition if the journal is new.

    Raises:
        IdentityInUse: Another process uses the directory.
        StorageFormat: The directory holds something else, or another topic, or its identity is damaged.
        StorageError: It cannot be read or written.
    """

    def __init__(self, directory: Path, topic: str, address: str) -> None:
        need_descriptors()
        self._ops = file_ops()
        self._directory = directory
        self._disk = _Disk(directory, self._ops)
        self._lock = hold_identity(self._ops, directory, "producer", "stop")
        with trying(f"read the journal in {directory}", self._release):
            found = read_identity(directory, self._ops)
            self.resumed = found is not None  # True if the journal existed before
            self.address = self._identify(found, topic, address)
            self._files = JournalFiles(self._disk, topic, self.address, ROTATE_BYTES)
            self.batches = self._files.batches  # batches not known to be stored, oldest first
            self._pending = PendingFile(
                directory / PENDING, seed_of(topic, self.address, PENDING), self.next_offset, self._ops
            )
            if self._pending.bodies and not self._pending.plain:
                self._files.append(self._pending.bodies, self._pending.next_offset)
                self.batches += self._pending.bodies
                self._pending.clear()

    @property
    def next_offset(self) -> int:
        return self._files.next_offset

    @property
    def lost(self) -> list[Offsets]:
        """Offsets of a former life's records that are damaged now."""
        return [*self._files.lost, *self._pending.lost]

    @property
    def pending(self) -> list[Record]:
        """Records behind all batches that a former life gave offsets to, without topic and partition."""
        if not self._pending.plain:
            return []  # they are in batches now
        return [record for body in self._pending.bodies for record in Batch.parse(body, check=False).records("", "")]

    def append(self, body: bytes, next_: int) -> None:
        """Write a batch that ends before ``next_``, with everything pending in it; returns when it is on disk.

        Raises:
            StorageFull: No room; the batch is not in the journal.
            StorageError: The disk failed otherwise; the same holds.
        """
        try:
            self._files.append([body], next_)
        except OSError as error:
            raise storage_error(error, f"write the journal in {self._directory}") from None
        self._pending.clear()

    def pend(self, body: bytes) -> None:
        """Keep a record, as a batch of one, beyond this process; not synced. Raises StorageFull, StorageError."""
        try:
            self._files.settle()
            self._pending.append(body)
        except OSError as error:
            raise storage_error(error, f"write the journal in {self._directory}") from None

    def trim(self, offset: int) -> None:
        """Drop the files with only records before ``offset``, which are stored. Never raises."""
        try:
            self._files.trim(offset)
        except OSError as error:  # it keeps more than it must, and is trimmed again later
            logger.info("cannot trim the journal in %s: %s", self._directory, error.strerror)

    def close(self) -> None:
        self._pending.close()
        self._release()

    def _release(self) -> None:
        self._disk.close()
        self._lock.close()

    def _identify(self, found: _JournalIdentity | None, topic: str, address: str) -> str:
        if found is None:
            content = encode_small({"address": address, "topic": topic})
            for name in IDENTITY:
                self._ops.replace_file(str(self._directory / name), [content])
            return address
        if found.topic != topic:
            raise StorageFormat(
                f"the identity in {self._directory} belongs to "
                + (f"the topic {found.topic!r}" if found.topic else "a producer without a topic of its own")
                + ": choose another identity"
            )
        return found.address


class PendingFile:
    """The file of records that have an offset and are in no batch yet; made if needed. All of it raises OSError.

    Reading skips records before ``next_offset``, where the journal ends, and damaged ones. It ends at a
    record that is sealed behind one that is not, or the other way round.

    Attributes:
        bodies: The records found, each a batch of one.
        plain: True if none is sealed and all are consecutive from ``next_offset`` on.
        lost: Offsets that were assigned, but whose records are missing.
        next_offset: The offset after the last one found.
    """

    def __init__(self, path: Path, seed: int, next_offset: int, ops: FileOps) -> None:
        self.bodies: list[bytes] = []
        self.plain = True
        self.lost: list[Offsets] = []
        self.next_offset = next_offset
        self._seed = seed
        self._ops = ops
        self._file = ops.open(str(path), os.O_RDWR | os.O_CREAT)
        try:
            self._size = self._load(ops.read_file(str(path)))
            ops.ftruncate(self._file, self._size)
            ops.fsync(self._file)  # else after a power cut what was cut off could go on where new records end
        except BaseException:
            ops.close(self._file)
            raise

    def append(self, body: bytes) -> None:
        raw = framed([body], self._seed, self._size)
        written = self._ops.pwritev(self._file, [raw], self._size)
        if written != len(raw):  # the next one overwrites it
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._size += written

    def clear(self) -> None:
        """Let the next record overwrite the first one, as everything is in the journal.

        The bytes behind the new ones are in the journal, too. Cutting them off would make each sync of the journal
        write this file as well, where data is ordered before metadata.
        """
        self._size = 0

    def close(self) -> None:
        self._ops.close(self._file)

    def _load(self, raw: bytes) -> int:
        """Load the records that the journal lacks; return where they end."""
        end, sealed = 0, False
        for at, batch in batches_in(raw, self._seed):
            if batch.base < self.next_offset or batch.count != 1:
                continue
            if batch.base > self.next_offset:
                self._lose(self.next_offset, batch.base)
            sealed = batch.sealed is not None if not self.bodies else sealed
            if sealed is (batch.sealed is not None):
                self.bodies.append(bytes(batch.raw))
            else:
                self._lose(batch.base, batch.next)
            self.next_offset = batch.next
            end = at
        self.plain = not sealed and not self.lost
        return end

    def _lose(self, first: int, next_: int) -> None:
        if self.lost and self.lost[-1][1] == first:
            first = self.lost.pop()[0]
        self.lost.append((first, next_))


class Journals:
    """The journals in ``directory``; all name the same partition address. Raises the errors of ``Journal``."""

    def __init__(self, directory: Path, topic: str | None, address: str) -> None:
        self._further = directory / "topics"
        self._first = Journal(directory, NO_TOPIC if topic is None else topic, address)
        self.address = self._first.address
        self.opened: dict[str, Journal] = {} if topic is None else {topic: self._first}
        try:
            for folder in sorted(self._further.iterdir()) if self._further.exists() else ():  # in a fixed order
                former = read_identity(folder, file_ops())
                if former is not None:
                    self.open(former.topic)
        except BaseException as error:
            self.close()
            if isinstance(error, OSError):
                raise StorageError(f"cannot read the journals in {self._further}: {error.strerror}") from None
            raise

    def open(self, topic: str) -> Journal:
        """Open the journal of one more topic. Raises as ``Journal``."""
        made = Journal(self._further / hashlib.sha256(encode_topic(topic)).hexdigest()[:32], topic, self.address)
        if made.address != self.address:
            made.close()
            raise StorageFormat(
                f"the journal of topic {topic!r} in {self._further} is of partition {made.address}, and the identity "
                f"beside it of {self.address}: one of them was changed or copied here. {ADVICE}"
            )
        self.opened[topic] = made
        return made

    def close(self) -> None:
        for each in {id(each): each for each in (*self.opened.values(), self._first)}.values():
            each.close()


def read_identity(directory: Path, ops: FileOps) -> _JournalIdentity | None:
    """Return a journal's identity, None without one. Raises StorageFormat: not a journal, or no sound identity."""
    first, copy = (directory / name for name in IDENTITY)
    try:
        found = load_twice(ops, (first, copy))
        if found is not None:
            return found.fields(_JournalIdentity)
    except ValueError as error:
        raise StorageFormat(f"{first} is not a producer's identity, or is damaged: {error}. {ADVICE}") from None
    beside = directory.iterdir() if directory.is_dir() else ()
    if any(each.name == PENDING or (each.suffix == ENDING and each.stem.isdecimal()) for each in beside):
        raise StorageFormat(f"{first} is gone, and a journal is beside where it was. {ADVICE}")
    return None
