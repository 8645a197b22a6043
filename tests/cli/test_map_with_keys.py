"""A map server, its clients and its witness as processes that have keys."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import Shell

from chappe.api import permissions

pytestmark = pytest.mark.process


@pytest.fixture
def home(shell: Shell) -> Path:
    made = shell.directory / "keys"
    permissions.init(made, "hub", "server")
    permissions.add(made, "all", "member", hosts=["10.0.0.7"])
    permissions.add(made, "reader", "consumer")
    return made


def facts(shell: Shell, *command: str) -> dict[str, Any]:
    process = shell.start(*command, "--json")
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, process.stderr and process.stderr.read().decode()
    found: dict[str, Any] = json.loads(line)
    return found


def test_those_with_keys_share_a_map_and_others_get_nothing(shell: Shell, home: Path) -> None:
    where = facts(shell, "map", "serve", "--at", "127.0.0.1:0", "--name", "prices", "--as", "keys/hub")["address"]
    assert where.startswith("hub@127.0.0.1:")
    servers = ("--servers", where)

    assert shell.run("map", "set", "/fx/eur", "1.08", "--as", "keys/all", *servers).returncode == 0
    shell.env["CHAPPE_IDENTITY"] = "keys/reader"
    assert shell.run("map", "get", "/fx/eur", *servers).stdout == b"1.08\n"
    refused = shell.run("map", "set", "/fx/eur", "0", *servers)
    assert (refused.returncode, refused.stdout) == (2, b"")
    assert refused.stderr == b"chappe: reader may not write 'prices/fx/eur': no rule allows it\n"
    del shell.env["CHAPPE_IDENTITY"]

    stranger = shell.run("map", "get", "--servers", where.removeprefix("hub@"), "--timeout", "0.5")
    assert (stranger.returncode, stranger.stdout) == (1, b"")
    assert b"no map server answers at 127.0.0.1:" in stranger.stderr
    named = shell.run("map", "get", *servers)
    assert (named.returncode, b"has keys, and we have none" in named.stderr) == (2, True)


def test_beyond_this_machine_map_servers_need_a_choice(shell: Shell, home: Path) -> None:
    for command in (("map", "serve"), ("map", "witness", "--path", "witness.db")):
        refused = shell.run(*command, "--at", "0.0.0.0:0")
        assert (refused.returncode, b"0.0.0.0 is not this machine: give --as " in refused.stderr) == (2, True)
        for word in (("--plain",), ("--as", "keys/hub")):
            process = shell.start(*command, "--at", "0.0.0.0:0", *word, "--json")
            assert process.stdout is not None
            assert json.loads(process.stdout.readline())["address"]
            process.send_signal(signal.SIGINT)
            process.wait()
