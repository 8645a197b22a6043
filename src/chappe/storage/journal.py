"""A producer's journal: batches that may not be stored anywhere yet, so that a restart loses and repeats none.

A directory holds an identity and files of batches, each named by the offset that it begins with. A batch is on
disk before it is published; a file goes when everything in it is stored. After a failed write the file is left as it
is and the next one begins: what a failed sync leaves in a file cannot be known. So a batch at or after the offset that
the next file begins with was never published, and is passed over. What has an offset and is in no batch yet is beside
them, see ``pending``.
"""

from __future__ import annotations

import errno
import json
import logging
import os
from pathlib import Path
from typing import Final

import msgspec

from chappe.defaults import SEGMENT_BYTES
from chappe.errors import IdentityInUse, ProtocolError, StorageError, StorageFormat, StorageFull
from chappe.log.batch import HEADER, Batch, Record
from chappe.storage.pending import Pending
from chappe.system.disk import FileLock, sync_data, sync_directory, sync_file
from chappe.system.limits import need_descriptors

logger = logging.getLogger(__name__)

FORMAT: Final = 1
ROTATE_BYTES: Final = SEGMENT_BYTES // 8


class _Identity(msgspec.Struct):
    format: int
    address: str
    topic: str


class Journal:
    """The journal in ``directory``, made if it is not there.

    Args:
        directory: Belongs to one producer; two at once are refused.
        topic: The topic published to; a journal of another topic is refused.
        address: Name of the partition if the journal is new.

    Raises:
        IdentityInUse: Another process uses the directory.
        StorageFormat: The directory holds something else, or another topic.
        StorageError: It cannot be read or written.
    """

    def __init__(self, directory: Path, topic: str, address: str) -> None:
        need_descriptors()
        self._directory = directory
        try:
            _make(directory)
            self._lock = FileLock(directory / "lock")
        except BlockingIOError:
            raise IdentityInUse(
                f"another producer uses the identity in {directory}: stop it, or choose another identity"
            ) from None
        except OSError as error:
            raise StorageError(f"cannot use {directory} as a journal: {error.strerror}") from None
        try:
            self.resumed = (directory / "identity.json").exists()  # there was a life before this one
            self.address = self._identify(topic, address)
            self.batches: list[bytes] = []  # not known to be stored, oldest first
            self.next_offset = 0
            self._files: list[tuple[int, Path]] = []  # first offset, path; the last one is open
            self._load()
            self._file = -1
            self._size = 0
            self._worn = True  # the file takes no further batch: the next one begins a new file
            self._doubtful = False  # a batch that was refused may be there, with offsets that come again
            self._rotate()
            self._pending = Pending(directory / "pending", self.next_offset)
        except OSError as error:
            self._lock.close()
            raise StorageError(f"cannot read the journal in {directory}: {error.strerror}") from None
        except BaseException:
            self._lock.close()
            raise

    @property
    def pending(self) -> list[Record]:
        """Records behind all batches that a former life gave offsets to, without topic and partition."""
        return self._pending.records

    def append(self, body: bytes, next_: int) -> None:
        """Write a batch that ends before ``next_``, with everything pending in it; returns when it is on disk.

        Raises:
            StorageFull: No room; the batch is not in the journal.
            StorageError: The disk failed otherwise; the same holds.
        """
        try:
            if self._worn:
                self._rotate()
            if os.write(self._file, body) != len(body):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            sync_data(self._file)
            self._size += len(body)
            self._worn = self._size >= ROTATE_BYTES
            self.next_offset = next_
        except OSError as error:
            self._give_up_file()
            raise self._refusal(error) from None
        except BaseException:  # Ctrl-C, perhaps before the sync: ``next_offset`` tells whether the batch counts
            self._give_up_file()
            raise
        self._pending.clear()

    def pend(self, body: bytes) -> None:
        """Keep a record, as a batch of one, over the end of this process; it is not synced.

        Raises:
            StorageFull, StorageError: As ``append``.
        """
        try:
            if self._doubtful:
                self._rotate()
            self._pending.append(body)
        except OSError as error:
            raise self._refusal(error) from None

    def trim(self, offset: int) -> None:
        """Everything before ``offset`` is stored: drop the files that hold nothing else. Never raises."""
        try:
            if offset >= self.next_offset and self._size:
                self._rotate()
            while len(self._files) > 1 and self._files[1][0] <= offset:
                self._files[0][1].unlink(missing_ok=True)
                self._files.pop(0)
        except OSError as error:  # it keeps more than it must, and is trimmed again later
            logger.info("cannot trim the journal in %s: %s", self._directory, error.strerror)

    def close(self) -> None:
        """Release the directory."""
        os.close(self._file)
        self._pending.close()
        self._lock.close()

    def _refusal(self, error: OSError) -> StorageError:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        return (StorageFull if full else StorageError)(
            f"cannot write the journal in {self._directory}: {error.strerror}"
        )

    def _identify(self, topic: str, address: str) -> str:
        path = self._directory / "identity.json"
        if not path.exists():
            temporary = path.with_suffix(".new")
            with open(temporary, "wb") as file:
                file.write(json.dumps({"format": FORMAT, "address": address, "topic": topic}).encode())
                file.flush()
                sync_file(file.fileno())
            temporary.replace(path)  # the directory itself is synced when the first file is made
            return address
        found = _read_identity(path)
        if found.topic != topic:
            raise StorageFormat(
                f"the identity in {self._directory} belongs to "
                + (f"the topic {found.topic!r}" if found.topic else "a producer without a topic of its own")
                + ": choose another identity"
            )
        return found.address

    def _load(self) -> None:
        paths = sorted(self._directory.glob("*.journal"))
        for path in paths:
            if not path.stem.isdecimal():
                raise StorageFormat(f"{path} is not a producer's journal: choose another directory or identity")
        firsts = [int(path.stem) for path in paths]
        for index, (first, path) in enumerate(zip(firsts, paths, strict=True)):
            self._files.append((first, path))
            self.next_offset = max(self.next_offset, first)
            self._load_file(path, firsts[index + 1] if index + 1 < len(firsts) else None)

    def _load_file(self, path: Path, end: int | None) -> None:
        """Take the batches of one file; those from ``end`` on were refused and came again in the next file."""
        with open(path, "rb") as file:
            sync_file(file.fileno())  # a killed process may not have come to it, and what is read here is published
            raw = file.read()
        at = 0
        while at + HEADER.size <= len(raw):
            size = int.from_bytes(raw[at + 20 : at + 24], "little")
            try:
                batch = Batch.parse(raw[at : at + size])
            except ProtocolError:
                return  # torn by a crash before it was published
            if batch.base != self.next_offset or (end is not None and batch.next > end):
                return
            self.batches.append(raw[at : at + size])
            self.next_offset = batch.next
            at += size

    def _rotate(self) -> None:
        """Begin a new file; the old one stays as it is if that fails."""
        path = self._directory / f"{self.next_offset:020d}.journal"
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        try:
            sync_directory(self._directory)
        except BaseException:
            os.close(file)
            raise
        if not self._files or self._files[-1][1] != path:  # else nothing valid is in it
            self._files.append((self.next_offset, path))
        former, self._file = self._file, file  # before it is closed: Ctrl-C may come in between
        self._size, self._worn, self._doubtful = 0, False, False
        if former >= 0:
            os.close(former)

    def _give_up_file(self) -> None:
        """What was written last failed: take it back as far as that is possible, and go on in a new file."""
        self._worn = True
        try:
            os.ftruncate(self._file, self._size)
        except OSError:
            self._doubtful = True  # the next file says that it does not count


def topic_in(directory: Path) -> str | None:
    """The topic of the journal in ``directory``; None if there is none.

    Raises:
        StorageFormat: What is there is no journal.
    """
    path = directory / "identity.json"
    return _read_identity(path).topic if path.exists() else None


def _read_identity(path: Path) -> _Identity:
    try:
        found = msgspec.convert(json.loads(path.read_bytes()), type=_Identity)
    except (msgspec.ValidationError, ValueError) as error:
        raise StorageFormat(f"{path} is not a producer's identity: {error}") from None
    if found.format > FORMAT:
        raise StorageFormat(f"{path} was written by a newer chappe: upgrade, or choose another identity")
    return found


def _make(directory: Path) -> None:
    """Make a directory that is still there after the power fails."""
    missing = [each for each in (directory, *directory.parents) if not each.exists()]
    directory.mkdir(parents=True, exist_ok=True)
    for made in missing:
        sync_directory(made.parent)
