"""What ``chappe pipeline`` shows: a live table in a terminal, one line now and then elsewhere; the same for status."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from rich.console import Group
from rich.text import Text

from chappe.cli.fitting import Fitting
from chappe.cli.screen import Screen
from chappe.cli.units import human_bytes, readable_name
from chappe.spark.pipeline.progress import Numbers

if TYPE_CHECKING:
    from chappe.spark.pipeline.running import Running

PIPE_WIDTH: Final = 160  # of a table where no terminal says how wide it is
HEAD: Final = "bold cyan"
QUERY: Final = ("query", "in/s", "processed/s", "rows", "batch", "took", "late", "state rows", "state", "watermark")
SPARE: Final = ("late", "state", "state rows", "watermark", "batch", "processed/s")
LAG: Final = ("query", "topic", "lag records", "lag")


class View:
    """What shows a running pipeline on a screen; call ``update`` several times a second."""

    def __init__(self, name: str, running: Running, screen: Screen) -> None:
        self._name = name
        self._running = running
        self._screen = screen
        self._began = time.monotonic()

    def update(self) -> None:
        """Show how things are now."""
        numbers = self._running.numbers
        self._screen.show(
            lambda: self._picture(numbers),
            lambda: (f"{self._elapsed}  {self._running.stage}: {line(each)}" for each in numbers),
        )

    def _picture(self, numbers: Sequence[Numbers]) -> Group:
        head = Text(f"{self._elapsed}  {self._name}: {self._running.stage}", style="bold")
        note = Text("Ctrl-C ends it after the batch under way", style="dim")
        return Group(head, note, *tables(numbers))

    @property
    def _elapsed(self) -> str:
        return f"{time.monotonic() - self._began:6.1f} s"


def line(numbers: Numbers) -> str:
    """A query in one line."""
    if numbers.batch < 0:
        return f"{numbers.query}: no batch yet"
    state = f", state {numbers.state_rows:,} rows ({human_bytes(numbers.state_bytes)})" if numbers.state_rows else ""
    return (
        f"{numbers.query}: {numbers.rows_in_s:,.0f} rows/s in, {numbers.rows_processed_s:,.0f} processed, "
        f"lag {numbers.lag_records:,} records ({seconds(numbers.lag_s)}), "
        f"batch {numbers.batch} took {numbers.batch_s:.2f} s, {numbers.rows:,} rows so far{state}"
    )


def tables(numbers: Sequence[Numbers]) -> tuple[Fitting, Fitting]:
    """The queries, and the lag of each of their topics."""
    queries = [
        (
            each.query,
            f"{each.rows_in_s:,.0f}",
            f"{each.rows_processed_s:,.0f}",
            f"{each.rows:,}",
            "" if each.batch < 0 else str(each.batch),
            f"{each.batch_s:.2f} s",
            f"{each.late_rows:,}",
            f"{each.state_rows:,}",
            human_bytes(each.state_bytes),
            each.watermark,
        )
        for each in numbers
    ]
    lags = [
        (each.query, readable_name(lag.topic), f"{lag.records:,}", seconds(lag.seconds))
        for each in numbers
        for lag in each.lag
    ]
    return (
        Fitting(QUERY, queries, left=("query", "watermark"), spare=SPARE, style=HEAD),
        Fitting(LAG, lags, left=("query", "topic"), spare=("query",), style=HEAD),
    )


def seconds(value: float | None) -> str:
    """A lag in seconds, or a question mark."""
    return "? s" if value is None else f"{value:,.1f} s"
