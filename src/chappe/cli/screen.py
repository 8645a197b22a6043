"""The display of long-running commands: a live picture in a terminal, lines now and then elsewhere."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TextIO, cast

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.markup import escape
from rich.segment import Segment, SegmentLines
from rich.table import Table
from rich.text import Text

from chappe.cli.logs import log
from chappe.data import terminal

GAP = 2  # characters between two columns


class People(Console):
    """A console that escapes control characters in everything that it prints.

    The layout needs line breaks, so names go through ``terminal.line`` before they become cells.
    """

    def on_broken_pipe(self) -> None:
        """Raise it to the program, which exits quietly."""
        raise BrokenPipeError

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Yield segments without control characters."""
        for each in super().render(renderable, options):
            plain = each.control or each.text == (text := terminal.lines(each.text))
            yield each if plain else Segment(text, each.style)


def cell(text: str) -> Text:
    """Escape untrusted text for a cell of a table."""
    return Text(terminal.line(text))


def wide_console(width: int) -> Console:
    """Return standard output, with this width where no terminal has one."""
    console = People()
    if not console.is_terminal:
        console.width = width
    return console


def widths(columns: Mapping[str, Sequence[str]]) -> dict[str, int]:
    """Return the width of each column, its head included."""
    return {head: max(map(cell_len, (head, *cells))) for head, cells in columns.items()}


