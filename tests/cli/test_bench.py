"""``chappe bench``: log, mesh and shared state under load, by real processes; and what it refuses."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import PATIENCE_S, Shell
from typer.testing import CliRunner

from chappe.benchmark.load import mesh
from chappe.benchmark.load.crew import Crew
from chappe.benchmark.load.frame import SourceLoad
from chappe.benchmark.load.report import LoadReport
from chappe.cli.app import app


def measured(shell: Shell, *arguments: str) -> dict[str, Any]:
    done = shell.run("bench", *arguments, "--json")
    assert (done.returncode, done.stderr) == (0, b"")
    facts: dict[str, Any] = json.loads(done.stdout)
    assert facts["complete"]
    assert facts["troubles"] == []
    assert facts["seconds"] > 0
    return facts


def counts(facts: dict[str, Any], unit: str) -> dict[str, tuple[int, int | None]]:
    return {each["role"]: (each["processes"], each.get(unit)) for each in facts["groups"]}


@pytest.mark.process
def test_the_log_is_measured_at_a_store_of_its_own(shell: Shell) -> None:
    facts = measured(shell, "log", "--records", "2001", "--directory", str(shell.directory))
    assert (facts["records_sent"], facts["records_lost"]) == (2001, 0)
    assert counts(facts, "records") == {
        "producer": (1, 2001), "consumer": (1, 2001), "tower": (1, None), "store": (1, None),
    }  # fmt: skip
    latency = facts["latency"]
    assert {name: each["count"] for name, each in latency.items()} == {"consumed": 2001, "stored": 5}
    for each in latency.values():
        assert 0 < each["min_us"] <= each["p50_us"] <= each["p99_us"] <= each["p999_us"] <= each["max_us"]
    assert facts["cpu_us_per_record"] > 0
    assert not list(shell.directory.glob("chappe-bench-*"))


@pytest.mark.process
def test_the_mesh_is_measured_over_hops_by_fan_out_and_under_stress(shell: Shell) -> None:
    more = ("--fan-out", "2", "--hops", "2", "--churn", "1", "--rate", "1000")
    facts = measured(shell, "mesh", "--messages", "300", *more)
    assert (facts["messages_sent"], facts["messages_lost"]) == (300, 0)
    assert counts(facts, "messages") == {
        "publisher": (1, 300), "subscriber": (2, 600), "forwarder": (1, None), "visitor": (1, None),
    }  # fmt: skip
    assert facts["latency"]["received"]["count"] == 600


@pytest.mark.process
@pytest.mark.parametrize(
    ("kind", "roles"),
    [
        ("data-store --clones 1", {"writer": (1, 300), "clone": (1, 300), "master": (1, None)}),
        ("map --clones 1", {"writer": (1, 300), "client": (1, 300), "server": (1, None)}),
        ("chain --servers 2", {"writer": (1, 300), "server": (2, None)}),
    ],
)
def test_each_kind_of_shared_state_is_measured(shell: Shell, kind: str, roles: dict[str, object]) -> None:
    facts = measured(shell, "state", "--kind", *kind.split(), "--puts", "300", "--batch", "50")
    assert counts(facts, "puts") == roles
    assert facts["latency"]["confirmed"]["count"] == 6
    assert facts["latency"].get("visible", {}).get("count", 300) == 300


def run_with(during: Callable[[Crew], None]) -> tuple[LoadReport, Crew]:
    """A run of the mesh without an end; ``during`` is called when the first messages have arrived."""
    called = False

    def show(text: str, share: float) -> None:
        nonlocal called
        if not called and "arrived" in text and not text.endswith(" 0 arrived"):
            called = True
            during(crew)

    load = SourceLoad(None, None, 100, 10, 1_000.0)
    with Crew(show) as crew:
        mesh.start(crew, [load], 1, 1, 0)
        reason, cut = crew.run("message", [load])
    assert all(each.process.poll() is not None for each in crew._processes.children.values())
    return LoadReport("mesh", "message", 100, {}, None, crew.members, reason, cut), crew


@pytest.mark.process
def test_ctrl_c_gives_what_was_measured_until_then() -> None:
    def stop(_: Crew) -> None:
        raise KeyboardInterrupt

    report, crew = run_with(stop)
    assert crew.stopped is not None
    assert report.troubles() == ["stopped before its end: these are the numbers until then"]
    assert report.sent > 0
    assert report.latencies()["received"].count > 0
    assert all(each.count > 0 and each.ended is None for each in report.members)


@pytest.mark.process
def test_a_process_that_dies_ends_the_run_and_is_named() -> None:
    report, _ = run_with(lambda crew: crew._processes.children["subscriber"].process.kill())
    assert report.troubles() == ["subscriber: ended by SIGKILL"]
    assert not report.complete
    assert report.sent > 0
    assert report.lost is None


@pytest.mark.process
def test_a_store_whose_parent_is_killed_removes_the_records(tmp_path: Path) -> None:
    where = {"tower": "127.0.0.1:1", "listen": "127.0.0.1", "security": "plain"}
    begin = {"order": "begin", "work": "log.store", "where": where, "directory": str(tmp_path / "scratch")}
    command, pipe = [sys.executable, "-P", "-m", "chappe.benchmark.load.worker"], subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(begin).encode() + b"\n")
        process.stdin.flush()
        assert json.loads(process.stdout.readline()) == {"event": "ready"}
        assert (tmp_path / "scratch").is_dir()
        process.stdin.close()
        assert process.wait(PATIENCE_S) == 1
    assert not (tmp_path / "scratch").exists()


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ("log --size 5", "--size is from 16 bytes, which a stamp needs, to 1MiB, not 5"),
        ("mesh --size 2MiB", "--size is from 8 bytes, which a stamp needs, to 1MiB, not 2MiB"),
        ("log --batch 10000 --size 1MiB", "10,000 records of 1,048,576 bytes in one call are more than 64 MiB"),
        ("mesh --rate 0.1 --batch 10", "each process would send only every 100 s: raise --rate"),
        ("state --puts 2 --writers 3", "2 puts are too few for 3 processes to send some each"),
        ("log --topic x", "--topic is for stores that run already: give --tower, too"),
        ("log --min-acks 2", "a store of its own is one: --min-acks is 0 or 1, or give --tower of several stores"),
        ("log --tower :1 --directory x", "--directory is for a store of its own, and --tower names others: give one"),
        ("log --tower 127.0.0.1:1", "no tower answers at 127.0.0.1:1: start one with chappe up, or leave out --tower"),
        ("log --directory /there/is/none", "/there/is/none: cannot be used: No such file or directory"),
        ("state --clones 2 --kind chain", "--clones is for data stores and maps: a chain has --servers"),
        ("state --servers 2", "--servers and --directory are for a chain: give --kind chain, too"),
    ],
)
def test_what_cannot_be_measured_is_refused_in_a_sentence(arguments: str, problem: str) -> None:
    done = CliRunner().invoke(app, ["bench", *arguments.split()])
    assert str(done.exception).startswith(problem)
