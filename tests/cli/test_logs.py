"""The log of commands, as real processes."""

from __future__ import annotations

import json
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from tests.cli.conftest import PATIENCE_S, Shell
from tests.waiting import until

import chappe
from chappe.cli.logs import parse_levels
from chappe.errors import UsageError

pytestmark = pytest.mark.process
UNWANTED = b"published 1 message, to which nobody has subscribed"


def start_node(shell: Shell, *arguments: str) -> tuple[subprocess.Popen[bytes], str]:
    process = shell.start("node", "--listen", "127.0.0.1:0", "--json", *arguments)
    assert process.stdout is not None
    listening: list[str] = json.loads(process.stdout.readline())["listen"]
    return process, listening[0]


def test_verbose_tells_of_peers_and_otherwise_nothing_is_said(shell: Shell) -> None:
    node, peer = start_node(shell, "--verbose")
    assert shell.run("publish", "/t", "1", "--peer", peer).stderr.rstrip() == UNWANTED
    done = shell.run("publish", "/t", "1", "--peer", peer, "--verbose")
    assert b"info chappe.mesh: peered with " in done.stderr
    _, _, err = shell.stop(node)
    assert err.count("info chappe.mesh: peered with ") == 2
    assert "debug " not in err


def test_a_log_file_has_more_detail_and_is_private(shell: Shell) -> None:
    node, peer = start_node(shell, "--log-file", "node.log")
    path = shell.directory / "node.log"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert shell.run("publish", "/t", "1", "--peer", peer).returncode == 0
    until(lambda: "lost the peering" in path.read_text())
    assert "peered with" not in shell.stop(node)[2]  # the terminal is as quiet as ever
    lines = path.read_text().splitlines()
    arrived = next(each for each in lines if "connection 1 comes from 127.0.0.1" in each)
    at, level, name, process, thread, *_ = arrived.split()
    assert at.endswith("Z")
    assert (level, name, process) == ("debug", "chappe.runtime.mesh_ports", f"[{node.pid}")
    assert thread.endswith("]")
    assert any(" info chappe.mesh [" in each for each in lines)


def test_lines_for_machines(shell: Shell) -> None:
    node, peer = start_node(shell, "--log-file", "node.log", "--log-format", "json", "--verbose")
    assert shell.run("publish", "/t", "1", "--peer", peer).returncode == 0
    until(lambda: "PeerLost" in (shell.directory / "node.log").read_text())
    printed = [json.loads(each) for each in shell.stop(node)[2].splitlines()]
    kept = [json.loads(each) for each in (shell.directory / "node.log").read_text().splitlines()]
    assert [each["event"] for each in printed if each.get("event") == "PeerAdded"] == ["PeerAdded"]
    assert {"debug", "info"} <= {each["level"] for each in kept}
    assert all(
        {"time", "level", "logger", "process", "thread", "member", "message"} <= set(each) for each in (*printed, *kept)
    )
    assert {each["member"] for each in kept} == {f"chappe node@{socket.gethostname()}"}


def test_whatever_a_command_says_is_an_object_if_its_log_is(shell: Shell) -> None:
    store = shell.start("store", "data", "--tower", "127.0.0.1:1", "--name", "s1", "--log-format", "json")
    assert store.stderr is not None
    lines = [json.loads(store.stderr.readline()), json.loads(store.stderr.readline())]  # ready; there is no tower
    lines += [json.loads(each) for each in shell.stop(store)[2].splitlines()]
    assert all({"time", "level", "logger", "message"} <= set(each) and each["member"] == "s1" for each in lines)
    assert sorted({each["level"] for each in lines}) == ["info", "warning"]
    assert lines[0]["message"].startswith("store in data, answering at ")
    assert lines[-1]["message"].startswith("store stopped; ")
    done = shell.run("store", "data", "--tower", "a:b:c:d", "--log-format", "json")
    (error,) = [json.loads(each) for each in done.stderr.splitlines()]
    assert (done.returncode, error["level"]) == (2, "error")


def test_each_logger_has_its_level(shell: Shell) -> None:
    levels = ("--log-level", "chappe.runtime=debug", "--log-level", "chappe.mesh=error")
    node, peer = start_node(shell, "--verbose", *levels)
    assert shell.run("publish", "/t", "1", "--peer", peer).returncode == 0
    _, _, err = shell.stop(node)
    assert "debug chappe.runtime.mesh_ports: connection 1 comes from" in err
    assert "chappe.mesh:" not in err


