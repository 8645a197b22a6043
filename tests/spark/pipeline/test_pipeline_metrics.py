"""Numbers for people and for Prometheus."""

from __future__ import annotations

import io
import json
import urllib.error
import urllib.request
from types import SimpleNamespace

import pytest
from rich.console import Console

from chappe.cli.metrics import RunNumbers, serve_numbers
from chappe.cli.pipeline_run import PipelineRun, line, seconds, tables
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


def test_prometheus_is_served_everything() -> None:
    pytest.importorskip("prometheus_client")
    run = PipelineRun(SimpleNamespace(name="p"), "", None, False, None, "0", False)  # type: ignore[arg-type]
    server = serve_numbers(RunNumbers(run._families, run._unready), "0", None)
    ready = server.url.replace("metrics", "health/ready")
    try:
        with pytest.raises(urllib.error.HTTPError, match="503") as refused:
            urllib.request.urlopen(ready)
        assert json.loads(refused.value.read()) == {"ready": False, "why": "pipeline p is starting"}
        run.running = SimpleNamespace(stage="running", numbers=[NUMBERS])  # type: ignore[assignment]
        with urllib.request.urlopen(ready) as answer:
            assert json.load(answer) == {"ready": True}
        with urllib.request.urlopen(server.url) as answer:
            served = answer.read().decode().splitlines()
        port = server.url.split(":")[2].split("/")[0]
        with pytest.raises(AddressInUse, match="in use: stop the program that listens there, or choose another"):
            serve_numbers(RunNumbers(run._families, run._unready), port, None)
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
