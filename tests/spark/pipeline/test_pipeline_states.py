"""State files: who runs, who has gone, and who may begin."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from tests.waiting import PATIENCE_S

from chappe.observing.snapshot import ObservedQuery
from chappe.spark.pipeline.states import PipelineNotRunning, PipelineRunning, PipelineState, States, started_at

pytest.importorskip("psutil")


def state(name: str, pid: int = os.getpid(), started: float | None = None) -> PipelineState:
    began = started_at(pid) if started is None else started
    assert began is not None
    return PipelineState(name, f"/{name}.toml", pid, began, "2026-01-01T00:00:00Z")


def test_a_name_is_claimed_once(tmp_path: Path) -> None:
    states = States(tmp_path / "s")
    assert states.running() == []
    with states.claim(state("a")), states.claim(state("b")):
        assert [each.name for each in states.running()] == ["a", "b"]
        with (
            pytest.raises(PipelineRunning, match=r"pipeline a runs already.*chappe pipeline stop a"),
            states.claim(state("a")),
        ):
            pass
        assert states.find("a").pid == os.getpid()
    with pytest.raises(PipelineNotRunning, match="no pipeline a runs here"):
        states.find("a")


def test_readers_see_what_was_written_last(tmp_path: Path) -> None:
    states = States(tmp_path)
    mine = state("a")
    with states.claim(mine):
        mine.stage, mine.queries = "running", [ObservedQuery("q")]
        states.write(mine)
        assert states.find("a") == mine
    assert sorted(each.name for each in tmp_path.iterdir()) == ["lock"]


@pytest.mark.parametrize("left", ["reused", "gone", "damaged", "foreign"])
def test_what_was_left_behind_is_removed(tmp_path: Path, left: str) -> None:
    states = States(tmp_path)
    path = tmp_path / "a.json"
    mine = started_at(os.getpid())
    assert mine is not None
    if left == "reused":  # the same process id, but it is another process
        states.write(state("a", started=mine - 100))
    elif left == "gone":
        gone = subprocess.Popen([sys.executable, "-c", ""])
        gone.wait()
        states.write(state("a", gone.pid, started=1.0))
    else:
        path.write_text('{"name": "a", ' if left == "damaged" else '{"a": 1}')
    assert path.exists()
    assert states.running() == []
    assert not path.exists()
    with states.claim(state("a")):
        pass


@pytest.mark.process
def test_stop_ends_the_process_and_waits_for_it(tmp_path: Path) -> None:
    states = States(tmp_path)
    other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    reaper = threading.Thread(target=other.wait)
    reaper.start()
    try:
        states.write(state("a", other.pid))
        assert states.stop("a", PATIENCE_S)
        reaper.join(PATIENCE_S)
        assert other.returncode == -signal.SIGTERM
    finally:
        other.kill()
        reaper.join()
