"""The example pipelines from end to end: real producers, tower and store, Spark, and a consumer of the results."""

from __future__ import annotations

import json
import random
import shutil
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.waiting import PATIENCE_S, SPARK_S

from chappe import Consumer, Producer, Store, Tower
from chappe.spark.pipeline.model import Trigger
from chappe.spark.pipeline.reading import read_pipeline
from chappe.spark.pipeline.running import RunningPipeline

pytest.importorskip("pyspark")
pytestmark = [pytest.mark.spark, pytest.mark.process]

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EXAMPLES = Path(__file__).parents[3] / "examples" / "pipelines"
START = 1_760_000_000_000_000  # microseconds since 1970, the beginning of a window of ten seconds
SECOND = 1_000_000


@pytest.fixture
def towers(spark: SparkSession, tmp_path: Path) -> Iterator[str]:
    """A tower that knows a store; what a pipeline sets in the session of all tests is taken back."""
    zone = spark.conf.get("spark.sql.session.timeZone")
    with Tower("127.0.0.1:0") as tower, Store(tmp_path / "log", tower=tower.address):
        yield tower.address
    spark.conf.set("spark.sql.session.timeZone", str(zone))


def process(name: str, tmp_path: Path, towers: str, times: int = 1) -> None:
    """Run an example over all that there is; a second time there is nothing new, which must add nothing."""
    folder = tmp_path / "pipelines"
    if not folder.exists():
        shutil.copytree(EXAMPLES, folder, ignore=shutil.ignore_patterns("chappe-data", "__pycache__"))
    for _ in range(times):
        running = RunningPipeline(read_pipeline(folder / name), towers, trigger=Trigger(available_now=True))
        running.join(SPARK_S)
        assert not running.alive
        if running.error is not None:
            raise running.error


def results(topic: str, towers: str, count: int) -> list[tuple[str, dict[str, Any]]]:
    """Keys and values of a topic: ``count`` of them, and whatever else comes soon after."""
    found: list[tuple[str, dict[str, Any]]] = []
    deadline = time.monotonic() + SPARK_S
    with Consumer(topic, tower=towers, reset="earliest") as consumer:
        while time.monotonic() < deadline:
            batch = consumer.poll(timeout=0.5)
            if batch is not None:
                found += [((each.key or b"").decode(), json.loads(each.value or b"")) for each in batch]
            elif len(found) >= count:
                break
    return found


def send(producer: Producer, at: int, key: str, **members: Any) -> None:
    producer.send(json.dumps(members), key=key, timestamp=at)


def test_windows_of_the_demos_feed(tmp_path: Path, towers: str) -> None:
    rng = random.Random(1)
    values = {(w, m): [rng.random() * 100 for _ in range(20)] for w in range(3) for m in ("cpu.0", "cpu.1")}
    with Producer("demo.metrics", tower=towers) as producer:
        for (window, metric), each in values.items():
            for n, value in enumerate(each):
                at = START + (10 * window) * SECOND + n * SECOND // 2
                send(producer, at, metric, metric=metric, value=value, unit="%")
        producer.send("no JSON", timestamp=START)
        send(producer, START + 100 * SECOND, "cpu.0", metric="cpu.0", value=0.0, unit="%")  # moves the watermark on
        producer.flush(PATIENCE_S)
    process("windows.toml", tmp_path, towers)
    found = results("demo.windows", towers, len(values))
    assert len(found) == len(values)
    for key, row in found:
        number = int((_micros(row["start"]) - START) / SECOND / 10)
        each = values[number, row["metric"]]
        assert (row["records"], key) == (20, row["metric"])
        assert row["average"] == pytest.approx(statistics.fmean(each))
        assert (row["smallest"], row["largest"], row["unit"]) == (min(each), max(each), "%")


def _micros(text: str) -> float:
    from datetime import datetime

    return datetime.fromisoformat(text).timestamp() * SECOND


def test_an_alert_for_what_is_not_usual(tmp_path: Path, towers: str) -> None:
    rng = random.Random(2)
    with Producer("demo.metrics", tower=towers) as producer:
        for n in range(100):
            for metric in ("cpu.0", "memory.used"):
                value = 99.0 if (n, metric) == (80, "cpu.0") else 20 + rng.random()
                send(producer, START + n * SECOND, metric, metric=metric, value=value, unit="%")
        producer.flush(PATIENCE_S)
    process("alerts.py", tmp_path, towers, times=2)
    ((key, alert),) = results("demo.alerts", towers, 1)
    assert (key, alert["metric"], alert["value"]) == ("cpu.0", "cpu.0", 99.0)
    assert 20 < alert["usual"] < 21
    assert _micros(alert["at"]) == START + 80 * SECOND


def test_requests_meet_their_responses(tmp_path: Path, towers: str) -> None:
    with (
        Producer("web.requests", tower=towers) as requests,
        Producer("web.responses", tower=towers) as responses,
    ):
        for n in range(10):
            send(requests, START + n * SECOND, str(n), id=n, path=f"/{n}")
            if n != 4:  # one is never answered
                send(responses, START + n * SECOND + 1000 * n, str(n), id=n, status=200)
        send(responses, START, "?", id=99, status=500)  # nobody asked
        for producer in (requests, responses):
            producer.flush(PATIENCE_S)
    process("latency.toml", tmp_path, towers)
    found = sorted(results("web.latency", towers, 9), key=lambda each: int(each[1]["id"]))
    assert [(key, row["id"], row["status"], row["milliseconds"]) for key, row in found] == [
        (f"/{n}", n, 200, n) for n in range(10) if n != 4
    ]


SUMS = """\
[inputs.readings]
topic = "readings"
schema = "metric STRING, amount DOUBLE"

[[queries]]
name = "changes"
sql = "SELECT metric, sum(amount) AS total FROM readings GROUP BY metric"
output = {kind = "topic", topic = "sums", key = "metric", mode = "update"}

[[queries]]
name = "newest"
sql = "SELECT metric, sum(amount) AS total, sum(amount) > 25 AS _deleted FROM readings GROUP BY metric"
output = {kind = "table", topic = "totals", key = "metric"}
"""


def test_rows_that_change_are_written_once_for_each_change(spark: SparkSession, tmp_path: Path, towers: str) -> None:
    from chappe.spark.tables import read_table

    folder = tmp_path / "pipelines"
    folder.mkdir()
    (folder / "sums.toml").write_text(SUMS)
    with Producer("readings", tower=towers) as producer:
        for amount in (1.0, 2.0):
            send(producer, START, "a", metric="a", amount=amount)
            send(producer, START, "b", metric="b", amount=10 * amount)
            producer.flush(PATIENCE_S)
            process("sums.toml", tmp_path, towers)
    # Spark forgets that it had done the last batch, as after a crash: it is done again, and written no second time
    commits = folder / "chappe-data" / "pipelines" / "sums" / "changes" / "commits"
    last = max(int(path.name) for path in commits.iterdir() if path.name.isdecimal())
    for path in (commits / str(last), commits / f".{last}.crc"):
        path.unlink(missing_ok=True)
    process("sums.toml", tmp_path, towers)
    found = results("sums", towers, 4)
    assert [(key, row["total"]) for key, row in found if key == "a"] == [("a", 1.0), ("a", 3.0)]
    assert [(key, row["total"]) for key, row in found if key == "b"] == [("b", 10.0), ("b", 30.0)]
    table = read_table(spark, "totals", "metric STRING, total DOUBLE", key="metric", towers=towers)
    assert [tuple(row) for row in table.collect()] == [("a", 3.0)]
