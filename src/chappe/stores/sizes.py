"""How large an entry may be, checked without encoding what is obviously small."""

from __future__ import annotations

from typing import Any, Final

from chappe.data.binary import encode
from chappe.data.order import sort_key
from chappe.data.values import Set, Table, Value
from chappe.defaults import KIB, STORE_ENTRY_BYTES_MAX
from chappe.errors import InvalidOperation, UnsupportedValue

_UTF8_MAX: Final = 4  # bytes of one character
_SCALAR_BYTES: Final = 20  # at least those of any scalar but strings
_CONTAINERS: Final = frozenset({tuple, Set, Table})
_CHECK_EVERY: Final = 64  # a growing container is measured when it has a multiple of so many members
_LARGE_BYTES: Final = 64 * KIB  # ... or when one member has so many


def size_of(value: Any) -> int:
    """Bytes of a value: exact for containers, four for each character of a string."""
    kind = type(value)
    if kind is str:
        return _UTF8_MAX * len(value)
    if kind is bytes:
        return len(value)
    return len(encode(value)) if kind in _CONTAINERS else _SCALAR_BYTES


def entry_fits(key: Value, value: Value) -> bool:
    """Whether a key and value are within ``STORE_ENTRY_BYTES_MAX``; a long string is measured exactly."""
    size = size_of(key) + size_of(value)
    return size <= STORE_ENTRY_BYTES_MAX or len(encode(key)) + len(encode(value)) <= STORE_ENTRY_BYTES_MAX


def check_grown(made: Any, member: Value) -> None:
    """Raise InvalidOperation for a container that a new member has made too large or too deep to be carried."""
    try:
        sort_key(member, 1)
        if len(made) % _CHECK_EVERY == 0 or size_of(member) > _LARGE_BYTES:
            size = len(encode(made))
            if size > STORE_ENTRY_BYTES_MAX:
                raise InvalidOperation(f"the value would have {size:,} bytes, at most {STORE_ENTRY_BYTES_MAX:,} may be")
    except UnsupportedValue as problem:
        raise InvalidOperation(f"the value would be out of bounds: {problem}") from None
