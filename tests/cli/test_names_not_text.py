"""Names from a locale that is not UTF-8: every command that takes one uses it or refuses it in a sentence."""

from __future__ import annotations

import json
import os
from typing import Final

import pytest
from tests.cli.conftest import Shell
from tests.commands import commands_of, whole_program

pytestmark = pytest.mark.process

NAME: Final = "caf\udce9"
HERE: Final = ("--at", "127.0.0.1:0")
MESH: Final = ("--listen", "127.0.0.1:0")
KEYS: Final = ("--directory", "keys")
NOBODY: Final = ("--peer", "127.0.0.1:1")

# Refused before anybody is asked.
REFUSED: Final[tuple[tuple[str, ...], ...]] = (
    ("demo", "--input", NAME),
    ("up", "store", "--tower", NAME),
    ("tower", "--listen", NAME),
    ("store", "store", "--chain", NAME, "--name", "a"),
    ("forward", "store", "--at", NAME),
    ("forward", "store", *HERE, "--peers", NAME),
    ("produce", NAME),
    ("produce", "t", "--file", NAME),
    ("produce", "t", "--header", f"{NAME}=x"),
    ("produce", "t", "--identity", NAME),
    ("produce", "t", "--timestamp", NAME),
    ("produce", "t", "--chain", NAME),
    ("consume", "t", "--from", NAME),
    ("consume", "t", "--until", NAME),
    ("consume", "t", "--exec", NAME, "--identity", "w"),
    ("consume", "t", "--exec", "true", "--identity", NAME),
    ("topics", "--plot", "--since", NAME),
    ("topics", "list", NAME, "--tower", NAME),
    ("topics", "show", NAME, "--tower", NAME),
    ("topics", "config", NAME, "--tower", NAME),
    ("topics", "create", NAME),
    ("topics", "set", NAME, "--age", "7d"),
    ("topics", "trim", "t", "--before", NAME),
    ("topics", "delete", NAME, "--tower", NAME),
    ("schemas", "list", "--server", NAME),
    ("schemas", "show", NAME),
    ("schemas", "add", "s", NAME),
    ("schemas", "check", "s", NAME),
    ("schemas", "delete", NAME),
    ("schemas", "compatibility", "full", "--subject", NAME),
    ("schemas", "serve", "schemas", "--listen", NAME),
    ("groups", "show", NAME),
    ("groups", "reset", NAME, "--to", "earliest"),
    ("groups", "delete", NAME),
    ("node", NAME),
    ("node", "--id", NAME),
    ("gateway", NAME),
    ("request", NAME, "1", *NOBODY),
    ("reply", NAME, "ok", "--peer", NAME),
    ("service", "print", NAME),
    ("service", "install", NAME),
    ("copy", NAME, "--to", "127.0.0.1:1"),
    ("publish", "x", "1", "--type", NAME, *NOBODY),
    ("subscribe", "x", "--peer", NAME),
    ("tap", NAME),
    ("ping", NAME),
    ("record", "x", "--to", NAME, *NOBODY),
    ("record", "x", "--to", "t", "--peer", NAME),
    ("archive", NAME, "--to", "archive"),
    ("replay", "t", "--peer", NAME),
    ("replay", "--from", NAME),
    ("dashboard", "--at", NAME),
    ("top", "--tower", NAME),
    ("pipeline", "run", NAME),
    ("pipeline", "check", NAME),
    ("pipeline", "status", NAME),
    ("pipeline", "stop", NAME),
    ("keys", "init", "other", "--name", NAME),
    ("keys", "add", NAME, "--role", "sensor", *KEYS),
    ("keys", "add", "x", "--role", NAME, *KEYS),
    ("keys", "add", "x", "--role", "sensor", "--host", NAME, *KEYS),
    ("keys", "renew", NAME, *KEYS),
    ("keys", "revoke", NAME, *KEYS),
    ("keys", "seal", NAME, "--topic", "t", "--role", "sensor", *KEYS),
    ("keys", "seal", "g", "--topic", NAME, "--role", "sensor", *KEYS),
    ("keys", "rotate", NAME, *KEYS),
    ("keys", "give", "admin", NAME, *KEYS),
    ("keys", "token", NAME, *KEYS),
    ("keys", "list", "--directory", NAME),
    ("permissions", "check", "admin", "produce", NAME, "--directory", NAME),
    ("permissions", "show", "--directory", NAME),
    ("permissions", "sign", NAME, *KEYS),
    ("kv", "serve", NAME, *MESH),
    ("kv", "get", NAME, "k", *NOBODY),
    ("kv", "put", NAME, "k", "1", *NOBODY),
    ("kv", "erase", NAME, "k", *NOBODY),
    ("kv", "history", NAME, "k", *NOBODY),
    ("kv", "list", NAME, *NOBODY),
    ("kv", "watch", NAME, *NOBODY),
    ("kv", "dump", NAME, *NOBODY),
    ("kv", "load", NAME, *NOBODY),
    ("map", "serve", *HERE, "--name", NAME),
    ("map", "witness", "--path", "w", "--at", NAME),
    ("map", "get", "--name", NAME),
    ("map", "set", "k", "v", "--name", NAME),
    ("map", "delete", "k", "--name", NAME),
    ("map", "watch", "--name", NAME),
    ("map", "dump", "--name", NAME),
    ("map", "load", "--name", NAME),
    ("chain", "serve", NAME, "--name", "a"),
    ("chain", "status", NAME),
    ("chain", "add", NAME, "a"),
    ("chain", "remove", NAME, "a"),
    ("mesh", "generate", NAME),
    ("mesh", "benchmark", NAME),
    ("bench", "log", "--tower", NAME),
    ("bench", "log", "--tower", "127.0.0.1:1", "--topic", NAME),
)
WITHOUT_NAMES: Final = {"config", "pipeline list", "chain demo", "doctor", "bench mesh", "bench state"}


