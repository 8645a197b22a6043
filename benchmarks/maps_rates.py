"""Rates that a process says of itself when it is asked, and the lines of the table that they make."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from statistics import median
from types import MappingProxyType
from typing import Any

from benchmarks.children import Child
from benchmarks.outcome import Line, Rate, per_second, times
from benchmarks.settings import Settings


def rate(
    settings: Settings,
    ask: Callable[..., dict[str, Any]],
    count: int,
    servers: Mapping[str, Child] = MappingProxyType({}),
) -> Rate:
    """Rounds of ``count`` of what ``ask`` orders, and the processor time of all who take part."""
    ask(count=max(count // 10, 1))  # warm
    before = {name: child.cpu_s() for name, child in servers.items()}
    found = [ask(count=count) for _ in range(settings.repeats)]
    rates = tuple([count / (each["end"] - each["start"]) * 1e9 for each in found])
    cpu_us = {"client": median(1e6 * each["cpu_s"] / count for each in found)}
    for name, child in servers.items():
        cpu_us[name] = 1e6 * (child.cpu_s() - before[name]) / (count * len(found))
    return Rate(rates, cpu_us)


def line(path: str, found: Rate, target: float | None = None, beside: tuple[str, Rate] | None = None) -> Line:
    """A line of the table."""
    return Line(
        path,
        str(found),
        "" if target is None else f">= {per_second(target)}",
        "" if beside is None else f"{beside[0]}: {beside[1]}",
        "" if beside is None else times(found.median / beside[1].median),
        met=None if target is None else found.median >= target,
        note=found.note(),
        numbers=found.numbers("chappe"),
    )
