"""What the demo shows, on terminals of all sizes; without Spark."""

from __future__ import annotations

import io
import math
import os
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import cast

import pytest
from rich.console import Console
from tests.waiting import until

from chappe import Producer, Tower
from chappe.cli.charts import curve
from chappe.cli.demo import run
from chappe.cli.demo.feed import JSON, LINES, DemoFeed, values_of
from chappe.cli.demo.query import WindowRow, Windows
from chappe.cli.demo.view import DemoStatus, Flow, MetricsTable, picture
from chappe.cli.units import count, delay, quantity, rate

NOON = datetime(2026, 1, 31, 12, 0, tzinfo=UTC)
METRICS = {
    "cpu.0": (57.8, "%"),
    "disk.written": (1342.5, "KiB/s"),
    "memory.available": (22371.0, "MiB"),
    "processes": (104.0, ""),
    "size": (12_345_678.0, ""),
}
NOW = ["57.8 %", "1.31 MiB/s", "21.8 GiB", "104", "12.3 M"]


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0.0, "%", "0 %"),
        (-0.001, "", "0"),
        (7.25, "%", "7.25 %"),
        (999.6, "", "1 k"),
        (-1234.0, "", "-1.23 k"),
        (12_345_678.0, "", "12.3 M"),
        (1e30, "", "1e+30"),
        (1000.0, "KiB/s", "0.98 MiB/s"),
        (5.0, "B", "5 B"),
        (22371.0, "MiB", "21.8 GiB"),
        (math.nan, "", "nan"),
        (math.inf, "KiB/s", "inf B/s"),
    ],
)
def test_quantities_keep_their_magnitude(value: float, unit: str, text: str) -> None:
    assert quantity(value, unit) == text
    assert len(text) <= 10


def test_counts_rates_and_delays() -> None:
    assert [count(1125), count(12_345_678), rate(45.02), rate(1234)] == ["1,125", "12.3 M", "45.0/s", "1.23 k/s"]
    assert [delay(0.0031), delay(0.9999), delay(75), delay(-1)] == ["3 ms", "1 s", "75 s", "0 ms"]


def test_rates_are_of_the_last_seconds_and_of_this_run() -> None:
    now = [0.0]
    flow = Flow(clock=lambda: now[0])
    for second in range(20):
        now[0] = second
        sent = 1000 + (0 if second < 10 else 100 * (second - 10))
        flow.hear({"first": 1000, "sent": sent, "stored": sent, "stored_s": 0.012})
    assert flow.records == "900 sent (100/s), 900 stored (100/s) after 12 ms"
    assert flow.counted == "none yet"
    flow.batches, flow.in_windows, flow.windows_s = 1, 800, 2.1
    assert flow.counted == "800 values in 1 batch, 0 windows/s, after 2.10 s"


def test_values_are_remembered_once_each_time_they_are_told() -> None:
    flow = Flow()
    for value in (1.0, 2.0):
        facts = {"newest": {"a": [value, "%"]}}
        for _ in range(3):
            flow.hear(facts)
    assert list(flow.lately["a"]) == [1.0, 2.0]
    assert (flow.newest["a"], flow.unit("a"), flow.unit("b")) == ((2.0, "%"), "%", "")


def test_a_line_has_the_metrics_that_the_query_makes_of_it() -> None:
    assert values_of(b"four", LINES) == {"bytes per line": (4.0, "B")}
    line = b'{"n": 1, "text": "2.5", "word": "x", "yes": true, "in": {"a": 1}, "big": "Infinity", "none": null}'
    assert values_of(line, JSON) == {"n": (1.0, ""), "text": (2.5, "")}
    assert values_of(b"no json", JSON) == values_of(b"[1]", JSON) == {}


def shown(tmp_path: Path, width: int, height: int, *, windows: bool) -> list[str]:
    kept = Windows(tmp_path / "w")
    if windows:
        end = NOON + timedelta(seconds=5)
        kept.merge(WindowRow(NOON, end, name, 25, 1.0, value, value, value) for name, (value, _) in METRICS.items())
    status = DemoStatus(0.0, "running", ["chappe topics", "chappe consume demo.metrics --tower 127.0.0.1:12345:23456"])
    for _ in range(80):
        status.flow.hear({"sent": 1, "stored": 1, "newest": {name: list(each) for name, each in METRICS.items()}})
    out = io.StringIO()
    console = Console(file=out, width=width, height=height)
    console.print(picture(status, kept, console))
    return [line.rstrip() for line in out.getvalue().splitlines()]


