"""Throughput of a topic that several workers share, against their number, and beside a consumer's own loop."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

from benchmarks.children import ROOT, Child, Children
from benchmarks.outcome import Line, times
from benchmarks.rounds import tower
from benchmarks.scaling import Curve, Panel, draw
from benchmarks.settings import Settings
from benchmarks.stored import start_store
from chappe.data.markup import many

MEMBERS: Final = "benchmarks.sharded_members"
RECORDS: Final = 600_000  # in the topic: more than any round takes
PLOT: Final = ROOT / "docs" / "how-to" / "share-the-work.svg"
SHARE: Final = 0.75  # of what as many loops would do


@dataclass(frozen=True, slots=True)
class _Kind:
    """What is done with each record."""

    work: str
    text: str
    workers: tuple[int, ...]
    records: int  # of a round, for each worker that there can be work for
    scales: int | None  # up to so many workers it should grow with them; None: as many as there are processors

    def busy(self, workers: int) -> int:
        """How many workers can be at work at once."""
        return min(workers, self.scales if self.scales is not None else os.cpu_count() or 1)


KINDS: Final = (
    _Kind("nothing", "nothing", (1, 2, 4, 8), 300_000, 1),
    _Kind("hashing", "hash 64 KiB", (1, 2, 4, 8), 50_000, None),
    _Kind("waiting", "wait for 1 ms", (1, 2, 4, 8, 16), 2_000, 16),
)


def sharded(settings: Settings) -> list[Line]:
    """A line for each kind of work; a full run draws them."""
    lines, curves = [], []
    with Children(settings.work / "sharded") as children:
        address = tower(children)
        start_store(children, settings, address, "sharded")
        filler = children.start(MEMBERS, "filler", tower=address)
        filler.hear()
        filler.ask(count=settings.count(RECORDS))
        reader = children.start(MEMBERS, "reader", tower=address)
        reader.hear()
        for kind in KINDS:
            rates = {workers: _rate(reader, settings, kind, workers) for workers in (0, *kind.workers)}
            alone = rates.pop(0)
            curves.append(Curve(kind.text, rates, alone))
            lines.append(_line(kind, rates, alone))
        lines.append(_bound(reader, settings, KINDS[1]))
    if not settings.quick:
        title = "Records a second by number of workers; dashed: the consumer's own loop"
        PLOT.write_text(draw([Panel(title, "workers", curves)]))
    return lines


def _rate(reader: Child, settings: Settings, kind: _Kind, workers: int, cpus: Sequence[int] | None = None) -> float:
    count = settings.count(kind.records) * kind.busy(max(workers, 1))
    what = {"work": kind.work, "workers": workers, "warm": count // 4, "count": count, "cpus": cpus}
    rounds: list[float] = [reader.ask(**what)["seconds"] for _ in range(settings.repeats)]
    return count / median(rounds)


def _bound(reader: Child, settings: Settings, kind: _Kind) -> Line:
    """The same work with the reading thread and each worker bound to a processor."""
    cpus = sorted(os.sched_getaffinity(0))
    workers = max(len(cpus) - 1, 1)
    free = _rate(reader, settings, kind, workers)
    bound = _rate(reader, settings, kind, workers, cpus)
    return Line(
        f"{many(workers, 'worker')} of {kind.text}, bound to {many(len(cpus), 'processor')} with the reader",
        _a_second(bound),
        "",
        f"placed by the system: {_a_second(free)}",
        times(bound / free),
        None,
        numbers={"bound_per_s": bound, "free_per_s": free},
    )


def _line(kind: _Kind, rates: dict[int, float], alone: float) -> Line:
    ratios = {workers: rate / alone for workers, rate in rates.items()}
    scales = kind.scales != 1
    return Line(
        f"workers that {kind.text} for each record: {', '.join(map(str, rates))} of them",
        ", ".join(map(_a_second, rates.values())),
        f">= {SHARE:g}x of as many loops as can be busy" if scales else "",
        f"the consumer's own loop: {_a_second(alone)}",
        ", ".join(map(times, ratios.values())),
        all(ratio >= SHARE * kind.busy(workers) for workers, ratio in ratios.items()) if scales else None,
        numbers={"alone_per_s": alone, **{f"workers_{workers}_per_s": rate for workers, rate in rates.items()}},
    )


def _a_second(rate: float) -> str:
    return f"{rate:,.0f} /s"
