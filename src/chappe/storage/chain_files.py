"""The files of one chain server: its log and state in numbered files, and its vote on configurations.

Each change is one frame at the end of the newest file: ``MAGIC``, length and CRC-32C, then msgpack. One change is
written and synced before the next begins, so what a power cut leaves half is the last frame. Sound frames behind a
broken one mean damage to what was synced, and the server does not start: it may come back as one without a disk. After
a failed write the file is left as it is, and the next change begins a new one, which says behind which entry it goes
on. A state has a file of its own, which is written beside those of the changes that follow; once it is on disk the
older ones go.

The vote is one small file, replaced as a whole. The digit in ``MAGIC`` is the version of the format.
"""

from __future__ import annotations

import os
import struct
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec
from crc32c import crc32c

from chappe.defaults import MIB
from chappe.errors import Damaged, StorageFormat
from chappe.replication.agreement.core import VoteRecord
from chappe.replication.chain.log import ChainState, LoadedChain, LogChange
from chappe.replication.chain.messages import Entry
from chappe.storage.segments.files import Buffer, FileOps, file_ops, hold_identity, trying

MAGIC: Final = b"CHN1"
FRAME: Final = struct.Struct(">4sQI")  # magic, length, CRC-32C of the content
ENDING: Final = ".chain"
VOTE: Final = "vote"

SAVE_BYTES: Final = 2 * MIB  # of a state, written in one step: what other changes wait for, each of about a megabyte
ENTRIES_BYTES: Final = 1 * MIB  # of entries behind a state, encoded at a time; one entry may pass it
REMOVE_BYTES: Final = 64 * MIB  # of older files, removed in one step: removing a gigabyte takes a third of a second


class _StateFrame(msgspec.Struct):
    index: int
    term: int
    data: memoryview


class _ChangeFrame(msgspec.Struct):
    state: _StateFrame | None
    keep: int
    entries: tuple[Entry, ...]
    committed: int


_CHANGE: Final = msgspec.msgpack.Decoder(_ChangeFrame)
_MEMORY: Final = msgspec.msgpack.Decoder(VoteRecord)


