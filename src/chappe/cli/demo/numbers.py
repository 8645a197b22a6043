"""Numbers as people read them: three digits and their magnitude, in units."""

from __future__ import annotations

import math
from typing import Final

SMALL: Final = ("", "k", "M", "G", "T", "P")  # thousands
LARGEST: Final = 1e18
BINARY: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")  # 1024 times
EXACT_MAX: Final = 1_000_000  # counts below it are written in full


def quantity(value: float, unit: str = "") -> str:
    """``57.8 %``, ``104``, ``12.3 M``, ``1.31 MiB/s``: a value of a metric, ten characters at most with these units."""
    size, slash, per = unit.partition("/")
    if size in BINARY:
        return _scaled(value * 1024 ** BINARY.index(size), 1024, BINARY, slash + per)
    if unit == "%":
        return f"{digits(value)} %"
    return f"{_scaled(value, 1000, SMALL, '')}{' ' if unit else ''}{unit}".rstrip()


def count(number: float) -> str:
    """``1,125``, ``12.3 M``."""
    return f"{number:,.0f}" if abs(number) < EXACT_MAX else quantity(number)


def rate(per_s: float) -> str:
    """``45/s``, ``1.2 k/s``."""
    return f"{quantity(per_s)}/s"


def delay(seconds: float) -> str:
    """``3 ms``, ``2.1 s``."""
    return f"{max(0.0, seconds) * 1000:.0f} ms" if seconds < 0.9995 else f"{digits(seconds)} s"


def digits(value: float) -> str:
    """Three digits; a whole number without a point."""
    if not math.isfinite(value):
        return str(value)
    about = round(value, 2) or 0.0  # no minus zero
    if about == round(about):
        return f"{about:,.0f}"
    size = abs(about)
    return f"{value:,.{0 if size >= 99.95 else 1 if size >= 9.995 else 2}f}"


def _scaled(value: float, step: int, names: tuple[str, ...], per: str) -> str:
    if not math.isfinite(value) or abs(value) >= LARGEST:
        return f"{value:.3g} {names[0]}{per}".rstrip()
    for name in names:
        if abs(value) < 999.5 or name == names[-1]:
            break
        value /= step
    return f"{digits(value)} {name}{per}".rstrip()
