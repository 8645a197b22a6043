"""``chappe pipeline`` as people and supervisors use it."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import Shell
from tests.cli.test_demo import nothing_left
from tests.waiting import SPARK_S, until

from chappe.cli import pipeline_run
from chappe.cli.console import TERMINATED, obey_sigterm
from chappe.observing.snapshot import ObservedQuery
from chappe.spark.pipeline.reading import read_pipeline
from chappe.spark.pipeline.running import PipelineFailed
from chappe.spark.pipeline.states import States

pytestmark = pytest.mark.process

TEXT = """\
name = "count"
sql = "SELECT metric, count(*) AS records FROM measurements GROUP BY metric"
[inputs.measurements]
topic = "m"
schema = "metric STRING, value DOUBLE"
[output]
kind = "console"
mode = "update"
"""


def written(shell: Shell, text: str = TEXT, name: str = "p.toml") -> Path:
    path = shell.directory / name
    path.write_text(text)
    return path


def events(text: bytes) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def event(process: subprocess.Popen[bytes], name: str) -> dict[str, Any]:
    """The next event of this name that a run with --json tells."""
    assert process.stdout is not None
    for line in process.stdout:
        found: dict[str, Any] = json.loads(line)
        if found["event"] == name:
            return found
    raise AssertionError(f"no event {name}; exit code {process.wait()}")


def test_a_wrong_file_is_told_line_by_line(shell: Shell) -> None:
    written(shell, TEXT.replace("kind", "kin").replace("topic", "topics"))
    done = shell.run("pipeline", "check", "p.toml")
    assert done.returncode == 2
    lines = done.stderr.decode().splitlines()
    assert lines[1] == "chappe: p.toml, line 4: unknown key `inputs.measurements.topics`: did you mean `topic`?"
    assert len(lines) == 4
    for command in ("check", "run"):
        machine = shell.run("pipeline", command, "p.toml", "--json")
        assert machine.returncode == 2
        (found,) = events(machine.stdout)
        assert found["ok"] is False
        assert [each["line"] for each in found["problems"]] == [3, 4, 6, 7]


def test_wrong_options_are_refused(shell: Shell) -> None:
    written(shell)
    for more, said in (
        (("--master", "spark"), "is not where Spark runs"),
        (("--metrics", "x"), "[HOST:]PORT is wanted"),
    ):
        done = shell.run("pipeline", "run", "p.toml", *more)
        assert done.returncode == 2
        assert said in done.stderr.decode()


def test_nothing_runs(shell: Shell) -> None:
    done = shell.run("pipeline", "list")
    assert b"no pipeline runs" in done.stdout
    for command in ("status", "stop"):
        done = shell.run("pipeline", command, "count")
        assert (done.returncode, done.stderr) == (1, b"chappe: no pipeline count runs here\n")


@pytest.mark.spark
def test_a_run_can_be_watched_and_stopped(shell: Shell) -> None:
    shell.up()
    shell.run("produce", "m", stdin=b'{"metric": "a", "value": 1}\n' * 30)
    path = written(shell)
    run = shell.start("pipeline", "run", "p.toml", "--json", "--metrics", "0", "--dashboard")
    page = event(run, "dashboard")["url"]
    started = event(run, "started")
    assert (started["pipeline"], started["pid"], started["master"]) == ("count", run.pid, "local[*]")
    assert event(run, "row") == {"event": "row", "query": "count", "row": {"metric": "a", "records": 30}}
    progress = event(run, "progress")
    assert (progress["rows"], progress["state_rows"], progress["lag"]) == (
        30,
        1,
        [{"topic": "m", "records": 0, "seconds": 0.0, "bytes": 0}],
    )
    with urllib.request.urlopen(started["metrics"]) as answer:
        served = answer.read().decode()
    assert 'chappe_pipeline_rows_total{pipeline="count",query="count"} 30.0' in served
    assert 'chappe_pipeline_lag_records{pipeline="count",query="count",topic="m"} 0.0' in served
    assert started["metrics"].startswith("http://127.0.0.1:")

    again = shell.run("pipeline", "run", "p.toml")
    assert again.returncode == 1
    assert f"pipeline count runs already (process {run.pid}, {path})" in again.stderr.decode()

    listed = events(shell.run("pipeline", "list", "--json").stdout)
    assert [(each["name"], each["pid"]) for each in listed] == [("count", run.pid)]
    until(lambda: json.loads(shell.run("pipeline", "status", "count", "--json").stdout)["queries"][0]["rows"] == 30)
    shown = shell.run("pipeline", "status", "count").stdout.decode()
    assert "count: running" in shown
    assert started["metrics"] in shown
    assert "p.toml" in shell.run("pipeline", "list").stdout.decode()

    def seen() -> list[Any]:
        with urllib.request.urlopen(f"{page}snapshot.json") as answer:
            snapshot = json.load(answer)
        return [[each["name"], each["lag"]] for topic in snapshot["topics"] for each in topic["readers"]]

    until(lambda: seen() == [["count", 0]])

    stopped = shell.run("pipeline", "stop", "count", timeout=SPARK_S)
    assert (stopped.returncode, stopped.stderr) == (0, b"pipeline count ended\n")
    out, err = run.communicate(timeout=SPARK_S)
    assert (run.returncode, b"Traceback" in err) == (0, False)
    assert events(out)[-1] == {"event": "ended", "pipeline": "count", "rows": 30, "batches": 1, "finished": True}
    assert b"no pipeline runs" in shell.run("pipeline", "list").stdout


@pytest.mark.spark
def test_a_run_that_is_stopped_before_it_began_says_so(shell: Shell) -> None:
    written(shell)
    run = shell.start("pipeline", "run", "p.toml")
    assert run.stderr is not None
    assert b"starting pipeline count" in run.stderr.readline()
    run.send_signal(signal.SIGTERM)
    out, err = run.communicate(timeout=SPARK_S)
    assert (run.returncode, out) == (143, b"")
    assert b"was stopped in the middle; the next run goes on from its checkpoint" in err
    assert b"Traceback" not in err
    nothing_left(shell)


class Hung:
    """A pipeline that starts for ever, unless it is stopped; what it is shown with gets a signal where Python raises
    nothing."""

    alive = True
    stage = "starting"
    master = "local"
    page = ""
    error = None
    unfinished = False
    events: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def __init__(self) -> None:
        self.stops: list[bool] = []
        self.waits = 0

    @property
    def numbers(self) -> list[ObservedQuery]:
        class Last:
            def __del__(self) -> None:
                signal.raise_signal(signal.SIGTERM)
                len([])  # a handler runs here, and what it raised would end here

        if True not in self.stops:
            Last()
        return []

    def stop(self, *, hurry: bool = False) -> None:
        self.stops.append(hurry)

    def join(self, timeout_s: float) -> None:
        self.waits += 1
        assert self.waits < 10, f"not stopped in {self.waits} times {timeout_s} s"


class Failed:
    """A pipeline that has ended with an error."""

    alive = False
    stage = "ended"
    error = PipelineFailed("query q failed:\n  no column named x")
    events: queue.SimpleQueue[Any] = queue.SimpleQueue()


def test_what_a_pipeline_ended_with_is_kept_until_it_is_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "p.toml"
    path.write_text(TEXT)
    monkeypatch.setattr(pipeline_run, "RunningPipeline", lambda *_, **__: Failed())
    states = States(tmp_path / "states")
    this = pipeline_run.PipelineRun(read_pipeline(path), "", None, False, None, None, True, states)

    with pytest.raises(PipelineFailed):
        this.run()

    (failure,) = states.failures()
    assert (failure.name, failure.file) == ("count", str(path))
    assert failure.error == "query q failed: no column named x"
    assert failure.log.endswith(".log")


def test_signals_are_heard_wherever_python_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One that was raised in an import or at a lock had the pipeline's thread wait for ever."""
    path = tmp_path / "p.toml"
    path.write_text(TEXT)
    hung = Hung()
    monkeypatch.setattr(pipeline_run, "RunningPipeline", lambda *_, **__: hung)
    states = States(tmp_path / "states")
    this = pipeline_run.PipelineRun(read_pipeline(path), "", None, False, None, None, True, states)
    before = signal.getsignal(signal.SIGTERM)
    try:
        obey_sigterm()
        obeyed = signal.getsignal(signal.SIGTERM)
        assert this.run() == TERMINATED
        assert signal.getsignal(signal.SIGTERM) is obeyed
    finally:
        signal.signal(signal.SIGTERM, before)
    assert (hung.stops, states.running()) == ([False, True], [])
    assert "was stopped in the middle" in capsys.readouterr().err


