"""``chappe map`` as processes: a server, and the other commands as its clients."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import PATIENCE_S, Shell
from tests.commands import whole_program
from tests.ports import free_address
from tests.waiting import until

from chappe import MapChange, MapServer, SharedMap
from chappe.cli import maps, maps_files
from chappe.cli.config import defaults_of_commands, load
from chappe.defaults import MAP_SERVER_FILES

KEYS = 20_000  # more than several pieces of a snapshot, and several windows of writes


@pytest.fixture
def server(shell: Shell) -> Iterator[MapServer]:
    """A server that the shell's commands find."""
    with MapServer("127.0.0.1:0") as served:
        shell.env["CHAPPE_MAP_SERVERS"] = served.address
        yield served


@pytest.fixture
def shared(server: MapServer) -> Iterator[SharedMap[bytes]]:
    with SharedMap(server.address) as held:
        yield held


def serve(shell: Shell, *arguments: str) -> tuple[subprocess.Popen[bytes], dict[str, Any]]:
    """``chappe map serve`` as a process, and what it says of itself; further commands find it."""
    process = shell.start("map", "serve", "--at", "127.0.0.1:0", "--json", *arguments)
    assert process.stdout is not None
    facts: dict[str, Any] = json.loads(process.stdout.readline())
    shell.env["CHAPPE_MAP_SERVERS"] = facts["address"]
    return process, facts


def watcher(shell: Shell, *arguments: str) -> subprocess.Popen[bytes]:
    """``chappe map watch`` that hears everything from now on."""
    process = shell.start("map", "watch", *arguments)
    assert process.stderr is not None
    assert process.stderr.readline().startswith(b"watching the map at 127.0.0.1:")
    return process


def test_every_command_takes_its_settings_from_the_file(tmp_path: Path) -> None:
    path = tmp_path / "chappe.toml"
    path.write_text('[map]\nservers = "a,b:7000"\nat = "*:7000"\n')
    of_map = defaults_of_commands(load(str(path)), whole_program().commands)["map"]
    assert set(of_map) == {command.name for command in maps.app.registered_commands}
    assert of_map["get"]["servers"] == "a,b:7000"
    assert of_map["serve"]["at"] == "*:7000"


pytestmark = pytest.mark.process


def test_values_are_set_got_and_deleted(shell: Shell, shared: SharedMap[bytes]) -> None:
    done = shell.run("map", "set", "/fx/eur", "1.08")
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    assert shared.wait_for("/fx/eur", b"1.08", timeout=PATIENCE_S) == b"1.08"
    assert shell.run("map", "get", "/fx/eur").stdout == b"1.08\n"
    done = shell.run("map", "set", "/fx/-1", "-5", "--ttl", "1h", "--json")
    assert json.loads(done.stdout) == {"key": "/fx/-1"}
    shared.set("/fx/raw", b"a\xff\nb", properties={"unit": "none"})
    assert shell.run("map", "get", "/fx/raw").stdout == b"a\xff\nb\n"
    found = json.loads(shell.run("map", "get", "/fx/raw", "--json").stdout)
    assert found == {"key": "/fx/raw", "value": {"base64": "Yf8KYg=="}, "properties": {"unit": "none"}}
    assert json.loads(shell.run("map", "delete", "/fx/eur", "--json").stdout) == {"key": "/fx/eur"}
    assert shared.wait_for("/fx/eur", until=lambda value: value is None, timeout=PATIENCE_S) is None
    for command in ("get", "delete"):
        done = shell.run("map", command, "/fx/eur")
        assert (done.returncode, done.stdout) == (1, b"")
        assert done.stderr == b"chappe: nothing is in the map under '/fx/eur'\n"


def test_a_key_may_be_longer_than_a_subtree(shell: Shell, shared: SharedMap[bytes]) -> None:
    key = "/" + "ä" * 300
    shared[key + "ö"] = b"another"
    watching = watcher(shell, key, "--count", "2")
    assert shell.run("map", "set", key, "1").returncode == 0
    assert shell.run("map", "get", key).stdout == b"1\n"
    assert shell.run("map", "delete", key).returncode == 0
    lines, _ = watching.communicate(timeout=PATIENCE_S)
    assert lines.decode().splitlines() == [f"insert {key} -> 1", f"erase {key}"]


