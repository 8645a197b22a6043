"""``chappe kv serve`` as a process, and the other commands as its clones."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import Shell
from tests.ports import free_address
from tests.waiting import PATIENCE_S

pytestmark = pytest.mark.process


def serve(shell: Shell, *arguments: str) -> tuple[subprocess.Popen[bytes], dict[str, Any]]:
    process = shell.start("kv", "serve", "users", "--listen", "127.0.0.1:0", "--json", *arguments)
    assert process.stdout is not None
    facts: dict[str, Any] = json.loads(process.stdout.readline())
    return process, facts


@pytest.mark.parametrize("backend", ["memory", "sqlite"])
def test_what_is_put_into_a_served_store_is_there_and_lasts_as_long_as_its_backend(shell: Shell, backend: str) -> None:
    where = () if backend == "memory" else ("--backend", backend, "--path", "users.db")
    process, facts = serve(shell, *where)
    assert facts["store"] == "users"
    assert facts["backend"] == backend
    assert facts["entries"] == 0
    peer = facts["listen"][0]
    assert shell.run("kv", "put", "users", "ann", "count:5", "--peer", peer).returncode == 0
    assert shell.run("kv", "list", "users", "--peer", peer).stdout == b"ann -> count:5\n"
    if backend == "memory":
        assert process.stdout is not None
        state = json.loads(process.stdout.readline())
        while not state["entries"]:  # told before it was put
            state = json.loads(process.stdout.readline())
        assert (state["store"], state["entries"], state["version"]) == ("users", 1, 1)
        assert {"clones", "peers"} <= state.keys()
        assert shell.stop(process)[0] == 0
    else:
        process.send_signal(signal.SIGKILL)
        process.communicate()
    _, facts = serve(shell, *where)
    assert facts["entries"] == (0 if backend == "memory" else 1)


def test_it_says_who_comes_and_that_it_stops(shell: Shell) -> None:
    process = shell.start("kv", "serve", "users", "--listen", "127.0.0.1:0")
    assert process.stderr is not None
    begins = process.stderr.readline().decode()
    assert begins.startswith("master of store users at 127.0.0.1:")
    peer = begins.split(" at ")[1].split(",")[0]
    assert shell.run("kv", "put", "users", "ann", "1", "--peer", peer).returncode == 0
    code, _, err = shell.stop(process, signal.SIGINT)
    assert code == 0
    assert "follows store 'users'" in err
    assert err.endswith("store users stopped\n")


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (("users", "--backend", "sqlite"), 2, b"needs a path"),
        (("users", "--path", "users.db"), 2, b"memory has no path"),
        (("users", "--listen", "0.0.0.0:0"), 2, b"is not this machine"),
        (("<$>users", "--listen", "127.0.0.1:0"), 2, b"does not begin with"),
        (("users", "--listen", "127.0.0.1:0", "--backend", "sqlite", "--path", "/dev/null/users"), 1, b"cannot open"),
    ],
)
def test_what_cannot_be_served_is_one_clear_line(
    shell: Shell, arguments: tuple[str, ...], code: int, text: bytes
) -> None:
    done = shell.run("kv", "serve", *arguments)
    assert done.returncode == code
    assert text in done.stderr
    assert done.stderr.count(b"\n") == 1


def test_a_path_that_another_one_serves_is_refused(shell: Shell, tmp_path: Path) -> None:
    where = ("--backend", "sqlite", "--path", str(tmp_path / "users.db"))
    serve(shell, *where)
    done = shell.run("kv", "serve", "users", "--listen", "127.0.0.1:0", *where)
    assert done.returncode == 1
    assert b"another process has it open" in done.stderr


def test_a_clone_goes_on_when_the_head_of_a_chain_of_masters_is_killed(shell: Shell, tmp_path: Path) -> None:
    servers = "".join(f"{name} = '{free_address()}'\n" for name in "abc")
    (tmp_path / "chain.toml").write_text(f"name = 'users'\n[servers]\n{servers}")
    processes, peers = {}, []
    for name in "abc":
        given = ("--chain", str(tmp_path / "chain.toml"), "--name", name, "--directory", str(tmp_path / name))
        processes[name], facts = serve(shell, *given)
        peers += ["--peer", facts["listen"][0]]
    assert shell.run("kv", "put", "users", "ann", "1", *peers[:2]).returncode == 0
    processes["a"].send_signal(signal.SIGKILL)
    assert shell.run("kv", "put", "users", "bob", "2", *peers[2:]).returncode == 0
    assert shell.run("kv", "list", "users", *peers[2:]).stdout == b"ann -> 1\nbob -> 2\n"


@pytest.mark.parametrize("option", ["--partner", "--role", "--witness"])
def test_an_option_of_a_pair_of_masters_says_what_to_do_instead(shell: Shell, option: str) -> None:
    done = shell.run("kv", "serve", "users", "--listen", "127.0.0.1:0", option, "primary")
    assert done.returncode == 2
    assert b"start three on a chain, each with --chain FILE and --name NAME" in done.stderr
    assert done.stderr.count(b"\n") == 1
    assert option.encode() not in shell.run("kv", "serve", "--help").stdout


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("--name", "a"), b"give --chain, too"),
        (("--chain", "chain.toml"), b"--name, one of a, b"),
        (("--chain", "chain.toml", "--name", "x"), b"has no server 'x'"),
        (("--chain", "none.toml", "--name", "a"), b"none.toml cannot be read"),
    ],
)
def test_what_does_not_go_with_a_chain_is_one_clear_line(
    shell: Shell, tmp_path: Path, arguments: tuple[str, ...], text: bytes
) -> None:
    given = [str(tmp_path / each) if each.endswith(".toml") else each for each in arguments]
    (tmp_path / "chain.toml").write_text("[servers]\na = '127.0.0.1:7801'\nb = '127.0.0.1:7802'\n")
    done = shell.run("kv", "serve", "users", "--listen", "127.0.0.1:0", *given)
    assert done.returncode != 0
    assert text in done.stderr
    assert done.stderr.count(b"\n") == 1


def test_the_server_of_a_chain_says_what_it_serves_and_how_its_chain_is(shell: Shell, tmp_path: Path) -> None:
    (tmp_path / "chain.toml").write_text(f"name = 'users'\n[servers]\na = '{free_address()}'\n")
    given = ("--chain", str(tmp_path / "chain.toml"), "--name", "a", "--directory", str(tmp_path / "a"))
    process = shell.start("kv", "serve", "users", "--listen", "127.0.0.1:0", "--json", *given)
    assert process.stdout is not None
    first = json.loads(process.stdout.readline())
    assert (first["chain"], first["name"]) == ("users", "a")
    assert shell.run("kv", "put", "users", "ann", "1", "--peer", first["listen"][0]).returncode == 0
    while (state := json.loads(process.stdout.readline()))["entries"] != 1:
        pass
    assert (state["chain"]["role"], state["chain"]["members"]) == ("alone", ["a"])
    process.send_signal(signal.SIGTERM)
    assert process.wait(PATIENCE_S) == 0
