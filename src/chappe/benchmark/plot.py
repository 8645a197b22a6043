"""A benchmark as a picture: what each node had received over time, and how fast it was. SVG."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Final

from chappe.benchmark.report import BenchmarkReport, NodeOutcome

WIDTH: Final = 800
LEFT: Final = 70
RIGHT: Final = 190  # names of nodes
CURVES_HEIGHT: Final = 300
TOP: Final = 40
BOTTOM: Final = 40
ROW: Final = 18  # of one node's bars
STEPS: Final = 4
LABELS_MAX: Final = 18  # names beside the curves, of those that received the most
COLOURS: Final = ("#1f6fb4", "#c4561b", "#2c8a4b", "#7a4fa3", "#b0283c", "#5b6770", "#a8830a", "#13808c")


def draw(report: BenchmarkReport) -> str:
    bars = _bars(report.nodes, CURVES_HEIGHT)
    height = CURVES_HEIGHT + TOP + ROW * len(report.nodes) + BOTTOM
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" '
        f'font-size="12">\n<rect width="{WIDTH}" height="{height}" fill="white"/>\n{_curves(report)}\n{bars}\n</svg>\n'
    )


def _curves(report: BenchmarkReport) -> str:
    receivers = sorted((each for each in report.nodes if each.expected or each.received), key=_most_first)
    curves = {each.name: [*report.samples.get(each.name, [(0.0, 0)]), _end(each)] for each in receivers}
    seconds = max([at for points in curves.values() for at, _ in points] + [0.001])
    most = max([count for points in curves.values() for _, count in points] + [1])

    def x(at: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * at / seconds

    def y(count: float) -> float:
        return TOP + (CURVES_HEIGHT - TOP - BOTTOM) * (1 - count / most)

    parts = [f'<text x="{LEFT}" y="20" font-weight="bold">Messages received, by node</text>']
    for step in range(STEPS + 1):
        count, at = most * step / STEPS, seconds * step / STEPS
        parts.append(f'<path d="M{LEFT} {y(count):.1f}H{WIDTH - RIGHT}" stroke="#cccccc"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{y(count) + 4:.1f}" text-anchor="end">{count:,.0f}</text>')
        parts.append(f'<text x="{x(at):.1f}" y="{y(0) + 16:.1f}" text-anchor="middle">{at:.3g} s</text>')
    for place, (name, points) in enumerate(curves.items()):
        colour = COLOURS[place % len(COLOURS)]
        line = " ".join(f"{x(at):.1f},{y(count):.1f}" for at, count in points)
        parts.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
        if place < LABELS_MAX:
            parts.append(f'<text x="{WIDTH - RIGHT + 8}" y="{TOP + 14 * place}" fill="{colour}">{_short(name)}</text>')
    return "\n".join(parts)


def _bars(nodes: Sequence[NodeOutcome], top: int) -> str:
    most = max([max(each.in_per_s, each.out_per_s) for each in nodes] + [1.0])
    parts = [
        f'<text x="{LEFT}" y="{top + 20}" font-weight="bold">Messages a second: sent (light), received (dark)</text>'
    ]
    for place, each in enumerate(nodes):
        y = top + TOP + ROW * place
        for rate, colour, shift in ((each.out_per_s, "#a9cbe8", 0), (each.in_per_s, "#1f6fb4", ROW // 2 - 2)):
            width = (WIDTH - LEFT - RIGHT) * rate / most
            parts.append(
                f'<rect x="{LEFT}" y="{y + shift}" width="{width:.1f}" height="{ROW // 2 - 2}" fill="{colour}"/>'
            )
        parts.append(f'<text x="{LEFT - 6}" y="{y + ROW // 2 + 2}" text-anchor="end">{_short(each.name, 10)}</text>')
        lost = f", {each.missing:,} lost" if each.missing else ""
        fill = "#b0283c" if each.missing else "#333333"
        text = f"{each.out_per_s:,.0f} / {each.in_per_s:,.0f}{lost}"
        parts.append(f'<text x="{WIDTH - RIGHT + 8}" y="{y + ROW // 2 + 2}" fill="{fill}">{text}</text>')
    return "\n".join(parts)


def _most_first(outcome: NodeOutcome) -> tuple[int, str]:
    return -outcome.received, outcome.name


def _end(outcome: NodeOutcome) -> tuple[float, int]:
    return outcome.receive_s or outcome.seconds, outcome.received


def _short(name: str, characters: int = 18) -> str:
    return escape(name if len(name) <= characters else name[: characters - 1] + "…")
