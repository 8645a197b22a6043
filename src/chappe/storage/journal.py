"""A producer's journal: batches that may not be stored anywhere yet, so that a restart loses and repeats none.

A directory holds an identity and files of batches, each named by the offset that it begins with. A batch is on
disk before it is published; a file goes when everything in it is stored. After a failed write the file is left as it
is and the next one begins: what a failed sync leaves in a file cannot be known. So a batch at or after the offset that
the next file begins with was never published, and is passed over.

What has an offset and is in no batch yet is in the file ``pending``, for a killed process to find it again. Each record
is handed to the operating system as a batch of one, without a sync, before its sender gets the offset. So they survive
whatever ends the process; what ends the machine may take them. A batch that reaches the journal empties the file.
Records of a sealed topic are sealed there, too: those that are found become batches of the journal as they are.

An identity has one journal for its producer's topic, and one for each further topic, in folders below it.
"""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from chappe.data.topic import encode_topic
from chappe.defaults import SEGMENT_BYTES
from chappe.errors import ProtocolError, StorageError, StorageFormat, StorageFull
from chappe.log.batch import HEADER, Batch, Record
from chappe.storage.segments.files import FileOps, check_format, hold_identity, trying
from chappe.system.disk import open_private, sync_data, sync_directory, sync_file
from chappe.system.limits import need_descriptors

logger = logging.getLogger(__name__)

FORMAT: Final = 1
ROTATE_BYTES: Final = SEGMENT_BYTES // 8
NO_TOPIC: Final = ""  # of the identity of a producer that has no topic of its own


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
        self._lock = hold_identity(FileOps(), directory, "producer", "stop")
        with trying(f"read the journal in {directory}", self._lock.close):
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
            if self._pending.sealed:
                self._take_sealed(self._pending.sealed)

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
                raise _no_room()
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

        Raises StorageFull, StorageError: as ``append``.
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

    def _take_sealed(self, batches: list[bytes]) -> None:
        """Batches of one record each, which a former life has sealed and not published."""
        if os.write(self._file, b"".join(batches)) != sum(map(len, batches)):
            raise _no_room()
        sync_data(self._file)
        self._size = sum(map(len, batches))
        self.next_offset += len(batches)
        self.batches += batches
        self._pending.clear()

    def _refusal(self, error: OSError) -> StorageError:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        return (StorageFull if full else StorageError)(
            f"cannot write the journal in {self._directory}: {error.strerror}"
        )

    def _identify(self, topic: str, address: str) -> str:
        path = self._directory / "identity.json"
        if not path.exists():
            identity = {"format": FORMAT, "address": address, "topic": topic}
            FileOps().replace_file(str(path), [json.dumps(identity).encode()])
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
        for batch in _sound_batches(raw):  # what follows was torn by a crash before it was published
            if batch.base != self.next_offset or (end is not None and batch.next > end):
                return
            self.batches.append(bytes(batch.raw))
            self.next_offset = batch.next

    def _rotate(self) -> None:
        """Begin a new file; the old one stays as it is if that fails."""
        path = self._directory / f"{self.next_offset:020d}.journal"
        file = open_private(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
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


class Pending:
    """What has an offset and is in no batch yet: a file, made if it is not there. All of it raises OSError.

    Reading passes over what the journal, which ends at ``next_offset``, has; and ends at the first entry that is torn
    or does not go on where the journal and the entries before it end.
    """

    def __init__(self, path: Path, next_offset: int) -> None:
        self.records: list[Record] = []  # found, in order from ``next_offset`` on ...
        self.sealed: list[bytes] = []  # ... or, if the first of them is sealed, as batches
        self._file = open_private(path, os.O_RDWR | os.O_CREAT)
        try:
            self._size = self._load(path.read_bytes(), next_offset)
            os.ftruncate(self._file, self._size)
            sync_file(self._file)  # else after a power cut what was cut off could go on where new records end
        except BaseException:
            os.close(self._file)
            raise

    def append(self, body: bytes) -> None:
        """Add a batch of one record."""
        written = os.pwrite(self._file, body, self._size)
        if written != len(body):  # the next one overwrites it
            raise _no_room()
        self._size += written

    def clear(self) -> None:
        """Everything is in the journal: the next record overwrites the first one.

        What stays behind the new ones is in the journal, too. Cutting it off would have each sync of the journal write
        this file as well, where data is ordered before metadata.
        """
        self._size = 0

    def close(self) -> None:
        """Release the file."""
        os.close(self._file)

    def _load(self, raw: bytes, next_offset: int) -> int:
        """Take the records that go on at ``next_offset``; returns where they end."""
        at = end = 0
        for batch in _sound_batches(raw):
            at += len(batch.raw)
            if batch.base < next_offset:
                continue  # the journal has it
            if batch.base != next_offset or batch.count != 1:
                break
            if batch.sealed is None:
                if self.sealed:
                    break
                self.records += batch.records("", "")
            elif self.records:
                break
            else:
                self.sealed.append(bytes(batch.raw))
            next_offset += 1
            end = at
        return end


class Journals:
    """In ``directory``; all name the same partition address.

    Raises:
        As ``Journal``.
    """

    def __init__(self, directory: Path, topic: str | None, address: str) -> None:
        self._further = directory / "topics"
        self._first = Journal(directory, NO_TOPIC if topic is None else topic, address)
        self.address = self._first.address
        self.opened: dict[str, Journal] = {} if topic is None else {topic: self._first}
        try:
            for folder in sorted(self._further.iterdir()) if self._further.exists() else ():  # in a fixed order
                former = topic_in(folder)
                if former is not None:
                    self.open(former)
        except BaseException as error:
            self.close()
            if isinstance(error, OSError):
                raise StorageError(f"cannot read the journals in {self._further}: {error.strerror}") from None
            raise

    def open(self, topic: str) -> Journal:
        """The journal of one more topic. Raises as ``Journal``."""
        made = Journal(self._further / hashlib.sha256(encode_topic(topic)).hexdigest()[:32], topic, self.address)
        if made.address != self.address:
            made.close()
            raise StorageFormat(f"the journals in {self._further} are not of the identity beside them: remove them")
        self.opened[topic] = made
        return made

    def close(self) -> None:
        """Release all."""
        for each in {id(each): each for each in (*self.opened.values(), self._first)}.values():
            each.close()


def topic_in(directory: Path) -> str | None:
    """The topic of the journal in ``directory``; None if there is none.

    Raises StorageFormat: what is there is no journal.
    """
    path = directory / "identity.json"
    return _read_identity(path).topic if path.exists() else None


def _read_identity(path: Path) -> _Identity:
    try:
        found = json.loads(path.read_bytes())
        check_format(found, FORMAT, path)
        return msgspec.convert(found, type=_Identity)
    except (msgspec.ValidationError, ValueError) as error:
        raise StorageFormat(f"{path} is not a producer's identity: {error}") from None


def _sound_batches(raw: bytes) -> Iterator[Batch]:
    """The batches in a file, up to the first that is not whole."""
    at = 0
    while at + HEADER.size <= len(raw):
        size = int.from_bytes(raw[at + 20 : at + 24], "little")
        try:
            batch = Batch.parse(raw[at : at + size])
        except ProtocolError:
            return
        yield batch
        at += size


def _no_room() -> OSError:
    return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
