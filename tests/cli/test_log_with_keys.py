"""Tower, store, producers and consumers as processes that have keys, and strangers that have none."""

from __future__ import annotations

import json
import os
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
import zmq
from tests.api.rogues import rogue
from tests.cli.conftest import Shell
from tests.ports import free_ports
from tests.waiting import PATIENCE_S, until

from chappe import Chain, ChainConfiguration, Consumer, Keys, Producer, SharedMap, read_topic
from chappe.api import permissions
from chappe.api.log.discovery import discover
from chappe.api.taps import Tap
from chappe.errors import ChappeError, NotPermitted, TimedOut, UsageError
from chappe.transports.queries import StoreClient

pytestmark = pytest.mark.process


@pytest.fixture
def home(shell: Shell) -> Path:
    """Keys of a hub, a sensor and a reader."""
    made = shell.directory / "keys"
    permissions.init(made, "hub", "server")
    permissions.add(made, "sensor", "producer")
    permissions.add(made, "reader", "consumer")
    return made


def facts(shell: Shell, *command: str) -> dict[str, Any]:
    process = shell.start(*command, "--json")
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, process.stderr and process.stderr.read().decode()
    found: dict[str, Any] = json.loads(line)
    return found


def network(shell: Shell) -> str:
    """A tower and a store, each a process of its own; returns the tower."""
    tower: str = facts(shell, "tower", "--listen", "127.0.0.1:0", "--as", "keys/hub")["tower"]
    shell.env["CHAPPE_TOWER"] = tower
    assert facts(shell, "store", "data", "--as", "keys/hub")["endpoint"].endswith("#hub")
    return tower


def test_those_with_keys_take_part_and_those_without_get_nothing(shell: Shell, home: Path) -> None:
    tower = network(shell)

    sent = shell.run("produce", "orders", "--as", "keys/sensor", stdin=b"one\ntwo\n")
    assert (sent.returncode, b"Traceback" in sent.stderr) == (0, False)
    read = shell.run("consume", "orders", "--until-end", "--output", "raw", "--as", "keys/reader")
    assert read.stdout == b"one\ntwo\n"
    shell.env["CHAPPE_IDENTITY"] = "keys/reader"
    assert b"orders" in shell.run("topics").stdout
    del shell.env["CHAPPE_IDENTITY"]
    (shell.directory / "chappe.toml").write_text('identity = "keys/reader"\n')
    assert shell.run("consume", "orders", "--count", "2", "--output", "raw").stdout == b"one\ntwo\n"
    (shell.directory / "chappe.toml").unlink()

    with pytest.raises(TimedOut, match=NO_KEYS):
        discover(tower, PATIENCE_S)
    stranger = Producer("orders", tower=tower)
    stranger.send(b"forged")
    until(
        lambda: any("it asks for keys, and this program has none" in str(each) for each in stranger.events()),
        "what is wrong",
    )
    with pytest.raises(TimedOut):
        stranger.close(0.5)
    permissions.init(shell.directory / "other", "hub", "server")
    permissions.add(shell.directory / "other", "sensor", "producer")
    assert discover(tower, 0.5, security=Keys(shell.directory / "other" / "sensor")) == []
    (store,) = discover(tower, 10.0, security=Keys(home / "reader"))
    with pytest.raises(UsageError, match="has keys, and we have none"):
        StoreClient(store.endpoint)
    with pytest.raises(UsageError, match="has no keys, and we have"):
        StoreClient(store.endpoint.partition("#")[0], security=Keys(home / "reader"))
    again = shell.run("consume", "orders", "--until-end", "--output", "raw", "--as", "keys/reader")
    assert again.stdout == b"one\ntwo\n"


