"""What the segment storage makes of files that are gone, renamed, torn, or written by an earlier chappe."""

from __future__ import annotations

import errno
import os
import resource
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.alone import alone
from tests.storage.segments_rig import batch, everything, keep

from chappe.log.storage import Retention
from chappe.storage.segments import SegmentStorage
from chappe.storage.segments.directory import folder_name
from chappe.storage.segments.files import FileOps

LONG = "long " * 50


def missing(storage: SegmentStorage) -> list[tuple[str, str, int, int]]:
    return [(each.topic, each.partition, each.first, each.last) for each in storage.holes()]


def killed(path: Path, copy: Path) -> Path:
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(path, copy)
    return copy


def segments(path: Path, topic: str = "t") -> list[Path]:
    return sorted((path / "topics" / folder_name(topic)).glob("*.seg"))


def many(path: Path, *, clean: bool) -> Path:
    """Five segments of two batches each, the last one half full; a topic with a long name beside it."""
    storage = SegmentStorage(path / "s", segment_entries=2)
    for base in range(0, 18, 2):
        keep(storage, batch(base, 2), *([batch(base, 2, topic=LONG)] if base < 4 else []))
    if clean:
        storage.close()
    else:
        path = killed(path / "s", path / "killed")
        storage.close()
        return path
    return path / "s"


# -- files that are gone -----------------------------------------------------------------------------------


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("number", range(5))
@pytest.mark.parametrize("with_index", [True, False])
def test_a_segment_that_is_gone_is_a_hole(tmp_path: Path, clean: bool, number: int, with_index: bool) -> None:
    path = many(tmp_path, clean=clean)
    gone = segments(path)[number]
    gone.unlink()
    if with_index:
        gone.with_suffix(".idx").unlink(missing_ok=True)
    first, last = 4 * number, min(4 * number + 3, 17)
    for _ in range(2):
        storage = SegmentStorage(path, segment_entries=2)
        assert missing(storage) == [("t", "p", first, last)]
        assert everything(storage) == [n for n in range(18) if not first <= n <= last]
        storage.close()
    storage = SegmentStorage(path, segment_entries=2)
    keep(storage, batch(first, last + 1 - first, heal=True), batch(18, 1))
    storage.close()
    again = SegmentStorage(path, segment_entries=2)
    assert (missing(again), everything(again)) == ([], list(range(19)))
    again.forget(again.retain([("t", Retention(records=1))], 0))
    assert missing(again) == []
    again.close()
    assert missing(SegmentStorage(path)) == []


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("topic", ["t", LONG])
def test_a_topics_folder_that_is_gone_is_a_hole_of_all_it_had(tmp_path: Path, clean: bool, topic: str) -> None:
    path = many(tmp_path, clean=clean)
    shutil.rmtree(path / "topics" / folder_name(topic))
    last = 17 if topic == "t" else 3
    storage = SegmentStorage(path, segment_entries=2)
    assert missing(storage) == [(topic, "p", 0, last)]
    keep(storage, batch(0, last + 1, topic=topic, heal=True), batch(last + 1, 1, topic=topic))
    again = SegmentStorage(killed(path, tmp_path / "copy"), segment_entries=2)
    assert (missing(again), everything(again, topic)) == ([], list(range(last + 2)))


def test_a_store_without_its_manifest_still_misses_a_folder(tmp_path: Path) -> None:
    path = many(tmp_path, clean=True)
    (path / "manifest").unlink()
    shutil.rmtree(path / "topics" / folder_name(LONG))
    assert missing(SegmentStorage(path)) == [(LONG, "p", 0, 3)]


@pytest.mark.parametrize("copies", [True, False])
def test_a_lost_segment_with_a_damaged_index_does_not_keep_the_store_from_starting(
    tmp_path: Path, copies: bool, caplog: pytest.LogCaptureFixture
) -> None:
    path = many(tmp_path, clean=True)
    gone = segments(path)[1]
    gone.unlink()
    gone.with_suffix(".idx").write_bytes(b"rubbish")
    if not copies:
        shutil.rmtree(path / "indexes")
    storage = SegmentStorage(path, segment_entries=2)
    assert missing(storage) == [("t", "p", 4, 7)]  # without any index the records on both sides tell
    assert f"{gone} is missing" in caplog.text
    storage.close()


@pytest.mark.parametrize("raw", [b"", b"CHPMAN1\n", b"x" * 400, None])
def test_a_manifest_that_is_damaged_costs_no_records(tmp_path: Path, raw: bytes | None) -> None:
    path = many(tmp_path, clean=False)
    if raw is None:
        (path / "manifest").unlink()
    else:
        (path / "manifest").write_bytes(raw)
    storage = SegmentStorage(path, segment_entries=2)
    assert (missing(storage), everything(storage)) == ([], list(range(18)))
    keep(storage, batch(18, 2))
    again = SegmentStorage(killed(path, tmp_path / "copy"), segment_entries=2)
    assert (missing(again), everything(again)) == ([], list(range(20)))


