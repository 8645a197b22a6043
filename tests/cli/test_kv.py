"""``chappe kv`` against the master of a store in this process."""

from __future__ import annotations

import errno
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cli.conftest import PATIENCE_S, Shell
from tests.endpoints import endpoint_of
from typer.testing import CliRunner, Result

from chappe import DataStore, Endpoint
from chappe.cli.kv import app
from chappe.cli.values import entry_as_json, entry_as_text, line_of, of_prefix, read_entry
from chappe.data.binary import encode
from chappe.data.scalars import Count, Port
from chappe.data.values import Table
from chappe.errors import InvalidData, NoSuchKey, UsageError, WrongRevision


@pytest.fixture
def master() -> Iterator[DataStore]:
    with Endpoint() as endpoint:
        yield endpoint.attach_master("users")


@pytest.fixture
def peer(master: DataStore) -> str:
    return f"127.0.0.1:{endpoint_of(master).listen()}"


def watcher(shell: Shell, peer: str, *arguments: str) -> subprocess.Popen[bytes]:
    """``chappe kv watch`` that hears everything from now on."""
    process = shell.start("kv", "watch", "users", *arguments, "--peer", peer)
    assert process.stderr is not None
    assert process.stderr.readline() == b"watching store users\n"
    return process


# -- the form -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [Count(1), float("nan"), b"\xff\x00", ("x", {Port(53, "udp"): 2.5}), None, "a\nb"])
def test_what_is_dumped_is_read_again(value: object) -> None:
    line = entry_as_json(value, [value])
    assert line.count(b"\n") == 1
    key, found = read_entry(line)
    assert (encode(key), encode(found)) == (encode(value), encode([value]))


@pytest.mark.parametrize("line", [b"", b"{}", b"1", b'{"key":{"@data-type":"count","data":1}}', b"{},{}", b"\xff"])
def test_what_is_no_entry(line: bytes) -> None:
    with pytest.raises(InvalidData):
        read_entry(line)


def test_everything_is_on_one_line() -> None:
    assert line_of(("a\nb", Count(1)), as_text=True) == b"(a\\nb, 1)\n"
    assert entry_as_text("\x1b", b"\xff", as_text=True) == b"\\x1b -> \\xff\n"
    assert entry_as_text("\x1b", b"\xff") == b'"\\u001b" -> "\\udcff"\n'


def test_entries_may_be_plain_json() -> None:
    assert read_entry(b'{"key": "a", "value": {"b": 1}}') == ("a", Table({"b": 1}))


def test_prefixes_are_of_strings() -> None:
    assert [of_prefix(key, "a") for key in ("ab", "b", 1, ("a",))] == [True, False, False, False]
    assert of_prefix(1, None)


# -- the commands -------------------------------------------------------------------------------------------


@pytest.mark.process
def test_values_are_put_and_got(shell: Shell, master: DataStore, peer: str) -> None:
    assert shell.run("kv", "put", "users", "ann", "count:5", "--peer", peer).returncode == 0
    assert type(master["ann"]) is Count
    done = shell.run("kv", "get", "users", "ann", "--peer", peer)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"count:5\n", b"")
    done = shell.run("kv", "get", "users", "ann", "--peer", peer, "--json")
    assert json.loads(done.stdout) == {"@data-type": "count", "data": 5}
    done = shell.run("kv", "put", "users", "5", "(1, {a -> 2s})", "--text", "--expiry", "1h", "--peer", peer, "--json")
    assert json.loads(done.stdout) == {"store": "users", "key": {"@data-type": "integer", "data": 5}}
    (entry,) = [each for each in master.snapshot() if each.key == 5]
    assert entry.expires_ns is not None
    assert shell.run("kv", "erase", "users", "ann", "--peer", peer).returncode == 0
    assert "ann" not in master
    assert shell.run("kv", "erase", "users", "ann", "--peer", peer).returncode == 1
    done = shell.run("kv", "get", "users", "count:5", "--peer", peer)  # another key than the integer
    other = b"; under 5 there is something"
    assert (done.returncode, done.stderr) == (1, b"chappe: nothing is stored under count:5 in store users%s\n" % other)
    assert shell.run("kv", "put", "users", "-5", '{"a": [true, -1.5]}', "--peer", peer).returncode == 0
    assert master[-5] == {"a": (True, -1.5)}
    assert shell.run("kv", "get", "users", "-5", "--peer", peer).stdout == b'{"a": [true, -1.5]}\n'


