"""Rates against how many there are of something, as a small SVG, both on logarithmic scales."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

WIDTH: Final = 640
HEIGHT: Final = 340
LEFT: Final = 64
RIGHT: Final = 120
TOP: Final = 40
BOTTOM: Final = 44
COLOURS: Final = ("#5b6770", "#1f6fb4", "#c4561b", "#2c8a4b")


@dataclass(frozen=True, slots=True)
class Curve:
    """Rates by number, and of one that does it alone if that was measured."""

    name: str
    rates: dict[int, float]
    alone: float | None = None


@dataclass(frozen=True, slots=True)
class Panel:
    """One picture: its title, what is counted, and the curves."""

    title: str
    what: str
    curves: Sequence[Curve]


def draw(panels: Sequence[Panel]) -> str:
    """The pictures below each other."""
    bodies = [f'<g transform="translate(0 {HEIGHT * at})">\n{_body(each)}\n</g>' for at, each in enumerate(panels)]
    height, body = HEIGHT * len(panels), "\n".join(bodies)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" '
        f'font-size="12">\n<rect width="{WIDTH}" height="{height}" fill="white"/>\n{body}\n</svg>\n'
    )


def _body(panel: Panel) -> str:
    counts = sorted({count for curve in panel.curves for count in curve.rates})
    rates = [rate for curve in panel.curves for rate in curve.rates.values()]
    rates += [curve.alone for curve in panel.curves if curve.alone is not None]
    low, high = math.floor(math.log10(min(rates))), math.ceil(math.log10(max(rates)))
    high = max(high, low + 1)

    def x(count: int) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * math.log(count / counts[0]) / math.log(counts[-1] / counts[0])

    def y(rate: float) -> float:
        return TOP + (HEIGHT - TOP - BOTTOM) * (high - math.log10(rate)) / (high - low)

    parts = [f'<text x="{LEFT}" y="20" font-weight="bold">{panel.title}</text>']
    for power in range(low, high + 1):
        at = y(10.0**power)
        parts.append(f'<path d="M{LEFT} {at:.1f}H{WIDTH - RIGHT}" stroke="#cccccc"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{at + 4:.1f}" text-anchor="end">{_power(power)}</text>')
    for count in counts:
        parts.append(f'<text x="{x(count):.1f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{short(count)}</text>')
    parts.append(f'<text x="{WIDTH - RIGHT + 26}" y="{HEIGHT - BOTTOM + 16}">{panel.what}</text>')
    for curve, colour in zip(panel.curves, COLOURS, strict=False):
        points = " ".join(f"{x(count):.1f},{y(rate):.1f}" for count, rate in curve.rates.items())
        last_count, last = list(curve.rates.items())[-1]
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>')
        for count, rate in curve.rates.items():
            parts.append(f'<circle cx="{x(count):.1f}" cy="{y(rate):.1f}" r="3" fill="{colour}"/>')
        if curve.alone is not None:
            dash = f'stroke="{colour}" stroke-dasharray="4 4"'
            parts.append(f'<path d="M{LEFT} {y(curve.alone):.1f}H{x(last_count):.1f}" {dash}/>')
        parts.append(f'<text x="{x(last_count) + 8:.1f}" y="{y(last) + 4:.1f}" fill="{colour}">{curve.name}</text>')
    return "\n".join(parts)


def _power(power: int) -> str:
    return short(10**power) if power >= 0 else f"{10.0**power:g}"


def short(count: int) -> str:
    """A number in few characters."""
    for size, sign in ((1_000_000, "M"), (1_000, "k")):
        if count >= size and count % size == 0:
            return f"{count // size}{sign}"
    return str(count)
