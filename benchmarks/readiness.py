"""How long a new consumer or producer takes from its constructor to its first record."""

from __future__ import annotations

from statistics import median

from benchmarks.children import Child, Children
from benchmarks.outcome import Line
from benchmarks.rounds import tower
from benchmarks.settings import Settings
from benchmarks.stored import start_store

REPEATS = 20
QUICK_REPEATS = 5
READY_MS = 50.0
PACE = 1_000  # records a second that a new consumer finds; one of them is its first
PACED_S = 120  # longer than the whole measurement


def _line(path: str, found: list[float], note: str) -> Line:
    middle, worst = median(found), max(found)
    return Line(
        path,
        f"{middle:.1f} ms median, {worst:.1f} ms longest",
        f"< {READY_MS:.0f} ms",
        met=worst < READY_MS,
        note=note,
        numbers={"median_ms": middle, "max_ms": worst},
    )


def _consumers(children: Children, address: str, repeats: int) -> Line:
    """A producer sends all the while; the first of its records that a new consumer gets counts."""
    paced = children.member("paced_producer", tower=address, acks=1)
    paced.hear()
    paced.order(count=PACE * PACED_S, rate=PACE)
    maker = children.member("new_consumers", tower=address)
    maker.hear()
    facts = [maker.ask() for _ in range(repeats + 1)][1:]  # the first one imports
    paced.kill()
    made = median(each["constructor_ms"] for each in facts)
    return _line(
        "a new consumer has its first record",
        [each["ready_ms"] for each in facts],
        f"{repeats} times, from before the constructor, reset to latest, {PACE:,} records/s live; "
        f"the constructor itself {made:.1f} ms",
    )


def _producers(children: Children, address: str, repeats: int) -> Line:
    """The age of a new producer's first record at a consumer that was there before; stamped before the constructor."""
    taker: Child = children.member("timing_consumer", tower=address)
    taker.hear()
    maker = children.member("new_producers", tower=address)
    maker.hear()
    ages, facts = [], []
    for _ in range(repeats + 1):
        taker.order(count=1)
        facts.append(maker.ask())
        ages.append(taker.hear()["max_us"] / 1000)
    stored = median(each["stored_ms"] for each in facts[1:])
    return _line(
        "a new producer's first record is at a consumer",
        ages[1:],
        f"{repeats} times, from before the constructor; acknowledged by the store after {stored:.1f} ms",
    )


def readiness(settings: Settings) -> list[Line]:
    """Tower, store and the other side are running."""
    repeats = QUICK_REPEATS if settings.quick else REPEATS
    lines = []
    for name, measure in (("producers", _producers), ("consumers", _consumers)):
        with Children(settings.work / f"ready-{name}") as children:
            address = tower(children)
            start_store(children, settings, address, f"ready-{name}")
            lines.append(measure(children, address, repeats))
    return lines
