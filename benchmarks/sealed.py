"""What sealing costs: batches from a producer to a consumer in a sealed topic, beside others with keys and without."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.children import Children
from benchmarks.live import BATCHES, measure, members
from benchmarks.outcome import Line, times
from benchmarks.settings import Settings

SHARE = 0.6


def sealed(settings: Settings) -> list[Line]:
    """All three in turn, in the same run."""
    from chappe.api import permissions

    keyed, group = settings.work / "keyed", settings.work / "group"
    for home in (keyed, group):
        permissions.init(home)
    permissions.seal(group, "all", ["*"], names=["admin"])
    with Children(settings.work / "sealed") as children:
        plain = members(children, single=False)
        with _being(keyed):
            hop = members(children, single=False)
        with _being(group):
            ours = members(children, single=False)
        measure(settings, [(ours, BATCHES), (hop, BATCHES), (plain, BATCHES)])
    rate, beside, keys = ours.rate(), plain.rate(), hop.rate()
    found = []
    for what, other in (("with keys", keys), ("plain", beside)):
        ratio = rate.median / other.median
        found.append(
            Line(
                f"batches to Arrow, sealed, beside {what}",
                str(rate),
                f">= {SHARE:g}x",
                f"{what}: {other}",
                times(ratio),
                ratio >= SHARE,
                rate.note(),
                {**rate.numbers("sealed"), **other.numbers(what.replace(" ", "_"))},
            )
        )
    return found


@contextmanager
def _being(home: Path) -> Iterator[None]:
    os.environ["CHAPPE_IDENTITY"] = str(home / "admin")
    try:
        yield
    finally:
        del os.environ["CHAPPE_IDENTITY"]
