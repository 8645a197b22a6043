"""What keys cost: batches from a producer to a consumer over connections with CURVE, beside plain ones."""

from __future__ import annotations

import os

from benchmarks.children import Children
from benchmarks.live import BATCHES, measure, members
from benchmarks.outcome import Line, times
from benchmarks.settings import Settings

SHARE = 0.8


def keys(settings: Settings) -> list[Line]:
    """Both in turn, in the same run."""
    from chappe.api import permissions

    home = settings.work / "authority"
    permissions.init(home)
    with Children(settings.work / "keys") as children:
        plain = members(children, single=False)
        os.environ["CHAPPE_IDENTITY"] = str(home / "admin")
        try:
            ours = members(children, single=False)
        finally:
            del os.environ["CHAPPE_IDENTITY"]
        measure(settings, [(ours, BATCHES), (plain, BATCHES)])
    rate, beside = ours.rate(), plain.rate()
    ratio = rate.median / beside.median
    return [
        Line(
            "batches to Arrow, with keys",
            str(rate),
            f">= {SHARE:g}x of plain",
            f"plain: {beside}",
            times(ratio),
            ratio >= SHARE,
            rate.note(),
            {**rate.numbers("keys"), **beside.numbers("plain")},
        )
    ]
