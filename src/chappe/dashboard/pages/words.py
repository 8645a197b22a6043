"""Numbers, sizes and times for people. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
US: Final = 1_000_000


def size(count: int) -> str:
    found = float(count)
    for unit in UNITS:
        if found < 1024 or unit == UNITS[-1]:
            return f"{found:.0f} {unit}" if unit == "B" else f"{found:.1f} {unit}"
        found /= 1024
    raise AssertionError


def rate(per_s: float) -> str:
    if per_s == 0:
        return "0"
    return f"{per_s:,.0f}" if per_s >= 10 else f"{per_s:.1f}"


def clock(at_us: int) -> str:
    """Return a moment of UTC, with its date where it is not of today."""
    try:
        found = datetime.fromtimestamp(at_us / US, UTC)
    except (ValueError, OverflowError, OSError):
        return str(at_us)
    today = found.date() == datetime.now(UTC).date()
    return f"{found:%H:%M:%S}" if today else f"{found:%Y-%m-%d %H:%M:%S}"


def ago(at_us: int, now_us: int) -> str:
    if at_us == 0:
        return "never"
    seconds = (now_us - at_us) / US
    if seconds < 2:
        return "now"
    for unit, length in (("day", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= length:
            count = int(seconds // length)
            return f"{count:,} {unit}{'s' if unit == 'day' and count != 1 else ''} ago"
    return f"{seconds:.0f} s ago"


def duration(seconds: float) -> str:
    for unit, length in (("day", 86_400), ("hour", 3_600), ("minute", 60)):
        if seconds >= length:
            return f"{seconds / length:,.3g} {unit}{'' if seconds == length else 's'}"
    return f"{seconds:,.3g} s"


def connecting(awaited: Sequence[str] = ()) -> str:
    return f"connecting to {', '.join(awaited) or 'the dashboard'} ..."
