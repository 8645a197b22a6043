"""``chappe topics --plot``: when records came and how large topics are, drawn in the terminal."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from itertools import groupby
from operator import itemgetter
from typing import Any, Final

from rich.cells import cell_len

from chappe.api.log.lines import iso_time, readable_name
from chappe.api.times import as_micros
from chappe.cli.charts import amounts, bar
from chappe.cli.screen import Fitting, wide_console
from chappe.cli.units import human_bytes, rate
from chappe.data.markup import many, one_line
from chappe.reading.bounds import counts
from chappe.reading.offsets import Key
from chappe.reading.view import StoresView

ROWS_MAX: Final = 50  # topics or partitions that are drawn, those with the most records
PARTITIONS_MAX: Final = 1_000  # of all of them together: each costs questions
STEPS_MAX: Final = 60  # characters of a curve
STEPS_MIN: Final = 12
PIPE_WIDTH: Final = 120  # where no terminal says how wide it is
NAME_MAX: Final = 40
BAR: Final = 10  # characters of the largest size
OTHERS: Final = 52  # characters of the columns beside the names and the curves
COLUMNS: Final = ("topic", "records", "over time", "peak", "size")
LEFT: Final = ("topic", "over time", "size")
SPARE: Final = ("size", "records", "peak")  # a narrow terminal does without
RATE_MIN: Final = 0.01  # below it a rate says nothing
SECOND_US: Final = 1_000_000
# Lengths of a character of a curve: their edges are where people look for them, and stay there.
STEPS_S: Final = (
    *(0.001, 0.01, 0.1, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800),
    *(3600, 2 * 3600, 3 * 3600, 6 * 3600, 12 * 3600),
    *(each * 86400 for each in (1, 2, 7, 14, 28, 91, 364, 3640, 36400)),
)
_UNITS: Final = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))


def draw(view: StoresView, by_partition: bool, since: datetime | None) -> None:
    """Print a line for each topic, or each partition. ``view`` knows at least one."""
    groups = _groups(view, by_partition)
    shown = _chosen(view, groups)
    kept = [view.known[key] for keys in shown.values() for key in keys if view.known[key].first < view.known[key].next]
    if not kept:
        print("these topics have no records")
        return
    console = wide_console(PIPE_WIDTH)
    begin = min(each.timestamp_min for each in kept) if since is None else as_micros(since)
    end = max(each.timestamp_max for each in kept) if since is None else max(time.time_ns() // 1000, begin)
    names = {name: one_line(readable_name(name), NAME_MAX) for name in shown}
    left = console.width - max(map(cell_len, names.values())) - OTHERS
    edges, step_s = steps(begin, end, min(STEPS_MAX, max(STEPS_MIN, left)))
    found = counts(view, [key for keys in shown.values() for key in keys], edges)
    largest = max(_size(keys, view) for keys in shown.values())
    rows = [_row(names[name], keys, view, found, step_s, largest) for name, keys in shown.items()]
    console.print(Fitting(COLUMNS, rows, left=LEFT, spare=SPARE))
    print(
        f"from {_time(edges[0], step_s)} to {_time(edges[-1], step_s)}, a character is {_span(step_s)}; "
        "curves go from 0 to their own peak"
    )
    if more := len(groups) - len(rows):
        print(f"... and {more:,} more, with fewer records")
    if away := len(view.away):
        print(f"{many(away, 'store')} did not answer")


def steps(begin: int, end: int, most: int) -> tuple[list[int], float]:
    """Return edges of at most ``most`` steps from ``begin`` to ``end``, and the length of a step.

    A step has a length that people count in, and begins at a multiple of it.
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
    """Choose the groups with the most records that fit; of one topic with too many partitions, as many as fit."""
    records = {name: sum(view.known[key].next - view.known[key].first for key in keys) for name, keys in groups.items()}
    chosen: dict[str, list[Key]] = {}
    left = PARTITIONS_MAX
    for name in sorted(groups, key=lambda each: (-records[each], each))[:ROWS_MAX]:
        if len(groups[name]) <= left or not chosen:
            chosen[name] = list(groups[name][:left])
            left -= len(chosen[name])
    return {name: chosen[name] for name in groups if name in chosen}


def _row(
    name: str, keys: Sequence[Key], view: StoresView, found: Mapping[Key, Sequence[int]], step_s: float, largest: int
) -> tuple[str, ...]:
    together = [sum(each) for each in zip(*(found[key] for key in keys), strict=True)]
    most = max(together)
    peak = rate(most / step_s) if most / step_s >= RATE_MIN or not most else f"{most:,} in {_span(step_s)}"
    size = _size(keys, view)
    return name, f"{sum(together):,}", amounts(together), peak, f"{human_bytes(size):>9} {bar(size, largest, BAR)}"


def _size(keys: Sequence[Key], view: StoresView) -> int:
    return sum(view.known[key].bytes for key in keys)


def _time(moment: int, step_s: float) -> str:
    return iso_time(moment)[: 19 if step_s >= 1 else 23] + "Z"


def _span(step_s: float) -> str:
    for seconds, unit in _UNITS:
        if step_s >= seconds:
            return f"{step_s / seconds:g} {unit}"
    return f"{step_s * 1000:g} ms"
