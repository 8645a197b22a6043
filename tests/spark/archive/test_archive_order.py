"""Archived records come in the order of their times, and never against the order of a partition."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from chappe.spark.archive.manifest import DAY_US, ArchivedFile, file_schema
from chappe.spark.archive.order import EARLIEST_US, LATEST_US, WantedRecords, plan, sweep
from chappe.spark.archive.tasks import FileWriter

Row = tuple[str, int, int]  # partition, offset, timestamp


class Archive:
    """Files that the test fills, row group by row group."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.files: list[tuple[Path, ArchivedFile]] = []
        self.rows: list[tuple[str, Row]] = []

    def add(self, *groups: list[Row], topic: str = "t") -> None:
        path = self._directory / f"{len(self.files)}.parquet"
        writer = FileWriter(path)
        for group in groups:
            writer.add(_batch(topic, group))
            writer.flush()
        rows = [row for group in groups for row in group]
        self.rows += [(topic, row) for row in rows]
        stamps = [stamp for _, _, stamp in rows]
        self.files.append((path, ArchivedFile(path.name, topic, len(rows), writer.close(), min(stamps), max(stamps))))

    def wanted(self, since: int = EARLIEST_US, until: int = LATEST_US, passed: int = EARLIEST_US) -> WantedRecords:
        bounds: dict[str, dict[str, int]] = {}
        for topic, (partition, offset, _) in self.rows:
            ends = bounds.setdefault(topic, {})
            ends[partition] = max(ends.get(partition, 0), offset + 1)
        return WantedRecords(bounds, since, until, passed)


def _batch(topic: str, rows: list[Row]) -> pa.RecordBatch:
    columns = [
        [partition for partition, _, _ in rows],
        [offset for _, offset, _ in rows],
        pa.array([stamp for _, _, stamp in rows], pa.int64()).cast(pa.timestamp("us", tz="UTC")),
        [None] * len(rows),
        [f"{topic}/{partition}/{offset}".encode() for partition, offset, _ in rows],
        [[]] * len(rows),
    ]
    return pa.RecordBatch.from_arrays(
        [pa.array(each, field.type) for each, field in zip(columns, file_schema(), strict=True)], schema=file_schema()
    )


def replayed(archive: Archive, wanted: WantedRecords, held_bytes: int = 0) -> list[str]:
    found = []
    last = EARLIEST_US
    for window in sweep(plan(archive.files, wanted), wanted, held_bytes):
        for run in window.runs:
            times = run.times.tolist()
            assert times == sorted(times)
            assert last <= times[0]
            assert times[-1] < window.end
            found += [value.decode() for value in run.records.column("value").to_pylist()]
        last = max(run.times[-1] for run in window.runs)
    return found


def expected(archive: Archive, since: int = EARLIEST_US, until: int = LATEST_US) -> list[str]:
    """The order by its definition, for one topic."""
    latest: dict[str, int] = {}
    keyed = []
    for topic, (partition, offset, stamp) in sorted(archive.rows):
        capped = min(stamp, until - 1)
        latest[partition] = max(latest.get(partition, EARLIEST_US), capped)
        if since <= stamp < until:
            keyed.append((latest[partition], partition, offset, f"{topic}/{partition}/{offset}"))
    return [text for *_, text in sorted(keyed)]


def test_partitions_are_woven_together_by_time(tmp_path: Path) -> None:
    archive = Archive(tmp_path)
    archive.add([("a", n, 10 * n) for n in range(5)], [("b", n, 10 * n + 5) for n in range(5)])
    values = replayed(archive, archive.wanted())
    assert values == expected(archive)
    assert values[:4] == ["t/a/0", "t/b/0", "t/a/1", "t/b/1"]