def test_a_manifest_cut_or_flipped_anywhere_costs_no_records_and_makes_up_no_hole(tmp_path: Path) -> None:
    path = many(tmp_path, clean=False)
    raw = (path / "manifest").read_bytes()
    for at in range(0, len(raw), 7):
        for wrong in (raw[:at], raw[:at] + bytes([raw[at] ^ 4]) + raw[at + 1 :]):
            copy = killed(path, tmp_path / "copy")
            (copy / "manifest").write_bytes(wrong)
            storage = SegmentStorage(copy, segment_entries=2)
            assert (missing(storage), everything(storage)) == ([], list(range(18)))
            storage.close()


def test_a_manifest_is_made_anew_when_it_is_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chappe.storage.segments.manifest.MANIFEST_BYTES", 500)
    storage = SegmentStorage(tmp_path / "s", segment_entries=7)
    sizes = []
    for base in range(100):
        keep(storage, batch(base, 1), batch(base, 1, partition="q"))
        storage.forget(storage.retain([("t", Retention(records=50))], 0))
        sizes.append((tmp_path / "s" / "manifest").stat().st_size)
    assert max(sizes) < 2000
    again = killed(tmp_path / "s", tmp_path / "copy")
    segments(again)[-1].unlink()
    assert [each[1:] for each in missing(SegmentStorage(again, segment_entries=7))] == [("p", 96, 99), ("q", 96, 99)]


# -- names -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("clean", [True, False])
def test_a_renamed_folder_gets_its_name_back(tmp_path: Path, clean: bool, caplog: pytest.LogCaptureFixture) -> None:
    path = many(tmp_path, clean=clean)
    (path / "topics" / "t").rename(path / "topics" / "new")
    storage = SegmentStorage(path, segment_entries=2)
    assert storage.topics() == [LONG, "t"]
    assert (missing(storage), everything(storage)) == ([], list(range(18)))
    assert "had been renamed" in caplog.text
    storage.close()


def files(path: Path) -> dict[str, bytes]:
    return {str(each.relative_to(path)): each.read_bytes() for each in path.rglob("*") if each.is_file()}


@pytest.mark.parametrize("manifest", [True, False])
@pytest.mark.parametrize("clean", [True, False])
def test_folders_that_changed_names_get_them_back(
    tmp_path: Path, clean: bool, manifest: bool, caplog: pytest.LogCaptureFixture
) -> None:
    storage = SegmentStorage(tmp_path / "s")
    topics = ["a", "b", LONG if clean or manifest else "c"]  # else nothing has the name of the long one
    keep(storage, *(batch(0, 3, topic=topic) for topic in topics))
    path = tmp_path / "s"
    if clean:
        storage.close()
    else:
        path = killed(path, tmp_path / "killed")
    if not manifest:
        (path / "manifest").unlink()
    a, b, third = (path / "topics" / folder_name(topic) for topic in topics)
    for old, new in ((a, path / "x"), (third, a), (b, third), (path / "x", b)):
        old.rename(new)
    again = SegmentStorage(path)
    assert "had been renamed" in caplog.text
    assert ("manifest is missing" in caplog.text) is not manifest
    for topic in topics:
        assert everything(again, topic) == [0, 1, 2]
        keep(again, batch(3, 1, topic=topic))
    again.close()
    again = SegmentStorage(path)
    assert [everything(again, topic) for topic in topics] == [[0, 1, 2, 3]] * 3
    assert missing(again) == []
    again.close()


def test_folders_that_were_moved_away_get_their_names_back_where_a_process_was_killed(tmp_path: Path) -> None:
    storage = SegmentStorage(tmp_path / "s")
    keep(storage, batch(0, 3, topic="a"), batch(0, 3, topic="b"))
    path = killed(tmp_path / "s", tmp_path / "killed")
    (path / "left-alone").mkdir()
    (path / "topics" / "a").rename(path / "left-alone" / "b")
    (path / "topics" / "b").rename(path / "topics" / "a")
    again = SegmentStorage(path)
    assert (everything(again, "a"), everything(again, "b"), missing(again)) == ([0, 1, 2], [0, 1, 2], [])
    again.close()


