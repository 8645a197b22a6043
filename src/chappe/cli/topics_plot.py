"""``chappe topics --plot``: when records came and how large topics are, drawn in the terminal."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from itertools import groupby
from operator import itemgetter
from typing import Any, Final

from chappe.api.log.lines import iso_time, readable_name
from chappe.api.times import as_micros
from chappe.cli.charts import amounts, bar
from chappe.cli.screen import GAP, wide_console
from chappe.cli.units import human_bytes, rate
from chappe.reading.offsets import Key
from chappe.reading.timeline import counts
from chappe.reading.view import StoresView

ROWS_MAX: Final = 50  # topics or partitions that are drawn, those with the most records
PARTITIONS_MAX: Final = 1_000  # of all of them together: each costs questions
STEPS_MAX: Final = 60  # characters of a curve
STEPS_MIN: Final = 12
PIPE_WIDTH: Final = 120  # where no terminal says how wide it is
NAME_MAX: Final = 40
BAR: Final = 10  # characters of the largest size
SECOND_US: Final = 1_000_000
# What a character of a curve may stand for, so that edges are where people look for them and stay where they are.
STEPS_S: Final = (
    *(0.001, 0.01, 0.1, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800),
    *(3600, 2 * 3600, 3 * 3600, 6 * 3600, 12 * 3600),
    *(each * 86400 for each in (1, 2, 7, 14, 28, 91, 364, 3640, 36400)),
)
_UNITS: Final = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))


def draw(view: StoresView, by_partition: bool, since: datetime | None) -> None:
    """Print it: a line for each topic, or each partition. ``view`` knows of one at least."""
    groups = _groups(view, by_partition)
    shown = _chosen(view, groups)
    kept = [view.known[key] for keys in shown.values() for key in keys if view.known[key].first < view.known[key].next]
    if not kept:
        print("these topics have no records")
        return
    console = wide_console(PIPE_WIDTH)
    begin = min(each.timestamp_min for each in kept) if since is None else as_micros(since)
    end = max(each.timestamp_max for each in kept) if since is None else max(time.time_ns() // 1000, begin)
    names = {name: _cut(readable_name(name)) for name in shown}
    taken = max(map(len, names.values())) + 10 + 9 + 10 + BAR + 5 * GAP
    edges, step_s = steps(begin, end, min(STEPS_MAX, max(STEPS_MIN, console.width - taken)))
    found = counts(view, [key for keys in shown.values() for key in keys], edges)
    rows = [_row(names[name], keys, view, found, step_s) for name, keys in shown.items()]
    _print(console, rows, view, groups, edges, step_s)


def steps(begin: int, end: int, most: int) -> tuple[list[int], float]:
    """Edges of at most so many steps from ``begin`` to ``end``, and how long a step is.

    Steps are of a length that people count in, and begin at multiples of it.
    """
    for length_s in STEPS_S:
        length = round(length_s * SECOND_US)
        first = begin // length * length
        count = (end - first) // length + 1
        if count <= most:
            break
    else:
        length = -(-(end - first + 1) // most)
        count, length_s = most, length / SECOND_US
    return [first + place * length for place in range(count + 1)], length_s


def _groups(view: StoresView, by_partition: bool) -> dict[str, list[Key]]:
    if by_partition:
        return {f"{topic} {partition}": [(topic, partition)] for topic, partition in sorted(view.known)}
    by_topic: Any = itemgetter(0)
    return {topic: list(keys) for topic, keys in groupby(sorted(view.known), by_topic)}


def _chosen(view: StoresView, groups: Mapping[str, Sequence[Key]]) -> dict[str, list[Key]]:
    """Those with the most records that fit; of one topic that has too many partitions, as many as do."""
    records = {name: sum(view.known[key].next - view.known[key].first for key in keys) for name, keys in groups.items()}
    chosen: dict[str, list[Key]] = {}
    left = PARTITIONS_MAX
    for name in sorted(groups, key=lambda each: (-records[each], each))[:ROWS_MAX]:
        if len(groups[name]) <= left or not chosen:
            chosen[name] = list(groups[name][:left])
            left -= len(chosen[name])
    return {name: chosen[name] for name in groups if name in chosen}


def _row(
    name: str, keys: Sequence[Key], view: StoresView, found: Mapping[Key, Sequence[int]], step_s: float
) -> tuple[str, list[int], int, str]:
    together = [sum(each) for each in zip(*(found[key] for key in keys), strict=True)]
    return name, together, sum(view.known[key].bytes for key in keys), rate(max(together) / step_s)


def _print(
    console: Any,
    rows: Sequence[tuple[str, list[int], int, str]],
    view: StoresView,
    groups: Mapping[str, Sequence[Key]],
    edges: Sequence[int],
    step_s: float,
) -> None:
    from rich.table import Table
    from rich.text import Text

    largest = max(size for _, _, size, _ in rows)
    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, GAP, 0, 0))
    table.add_column("topic", no_wrap=True)
    table.add_column("records", justify="right", no_wrap=True)
    table.add_column(f"from {_time(edges[0], step_s)}", no_wrap=True)
    table.add_column("peak", justify="right", no_wrap=True)
    table.add_column("size", justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    for name, together, size, peak in rows:
        table.add_row(
            *(Text(name), f"{sum(together):,}", Text(amounts(together), style="cyan"), peak),
            *(human_bytes(size), Text(bar(size, largest, BAR), style="blue")),
        )
    console.print(table)
    until = f"each character is {_span(step_s)}, the last one ends at {_time(edges[-1], step_s)}"
    print(f"{until}; curves go from 0 to their own peak")
    more = len(groups) - len(rows)
    if more:
        print(f"... and {more:,} more, with fewer records")
    if away := len(view.away):
        print(f"{away} store{'' if away == 1 else 's'} did not answer")


def _time(moment: int, step_s: float) -> str:
    """As exact as steps are."""
    return iso_time(moment)[: 19 if step_s >= 1 else 23] + "Z"


def _span(step_s: float) -> str:
    for seconds, unit in _UNITS:
        if step_s >= seconds:
            return f"{step_s / seconds:g} {unit}"
    return f"{step_s * 1000:g} ms"


def _cut(name: str) -> str:
    return name if len(name) <= NAME_MAX else f"{name[: NAME_MAX - 1]}…"