SLOW = """\
# /// chappe
# [inputs.readings]
# topic = "m"
# [output]
# kind = "parquet"
# path = "out"
# ///
import time

from pyspark.sql.functions import udf


def slow(value):
    time.sleep(0.2)
    return len(value)


def pipeline(spark, readings):
    return readings.select(udf(slow, "int")("value").alias("size"))
"""


@pytest.mark.spark
def test_ctrl_c_lets_the_batch_under_way_be_finished(shell: Shell) -> None:
    shell.up()
    shell.run("produce", "m", stdin=b"record\n" * 10)
    path = written(shell, SLOW, "slow.py")
    command = [sys.executable, "-m", "chappe", "pipeline", "run", str(path), "--json"]
    # as from a terminal, Ctrl-C goes to a whole process group
    run = subprocess.Popen(command, env=shell.env, stdout=subprocess.PIPE, start_new_session=True)
    shell.running.append(run)
    checkpoint = shell.directory / "chappe-data" / "pipelines" / "slow"
    until((checkpoint / "offsets" / "0").exists, timeout_s=SPARK_S)
    os.killpg(run.pid, signal.SIGINT)
    out, _ = run.communicate(timeout=SPARK_S)
    assert run.returncode == 0
    assert events(out)[-1] == {"event": "ended", "pipeline": "slow", "rows": 10, "batches": 1, "finished": True}
    assert (checkpoint / "commits" / "0").exists()


@pytest.mark.spark
def test_a_failure_is_one_sentence_and_ends_everything(shell: Shell) -> None:
    written(shell, TEXT.replace('topic = "m"', 'topic = "m"\nstores = "tcp://127.0.0.1:9"'))
    run = shell.run("pipeline", "run", "p.toml", "--once", timeout=SPARK_S)
    assert run.returncode == 1
    last = run.stderr.decode().splitlines()[-1]
    assert last.startswith("chappe: query count failed: no store answers at tcp://127.0.0.1:9; start one or correct")
    assert "count.log" in last
    nothing_left(shell)
