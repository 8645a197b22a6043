"""Names and values that others chose, printed by every command that prints such: none commands a terminal."""

from __future__ import annotations

import json
import re
from typing import Any, Final

import pytest
from tests.cli.conftest import PATIENCE_S, Shell
from tests.cli.test_mesh_commands import start_node, start_subscriber

from chappe import Endpoint, MapServer, Producer, SharedMap, Store, Tower
from chappe.cli.formats import as_text
from chappe.log.batch import Record, encode_batch
from chappe.log.storage import AppendRecords
from chappe.storage.segments import SegmentStorage

UNSAFE: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
TITLE: Final = "\x1b]0;owned\x07\x1b[2J\x9b31m\x7f"
HOSTILE: Final = f"{TITLE}\u202edrow\u2066\nFORGED line\r\u2028x"


def check(shown: bytes) -> None:
    """That it shows the hostile text, and is no command for a terminal."""
    text = shown.decode()
    found = UNSAFE.search(text)
    assert found is None, f"{found[0]!r} in {text!r}"
    assert "owned" in text
    assert not [line for line in text.splitlines() if line.startswith(("FORGED", "x"))]


def checked(shell: Shell, *arguments: str, stdin: bytes = b"") -> None:
    done = shell.run(*arguments, stdin=stdin)
    check(done.stdout + done.stderr)


@pytest.mark.process
def test_topics_and_records_of_the_log(shell: Shell) -> None:
    storage = SegmentStorage(shell.directory / "kept")  # programs of others write what ours would refuse
    body = encode_batch(0, [HOSTILE.encode()], 1, keys=[HOSTILE.encode()])
    storage.publish(storage.write([AppendRecords(HOSTILE, HOSTILE, 0, 1, 1, 1, body, False)]))
    storage.close()
    with Tower("127.0.0.1:0") as tower, Store(shell.directory / "kept", tower=tower.address):
        shell.env["CHAPPE_TOWER"] = tower.address
        for more in ([], ["--plot"], ["--json"]):
            checked(shell, "topics", *more)
            checked(shell, "topics", "--partitions", *more)
        for more in ([], ["--json"]):
            checked(shell, "consume", "*", "--until-end", *more)
        # near enough to be named where something else was meant
        checked(shell, "consume", HOSTILE.replace("FORGED", "FORGET"), "--until-end")
        checked(shell, "produce", HOSTILE, stdin=b"x\n")


@pytest.mark.process
def test_members_are_called_by_no_hostile_name_and_by_others_in_lists(shell: Shell) -> None:
    refused = shell.run("store", "--name", HOSTILE)
    assert refused.returncode == 2
    assert b"a name is 1 to 64 printable characters" in refused.stderr
    assert UNSAFE.search(refused.stderr.decode()) is None
    shell.up("--name", "the [bold]cellar")
    with Producer("readings", tower=shell.env["CHAPPE_TOWER"], name="boiler 3") as producer:
        producer.send(b"x")
        producer.flush()

        (row,) = [json.loads(each) for each in shell.run("topics", "--partitions", "--json").stdout.splitlines()]
        shown = shell.run("topics", "--partitions").stdout.decode()

    assert (row["partition"], row["producer"]) == (producer.partition, "boiler 3")
    assert list(row["names"].values()) == ["the [bold]cellar"]
    assert "boiler 3" in shown
    assert f"the [bold]cellar ({row['stores'][0][:8]})" in shown


def test_a_record_of_a_producer_that_names_itself() -> None:
    check(as_text(Record(HOSTILE, HOSTILE, 0, 0, b"k", b"v", ())))


@pytest.mark.process
def test_messages_of_the_mesh(shell: Shell) -> None:
    _, facts = start_node(shell, "--tap", "127.0.0.1:0")
    peer = facts["listen"][0]
    subscribers = [start_subscriber(shell, peer, "", "--count", "2", *more) for more in ([], ["--json"])]
    tap = shell.start("tap", facts["tap"], "--count", "2")
    host, _, port = peer.rpartition(":")
    with Endpoint() as endpoint, endpoint.subscribe(HOSTILE):
        endpoint.peer(host, int(port))
        assert endpoint.node.turns.wait(lambda: b"" in endpoint.core.peer_subscriptions(), PATIENCE_S)
        for more in ([], ["--dot"], ["--json"], ["--whole"]):
            checked(shell, "node", "--map", "--peer", peer, *more)
        for _ in range(2):
            endpoint.publish(HOSTILE, HOSTILE)
        for subscriber in subscribers:
            check(b"".join(subscriber.communicate(timeout=PATIENCE_S)))
        endpoint.publish(HOSTILE, HOSTILE)
        endpoint.publish(HOSTILE, HOSTILE)
        check(b"".join(tap.communicate(timeout=PATIENCE_S)))


@pytest.mark.process
def test_entries_of_data_stores(shell: Shell) -> None:
    with Endpoint() as endpoint:
        store = endpoint.attach_master("users")
        peer = f"127.0.0.1:{endpoint.listen()}"
        watching = []
        for more in ([], ["--json"], ["--text"]):
            watching.append(shell.start("kv", "watch", "users", "--count", "1", "--peer", peer, *more))
            assert watching[-1].stderr.readline() == b"watching store users\n"  # type: ignore[union-attr]
        store.put(HOSTILE, HOSTILE)
        for each in watching:
            check(b"".join(each.communicate(timeout=PATIENCE_S)))
        for more in ([], ["--json"], ["--text"]):
            checked(shell, "kv", "get", "users", HOSTILE, "--peer", peer, *more)
        checked(shell, "kv", "dump", "users", "--peer", peer)


@pytest.mark.process
def test_entries_of_maps(shell: Shell) -> None:
    with MapServer("127.0.0.1:0") as server, SharedMap(server.address) as shared:
        shell.env["CHAPPE_MAP_SERVERS"] = server.address
        watching = []
        for more in ([], ["--json"]):
            watching.append(shell.start("map", "watch", "--count", "1", *more))
            assert watching[-1].stderr.readline().startswith(b"watching the map")  # type: ignore[union-attr]
        shared[HOSTILE] = HOSTILE.encode()
        for each in watching:
            check(b"".join(each.communicate(timeout=PATIENCE_S)))
        checked(shell, "map", "get")
        checked(shell, "map", "get", "--json")
        checked(shell, "map", "dump")


@pytest.mark.process
def test_names_in_files_and_errors(shell: Shell) -> None:
    (shell.directory / "chappe.toml").write_text(f"audit = {json.dumps(HOSTILE)}\n[retention.{json.dumps(HOSTILE)}]\n")
    checked(shell, "config")
    checked(shell, "config", "--json")
    (shell.directory / "chappe.toml").unlink()
    checked(shell, "node", HOSTILE)
    checked(shell, "pipeline", "check", HOSTILE)
    checked(shell, "--config", HOSTILE, "topics")


def test_what_a_server_of_another_tells_is_said_safely(capsys: pytest.CaptureFixture[str]) -> None:
    from chappe.cli.console import say, show, tell, warn

    said: dict[str, Any] = {"owned": HOSTILE}
    warn(HOSTILE.replace("\n", " "))
    say(TITLE)
    show(HOSTILE)
    tell(True, said, "")
    out, err = capsys.readouterr()
    check(out.encode())
    check(err.encode())
