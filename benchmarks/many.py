"""What many endpoints in one process cost: threads, descriptors, memory, and the processor while nothing happens."""

from __future__ import annotations

from typing import Any

from benchmarks.children import Children
from benchmarks.outcome import Line
from benchmarks.settings import Settings

ENDPOINTS = 1_000
STAR = 100
IDLE_S = 5.0
CPU_SHARE = 0.01  # of a core, while idle
THREADS = 4


def _line(what: str, count: int, found: dict[str, Any], cpu_share: float | None) -> Line:
    cost = f"{found['threads']} threads, {found['descriptors']} descriptors, {found['kib']:.0f} KiB each"
    idle = f"{100 * found['cpu_share']:.2f}% of a core"
    met = found["threads"] <= THREADS and (cpu_share is None or found["cpu_share"] < cpu_share)
    return Line(
        f"{count:,} endpoints in one process, {what}",
        f"{cost}; {idle}",
        f"<= {THREADS} threads" + ("" if cpu_share is None else f", < {100 * cpu_share:.0f}% of a core"),
        met=met,
        note=f"of the whole process, all in all; processor time over {found['seconds']:.0f} s without events",
        numbers={name: float(value) for name, value in found.items()},
    )


def many(settings: Settings) -> list[Line]:
    """Idle, each listening, and a star whose members have chattered."""
    lines = []
    endpoints = settings.count(ENDPOINTS)
    for what, how, count, share in (
        ("without peers", "idle", endpoints, CPU_SHARE),
        ("each listening", "listening", endpoints, CPU_SHARE),
        ("a star of peers", "star", min(STAR, endpoints), None),
    ):
        with Children(settings.work / f"many-{how}") as children:
            child = children.start("benchmarks.mesh_members", "crowd", endpoints=count, how=how)
            child.hear()
            lines.append(_line(what, count, child.ask(seconds=settings.seconds(IDLE_S)), share))
    return lines