@pytest.mark.process
def test_of_two_who_insert_one_does(shell: Shell, master: DataStore, peer: str) -> None:
    assert shell.run("kv", "put", "users", "lock", "a", "--unique", "--peer", peer).returncode == 0
    done = shell.run("kv", "put", "users", "lock", "b", "--unique", "--peer", peer)
    assert (done.returncode, done.stderr) == (1, b"chappe: there is a value under lock in store users already\n")
    assert master["lock"] == "a"


def test_revisions_are_shown_and_written_by_and_the_history_is_a_table() -> None:
    with Endpoint() as endpoint:
        master = endpoint.attach_master("users", history=4)
        where = ("--peer", f"127.0.0.1:{endpoint.listen()}", "--plain")

        def run(*arguments: str) -> Result:
            return CliRunner().invoke(app, [*arguments, *where])

        master.put("ann", 1, expiry_s=600)
        entry = master.entry("ann")
        assert entry is not None
        found = json.loads(run("list", "users", "--revision", "--json").stdout)
        assert (found["revision"], found["expires_ns"]) == (entry.revision, entry.expires_ns)
        assert run("list", "users", "--revision").stdout.startswith(f"ann -> 1  (revision {entry.revision}, expires 2")
        shown = run("get", "users", "ann", "--revision").stdout.splitlines()
        assert shown[:2] == ["1", f"revision {entry.revision}"]
        revision = str(entry.revision)
        assert run("put", "users", "ann", "2", "--if-revision", revision).exit_code == 0
        for write in (("erase", "users", "ann"), ("put", "users", "ann", "3")):
            assert isinstance(run(*write, "--if-revision", revision).exception, WrongRevision)
        assert isinstance(run("put", "users", "ann", "3", "--unique", "--if-revision", "1").exception, UsageError)
        assert master["ann"] == 2
        assert json.loads(run("get", "users", "ann", "--revision", "--json").stdout)["expires_ns"] is None
        master.erase("ann")
        heads, *rows = [line.split() for line in run("history", "users", "ann").stdout.splitlines()]
        assert heads == ["revision", "time", "operation", "value", "by"]
        assert [row[2:4] for row in rows[:2]] == [["put", "1"], ["put", "2"]]
        assert rows[2][2:] == ["erase", str(master.entity)]
        lines = [json.loads(line) for line in run("history", "users", "ann", "--json").stdout.splitlines()]
        assert [(each["operation"], "value" in each) for each in lines] == [
            ("put", True), ("put", True), ("erase", False),
        ]  # fmt: skip
        assert [str(each["revision"]) for each in lines] == [row[0] for row in rows]
        assert isinstance(run("history", "users", "nobody").exception, NoSuchKey)


@pytest.mark.process
def test_a_store_is_listed(shell: Shell, master: DataStore, peer: str) -> None:
    master.put_many([("ann", 1), ("bob", ["x", None]), (Count(1), "ann")])
    done = shell.run("kv", "list", "users", "--peer", peer)
    assert sorted(done.stdout.decode().splitlines()) == ["ann -> 1", 'bob -> ["x", null]', "count:1 -> ann"]
    done = shell.run("kv", "list", "users", "a", "--peer", peer, "--json")
    integer = {"@data-type": "integer", "data": 1}
    assert json.loads(done.stdout) == {"key": {"@data-type": "string", "data": "ann"}, "value": integer}


@pytest.mark.process
def test_what_is_dumped_is_loaded_into_another_store(shell: Shell, master: DataStore, peer: str) -> None:
    master.put_many((n, ["x", n]) for n in range(10_000))
    done = shell.run("kv", "dump", "users", "--peer", peer)
    assert (done.returncode, done.stderr) == (0, b"dumped 10,000 entries\n")
    assert len(done.stdout.splitlines()) == 10_000
    done = shell.run("kv", "dump", "users", "users.json", "--peer", peer, "--json")
    assert json.loads(done.stdout) == {"store": "users", "dumped": 10_000}
    other = endpoint_of(master).attach_master("other")
    other.put("stays", 1)
    done = shell.run("kv", "load", "other", "users.json", "--peer", peer)
    assert (done.returncode, done.stderr) == (0, b"loaded 10,000 entries\n")
    assert dict(other.items()) == dict(master.items()) | {"stays": 1}


