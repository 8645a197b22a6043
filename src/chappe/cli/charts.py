"""Small charts made of characters: curves of one line, and bars."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Final

BARS: Final = "▁▂▃▄▅▆▇█"
EIGHTHS: Final = " ▏▎▍▌▋▊▉█"


def curve(values: Iterable[float], width: int = 16) -> str:
    """Draw the last values as a small bar chart, scaled from the lowest to the highest."""
    recent = [value for value in values if math.isfinite(value)][-width:]
    if not recent:
        return ""
    low, high = min(recent), max(recent)
    span = high - low
    scale = (len(BARS) - 1) / span if 0 < span < math.inf else 0.0
    return "".join(BARS[int((value - low) * scale) if scale else 0] for value in recent)


def amounts(values: Sequence[float]) -> str:
    """Draw amounts as a small bar chart, scaled from zero to the highest; only zero is a blank."""
    most = max(values, default=0.0)
    return "".join(BARS[min(int(value / most * len(BARS)), len(BARS) - 1)] if value > 0 else " " for value in values)


def bar(value: float, most: float, width: int) -> str:
    """Draw a bar of ``width`` characters at ``most``, in eighths of a character; only zero is empty."""
    if value <= 0 or most <= 0:
        return ""
    whole, eighths = divmod(max(1, round(min(value / most, 1.0) * width * 8)), 8)
    return EIGHTHS[-1] * whole + EIGHTHS[eighths].strip()