def test_a_revoked_identity_is_cut_off_while_all_run(shell: Shell, home: Path) -> None:
    tower = network(shell)
    stale = shell.directory / "stale"  # who does not see that he was revoked
    stale.mkdir()
    for each in home.iterdir():
        (stale / each.name).write_bytes(each.read_bytes())
        (stale / each.name).chmod(each.stat().st_mode)

    with (
        Producer("orders", tower=tower, security=Keys(home / "sensor")) as producer,
        Consumer("orders", tower=tower, security=Keys(stale / "reader")) as reader,
    ):
        producer.send(b"before")
        producer.flush()
        until(lambda: reader.poll(1.0), "the first record")

        (store,) = discover(tower, 10.0, security=Keys(home / "sensor"))
        # each member looks for itself who was revoked
        others = [each.partition("#")[0] for each in (producer._node.node.endpoint, store.endpoint)]
        permissions.revoke(home, "reader")

        told: list[str] = []

        def cut_off() -> bool:
            told.extend(map(str, reader.events()))
            everywhere = all(any(f"{at}: it refused us" in each for each in told) for at in others)
            # the tower may hand the reader the permissions before it cuts it off
            return everywhere or any("reader was revoked" in each for each in told)

        until(cut_off, "that it is cut off")
        producer.send(b"after")
        producer.flush()
        with suppress(UsageError):  # who it is, once it has the permissions
            assert reader.poll(1.0) is None
    with pytest.raises(UsageError, match="reader was revoked"):
        Consumer("orders", tower=tower, security=Keys(home / "reader"))
    os.environ["CHAPPE_IDENTITY"] = str(home / "hub")
    try:
        assert [bytes(each) for each in read_topic("orders", tower=tower)["value"].to_pylist()] == [b"before", b"after"]
    finally:
        del os.environ["CHAPPE_IDENTITY"]


NO_KEYS = "it asks for keys, and this program has none: give it an identity, with --as"


def test_every_command_without_keys_says_first_that_the_tower_asks_for_some(shell: Shell, home: Path) -> None:
    network(shell)
    commands = (["topics"], ["consume", "orders", "--until-end"], ["produce", "orders", "--timeout", "10"])
    for command in commands:
        first, *_ = shell.run(*command, stdin=b"one\n").stderr.decode().splitlines()
        assert NO_KEYS in first, command


def test_each_consumer_of_a_process_without_keys_is_told_that_the_tower_asks_for_some(shell: Shell, home: Path) -> None:
    tower = network(shell)
    with Consumer("orders", tower=tower) as first, Consumer("orders", tower=tower) as second:
        until(lambda: any(NO_KEYS in str(each) for each in first.events()), "what is wrong")
        with Consumer("orders", tower=tower) as late:
            for each in (second, late):
                assert any(NO_KEYS in str(event) for event in each.events())
                with pytest.raises(TimedOut, match=NO_KEYS):
                    each.wait_ready(0)


def test_forwarders_have_keys_too(shell: Shell, home: Path) -> None:
    where = facts(shell, "forward", "data", "--at", "127.0.0.1:0", "--as", "keys/hub")["forwarder"]
    shell.env["CHAPPE_FORWARDERS"] = where

    assert shell.run("produce", "orders", "--as", "keys/sensor", stdin=b"one\n").returncode == 0
    read = shell.run("consume", "orders", "--until-end", "--output", "raw", "--as", "keys/reader")
    assert read.stdout == b"one\n"
    stranger = shell.run("consume", "orders", "--count", "1", "--timeout", "1")
    assert (stranger.returncode, stranger.stdout) == (1, b"")
    with Consumer("orders", forwarders=where) as consumer:
        until(
            lambda: any("it asks for keys, and this program has none" in str(each) for each in consumer.events()),
            "what is wrong",
        )


