"""The steps in which an archive changes, and what is left wherever they are cut short."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Never

import pytest

from chappe.data.topic import Filter
from chappe.errors import OffsetOutOfRange, StorageError, StorageFormat, StorageLocked, UnknownTopic, UsageError
from chappe.reading.offsets import KnownPartition
from chappe.reading.selection import Selection
from chappe.spark.archive.manifest import (
    DAY_US,
    SMALL_BYTES,
    ArchivedFile,
    ArchiveManifest,
    ArchiveWriter,
    Move,
    OffsetSpan,
    day_text,
    directory_of,
    followed_by,
    load,
    path_of,
)
from chappe.spark.archive.reading import pattern_of, rest_of

pytest.importorskip("pyspark")

from chappe.spark.archive.job import check_spans, merged_spans, plan_files
from chappe.spark.archive.tasks import StagedFile

PLACE = "topic=t/date=2024-10-04/00000001-000.parquet"


class Killed(BaseException):
    pass


def following(writer: ArchiveWriter, text: str, place: str = PLACE) -> ArchiveManifest:
    """The next version, with one staged file that holds ``text``."""
    staged = f"{writer.run}/{writer.manifest.version}.staged"
    (writer.directory / staged).write_text(text)
    before = writer.manifest.next_of("t", "p") or 0
    file = ArchivedFile(place, "t", 10, len(text), 0, 1)
    return followed_by(
        writer.manifest, [file], {"t": {"p": OffsetSpan(before, before + 10, 10)}}, [Move(staged, place)]
    )


def visible(directory: Path) -> dict[str, str]:
    return {str(path.relative_to(directory)): path.read_text() for path in directory.rglob("*.parquet")}


def test_a_commit_makes_files_visible_and_is_found_again(tmp_path: Path) -> None:
    with ArchiveWriter(tmp_path) as writer:
        writer.commit(following(writer, "one"))
        writer.commit(following(writer, "one two"))
    assert visible(tmp_path) == {PLACE: "one two"}
    found = load(tmp_path)
    assert (found.version, found.next_of("t", "p"), found.next_of("t", "q")) == (2, 20, None)
    assert found.positions["t"]["p"] == OffsetSpan(0, 20, 20)
    assert path_of(tmp_path, found, found.files[0]) == tmp_path / PLACE


def test_killed_before_the_commit_nothing_has_changed(tmp_path: Path) -> None:
    with ArchiveWriter(tmp_path) as writer:
        writer.commit(following(writer, "one"))
    killed = ArchiveWriter(tmp_path)
    following(killed, "never")
    killed._lock.close()  # as the kernel does
    assert visible(tmp_path) == {PLACE: "one"}
    with ArchiveWriter(tmp_path) as writer:
        assert writer.manifest.version == 1
        assert list((tmp_path / "_chappe" / "staging").rglob("*.staged")) == []


def test_killed_between_commit_and_rename_the_next_start_renames(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = "topic=t/date=2024-10-05/00000002-000.parquet"
    killed = ArchiveWriter(tmp_path)
    killed.commit(following(killed, "one"))
    second = following(killed, "one two")
    staged = f"{killed.run}/more.staged"
    (tmp_path / staged).write_text("three")
    second = followed_by(killed.manifest, second.files, {}, [*second.moves, Move(staged, other)])

    replace, done = os.replace, list[Path]()

    def kill_at_second(source: Path, target: Path) -> None:
        if done:
            raise Killed
        done.append(target)
        replace(source, target)

    monkeypatch.setattr(os, "replace", kill_at_second)
    with pytest.raises(Killed):
        killed.commit(second)
    monkeypatch.undo()
    killed._lock.close()
    assert visible(tmp_path) == {PLACE: "one two"}
    assert path_of(tmp_path, load(tmp_path), ArchivedFile(other, "t", 0, 0, 0, 0)) == tmp_path / staged

    with ArchiveWriter(tmp_path) as writer:
        assert writer.manifest.version == 2
        assert visible(tmp_path) == {PLACE: "one two", other: "three"}


def test_killed_while_the_manifest_is_written_it_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed = ArchiveWriter(tmp_path)

    def kill(*_: object) -> Never:
        raise Killed

    monkeypatch.setattr(os, "link", kill)
    with pytest.raises(Killed):
        killed.commit(following(killed, "one"))
    monkeypatch.undo()
    killed._lock.close()
    assert visible(tmp_path) == {}
    with ArchiveWriter(tmp_path) as writer:
        assert writer.manifest.version == 0


def test_only_one_job_writes(tmp_path: Path) -> None:
    with ArchiveWriter(tmp_path), pytest.raises(StorageLocked, match="another job"):
        ArchiveWriter(tmp_path)


def test_a_version_that_somebody_else_has_written_is_not_replaced(tmp_path: Path) -> None:
    with ArchiveWriter(tmp_path) as writer:
        (tmp_path / "_chappe" / "manifest-00000001.json").write_text("{}")  # by a host whose locks we do not see
        with pytest.raises(StorageLocked):
            writer.commit(following(writer, "one"))
    assert visible(tmp_path) == {}


def test_what_is_no_archive_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is not an archive"):
        load(tmp_path / "none")
    (tmp_path / "something").touch()
    with pytest.raises(StorageFormat, match="holds something else"):
        ArchiveWriter(tmp_path)
    meta = tmp_path / "a" / "_chappe"
    meta.mkdir(parents=True)
    (meta / "manifest-00000001.json").write_text('{"archive": "x", "format": 99}')
    with pytest.raises(StorageFormat, match="newer chappe"):
        load(tmp_path / "a")


def test_a_missing_file_is_damage(tmp_path: Path) -> None:
    with ArchiveWriter(tmp_path) as writer:
        writer.commit(following(writer, "one"))
    (tmp_path / PLACE).unlink()
    with pytest.raises(StorageError, match="is missing"):
        ArchiveWriter(tmp_path)


def test_only_the_newest_manifests_are_kept(tmp_path: Path) -> None:
    with ArchiveWriter(tmp_path) as writer:
        for n in range(5):
            writer.commit(following(writer, str(n)))
    names = sorted(path.name for path in (tmp_path / "_chappe").glob("manifest*"))
    assert names == ["manifest-00000004.json", "manifest-00000005.json"]


# -- names ------------------------------------------------------------------------------------------------


def test_names_of_directories() -> None:
    assert directory_of("metrics.cpu", 20_000) == "topic=metrics.cpu/date=2024-10-04"
    assert directory_of("a/b=c d%", 0) == "topic=a%2Fb%3Dc%20d%25/date=1970-01-01"
    assert day_text(-(1 << 63) // DAY_US) == "0001-01-01"
    assert day_text((1 << 63) // DAY_US) == "9999-12-31"


@pytest.mark.parametrize("topic", ["x" * 255, "\udcff"])
def test_topics_that_no_directory_can_be_named_after(topic: str) -> None:
    with pytest.raises(UsageError, match="cannot be archived"):
        directory_of(topic, 0)


def test_the_pattern_reads_what_was_named() -> None:
    selection = Selection.of_pattern(pattern_of(Filter("a+b"), Filter("metrics.", prefix=True)))
    found = [each for each in ("a+b", "aab", "metrics.cpu", "metricsX", "xa+b") if selection.has_topic(each)]
    assert found == ["a+b", "metrics.cpu"]


# -- what is planned --------------------------------------------------------------------------------------


def staged(path: str, size: int, day: int = 20_000, topic: str = "t") -> StagedFile:
    return StagedFile(path, topic, day, 10, size, day * DAY_US, day * DAY_US + 5)


def test_one_small_file_stays_as_it_is_and_grows_with_the_next() -> None:
    empty = ArchiveManifest("a")
    files, moves, merges = plan_files(empty, "run", [staged("s1", 100)])
    assert (moves, merges) == ([Move("s1", PLACE)], [])
    second = followed_by(empty, files, {}, moves)

    files, moves, merges = plan_files(second, "run", [staged("s2", 100), staged("s3", SMALL_BYTES)])
    assert [(merge.sources, merge.staged) for merge in merges] == [((PLACE, "s2"), "run/2-0")]
    large = "topic=t/date=2024-10-04/00000002-000.parquet"
    assert moves == [Move("s3", large), Move("run/2-0", PLACE)]
    assert [(each.path, each.rows, each.bytes) for each in files] == [(large, 10, SMALL_BYTES), (PLACE, 20, 0)]


def test_a_large_file_is_left_alone() -> None:
    files, moves, _ = plan_files(ArchiveManifest("a"), "run", [staged("s1", SMALL_BYTES)])
    second = followed_by(ArchiveManifest("a"), files, {}, moves)
    _, moves, merges = plan_files(second, "run", [staged("s2", 5)])
    assert (moves, merges) == ([Move("s2", "topic=t/date=2024-10-04/00000002-000.parquet")], [])


def test_small_files_of_several_tasks_become_one_in_their_order() -> None:
    parts = [staged("s1", 5), staged("other", 5, day=20_001), staged("s2", 5)]
    _, moves, merges = plan_files(ArchiveManifest("a"), "run", parts)
    assert [merge.sources for merge in merges] == [("s1", "s2")]
    assert Move("other", "topic=t/date=2024-10-05/00000001-000.parquet") in moves


def test_partitions_go_on_exactly_where_the_archive_ends() -> None:
    archived = ArchiveManifest("a", positions={"t": {"p": OffsetSpan(5, 10, 5)}})
    check_spans(archived, {"t": {"p": OffsetSpan(10, 20, 10), "new": OffsetSpan(3, 5, 2)}}, skip_lost=False)
    for lost in (OffsetSpan(11, 20, 9), OffsetSpan(10, 20, 9)):
        with pytest.raises(OffsetOutOfRange, match="--skip-lost"):
            check_spans(archived, {"t": {"p": lost}}, skip_lost=False)
        check_spans(archived, {"t": {"p": lost}}, skip_lost=True)
    for twice in (OffsetSpan(9, 20, 11), OffsetSpan(10, 20, 11)):
        with pytest.raises(StorageError, match="came twice"):
            check_spans(archived, {"t": {"p": twice}}, skip_lost=True)


def test_spans_of_tasks_are_joined() -> None:
    parts = [{"t": {"p": OffsetSpan(0, 5, 5)}}, {"t": {"p": OffsetSpan(5, 9, 4), "q": OffsetSpan(1, 2, 1)}}]
    assert merged_spans(parts) == {"t": {"p": OffsetSpan(0, 9, 9), "q": OffsetSpan(1, 2, 1)}}


def test_the_rest_starts_where_the_archive_ends() -> None:
    archived = ArchiveManifest(
        "a", positions={"t": {"p": OffsetSpan(0, 10, 10), "behind": OffsetSpan(0, 10, 10), "gone": OffsetSpan(0, 3, 3)}}
    )
    known = {
        ("t", "p"): KnownPartition(2, 15, 100, ("s",)),
        ("t", "behind"): KnownPartition(0, 7, 100, ("s",)),
        ("t", "new"): KnownPartition(4, 6, 100, ("s",)),
    }
    rest = rest_of(archived, known, Filter("t"))
    assert rest.starting == {("t", "p"): 10, ("t", "behind"): 7}
    assert rest.archived == {("t", "behind"): 10, ("t", "gone"): 3}
    assert rest.waiting == 5 + 2


def test_topics_are_selected_by_name_or_prefix() -> None:
    archived = ArchiveManifest("a", positions={"m.a": {}, "m.b": {}, "n": {}})
    assert archived.select(None) == ["m.a", "m.b", "n"]
    assert archived.select("m.*") == ["m.a", "m.b"]
    with pytest.raises(UnknownTopic, match=r"it has m\.a, m\.b, n"):
        archived.select("x")
