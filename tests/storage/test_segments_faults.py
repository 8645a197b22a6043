"""The segment storage on a disk that refuses, lies, rots and loses power."""

from __future__ import annotations

import errno
import logging
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.storage.segments_rig import batch, everything, holes, keep

from chappe.defaults import DISK_RESERVE_BYTES
from chappe.errors import StorageError, StorageFull
from chappe.log.batch import encode_batch
from chappe.log.storage import AppendRecords, Retention
from chappe.storage.segments import SegmentStorage
from chappe.storage.segments.files import Buffer, FileOps


class FaultyOps(FileOps):
    """Fails as it is told: ``fail[call]`` is the number of calls until all (or ``once``, one) fail with ``error``."""

    def __init__(self) -> None:
        self.fail: dict[str, int] = {}
        self.error = errno.EIO
        self.once = False
        self.short = False  # a failing write leaves a part of its bytes
        self.room: int | None = None

    def _count(self, call: str) -> None:
        left = self.fail.get(call)
        if left is not None:
            self.fail[call] = left - 1
            if left == 0 or (left < 0 and not self.once):
                raise OSError(self.error, os.strerror(self.error))

    def pwritev(self, fd: int, buffers: Sequence[Buffer], position: int) -> int:
        try:
            self._count("pwritev")
        except OSError:
            if self.short:
                raw = b"".join(buffers)
                os.pwrite(fd, raw[: len(raw) * 2 // 3], position)
            raise
        if self.short and len(b"".join(buffers)) > 40:
            raw = b"".join(buffers)
            return os.pwrite(fd, raw[: len(raw) // 2 + 1], position)
        return super().pwritev(fd, buffers, position)

    def fdatasync(self, fd: int) -> None:
        self._count("fdatasync")
        super().fdatasync(fd)

    def fsync(self, fd: int) -> None:
        self._count("fsync")
        super().fsync(fd)

    def ftruncate(self, fd: int, length: int) -> None:
        self._count("ftruncate")
        super().ftruncate(fd, length)

    def open(self, path: str, flags: int) -> int:
        if flags & (os.O_WRONLY | os.O_CREAT):
            self._count("open")
        return super().open(path, flags)

    def replace(self, source: str, target: str) -> None:
        self._count("replace")
        super().replace(source, target)

    def unlink(self, path: str) -> None:
        self._count("unlink")
        super().unlink(path)

    def mkdir(self, path: str) -> None:
        self._count("mkdir")
        super().mkdir(path)

    def free_bytes(self, path: str) -> int:
        return super().free_bytes(path) if self.room is None else self.room


CALLS = ("pwritev", "fdatasync", "fsync", "ftruncate", "open", "replace", "unlink", "mkdir")


def reopened(path: Path, copy: Path) -> SegmentStorage:
    """The store as it is found after kill -9 at this moment."""
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(path, copy)
    return SegmentStorage(copy)


# -- writes that fail --------------------------------------------------------------------------------------


@pytest.mark.parametrize("short", [False, True])
@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("calls", range(4))
def test_a_refused_write_leaves_no_trace(tmp_path: Path, call: str, calls: int, error: int, short: bool) -> None:
    ops = FaultyOps()
    storage = SegmentStorage(tmp_path / "s", ops=ops, segment_entries=5)
    ops.error, ops.short = error, short
    good: dict[str, list[int]] = {"t": [], "u": [], "v": []}
    for step in range(12):
        refused: StorageError | None = None
        appends = [batch(len(good[topic]) + n, 1, topic=topic) for topic in ("t", "u") for n in range(2)]
        if step > 4:
            appends += [batch(len(good["v"]), 1, topic="v")]
        if step in (1, 3, 5, 8):
            ops.fail = {call: calls}
        try:
            keep(storage, *appends)
        except StorageError as raised:
            refused = raised
        ops.fail = {}
        if refused is not None:
            assert isinstance(refused, StorageFull) == (error == errno.ENOSPC)
            killed = reopened(tmp_path / "s", tmp_path / "copy")
            assert {topic: everything(killed, topic) for topic in good} == good
            killed.close()
        else:
            for each in appends:
                good[each.topic].append(each.base)
        assert {topic: everything(storage, topic) for topic in good} == good
        assert storage.holes() == []
    assert everything(storage, "t")
    again = reopened(tmp_path / "s", tmp_path / "copy")
    assert {topic: everything(again, topic) for topic in good} == good
    assert again.holes() == []
    again.close()
    storage.close()
    again = SegmentStorage(tmp_path / "s")
    assert {topic: everything(again, topic) for topic in good} == good


def test_after_a_failed_sync_another_segment_is_begun(tmp_path: Path) -> None:
    ops = FaultyOps()
    storage = SegmentStorage(tmp_path / "s", ops=ops)
    keep(storage, batch(0, 3))
    ops.fail, ops.once = {"fdatasync": 0}, True
    with pytest.raises(StorageError, match="check the disk"):
        storage.write([batch(3, 3)])
    ops.fail = {}
    keep(storage, batch(3, 2))
    assert len(list((tmp_path / "s" / "topics" / "t").glob("*.seg"))) == 2
    assert everything(storage) == [0, 1, 2, 3, 4]


def test_a_write_that_cannot_be_taken_back_does_not_come_to_life(tmp_path: Path) -> None:
    ops = FaultyOps()
    storage = SegmentStorage(tmp_path / "s", ops=ops)
    keep(storage, batch(0, 3))
    ops.fail = {"fdatasync": 0, "ftruncate": 0}
    with pytest.raises(StorageError):
        storage.write([batch(3, 3)])
    ops.fail = {}
    assert everything(reopened(tmp_path / "s", tmp_path / "copy")) == [0, 1, 2]
    keep(storage, batch(3, 1))
    assert everything(storage) == [0, 1, 2, 3]
    assert everything(reopened(tmp_path / "s", tmp_path / "copy")) == [0, 1, 2, 3]


def test_nothing_is_written_while_the_segment_cannot_be_put_right(tmp_path: Path) -> None:
    ops = FaultyOps()
    storage = SegmentStorage(tmp_path / "s", ops=ops)
    keep(storage, batch(0, 3))
    ops.fail = dict.fromkeys(("fdatasync", "ftruncate", "replace"), 0)
    for _ in range(3):
        with pytest.raises(StorageError):
            storage.write([batch(3, 3)])
    ops.fail = {}
    keep(storage, batch(3, 2))
    assert everything(storage) == [0, 1, 2, 3, 4]
    assert everything(reopened(tmp_path / "s", tmp_path / "copy")) == [0, 1, 2, 3, 4]


def test_a_nearly_full_disk_refuses_and_service_resumes_by_itself(tmp_path: Path) -> None:
    ops = FaultyOps()
    storage = SegmentStorage(tmp_path, ops=ops)
    keep(storage, batch(0, 3))
    ops.room = DISK_RESERVE_BYTES
    with pytest.raises(StorageFull, match="free some space"):
        storage.write([batch(3, 3)])
    ops.room = None
    keep(storage, batch(3, 3))
    assert everything(storage) == list(range(6))


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("calls", range(4))
def test_retention_that_fails_removes_nothing_or_all(tmp_path: Path, call: str, calls: int) -> None:
    ops = FaultyOps()
    storage = SegmentStorage(tmp_path / "s", ops=ops, segment_entries=1)
    for base in range(0, 10, 2):
        keep(storage, batch(base, 2))
    ops.fail = {call: calls}
    try:
        storage.forget(storage.retain([("t", Retention(records=4))], 0))
    except StorageError:
        assert everything(storage) == list(range(10))
    ops.fail = {}
    storage.forget(storage.retain([("t", Retention(records=4))], 0))
    assert everything(storage) == list(range(6, 10))
    assert everything(reopened(tmp_path / "s", tmp_path / "copy")) == list(range(6, 10))


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("calls", range(4))
def test_closing_on_a_bad_disk_loses_nothing(tmp_path: Path, call: str, calls: int) -> None:
    ops = FaultyOps()
    storage = SegmentStorage(tmp_path, ops=ops)
    keep(storage, batch(0, 3), batch(0, 3, topic="u"))
    ops.fail = {call: calls}
    storage.close()
    again = SegmentStorage(tmp_path)
    assert everything(again) == everything(again, "u") == [0, 1, 2]


# -- bytes that change -------------------------------------------------------------------------------------


def small_store(path: Path, *, sealed: bool) -> Path:
    """Three batches of p and one of q in one segment, as a clean end or as kill -9 leaves it."""
    storage = SegmentStorage(path)
    keep(storage, batch(0, 2), batch(0, 1, partition="q"))
    keep(storage, batch(2, 2), batch(4, 2))
    if sealed:
        storage.close()
    return path


ALL = {*(("p", n) for n in range(6)), ("q", 0)}  # what it has


def readable(storage: SegmentStorage) -> set[tuple[str, int]]:
    return {(partition, n) for partition in "pq" for n in everything(storage, partition=partition)}


def missing(storage: SegmentStorage) -> set[tuple[str, int]]:
    return {(hole.partition, n) for hole in storage.holes() for n in range(hole.first, hole.last + 1)}


@pytest.mark.parametrize("sealed", [False, True])
def test_any_flipped_byte_of_a_segment_is_a_hole_that_can_be_healed(
    tmp_path: Path, sealed: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)
    master = small_store(tmp_path / "master", sealed=sealed)
    size = next((master / "topics" / "t").glob("*.seg")).stat().st_size
    for at in range(size):
        storage = flipped(master, tmp_path / "copy", "seg", at)
        there = readable(storage)
        lost = missing(storage)
        assert there | lost == ALL
        assert not there & lost
        assert bool(lost) == (at >= 32)
        keep(storage, *(batch(n, 1, partition=partition, heal=True) for partition, n in sorted(lost)))
        assert (readable(storage), missing(storage)) == (ALL, set())
        storage.close()
        again = SegmentStorage(tmp_path / "copy")
        assert (readable(again), missing(again)) == (ALL, set())
        again.close()


def test_without_its_manifest_only_the_last_commit_may_pass_for_one_that_never_ended(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)
    master = small_store(tmp_path / "master", sealed=False)
    (master / "manifest").unlink()
    size = next((master / "topics" / "t").glob("*.seg")).stat().st_size
    second = size - 2 * (len(batch(2, 2).body) + 53)
    for at in range(32, size):
        storage = flipped(master, tmp_path / "copy", "seg", at)
        there, lost = readable(storage), missing(storage)
        if at >= second:
            assert {("p", 0), ("p", 1), ("q", 0)} <= there < ALL
            assert lost == set()
            (kept,) = (tmp_path / "copy" / "aside").iterdir()
            assert kept.stat().st_size in (size - second, (size - second) // 2)
        elif ("q", 0) in there | lost:  # else its only block was hit, and nothing is left that names it
            assert there | lost == ALL
        storage.close()


def flipped(master: Path, copy: Path, kind: str, at: int) -> SegmentStorage:
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(master, copy)
    file = next((copy / "topics" / "t").glob(f"*.{kind}"))
    raw = bytearray(file.read_bytes())
    raw[at] ^= 0x55
    file.write_bytes(raw)
    return SegmentStorage(copy)


@pytest.mark.parametrize("sealed", [False, True])
def test_a_segment_cut_anywhere_keeps_what_is_before(
    tmp_path: Path, sealed: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)
    master = small_store(tmp_path / "master", sealed=sealed)
    size = next((master / "topics" / "t").glob("*.seg")).stat().st_size
    for length in range(size):
        shutil.rmtree(tmp_path / "copy", ignore_errors=True)
        shutil.copytree(master, tmp_path / "copy")
        os.truncate(next((tmp_path / "copy" / "topics" / "t").glob("*.seg")), length)
        storage = SegmentStorage(tmp_path / "copy")
        seen = everything(storage)
        assert seen == list(range(len(seen)))
        assert ALL - readable(storage) == missing(storage)
        keep(storage, batch(6, 2))
        assert everything(storage) == [*seen, 6, 7]
        storage.close()


def test_any_flipped_byte_of_an_index_is_mended(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)
    master = small_store(tmp_path / "master", sealed=True)
    size = next((master / "topics" / "t").glob("*.idx")).stat().st_size
    for at in range(size):
        storage = flipped(master, tmp_path / "copy", "idx", at)
        assert (everything(storage), everything(storage, partition="q")) == ([0, 1, 2, 3, 4, 5], [0])
        storage.close()


@pytest.mark.parametrize("kind", ["idx", "seg"])
def test_random_bytes_in_place_of_a_file_are_survived(tmp_path: Path, kind: str) -> None:
    master = small_store(tmp_path / "s", sealed=True)
    file = next((master / "topics" / "t").glob(f"*.{kind}"))
    file.write_bytes(os.urandom(file.stat().st_size))
    storage = SegmentStorage(master)
    seen = everything(storage)
    assert seen == ([0, 1, 2, 3, 4, 5] if kind == "idx" else [])
    assert ALL - readable(storage) == missing(storage)


def test_a_missing_segment_is_a_hole_of_all_it_had(tmp_path: Path) -> None:
    storage = SegmentStorage(tmp_path, segment_entries=1)
    for base in range(0, 8, 2):
        keep(storage, batch(base, 2))
    storage.close()
    sorted((tmp_path / "topics" / "t").glob("*.seg"))[1].unlink()
    storage = SegmentStorage(tmp_path, segment_entries=1)
    assert (everything(storage), holes(storage)) == ([0, 1, 4, 5, 6, 7], [2, 3])


def test_damaged_pins_cost_no_records(tmp_path: Path) -> None:
    storage = SegmentStorage(tmp_path, segment_entries=1)
    for base in range(0, 8, 2):
        keep(storage, batch(base, 2))
    storage.forget(storage.retain([("t", Retention(records=4))], 0))
    storage.close()
    (tmp_path / "topics" / "t" / "partitions").write_bytes(b"CHPINS1\n rubbish")
    assert everything(SegmentStorage(tmp_path)) == [4, 5, 6, 7]


@pytest.mark.parametrize("entries", [1, 3, 100])
def test_damage_found_by_reading_is_a_hole_that_can_be_healed(tmp_path: Path, entries: int) -> None:
    storage = SegmentStorage(tmp_path / "s", segment_entries=entries)
    for base in range(0, 20, 2):
        keep(storage, batch(base, 2), batch(base, 2, partition="q"))
    before = storage.version
    rot(tmp_path / "s", b"record 9 of p")
    rot(tmp_path / "s", b"record 19 of p")
    assert storage.holes() == []
    assert everything(storage) == [*range(8), *range(10, 18)]
    assert holes(storage) == [8, 9, 18, 19]
    assert [each.partition for each in storage.changed("", before, 10)] == ["p"]

    keep(storage, batch(8, 1, heal=True))
    keep(storage, batch(9, 1, heal=True), batch(20, 2))
    assert holes(storage) == [18, 19]
    crashed = reopened(tmp_path / "s", tmp_path / "copy")
    assert everything(crashed) == [*range(18), 20, 21]
    assert holes(crashed) == [18, 19]
    storage.close()
    again = SegmentStorage(tmp_path / "s", segment_entries=entries)
    assert holes(again) == [18, 19]
    keep(again, batch(18, 2, heal=True))
    assert everything(again) == list(range(22))
    again.close()
    assert everything(SegmentStorage(tmp_path / "s")) == list(range(22))


def rot(path: Path, pattern: bytes) -> None:
    """Change a byte within ``pattern`` wherever a segment has it."""
    for file in path.glob("topics/*/*.seg"):
        raw = file.read_bytes()
        at = raw.find(pattern)
        if at >= 0:
            with file.open("r+b") as opened:
                opened.seek(at)
                opened.write(b"R")


def test_a_heal_that_covers_only_a_part_of_a_bad_block_leaves_the_rest_a_hole(tmp_path: Path) -> None:
    storage = SegmentStorage(tmp_path / "s", segment_entries=1)
    keep(storage, batch(0, 10))
    keep(storage, batch(10, 10))
    rot(tmp_path / "s", b"record 5 of p")
    assert everything(storage) == list(range(10, 20))
    keep(storage, batch(3, 4, heal=True))
    again = reopened(tmp_path / "s", tmp_path / "copy")
    for each in (storage, again):
        assert everything(each) == [3, 4, 5, 6, *range(10, 20)]
        assert holes(each) == [0, 1, 2, 7, 8, 9]


def test_a_segment_within_a_record_is_not_taken_for_blocks(tmp_path: Path) -> None:
    small_store(tmp_path / "one", sealed=False)
    raw = next((tmp_path / "one" / "topics" / "t").glob("*.seg")).read_bytes()
    storage = SegmentStorage(tmp_path / "two")
    keep(storage, batch(0, 2))
    keep(storage, AppendRecords("t", "x", 0, 1, 1, 1, encode_batch(0, [raw * 3], 1)))
    keep(storage, batch(2, 2))
    file = next((tmp_path / "two" / "topics" / "t").glob("*.seg"))
    changed = bytearray(file.read_bytes())
    changed[changed.find(b"x" + b"CB\x01") - 20] ^= 1  # the header of the block that holds the copy
    file.write_bytes(changed)
    again = reopened(tmp_path / "two", tmp_path / "copy")
    assert everything(again) == [0, 1, 2, 3]
    assert missing(again) == {("x", 0)}
    assert again.partition("t", "q") is None


def test_damage_before_a_partitions_first_sound_block_is_known(tmp_path: Path) -> None:
    storage = SegmentStorage(tmp_path / "s")
    keep(storage, batch(5, 2), batch(7, 2), batch(9, 2))
    file = next((tmp_path / "s" / "topics" / "t").glob("*.seg"))
    raw = bytearray(file.read_bytes())
    raw[40:60] = bytes(20)  # the header of the first block
    file.write_bytes(raw)
    again = reopened(tmp_path / "s", tmp_path / "copy")
    assert (everything(again), holes(again)) == ([7, 8, 9, 10], [5, 6])
    again.close()
    assert holes(SegmentStorage(tmp_path / "copy")) == [5, 6]


def test_a_page_of_zeros_behind_the_end_is_cut_off(tmp_path: Path) -> None:
    small_store(tmp_path / "s", sealed=False)
    file = next((tmp_path / "s" / "topics" / "t").glob("*.seg"))
    size = file.stat().st_size
    with file.open("ab") as opened:
        opened.write(bytes(8192))
    again = reopened(tmp_path / "s", tmp_path / "copy")
    assert everything(again) == [0, 1, 2, 3, 4, 5]
    assert next((tmp_path / "copy" / "topics" / "t").glob("*.seg")).stat().st_size == size
