"""The operations add, subtract and retrieve by the type of the value, with the rules of the original.

============ ===================== =========================== ========================================
stored       add                   subtract                    look into (``retrieve``)
============ ===================== =========================== ========================================
count        a count               a count                     the value itself
integer      an integer            an integer                  the value itself
real         a real                a real                      the value itself
timespan     a timespan            a timespan                  the value itself
timestamp    a timespan            a timespan                  the value itself
string       a string, behind      --                          the value itself
vector       anything, behind      anything: the last one goes by count or integer, from 0
set          anything              that member                 whether it is a member
table        a vector (key, value) that key                    the value under the key
others       --                    --                          the value itself
============ ===================== =========================== ========================================

Departure: what passes the bounds of a type is refused; the original wraps around.

How large an entry may be, checked without encoding what is obviously small.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple, TypeVar

from chappe.data.binary import encode
from chappe.data.order import SET, STRING, TABLE, TIMESTAMP, TYPE_NAMES, VECTOR, sort_key
from chappe.data.scalars import Count, Timespan, Timestamp
from chappe.data.values import EMPTY_SET, EMPTY_TABLE, Set, Table, Value, type_name
from chappe.defaults import STORE_ENTRY_BYTES_MAX, VALUE_ELEMENTS_MAX
from chappe.errors import InvalidOperation, NoSuchKey, TypeClash, UnsupportedValue

_UTF8_MAX: Final = 4  # bytes of one character
_SCALAR_BYTES: Final = 20  # at least those of any scalar but strings
CONTAINERS: Final = frozenset({tuple, Set, Table})


def size_of(value: Any) -> int:
    """Return the bytes of a value: exact for containers, four for each character of a string."""
    kind = type(value)
    if kind is str:
        return _UTF8_MAX * len(value)
    if kind is bytes:
        return len(value)
    return len(encode(value)) if kind in CONTAINERS else _SCALAR_BYTES


def entry_fits(key: Value, value: Value) -> bool:
    """Return True if a key and value are within ``STORE_ENTRY_BYTES_MAX``; a long string is measured exactly."""
    size = size_of(key) + size_of(value)
    return size <= STORE_ENTRY_BYTES_MAX or len(encode(key)) + len(encode(value)) <= STORE_ENTRY_BYTES_MAX


class Weight(NamedTuple):
    """The size of a value: bytes, and elements at every depth together. It is an upper bound after removals."""

    size: int
    elements: int

    def with_member(self, member: Value) -> Weight:
        """Return the weight of a container with one more member, which may take the place of another one."""
        more = weigh(member)
        return Weight(self.size + more.size + 1, self.elements + more.elements + 1)  # its count may take a byte more

    @property
    def fits(self) -> bool:
        return self.size <= STORE_ENTRY_BYTES_MAX and self.elements <= VALUE_ELEMENTS_MAX


def weigh(value: Any) -> Weight:
    """Measure the weight of a value; raises UnsupportedValue beyond the bounds of all values."""
    return Weight(len(encode(value)), _elements(value))


def grown(made: Value, before: Weight, member: Value) -> Weight:
    """Return a grown container's weight, measured only where the sum passes bounds. Raises InvalidOperation."""
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


T = TypeVar("T")
_INTEGER_MAX: Final = 2**63 - 1

# What a missing value starts as, by the tag of its type.
_INITIAL: Final[dict[int, Value]] = {
    1: False,
    2: Count(0),
    3: 0,
    4: 0.0,
    STRING: "",
    TIMESTAMP: Timestamp(0),
    10: Timespan(0),
    SET: EMPTY_SET,
    TABLE: EMPTY_TABLE,
    VECTOR: (),
}
_NUMBERS: Final = (Count, int, float, Timespan)


def initial(tag: int) -> Value:
    """Return the empty value of a type; raises TypeClash for a type that nothing can be added to."""
    try:
        return _INITIAL[tag]
    except KeyError:
        raise TypeClash(f"nothing can be added to a missing value of type {TYPE_NAMES[tag]}") from None


