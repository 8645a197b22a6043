"""The page that has chappe's commands beside those of kcat, rpk and nats: they exist, and those of the log run."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from tests.cli.conftest import Shell
from tests.commands import whole_program

PAGE: Final = Path(__file__).parents[2] / "docs/reference/kcat-rpk-nats.md"
COLUMNS: Final = 6
RUN: Final = {
    1,
    3,
    5,
    6,
    7,
    8,
    9,
    10,
    11,
    18,
    22,
    25,
    26,
    29,
    30,
    31,
    32,
    37,
    38,
    39,
    41,
    54,
}  # what others do is the same


def rows() -> Iterator[tuple[int, list[str]]]:
    """The number of each row, and its cells."""
    for row in re.findall(r"^\| \d.*\|$", PAGE.read_text(), re.MULTILINE):
        _, number, *cells, _ = (cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", row))
        yield int(number), cells


def commands(cell: str) -> list[str]:
    return [code for code in re.findall(r"`([^`]+)`", cell) if "chappe " in code]


ALL: Final = [(number, command) for number, cells in rows() for command in commands(cells[-1])]


def test_every_row_has_a_command_or_says_that_there_is_none() -> None:
    found = list(rows())
    assert [number for number, _ in found] == list(range(1, len(found) + 1))
    assert len(found) >= 50
    assert all(len(cells) == COLUMNS - 1 for _, cells in found)
    without = [number for number, cells in found if not commands(cells[-1])]
    assert [n for n, cells in found if cells[-1].startswith("not yet")] == [15]
    assert set(without) == {14, 15}


def test_the_commands_exist() -> None:
    program: Any = whole_program()
    for piece in [piece for _, command in ALL for piece in command.split(" | ")]:
        name, *rest = shlex.split(piece)
        if name != "chappe" or rest == ["--install-completion"]:
            continue
        found = program
        while hasattr(found, "commands"):
            named = bool(rest) and rest[0] in found.commands
            found, rest = found.commands[rest[0] if named else "list"], rest[1:] if named else rest
        found.make_context("chappe", rest)


@pytest.mark.process
def test_commands_of_the_log_do_what_the_page_says(shell: Shell) -> None:
    shell.up()
    (shell.directory / "lines.txt").write_text("first\nsecond\n")
    (shell.directory / "keyed.txt").write_text("ann:from ann\nbob:from bob\n")
    printed: dict[int, bytes] = {}
    for number, command in ALL:
        found = b""
        for words in map(shlex.split, command.split(" | ") if number in RUN else ()):
            if words[0] in ("echo", "printf"):
                found = subprocess.run(words, capture_output=True, check=True).stdout
            else:
                done = shell.run(*words[1:], stdin=found)
                assert done.returncode == 0, (words, done.stderr)
                found = done.stdout
        printed[number] = found
    everything = printed[29].splitlines()
    assert {b"hi", b"a", b"b", b"c", b"first", b"second", b"from ann", b"old", b'{"id": 1}'} <= set(everything)
    assert printed[25].count(b"\n") == 2  # from ann, and no value
    assert sorted(line.split()[-1] for line in printed[26].splitlines()) == [b"hi"] * everything.count(b"hi")
    assert b"[source=shop]" in printed[32]
    assert re.fullmatch(rb"(orders \d+ .*\n)+", printed[30])
    assert [json.loads(line)["topic"] for line in printed[31].splitlines()] == ["orders"] * len(everything)
    assert printed[22] == b"", "the first record is of now"
    assert len(printed[18].splitlines()) == 5
    assert b"copy" in printed[39]
    assert re.fullmatch(rb"[0-9A-F]{32} \d+\n", printed[41])
