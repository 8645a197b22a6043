"""Staged rows on disk: killed at every step, on a disk that refuses, and after a machine that lost power."""

from __future__ import annotations

import errno
import os
import shutil
import sqlite3
import stat
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

import pytest

from chappe.defaults import DISK_RESERVE_BYTES
from chappe.errors import StagedRowsMissing, StorageError, StorageFormat, StorageFull
from chappe.limits import LOG_LIMITS, LogLimits
from chappe.log.batch import Batch, encode_batch
from chappe.log.exactly_once.staged import (
    CommitBatch,
    Discard,
    Finishing,
    Forget,
    Intent,
    Remember,
    SinkState,
    StagedAttempt,
    StagePiece,
    recover,
)
from chappe.log.storage import AppendRecords
from chappe.storage.segments import SegmentStorage
from chappe.storage.segments.files import Buffer, FileOps
from chappe.storage.sink_database import SinkDatabase
from chappe.storage.small_database import Statement
from chappe.storage.staged_files import FOLDER, StagedFiles

Result = TypeVar("Result")
PARTITIONS = {"t": "P" * 32, "u": "Q" * 32}


class Killed(BaseException):
    """The process dies here."""


class DeadlyOps(FileOps):
    """Dies, or fails with ``error``, at the ``at``-th call that changes something."""

    def __init__(self) -> None:
        self.at = -1
        self.error: int | None = None
        self.calls = 0
        self.room: int | None = None

    def step(self) -> None:
        self.calls += 1
        if self.calls - 1 == self.at:
            if self.error is None:
                raise Killed
            raise OSError(self.error, os.strerror(self.error))

    def open(self, path: str, flags: int) -> int:
        if flags & (os.O_WRONLY | os.O_RDWR):
            self.step()
        return super().open(path, flags)

    def pwritev(self, fd: int, buffers: Sequence[Buffer], position: int) -> int:
        raw = b"".join(buffers)
        try:
            self.step()
        except BaseException:
            os.pwrite(fd, raw[: len(raw) * 2 // 3], position)  # torn
            raise
        return super().pwritev(fd, buffers, position)

    def fsync(self, fd: int) -> None:
        self.step()
        super().fsync(fd)

    def fdatasync(self, fd: int) -> None:
        self.step()
        super().fdatasync(fd)

    def unlink(self, path: str) -> None:
        self.step()
        super().unlink(path)

    def mkdir(self, path: str) -> None:
        self.step()
        super().mkdir(path)

    def free_bytes(self, path: str) -> int:
        return super().free_bytes(path) if self.room is None else self.room


class DeadlyDatabase(SinkDatabase):
    """Counts a transaction as two steps: before it, and behind it."""

    def _execute(self, doing: str, statements: Iterable[Statement]) -> None:
        assert isinstance(self._ops, DeadlyOps)
        try:
            self._ops.step()
        except OSError as error:
            raise StorageError(f"cannot {doing}: {error}") from error
        super()._execute(doing, statements)
        if self._ops.error is None:
            self._ops.step()


class Disk:
    """A store's directory, opened with faults."""

    def __init__(self, path: Path, ops: DeadlyOps | None = None, limits: LogLimits = LOG_LIMITS) -> None:
        self.path = path
        self.limits = limits
        self.ops = ops or DeadlyOps()
        self.storage = SegmentStorage(path, ops=self.ops)
        self.staged = StagedFiles(path, ops=self.ops, database=DeadlyDatabase)
        self.kept = recover(self.staged, self.storage, limits)

    def close(self) -> None:
        self.staged.close()
        self.storage.close()

    def killed(self) -> None:
        """Let go as a dead process does."""
        self.staged.close()
        self.storage._directory.close()
        self.storage._reader.handles.close()

    def attach(self, run: str = "one") -> None:
        self.staged.carry_out(Remember(SinkState("q", "home", run)))

    def stage(self, batch: int, task: int, *pieces: tuple[str, int], run: str = "one") -> tuple[int, int, int, int]:
        for number, (topic, count) in enumerate(pieces):
            self.staged.carry_out(piece(batch, task, number, topic, count, run))
        return (task, 0, len(pieces), sum(count for _, count in pieces))

    def commit_of(self, batch: int, *named: tuple[int, int, int, int]) -> CommitBatch:
        bases = []
        for topic, partition in PARTITIONS.items():
            info = self.storage.partition(topic, partition)
            bases.append((topic, partition, 0 if info is None else info.next))
        return CommitBatch("q", "one", batch, named, tuple(bases))

    def commit(self, batch: int, *named: tuple[int, int, int, int]) -> Intent:
        intent = self.staged.prepare(self.commit_of(batch, *named))
        finishing = Finishing(self.staged, self.storage, intent, limits=self.limits)
        while not finishing.done:
            finishing.step()
        for written in finishing.written:
            self.storage.publish(written)
        return intent

    def values(self, topic: str = "t") -> list[bytes | None]:
        found: list[bytes | None] = []
        info = self.storage.partition(topic, PARTITIONS[topic])
        while info is not None and len(found) < info.next:
            for raw in self.storage.read(topic, PARTITIONS[topic], len(found), 1 << 20).batches:
                batch = Batch.parse(raw)
                assert batch.base == len(found)
                found += batch.values()
        return found

    @property
    def batch(self) -> int:
        return next((each.batch for each in self.staged.kept().sinks), -1)


def values_of(batch: int, task: int, number: int, count: int) -> list[bytes]:
    return [b"%d.%d.%d.%d" % (batch, task, number, n) for n in range(count)]


def piece(batch: int, task: int, number: int, topic: str = "t", count: int = 2, run: str = "one") -> StagePiece:
    body = encode_batch(0, values_of(batch, task, number, count), 7)
    return StagePiece(StagedAttempt("q", run, batch, task, 0), number, topic, count, body)


def rows_left(path: Path) -> list[str]:
    return [each.name for each in (path / FOLDER).glob("*.rows")]


def test_a_store_without_sinks_has_no_folder_for_them(tmp_path: Path) -> None:
    disk = Disk(tmp_path)
    assert disk.kept.sinks == ()
    disk.close()
    assert not (tmp_path / FOLDER).exists()


def test_everything_is_found_again(tmp_path: Path) -> None:
    disk = Disk(tmp_path)
    disk.staged.carry_out(Remember(SinkState("q", "home", "two", ("zero", "one"), lasting=False)))
    disk.staged.carry_out(Remember(SinkState("\N{SNOWMAN}", "elsewhere")))
    disk.attach()
    disk.commit(3, disk.stage(3, 0, ("t", 2), ("u", 1)))
    disk.stage(4, 1, ("u", 1), ("t", 1))
    before = disk.staged.kept()
    disk.close()

    disk = Disk(tmp_path)
    found = {state.sink: state for state in disk.kept.sinks}
    assert found["q"].batch == 3
    assert dict(found["q"].ends) == {"t": 2, "u": 1}
    assert (found["q"].run, found["q"].fenced, found["q"].lasting) == ("one", (), True)
    assert found["\N{SNOWMAN}"].home == "elsewhere"
    assert all(0.0 <= state.age_s < 60.0 for state in found.values())
    assert disk.kept.attempts == before.attempts
    assert (StagedAttempt("q", "one", 4, 1, 0), ("u", "t")) in disk.kept.attempts
    disk.commit(4, (1, 0, 2, 2))
    assert disk.values() == [*values_of(3, 0, 0, 2), *values_of(4, 1, 1, 1)]
    disk.staged.carry_out(Forget(("q",)))
    assert [state.sink for state in disk.staged.kept().sinks] == ["\N{SNOWMAN}"]
    disk.close()


def play(disk: Disk, acknowledged: list[int]) -> None:
    """Three batches, each with rows in two topics and one attempt that is thrown away."""
    disk.attach()
    for batch in range(3):
        named = [disk.stage(batch, task, ("t", 2), ("u", 1), ("t", 1)) for task in range(2)]
        disk.stage(batch, 5, ("t", 1))
        disk.commit(batch, *named)
        acknowledged.append(batch)
        disk.staged.carry_out(Discard(tuple(StagedAttempt("q", "one", batch, task, 0) for task in (0, 1, 5))))


def expected(batches: int, topic: str) -> list[bytes]:
    places = ((0, 2), (2, 1)) if topic == "t" else ((1, 1),)
    return [
        value
        for batch in range(batches)
        for task in range(2)
        for number, count in places
        for value in values_of(batch, task, number, count)
    ]


def steps_of(tmp_path: Path, run: Callable[[Disk, list[int]], None], limits: LogLimits = LOG_LIMITS) -> int:
    disk = Disk(tmp_path / "whole", limits=limits)
    disk.ops.calls = 0
    run(disk, [])
    steps = disk.ops.calls
    disk.close()
    return steps


@pytest.mark.parametrize("chunk", [1, 1 << 20])
def test_a_store_killed_at_any_step_has_every_batch_once_or_not_at_all(tmp_path: Path, chunk: int) -> None:
    limits = LogLimits(commit_chunk_bytes=chunk)
    seen: set[int] = set()
    for at in range(steps_of(tmp_path, play, limits)):
        disk = Disk(tmp_path / f"{at}", limits=limits)
        disk.ops.calls, disk.ops.at = 0, at
        acknowledged: list[int] = []
        with pytest.raises(Killed):
            play(disk, acknowledged)
        disk.killed()

        disk = Disk(tmp_path / f"{at}", limits=limits)
        batches = disk.batch + 1
        assert len(acknowledged) <= batches <= len(acknowledged) + 1
        assert disk.values("t") == expected(batches, "t")
        assert disk.values("u") == expected(batches, "u")
        assert disk.staged.pending() == []
        assert disk.storage.holes() == []
        seen.add(batches - len(acknowledged))
        for batch in range(batches, 3):  # and it goes on
            disk.staged.carry_out(Discard(tuple(attempt for attempt, _ in disk.kept.attempts)))
            disk.attach()
            disk.commit(batch, *[disk.stage(batch, task, ("t", 2), ("u", 1), ("t", 1)) for task in range(2)])
        assert disk.values("t") == expected(3, "t")
        disk.close()
        shutil.rmtree(tmp_path / f"{at}")
    assert seen == {0, 1}, "some deaths came before the commit point, some behind it"


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
def test_a_disk_that_refuses_at_any_step_is_tried_again(tmp_path: Path, error: int) -> None:
    def patient(disk: Disk, _: list[int]) -> None:
        again(disk.attach)
        named = []
        for task in range(2):
            for number in range(2):
                again(partial(disk.staged.carry_out, piece(0, task, number)))
            named.append((task, 0, 2, 4))
        intent = again(lambda: disk.staged.prepare(disk.commit_of(0, *named)))
        finishing = Finishing(disk.staged, disk.storage, intent)
        while not finishing.done:
            again(finishing.step)
        for written in finishing.written:
            disk.storage.publish(written)

    def again(call: Callable[[], Result]) -> Result:
        try:
            return call()
        except StorageError:
            return call()

    wanted = [value for task in range(2) for number in range(2) for value in values_of(0, task, number, 2)]
    for at in range(steps_of(tmp_path, patient)):
        disk = Disk(tmp_path / f"{at}")
        disk.ops.calls, disk.ops.at, disk.ops.error = 0, at, error
        patient(disk, [])
        assert disk.values() == wanted
        disk.close()
        disk = Disk(tmp_path / f"{at}")
        assert disk.values() == wanted
        assert disk.batch == 0
        disk.close()


def test_rows_that_the_machine_lost_are_missed_before_the_commit(tmp_path: Path) -> None:
    disk = Disk(tmp_path)
    disk.attach()
    named = disk.stage(0, 0, ("t", 2), ("t", 2))
    disk.close()
    (name,) = rows_left(tmp_path)
    path = tmp_path / FOLDER / name
    whole = path.read_bytes()
    for wrong in (whole[:-1], whole[:-30] + bytes(30), whole[: len(whole) // 2]):
        path.write_bytes(wrong)
        disk = Disk(tmp_path)
        with pytest.raises(StagedRowsMissing):
            disk.staged.prepare(disk.commit_of(0, named))
        assert disk.staged.pending() == []
        disk.close()
        path.write_bytes(whole)
    disk = Disk(tmp_path)
    disk.commit(0, named)
    assert disk.values() == [*values_of(0, 0, 0, 2), *values_of(0, 0, 1, 2)]
    disk.close()


def test_rows_are_not_believed_where_a_sync_failed(tmp_path: Path) -> None:
    class Lying(DeadlyOps):
        """A file whose sync fails keeps in memory what the disk has not; another sync then succeeds."""

        def __init__(self) -> None:
            super().__init__()
            self.lost: set[int] = set()  # inodes
            self.refuse = False

        def fsync(self, fd: int) -> None:
            if self.refuse and not stat.S_ISDIR(os.fstat(fd).st_mode):
                self.refuse = False
                self.lost.add(os.fstat(fd).st_ino)
                raise OSError(errno.EIO, "refused")
            super().fsync(fd)

    ops = Lying()
    disk = Disk(tmp_path, ops)
    disk.attach()
    named = disk.stage(0, 0, ("t", 2), ("t", 2))
    ops.refuse = True
    with pytest.raises(StorageError):
        disk.staged.prepare(disk.commit_of(0, named))
    disk.staged.prepare(disk.commit_of(0, named))
    (name,) = rows_left(tmp_path)
    assert (tmp_path / FOLDER / name).stat().st_ino not in ops.lost
    disk.killed()
    disk = Disk(tmp_path)
    assert disk.values() == [*values_of(0, 0, 0, 2), *values_of(0, 0, 1, 2)]
    disk.close()


def test_rows_of_a_killed_process_are_read_from_the_disk(tmp_path: Path) -> None:
    class Forgetful(DeadlyOps):
        """What was not synced is gone when it is read from the disk."""

        def drop_cache(self, fd: int, position: int, size: int) -> None:
            os.pwrite(fd, bytes(30), size - 30)

    disk = Disk(tmp_path)
    disk.attach()
    named = disk.stage(0, 0, ("t", 2))
    disk.killed()
    disk = Disk(tmp_path, Forgetful())
    with pytest.raises(StagedRowsMissing):
        disk.staged.prepare(disk.commit_of(0, named))
    assert disk.staged.pending() == []
    disk.close()


@pytest.mark.parametrize("content", [b"", b"CHR1", b"x" * 100])
def test_a_file_that_is_no_rows_is_removed(tmp_path: Path, content: bytes) -> None:
    disk = Disk(tmp_path)
    disk.attach()
    disk.close()
    (tmp_path / FOLDER / "strange.rows").write_bytes(content)
    disk = Disk(tmp_path)
    assert disk.kept.attempts == ()
    assert rows_left(tmp_path) == []
    assert [each.read_bytes() for each in (tmp_path / "aside").iterdir()] == [content]
    disk.close()


def test_a_piece_staged_again_is_kept_once(tmp_path: Path) -> None:
    disk = Disk(tmp_path)
    disk.attach()
    named = disk.stage(0, 0, ("t", 2), ("t", 2))
    disk.stage(0, 0, ("t", 2), ("t", 2))
    with pytest.raises(StagedRowsMissing):
        disk.staged.carry_out(piece(0, 0, 3))
    disk.commit(0, named)
    assert len(disk.values()) == 4
    disk.close()


def test_no_room_is_said_before_anything_is_decided(tmp_path: Path) -> None:
    disk = Disk(tmp_path)
    disk.attach()
    named = disk.stage(0, 0, ("t", 2))
    disk.ops.room = DISK_RESERVE_BYTES
    with pytest.raises(StorageFull):
        disk.staged.carry_out(piece(0, 1, 0))
    with pytest.raises(StorageFull):
        disk.staged.prepare(disk.commit_of(0, named))
    assert disk.staged.pending() == []
    disk.close()


def test_committed_rows_that_rot_leave_a_hole_and_no_lie(tmp_path: Path) -> None:
    disk = Disk(tmp_path)
    disk.attach()
    named = disk.stage(0, 0, ("t", 2), ("t", 2), ("t", 2))
    disk.staged.prepare(disk.commit_of(0, named))
    disk.killed()
    (name,) = rows_left(tmp_path)
    path = tmp_path / FOLDER / name
    raw = bytearray(path.read_bytes())
    at = bytes(raw).index(values_of(0, 0, 1, 1)[0])
    raw[at] ^= 1
    path.write_bytes(raw)

    disk = Disk(tmp_path)
    assert disk.batch == 0
    info = disk.storage.partition("t", PARTITIONS["t"])
    assert info is not None
    assert info.next == 6
    assert [(hole.first, hole.last) for hole in disk.storage.holes()] == [(2, 3)]
    disk.storage.publish(disk.storage.write([AppendRecords("t", "other", 0, 1, 7, 7, encode_batch(0, [b"x"], 7))]))
    disk.close()


def test_a_newer_format_is_refused(tmp_path: Path) -> None:
    disk = Disk(tmp_path)
    disk.attach()
    disk.close()
    database = sqlite3.connect(tmp_path / FOLDER / SinkDatabase.NAME)
    database.execute("PRAGMA user_version = 99")
    database.close()
    with pytest.raises(StorageFormat, match="newer chappe"):
        StagedFiles(tmp_path)


def test_a_database_that_is_none_is_said(tmp_path: Path) -> None:
    (tmp_path / FOLDER).mkdir()
    (tmp_path / FOLDER / SinkDatabase.NAME).write_bytes(b"no database " * 100)
    with pytest.raises(StorageError, match="cannot open"):
        StagedFiles(tmp_path)
