"""``StagedFiles``: the port for staged rows on disk.

::

    staged/                          below the store's directory; made for the first sink
        sinks.sqlite                 sinks, their fenced runs, the ends of their partitions, and intents
        <sink>-<batch>-<task>-<attempt>.rows     the pieces of one attempt, one behind the other

A file begins with ``CHR1``, the length of its names, their checksum, and the names as msgpack: sink, run, batch, task,
attempt. A piece is ``CP``, the length of its topic, number, count of records, size, checksum of all that and the topic
(u16, u32, u32, u32, u32, little endian); the topic; and the batch, which carries its own checksum.

What a process has written survives its death. Only a commit makes it survive the machine's: files that were there
when the store opened are therefore synced, and then read from the disk and checked, before they are committed. After a
sync that failed the system may show what the disk never got, so what was to be synced is written to another file.
"""

from __future__ import annotations

import hashlib
import logging
import os
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec
from crc32c import crc32c

from chappe.data.topic import decode_topic, encode_topic
from chappe.defaults import BATCH_BYTES_MAX, DISK_RESERVE_BYTES
from chappe.errors import Damaged, ProtocolError, StagedRowsMissing, StorageFormat, StorageFull
from chappe.log.batch import Batch
from chappe.log.exactly_once.staged import (
    CommitBatch,
    Discard,
    Forget,
    Intent,
    KeptSinks,
    PieceAt,
    Remember,
    StagedAttempt,
    StagePiece,
    Step,
    check_pieces,
    decide,
)
from chappe.storage.segments.aside import Aside
from chappe.storage.segments.directory import ASIDE
from chappe.storage.segments.files import FileOps, file_ops, storage_error, trying
from chappe.storage.sink_database import SinkDatabase

logger: Final = logging.getLogger(__name__)

FOLDER: Final = "staged"
SUFFIX: Final = ".rows"
_FILE: Final = struct.Struct("<4sII")
_PIECE: Final = struct.Struct("<2sHIII")
_CRC: Final = struct.Struct("<I")
_MAGIC: Final = b"CHR1"
_PIECE_MAGIC: Final = b"CP"
NAMES_BYTES_MAX: Final = 4096


@dataclass(slots=True)
class _Piece:
    topic: str
    position: int  # of the batch
    size: int
    count: int


@dataclass(slots=True)
class _AttemptFile:
    """The file of one attempt; ``trusted`` if this process wrote all of it, ``doubtful`` since a sync of it failed."""

    path: str
    length: int = 0
    pieces: list[_Piece] = field(default_factory=list)
    trusted: bool = True
    doubtful: bool = False