@pytest.mark.parametrize("running", [True, False])
def test_nothing_is_written_into_a_folder_that_is_left_alone(tmp_path: Path, running: bool) -> None:
    other = SegmentStorage(tmp_path / "other")
    keep(other, batch(0, 3, topic="a"), batch(0, 3, topic=LONG))
    other.close()
    storage = SegmentStorage(tmp_path / "s")
    if not running:
        storage.close()
    for name in ("a", folder_name(LONG)):
        shutil.copytree(tmp_path / "other" / "topics" / name, tmp_path / "s" / "topics" / name)
    before = files(tmp_path / "s" / "topics")
    if not running:
        storage = SegmentStorage(tmp_path / "s")
    for topic in ("a", LONG):
        keep(storage, batch(0, 2, topic=topic), batch(2, 1, topic=topic))
    storage.close()
    assert files(tmp_path / "s" / "left-alone") == before
    for _ in range(2):
        again = SegmentStorage(tmp_path / "s")
        assert (everything(again, "a"), everything(again, LONG), missing(again)) == ([0, 1, 2], [0, 1, 2], [])
        again.close()
    assert files(tmp_path / "s" / "left-alone") == before


@pytest.mark.parametrize("content", [None, b"", b"CHPMAN1"])
def test_a_manifest_that_is_missing_or_empty_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, content: bytes | None
) -> None:
    storage = SegmentStorage(tmp_path / "s")
    assert not caplog.records
    keep(storage, batch(0, 3))
    path = killed(tmp_path / "s", tmp_path / "killed")
    (path / "manifest").unlink()
    if content is not None:
        (path / "manifest").write_bytes(content)
    again = SegmentStorage(path)
    assert "manifest is missing or damaged" in caplog.text
    assert everything(again) == [0, 1, 2]
    again.close()