def test_a_time_to_live_ends(shell: Shell, shared: SharedMap[bytes]) -> None:
    with shared.watch(key="/lock") as watch:
        assert shell.run("map", "set", "/lock", "mine", "--ttl", "0.2s").returncode == 0
        found = [watch.get(PATIENCE_S), watch.get(PATIENCE_S)]
    assert found == [MapChange("insert", "/lock", b"mine", None), MapChange("erase", "/lock", None, b"mine")]


def test_of_two_who_take_a_lock_one_does(shell: Shell, shared: SharedMap[bytes]) -> None:
    assert shell.run("map", "set", "/lock", "a", "--unique").returncode == 0
    done = shell.run("map", "set", "/lock", "b", "--unique")
    assert (done.returncode, done.stderr) == (1, b"chappe: there is a value under '/lock' already\n")
    assert shared.wait_for("/lock", timeout=PATIENCE_S) == b"a"


def test_a_map_is_listed(shell: Shell, shared: SharedMap[bytes]) -> None:
    shared.set_many({"/a/two": b"x\ny\x1b", "/a/one": b"1", "/b": b"2"})
    done = shell.run("map", "get", "--subtree", "/a/")
    assert done.stdout.decode().splitlines() == [
        "key          size  value",
        "/a/one        1 B  1",
        "/a/two        4 B  x\\ny\\x1b",
    ]
    lines = shell.run("map", "get", "--subtree", "/b", "--subtree", "/a/o", "--json").stdout.splitlines()
    found = {each["key"]: each["value"] for each in map(json.loads, lines)}
    assert found == {"/a/one": "1", "/b": "2"}


def test_changes_are_watched(shell: Shell, shared: SharedMap[bytes]) -> None:
    shared["/b"] = b"0"
    text = watcher(shell, "--subtree", "/a", "--count", "3")
    one = watcher(shell, "/b", "--json", "--count", "2")
    shared["/b"] = b"1"
    shared["/a/1"] = b"x\ny"
    shared["/a/1"] = b"\xff"
    del shared["/a/1"]
    del shared["/b"]
    lines, _ = text.communicate(timeout=PATIENCE_S)
    assert lines.decode().splitlines() == ["insert /a/1 -> x\\ny", "update /a/1 -> \\xff", "erase /a/1"]
    found = [json.loads(line) for line in one.communicate(timeout=PATIENCE_S)[0].splitlines()]
    assert found == [
        {"event": "update", "key": "/b", "value": "1", "before": "0"},
        {"event": "erase", "key": "/b", "before": "1"},
    ]


def test_a_watcher_says_that_the_server_is_lost_and_found(shell: Shell) -> None:
    process, facts = serve(shell)
    watching = watcher(shell)
    shell.stop(process)
    assert watching.stderr is not None
    assert b" is lost: " in watching.stderr.readline()
    with MapServer(facts["address"]):
        assert watching.stderr.readline().startswith(b"chappe: the map is that of the server at ")
    assert shell.stop(watching)[0] == 0


@pytest.mark.parametrize("backend", ["memory", "sqlite"])
def test_what_is_set_lasts_as_long_as_its_backend_and_both_are_told(shell: Shell, backend: str) -> None:
    where = () if backend == "memory" else ("--backend", backend, "--path", "map.db")
    process, facts = serve(shell, *where)
    assert facts | {"address": ""} == {
        "address": "",
        "backend": backend,
        "path": None if backend == "memory" else "map.db",
        "keys": 0,
    }
    assert shell.run("map", "set", "/a", "1").returncode == 0
    if backend == "memory":
        assert process.stdout is not None
        state = json.loads(process.stdout.readline())
        while not state["keys"]:  # told before it was set
            state = json.loads(process.stdout.readline())
        assert (state["keys"], state["updates"], state["active"], state["malformed"]) == (1, 1, True, 0)
        assert shell.stop(process)[0] == 0
    else:
        process.send_signal(signal.SIGKILL)
        process.communicate()
    _, facts = serve(shell, *where)
    assert facts["keys"] == (0 if backend == "memory" else 1)