def add(stored: Any, operand: Any) -> Value:
    """Return ``stored`` with ``operand`` added; the caller bounds containers. Raises TypeClash, InvalidOperation."""
    kind = type(stored)
    if kind in _NUMBERS:
        return _sum(stored, operand, 1)
    if kind is Timestamp and type(operand) is Timespan:
        return _bounded(Timestamp, int(stored) + int(operand))
    if kind is str or kind is bytes:
        return _joined(stored, operand)
    if kind is tuple:
        _bounds(sort_key, operand, 1)
        longer: Value = (*stored, operand)
        return longer
    if kind is Set:
        larger: Value = _bounds(stored.adding, operand)
        return larger
    if kind is Table:
        if type(operand) is not tuple:
            raise _clash("added to", stored, operand)
        if len(operand) != 2:
            raise InvalidOperation(f"a table takes a vector of key and value, not one of {len(operand)} elements")
        _bounds(sort_key, operand, 1)
        table: Value = stored.setting(*operand)
        return table
    raise _clash("added to", stored, operand)


def subtract(stored: Any, operand: Any) -> Value:
    """Return ``stored`` without ``operand``; raises TypeClash or InvalidOperation."""
    kind = type(stored)
    if kind in _NUMBERS:
        return _sum(stored, operand, -1)
    if kind is Timestamp and type(operand) is Timespan:
        return _bounded(Timestamp, int(stored) - int(operand))
    if kind is tuple:
        return tuple(stored[:-1])
    if kind is Set or kind is Table:
        smaller: Value = _bounds(stored.removing, operand)
        return smaller
    raise _clash("taken from", stored, operand)


def retrieve(stored: Any, index: Any) -> Value:
    """Return the part of ``stored`` at ``index``; raises NoSuchKey or TypeClash."""
    kind = type(stored)
    if kind is tuple:
        if type(index) not in (Count, int) or int(index) < 0:
            raise TypeClash(f"a vector is indexed by a count, or an integer from 0 on, not by {index!r}")
        try:
            found: Value = stored[index]
        except IndexError:
            raise NoSuchKey(f"the vector has {len(stored)} elements, none at {index}") from None
        return found
    if kind is Set:
        return index in stored
    if kind is Table:
        try:
            found = stored[index]
        except KeyError:
            raise NoSuchKey(f"the table has nothing under {index!r}") from None
        return found
    whole: Value = stored
    return whole


def _sum(stored: Any, operand: Any, sign: int) -> Value:
    kind = type(stored)
    if type(operand) is not kind:
        raise _clash("added to" if sign > 0 else "taken from", stored, operand)
    if kind is float:
        total: float = stored + sign * operand
        return total
    return _bounded(kind, int(stored) + sign * int(operand))


def _bounded(kind: type, number: int) -> Value:
    try:
        if kind is int and not -_INTEGER_MAX - 1 <= number <= _INTEGER_MAX:
            raise UnsupportedValue("")
        made: Value = kind(number)
    except UnsupportedValue:
        raise InvalidOperation(f"the result {number} is out of the bounds of its type") from None
    return made


def _bounds(make: Callable[..., T], *arguments: Any) -> T:
    """Return the result of ``make`` if nothing in it is too deep."""
    try:
        return make(*arguments)
    except UnsupportedValue as problem:
        raise InvalidOperation(f"the value would be out of bounds: {problem}") from None


def _joined(stored: Any, operand: Any) -> Value:
    if type(operand) not in (str, bytes):
        raise _clash("added to", stored, operand)
    if not entry_fits(stored, operand):
        raise InvalidOperation(f"the string would be longer than {STORE_ENTRY_BYTES_MAX:,} bytes")
    if type(operand) is str and type(stored) is str:
        return stored + operand
    left, right = (each.encode() if type(each) is str else each for each in (stored, operand))
    raw: bytes = left + right
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw


def _clash(doing: str, stored: Value, operand: Value) -> TypeClash:
    return TypeClash(f"a value of type {type_name(operand)} cannot be {doing} one of type {type_name(stored)}")
