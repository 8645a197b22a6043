"""What a shell completes: names that are there, from a file that is brought up to date behind the answer."""

from __future__ import annotations

import os
import subprocess
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import pytest
from tests.cli.conftest import Shell
from tests.ports import free_address
from tests.waiting import until
from typer.main import get_command

from chappe import Consumer, Endpoint, Producer, Store, Tower
from chappe.cli import completing, names_there
from chappe.cli.app import app
from chappe.cli.console import answers

SHELL: Final[Any] = import_module("typer._completion_classes").BashComplete


def tab(*words: str) -> list[str]:
    """The names that a shell offers for the last of these words."""
    found = SHELL(get_command(app), {}, "chappe", "_CHAPPE_COMPLETE").get_completions(list(words[:-1]), words[-1])
    return [each.value for each in found if each.type == "plain"]


@pytest.fixture
def started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The processes that are started; what they do is done at once."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CHAPPE_IDENTITY", "")  # which completion sets, and a process of its own would forget
    for name in ("FRESH_S", "STARTED_S"):
        monkeypatch.setattr(completing, name, 1e6)  # however slow this machine is
    found: list[list[str]] = []

    def start(command: list[str], **options: Any) -> None:
        found.append(command)
        assert options["start_new_session"]
        assert command[1:3] == ["-m", "chappe.cli.names_there"]
        names_there.main(*command[3:])

    monkeypatch.setattr(subprocess, "Popen", start)
    return found


def test_names_of_the_log_are_completed_and_come_anew_when_they_are_old(
    started: list[list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Tower("127.0.0.1:0") as tower, Store(tmp_path / "store", tower=tower.address):
        at = ("--tower", tower.address)
        with Producer(tower=tower.address) as producer:
            for topic in ("orders", "ordinary", "other", "ord;rm -rf x", "$(reboot)"):
                producer.send(b"", topic=topic)
        with Consumer("orders", tower=tower.address, group="billing", member="worker-1") as consumer:
            list(consumer.to_end(60))
            assert tab("consume", *at, "ord") == []  # nothing is known yet
            assert len(started) == 1
            assert tab("consume", *at, "ord") == ["orders", "ordinary"]
            assert tab("produce", *at, "") == ["orders", "ordinary", "other"], "a shell would run the others"
            assert tab("groups", "show", *at, "b") == ["billing"]
            assert tab("groups", "reset", "billing", *at, "--topic", "ot") == ["other"]
            assert tab("consume", "orders", *at, "--member", "") == ["worker-1"]
            assert tab("consume", "orders", *at, "--partition", producer.partition[:3]) == [producer.partition]
            assert len(started) == 1, "what is fresh is not asked for again"
        with Producer("orders-2", tower=tower.address) as producer:
            producer.send(b"")
        for each in (tmp_path / "chappe" / "names").iterdir():
            os.utime(each, (0, 0))
        tab("copy", *at, "ord")  # with what is old; meanwhile it is asked for
        assert tab("copy", *at, "ord") == ["orders", "orders-2", "ordinary"]
        assert len(started) == 2
    for each in (tmp_path / "chappe" / "names").iterdir():
        os.utime(each, (0, 0))
    monkeypatch.setattr(completing, "LISTEN_S", 60.0)
    until(lambda: not answers(tower.address))
    assert tab("topics", *at, "ot") == ["other"], "what was there is known without a tower"
    assert len(started) == 2


def test_nothing_is_started_where_nobody_listens(started: list[list[str]], tmp_path: Path) -> None:
    nowhere = free_address()
    assert tab("consume", "--tower", nowhere, "") == []
    assert tab("kv", "get", "--peer", nowhere, "") == []
    assert tab("consume", "--tower", "no:such:address:at:all", "") == []
    assert tab("consume", "--as", "/nowhere/x", "--tower", nowhere, "") == []
    assert started == []
    assert not (tmp_path / "chappe").exists()


def test_data_stores_are_those_that_a_peer_knows(started: list[list[str]]) -> None:
    with Endpoint() as keeper:
        keeper.attach_master("hosts")
        at = ("--peer", f"127.0.0.1:{keeper.listen('127.0.0.1', 0)}")
        assert tab("kv", "get", *at, "") == []
        assert tab("kv", "get", *at, "h") == ["hosts"]


@pytest.mark.process
def test_shells_ask_as_they_are_set_up_to(shell: Shell) -> None:
    facts = shell.up()
    shell.run("produce", "orders", "hi")
    words = {"COMP_WORDS": "chappe consume or", "COMP_CWORD": "2", "_TYPER_COMPLETE_ARGS": "chappe consume or"}
    shell.env |= words | {"XDG_CACHE_HOME": shell.env["HOME"], "CHAPPE_TOWER": facts["tower"]}
    for kind, expected in (("bash", b"orders\n"), ("zsh", b"_arguments '*: :((\"orders\"))'\n")):
        shell.env["_CHAPPE_COMPLETE"] = f"complete_{kind}"
        until(lambda expected=expected: shell.run().stdout == expected)  # type: ignore[misc]
