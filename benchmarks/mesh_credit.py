"""Credit, end to end, with real processes: ``python -m benchmarks.mesh_credit [--seconds N] [--output FILE]``.

Each row is a chain: somebody publishes topic A, all it can, and topic B at a modest pace; at the end somebody takes A
slowly and B at once; beside it another one takes B alone. It is no measurement of speed: rows run side by side.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import tempfile
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.children import Child, ChildFailed, Children, has_original
from benchmarks.mesh import keys
from benchmarks.mesh_credit_members import A
from benchmarks.report import machine
from benchmarks.settings import Settings

MEMBERS = "benchmarks.mesh_credit_members"
B_RATE = 100
DRAIN_S = 300.0
TOLD_S = 3.0  # in which what was dropped is told, once a second by each
HELD_UP_MS = 5_000.0  # the slow ones have far more to take
COLUMNS = (
    "who takes A, per s",
    "hops",
    "links",
    "published of A",
    "taken",
    "per s",
    "missing, out of order",
    "B per s, at the slow one / beside it",
    "its worst delay",
    "dropped, told to the publisher",
    "links lost",
    "most that waited: at the subscriber / for a peer",
    "most memory of a process",
    "as it should be",
)
Facts = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Row:
    """One chain.

    Args:
        how: ``block``; or who has another policy or is an original: ``publisher drops``, ``reader drops``,
            ``original reads``, ``original publishes``.
    """

    rate: int
    hops: int
    tls: bool = False
    how: str = "block"

    @property
    def name(self) -> str:
        """One word."""
        return f"{self.how}-{self.rate}-{self.hops}-{'tls' if self.tls else 'plain'}".replace(" ", "-")

    def __str__(self) -> str:
        return f"{self.rate:,}" + ("" if self.how == "block" else f", {self.how}")


def rows() -> list[Row]:
    """All of them; those with originals only where one is."""
    found = [Row(rate, hops, tls) for rate, hops, tls in product((600, 2_500, 7_500), (1, 2, 5), (False, True))]
    found += [Row(2_500, 2, how="publisher drops"), Row(2_500, 2, how="reader drops")]
    if has_original():
        reads, publishes = "original reads", "original publishes"
        found += [Row(600, 1, False, reads), Row(600, 2, True, reads), Row(2_500, 5, False, reads)]
        found += [Row(7_500, 2, False, reads), Row(600, 1, True, publishes), Row(2_500, 2, False, publishes)]
        found += [Row(7_500, 5, False, publishes)]
    return found


class Chain:
    """The processes of a row."""

    def __init__(self, row: Row, children: Children, common: Facts, seconds: float) -> None:
        self._row = row
        self._children = children
        self._common = common
        self._seconds = seconds
        self._others: list[Child] = []

    def play(self) -> Facts:
        """What became of it."""
        row = self._row
        original = (
            self._children.original("publisher", topic=A, **self._common) if row.how == "original publishes" else None
        )
        source: dict[str, Any] = (
            {"on_full": "drop_oldest", "a_rate": 4 * row.rate} if row.how == "publisher drops" else {}
        )
        publisher = self._start("publisher", **source)
        port = publisher.hear()["port"]
        last = [port] if original is None else [port, original.hear()["port"]]
        for _ in range(row.hops - 1):
            hop = self._start("forwarder", ports=last)
            self._others.append(hop)
            last = [hop.hear()["port"]]
        reader, ids = self._reader(last)
        beside = self._start(
            "receiver", ports=last[:1], **({"rate": 3 * row.rate} if row.how == "reader drops" else {})
        )
        ids.append(beside.hear()["id"])
        order = {"seconds": self._seconds, "ids": ids, "b_rate": B_RATE, "a": original is None}
        publisher.order(**order)
        if original is not None:
            original.order(seconds=self._seconds)
        patience_s = self._seconds + DRAIN_S
        counts = publisher.hear(patience_s)
        if original is not None:
            counts["a"] = original.hear(patience_s)["published"]
        return self._gather(counts, publisher, reader, beside)

    def _gather(self, counts: Facts, publisher: Child, reader: Child, beside: Child) -> Facts:
        row = self._row
        if row.how == "original reads":
            reader.order(until=counts["a"])
        else:
            reader.order(a=counts["a"], b=counts["b"])
        beside.order(a=counts["a"], b=counts["b"])
        read, aside = reader.hear(DRAIN_S), beside.hear(DRAIN_S)
        members = [read, aside] if row.how != "original reads" else [aside]
        time.sleep(TOLD_S)
        source = publisher.ask()
        members += [source, *[each.ask() for each in self._others]]
        return {
            "published": counts["a"],
            "b": counts["b"],
            "read": read,
            "beside": aside,
            "told": source["told"] + source["dropped"],
            "dropped": sum(each["dropped"] for each in members),
            "links_lost": sum(each["links_lost"] for each in members),
            "waited": max(each["waited"] for each in members),
            "mib": max(each["mib"] for each in members),
            "events": [each["events"] for each in members],
        }

    def _reader(self, ports: list[int]) -> tuple[Child, list[str]]:
        row = self._row
        options: Facts = {"ports": ports, "rate": row.rate}
        if row.how == "original reads":
            made = self._children.original("slow_reader", topic=A, **options, **self._common)
            made.hear()
            return made, []
        if row.rate < 1_000:
            options["messages_max"] = 1_000
        if row.how == "reader drops":
            options["reads"] = "drop_oldest"
        elif row.how == "original publishes":  # which publishes no more than a window
            options |= {"messages_max": 200, "confirms": True}
        made = self._start("receiver", **options)
        return made, [made.hear()["id"]]

    def _start(self, role: str, **options: object) -> Child:
        return self._children.start(MEMBERS, role, **self._common, **options)


def play(row: Row, settings: Settings, seconds: float) -> Facts:
    """Play a row; what went wrong is in ``wrong``."""
    with Children(settings.work / row.name) as children:
        try:
            found = Chain(row, children, {"keys": keys(settings)} if row.tls else {}, seconds).play()
        except ChildFailed as error:
            return {"wrong": [str(error)]}
    found["wrong"] = wrong(row, found)
    return found


def wrong(row: Row, found: Facts) -> list[str]:
    """What is not as it should be, which does not hang on how fast the machine is."""
    read, aside = found["read"], found["beside"]
    checks = {
        "out of order": read["back"] or aside["b_back"] or read.get("b_back", 0),
        "B is not whole": any(found["b"] != each["b_taken"] for each in (read, aside) if "b_taken" in each),
        "B was held up": any(each.get("b_worst_ms", 0) > HELD_UP_MS for each in (read, aside)),
        "links were lost": found["links_lost"],
    }
    if row.how == "reader drops":
        checks["A is not whole beside it"] = aside["taken"] != found["published"] or aside["missing"] or aside["back"]
        checks["the publisher waited for it"] = found["published"] < 2 * read["taken"]
        checks["it was not told all"] = found["dropped"] != found["published"] - read["taken"]
    elif row.how == "publisher drops":
        checks["the publisher was not told all"] = found["told"] != found["published"] - read["taken"]
        checks["nothing was dropped"] = not found["told"]
    else:
        checks["A is not whole"] = found["published"] != read["taken"] or read["missing"] or found["dropped"]
        checks["the reader starved"] = read["rate"] < 0.5 * row.rate
    return [name for name, is_so in checks.items() if is_so]


def cells(row: Row, found: Facts, seconds: float) -> list[str]:
    """A row for people."""
    shown = [str(row), str(row.hops), "TLS" if row.tls else "plain"]
    if "read" not in found:
        return [*shown, *[""] * (len(COLUMNS) - len(shown) - 1), "; ".join(found["wrong"]).splitlines()[0]]
    read, aside = found["read"], found["beside"]
    b = [f"{each['b_taken'] / seconds:.0f}" if "b_taken" in each else "-" for each in (read, aside)]
    delays = [f"{each['b_worst_ms']:,.0f} ms" if "b_worst_ms" in each else "-" for each in (read, aside)]
    return [
        *shown,
        f"{found['published']:,}",
        f"{read['taken']:,}",
        f"{read['rate']:,.0f}",
        f"{read['missing']:,}, {read['back']}",
        " / ".join(b),
        " / ".join(delays),
        f"{found['dropped']:,}, {found['told']:,}",
        str(found["links_lost"]),
        " / ".join(
            [f"{each:,}" if isinstance(each, int) else each for each in (read.get("waited_here", "-"), found["waited"])]
        ),
        f"{found['mib']:.0f} MiB",
        "; ".join(found["wrong"]) or "yes",
    ]


def markdown(found: Iterable[tuple[Row, Facts]], seconds: float, at_once: int, load: float) -> str:
    """The text of MESH_CREDIT.md."""
    table = [" | ".join(cells(row, facts, seconds)) for row, facts in found]
    return "\n".join(
        [
            "# Slow readers in the mesh",
            "",
            f"{seconds:g} s a row, each process on its own, records of 100 bytes, {at_once} rows at once. Made by "
            f"`CHAPPE_BROKER=DIRECTORY python -m benchmarks.mesh_credit --seconds {seconds:g} --at-once {at_once}`, "
            "where the directory has the original's bindings; without them the rows with originals are left out.",
            "",
            f"Machine: {machine()}; load {load:.1f} before the run. It is no measurement of speed.",
            "",
            TEXT.strip(),
            "",
            f"| {' | '.join(COLUMNS)} |",
            "|" + "---|" * len(COLUMNS),
            *(f"| {row} |" for row in table),
            "",
        ]
    )


TEXT = f"""
Topic A is published as fast as it goes and taken by one subscriber with `block`, so many a second as the first column
says; topic B, {B_RATE} a second, by the same process to the same receiver and to one beside it, over the same links.
The delay of B counts from the instant at which it was due to be published. "Publisher drops": the publishing endpoint
has `on_full="drop_oldest"` and publishes four times as much. "Reader drops": the slow subscriber has `drop_oldest`, and
the one beside it takes A with `block`, three times as fast. "Original": the program that the protocol comes from takes
or publishes A. An original that publishes keeps a window of 1,000, as it cuts off who takes less, and B is published
beside it. Who takes 600 a second keeps up to 1,000 messages, others the default of 16,384 or, with originals that
publish, 200; as much as `subscribe` says may wait beyond that.
"""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.mesh_credit", description="Slow readers in the mesh.")
    parser.add_argument("--seconds", type=float, default=600.0, metavar="N", help="of each row (%(default)g)")
    parser.add_argument("--at-once", type=int, default=9, metavar="N", help="rows that run side by side (%(default)s)")
    parser.add_argument("--only", metavar="PATTERN", default="", help="rows whose name, as in the output, fits")
    parser.add_argument("--output", type=Path, metavar="FILE", help="write the table as Markdown")
    arguments = parser.parse_args()
    console, load = Console(), os.getloadavg()[0]
    chosen = [each for each in rows() if re.search(arguments.only, each.name)]
    with tempfile.TemporaryDirectory(prefix="chappe-credit-") as work, ThreadPoolExecutor(arguments.at_once) as pool:
        settings = Settings(Path(work))
        keys(settings)

        def run(row: Row) -> Facts:
            facts = play(row, settings, arguments.seconds)
            console.print(row.name, json.dumps(facts), highlight=False, soft_wrap=True)
            return facts

        found = list(zip(chosen, pool.map(run, chosen), strict=True))
    text = markdown(found, arguments.seconds, arguments.at_once, load)
    if arguments.output is not None:
        arguments.output.write_text(text)
    console.print(text, highlight=False, soft_wrap=True, markup=False)
    sys.exit(any(facts["wrong"] for _, facts in found))


if __name__ == "__main__":
    main()
