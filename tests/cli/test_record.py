"""``chappe record`` and ``chappe replay TOPIC`` as a user runs them."""

from __future__ import annotations

import json
import re
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
from pyarrow import parquet
from tests.cli.conftest import PATIENCE_S, Shell

from chappe import Endpoint
from chappe.data.scalars import Count
from chappe.data.zeek import Event

pytestmark = pytest.mark.process


def first_line(process: subprocess.Popen[bytes]) -> dict[str, Any]:
    assert process.stdout is not None
    found: dict[str, Any] = json.loads(process.stdout.readline())
    return found


def record(shell: Shell, messages: list[tuple[str, object]]) -> dict[str, Any]:
    """Publish to ``chappe record`` and end it; returns its account."""
    process = shell.start("record", "zeek/", "--to", "kept", "--mesh-listen", ":0", "--json")
    host, port = first_line(process)["address"].split(":")
    with Endpoint() as sensor:
        sensor.peer(host, int(port), timeout=PATIENCE_S)
        sensor.publish_batch(messages)
        sensor.unpeer(host, int(port), timeout=PATIENCE_S)
    code, out, err = shell.stop(process)
    assert (code, err) == (0, "")
    account: dict[str, Any] = json.loads(out)
    return account


def test_the_mesh_is_recorded_and_replayed(shell: Shell) -> None:
    shell.up()
    account = record(shell, [(f"zeek/{n}", n) for n in range(100)])
    assert (account["event"], account["topic"]) == ("done", "kept")
    assert (account["records"], account["stored"], account["left"], account["dropped"]) == (100, 100, 0, 0)
    assert record(shell, [("zeek/more", 100)])["records"] == 1

    lines = shell.run("consume", "kept", "--until-end", "--json").stdout.splitlines()
    records = [json.loads(line) for line in lines]
    assert [each["key"] for each in records] == [*[f"zeek/{n}" for n in range(100)], "zeek/more"]
    assert records[-1]["message"]["data"] == 100
    shown = shell.run("consume", "kept", "--count", "1").stdout
    assert re.search(rb"Z  kept/[0-9A-F]{8}@0  zeek/0  0\n$", shown)
    assert len({each["partition"] for each in records}) == 1  # the second run went on in it

    with Endpoint() as analyst:
        port = analyst.listen()
        subscriber = analyst.subscribe("zeek/")
        done = shell.run("replay", "kept", "--peer", f"127.0.0.1:{port}", "--speed", "max", "--start", "90", "--json")
        assert (done.returncode, done.stderr) == (0, b"")
        facts = json.loads(done.stdout)
        assert (facts["sent"], facts["skipped"], facts["topic"]) == (11, 0, "kept")
        found = [subscriber.get(PATIENCE_S) for _ in range(11)]
        assert [each.data for each in found if each is not None] == list(range(90, 101))


def test_it_dials_until_somebody_is_there(shell: Shell) -> None:
    shell.up()
    with Endpoint() as sensor:
        port = sensor.listen()
        process = shell.start("record", "", "--to", "kept", "--peer", f"localhost:{port}", "--json")
        assert sensor.await_peer(first_line(process)["id"], PATIENCE_S)
        sensor.publish("any", 1)
        assert shell.run("consume", "kept", "--count", "1", timeout=PATIENCE_S).returncode == 0
        code, out, _ = shell.stop(process, signal.SIGINT)
    assert code == 0
    assert json.loads(out)["stored"] == 1


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("record", "a", "--to", "t"), b"nobody can be heard: give --peer HOST:PORT"),
        (("record", "a", "--to", "t", "--peer", "localhost:x"), b"'localhost:x' is not an address: HOST:PORT"),
        (
            ("record", "a", "--to", "t", "--mesh-listen", ":0", "--tls", "keys", "me"),
            b"keys/authority.pem does not exist",
        ),
        (
            ("record", "a", "--to", "t", "--mesh-listen", ":0", "--plain", "--anonymous"),
            b"only one of --tls",
        ),
        (("record", "a", "--to", "t", "--mesh-listen", "0.0.0.0:0"), b"0.0.0.0 is not this machine"),
        (("replay",), b"give either a TOPIC that `chappe record` made"),
        (("replay", "t", "--from", "dir"), b"give either a TOPIC that `chappe record` made"),
        (("replay", "t", "--to", "u", "--anew"), b"--to and --anew can only be given with an archive, --from DIR"),
        (("replay", "--from", "dir", "--peer", "localhost:1"), b"--peer can only be given with a recorded TOPIC"),
        (("replay", "t", "--peer", "192.0.2.1"), b"192.0.2.1 is not this machine: give --as DIRECTORY/NAME"),
        (("replay", "t", "--peer", "localhost:1", "--start", "latest"), b"after the latest there is nothing yet"),
        (("replay", "t", "--peer", "localhost:1", "--end", "5"), b"--end is a time such as"),
    ],
)
def test_wrong_use(shell: Shell, arguments: tuple[str, ...], text: bytes) -> None:
    done = shell.run(*arguments)
    assert done.returncode == 2
    assert text in done.stderr


def test_an_interrupted_replay_says_where_to_go_on(shell: Shell) -> None:
    shell.up()
    record(shell, [("zeek/x", 1)])
    record(shell, [("zeek/x", 2)])
    with Endpoint() as analyst:
        port = analyst.listen()
        subscriber = analyst.subscribe("zeek/")
        slow = shell.start("replay", "kept", "--peer", f"127.0.0.1:{port}", "--speed", "0.0001")
        assert subscriber.get(PATIENCE_S) is not None
        code, _, err = shell.stop(slow, signal.SIGINT)
    assert code == 130
    # the message may have arrived before the command took note of that
    assert re.search(r"interrupted: (1 of 2 .*; from there on: --start 20.*Z|0 of 2 .*published)$", err, re.MULTILINE)


def test_events_are_recorded_into_files(shell: Shell, tmp_path: Path) -> None:
    files = tmp_path / "files"
    process = shell.start("record", "zeek/", "--parquet", str(files), "--mesh-listen", ":0", "--json")
    host, port = first_line(process)["address"].split(":")
    with Endpoint() as sensor:
        sensor.peer(host, int(port), timeout=PATIENCE_S)
        sensor.publish_batch([("zeek/conn", Event("seen", Count(n))) for n in range(100)])
        sensor.try_publish(b"zeek/conn", b"\xff")
        sensor.unpeer(host, int(port), timeout=PATIENCE_S)
    code, out, err = shell.stop(process)

    account = json.loads(out)
    assert (code, account["records"], account["stored"], account["malformed"]) == (1, 100, 100, 1)
    assert "1 message cannot be decoded" in err
    (file,) = (files / "seen").iterdir()
    assert parquet.read_table(file)["_1"].to_pylist() == list(range(100))

    both = shell.run("record", "zeek/", "--parquet", str(files), "--to", "kept", "--mesh-listen", ":0")
    assert both.returncode != 0
    assert b"give either --to TOPIC" in both.stderr
