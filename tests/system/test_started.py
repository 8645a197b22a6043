from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
from tests.cli.conftest import Shell
from tests.cli.conftest import shell as shell
from tests.waiting import until

from chappe.dashboard.sources.maps import MapSource
from chappe.observing.health import problems_of
from chappe.observing.snapshot import ObservedMember, ObservedPart, ObservedStore
from chappe.system import started


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state"


def test_the_command_that_started_a_server_is_told_with_where(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["/bin/chappe", "store", "my data", "--tower", "h:1"])
    assert started.command("store 1", "chappe store DIRECTORY") == "chappe store DIRECTORY"
    started.note("store 1", "store tcp://h:2")
    assert started.command("store tcp://h:2", "") == "chappe store 'my data' --tower h:1"
    (tmp_path / "other place").mkdir()
    monkeypatch.chdir(tmp_path / "other place")
    assert started.command("store 1", "") == f"cd {tmp_path} && chappe store 'my data' --tower h:1"


def test_notes_are_bounded_private_and_no_trouble(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(started.NOTES_MAX + 3):
        started.note(f"store {number}")
    (home,) = state.glob("**/started")
    assert len(list(home.iterdir())) == started.NOTES_MAX
    assert home.stat().st_mode & 0o077 == 0
    for place in home.iterdir():
        place.write_text("no note")
    assert started.command(f"store {started.NOTES_MAX}", "otherwise") == "otherwise"
    monkeypatch.setenv("XDG_STATE_HOME", os.devnull)
    started.note("store")
    assert started.command("store", "otherwise") == "otherwise"


@pytest.mark.process
def test_a_missed_server_of_a_map_is_started_by_what_the_dashboard_says(shell: Shell, state: Path) -> None:
    shell.env["XDG_STATE_HOME"] = str(state)
    arguments = ("map", "serve", "--at", "127.0.0.1:0", "--backend", "sqlite", "--path", "kept.db", "--json")
    server = shell.start(*arguments)
    assert server.stdout is not None
    address = json.loads(server.stdout.readline())["address"]
    shell.stop(server)
    source = MapSource([address])
    try:
        until(lambda: source.look().problems)
        (problem,) = source.look().problems
    finally:
        source.close()
    assert problem.mend == f"Start it: cd {shell.directory} && chappe {' '.join(arguments)}"


def test_remedies_have_what_is_known() -> None:
    tower = ObservedMember("t", "tower", "tower", "10.0.0.5:7000")
    keeping = ObservedStore("data store", "hosts", copies=("e",), ages=(None,))
    known = ObservedStore("data store", "users", copies=("e",), ages=(None,), mend="cd /srv && chappe kv serve users")
    mends = {each.key: each.mend for each in problems_of([ObservedPart((tower,), (), keepings=(keeping, known))], [])}
    assert mends == {
        "no store": "Start one: chappe store DIRECTORY --tower 10.0.0.5:7000",
        "masterless hosts": "Start its master again: chappe kv serve hosts, with the options that it had; "
        "or link the endpoint that has it.",
        "masterless users": "Start its master again: cd /srv && chappe kv serve users; "
        "or link the endpoint that has it.",
    }
