"""The partition that `chappe produce` goes on in, and what names no topic at all."""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import PATIENCE_S, Shell

from chappe.api.log.kept_partition import KeptPartitions
from chappe.dashboard.changes import DashboardChanges
from chappe.dashboard.entries import Entries
from chappe.dashboard.leases import Leases

pytestmark = pytest.mark.process


def produce(shell: Shell, *more: str, stdin: bytes = b"a\nb\n") -> dict[str, Any]:
    done = shell.run("produce", "t", "--json", *more, stdin=stdin)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def topics(shell: Shell) -> list[str]:
    return [json.loads(line)["topic"] for line in shell.run("topics", "--json").stdout.splitlines()]


def test_commands_without_an_identity_share_a_partition(shell: Shell) -> None:
    shell.up()
    found = [produce(shell) for _ in range(3)]
    assert [each["first"] for each in found] == [0, 2, 4]
    assert len({each["partition"] for each in found}) == 1
    others = shell.run("produce", "u", "--json", stdin=b"a\n").stdout
    assert json.loads(others)["partition"] != found[0]["partition"]


def test_commands_at_once_have_a_partition_each_and_leave_it_to_later_ones(shell: Shell) -> None:
    shell.up()
    first = shell.start("produce", "t", "--json", "--format", "length")
    assert first.stdin is not None
    first.stdin.write(b"\0\0\0\1a")
    first.stdin.flush()
    while not topics(shell):
        pass
    second = produce(shell)
    out, _ = first.communicate(timeout=PATIENCE_S)
    found = {json.loads(out)["partition"], second["partition"]}
    assert len(found) == 2
    assert produce(shell)["partition"] in found


def test_what_another_run_did_not_get_stored_is_not_sent_again(shell: Shell) -> None:
    shell.up()
    partition = produce(shell)["partition"]
    tower, shell.env["CHAPPE_TOWER"] = shell.env["CHAPPE_TOWER"], "127.0.0.1:1"
    assert shell.run("produce", "t", "--timeout", "1", stdin=b"lost\n").returncode == 1
    shell.env["CHAPPE_TOWER"] = tower
    killed = shell.start("produce", "t", "--format", "length")
    assert killed.stdin is not None
    killed.stdin.write(b"\0\0\0\1k")
    killed.stdin.flush()
    while b'"k"' not in shell.run("consume", "t", "--until-end", "--json").stdout:
        pass
    killed.send_signal(signal.SIGKILL)
    killed.wait(PATIENCE_S)
    after = produce(shell)
    assert (after["first"], after["partition"] == partition) == (0, False)
    read = shell.run("consume", "t", "--until-end", "--json").stdout.splitlines()
    assert sorted(json.loads(line)["value"] for line in read) == ["a", "a", "b", "b", "k"]
    assert produce(shell)["partition"] == after["partition"]


def test_a_new_store_gets_a_new_partition(shell: Shell) -> None:
    shell.up("kept")
    partition = produce(shell)["partition"]
    shell.stop(shell.running[0])
    shutil.rmtree(shell.directory / "kept")
    address = shell.env["CHAPPE_TOWER"]
    process = shell.start("up", "kept", "--tower", address, "--json")
    assert process.stdout is not None
    process.stdout.readline()
    found = produce(shell)
    assert (found["first"], found["partition"] == partition) == (0, False)


def test_where_nothing_can_be_kept_there_is_a_new_partition(shell: Shell) -> None:
    shell.up()
    shell.env["XDG_STATE_HOME"] = os.devnull
    assert [produce(shell)["first"] for _ in range(2)] == [0, 0]


@pytest.mark.parametrize(
    ("form", "stdin", "code", "said"),
    [
        ("json", b"no json\n", 1, b"line 1 of the input is not JSON"),
        ("length", b"\xff\xff\xff\xff", 1, b"record 1 of the input claims"),
        ("records", b"{}\n", 1, b"line 1 of the input is not a record"),
        ("lines", b"", 0, b"stored 0 records"),
    ],
)
def test_input_without_a_record_names_no_topic(shell: Shell, form: str, stdin: bytes, code: int, said: bytes) -> None:
    shell.up()
    done = shell.run("produce", "t", "--format", form, stdin=stdin)
    assert (done.returncode, said in done.stderr) == (code, True)
    assert topics(shell) == []


def test_a_name_that_is_no_text_is_refused(shell: Shell) -> None:
    done = shell.run("produce", "caf\udce9", stdin=b"x\n")
    assert done.returncode == 2
    assert done.stderr.startswith(b"chappe: the topic 'caf\\udce9' is not text in UTF-8")


def test_its_files_are_the_users_alone(shell: Shell) -> None:
    shell.up()
    produce(shell)
    (home,) = Path(shell.env["XDG_STATE_HOME"]).glob("chappe/produce/*")
    assert home.stat().st_mode & 0o077 == 0


def test_every_command_that_writes_continues_a_partition(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    shell.up()
    partition = produce(shell)["partition"]
    assert shell.run("archive", "t", "--to", "kept").returncode == 0
    for _ in range(2):
        assert shell.run("replay", "--from", "kept", "--speed", "max").returncode == 0
    for _ in range(2):
        recorder = shell.start("record", "x/", "--to", "mesh", "--mesh-listen", "127.0.0.1:0", "--json")
        assert recorder.stdout is not None
        address = json.loads(recorder.stdout.readline())["address"]
        assert shell.run("publish", "x/y", "1", "--peer", address).returncode == 0
        assert shell.stop(recorder)[0] == 0
    monkeypatch.setenv("XDG_STATE_HOME", shell.env["XDG_STATE_HOME"])
    leases = Leases()
    partitions = KeptPartitions("t", tower=shell.env["CHAPPE_TOWER"])
    for _ in range(2):
        changes = DashboardChanges(None, lambda _: partitions.producer(), None, Entries(None, {}, leases))
        changes.write("t", "", "by hand").carry_out()
    leases.close()
    assert produce(shell)["partition"] == partition
    rows = [json.loads(line) for line in shell.run("topics", "--partitions", "--json").stdout.splitlines()]
    assert {(row["topic"], row["records"]) for row in rows} == {("t", 10), ("mesh", 2)}
    assert len(rows) == 2
