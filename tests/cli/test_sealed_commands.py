"""Sealed topics by the command line alone, in processes of their own."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import PATIENCE_S, Shell
from tests.waiting import SPARK_S, until

from chappe import Endpoint, Keys

pytestmark = pytest.mark.process


def keys(shell: Shell, *arguments: str) -> Any:
    done = shell.run("keys", *arguments, "--json")
    assert done.returncode == 0, done.stderr.decode()
    return json.loads(done.stdout)


def test_a_group_reads_what_is_published_and_who_is_not_of_it_is_told(shell: Shell) -> None:
    keys(shell, "init", "--name", "hub", "--role", "server")
    for name in ("sensor", "report", "eve", "mallory"):
        keys(shell, "add", name, "--role", "member")
    keys(shell, "seal", "ward", "--topic", "secret/*", "--name", "sensor", "--name", "report")
    with Endpoint(security=Keys(shell.directory / "keys" / "hub")) as hub:
        where = ("--peer", f"127.0.0.1:{hub.listen()}")
        report, eve = (
            shell.start("subscribe", "secret/", "plain", *where, "--count", count, "--as", f"keys/{name}")
            for name, count in (("report", "4"), ("eve", "1"))
        )
        until(lambda: len([each for each in hub.core.filters().values() if each]) == 2, "both have subscribed")

        def publish(name: str, *arguments: str) -> tuple[int, str]:
            done = shell.run("publish", *arguments, *where, "--as", f"keys/{name}")
            return done.returncode, done.stderr.decode()

        assert publish("sensor", "secret/a", "planted", "two")[0] == 0
        assert publish("sensor", "secret/a", "--event", "alarm", "3")[0] == 0
        code, error = publish("mallory", "secret/a", "x")
        assert code == 1
        assert "'secret/a' is sealed for ward, and nothing was sent: mallory is not of the group ward" in error
        seen = eve.stderr
        assert seen is not None
        told = seen.readline()
        assert b"messages of topic 'secret/a': eve is not of the group ward" in told
        assert publish("sensor", "plain", "4")[0] == 0
        out, _ = report.communicate(timeout=PATIENCE_S)
        assert out.splitlines() == [b"secret/a  planted", b"secret/a  two", b"secret/a  alarm(3)", b"plain  4"]
        assert eve.communicate(timeout=PATIENCE_S)[0].splitlines() == [b"plain  4"]


def test_a_group_shares_a_data_store_whose_file_nobody_else_can_read(shell: Shell) -> None:
    keys(shell, "init", "--name", "keeper", "--role", "member")
    for name in ("sensor", "eve"):
        keys(shell, "add", name, "--role", "member")
    keys(shell, "seal", "ward", "--topic", "secret/*", "--name", "keeper", "--name", "sensor")
    served = ("secret/beds", "--backend", "sqlite", "--path", "beds.db", "--listen", "127.0.0.1:0", "--json")
    process = shell.start("kv", "serve", *served, "--as", "keys/keeper")
    assert process.stdout is not None
    where = ("--peer", json.loads(process.stdout.readline())["listen"][0])

    def kv(name: str, command: str, *arguments: str) -> tuple[int, bytes, str]:
        done = shell.run("kv", command, "secret/beds", *arguments, *where, "--as", f"keys/{name}")
        return done.returncode, done.stdout, done.stderr.decode()

    assert kv("sensor", "put", "planted key", "planted value")[0] == 0
    assert kv("sensor", "get", "planted key")[:2] == (0, b"planted value\n")
    code, out, error = kv("eve", "get", "planted key")
    assert (code, out) == (1, b"")
    assert "data store 'secret/beds' is sealed for ward, and nothing was sent: eve is not of the group" in error
    assert not [path for path in shell.directory.glob("beds.db*") if b"planted" in path.read_bytes()]
    shell.stop(process)
    assert b"planted" not in (shell.directory / "beds.db").read_bytes()


def test_a_group_shares_a_map_that_its_server_cannot_read(shell: Shell) -> None:
    keys(shell, "init", "--name", "hub", "--role", "server")
    for name in ("sensor", "report", "eve"):
        keys(shell, "add", name, "--role", "member")
    keys(shell, "seal", "ward", "--topic", "secret/*", "--name", "sensor", "--name", "report")
    served = ("--at", "127.0.0.1:0", "--name", "secret", "--backend", "sqlite", "--path", "map.db", "--json")
    process = shell.start("map", "serve", *served, "--as", "keys/hub")
    assert process.stdout is not None
    where = ("--servers", json.loads(process.stdout.readline())["address"], "--name", "secret")

    def run(name: str, command: str, *arguments: str, stdin: bytes = b"") -> tuple[int, bytes, str]:
        done = shell.run("map", command, *arguments, *where, "--as", f"keys/{name}", stdin=stdin)
        return done.returncode, done.stdout, done.stderr.decode()

    assert run("sensor", "set", "/planted/1", "planted value")[0] == 0
    assert run("report", "get", "/planted/1")[:2] == (0, b"planted value\n")
    code, out, _ = run("report", "dump")
    assert (code, json.loads(out)) == (0, {"key": "/planted/1", "value": "planted value"})
    assert run("sensor", "load", "-", stdin=out.replace(b"/1", b"/2"))[0] == 0
    assert run("report", "get", "/planted/2", "--json")[0] == 0
    code, out, error = run("eve", "get", "/planted/1")
    assert (code, out) == (1, b"")
    assert "map 'secret' is sealed, and cannot be read: eve is not of ward" in error
    assert shell.stop(process)[0] == 0
    assert not [path for path in shell.directory.glob("map.db*") if b"planted" in path.read_bytes()]


def test_a_group_reads_what_nobody_else_can(shell: Shell) -> None:
    keys(shell, "init", "--name", "hub", "--role", "server")
    for name, role in (("sensor", "producer"), ("report", "consumer"), ("eve", "consumer")):
        keys(shell, "add", name, "--role", role)
    made = keys(shell, "seal", "ward", "--topic", "secret/*", "--name", "sensor", "--name", "report")
    assert (made["epoch"], made["members"], made["file"]) == (1, ["report", "sensor"], "keys/sealed-ward.keys")

    process = shell.start("up", "data", "--tower", "127.0.0.1:0", "--as", "keys/hub", "--json")
    assert process.stdout is not None
    shell.env["CHAPPE_TOWER"] = json.loads(process.stdout.readline())["tower"]
    sent = shell.run("produce", "secret/a", "--as", "keys/sensor", stdin=b"planted one\nplanted two\n")
    assert sent.returncode == 0, sent.stderr.decode()

    def read(name: str) -> tuple[int, bytes, str]:
        done = shell.run("consume", "secret/a", "--until-end", "--output", "raw", "--as", f"keys/{name}")
        return done.returncode, done.stdout, done.stderr.decode()

    assert read("report")[:2] == (0, b"planted one\nplanted two\n")
    code, out, error = read("eve")
    assert (code, out) == (1, b"")
    assert "topic 'secret/a' is sealed, and cannot be read: eve is not of the group ward" in error
    assert not [path for path in (shell.directory / "data").rglob("*.seg") if b"planted" in path.read_bytes()]

    assert keys(shell, "rotate", "ward", "--older-than", "1") == {"group": "ward", "rotated": False}
    assert keys(shell, "rotate", "ward")["epoch"] == 2
    assert shell.run("produce", "secret/a", "--as", "keys/sensor", stdin=b"three\n").returncode == 0
    assert sorted(read("report")[1].splitlines()) == [b"planted one", b"planted two", b"three"]
    revoked = shell.run("keys", "revoke", "report")
    assert b"needs the new keys/permissions.toml; and members of the group keys/sealed-ward.keys" in revoked.stderr
    code, out, error = read("report")
    assert code != 0
    assert (out, "was revoked" in error) == (b"", True)


def test_a_revocation_at_one_machine_gives_the_programs_of_another_one_new_keys(shell: Shell) -> None:
    """``keys`` is the machine of the authority and the server; ``there`` is another one, to which nothing is copied."""
    keys(shell, "init", "--name", "hub", "--role", "server")
    for name in ("sensor", "report", "eve"):
        keys(shell, "add", name, "--role", "member")
    keys(shell, "seal", "ward", "--topic", "secret/*", "--role", "member")
    there = shell.directory / "there"
    shutil.copytree(shell.directory / "keys", there)
    (there / "authority.key").unlink()

    server = shell.start("up", "data", "--tower", "127.0.0.1:0", "--as", "keys/hub", "--json")
    assert server.stdout is not None
    shell.env["CHAPPE_TOWER"] = json.loads(server.stdout.readline())["tower"]
    consumer = shell.start("consume", "secret/a", "--output", "raw", "--as", "there/report")
    producer = shell.start("produce", "secret/a", "--as", "there/sensor")
    assert producer.stdin is not None
    assert consumer.stdout is not None

    def passed(line: bytes) -> None:
        assert producer.stdin is not None
        assert consumer.stdout is not None
        producer.stdin.write(line)
        producer.stdin.flush()
        assert consumer.stdout.readline() == line

    passed(b"early\n")
    keys(shell, "revoke", "eve")
    newest = (shell.directory / "keys" / "sealed-ward.keys").read_bytes()
    until(lambda: (there / "sealed-ward.keys").read_bytes() == newest, "the new keys on the other machine")
    until(lambda: b"revoked" in (there / "permissions.toml").read_bytes(), "the revocation")
    passed(b"late\n")
    done = shell.run("consume", "secret/a", "--until-end", "--as", "there/eve")
    assert (done.returncode != 0, done.stdout) == (True, b"")
    assert b"was revoked" in done.stderr


@pytest.mark.spark
def test_an_archive_stays_sealed_or_is_opened_and_comes_back(shell: Shell) -> None:
    pytest.importorskip("pyspark")
    keys(shell, "init", "--name", "hub", "--role", "server")
    keys(shell, "add", "ann", "--role", "member")
    keys(shell, "seal", "ward", "--topic", "secret/*", "--name", "ann")
    server = shell.start("up", "data", "--tower", "127.0.0.1:0", "--as", "keys/hub", "--json")
    assert server.stdout is not None
    shell.env["CHAPPE_TOWER"] = json.loads(server.stdout.readline())["tower"]
    lines = [b"planted %d" % number for number in range(5_000)]
    assert shell.run("produce", "secret/a", "--as", "keys/ann", stdin=b"\n".join(lines)).returncode == 0

    for name, who, options in (("closed", "hub", ()), ("opened", "ann", ("--opened",))):
        done = shell.run("archive", "secret/a", "--to", name, "--as", f"keys/{who}", *options, timeout=SPARK_S)
        assert done.returncode == 0, done.stderr.decode()
        assert b"archived 5,000 records" in done.stderr
        done = shell.run("replay", "--from", name, "--to", f"secret/{name}", "--as", "keys/ann", "--speed", "max")
        assert done.returncode == 0, done.stderr.decode()
        read = shell.run("consume", f"secret/{name}", "--until-end", "--output", "raw", "--as", "keys/ann")
        assert read.stdout.splitlines() == lines
    assert planted(shell.directory / "opened")
    assert not planted(shell.directory / "closed")
    assert not planted(shell.directory / "data")
    refused = shell.run("replay", "--from", "closed", "--to", "orders", "--as", "keys/hub", "--speed", "max")
    assert refused.returncode == 1
    assert b"cannot be opened: hub is not of the group ward" in refused.stderr


def planted(directory: Path) -> bool:
    """Whether something of it can be read there, in Parquet or not."""
    import pyarrow.parquet as pq

    for path in directory.rglob("*"):
        if path.suffix == ".parquet":
            values = pq.read_table(path).column("value").to_pylist()
            if any(b"planted" in each for each in values if each):
                return True
        elif path.is_file() and b"planted" in path.read_bytes():
            return True
    return False
