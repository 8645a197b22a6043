"""The live picture, on a terminal that is played."""

from __future__ import annotations

import io
import re
import sys
from contextlib import redirect_stderr

import pytest
from rich.console import Console

from chappe.cli import peering
from chappe.cli.console import Bar
from chappe.cli.screen import Screen

CODE = re.compile(r"\x1b\[\??(\d*)([A-Za-z])|(\r)|(\n)|([^\x1b\r\n]+)")


class Terminal(io.StringIO):
    """Keeps what a terminal would show and have scrolled away; lines are never broken."""

    def __init__(self, width: int, height: int) -> None:
        super().__init__()
        self.width, self.height = width, height
        self.rows = [""]
        self.row = self.column = 0

    def isatty(self) -> bool:
        return True

    @property
    def top(self) -> int:
        return max(0, len(self.rows) - self.height)

    def write(self, text: str) -> int:
        for number, command, start, newline, plain in CODE.findall(text):
            if start:
                self.column = 0
            elif newline:
                self.row, self.column = self.row + 1, 0
                if self.row == len(self.rows):
                    self.rows.append("")
            elif command == "A":
                self.row = max(self.top, self.row - int(number or 1))
            elif command == "K":
                self.rows[self.row] = self.rows[self.row][: 0 if number == "2" else self.column]
            elif command == "J":
                below = len(self.rows) - self.row - 1
                self.rows[self.row :] = [self.rows[self.row][: self.column], *[""] * below]
            elif plain:
                assert len(plain) + self.column <= self.width
                self.rows[self.row] = self.rows[self.row][: self.column] + plain
                self.column += len(plain)
        return len(text)

    @property
    def shown(self) -> list[str]:
        return [row for row in self.rows if row]


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    made = Terminal(40, 10)
    monkeypatch.setenv("TERM", "xterm")
    for name in ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    return made


def console(terminal: Terminal) -> Console:
    made = Console(file=terminal, width=terminal.width, height=terminal.height, color_system=None)
    assert made.is_terminal
    return made


def test_the_newest_picture_alone_is_shown_below_what_is_printed_meanwhile(terminal: Terminal) -> None:
    with redirect_stderr(terminal), Screen(console(terminal)) as screen:
        for number in range(3):
            screen.show(lambda number=number: f"picture {number}\nof two lines", list)  # type: ignore[misc]
            print(f"warning {number}", file=sys.stderr)
            print("half a line", end="", file=sys.stderr)
            assert terminal.shown[-2:] == [f"picture {number}", "of two lines"]
            print(file=sys.stderr)
    assert terminal.shown == [f"{what}" for n in range(3) for what in (f"warning {n}", "half a line")]


def test_a_picture_that_is_too_high_is_cut_and_leaves_nothing_behind(terminal: Terminal) -> None:
    with redirect_stderr(terminal), Screen(console(terminal)) as screen:
        print("before", file=sys.stderr)
        for lines in (30, 2, 30, 9):
            screen.show(lambda lines=lines: "\n".join(f"line {n}" for n in range(lines)), list)  # type: ignore[misc]
        assert terminal.shown == ["before", *(f"line {n}" for n in range(9))]
        screen.show(lambda: "\n".join(f"line {n}" for n in range(30)), list)
        assert terminal.shown[-1] == "... and 22 more lines"
    assert terminal.shown == ["before"]


def test_a_terminal_that_was_made_narrower_has_broken_the_lines(terminal: Terminal) -> None:
    made = console(terminal)
    with redirect_stderr(terminal), Screen(made) as screen:
        screen.show(lambda: "x" * 40 + "\nshort", list)
        terminal.rows = ["x" * 30, "x" * 10, "short", ""]  # as terminals do it
        terminal.row = 3
        made.width = 30
        screen.show(lambda: "narrow", list)
        assert terminal.shown == ["narrow"]


def test_rows_that_a_lower_terminal_moved_away_are_taken_back_when_it_grows(terminal: Terminal) -> None:
    made = console(terminal)
    with redirect_stderr(terminal), Screen(made) as screen:
        screen.show(lambda: "\n".join(f"old {n}" for n in range(8)), list)
        made.height = terminal.height = 4
        screen.show(lambda: "low", list)
        assert terminal.shown == [*(f"old {n}" for n in range(5)), "low"]
        made.height = terminal.height = 10
        screen.show(lambda: "high", list)
        assert terminal.shown == ["high"]


def test_without_a_terminal_lines_are_printed() -> None:
    out = io.StringIO()
    with Screen(Console(file=out, force_terminal=True)) as screen:
        screen.show(lambda: "never made", lambda: ["a line"])
        screen.show(lambda: "never made", lambda: ["too early"])
    assert out.getvalue() == "a line\n"


def test_warnings_appear_above_a_progress_bar(terminal: Terminal) -> None:
    terminal.width = 1000
    with redirect_stderr(terminal), Bar("working", quiet=False) as bar:
        for number in range(3):
            bar.update(f"working {number}", number, 3)
            print(f"warning {number}", file=sys.stderr)
    assert terminal.shown == [f"warning {number}" for number in range(3)]


@pytest.mark.parametrize("width", [200, 80, 60, 40])
def test_each_peer_of_a_node_takes_one_line(width: int) -> None:
    rows = [
        peering.PeerRow("0123-4567", f"192.168.100.{n}:9999", False, True, "peered", 12345.0, 1.0, 1, 1, 1000, 0)
        for n in range(5)
    ]
    out = io.StringIO()
    Console(file=out, width=width).print(peering.table("node", rows))
    lines = out.getvalue().splitlines()
    assert len(lines) == 7
    assert all("12,345" in line for line in lines[2:])
