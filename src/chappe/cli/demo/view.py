"""The display of the demo while it runs: a live table in a terminal, two lines now and then elsewhere."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from chappe.cli.charts import curve
from chappe.cli.demo.query import WINDOW_S, WindowRow, Windows
from chappe.cli.units import count, delay, quantity, rate
from chappe.observing.lines import RATE_POINTS_MAX, TimeSeries

LATELY_MAX: Final = 60  # values kept for the small curve
METRICS_MAX: Final = 1000  # that are shown


@dataclass(slots=True)
class Flow:
    """Counts, rates and delays of the demo; used by one thread."""

    clock: Callable[[], float] = time.monotonic
    sent: int = 0
    stored: int = 0
    in_windows: int = 0  # values
    windows: int = 0  # that got new values, each time
    batches: int = 0
    stored_s: float | None = None  # from the moment of a record until it is stored
    windows_s: float | None = None  # until it is in a window
    newest: dict[str, tuple[float, str]] = field(default_factory=dict)  # value and unit
    lately: dict[str, deque[float]] = field(default_factory=dict)
    _told: object = None
    _counters: TimeSeries = field(default_factory=lambda: TimeSeries(points_max=RATE_POINTS_MAX))

    def hear(self, facts: Mapping[str, Any]) -> None:
        first = int(facts.get("first", 0))
        self.sent = int(facts.get("sent", first)) - first
        self.stored = max(0, int(facts.get("stored", first)) - first)
        self.stored_s = facts.get("stored_s", self.stored_s)
        values = facts.get("newest")
        if values is not None and values is not self._told:
            self._told = values
            for metric, (value, unit) in values.items():
                if metric in self.newest or len(self.newest) < METRICS_MAX:
                    self.newest[metric] = (value, unit)
                    self.lately.setdefault(metric, deque(maxlen=LATELY_MAX)).append(value)
        for name, counted in (("sent", self.sent), ("stored", self.stored), ("windows", self.windows)):
            self._counters.note(name, counted, self.clock())

    def unit(self, metric: str) -> str:
        return self.newest[metric][1] if metric in self.newest else ""

    @property
    def records(self) -> str:
        sent, stored = self._rate("sent"), self._rate("stored")
        soon = f" after {delay(self.stored_s)}" if self.stored_s is not None else ""
        return f"{count(self.sent)} sent ({rate(sent)}), {count(self.stored)} stored ({rate(stored)}){soon}"

    @property
    def counted(self) -> str:
        if not self.batches:
            return "none yet"
        soon = f" after {delay(self.windows_s)}" if self.windows_s is not None else ""
        batches = f"{count(self.batches)} batch{'es' if self.batches > 1 else ''}"
        windows = quantity(self._rate("windows"))
        return f"{count(self.in_windows)} values in {batches}, {windows} windows/s,{soon}".rstrip(",")

    def _rate(self, counter: str) -> float:
        return self._counters.rate(counter, self.clock())


CURVE_MIN: Final = 8  # characters of the small curve
CURVE_MAX: Final = 40
NAME_MAX: Final = 40  # characters of a metric's name
LOW: Final = 16  # a screen of fewer lines gets a shorter head
LINE_METRICS: Final = 5  # whose newest values are told without a terminal
# The columns, in the order in which a narrow terminal does without them, and what each takes.
WIDTHS: Final = {"window": 14, "records": 7, "min": 10, "max": 10, "average": 10, "now": 10}
HEADS: Final = {"average": f"avg of {WINDOW_S} s"}
NAMES: Final = ("now", "window", "records", "average", "min", "max")


@dataclass(slots=True)
class DemoStatus:
    """The head of the display."""

    began: float
    stage: str = "starting"
    look: Sequence[str] = ()  # commands that show the topic
    note: str = ""
    flow: Flow = field(default_factory=Flow)

    @property
    def line(self) -> str:
        return f"{time.monotonic() - self.began:5.1f} s  {self.stage}"


def lines(status: DemoStatus) -> Iterator[str]:
    flow = status.flow
    yield f"{status.line}; records: {flow.records}; windows: {flow.counted}"
    if flow.newest:
        newest = sorted(flow.newest.items())[:LINE_METRICS]
        yield "         " + ", ".join(
            f"{printable(metric)} {quantity(value, unit)}" for metric, (value, unit) in newest
        )


def picture(status: DemoStatus, windows: Windows, console: Console) -> Group:
    """Return head and table, at most as high as the console."""
    flow = status.flow
    head: list[RenderableType] = [Text(status.line, style="bold")]
    head += [_fact("records", flow.records), _fact("windows", flow.counted)]
    high = console.height >= LOW
    if high:
        head += [_fact("" if number else "look", command) for number, command in enumerate(status.look)]
    if high or status.note:
        head.append(Text(status.note or "Ctrl-C ends the demo; nothing is lost", style="dim"))
    if high:
        head.append("")
    used = sum(len(console.render_lines(each, pad=False)) for each in head)
    return Group(*head, MetricsTable(flow, windows, rows_max=max(1, console.height - used - 3)))


@dataclass(frozen=True, slots=True)
class MetricsTable:
    """The newest value and window of each metric, in the columns that fit.

    Without ``live`` it is the summary at the end: only windows, with the curve of their averages.
    """

    flow: Flow
    windows: Windows
    rows_max: int
    live: bool = True

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        newest = dict(self.windows.newest.items())  # one step: the query's thread adds to it
        metrics = sorted({*newest, *(self.flow.newest if self.live else ())})
        shown = metrics[: self.rows_max]
        name, names, curve_width = self._room(options.max_width, shown)
        made = Table(box=None, header_style="bold cyan", pad_edge=False, padding=(0, 2, 0, 0))
        made.add_column("metric", no_wrap=True, width=name)
        for each in names:
            made.add_column(
                HEADS.get(each, each), justify="left" if each == "window" else "right", no_wrap=True, width=WIDTHS[each]
            )
        if curve_width:
            made.add_column("lately", no_wrap=True)
        for metric in shown:
            cells = self._cells(metric, newest.get(metric))
            curves = [curve(self._lately(metric), curve_width)] if curve_width else []
            made.add_row(escape(printable(metric)), *(cells.get(each, "") for each in names), *curves)
        yield made
        more = len(metrics) - len(shown)
        if more:
            yield Text(f"... and {more:,} more metric{'s' if more > 1 else ''}", style="dim")

    def _room(self, width: int, metrics: Sequence[str]) -> tuple[int, list[str], int]:
        longest = max(map(len, metrics), default=0)
        name = max(6, min(longest, NAME_MAX, max(16, width // 4)))
        left_out = set() if self.live else {"now"}
        for each in WIDTHS:
            wanted = name + sum(2 + size for column, size in WIDTHS.items() if column not in left_out)
            if wanted + 2 + CURVE_MIN <= width:
                break
            left_out.add(each)
        names = [each for each in NAMES if each not in left_out]
        left = width - name - sum(2 + WIDTHS[each] for each in names) - 2
        return min(name, width), names, min(left, CURVE_MAX) if left >= CURVE_MIN else 0

    def _cells(self, metric: str, row: WindowRow | None) -> dict[str, str]:
        cells = {}
        unit = self.flow.unit(metric)
        if metric in self.flow.newest:
            cells["now"] = quantity(self.flow.newest[metric][0], unit)
        if row is not None:
            width_s = (row.window_end - row.window_start).seconds
            cells["window"] = f"{row.window_start.astimezone():%H:%M:%S} +{width_s} s"
            cells["records"] = count(row.records)
            for name, value in (("average", row.average), ("min", row.minimum), ("max", row.maximum)):
                cells[name] = quantity(value, unit)
        return cells

    def _lately(self, metric: str) -> list[float]:
        if self.live and metric in self.flow.lately:
            return list(self.flow.lately[metric])
        return [average for _, average in list(self.windows.history.get(metric, ()))]


def printable(name: str) -> str:
    """Replace unprintable characters of untrusted input."""
    return "".join(each if each.isprintable() else "?" for each in name)


def _fact(name: str, text: str) -> Table:
    made = Table.grid(padding=(0, 2, 0, 0))
    made.add_column(style="cyan", width=7)
    made.add_column(overflow="fold")
    made.add_row(name, Text(text))
    return made