def test_members_of_the_log_are_told(shell: Shell) -> None:
    shell.up()
    done = shell.run("produce", "orders", "--verbose", stdin=b"one\n")
    assert b"info chappe.runtime.log_ports: member " in done.stderr


def test_the_environment_counts_more_than_the_file(shell: Shell) -> None:
    (shell.directory / "chappe.toml").write_text('[log]\nverbose = true\nfile = "of-file.log"\n')
    shell.env["CHAPPE_LOG_FILE"] = "of-environment.log"
    shell.up()
    assert b"info chappe" in shell.run("produce", "orders", stdin=b"one\n").stderr
    assert (shell.directory / "of-environment.log").stat().st_size > 0
    assert not (shell.directory / "of-file.log").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--log-level", "chappe=loud"), b"'loud' is not a level of the log: debug, info, warning, error are"),
        (("--log-level", "chappe.mash=debug"), b"there is no logger 'chappe.mash'"),
        (("--log-level", "debug"), b"NAME=LEVEL is wanted"),
        (("--log-format", "xml"), b"'xml' is not a format of the log"),
        (("--log-file", "none/there.log"), b"the log file none/there.log cannot be opened: No such file"),
        (("--log-file", "."), b"the log file . cannot be opened: Is a directory"),
    ],
)
def test_what_cannot_be_is_refused_in_one_sentence(shell: Shell, arguments: tuple[str, ...], said: bytes) -> None:
    done = shell.run("publish", "/t", "1", *arguments)
    assert done.returncode == 2
    assert said in done.stderr
    assert done.stderr.count(b"\n") == 1


def test_a_wrong_level_in_the_file_is_told_with_its_line(shell: Shell) -> None:
    (shell.directory / "chappe.toml").write_text('[log]\nlevel = "chappe=loud"\n')
    done = shell.run("config")
    assert (done.returncode, b"line 2: log.level: 'loud'" in done.stderr) == (2, True)


def test_a_full_disk_is_told_once_and_the_command_goes_on(shell: Shell) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("there is no device that is full")
    node, peer = start_node(shell, "--log-file", "/dev/full")
    assert shell.run("publish", "/t", "1", "--peer", peer).returncode == 0
    code, _, err = shell.stop(node)
    assert (code, err.count("the log file /dev/full cannot be written")) == (0, 1)


HOSTILE = """
import logging, sys
from chappe.cli.console import hear_warnings, warn
from chappe.cli.logs import log
log.ask(verbose=True, form=sys.argv[1])
log.open(sys.argv[2], warn)
hear_warnings()
try:
    raise ValueError("\\n2026 error chappe forged \\x1b[2J")
except ValueError:
    logging.getLogger("chappe.mesh").exception("from %s", "\\x1b]0;t\\x07\\nchappe: forged")
"""


@pytest.mark.parametrize("form", ["text", "json"])
def test_hostile_text_is_escaped(tmp_path: Path, form: str) -> None:
    path = tmp_path / "file.log"
    done = subprocess.run([sys.executable, "-c", HOSTILE, form, str(path)], capture_output=True, timeout=PATIENCE_S)
    for found in (done.stderr, path.read_bytes()):
        assert found
        assert b"\x1b" not in found
        assert b"\x07" not in found
        assert not [each for each in found.splitlines()[1:] if not each.startswith(b"    ")]


def test_a_file_that_was_moved_away_is_made_anew(shell: Shell) -> None:
    node, peer = start_node(shell, "--log-file", "node.log")
    path = shell.directory / "node.log"
    path.rename(shell.directory / "node.log.1")
    assert shell.run("publish", "/t", "1", "--peer", peer).returncode == 0
    until(path.exists)
    assert shell.stop(node)[0] == 0
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_levels_stand_in_one_text_too() -> None:
    assert parse_levels("chappe=info, chappe.mesh=DEBUG") == {"chappe": 20, "chappe.mesh": 10}
    root = Path(chappe.__path__[0])
    modules = [".".join(each.relative_to(root).with_suffix("").parts) for each in root.glob("*/[a-z]*.py")]
    with pytest.raises(UsageError, match="at most 100"):
        parse_levels(",".join(f"chappe.{each}=info" for each in modules))
