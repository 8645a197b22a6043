"""``python -m tests.worlds.scale``: builds networks of real endpoints and says what they cost, as tables or as JSON."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, Final

from rich.box import MARKDOWN
from rich.console import Console
from rich.status import Status
from rich.table import Table
from tests.worlds.scale.alone import Alone, measure_alone
from tests.worlds.scale.measure import Report, measure, round_trips
from tests.worlds.scale.network import LATENCY_S, LINK_STATES
from tests.worlds.scale.shapes import SHAPES

from chappe.defaults import KIB, MIB

ENDPOINTS: Final = (60, 250, 1_000, 10_000)
WHOLE_MAX: Final = 3_000  # beyond it what all know of all takes more than 16 GiB: one is measured, among stand-ins
FULLY_MESHED: Final = (12, 30, 60)  # 1,000 would have half a million links


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.worlds.scale",
        description="Builds networks of real endpoint cores on a clock that jumps, without faults, and counts what "
        f"they send: all endpoints join at once, publish, and change. Every link takes {1000 * LATENCY_S:g} ms. "
        f"Of more than {WHOLE_MAX:,} endpoints one is measured, among others that are only spoken of.",
    )
    parser.add_argument("shapes", nargs="*", metavar="SHAPE", help=f"of {', '.join(SHAPES)} (default: all)")
    parser.add_argument(
        "--endpoints", type=int, nargs="+", metavar="N", help=f"how many (default: {ENDPOINTS}; full: {FULLY_MESHED})"
    )
    parser.add_argument(
        "--seed", type=int, default=1, help="of random networks, and of the choice of publishers and changes"
    )
    shown = parser.add_mutually_exclusive_group()
    shown.add_argument("--json", action="store_true", help="one object for each network, instead of tables")
    shown.add_argument(
        "--from",
        dest="made",
        type=Path,
        nargs="+",
        metavar="FILE",
        help="measure nothing: show the tables of what --json wrote into these files; of a network that is in several "
        "times, the last",
    )
    return parser


def _table(title: str, columns: Iterable[str]) -> Table:
    table = Table(title=title, box=MARKDOWN)
    for number, column in enumerate(columns):
        table.add_column(column, justify="right" if number > 0 else "left", no_wrap=True)
    return table


def joining(reports: Iterable[Report]) -> Table:
    """All join at once."""
    columns = ("shape", "endpoints", "links", "link states", "of 2 x links x endpoints", "bytes", "settled after")
    table = _table("Joining: frames", (*columns, "for each endpoint"))
    for each in reports:
        table.add_row(
            each.shape,
            f"{each.endpoints:,}",
            f"{each.links:,}",
            f"{each.join[LINK_STATES]:,}",
            f"{each.join[LINK_STATES] / each.join_bound:.2f}",
            f"{each.join_bytes / MIB:,.1f} MiB",
            f"{round_trips(each.join_s):.0f} round trips",
            f"{1000 * each.join_cpu_s / each.endpoints:,.1f} ms, {each.endpoint_bytes / KIB:,.0f} KiB",
        )
    return table


def publishing(reports: Iterable[Report]) -> Table:
    """Frames against the shortest-path trees."""
    columns = ("shape", "endpoints", "receivers", "tree", "messages", "ratio", "all frames", "first", "stream")
    table = _table("Publications: frames of one, on average, against its shortest-path tree", (*columns, "delivered"))
    for each in reports:
        for made in each.publications:
            table.add_row(
                each.shape,
                f"{each.endpoints:,}",
                f"{made.receivers:,}",
                f"{made.tree / made.count:,.1f}",
                f"{made.frames / made.count:,.1f}",
                f"{made.ratio:.2f}",
                f"{(made.frames + made.others) / made.tree:.2f}",
                f"{made.first / made.first_tree:.2f}",
                f"{made.stream / made.stream_tree:.3f}",
                f"{made.delivered / made.count / made.receivers:.0%}",
            )
    return table


def changing(reports: Iterable[Report]) -> Table:
    """Frames against links."""
    columns = ("shape", "endpoints", "change", "frames", "of 2 x links", "settled after", "ms for each endpoint")
    table = _table("Changes: frames of one, on average, against links", columns)
    for each in reports:
        for what, made in each.changes.items():
            table.add_row(
                each.shape,
                f"{each.endpoints:,}",
                what,
                f"{made.frames / made.count:,.0f}",
                f"{made.frames / made.count / (2 * each.links):.2f}",
                f"{round_trips(made.settle_s):.1f} round trips",
                f"{1000 * made.cpu_s / made.count / each.endpoints:.2f}",
            )
    return table


def being_alone(found: Iterable[Alone]) -> Table:
    """What one of very many costs."""
    columns = ("shape", "endpoints", "joining, ms", "KiB", "a subscription", "a link that ends", "first publication")
    table = _table(
        "One endpoint among others that are only spoken of: its memory, and its processor time in ms", columns
    )
    for each in found:
        table.add_row(
            each.shape,
            f"{each.endpoints:,}",
            f"{1000 * each.join_cpu_s:,.0f}",
            f"{each.endpoint_bytes / KIB:,.0f}",
            f"{1000 * each.subscribe_cpu_s:.1f}",
            f"{1000 * each.cut_cpu_s:.1f}",
            f"{1000 * each.publish_cpu_s:.1f}",
        )
    return table


def _read(files: Iterable[Path]) -> tuple[list[Report], list[Alone]]:
    """What was found before, in the order of the shapes."""
    found: dict[tuple[int, int], dict[str, Any]] = {}
    for file in files:
        for line in file.read_text().splitlines():
            one = json.loads(line)
            found[list(SHAPES).index(one["alone"]["shape"]), one["alone"]["endpoints"]] = one
    made = [found[key] for key in sorted(found)]
    alone = [Alone(**each.pop("alone")) for each in made]
    return [Report.of(each) for each in made if each], alone


def _tell(reports: list[Report], alone: list[Alone]) -> None:
    tables = (joining(reports), publishing(reports), changing(reports)) if reports else ()
    console = Console(width=200)
    for table in (*tables, being_alone(alone)):
        console.print(f"## {table.title}", highlight=False)
        table.title = None
        console.print(table)


def _show(status: Status, where: str, what: str) -> None:
    status.update(f"{where}: {what}")


def main(arguments: list[str] | None = None) -> int:
    """Returns the exit code."""
    parser = _parser()
    options = parser.parse_args(arguments)
    unknown = [each for each in options.shapes if each not in SHAPES]
    if unknown:
        parser.error(f"{unknown[0]!r} is not a shape: choose from {', '.join(SHAPES)}")
    if any(each < 2 for each in options.endpoints or ()):
        parser.error("a network has at least 2 endpoints")
    if options.made:
        try:
            _tell(*_read(options.made))
        except (OSError, ValueError, KeyError, TypeError) as error:
            parser.error(f"no results of --json: {error}")
        return 0
    reports: list[Report] = []
    alone: list[Alone] = []
    with Console(stderr=True).status("") as status:
        for shape in options.shapes or SHAPES:
            for endpoints in options.endpoints or (FULLY_MESHED if shape == "full" else ENDPOINTS):
                where = f"{shape}, {endpoints} endpoints"
                _show(status, where, "one of them")
                alone.append(measure_alone(shape, endpoints, options.seed))
                if endpoints <= WHOLE_MAX:
                    reports.append(measure(shape, endpoints, options.seed, partial(_show, status, where)))
                if options.json:
                    whole = asdict(reports[-1]) if endpoints <= WHOLE_MAX else {}
                    print(json.dumps({**whole, "alone": asdict(alone[-1])}), flush=True)
    if not options.json:
        _tell(reports, alone)
    return 0


if __name__ == "__main__":
    sys.exit(main())
