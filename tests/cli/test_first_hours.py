"""Small things that newcomers meet: pipes that end early, status lines, wrong addresses, numbers of one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest
from rich.console import Console
from tests.cli.conftest import PATIENCE_S, Shell

from chappe.cli import screen
from chappe.cli.screen import Screen

ROOT = Path(__file__).parents[2]


@pytest.mark.process
@pytest.mark.parametrize(
    "arguments",
    [("topics",), ("topics", "--json"), ("consume", "t", "--until-end"), ("config",), ("--help",), ("--version",)],
)
def test_a_reader_that_has_enough_is_no_trouble(shell: Shell, arguments: tuple[str, ...]) -> None:
    shell.up()
    assert shell.run("produce", "t", stdin=b"a line\n").returncode == 0
    reader, writer = os.pipe()
    os.close(reader)  # as `head` does once it has what it wanted
    command = [sys.executable, "-m", "chappe", *arguments]
    process = subprocess.Popen(
        command, cwd=shell.directory, env=shell.env, stdin=subprocess.DEVNULL, stdout=writer, stderr=subprocess.PIPE
    )
    os.close(writer)
    _, said = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, said) == (0, b"")


@pytest.mark.process
def test_the_program_alone_shows_its_help(shell: Shell) -> None:
    alone, asked = shell.run(), shell.run("--help")
    assert (alone.returncode, alone.stdout, alone.stderr) == (0, asked.stdout, b"")
    assert b"Usage: chappe" in alone.stdout


@pytest.mark.process
@pytest.mark.parametrize(
    "arguments",
    [
        ("tower", "--listen", "0.0.0.0:0"),
        ("up", "--tower", "0.0.0.0:0"),
        ("store", "kept", "--listen", "0.0.0.0"),
        ("map", "serve", "--at", "0.0.0.0:0"),
    ],
)
def test_advice_is_in_the_words_of_the_command_line(shell: Shell, arguments: tuple[str, ...]) -> None:
    done = shell.run(*arguments)
    assert done.returncode == 2
    assert done.stderr.decode() == (
        "chappe: 0.0.0.0 is not this machine: give --as DIRECTORY/NAME (`chappe keys` makes identities), "
        "or --plain if everybody who reaches it may read and forge\n"
    )


@pytest.mark.process
def test_a_subscriber_that_reached_nobody_fails(shell: Shell) -> None:
    command = ("subscribe", "", "--peer", "127.0.0.1:1")
    done = shell.run(*command, "--seconds", "1")
    assert done.returncode == 1
    at_once, at_the_end = done.stderr.decode().splitlines()
    assert "127.0.0.1:1" in at_once
    assert at_once.endswith("still trying")
    assert at_the_end.startswith("chappe: nobody was ever reached at 127.0.0.1:1: ")
    following = shell.start(*command)
    assert following.stderr is not None
    assert b"still trying" in following.stderr.readline()
    code, _, said = shell.stop(following, signal.SIGINT)
    assert (code, "nobody was ever reached" in said) == (1, True)


def test_lines_without_a_terminal_come_when_they_have_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(screen, "LINES_EVERY_S", 0.0)
    with open(os.devnull, "w") as nowhere:
        console = Console(file=nowhere, width=80)
        printed: list[str] = []
        monkeypatch.setattr(console, "print", lambda line, **_: printed.append(line))
        with Screen(console) as shown:
            shown._lines_at = time.monotonic()
            for state in ("one", "one", "one", "two", "two", "one"):
                shown.show(lambda: "", lambda state=state: [state])  # type: ignore[misc]
    assert printed == ["one", "two", "one"]


@pytest.mark.process
def test_a_terminal_without_utf8_gets_ascii(shell: Shell) -> None:
    shell.up()
    shell.run("produce", "grüße", stdin=b"a\n")
    shell.env |= {"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    for more in ([], ["--plot"], ["--partitions"], ["--json"]):
        done = shell.run("topics", *more)
        assert (done.returncode, done.stderr) == (0, b"")
        assert b"gr\\" in done.stdout
        assert done.stdout.isascii()
    for command in (("config",), ("--help",), ("doctor",)):
        assert shell.run(*command).stdout.isascii()


@pytest.mark.process
def test_a_user_without_name_and_home_can_work(shell: Shell) -> None:
    shell.up()
    for name in ("HOME", "XDG_STATE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "USER", "LOGNAME"):
        shell.env.pop(name, None)
    nameless = "import pwd; pwd.getpwuid = {}.__getitem__; from chappe.cli import main; main()"  # as of an unknown uid
    for arguments in (["config"], ["topics"], ["produce", "t"], ["produce", "t", "--identity", "me"], ["doctor"]):
        done = subprocess.run(
            [sys.executable, "-c", nameless, *arguments], cwd=shell.directory, env=shell.env, input=b"x\n",
            capture_output=True, timeout=PATIENCE_S, check=False,
        )  # fmt: skip
        assert b"unexpected" not in done.stderr, done.stderr.decode()
        assert b"Traceback" not in done.stderr
        assert done.returncode == 0 or "--identity" in arguments or arguments == ["doctor"], done.stderr.decode()


def test_one_extra_has_all_that_users_may_want() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    (everything,) = extras.pop("all")
    assert everything == f"chappe[{','.join(sorted(extras))}]"