def test_whoever_has_no_keys_gets_in_nowhere(shell: Shell, home: Path) -> None:
    """All sockets of a tower and a store, each tried as what belongs there."""
    tower = network(shell)
    host, sub_port, pub_port = tower.split(":")
    (store,) = discover(tower, 10.0, security=Keys(home / "reader"))
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    try:
        answers = []
        for kind, where in (
            (zmq.SUB, f"tcp://{host}:{pub_port}"),
            (zmq.XPUB, f"tcp://{host}:{sub_port}"),
            (zmq.DEALER, store.endpoint.partition("#")[0]),
        ):
            sock = context.socket(kind)
            if kind == zmq.SUB:
                sock.subscribe(b"")
            sock.connect(where)
            if kind == zmq.DEALER:
                sock.send_multipart([bytes(8), b"?"])
            answers.append(sock.poll(300))
        assert answers == [0, 0, 0]
    finally:
        context.destroy(0)


def test_topics_tells_administrators_who_was_refused(shell: Shell, home: Path) -> None:
    permissions.add(home, "admin", "administrator")
    shell.env["CHAPPE_TOWER"] = facts(shell, "tower", "--listen", "127.0.0.1:0", "--as", "keys/hub")["tower"]
    endpoint = facts(shell, "store", "data", "--as", "keys/hub")["endpoint"]
    assert shell.run("produce", "orders", "--as", "keys/sensor", stdin=b"one\n").returncode == 0
    with closing(StoreClient(endpoint, security=rogue(home, "sensor"))) as thief, pytest.raises(NotPermitted):
        thief.read("orders", "P", 0)

    told = b"has refused since its start: sensor may not consume, 1 time"
    assert told in shell.run("topics", "--as", "keys/admin").stdout
    assert told not in shell.run("topics", "--as", "keys/reader").stdout


def test_beyond_this_machine_a_choice_has_to_be_made(shell: Shell, home: Path) -> None:
    for command in (
        ("tower", "--listen", "0.0.0.0:0"),
        ("store", "data", "--listen", "0.0.0.0"),
        ("up", "data", "--tower", "0.0.0.0:0"),
        ("forward", "data", "--at", "0.0.0.0:0"),
        ("forward", "data", "--at", "127.0.0.1:0", "--originals", "0.0.0.0:0"),
        ("produce", "x", "--listen", "0.0.0.0"),
        ("consume", "x", "--listen", "0.0.0.0"),
        ("topics", "--listen", "0.0.0.0"),
        ("record", "x", "--to", "x", "--mesh-listen", "127.0.0.1:0", "--listen", "0.0.0.0"),
    ):
        refused = shell.run(*command)
        assert refused.returncode == 2
        assert b"0.0.0.0 is not this machine: give --as " in refused.stderr
    assert facts(shell, "tower", "--listen", "0.0.0.0:0", "--plain")["tower"]
    assert facts(shell, "tower", "--listen", "0.0.0.0:0", "--as", "keys/hub")["tower"]
    tower = facts(shell, "tower", "--listen", "127.0.0.1:0")["tower"]
    assert facts(shell, "store", "data", "--tower", tower)["endpoint"]
    beyond = ("--listen", "0.0.0.0", "--tower", tower, "--plain")
    assert shell.run("produce", "x", *beyond, stdin=b"1\n").returncode == 0
    assert shell.run("consume", "x", *beyond, "--until-end", "--output", "raw").stdout == b"1\n"
    assert b"x" in shell.run("topics", *beyond).stdout
    nobody = shell.run("produce", "x", "--as", "keys/nobody", stdin=b"1\n")
    assert (nobody.returncode, b"keys/nobody.key does not exist" in nobody.stderr) == (2, True)


def test_secrets_are_in_no_output_and_no_command_line(shell: Shell, home: Path) -> None:
    shell.env["CHAPPE_KEY_PASSPHRASE"] = "open sesame"
    permissions.add(home, "locked", "producer", passphrase="open sesame")
    network(shell)
    done = shell.run("produce", "orders", "--as", "keys/locked", stdin=b"1\n")
    assert done.returncode == 0
    for process in shell.running:
        if process.poll() is None:
            assert b"sesame" not in Path(f"/proc/{process.pid}/cmdline").read_bytes()
    shell.env["CHAPPE_KEY_PASSPHRASE"] = "wrong sesame"
    done = shell.run("produce", "orders", "--as", "keys/locked", stdin=b"1\n")
    assert (done.returncode, b"the passphrase is not that of" in done.stderr, b"sesame" in done.stderr) == (
        2,
        True,
        False,
    )