class ChainFiles:
    """The files in ``directory``, which is made if it is not there, and belongs to one server.

    Args:
        directory: Of one server; two at once are refused.
        disk: A random number from 1 to 2**63 - 1: who a server without memory is from now on.

    Raises:
        IdentityInUse: Another process uses the directory.
        Damaged: Data that was on disk is missing.
        StorageFormat: The directory holds something else.
        StorageError: It cannot be read or written.
    """

    def __init__(self, directory: Path, disk: int, ops: FileOps | None = None) -> None:
        self._ops = ops or file_ops()
        self._directory = directory
        self._lock = hold_identity(self._ops, directory, "server of a chain", "stop")
        self._file = -1
        self._size = 0
        self._worn = True  # the next change begins a new file
        self._numbers: list[int] = []  # of the files, oldest first
        self._saves: _Save | None = None
        with trying(f"read the chain in {directory}", self._lock.close):
            self.loaded = self._load()
            self.memory = self._recall(disk)

    def keep(self, memory: VoteRecord) -> None:
        """Put the vote on disk. Raises StorageFull, StorageError: perhaps it is there."""
        with trying(f"write the vote in {self._directory}"):
            content = msgspec.msgpack.encode(memory)
            self._ops.replace_file(str(self._directory / VOTE), [_frame(content), content])
        self.memory = memory

    def write(self, change: LogChange) -> None:
        """Put a change on disk. Raises StorageFull, StorageError: perhaps a part of it is there."""
        if change.state is not None:
            for _ in self.save(change):
                pass
            return
        with trying(f"write the chain in {self._directory}"):
            content = msgspec.msgpack.encode(change)
            if self._worn:
                self._begin()
            self._worn = True
            self._size = self._ops.write_all(self._file, [_frame(content), content], self._size)
            self._ops.fdatasync(self._file)
            self._worn = False

    @property
    def saving(self) -> bool:
        return self._saves is not None

    def save(self, change: LogChange) -> Iterator[None]:
        """Begin to save a change with a state in place of all older files; each step of the iterator does a part.

        Later changes are written behind it meanwhile, and a later one with a state gives it up. Steps raise
        StorageFull, StorageError.
        """
        self._give_up()
        number = self._next()
        self._saves = _Save(self._path(number), deque(self._numbers), change)
        self._numbers.append(number)
        self._worn = True
        return self._in_parts(self._saves)

    def _in_parts(self, saves: _Save) -> Iterator[None]:
        while self._saves is saves:
            self.save_more()
            yield

    def save_more(self) -> None:
        """Write and sync the next part of the save; once it is complete, remove a part of the older files.

        Raises StorageFull, StorageError: the save is abandoned, and the older files remain.
        """
        saves = self._saves
        if saves is None:
            return
        if saves.complete:
            self._remove(saves)
            return
        with trying(f"write the chain in {self._directory}", self._give_up):
            saves.write(self._ops)

    def _remove(self, saves: _Save) -> None:
        """Remove a part of the oldest file, which a starting server takes for torn; the state counts."""
        if saves.older and self._ops.discard_part(self._path(saves.older[0]), REMOVE_BYTES):
            self._numbers.remove(saves.older.popleft())
        if not saves.older:
            self._saves = None

    def _give_up(self) -> None:
        saves, self._saves = self._saves, None
        if saves is not None:
            saves.give_up(self._ops)

    def forget(self) -> None:
        self.loaded = LoadedChain()

    def close(self) -> None:
        self._give_up()
        if self._file >= 0:
            self._ops.close(self._file)
            self._file = -1
        self._lock.close()

    # -- writing ----------------------------------------------------------------------------------------------

    def _path(self, number: int) -> str:
        return str(self._directory / f"{number:020d}{ENDING}")

    def _next(self) -> int:
        return (self._numbers[-1] if self._numbers else 0) + 1

    def _begin(self) -> None:
        number = self._next()
        file = self._ops.open(self._path(number), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        if self._file >= 0:
            self._ops.close(self._file)
        self._file, self._size = file, 0
        self._numbers.append(number)
        self._ops.sync_directory(str(self._directory))

    # -- reading ----------------------------------------------------------------------------------------------

    def _load(self) -> LoadedChain:
        paths = sorted(self._directory.glob("*" + ENDING))
        if not all(path.stem.isdecimal() for path in paths):
            raise StorageFormat(f"{self._directory} does not hold a server of a chain: choose another directory")
        self._numbers = [int(path.stem) for path in paths]
        for left in self._directory.glob(f"*{ENDING}.tmp"):  # left by a process that was killed during a save
            self._ops.discard(str(left))
        self._ops.sync_directory(str(self._directory))  # a killed process may not have come to it ...
        made = _ReplayedChanges()
        for path in paths:
            with self._ops.opened(str(path)) as file:
                self._ops.fsync(file)  # ... nor to this
            for content in _frames(memoryview(self._ops.read_file(str(path))), path):
                made.add(_decoded(content, path), path)
        if made.gap:
            raise Damaged(made.gap)
        return LoadedChain(made.state, tuple(made.entries), made.committed)

    def _recall(self, disk: int) -> VoteRecord:
        path = self._directory / VOTE
        if not path.exists():
            if self._numbers:
                raise Damaged(f"{path} is gone, without which this server could vote twice: remove {path.parent}")
            memory = VoteRecord(disk)
            content = msgspec.msgpack.encode(memory)
            self._ops.replace_file(str(path), [_frame(content), content])
            return memory
        found = list(_frames(memoryview(self._ops.read_file(str(path))), path))
        try:
            (only,) = found
            return _MEMORY.decode(only)
        except (ValueError, msgspec.DecodeError):
            raise Damaged(
                f"{path} is damaged, without which this server could vote twice: remove {path.parent}"
            ) from None


def _frame(content: bytes) -> bytes:
    return FRAME.pack(MAGIC, len(content), crc32c(content))


def _sound(raw: memoryview, at: int) -> memoryview | None:
    if len(raw) - at < FRAME.size:
        return None
    magic, size, check = FRAME.unpack_from(raw, at)
    content = raw[at + FRAME.size : at + FRAME.size + size]
    return content if magic == MAGIC and len(content) == size and crc32c(content) == check else None


def _frames(raw: memoryview, path: Path) -> Iterator[memoryview]:
    """Iterate over the contents of sound frames; bytes behind the last one were torn. Raises Damaged, StorageFormat."""
    if raw[:3] == MAGIC[:3] and bytes(raw[3:4]).isdigit() and bytes(raw[3:4]) > MAGIC[3:]:
        raise StorageFormat(f"{path} was written by a newer chappe: install that version, or choose another directory")
    at = 0
    while (content := _sound(raw, at)) is not None:
        yield content
        at += FRAME.size + len(content)
    behind = at + 1
    rest, at = raw[behind:].tobytes(), -1
    while (at := rest.find(MAGIC, at + 1)) >= 0:
        if _sound(raw, behind + at) is not None:
            later = behind + at
            raise Damaged(f"{path} is damaged before byte {later}: remove {path.parent}, and the server starts anew")


def _decoded(content: memoryview, path: Path) -> LogChange:
    try:
        found = _CHANGE.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise StorageFormat(f"{path} is of another version of chappe: {error}") from None
    state = None if found.state is None else ChainState(found.state.index, found.state.term, (found.state.data,))
    return LogChange(state, found.keep, found.entries, found.committed)


class _Save:
    """Writes a file of one frame in parts: a change with a state, and the entries after it."""

    def __init__(self, path: str, older: deque[int], change: LogChange) -> None:
        self.older = older  # files that it replaces
        self.complete = False  # in place
        self._path = path
        self._temporary = path + ".tmp"
        self._file = -1
        self._at = FRAME.size  # the frame's head, with the checksum, is written last
        self._check = 0
        self._content = _encoded(change)

    def write(self, ops: FileOps) -> None:
        """Write and sync a part, or complete the file and put it in place. Raises OSError."""
        if self._file < 0:
            self._file = ops.create(self._temporary)
        size = SAVE_BYTES
        while size > 0:
            part = next(self._content, None)
            if part is None:
                ops.write_all(self._file, [FRAME.pack(MAGIC, self._at - FRAME.size, self._check)], 0)
                ops.fsync(self._file)
                self._close(ops)
                ops.replace(self._temporary, self._path)
                ops.sync_directory(os.path.dirname(self._path))
                self.complete = True
                return
            self._check = crc32c(part, self._check)
            self._at = ops.write_all(self._file, [part], self._at)
            size -= len(part)
        ops.fdatasync(self._file)

    def give_up(self, ops: FileOps) -> None:
        self._close(ops)
        ops.discard(self._temporary)

    def _close(self, ops: FileOps) -> None:
        if self._file >= 0:
            ops.close(self._file)
            self._file = -1


def _encoded(change: LogChange) -> Iterator[Buffer]:
    """Encode a change with a state like ``msgspec.msgpack.encode``, in parts."""
    encode, state = msgspec.msgpack.encode, change.state
    assert state is not None
    head = b"\x84" + encode("state") + b"\x83" + encode("index") + encode(state.index)
    yield head + encode("term") + encode(state.term) + encode("data") + _bytes_head(state.size)
    yield from state.chunks
    yield encode("keep") + encode(change.keep) + encode("entries") + _array_head(len(change.entries))
    part = bytearray()
    for each in change.entries:
        part += encode(each)
        if len(part) >= ENTRIES_BYTES:
            yield part
            part = bytearray()
    yield part
    yield encode("committed") + encode(change.committed)


def _bytes_head(size: int) -> bytes:
    if size < 1 << 8:
        return struct.pack(">BB", 0xC4, size)
    return struct.pack(">BH", 0xC5, size) if size < 1 << 16 else struct.pack(">BI", 0xC6, size)


def _array_head(size: int) -> bytes:
    if size < 16:
        return bytes([0x90 | size])
    return struct.pack(">BH", 0xDC, size) if size < 1 << 16 else struct.pack(">BI", 0xDD, size)


class _ReplayedChanges:
    """The result of the changes read so far. There are many, so none of them copies what is there."""

    def __init__(self) -> None:
        self.state: ChainState | None = None
        self.entries: list[Entry] = []
        self.committed = 0
        self.gap = ""  # which change is missing: harmless if a state follows, as older files are removed one by one

    def add(self, change: LogChange, path: Path) -> None:
        if change.state is not None:
            self.state, self.entries, self.committed = change.state, list(change.entries), change.committed
            self.gap = ""
            return
        if self.gap:
            return
        base = 0 if self.state is None else self.state.index
        end = base + len(self.entries)
        if not base <= change.keep <= end:
            self.gap = f"{path} goes on behind entry {change.keep}, before it are {min(end, change.keep)}"
            return
        del self.entries[change.keep - base :]
        self.entries += change.entries
        self.committed = max(self.committed, change.committed)
