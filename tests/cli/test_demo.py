from __future__ import annotations

import json
import re
import signal
import subprocess
import urllib.request
from pathlib import Path

import psutil  # type: ignore[import-untyped, unused-ignore]
import pyarrow.parquet as parquet
import pytest
from tests.cli.conftest import PATIENCE_S, Shell
from tests.waiting import SPARK_S, until

from chappe.cli.demo.run import METRICS_TOPIC

pytestmark = [pytest.mark.process, pytest.mark.spark]


@pytest.fixture(autouse=True)
def _any_port(shell: Shell) -> None:
    shell.env["CHAPPE_TOWER"] = "127.0.0.1:0"


def rows(shell: Shell) -> list[dict[str, object]]:
    found: list[dict[str, object]] = parquet.read_table(shell.directory / "d" / "windows").to_pylist()
    return found


def left_running(shell: Shell) -> list[str]:
    """Processes that still work in the directory of the test."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        try:
            if Path(process.cwd()) == shell.directory:
                found.append(" ".join(process.info["cmdline"]))
        except (psutil.Error, OSError):
            continue
    return found


def nothing_left(shell: Shell) -> None:
    until(lambda: not left_running(shell), lambda: left_running(shell))


def started(shell: Shell, *more: str) -> subprocess.Popen[bytes]:
    """A demo whose store and producer run."""
    demo = shell.start("demo", "--directory", "d", "--seconds", "120", *more)
    until((shell.directory / "d" / "feed").exists, "a producer", SPARK_S)
    return demo


def address(demo: subprocess.Popen[bytes]) -> str:
    """Where its dashboard is, as it says when it begins."""
    assert demo.stdout is not None
    for line in demo.stdout:
        if found := re.search(r"http://127\.0\.0\.1:\d+/", line.decode()):
            return found.group()
    raise AssertionError("it never said where its dashboard is")


def topics_shown(page: str) -> list[str]:
    with urllib.request.urlopen(f"{page}snapshot.json", timeout=PATIENCE_S) as answer:
        return [each["name"] for each in json.load(answer)["topics"]]


def completed(shell: Shell, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    """Run a demo until Spark has read everything; on a slow machine it leaves that to the next one."""
    for _ in range(20):
        done = shell.run(*arguments, timeout=SPARK_S)
        assert done.returncode == 0, done.stderr.decode()
        if b"Spark has not read everything yet" not in done.stdout + done.stderr:
            return done
    raise AssertionError("it never read everything")


def test_every_line_is_counted_once_over_two_runs(shell: Shell) -> None:
    lines = [f"line {number}" for number in range(2000)]
    (shell.directory / "in.txt").write_text("\n".join(lines[:1500]) + "\n")
    arguments = ("demo", "--input", "in.txt", "--directory", "d")
    first = completed(shell, *arguments)
    assert sum(int(str(row["records"])) for row in rows(shell)) == 1500
    for told in (
        "topic demo.lines: d/log",
        "d/checkpoint",
        "d/windows",
        "consume demo.lines",
        "read_parquet",
        "topics --tower 127.0.0.1:",
    ):
        assert told in first.stdout.decode()
    nothing_left(shell)

    (shell.directory / "in.txt").write_text("\n".join(lines) + "\n")
    second = completed(shell, *arguments)
    assert "resuming in d" in second.stderr.decode()
    found = rows(shell)
    assert sum(int(str(row["records"])) for row in found) == 2000
    assert sum(float(str(row["total"])) for row in found) == sum(map(len, lines))
    nothing_left(shell)

    other = shell.run("demo", "--directory", "d")
    assert other.returncode == 2
    assert b"--fresh" in other.stderr


def test_nothing_is_left_of_a_demo_that_was_killed(shell: Shell) -> None:
    demo = started(shell)
    demo.kill()
    demo.communicate()
    nothing_left(shell)


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_a_demo_that_is_stopped_ends_cleanly(shell: Shell, how: signal.Signals) -> None:
    demo = started(shell, "--dashboard")
    page = address(demo)
    until(lambda: METRICS_TOPIC in topics_shown(page))
    with urllib.request.urlopen(page, timeout=PATIENCE_S) as answer:
        assert b"chappe" in answer.read()
    demo.send_signal(how)
    _, err = demo.communicate(timeout=SPARK_S)
    assert demo.returncode == 0
    assert b"Traceback" not in err
    nothing_left(shell)


def test_a_directory_of_something_else_is_left_alone(shell: Shell) -> None:
    (shell.directory / "d").mkdir()
    (shell.directory / "d" / "precious").write_text("mine")
    for more in ((), ("--fresh",)):
        done = shell.run("demo", "--directory", "d", *more)
        assert done.returncode == 2
        assert b"not a demo's" in done.stderr
    assert (shell.directory / "d" / "precious").read_text() == "mine"
