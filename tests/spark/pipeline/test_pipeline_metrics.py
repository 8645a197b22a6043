"""Numbers for people and for Prometheus."""

from __future__ import annotations

import io
import urllib.request
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from chappe.cli.pipeline_run import line, seconds, serve_metrics, tables
from chappe.errors import AddressInUse
from chappe.observing.snapshot import ObservedLag, ObservedQuery

NUMBERS = ObservedQuery(
    "q",
    batch=3,
    batch_s=0.5,
    rows_in_s=1234.5,
    rows=5000,
    state_rows=2,
    state_bytes=2048,
    lag=(ObservedLag("t", 7, 1.25, 900), ObservedLag('odd "name"', 3, None)),
)


def running() -> Any:
    return SimpleNamespace(stage="running", numbers=[NUMBERS])


def test_prometheus_is_served_everything() -> None:
    pytest.importorskip("prometheus_client")
    server = serve_metrics("p", running(), "127.0.0.1", 0)
    try:
        with urllib.request.urlopen(server.url) as answer:
            served = answer.read().decode().splitlines()
        port = int(server.url.split(":")[2].split("/")[0])
        with pytest.raises(AddressInUse, match="for --metrics"):
            serve_metrics("p", running(), "127.0.0.1", port)
    finally:
        server.close()
    for wanted in (
        'chappe_pipeline_up{pipeline="p"} 1.0',
        'chappe_pipeline_rows_total{pipeline="p",query="q"} 5000.0',
        'chappe_pipeline_rows_in_per_second{pipeline="p",query="q"} 1234.5',
        'chappe_pipeline_state_bytes{pipeline="p",query="q"} 2048.0',
        'chappe_pipeline_lag_records{pipeline="p",query="q",topic="t"} 7.0',
        'chappe_pipeline_lag_bytes{pipeline="p",query="q",topic="t"} 900.0',
        'chappe_pipeline_lag_seconds{pipeline="p",query="q",topic="t"} 1.25',
        'chappe_pipeline_lag_records{pipeline="p",query="q",topic="odd \\"name\\""} 3.0',
    ):
        assert wanted in served
    assert not any("lag_seconds" in each and "odd" in each for each in served)


def test_people_get_a_line_or_tables() -> None:
    assert line(ObservedQuery("q")) == "q: no batch yet"
    assert line(NUMBERS) == (
        "q: 1,234 rows/s in, 0 processed, lag 10 records (? s), batch 3 took 0.50 s, 5,000 rows so far, "
        "state 2 rows (2.0 KiB)"
    )
    assert seconds(0.26) == "0.3 s"


@pytest.mark.parametrize("width", [200, 80, 60, 45])
def test_tables_leave_out_columns_rather_than_cut_numbers(width: int) -> None:
    out = io.StringIO()
    Console(file=out, width=width).print(*tables([NUMBERS]))
    lines = out.getvalue().splitlines()
    assert len(lines) == 2 + 3
    assert max(map(len, lines)) <= width
    assert "…" not in out.getvalue()
    assert "1,234" in lines[1]
    assert ("2.0 KiB" in lines[1]) == (width > 60)