@pytest.mark.parametrize("windows", [False, True])
@pytest.mark.parametrize(("width", "height"), [(200, 50), (120, 24), (80, 24), (60, 20), (50, 17), (40, 12), (30, 8)])
def test_names_and_newest_values_are_whole_on_any_terminal(
    tmp_path: Path, width: int, height: int, windows: bool
) -> None:
    lines = shown(tmp_path, width, height, windows=windows)
    assert len(lines) < height
    assert max(map(len, lines)) <= width
    for line, value in zip([line for line in lines if line.startswith(tuple(METRICS))], NOW, strict=False):
        assert "…" not in line
        assert re.search(rf" {re.escape(value)}(  |$)", line)
    if width >= 80 and height >= 20:
        assert sum(line.startswith(tuple(METRICS)) for line in lines) == len(METRICS)
        assert windows == (lines[-1].count("12.3 M") == 4)
        assert any(line.endswith("chappe consume demo.metrics --tower 127.0.0.1:12345:23456") for line in lines)


def test_more_metrics_than_lines_are_counted(tmp_path: Path) -> None:
    lines = shown(tmp_path, 80, 10, windows=True)
    assert lines[-1] == "... and 1 more metric"


def test_names_of_somebody_elses_input_stay_on_their_line(tmp_path: Path) -> None:
    flow = Flow()
    flow.hear({"newest": {"a\nb\x1b[2J": [1.0, ""], "[bold]": [2.0, ""], "long" * 50: [3.0, ""]}})
    out = io.StringIO()
    Console(file=out, width=80).print(MetricsTable(flow, Windows(tmp_path / "w"), 10))
    assert [line.split("  ")[0].strip() for line in out.getvalue().splitlines()[1:]] == [
        "[bold]", "a?b?[2J", "longlonglonglonglon…",
    ]  # fmt: skip


def test_the_curve() -> None:
    assert curve([]) == curve([math.nan]) == ""
    assert curve([5.0, 5.0]) == "▁▁"
    assert curve([0.0, 7.0, 3.5]) == "▁█▄"
    assert curve([-1e308, 1e308, math.inf]) == "▁▁"
    assert len(curve(range(100), 16)) == 16


def test_commands_name_the_tower_unless_it_is_where_they_look(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "program", lambda: "chappe")
    default, other = "127.0.0.1:5556:5557", "127.0.0.1:7000:7001"
    assert run.look("t", default, "127.0.0.1:5556") == [
        "chappe topics",
        "chappe consume t",
        "chappe dashboard",
    ]
    assert run.look("t", default, other)[0] == "chappe topics --tower 127.0.0.1:5556"
    assert run.look("t", other, other)[0] == "chappe topics --tower 127.0.0.1:7000"
    assert run.look("t", "127.0.0.1:7000:9", other)[0] == "chappe topics --tower 127.0.0.1:7000:9"


def test_a_taken_port_is_left_to_who_has_it() -> None:
    with (
        Tower("127.0.0.1:0") as taken,
        run.free_tower(taken.address) as other,
        run.free_tower("10.255.255.1:5556") as elsewhere,
    ):
        assert len({taken.address, other.address, elsewhere.address}) == 3


class Sent:
    """Stands for a producer."""

    next_offset = stored = 0

    def __init__(self) -> None:
        self.lines: list[bytes] = []

    def send_many(self, lines: list[bytes]) -> None:
        self.lines += lines
        self.next_offset = len(self.lines)

    def flush(self, timeout: float) -> None:
        self.stored = self.next_offset


def test_a_feed_that_is_stopped_leaves_out_half_a_line(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "in")
    producer = Sent()
    feed = DemoFeed(cast("Producer", producer), str(tmp_path / "in"))
    with (tmp_path / "in").open("wb", buffering=0) as out:
        out.write(b"one\ntwo\nthr")
        until(lambda: len(producer.lines) == 2, lambda: producer.lines)
        feed.stop()
    feed.check()
    assert producer.lines == [b"one", b"two"]
    facts = {"first": 0, "kind": LINES, "sent": 2, "stored": 2, "ended": True}
    assert facts.items() <= feed.facts.items()


def test_a_feed_that_fails_says_why(tmp_path: Path) -> None:
    feed = DemoFeed(cast("Producer", Sent()), str(tmp_path))
    feed.stop()
    with pytest.raises(IsADirectoryError):
        feed.check()