def test_a_server_says_where_it_is_and_that_it_stops(shell: Shell) -> None:
    process = shell.start("map", "serve", "--at", "127.0.0.1:0")
    assert process.stderr is not None
    begins = process.stderr.readline().decode()
    assert begins.startswith("map server at 127.0.0.1:")
    assert begins.endswith(", 0 keys; Ctrl-C stops\n")
    if sys.platform == "linux":  # clients take two descriptors each: it allows itself as many as it may
        limits = Path(f"/proc/{process.pid}/limits").read_text().splitlines()
        soft, hard = next(each.split()[3:5] for each in limits if each.startswith("Max open files"))
        assert soft == hard or soft == "unlimited" or int(soft) >= MAP_SERVER_FILES
    code, out, err = shell.stop(process, signal.SIGINT)
    assert (code, out) == (0, "")
    assert err.splitlines()[-1] == f"{begins.partition(',')[0]} stopped"


def test_of_two_servers_the_other_takes_over(shell: Shell) -> None:
    one, two = free_address(3), free_address(3)
    links = [free_address(), free_address()]
    witness = shell.start("map", "witness", "--path", "granted.db", "--at", "127.0.0.1:0", "--json")
    assert witness.stdout is not None
    decides = json.loads(witness.stdout.readline())["address"]

    def start(role: str) -> subprocess.Popen[bytes]:
        turn = 1 if role == "primary" else -1
        own, partner = (one, two)[::turn]
        process = shell.start(
            "map", "serve", "--at", own, "--partner", partner, "--role", role, "--link", ",".join(links[::turn]),
            "--witness", decides, "--json",
        )  # fmt: skip
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["address"] == own
        return process

    servers = {role: start(role) for role in ("primary", "backup")}
    shell.env["CHAPPE_MAP_SERVERS"] = f"{one},{two}"
    # One that was alone when it was killed may have had more than the other, which rightly does not take over then.
    for keys in range(1, 4):
        paired(servers)
        assert shell.run("map", "set", f"/a/{keys}", "1", "--timeout", "60").returncode == 0
        killed = paired(servers, keys)
        servers.pop(killed).kill()
        if shell.run("map", "set", "/b", "2", "--timeout", "60").returncode == 0:
            break
        servers[killed] = start(killed)
    [(role, left)] = servers.items()
    assert shell.run("map", "get", "/a/1").stdout == b"1\n"
    assert left.stdout is not None
    state = json.loads(left.stdout.readline())
    while not state["active"]:
        state = json.loads(left.stdout.readline())
    assert (state["pair"]["role"], state["pair"]["state"]) == (role, "active")
    for each in (left, witness):
        assert shell.stop(each)[0] == 0


def paired(servers: Mapping[str, subprocess.Popen[bytes]], keys: int = 0) -> str:
    """Wait until one of a pair says that the other has all that it has, so many keys: which."""
    while True:
        for role, process in servers.items():
            assert process.stdout is not None
            state = json.loads(process.stdout.readline())
            if state["pair"]["confirms"] == "paired" and state["keys"] >= keys:
                return role


# -- dump and load ------------------------------------------------------------------------------------------


def test_what_is_dumped_is_loaded_into_another_map(shell: Shell, shared: SharedMap[bytes]) -> None:
    shared.set_many({f"/n/{n}": b"%d \xff" % n for n in range(KEYS)})
    shared.set("/p", b"x", properties={"unit": "EUR"})
    done = shell.run("map", "dump", "map.json")
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", f"dumped {KEYS + 1:,} keys\n".encode())
    assert not (shell.directory / "map.json.new").exists()
    raw = (shell.directory / "map.json").read_bytes()
    assert shell.run("map", "dump").stdout == raw
    with MapServer("127.0.0.1:0") as other, SharedMap(other.address) as copy:
        copy["/stays"] = b"1"
        done = shell.run("map", "load", "map.json", "--servers", other.address, "--json")
        assert (done.returncode, json.loads(done.stdout)) == (0, {"loaded": KEYS + 1})
        until(lambda: copy.snapshot() == shared.snapshot() | {"/stays": b"1"})
        assert copy.properties("/p") == {"unit": "EUR"}
        copy.clear()
        assert shell.run("map", "load", "--servers", other.address, stdin=raw).returncode == 0  # through a pipe
        until(lambda: copy.snapshot() == shared.snapshot())