@pytest.mark.process
def test_a_wrong_line_stops_after_what_came_before_it(shell: Shell, master: DataStore, peer: str) -> None:
    good = entry_as_json("a", 1)
    done = shell.run("kv", "load", "users", "--peer", peer, "--json", stdin=good + b"\n{}\n" + good)
    assert done.returncode == 1
    assert json.loads(done.stdout) == {"store": "users", "loaded": 1}
    assert b"line 3: " in done.stderr
    assert dict(master.items()) == {"a": 1}


@pytest.mark.process
def test_changes_are_watched(shell: Shell, master: DataStore, peer: str) -> None:
    text = watcher(shell, peer, "--count", "5")
    one = watcher(shell, peer, "--key", "b", "--json", "--count", "2")
    master.put("b", 1)
    master.put("b", "x\ny")
    master.erase("b")
    master.put("ab", 1, expiry_s=0.05)
    lines, _ = text.communicate(timeout=PATIENCE_S)
    assert lines.decode().splitlines() == [
        "insert b -> 1",
        'update b -> "x\\ny"',
        "erase b",
        "insert ab -> 1",
        "expire ab",
    ]
    found = [json.loads(line) for line in one.communicate(timeout=PATIENCE_S)[0].splitlines()]
    key, before = ({"@data-type": kind, "data": data} for kind, data in (("string", "b"), ("integer", 1)))
    assert [(each["event"], each["key"], each.get("before")) for each in found] == [
        ("insert", key, None),
        ("update", key, before),
    ]
    assert found[0]["publisher"] == str(master.entity)


@pytest.mark.process
def test_a_watcher_says_that_the_master_is_lost_and_ends_well(shell: Shell, master: DataStore, peer: str) -> None:
    process = watcher(shell, peer, "x")
    master.put("y", 1)
    master.close()
    assert process.stderr is not None
    assert b"the master of store users is lost" in process.stderr.readline()
    assert shell.stop(process)[0] == 0


@pytest.mark.process
@pytest.mark.parametrize("command", [("get", "a"), ("put", "a", "1"), ("list",), ("watch",), ("dump",), ("load",)])
def test_without_a_master_one_sentence_says_so(
    shell: Shell, master: DataStore, peer: str, command: tuple[str, ...]
) -> None:
    name, *rest = command
    done = shell.run("kv", name, "unheard", *rest, "--peer", peer, "--timeout", "0.3")
    assert (done.returncode, done.stdout) == (1, b"")
    assert done.stderr.startswith(b"chappe: no master of store 'unheard' answered within 0.3 s")
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.process
@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (("get", "users", "a", "--peer", "127.0.0.1:1"), 1, b"cannot peer with 127.0.0.1:1"),
        (("get", "users", "a", "--peer", "10.0.0.1"), 2, b"is not this machine"),
        (("get", "users", "count:x"), 2, b"is not a whole number"),
        (("put", "users", "a", "{b}"), 2, b"is not the JSON that it looks like"),
        (("put", "users", "a", "1", "--expiry", "soon"), 2, b"is not an age"),
        (("watch", "users", "a", "--key", "b"), 2, b"not both"),
        (("load", "users", "nowhere.json"), 1, b"nowhere.json: No such file"),
        (("list", "users", "--plain", "--anonymous"), 2, b"only one of"),
    ],
)
def test_what_cannot_be_is_one_clear_line(shell: Shell, arguments: tuple[str, ...], code: int, text: bytes) -> None:
    done = shell.run("kv", *arguments)
    assert (done.returncode, done.stdout) == (code, b"")
    assert text in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_dump_that_fails_leaves_the_file_as_it_was(
    master: DataStore, peer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    master.put("a", 1)
    file = tmp_path / "dump.json"
    file.write_bytes(b"before")

    def full(key: object, value: object) -> bytes:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("chappe.cli.values.entry_as_json", full)
    done = CliRunner().invoke(app, ["dump", "users", str(file), "--peer", peer])
    assert isinstance(done.exception, OSError)
    assert [each.name for each in tmp_path.iterdir()] == ["dump.json"]
    assert file.read_bytes() == b"before"
