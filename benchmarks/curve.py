"""Curves of memory as a small SVG."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

WIDTH, HEIGHT = 640, 260  # of one panel, in pixels
LEFT, RIGHT, TOP, BOTTOM = 56, 90, 34, 36
COLOURS = ("#1f6fb4", "#c4561b", "#2c8a4b", "#7a4fa3")
LABEL_GAP = 14  # pixels between two labels at least


@dataclass(frozen=True, slots=True)
class Curve:
    """One panel: MiB by process, a sample a second, and when somebody stopped and went on."""

    title: str
    samples: dict[str, list[float]]
    stopped_at: int
    resumed_at: int


def draw(curves: Sequence[Curve]) -> str:
    """The panels below each other."""
    panels = "\n".join(_panel(curve, HEIGHT * index) for index, curve in enumerate(curves))
    height = HEIGHT * len(curves)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" '
        f'font-size="12">\n<rect width="{WIDTH}" height="{height}" fill="white"/>\n{panels}\n</svg>\n'
    )


def _panel(curve: Curve, top: int) -> str:
    seconds = max(len(each) for each in curve.samples.values()) - 1
    highest = _round_up(max(max(each) for each in curve.samples.values()))

    def x(second: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * second / seconds

    def y(mib: float) -> float:
        return top + TOP + (HEIGHT - TOP - BOTTOM) * (1 - mib / highest)

    floor = y(0)
    shade = x(curve.resumed_at) - x(curve.stopped_at)
    parts = [
        f'<text x="{LEFT}" y="{top + 20}" font-weight="bold">Resident memory, {curve.title} (shaded)</text>',
        f'<rect x="{x(curve.stopped_at):.1f}" y="{y(highest):.1f}" width="{shade:.1f}" '
        f'height="{floor - y(highest):.1f}" fill="#eeeeee"/>',
    ]
    for step in range(5):
        mib = highest * step / 4
        parts.append(f'<path d="M{LEFT} {y(mib):.1f}H{WIDTH - RIGHT}" stroke="#cccccc"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{y(mib) + 4:.1f}" text-anchor="end">{mib:.0f}</text>')
    for second in range(0, seconds + 1, 5):
        parts.append(f'<text x="{x(second):.1f}" y="{floor + 16:.1f}" text-anchor="middle">{second}</text>')
    parts.append(f'<text x="{LEFT - 6}" y="{top + TOP - 8}" text-anchor="end">MiB</text>')
    parts.append(f'<text x="{WIDTH - RIGHT + 8}" y="{floor + 16:.1f}">seconds</text>')
    label_y = float("inf")
    colours = dict(zip(curve.samples, COLOURS, strict=False))
    for name, samples in sorted(curve.samples.items(), key=lambda each: each[1][-1]):
        points = " ".join(f"{x(second):.1f},{y(mib):.1f}" for second, mib in enumerate(samples))
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colours[name]}" stroke-width="2"/>')
        label_y = min(y(samples[-1]) + 4, label_y - LABEL_GAP)
        parts.append(f'<text x="{WIDTH - RIGHT + 6}" y="{label_y:.1f}" fill="{colours[name]}">{name}</text>')
    return "\n".join(parts)


def _round_up(mib: float) -> int:
    """A multiple of 40 above, so that four steps are round numbers."""
    return 40 * (int(mib / 40) + 1)