@pytest.fixture(scope="module")
def keyed(tmp_path_factory: pytest.TempPathFactory) -> Shell:
    home = tmp_path_factory.mktemp("names")
    shell = Shell(home, {"PATH": os.defpath, "HOME": str(home)})
    assert shell.run("keys", "init", "keys").returncode == 0
    return shell


@pytest.mark.parametrize("arguments", REFUSED, ids=lambda each: ascii(" ".join(each)))
def test_it_is_refused_in_a_sentence(keyed: Shell, arguments: tuple[str, ...]) -> None:
    before = sorted(keyed.directory.rglob("*"))
    done = keyed.run(*arguments)
    said = done.stderr.decode("utf-8", "replace")
    assert done.returncode in (1, 2), said
    assert said.startswith("chappe: "), said
    assert said.count("\n") == 1, said
    assert "unexpected" not in said
    assert sorted(keyed.directory.rglob("*")) == before, "nothing is half written"


def test_every_command_that_takes_a_name_is_tried() -> None:
    every = {name for name, _ in commands_of(whole_program())}
    tried = {" ".join(each[:n]) for each in REFUSED for n in (1, 2)} & every
    assert tried == every - WITHOUT_NAMES


def test_names_that_others_chose_are_asked_for(shell: Shell) -> None:
    shell.up()
    for command in (("consume", NAME, "--until-end"), ("topics", NAME)):
        done = shell.run(*command)
        assert (done.returncode, b"does not have a topic 'caf\\udce9'" in done.stderr) == (1, True), done.stderr
    assert shell.run("produce", "t", "--key", NAME, stdin=b"x\n").returncode == 0
    read = json.loads(shell.run("consume", "t", "--until-end", "--json").stdout)
    assert read["key"] == {"base64": "Y2Fm6Q=="}


def test_an_authority_is_made_in_any_directory(shell: Shell) -> None:
    for directory in (NAME, "two\nlines"):
        assert shell.run("keys", "init", directory).returncode == 0
        assert shell.run("permissions", "show", "--directory", directory).returncode == 0