class StagedFiles:
    """Staged rows and sinks below the directory of a store, which the caller has locked; see ``StagedStorage``.
    ``database``: makes what remembers the sinks. Raises StorageFormat: it was written by a newer chappe; StorageError:
    it cannot be read.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        ops: FileOps | None = None,
        database: Callable[[str, FileOps], SinkDatabase] = SinkDatabase,
    ) -> None:
        self.path = os.path.join(os.path.abspath(directory), FOLDER)
        self._ops = ops or file_ops()
        self._files: dict[StagedAttempt, _AttemptFile] = {}
        self._doubtful: set[str] = set()  # sinks with an intent that was refused, and may be on disk all the same
        self._sinks = database(self.path, self._ops)
        self._aside = Aside(self._ops, os.path.join(os.path.abspath(directory), ASIDE))
        with trying(f"open the staged rows in {self.path}", self.close):
            if os.path.isdir(self.path):
                self._sinks.open()
                self._scan()

    def close(self) -> None:
        self._sinks.close()

    def kept(self) -> KeptSinks:
        attempts = tuple(
            (attempt, tuple(dict.fromkeys(piece.topic for piece in file.pieces)))
            for attempt, file in self._files.items()
        )
        return KeptSinks(tuple(self._sinks.states()), attempts)

    def carry_out(self, job: Step) -> None:
        match job:
            case Remember(state):
                self._sinks.remember(state)
            case Forget(sinks):
                self._sinks.forget(sinks)
            case StagePiece():
                self._stage(job)
            case Discard(attempts):
                self._discard(attempts)

    def _stage(self, piece: StagePiece) -> None:
        file = self._files.get(piece.attempt)
        have = 0 if file is None else len(file.pieces)
        if piece.number < have:
            return
        if piece.number > have:
            raise StagedRowsMissing(
                f"piece {have} of task {piece.attempt.task}, attempt {piece.attempt.attempt} is not here; "
                "run the task again"
            )
        self._need(len(piece.body))
        with trying(f"stage rows in {self.path}"):
            if file is None:
                self._ops.make_directory(self.path)
                file = _AttemptFile(self._path_of(piece.attempt))
            self._append(file, piece)
        self._files[piece.attempt] = file

    def _append(self, file: _AttemptFile, piece: StagePiece) -> None:
        raw_topic = encode_topic(piece.topic)
        head = _PIECE.pack(_PIECE_MAGIC, len(raw_topic), piece.number, piece.count, len(piece.body)) + raw_topic
        start = b"" if file.length else _encode_names(piece.attempt)
        buffers = [start, head[: _PIECE.size], _CRC.pack(crc32c(head)), raw_topic, piece.body]
        new = not file.length
        try:
            with self._ops.opened(file.path, os.O_WRONLY | (os.O_CREAT | os.O_TRUNC if new else 0)) as fd:
                end = self._ops.write_all(fd, buffers, file.length)
        except OSError:
            if new:
                self._ops.discard(file.path)
            raise
        file.pieces.append(_Piece(piece.topic, end - len(piece.body), len(piece.body), piece.count))
        file.length = end

    def _discard(self, attempts: Sequence[StagedAttempt]) -> None:
        for sink in self._doubtful.intersection(attempt.sink for attempt in attempts):
            # its rows must not go before it: the next start would find a commit without rows
            self._sinks.take_back(sink)
            self._doubtful.discard(sink)
        for attempt in attempts:
            file = self._files.pop(attempt, None)
            if file is not None:
                self._ops.discard(file.path)

    def prepare(self, commit: CommitBatch) -> Intent:
        pieces: list[PieceAt] = []
        files: list[_AttemptFile] = []
        for named in commit.attempts:
            key = StagedAttempt(commit.sink, commit.run, commit.batch, named[0], named[1])
            file = self._files.get(key)
            check_pieces(commit, named, [each.count for each in file.pieces] if file else None)
            if file is not None:
                files.append(file)
                pieces += _places(key, file)
        self._need(sum(piece.size for piece in pieces))
        intent = decide(commit, pieces)
        with trying(f"make staged rows durable in {self.path}"):
            for file in files:
                self._make_durable(file)
            if files:
                self._ops.sync_directory(self.path)
        self._doubtful.add(intent.sink)
        self._sinks.intend(intent)
        self._doubtful.discard(intent.sink)
        return intent

    def _make_durable(self, file: _AttemptFile) -> None:
        """Sync a file. Raises StagedRowsMissing if a piece is not what it was, and OSError."""
        if file.doubtful:
            self._write_again(file)
            return
        with self._ops.opened(file.path, os.O_RDWR) as fd:
            file.doubtful = True
            self._ops.fsync(fd)
            file.doubtful = False
            if not file.trusted:
                self._ops.drop_cache(fd, 0, file.length)
        self._check(file)

    def _write_again(self, file: _AttemptFile) -> None:
        """Write a file, which is as it should be in memory at least, to another place on the disk."""
        file.trusted = False
        self._check(file)
        self._ops.replace_file(file.path, [self._ops.read_file(file.path)[: file.length]])
        file.doubtful = False

    def _check(self, file: _AttemptFile) -> None:
        """Read a file that an earlier process wrote, or a sync refused. Raises StagedRowsMissing."""
        if file.trusted:
            return
        for piece in file.pieces:
            try:
                batch = Batch.parse(self._read(file.path, piece))
            except (ProtocolError, Damaged) as error:
                raise StagedRowsMissing(f"staged rows were lost in a crash ({error}); run the batch again") from error
            if batch.count != piece.count:
                raise StagedRowsMissing("staged rows were lost in a crash; run the batch again")
        file.trusted = True

    def pending(self) -> list[Intent]:
        return self._sinks.intents()

    def places(self, intent: Intent) -> Sequence[PieceAt]:
        found: list[PieceAt] = []
        for task, attempt, pieces in intent.attempts:
            key = StagedAttempt(intent.sink, intent.run, intent.batch, task, attempt)
            file = self._files.get(key)
            if pieces and (file is None or len(file.pieces) < pieces):
                # It was made durable before the intent, so this disk loses what it has acknowledged.
                logger.error("%s is damaged or missing; rows of batch %d are lost", self._path_of(key), intent.batch)
                return found
            found += _places(key, file)[:pieces] if file else []
        return found

    def read(self, piece: PieceAt) -> bytes:
        file = self._files[piece.attempt]
        return self._read(file.path, file.pieces[piece.number])

    def _read(self, path: str, piece: _Piece) -> bytes:
        try:
            with self._ops.opened(path) as fd:
                raw = self._ops.read_some(fd, piece.size, piece.position)
        except FileNotFoundError as error:
            raise Damaged(f"{path} is not there any more") from error
        except OSError as error:
            raise storage_error(error, f"read {path}") from error
        if len(raw) < piece.size:
            raise Damaged(f"{path} is cut off")
        return raw

    def complete(self, intent: Intent) -> None:
        self._sinks.complete(intent)

    def _need(self, size: int) -> None:
        """Raise StorageFull if this many bytes would leave less than the reserve."""
        with trying(f"use {self.path}"):
            free = self._ops.free_bytes(os.path.dirname(self.path))
        if free < size + DISK_RESERVE_BYTES:
            raise StorageFull(
                f"the disk of {self.path} has less than {DISK_RESERVE_BYTES >> 20} MiB left with these rows; "
                "free some space and run again"
            )

    def _path_of(self, attempt: StagedAttempt) -> str:
        name = hashlib.blake2b(f"{attempt.sink}\0{attempt.run}".encode(), digest_size=10).hexdigest()
        return os.path.join(self.path, f"{name}-{attempt.batch}-{attempt.task}-{attempt.attempt}{SUFFIX}")

    def _scan(self) -> None:
        for name in sorted(os.listdir(self.path)):
            if not name.endswith(SUFFIX):
                continue
            path = os.path.join(self.path, name)
            found = self._scan_file(path)
            if found is None:
                logger.warning("%s holds no staged rows that can be read", path)
                self._aside.take(path)
            else:
                self._files[found[0]] = found[1]

    def _scan_file(self, path: str) -> tuple[StagedAttempt, _AttemptFile] | None:
        """The whole pieces in a file; what a crash has left behind them is cut off."""
        with self._ops.opened(path, os.O_RDWR) as fd:
            size = os.fstat(fd).st_size
            start = self._ops.read_some(fd, _FILE.size + NAMES_BYTES_MAX, 0)
            if start[:3] == _MAGIC[:3] and start[3:4].isdigit() and start[3:4] > _MAGIC[3:]:
                raise StorageFormat(f"{path} was written by a newer chappe; install that version")
            named = _decode_names(start)
            if named is None:
                return None
            attempt, at = named
            file = _AttemptFile(path, at, trusted=False)
            while (found := self._scan_piece(fd, file, size)) is not None:
                file.pieces.append(found)
                file.length = found.position + found.size
            if file.length < size:
                self._ops.ftruncate(fd, file.length)
            return attempt, file

    def _scan_piece(self, fd: int, file: _AttemptFile, size: int) -> _Piece | None:
        raw = self._ops.read_some(fd, _PIECE.size + _CRC.size + 255, file.length)
        if len(raw) < _PIECE.size + _CRC.size:
            return None
        magic, topic_size, number, count, body = _PIECE.unpack_from(raw)
        (crc,) = _CRC.unpack_from(raw, _PIECE.size)
        topic = raw[_PIECE.size + _CRC.size :][:topic_size]
        position = file.length + _PIECE.size + _CRC.size + topic_size
        whole = magic == _PIECE_MAGIC and number == len(file.pieces) and body <= BATCH_BYTES_MAX
        if not whole or crc32c(raw[: _PIECE.size] + topic) != crc or position + body > size:
            return None
        return _Piece(decode_topic(topic), position, body, count)


def _encode_names(attempt: StagedAttempt) -> bytes:
    names = msgspec.msgpack.encode((attempt.sink, attempt.run, attempt.batch, attempt.task, attempt.attempt))
    return _FILE.pack(_MAGIC, len(names), crc32c(names)) + names


def _decode_names(raw: bytes) -> tuple[StagedAttempt, int] | None:
    """The attempt that a file belongs to, and where its pieces begin; None if that cannot be read."""
    if len(raw) < _FILE.size:
        return None
    magic, size, crc = _FILE.unpack_from(raw)
    names = raw[_FILE.size : _FILE.size + size]
    if magic != _MAGIC or len(names) != size or crc32c(names) != crc:
        return None
    return StagedAttempt(*msgspec.msgpack.decode(names, type=tuple[str, str, int, int, int])), _FILE.size + size


def _places(attempt: StagedAttempt, file: _AttemptFile) -> list[PieceAt]:
    return [PieceAt(attempt, number, each.topic, each.count, each.size) for number, each in enumerate(file.pieces)]