@dataclass(frozen=True, slots=True)
class Fitting:
    """Rows of one line each, in the columns that fit.

    Args:
        columns: Their heads.
        rows: As many cells each as there are columns.
        left: Names of the columns that are aligned to the left; the others are numbers.
        spare: Names of the columns that a narrow terminal omits, the first of them first.
        style: The style of the heads.
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    left: Sequence[str]
    spare: Sequence[str]
    style: str = field(default="bold")

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        rows = [[terminal.line(text) for text in row] for row in self.rows]
        shown_widths = widths({name: [row[n] for row in rows] for n, name in enumerate(self.columns)})
        for name in self.spare:
            if sum(shown_widths.values()) + GAP * (len(shown_widths) - 1) <= options.max_width:
                break
            del shown_widths[name]
        made = Table(box=None, header_style=self.style, pad_edge=False, padding=(0, GAP, 0, 0))
        for name in shown_widths:
            made.add_column(name, justify="left" if name in self.left else "right", no_wrap=True)
        for row in rows:
            shown = zip(self.columns, row, strict=True)
            made.add_row(*(Text(text) for name, text in shown if name in shown_widths))
        yield made


def titled(title: str, *parts: RenderableType) -> Group:
    return Group(escape(title), *parts)


LINES_EVERY_S: Final = 5.0  # without a terminal, at most, and only if they have changed
CLEAR: Final = "\x1b[J"  # from the cursor to the end of the screen
CLEAR_LINE: Final = "\x1b[K"  # from the cursor to the end of the line
CLEAR_ALL: Final = f"{CLEAR_LINE}\n{CLEAR}\x1b[A"  # in two steps: some terminals save a screen that is cleared at once


class Screen:
    """A context; call ``show`` several times a second. ``quiet`` shows nothing.

    Output to standard output and error, if they are terminals, appears above the picture.
    A picture higher than the terminal is cut, and says so.
    """

    def __init__(self, console: Console, *, quiet: bool = False) -> None:
        self._console = console
        self._quiet = quiet or log.wanted.format == "json"  # a state is no line of a log
        self._lines_at = time.monotonic()
        self._last: list[str] = []  # lines that were printed
        self._picture: _Picture | None = None
        if is_terminal(console) and not quiet:
            self._picture = _Picture(console)
        self._before: tuple[TextIO, TextIO] | None = None

    def __enter__(self) -> Screen:
        if self._picture is not None:
            self._console.show_cursor(False)
            self._before = sys.stdout, sys.stderr
            sys.stdout, sys.stderr = (_above(stream, self._picture) for stream in self._before)
        return self

    def __exit__(self, *_: object) -> None:
        if self._picture is not None and self._before is not None:
            for stream in (sys.stdout, sys.stderr):
                if isinstance(stream, _Above):
                    stream.end()
            sys.stdout, sys.stderr = self._before
            self._picture.erase()
            self._console.show_cursor(True)

    def show(self, picture: Callable[[], RenderableType], lines: Callable[[], Iterable[str]]) -> None:
        """Show the present state; only the form that is shown is computed."""
        if self._picture is not None:
            self._picture.draw(picture())
        elif not self._quiet and time.monotonic() >= self._lines_at:
            self._lines_at = time.monotonic() + LINES_EVERY_S
            now = list(lines())
            if now == self._last:
                return
            self._last = now
            for line in now:
                self._console.print(terminal.line(line), soft_wrap=True, highlight=False, markup=False)


class _Picture:
    """Lines at the end of a terminal's content, with the cursor at the beginning of the line below them."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._file = console.file
        self._lock = threading.RLock()  # other threads print, too
        self._text = ""
        self._lengths: list[int] = []  # of the picture's lines
        self._moved_away = 0  # rows of earlier pictures above the screen; a terminal that grows brings them back

    def draw(self, picture: RenderableType) -> None:
        width, room = self._console.width, self._room
        lines = [_stripped(line) for line in self._console.render_lines(picture, pad=False)]
        if len(lines) > room:
            more = f"... and {len(lines) - room + 1:,} more lines"
            lines = [*lines[: room - 1], [Segment(more[:width])]]
        with self._console.capture() as captured:
            self._console.print(SegmentLines(lines, new_lines=True), end="")
        with self._lock:
            up = self._up()
            # cleared before it is written: what remains of broken lines would join them to others later
            self._text = "".join(f"{CLEAR_LINE}{line}\n" for line in captured.get().splitlines())
            self._lengths = [Segment.get_line_length(line) for line in lines]
            self._write(up + self._text + CLEAR)

    def above(self, stream: TextIO, text: str) -> None:
        with self._lock:
            self._write(self._up() + CLEAR_ALL)
            stream.write(text)
            stream.flush()
            self._moved_away = 0  # they are no longer next to the picture
            self._write(self._text)

    def erase(self) -> None:
        with self._lock:
            self._write(self._up() + CLEAR_ALL)
            self._text, self._lengths, self._moved_away = "", [], 0

    @property
    def _room(self) -> int:
        return max(1, self._console.height - 1)  # the last row is the cursor's

    def _up(self) -> str:
        """Return the codes that move the cursor to the picture's first row on the screen.

        A terminal that was made narrower has broken long lines into several rows.
        """
        width = max(1, self._console.width)
        rows = self._moved_away + sum(max(1, -(-length // width)) for length in self._lengths)
        up = min(rows, self._room)
        self._moved_away = rows - up
        return f"\r\x1b[{up}A" if up else "\r"

    def _write(self, text: str) -> None:
        self._file.write(text)
        self._file.flush()


class _Above:
    """Stands for a stream while a picture is shown; its lines are printed above the picture."""

    def __init__(self, stream: TextIO, picture: _Picture) -> None:
        self._stream = stream
        self._picture = picture
        self._line = ""  # has not ended yet

    def write(self, text: str) -> int:
        whole, newline, self._line = (self._line + text).rpartition("\n")
        if newline:
            self._picture.above(self._stream, whole + newline)
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        self.write("".join(lines))

    def end(self) -> None:
        if self._line:
            self.write("\n")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _above(stream: TextIO, picture: _Picture) -> TextIO:
    return cast("TextIO", _Above(stream, picture)) if stream.isatty() else stream


def is_terminal(console: Console) -> bool:
    """Return True if the console can show a picture."""
    return console.is_terminal and not console.is_dumb_terminal and console.file.isatty()


def _stripped(line: list[Segment]) -> list[Segment]:
    """Strip blanks from the end: a terminal that is made narrower would break the line because of them."""
    line = list(line)
    while line and not line[-1].text.rstrip():
        line.pop()
    return [*line[:-1], Segment(line[-1].text.rstrip(), line[-1].style)] if line else line
