"""Ages, sizes, moments, addresses and names as people write them."""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime, timedelta
from typing import Final, Literal

from chappe.defaults import MESH_PORT
from chappe.errors import UsageError

_SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_BYTES: Final = {
    "": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12,
    "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40,
}  # fmt: skip
_AMOUNT: Final = re.compile(r"\s*([0-9]{1,18}(?:\.[0-9]{1,18})?)\s*([a-zA-Z]*)\s*")
OFFSET_MAX: Final = (1 << 63) - 1
AGE_MAX_S: Final = 1000 * 365 * 86400.0  # a thousand years: no date lies further back that a record could have


def parse_age(text: str) -> float:
    """Parse ``90s``, ``10m``, ``12h``, ``7d`` or ``2w`` into seconds. Raises UsageError."""
    match = _AMOUNT.fullmatch(text)
    if match is None or match[2].lower() not in _SECONDS:
        raise UsageError(f"{text[:100]!r} is not an age; write it as 90s, 10m, 12h, 7d or 2w")
    found = float(match[1]) * _SECONDS[match[2].lower()]
    if found > AGE_MAX_S:
        raise UsageError(f"{text!r} is not an age: at most a thousand years")
    return found


def parse_bytes(text: str | int) -> int:
    """Parse ``1000``, ``64KiB``, ``10GiB`` or ``5GB``. Raises UsageError."""
    match = _AMOUNT.fullmatch(str(text))
    if match is None or match[2].lower() not in _BYTES:
        raise UsageError(f"{str(text)[:100]!r} is not a size; write it as 1000, 64KiB, 500MB or 10GiB")
    return int(float(match[1]) * _BYTES[match[2].lower()])


def parse_start(text: str, now: datetime | None = None) -> Literal["earliest", "latest", "last-value"] | int | datetime:
    """Parse a start: ``earliest``, ``latest``, ``last-value``, an offset, an age ago, or a moment in ISO 8601.

    A moment without zone is local time. Raises UsageError.
    """
    text = text.strip()
    if text == "earliest":
        return "earliest"
    if text == "latest":
        return "latest"
    if text == "last-value":
        return "last-value"
    if text.isdecimal() and len(text) <= len(str(OFFSET_MAX)) and int(text) <= OFFSET_MAX:
        return int(text)
    match = _AMOUNT.fullmatch(text.removesuffix("ago"))
    if match is not None and match[2].lower() in _SECONDS:
        return (now or datetime.now(UTC)) - timedelta(seconds=parse_age(match[0]))
    try:
        return datetime.fromisoformat(text).astimezone(UTC)
    except (ValueError, OverflowError, OSError) as error:
        raise UsageError(
            f"{text[:100]!r} is not a place to begin; write earliest, latest, last-value, an offset such as 1000, an "
            "age such as 10m, or a time such as 2026-01-31T12:00"
        ) from error


def parse_moment(text: str, option: str) -> datetime:
    """Parse a time or an age, as ``parse_start`` does. Raises UsageError."""
    try:
        moment = parse_start(text)
    except UsageError:
        moment = "latest"
    if not isinstance(moment, datetime):
        raise UsageError(f"{option} is a time such as 2026-01-31T12:00 or an age such as 2h, not {text[:100]!r}")
    return moment.astimezone(UTC)


def address(text: str) -> tuple[str, int]:
    """Parse ``HOST``, ``HOST:PORT``, ``:PORT`` or ``[IPV6]:PORT``. Raises UsageError."""
    host, colon, port = text.rpartition(":")
    if not colon or (text.endswith("]") and text.startswith("[")) or (text.count(":") > 1 and not text.startswith("[")):
        host, port = text, str(MESH_PORT)
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    if not port.isascii() or not port.isdecimal() or len(port) > 5 or int(port) > 65535 or "/" in host:
        raise UsageError(f"{text!r} is not an address: HOST:PORT is wanted, such as 127.0.0.1:{MESH_PORT}")
    return host or "127.0.0.1", int(port)


def place(text: str) -> tuple[str, int]:
    """Parse ``[HOST:]PORT``; HOST is 127.0.0.1 by default, and `*` any. Raises UsageError."""
    host, _, port = text.strip().rpartition(":")
    if not port.isascii() or not port.isdecimal() or len(port) > 5 or int(port) > 65535 or "/" in host:
        raise UsageError(f"{text[:100]!r} is not an address: [HOST:]PORT is wanted, such as 127.0.0.1:8788")
    host = host.removeprefix("[").removesuffix("]") or "127.0.0.1"
    return "0.0.0.0" if host == "*" else host, int(port)


def human_age(seconds: float) -> str:
    """Write a duration for ``parse_age``, in the largest unit that is exact: ``90d``, ``36h``, ``90s``."""
    for unit in ("d", "h", "m"):
        count, rest = divmod(seconds, _SECONDS[unit])
        if count and not rest:
            return f"{count:.0f}{unit}"
    return f"{seconds:.15g}s"


def exact_bytes(size: int) -> str:
    """Write a size for ``parse_bytes``, in the largest unit that is exact: ``10GiB``, ``5GB``, ``1001B``."""
    for unit, factor in sorted(_BYTES.items(), key=lambda each: -each[1]):
        if factor > 1 and size and size % factor == 0:
            return f"{size // factor}{unit.upper().replace('IB', 'iB')}"
    return f"{size}B"


def human_bytes(size: float) -> str:
    """Write a size with three or four digits: ``512 B``, ``1.5 MiB``."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


SMALL: Final = ("", "k", "M", "G", "T", "P")  # thousands
LARGEST: Final = 1e18
BINARY: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")  # 1024 times
EXACT_MAX: Final = 1_000_000  # counts below it are written in full


def quantity(value: float, unit: str = "") -> str:
    """Write a metric's value in at most ten characters: ``57.8 %``, ``104``, ``12.3 M``, ``1.31 MiB/s``."""
    size, slash, per = unit.partition("/")
    if size in BINARY:
        return _scaled(value * 1024 ** BINARY.index(size), 1024, BINARY, slash + per)
    if unit == "%":
        return f"{digits(value)} %"
    return f"{_scaled(value, 1000, SMALL, '')}{' ' if unit else ''}{unit}".rstrip()


def count(number: float) -> str:
    """Write a count: ``1,125``, ``12.3 M``."""
    return f"{number:,.0f}" if abs(number) < EXACT_MAX else quantity(number)


def rate(per_s: float) -> str:
    """Write a rate: ``45/s``, ``1.2 k/s``."""
    return f"{quantity(per_s)}/s"


def delay(seconds: float) -> str:
    """Write a delay: ``3 ms``, ``2.1 s``."""
    return f"{max(0.0, seconds) * 1000:.0f} ms" if seconds < 0.9995 else f"{digits(seconds)} s"


def digits(value: float) -> str:
    """Write three digits; a whole number without a point."""
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
