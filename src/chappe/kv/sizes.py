"""How large an entry may be, checked without encoding what is obviously small."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from chappe.data.binary import encode
from chappe.data.values import Set, Table, Value
from chappe.defaults import STORE_ENTRY_BYTES_MAX, VALUE_ELEMENTS_MAX
from chappe.errors import InvalidOperation, UnsupportedValue

_UTF8_MAX: Final = 4  # bytes of one character
_SCALAR_BYTES: Final = 20  # at least those of any scalar but strings
CONTAINERS: Final = frozenset({tuple, Set, Table})


def size_of(value: Any) -> int:
    """Bytes of a value: exact for containers, four for each character of a string."""
    kind = type(value)
    if kind is str:
        return _UTF8_MAX * len(value)
    if kind is bytes:
        return len(value)
    return len(encode(value)) if kind in CONTAINERS else _SCALAR_BYTES


def entry_fits(key: Value, value: Value) -> bool:
    """Whether a key and value are within ``STORE_ENTRY_BYTES_MAX``; a long string is measured exactly."""
    size = size_of(key) + size_of(value)
    return size <= STORE_ENTRY_BYTES_MAX or len(encode(key)) + len(encode(value)) <= STORE_ENTRY_BYTES_MAX


class Weight(NamedTuple):
    """What a value costs: bytes, and elements at every depth together. At most that, where some were taken away."""

    size: int
    elements: int

    def with_member(self, member: Value) -> Weight:
        """That of a container with one more member, which may take the place of another one."""
        more = weigh(member)
        return Weight(self.size + more.size + 1, self.elements + more.elements + 1)  # its count may take a byte more

    @property
    def fits(self) -> bool:
        """Whether a value may have it."""
        return self.size <= STORE_ENTRY_BYTES_MAX and self.elements <= VALUE_ELEMENTS_MAX


def weigh(value: Any) -> Weight:
    """The weight of a value, measured; raises UnsupportedValue beyond the bounds of all values."""
    return Weight(len(encode(value)), _elements(value))


def grown(made: Value, before: Weight, member: Value) -> Weight:
    """The weight of a container that a member has made larger; raises InvalidOperation if it is too large.

    It is measured anew only where the sum of all that was added passes the bounds.
    """
    try:
        weight = before.with_member(member)
        if not weight.fits:
            weight = weigh(made)
        if weight.fits:
            return weight
    except UnsupportedValue as problem:
        raise InvalidOperation(f"the value would be out of bounds: {problem}") from None
    raise InvalidOperation(
        f"the value would have {weight.size:,} bytes and {weight.elements:,} elements, "
        f"at most {STORE_ENTRY_BYTES_MAX:,} and {VALUE_ELEMENTS_MAX:,} may be"
    )


def _elements(value: Any) -> int:
    kind = type(value)
    if kind is tuple:
        return len(value) + sum([_elements(each) for each in value if type(each) in CONTAINERS])
    if kind is Set:
        return len(value) + sum([_elements(each) for each in value.members if type(each) in CONTAINERS])
    if kind is Table:
        return 2 * len(value) + sum([_elements(key) + _elements(held) for key, held in value.pairs()])
    return 0