def test_the_newest_segment_is_known_to_be_missing_also_without_the_manifest(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    storage = SegmentStorage(tmp_path / "s", segment_entries=2)
    for base in range(0, 60, 10):
        keep(storage, batch(base, 10))
    path = killed(tmp_path / "s", tmp_path / "killed")
    (path / "manifest").unlink()
    newest = segments(path)[-1]
    newest.unlink()
    again = SegmentStorage(path, segment_entries=2)
    assert f"{newest} is missing, and nothing says what it had" in caplog.text
    assert everything(again) == list(range(40))
    keep(again, batch(40, 20))
    again.close()
    again = SegmentStorage(path, segment_entries=2)
    assert (everything(again), missing(again)) == (list(range(60)), [])
    again.close()


def test_a_segment_without_a_sound_block_is_kept_aside(tmp_path: Path) -> None:
    storage = SegmentStorage(tmp_path / "s")
    keep(storage, batch(0, 3))
    path = killed(tmp_path / "s", tmp_path / "killed")
    (path / "manifest").unlink()
    file = segments(path)[0]
    raw = file.read_bytes()
    file.write_bytes(raw[:40] + bytes(len(raw) - 40))
    again = SegmentStorage(path)
    assert everything(again) == []
    keep(again, batch(0, 3))
    again.close()
    assert everything(SegmentStorage(path)) == [0, 1, 2]


# -- writes that did not end -------------------------------------------------------------------------------


def torn(path: Path, change: str) -> Path:
    """A commit of four blocks that was never synced, of which ``change`` of the second is on disk; then killed."""
    storage = SegmentStorage(path / "s")
    keep(storage, batch(0, 2), batch(0, 2, partition="q"))
    manifest = (path / "s" / "manifest").read_bytes()
    begin = segments(path / "s")[0].stat().st_size
    keep(storage, batch(2, 2), batch(2, 2, partition="q"), batch(4, 2), batch(4, 2, partition="q"))
    copy = killed(path / "s", path / "killed")
    (copy / "manifest").write_bytes(manifest)
    file = segments(copy)[0]
    raw = bytearray(file.read_bytes())
    size = (len(raw) - begin) // 4
    at = begin + size + {"header": 8, "body": size - 12}[change]
    raw[at : at + 4] = bytes(4)
    file.write_bytes(raw)
    return copy


@pytest.mark.parametrize("change", ["header", "body"])
def test_a_commit_that_was_torn_is_no_damage(tmp_path: Path, change: str) -> None:
    path = torn(tmp_path, change)
    storage = SegmentStorage(path)
    assert missing(storage) == []
    assert (everything(storage), everything(storage, partition="q")) == ([0, 1, 2, 3], [0, 1])
    assert len(list((path / "aside").iterdir())) == 1
    keep(storage, batch(4, 1), batch(2, 1, partition="q"))
    again = SegmentStorage(killed(path, tmp_path / "copy"))
    assert (missing(again), everything(again), everything(again, partition="q")) == ([], [0, 1, 2, 3, 4], [0, 1, 2])


def test_what_is_kept_aside_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = torn(tmp_path, "body")
    aside = path / "aside"
    aside.mkdir()
    for n in range(5):
        (aside / f"{n}-t.bin").write_bytes(bytes(100))
    monkeypatch.setattr("chappe.storage.segments.aside.ASIDE_BYTES_MAX", 450)
    SegmentStorage(path).close()
    kept = sorted(each.name for each in aside.iterdir())
    assert sum(each.stat().st_size for each in aside.iterdir()) <= 450
    assert kept[-1].startswith("4-") or kept[0] > "4"
    monkeypatch.setattr("chappe.storage.segments.aside.ASIDE_S", -1.0)
    SegmentStorage(path).close()
    assert list(aside.iterdir()) == []


class Syncs(FileOps):
    """Notes what is synced and what is dropped from memory; refuses to sync files whose name ends with ``refuse``."""

    def __init__(self, refuse: str = "nothing") -> None:
        self.refuse = refuse
        self.paths: dict[int, str] = {}
        self.synced: list[str] = []
        self.dropped: list[tuple[str, int]] = []

    def open(self, path: str, flags: int) -> int:
        fd = super().open(path, flags)
        self.paths[fd] = path
        return fd

    def fdatasync(self, fd: int) -> None:
        if self.paths[fd].endswith(self.refuse):
            raise OSError(errno.EIO, "refused")
        self.synced.append(self.paths[fd])

    def fsync(self, fd: int) -> None:
        self.fdatasync(fd)

    def drop_cache(self, fd: int, position: int, size: int) -> None:
        self.dropped.append((self.paths[fd], position))


def test_what_a_killed_process_wrote_is_synced_before_it_is_believed(tmp_path: Path) -> None:
    storage = SegmentStorage(tmp_path / "s")
    keep(storage, batch(0, 2))
    storage.write([batch(2, 2)])
    path = killed(tmp_path / "s", tmp_path / "killed")
    ops = Syncs()
    again = SegmentStorage(path, ops=ops)
    folders = [tmp_path, path, path / "topics", path / "topics" / "t"]
    assert {*map(str, folders), str(segments(path)[0])} <= set(ops.synced)
    assert ops.dropped == [(str(segments(path)[0]), 0)]
    assert everything(again) == [0, 1, 2, 3]


def test_what_cannot_be_synced_is_not_believed(tmp_path: Path) -> None:
    storage = SegmentStorage(tmp_path / "s")
    keep(storage, batch(0, 2))
    manifest = (tmp_path / "s" / "manifest").read_bytes()
    storage.write([batch(2, 2)])
    path = killed(tmp_path / "s", tmp_path / "killed")
    (path / "manifest").write_bytes(manifest)  # killed before the sync
    again = SegmentStorage(path, ops=Syncs(".seg"))
    assert (everything(again), missing(again)) == ([0, 1], [])
    again.close()
    later = SegmentStorage(path)
    keep(later, batch(2, 1))
    assert (everything(later), missing(later)) == ([0, 1, 2], [])


def test_a_new_store_is_synced_in_all_folders_above_it(tmp_path: Path) -> None:
    ops = Syncs()
    path = tmp_path / "a" / "b"
    SegmentStorage(path, ops=ops).close()
    assert {str(tmp_path), str(tmp_path / "a"), str(path), str(path / "topics")} <= set(ops.synced)


# -- many topics -------------------------------------------------------------------------------------------


def test_a_commit_to_more_topics_than_files_may_be_open(tmp_path: Path) -> None:
    alone(commit_to_many_topics, tmp_path)


def commit_to_many_topics(path: Path) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (200, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    storage = SegmentStorage(path)
    keep(storage, *(batch(0, 1, topic=f"topic {n}") for n in range(400)))
    keep(storage, *(batch(1, 1, topic=f"topic {n}") for n in range(400)))
    assert all(everything(storage, f"topic {n}") == [0, 1] for n in range(400))
    assert len(os.listdir("/proc/self/fd")) < 200
    storage.close()


class Raced(FileOps):
    """Another process makes each directory, or a file in its place, just before we do."""

    def __init__(self, make: Callable[[str], object]) -> None:
        self.make = make
        self.synced: list[str] = []

    def mkdir(self, path: str) -> None:
        self.make(path)
        super().mkdir(path)

    def sync_directory(self, path: str) -> None:
        self.synced.append(path)
        super().sync_directory(path)


def test_a_directory_that_another_process_makes_meanwhile_is_taken(tmp_path: Path) -> None:
    """Two readers of a topic each begin below the same new directory."""
    ops = Raced(os.mkdir)
    ops.make_directories(str(tmp_path / "a" / "b"))
    assert ops.synced == [str(tmp_path), str(tmp_path / "a")]
    with pytest.raises(FileExistsError):
        Raced(lambda path: Path(path).touch()).make_directories(str(tmp_path / "file"))
