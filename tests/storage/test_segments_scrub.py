"""Errors of reading that pass, and damage that is found before anybody asks for it."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from tests.storage.segments_rig import batch, everything, holes, keep

from chappe.storage.segments import SegmentStorage, scrub
from chappe.storage.segments.files import FileOps


class BadReads(FileOps):
    """Refuses to read segments where they have ``pattern``, ``times`` often; or gives them wrong, if ``flip``."""

    def __init__(self) -> None:
        self.pattern: bytes | None = None
        self.times = -1
        self.flip = False

    def pread(self, fd: int, size: int, position: int) -> bytes:
        raw = super().pread(fd, size, position)
        if self.pattern is not None and self.pattern in raw and self.times:
            self.times -= 1
            if not self.flip:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            return raw.replace(self.pattern, self.pattern[::-1])
        return raw


def filled(path: Path, ops: FileOps | None = None, *, entries: int = 3) -> SegmentStorage:
    """Ten batches of p and ten of q."""
    storage = SegmentStorage(path, segment_entries=entries, ops=ops)
    for base in range(0, 20, 2):
        keep(storage, batch(base, 2), batch(base, 2, partition="q"))
    return storage


def scrub_all(storage: SegmentStorage) -> int:
    """One round; returns the bytes that were read."""
    size = 0
    for _ in range(10_000):
        found = storage.scrub()
        size += found.bytes
        ended = storage.scrubbed(found) if found.news or storage.suspicious else None
        if ended is not None:
            while storage.suspicious:
                storage.scrubbed(storage.scrub())
            return size
    raise AssertionError("the round does not end")


# -- errors that pass --------------------------------------------------------------------------------------


@pytest.mark.parametrize("entries", [3, 100])
@pytest.mark.parametrize("flip", [False, True])
def test_one_bad_read_is_no_damage(tmp_path: Path, entries: int, flip: bool) -> None:
    ops = BadReads()
    storage = filled(tmp_path, ops, entries=entries)
    ops.pattern, ops.times, ops.flip = b"record 7 of p", 1, flip
    assert everything(storage) == list(range(20))
    assert ops.times == 0
    assert storage.holes() == []


@pytest.mark.parametrize("entries", [3, 100])
def test_what_the_disk_refuses_to_read_is_a_hole_only_as_long_as_it_does(tmp_path: Path, entries: int) -> None:
    ops = BadReads()
    storage = filled(tmp_path, ops, entries=entries)
    ops.pattern = b"record 7 of p"
    assert everything(storage) == [n for n in range(20) if n not in (6, 7)]
    (hole,) = storage.holes()
    assert (hole.first, hole.last) == (6, 7)
    assert "cannot read" in hole.reason
    scrub_all(storage)
    storage.scrubbed(storage.scrub())
    assert holes(storage) == [6, 7]
    ops.pattern = None
    storage.scrubbed(storage.scrub())
    assert (holes(storage), everything(storage)) == ([], list(range(20)))


@pytest.mark.parametrize("entries", [3, 100])
def test_a_clean_stop_writes_down_no_error_of_reading(tmp_path: Path, entries: int) -> None:
    ops = BadReads()
    storage = filled(tmp_path, ops, entries=entries)
    ops.pattern = b"record 7 of p"
    assert holes(storage) == []
    assert len(everything(storage)) == 18
    storage.close()
    again = SegmentStorage(tmp_path, segment_entries=entries)
    assert (holes(again), everything(again)) == ([], list(range(20)))


@pytest.mark.parametrize("entries", [3, 100])
def test_what_cannot_be_read_is_healed(tmp_path: Path, entries: int) -> None:
    ops = BadReads()
    storage = filled(tmp_path, ops, entries=entries)
    ops.pattern = b"record 7 of p"
    everything(storage)
    ops.pattern = None
    keep(storage, batch(6, 2, heal=True))
    assert (holes(storage), everything(storage)) == ([], list(range(20)))
    scrub_all(storage)
    storage.scrubbed(storage.scrub())
    assert everything(storage) == list(range(20))
    storage.close()
    assert everything(SegmentStorage(tmp_path, segment_entries=entries)) == list(range(20))


@pytest.mark.parametrize("manifest", [True, False])
def test_what_cannot_be_read_at_a_start_is_there_at_the_next(tmp_path: Path, manifest: bool) -> None:
    storage = filled(tmp_path, entries=100)
    storage._directory.close()  # killed
    if not manifest:
        (tmp_path / "manifest").unlink()
    ops = BadReads()
    ops.pattern = b"record 7 of p"
    again = SegmentStorage(tmp_path, segment_entries=100, ops=ops)
    assert set(everything(again)) < set(range(20))
    if manifest:
        assert 7 in holes(again)
        keep(again, batch(20, 1))
    again.close()
    whole = SegmentStorage(tmp_path, segment_entries=100)
    assert (holes(whole), everything(whole)) == ([], [*range(20), *([20] if manifest else [])])


def test_an_index_that_cannot_be_read_is_not_replaced(tmp_path: Path) -> None:
    filled(tmp_path, entries=4).close()

    class NoIndexes(FileOps):
        def open(self, path: str, flags: int) -> int:
            if path.endswith(".idx") and not flags & os.O_CREAT:
                raise OSError(errno.EIO, os.strerror(errno.EIO), path)
            return super().open(path, flags)

    before = {each: each.read_bytes() for each in tmp_path.rglob("*.idx")}
    storage = SegmentStorage(tmp_path, segment_entries=4, ops=NoIndexes())
    assert everything(storage) == list(range(20))
    storage._directory.close()
    assert {each: each.read_bytes() for each in tmp_path.rglob("*.idx")} == before
    assert everything(SegmentStorage(tmp_path, segment_entries=4)) == list(range(20))


# -- scrubbing ---------------------------------------------------------------------------------------------


def rot(path: Path, pattern: bytes) -> None:
    for file in path.glob("topics/*/*.seg"):
        raw = file.read_bytes()
        if pattern in raw:
            file.write_bytes(raw.replace(pattern, b"R" + pattern[1:]))


@pytest.mark.parametrize("entries", [3, 100])
def test_a_round_finds_all_damage_that_nobody_read(
    tmp_path: Path, entries: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = filled(tmp_path, entries=entries)
    size = sum(each.stat().st_size for each in tmp_path.glob("topics/*/*.seg"))
    assert storage.scrubbed_us == 0
    assert size * 0.9 < scrub_all(storage) < size * 3  # with the indexes
    assert storage.scrubbed_us > 0
    assert holes(storage) == []
    rot(tmp_path, b"record 7 of p")
    rot(tmp_path, b"record 18 of p")
    storage.close()
    storage = SegmentStorage(tmp_path, segment_entries=entries)
    (tmp_path / "scrub").unlink()
    storage = reopened(storage, tmp_path, entries)
    scrub_all(storage)
    assert holes(storage) == [6, 7, 18, 19]
    keep(storage, batch(6, 2, heal=True), batch(18, 2, heal=True))
    assert everything(storage) == list(range(20))
    monkeypatch.setattr(scrub, "SCRUB_ROUND_S", 0.0)
    scrub_all(storage)
    assert (holes(storage), everything(storage)) == ([], list(range(20)))


def reopened(storage: SegmentStorage, path: Path, entries: int) -> SegmentStorage:
    """Killed, and opened again."""
    storage._reader.handles.close()
    storage._directory.close()
    return SegmentStorage(path, segment_entries=entries)


@pytest.mark.parametrize("entries", [3, 100])
def test_any_flipped_byte_is_found_by_a_round(tmp_path: Path, entries: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scrub, "SCRUB_ROUND_S", 0.0)
    storage = SegmentStorage(tmp_path, segment_entries=entries)
    for base in (0, 2, 4):
        keep(storage, batch(base, 2))
    for file in sorted(tmp_path.glob("topics/t/*.seg")):
        whole = file.read_bytes()
        for at in range(32, len(whole), 3):
            with file.open("r+b") as opened:
                opened.seek(at)
                opened.write(bytes([whole[at] ^ 8]))
            scrub_all(storage)
            lost = holes(storage)
            assert len(lost) == 2
            file.write_bytes(whole)
            keep(storage, batch(lost[0], 2, heal=True))
            assert holes(storage) == []
            found = everything(storage)
            assert found == [0, 1, 2, 3, 4, 5]
            storage.close()
            for each in tmp_path.glob("topics/t/*"):
                each.unlink()
            for each in (*tmp_path.glob("indexes/t/*"), tmp_path / "manifest"):
                each.unlink()
            storage = SegmentStorage(tmp_path, segment_entries=entries)
            for base in (0, 2, 4):
                keep(storage, batch(base, 2))


def test_a_segment_that_vanishes_while_the_store_runs_is_found(tmp_path: Path) -> None:
    storage = filled(tmp_path)
    assert everything(storage) == list(range(20))
    gone = sorted(tmp_path.glob("topics/t/*.seg"))[1]
    raw = gone.read_bytes()
    gone.unlink()
    assert everything(storage) == list(range(20))  # the file is still open
    scrub_all(storage)
    lost = holes(storage)
    assert lost
    gone.write_bytes(raw)  # somebody has brought it back
    storage.scrubbed(storage.scrub())
    assert (holes(storage), everything(storage)) == ([], list(range(20)))


@pytest.mark.parametrize("which", ["indexes", "topics"])
@pytest.mark.parametrize("raw", [b"rubbish", None])
def test_a_round_mends_the_copy_of_an_index(tmp_path: Path, which: str, raw: bytes | None) -> None:
    storage = filled(tmp_path)
    before = {each: each.read_bytes() for each in tmp_path.rglob("*.idx")}
    for each in (tmp_path / which).rglob("*.idx"):
        if raw is None:
            each.unlink()
        else:
            each.write_bytes(raw)
    scrub_all(storage)
    assert {each: each.read_bytes() for each in tmp_path.rglob("*.idx")} == before


def test_a_round_goes_on_after_a_restart_and_another_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scrub, "SCRUB_PIECE_BLOCKS", 1)
    storage = filled(tmp_path)
    for _ in range(20):
        assert not storage.scrub().idle
    storage.close()
    again = SegmentStorage(tmp_path, segment_entries=3)
    assert 0 < scrub_all(again) < scrub_all(filled(tmp_path / "whole")) / 2
    assert again.scrubbed_us > 0
    assert again.scrub().idle
    again.close()
    assert SegmentStorage(tmp_path).scrub().idle


def test_scrubbing_while_writing_and_removing_finds_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from chappe.log.storage import Retention

    monkeypatch.setattr(scrub, "SCRUB_ROUND_S", 0.0)
    monkeypatch.setattr(scrub, "SCRUB_PIECE_BLOCKS", 1)
    storage = SegmentStorage(tmp_path, segment_entries=3)
    for base in range(0, 300, 2):
        keep(storage, batch(base, 2))
        found = storage.scrub()
        storage.scrubbed(found)
        if base % 10 == 0:
            storage.forget(storage.retain([("t", Retention(records=20))], 0))
        assert storage.holes() == []