def test_what_is_large_is_loaded_a_few_at_a_time(shared: SharedMap[bytes]) -> None:
    lines = b"".join(b'{"key":"%d","value":"%s"}\n' % (n, b"x" * (1 << 20)) for n in range(10))
    assert list(maps_files._set(shared, io.BytesIO(lines), PATIENCE_S)) == [4, 8, 10]
    assert len(shared) == 10


@pytest.mark.parametrize(
    ("line", "text"),
    [
        (b"{", b"truncated"),
        (b'{"key":"a"}', b"value"),
        (b'{"key":"a","value":1}', b"$.value"),
        (b'{"key":"a","value":""}', b"an empty value means"),
        (b'{"key":"HUGZ","value":"1"}', b"a word of the protocol"),
        (b'{"key":"a","value":{"base64":"!"}}', b"not base64"),
        (b'{"key":"a","value":"1","properties":{"ttl":"5"}}', b"is not a property"),
        (b'{"key":"a","value":"1","ttl":5}', b"ttl"),
        (b"\xff", b"malformed"),
    ],
)
def test_nothing_is_loaded_where_a_line_is_wrong(
    shell: Shell, shared: SharedMap[bytes], line: bytes, text: bytes
) -> None:
    done = shell.run("map", "load", stdin=b'{"key":"good","value":"1"}\n\n' + line + b"\n")
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr.startswith(b"chappe: line 3 is not an entry as `chappe map dump` writes it: ")
    assert text in done.stderr
    assert done.stderr.count(b"\n") == 1
    assert shared.snapshot() == {}


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no device here that is always full")
def test_a_full_disk_is_one_sentence_and_no_file(shell: Shell, shared: SharedMap[bytes]) -> None:
    shared["/a"] = b"1"
    done = shell.run("map", "dump", "/dev/full")
    assert (done.returncode, done.stdout) == (1, b"")
    assert done.stderr == b"chappe: No space left on device\n"


@pytest.mark.skipif(sys.platform == "win32", reason="there is no bound on files here")
def test_a_dump_that_fails_leaves_the_file_as_it_was(shell: Shell, shared: SharedMap[bytes]) -> None:
    shared["/a"] = bytes(300_000)
    (shell.directory / "map.json").write_bytes(b"before")
    command = f'ulimit -f 100; exec "{sys.executable}" -m chappe map dump map.json'
    done = subprocess.run(
        ["sh", "-c", command], cwd=shell.directory, env=shell.env, capture_output=True, timeout=PATIENCE_S, check=False
    )
    assert (done.returncode, done.stderr) == (1, b"chappe: map.json: File too large\n")
    assert [each.name for each in shell.directory.iterdir()] == ["map.json"]
    assert (shell.directory / "map.json").read_bytes() == b"before"


@pytest.mark.skipif(sys.platform != "linux", reason="the bounds of another process are Linux's")
def test_a_disk_of_the_server_that_is_full_fails_what_was_not_set(shell: Shell) -> None:
    import resource

    process, _ = serve(shell, "--backend", "sqlite", "--path", "map.db")
    assert shell.run("map", "set", "/a", "1").returncode == 0
    soft, hard = resource.prlimit(process.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (1 << 20, hard))
    lines = b"".join(b'{"key":"%d","value":"%s"}\n' % (n, b"x" * 100_000) for n in range(50))
    done = shell.run("map", "load", "--timeout", "300", stdin=lines)
    assert (done.returncode, done.stdout) == (1, b"")
    told = done.stderr.decode().splitlines()
    assert told[-2] == "chappe: 0 of 50 keys are known to be set; the same command again sets all of them"
    assert "disk" in told[-1] or "full" in told[-1]
    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (soft, hard))
    assert shell.run("map", "load", "--timeout", "300", stdin=lines).returncode == 0


