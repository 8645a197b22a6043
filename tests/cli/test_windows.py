from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow.parquet as parquet
import pytest

from chappe.cli.demo import query as module
from chappe.cli.demo.query import WindowRow, Windows

NOON = datetime(2026, 1, 31, 12, 0, tzinfo=UTC)


def row(metric: str, records: int, total: float, minute: int = 0) -> WindowRow:
    start = NOON + timedelta(minutes=minute)
    return WindowRow(start, start + timedelta(minutes=1), metric, records, total, total / records, 0.0, total)


def stored(windows: Windows) -> list[WindowRow]:
    return sorted(WindowRow(**each) for each in parquet.read_table(windows.directory).to_pylist())


def test_newer_totals_replace_older_ones(tmp_path: Path) -> None:
    windows = Windows(tmp_path / "w")
    windows.merge([row("cpu", 2, 10.0), row("memory", 1, 5.0)])
    windows.merge([row("cpu", 3, 12.0)])

    assert stored(windows) == [row("cpu", 3, 12.0), row("memory", 1, 5.0)]
    assert windows.records == 4


def test_handing_over_again_changes_nothing(tmp_path: Path) -> None:
    windows = Windows(tmp_path / "w")
    windows.merge([row("cpu", 2, 10.0)])
    windows.merge([row("cpu", 2, 10.0)])
    assert stored(windows) == [row("cpu", 2, 10.0)]
    assert windows.records == 2


def test_a_later_run_goes_on_with_the_files_of_an_earlier_one(tmp_path: Path) -> None:
    Windows(tmp_path / "w").merge([row("cpu", 2, 10.0), row("memory", 1, 5.0)])
    later = Windows(tmp_path / "w")
    later.merge([row("cpu", 5, 20.0), row("cpu", 1, 1.0, minute=1)])
    assert stored(later) == [row("cpu", 5, 20.0), row("memory", 1, 5.0), row("cpu", 1, 1.0, minute=1)]
    assert later.records == 4  # of this run alone


def test_a_half_written_file_is_not_seen(tmp_path: Path) -> None:
    windows = Windows(tmp_path / "w")
    windows.merge([row("cpu", 2, 10.0)])
    path = windows.path(NOON)
    path.with_name(f".{path.name}.tmp").write_bytes(b"PAR1 cut off")
    assert stored(windows) == [row("cpu", 2, 10.0)]


def test_memory_is_bounded_and_old_windows_are_still_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "OPEN_WINDOWS_MAX", 3)
    monkeypatch.setattr(module, "METRICS_MAX", 2)
    windows = Windows(tmp_path / "w")
    for minute in range(10):
        windows.merge([row(name, 1, 1.0, minute) for name in ("a", "b", "c")])
    windows.merge([row("b", 9, 9.0, minute=0)])

    assert len(windows._open) == 3
    assert windows.left_out == 10
    assert set(windows.newest) == {"a", "b"}
    assert stored(windows)[:2] == [row("a", 1, 1.0), row("b", 9, 9.0)]
