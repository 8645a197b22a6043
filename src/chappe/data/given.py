"""Checks of callers' arguments: text, bytes, and several of these. Each error names the argument."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from operator import index
from typing import Any

from chappe.errors import UsageError


def as_bytes(given: object, what: str) -> bytes | None:
    """Return bytes unchanged, text as UTF-8, None as None; ``what`` names the argument, as in ``the value``."""
    if given is None or type(given) is bytes:
        return given
    if isinstance(given, str):
        return utf8(given, what)
    if isinstance(given, (bytes, bytearray, memoryview)):
        return bytes(given)
    raise UsageError(f"{what} is bytes or text, not {_named(given)}: encode it first, for example as JSON")


def as_text(given: object, what: str) -> str:
    """Return text unchanged. Raises UsageError for anything else."""
    if isinstance(given, str):
        return given
    raise UsageError(f"{what} is text, not {_named(given)}")


def utf8(text: str, what: str) -> bytes:
    """Encode text as UTF-8. Raises UsageError for surrogates, which stand for bytes of another encoding."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise UsageError(
            f"{what} is {text[:100]!a}, which is not text in UTF-8: decode it with its own encoding, or hand in bytes"
        ) from None


def as_index(given: object, what: str) -> int:
    """Return a whole number. Raises UsageError if it is negative or of another type."""
    try:
        found = index(given)  # type: ignore[arg-type]
    except TypeError:
        raise UsageError(f"{what} is a whole number, not {given!r:.100}") from None
    if found < 0:
        raise UsageError(f"{what} is at least 0, not {found}")
    return found


def several(given: object, what: str) -> Iterator[Any]:
    """Iterate over any iterable except a single text or bytes; ``what`` as in ``values``."""
    if not isinstance(given, (str, bytes, bytearray, memoryview)):
        try:
            return iter(given)  # type: ignore[call-overload, no-any-return]
        except TypeError:
            pass
    raise UsageError(f"{what} are several, in a list or what else can be iterated, not {_named(given)}")


def pairs(given: object, what: str) -> Iterator[Any]:
    """Iterate over a mapping's items, or over an iterable of pairs, which ``two`` takes apart later."""
    return iter(given.items()) if isinstance(given, Mapping) else several(given, what)


def two(pair: object, what: str) -> tuple[Any, Any]:
    """Return both parts of a pair; ``what`` as in ``a header``."""
    if not isinstance(pair, (str, bytes)):
        given: Any = pair
        try:
            one, other = given
            return one, other
        except (TypeError, ValueError):
            pass
    raise UsageError(f"{what}, not {_named(pair)}")


def _named(given: object) -> str:
    return "None" if given is None else type(given).__name__
