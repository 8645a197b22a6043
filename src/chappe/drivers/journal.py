"""A producer's journal: batches that may not be stored anywhere yet, so that a restart loses and repeats none.

A directory holds an identity and files of batches, each named by the offset that it begins with. A batch is on
disk before it is published; a file goes when everything in it is stored.
"""

from __future__ import annotations

import fcntl
import json
import os
from pathlib import Path
from typing import Final

import msgspec

from chappe.defaults import SEGMENT_BYTES
from chappe.errors import IdentityInUse, ProtocolError, StorageError, StorageFormat, StorageFull
from chappe.log.batch import HEADER, Batch

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
        self._directory = directory
        try:
            directory.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(directory / "lock", os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise StorageError(f"cannot use {directory} as a journal: {error.strerror}") from None
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._lock)
            raise IdentityInUse(
                f"another producer uses the identity in {directory}: stop it, or choose another identity"
            ) from None
        try:
            self.address = self._identify(topic, address)
            self.batches: list[bytes] = []  # not known to be stored, oldest first
            self.next_offset = 0
            self._files: list[tuple[int, Path]] = []  # first offset, path; the last one is open
            self._load()
            self._file = -1
            self._size = 0
            self._rotate()
        except OSError as error:
            os.close(self._lock)
            raise StorageError(f"cannot read the journal in {directory}: {error.strerror}") from None
        except BaseException:
            os.close(self._lock)
            raise

    def append(self, body: bytes, next_: int) -> None:
        """Write a batch that ends before ``next_``; returns when it is on disk.

        Raises:
            StorageFull: No room; the batch is not in the journal.
        """
        try:
            if os.write(self._file, body) != len(body):
                raise OSError(28, "no space left on device")
            os.fdatasync(self._file)
        except OSError as error:
            os.ftruncate(self._file, self._size)
            os.lseek(self._file, self._size, os.SEEK_SET)
            raise StorageFull(f"cannot write the journal in {self._directory}: {error.strerror}") from None
        self._size += len(body)
        self.next_offset = next_
        if self._size >= ROTATE_BYTES:
            self._rotate()

    def trim(self, offset: int) -> None:
        """Everything before ``offset`` is stored: drop the files that hold nothing else."""
        if offset >= self.next_offset and self._size:
            self._rotate()
        while len(self._files) > 1 and self._files[1][0] <= offset:
            self._files.pop(0)[1].unlink(missing_ok=True)

    def close(self) -> None:
        """Release the directory."""
        os.close(self._file)
        os.close(self._lock)

    def _identify(self, topic: str, address: str) -> str:
        path = self._directory / "identity.json"
        if not path.exists():
            temporary = path.with_suffix(".new")
            with open(temporary, "wb") as file:
                file.write(json.dumps({"format": FORMAT, "address": address, "topic": topic}).encode())
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)  # the directory itself is synced when the first file is made
            return address
        try:
            found = msgspec.convert(json.loads(path.read_bytes()), type=_Identity)
        except (msgspec.ValidationError, ValueError) as error:
            raise StorageFormat(f"{path} is not a producer's identity: {error}") from None
        if found.format > FORMAT:
            raise StorageFormat(f"{path} was written by a newer chappe: upgrade, or choose another identity")
        if found.topic != topic:
            raise StorageFormat(f"the identity in {self._directory} belongs to the topic {found.topic!r}")
        return found.address

    def _load(self) -> None:
        for path in sorted(self._directory.glob("*.journal")):
            if not path.stem.isdecimal():
                raise StorageFormat(f"{path} is not a producer's journal: choose another directory or identity")
            first = int(path.stem)
            self._files.append((first, path))
            self.next_offset = max(self.next_offset, first)
            raw = path.read_bytes()
            at = 0
            while at + HEADER.size <= len(raw):
                size = int.from_bytes(raw[at + 20 : at + 24], "little")
                try:
                    batch = Batch.parse(raw[at : at + size])
                except ProtocolError:
                    break  # torn by a crash before it was published
                if batch.base != self.next_offset:
                    break
                self.batches.append(raw[at : at + size])
                self.next_offset = batch.next
                at += size

    def _rotate(self) -> None:
        path = self._directory / f"{self.next_offset:020d}.journal"
        if self._files and self._files[-1][1] == path:
            self._files.pop()  # nothing valid in it
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        if self._file >= 0:
            os.close(self._file)
        self._file, self._size = file, 0
        self._files.append((self.next_offset, path))
        directory = os.open(self._directory, os.O_RDONLY)
        os.fsync(directory)
        os.close(directory)
