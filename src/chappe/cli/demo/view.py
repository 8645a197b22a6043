"""What the demo shows while it runs: a live table in a terminal, one line now and then elsewhere."""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from rich.console import Console, Group
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from chappe.cli.demo.windows import Windows
from chappe.cli.screen import Screen

BARS: Final = "▁▂▃▄▅▆▇█"
CHROME_LINES: Final = 6  # of the screen, that are not rows of the table
CURVE: Final = 16


@dataclass(slots=True)
class Status:
    """What the head line tells."""

    began: float
    stage: str = "starting"
    sent: int = 0
    stored: int = 0
    batches: int = 0
    note: str = ""

    def line(self, windows: Windows) -> str:
        """The account of this moment, in one line."""
        return (
            f"{time.monotonic() - self.began:5.1f} s  {self.stage}: {self.sent:,} records sent, "
            f"{self.stored:,} stored, {windows.records:,} values in windows, {self.batches} batches"
        )


class View:
    """What shows ``status`` and ``windows`` on a screen; call ``update`` several times a second."""

    def __init__(self, status: Status, windows: Windows, console: Console, screen: Screen) -> None:
        self._status = status
        self._windows = windows
        self._console = console
        self._screen = screen

    def update(self) -> None:
        """Show how things are now."""
        self._screen.show(
            lambda: self.picture(max(3, self._console.height - CHROME_LINES)),
            lambda: [self._status.line(self._windows)],
        )

    def picture(self, rows_max: int) -> Group:
        """Head line and table."""
        head = Text(self._status.line(self._windows), style="bold")
        note = Text(self._status.note or "Ctrl-C ends the demo; nothing is lost", style="dim")
        return Group(head, note, table(self._windows, rows_max))


def table(windows: Windows, rows_max: int) -> Table:
    """The newest window of each metric."""
    shown = Table(box=None, header_style="bold cyan", pad_edge=False)
    for name in ("metric", "window"):
        shown.add_column(name, no_wrap=True)
    for name in ("records", "average", "min", "max"):
        shown.add_column(name, justify="right", no_wrap=True)
    shown.add_column("lately", no_wrap=True)
    newest = list(windows.newest.values())  # one step: the query's thread adds to it
    rows = sorted(newest, key=lambda row: row.metric)
    for row in rows[:rows_max]:
        shown.add_row(
            escape(row.metric[:24]),
            f"{_local(row.window_start)} +{(row.window_end - row.window_start).seconds} s",
            f"{row.records:,}",
            _number(row.average),
            _number(row.minimum),
            _number(row.maximum),
            curve([average for _, average in list(windows.history.get(row.metric, ()))]),
        )
    if len(rows) > rows_max:
        shown.add_row(f"... and {len(rows) - rows_max} more")
    return shown


def curve(values: list[float]) -> str:
    """The last values as a small bar chart."""
    recent = values[-CURVE:]
    if not recent:
        return ""
    low, high = min(recent), max(recent)
    scale = (len(BARS) - 1) / (high - low) if high > low else 0.0
    return "".join(BARS[int((value - low) * scale)] for value in recent)


def _local(moment: datetime) -> str:
    return f"{moment.astimezone():%H:%M:%S}"


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:,.2f}"