def test_the_setting_audit_has_a_store_write_down_whom_it_refused_what(shell: Shell, home: Path) -> None:
    tower: str = facts(shell, "tower", "--listen", "127.0.0.1:0", "--as", "keys/hub")["tower"]
    shell.env["CHAPPE_TOWER"] = tower
    (shell.directory / "chappe.toml").write_text('audit = "refused"\n')
    facts(shell, "store", "data", "--as", "keys/hub")

    producer = Producer("b", tower=tower, security=rogue(home, "reader"))
    producer.send(b"1")
    wanted = {"by": "hub", "who": "reader", "verb": "produce", "topic": "b", "why": "no rule allows it"}
    with Consumer("refused", tower=tower, security=Keys(home / "reader")) as consumer:
        for record in consumer:  # it was refused other things as well
            found = json.loads(record.value or b"")
            if {key: found[key] for key in wanted} == wanted:
                break
    with pytest.raises(TimedOut):
        producer.close(0.1)


def test_map_servers_chains_and_taps_write_down_whom_they_refused_what(shell: Shell, home: Path) -> None:
    tower: str = facts(shell, "tower", "--listen", "127.0.0.1:0", "--as", "keys/hub")["tower"]
    shell.env |= {"CHAPPE_TOWER": tower, "CHAPPE_AUDIT": "refused", "CHAPPE_IDENTITY": "keys/hub"}
    facts(shell, "store", "data")
    reader = rogue(home, "reader")
    address: str = facts(shell, "map", "serve", "--name", "beds", "--at", "127.0.0.1:0")["address"]
    tap: str = facts(shell, "node", "--listen", "127.0.0.1:0", "--tap", "0")["tap"]
    chain = ChainConfiguration({"a": f"hub@127.0.0.1:{free_ports(1)}"}, "orders", False)
    file = shell.directory / "chain.toml"
    file.write_text(f'name = "orders"\ndurable = false\n[servers]\na = "{chain.servers["a"]}"\n')
    facts(shell, "chain", "serve", str(file), "--name", "a", "--directory", str(shell.directory / "chain"))

    with (
        SharedMap(address, name="beds", security=reader, timeout=PATIENCE_S) as beds,
        pytest.raises(NotPermitted, match="reader may not write 'beds/1'"),
    ):
        beds["/1"] = b"free"
    host, _, port = tap.rpartition(":")
    with Tap(host, int(port), security=reader) as looks, pytest.raises(ChappeError, match="reader may not administer"):
        looks.look(PATIENCE_S)
    with Chain(chain, security=reader) as client, pytest.raises(NotPermitted, match="may not write orders"):
        client.call(b"one", timeout=PATIENCE_S)
    wanted = {("write", "beds/1"), ("administer", "*"), ("write", "orders")}
    with Consumer("refused", tower=tower, security=Keys(home / "reader")) as consumer:
        for record in consumer:
            found = json.loads(record.value or b"")
            assert found["by"] == "hub"
            if found["who"] == "reader":
                wanted -= {(found["verb"], found["topic"])}
            if not wanted:
                break


def test_an_audit_topic_that_may_not_be_written_is_said_at_once(shell: Shell, home: Path) -> None:
    shell.env["CHAPPE_AUDIT"] = "refused"
    shell.env["CHAPPE_TOWER"] = "127.0.0.1:9"
    done = shell.run("map", "serve", "--as", "keys/reader")
    assert done.returncode == 2
    assert b"reader may not produce 'refused'" in done.stderr
    assert b"Traceback" not in done.stderr