def test_a_partition_whose_clock_went_back_keeps_its_order(tmp_path: Path) -> None:
    archive = Archive(tmp_path)
    archive.add([("a", 0, 100), ("a", 1, 50)], [("a", 2, 20), ("b", 0, 60)])
    archive.add([("b", 1, 110), ("a", 3, 500)])
    archive.add([("a", 4, 10)])
    values = replayed(archive, archive.wanted())
    assert values == expected(archive) == ["t/b/0", "t/a/0", "t/a/1", "t/a/2", "t/b/1", "t/a/3", "t/a/4"]


def test_days_that_alternate_within_a_partition(tmp_path: Path) -> None:
    archive = Archive(tmp_path)
    archive.add([("a", 0, 10), ("a", 2, 11), ("a", 4, 12)])
    archive.add([("a", 1, DAY_US + 1), ("a", 3, DAY_US), ("a", 5, DAY_US + 9)])
    assert replayed(archive, archive.wanted()) == [f"t/a/{n}" for n in range(6)]


def test_a_row_group_of_neighbours_is_known_from_its_statistics(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from chappe.spark.archive import order

    archive = Archive(tmp_path)
    archive.add([("a", n, n) for n in range(10)])
    monkeypatch.delattr(order, "_scan")
    assert [group.rows for group in plan(archive.files, archive.wanted())] == [10]


def test_bounds_in_time_and_offsets(tmp_path: Path) -> None:
    archive = Archive(tmp_path)
    archive.add([("a", n, n) for n in range(100)], [("b", n, n) for n in range(50)])
    assert replayed(archive, archive.wanted(since=10, until=20)) == expected(archive, 10, 20)
    values = replayed(archive, WantedRecords({"t": {"a": 3}}))
    assert values == ["t/a/0", "t/a/1", "t/a/2"]
    assert plan(archive.files, archive.wanted(since=100)) == []


def test_several_topics_come_in_one_sweep(tmp_path: Path) -> None:
    archive = Archive(tmp_path)
    archive.add([("a", 0, 1), ("a", 1, 3)], topic="t")
    archive.add([("a", 0, 2)], topic="u")
    assert sorted(replayed(archive, archive.wanted())) == ["t/a/0", "t/a/1", "u/a/0"]
    only = WantedRecords({"u": {"a": 1}})
    assert replayed(archive, only) == ["u/a/0"]


@pytest.mark.parametrize("seed", range(30))
def test_any_archive_in_the_order_by_its_definition(seed: int, tmp_path: Path) -> None:
    """Whatever is in which row group and file, whatever the clocks did, and wherever a replay goes on."""
    rng = random.Random(seed)
    archive = Archive(tmp_path)
    offsets = dict.fromkeys("abcd"[: rng.randint(1, 4)], 0)
    clock = 0
    for _ in range(rng.randint(1, 5)):
        groups = []
        for _ in range(rng.randint(1, 4)):
            rows: list[Row] = []
            for _ in range(rng.randint(1, 3)):
                partition = rng.choice(list(offsets))
                for _ in range(rng.randint(1, 6)):
                    clock += rng.randint(-3, 8)
                    rows.append((partition, offsets[partition], max(clock, 0)))
                    offsets[partition] += 1
            groups.append(rows)
        archive.add(*groups)
    values = replayed(archive, archive.wanted(), held_bytes=rng.choice([0, 500, 1 << 20]))
    assert values == expected(archive)
    for wanted in [archive.wanted(passed=p) for p in (3, 10, clock // 2)]:
        rest = replayed(archive, wanted)
        assert rest == values[len(values) - len(rest) :]
    since, until = clock // 4, clock // 2 + 1
    assert replayed(archive, archive.wanted(since, until)) == expected(archive, since, until)


def test_nothing_is_read_before_its_time(tmp_path: Path) -> None:
    """So that an archive of any size is replayed in bounded memory."""
    archive = Archive(tmp_path)
    for day in range(20):
        archive.add([("a", day * 10 + n, day * DAY_US + n) for n in range(10)])
    wanted = archive.wanted()
    windows = list(sweep(plan(archive.files, wanted), wanted, held_bytes=1))
    assert len(windows) == 20
    assert all(np.diff(run.times).min() >= 0 for window in windows for run in window.runs)