# -- what cannot be -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "command", [("get", "a"), ("set", "a", "1"), ("delete", "a"), ("watch",), ("dump",), ("load",)]
)
def test_without_a_server_one_sentence_says_so(shell: Shell, command: tuple[str, ...]) -> None:
    done = shell.run("map", *command, "--servers", "127.0.0.1:1,127.0.0.1:4", "--timeout", "0.3")
    assert (done.returncode, done.stdout) == (1, b"")
    text = b"chappe: no map server answers at 127.0.0.1:1,127.0.0.1:4; start one with: chappe map serve\n"
    assert done.stderr == text
    assert not list(shell.directory.iterdir())


def test_a_server_of_another_map_is_not_waited_for(shell: Shell) -> None:
    with MapServer("127.0.0.1:0", name="prices") as served:
        where = ("--servers", served.address, "--name", "orders", "--timeout", str(2 * PATIENCE_S))
        done = shell.run("map", "get", *where)
    assert (done.returncode, done.stdout) == (1, b"")
    text = f"chappe: the server at {served.address} has the map 'prices', and not the one that is wanted"
    assert done.stderr.decode().splitlines()[-1] == text


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (("get", "HUGZ"), 2, b"a word of the protocol"),
        (("get", "a", "--subtree", "b"), 2, b"not both"),
        (("watch", "a", "--subtree", "b"), 2, b"not both"),
        (("set", "a", ""), 2, b"an empty value means"),
        (("set", "a", "1", "--ttl", "soon"), 2, b"is not an age"),
        (("set", "a", "1", "--ttl", "0s"), 2, b"a ttl is a time"),
        (("get", "a", "--servers", "here:port"), 2, b"is not the address of a map server"),
        (("get", "a", "--servers", "a,,b"), 2, b"separated by commas"),
        (("load", "nowhere.json"), 1, b"nowhere.json: No such file"),
        (("dump", "nowhere/map.json"), 1, b"nowhere/map.json: No such file"),
        (("serve", "--backend", "sqlite"), 2, b"needs a path"),
        (("serve", "--partner", "127.0.0.1:9"), 2, b"which server of the pair"),
        (("serve", "--partner", "127.0.0.1:5570", "--role", "primary"), 2, b"is this server itself"),
        (("serve", "--role", "backup"), 2, b"give its partner's address"),
        (("serve", "--partner", "127.0.0.1:9", "--role", "backup", "--link", "x"), 2, b"not two addresses"),
        (("witness", "--path", "/dev/null/granted", "--at", "127.0.0.1:0"), 1, b"cannot open"),
        (("serve", "--path", "map.db"), 2, b"memory has no path"),
        (("serve", "--at", "127.0.0.1:99999"), 2, b"is not the address of a map server"),
        (("serve", "--at", "127.0.0.1:0", "--backend", "sqlite", "--path", "/dev/null/map"), 1, b"cannot open"),
    ],
)
def test_what_cannot_be_is_one_clear_line(
    shell: Shell, server: MapServer, arguments: tuple[str, ...], code: int, text: bytes
) -> None:
    done = shell.run("map", *arguments)
    assert (done.returncode, done.stdout) == (code, b"")
    assert text in done.stderr
    assert done.stderr.count(b"\n") == 1


def test_ports_and_paths_that_others_have_are_refused(shell: Shell) -> None:
    where = ("--backend", "sqlite", "--path", "map.db")
    _, facts = serve(shell, *where)
    done = shell.run("map", "serve", "--at", facts["address"])
    assert done.returncode == 1
    assert b"in use" in done.stderr
    done = shell.run("map", "serve", "--at", "127.0.0.1:0", *where)
    assert done.returncode == 1
    assert b"another process has it open" in done.stderr
