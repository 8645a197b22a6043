"""What keys and sealing cost: batches and single records from a producer to a consumer, beside plain ones."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from benchmarks.children import Children
from benchmarks.latency import RATE, Contestant, chappe_paced, measure_alone
from benchmarks.live import BATCHES, measure, members
from benchmarks.outcome import Line, Rate, times
from benchmarks.rounds import raw_pair
from benchmarks.settings import Settings

KEYS_SHARE = 0.8
SEALED_SHARE = 0.6
P50_TIMES = 1.5
RATES = (1_000, RATE)


def secured(settings: Settings) -> list[Line]:
    """Batches with keys and sealed beside plain, and ZeroMQ's own frames with keys beside plain; all in turn."""
    keyed, group = _homes(settings.work)
    with Children(settings.work / "secured") as children:
        plain = members(children, single=False)
        with _being(keyed):
            hop = members(children, single=False)
        with _being(group):
            ours = members(children, single=False)
        frames, curve = raw_pair(children, single=False), raw_pair(children, single=False, curve=True)
        measure(settings, [(each, BATCHES) for each in (plain, hop, ours, frames, curve)])
    return [
        _rates("batches to Arrow, with keys", hop.rate(), "plain", plain.rate(), KEYS_SHARE),
        _rates("batches to Arrow, sealed and with keys", ours.rate(), "plain", plain.rate(), SEALED_SHARE),
        _rates("the same, beside with keys alone", ours.rate(), "with keys", hop.rate(), None),
        _rates("raw pyzmq, 64 KiB frames, with keys", curve.rate(), "plain", frames.rate(), None),
    ]


def secured_latency(settings: Settings) -> list[Line]:
    """How old records are with keys and sealed, beside plain; each alone, at a moderate and at a high pace."""
    keyed, group = _homes(settings.work)
    start = partial(chappe_paced, settings=settings, stored=False)
    lines = []
    for rate in RATES:
        plain = measure_alone(settings, start, "plain", rate)
        with _being(keyed):
            hop = measure_alone(settings, start, "keys", rate)
        with _being(group):
            ours = measure_alone(settings, start, "sealed", rate)
        lines += [_ages(rate, "with keys", hop, plain), _ages(rate, "sealed and with keys", ours, plain)]
    return lines


def _homes(work: Path) -> tuple[Path, Path]:
    """Two directories of keys, of which the second seals every topic."""
    from chappe.api import permissions

    keyed, group = work / "keyed", work / "group"
    for home in (keyed, group):
        permissions.init(home)
    permissions.seal(group, "all", ["*"], names=["admin"])
    return keyed, group


@contextmanager
def _being(home: Path) -> Iterator[None]:
    os.environ["CHAPPE_IDENTITY"] = str(home / "admin")
    try:
        yield
    finally:
        del os.environ["CHAPPE_IDENTITY"]


def _rates(path: str, rate: Rate, what: str, other: Rate, share: float | None) -> Line:
    ratio = rate.median / other.median
    return Line(
        path,
        str(rate),
        "" if share is None else f">= {share:g}x of plain",
        f"{what}: {other}",
        times(ratio),
        None if share is None else ratio >= share,
        rate.note(),
        {**rate.numbers("chappe"), **other.numbers("beside")},
    )


def _ages(rate: int, what: str, ours: Contestant, plain: Contestant) -> Line:
    p50, p99 = (ours.middle(each) / plain.middle(each) for each in ("p50_us", "p99_us"))
    return Line(
        f"latency p50 / p99 at {rate:,} records/s, {what}",
        str(ours),
        f"p50 <= {P50_TIMES:g}x of plain",
        f"plain: {plain}",
        f"{times(p50)} / {times(p99)} of plain",
        p50 <= P50_TIMES,
        f"CPU us/record: {ours.cpu()}; plain: {plain.cpu()}",
        {**ours.numbers(), **plain.numbers("plain")},
    )
