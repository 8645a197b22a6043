"""Values to and from text for people.

``nil``; ``T`` and ``F``; plain decimals; reals with six decimals; strings and enum values as they are, unquoted;
addresses; ``addr/len``; ``80/tcp``, ``53/udp``, ``8/icmp``, ``0/?``; timestamps and timespans as ``NUMBERns``; a set
``{a, b}``, a table ``{k -> v, k -> v}``, a vector ``(a, b)``.

Text does not say what type it was. ``from_text`` with a type's name reads exactly that type; without one it takes the
first that fits of: none, boolean, integer (count above 2**63-1), real, timespan, port, subnet, address, set, table,
vector (text that begins with a bracket must be one of the last three), string. So a count comes back as an integer, a
timestamp as a timespan, and a string that looks like something else as that.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final, TypeAlias

from chappe.data.convert import to_value
from chappe.data.order import TYPE_NAMES, arrange, check_depth
from chappe.data.quirks import REAL_FORMAT
from chappe.data.scalars import INTEGER_MAX, PROTOCOLS, Address, Count, EnumValue, Port, Subnet, Timespan, Timestamp
from chappe.data.values import EMPTY_SET, EMPTY_TABLE, Set, Table, Value, type_name
from chappe.defaults import VALUE_BYTES_MAX, VALUE_DEPTH_MAX, VALUE_ELEMENTS_MAX
from chappe.errors import InvalidData, UnsupportedValue

UNITS_NS: Final = {
    "ns": 1, "us": 1_000, "ms": 1_000_000, "s": 1_000_000_000, "min": 60_000_000_000, "m": 60_000_000_000,
    "h": 3_600_000_000_000, "d": 86_400_000_000_000,
}  # fmt: skip

_DIGITS_MAX: Final = 20  # of a 64-bit number; longer ones are refused before they are converted
_INTEGER: Final = re.compile(r"[+-]?[0-9]+", re.ASCII)
_TIMESPAN: Final = re.compile(r"([+-]?[0-9]+)(ns|us|ms|s|min|m|h|d)", re.ASCII)
_NO_TIMESPAN: Final = f"is not a duration such as 5ns or 90s; units are {', '.join(UNITS_NS)}"
_ADDRESS: Final = re.compile(r"[0-9a-fA-F]*[:.][0-9a-fA-F:.]+", re.ASCII)
_WORD: Final = re.compile(r"(?:(?!, | -> )[^(){}])*", re.DOTALL)  # a scalar in a container


# -- writing --------------------------------------------------------------------------------------


def to_text(value: object) -> str:
    """The text of a value, or of what ``to_value`` makes one of; bytes that are not UTF-8 as ``surrogateescape``."""
    return _text(value, 0)


def _text(value: object, depth: int) -> str:
    make = _TEXTS.get(type(value))
    if make is not None:
        return make(value)
    if type(value) is tuple:
        return f"({_join(value, depth)})"
    if type(value) is Set:
        return f"{{{_join(value.members, depth)}}}"
    if type(value) is Table:
        check_depth(depth)
        return f"{{{', '.join([f'{_text(k, depth + 1)} -> {_text(v, depth + 1)}' for k, v in value.pairs()])}}}"
    return _text(to_value(value, depth), depth)


def _join(values: tuple[object, ...], depth: int) -> str:
    check_depth(depth)
    return ", ".join([_text(each, depth + 1) for each in values])


_TEXTS: Final[dict[type, Callable[[Any], str]]] = {
    type(None): lambda value: "nil",
    bool: lambda value: "T" if value else "F",
    **dict.fromkeys((int, Count, Address, Subnet, Port, Timestamp, Timespan, EnumValue), str),
    float: lambda value: REAL_FORMAT % value,
    str: lambda value: value,
    bytes: lambda value: value.decode("utf-8", "surrogateescape"),
}


# -- reading --------------------------------------------------------------------------------------


def from_text(text: str, kind: str | None = None) -> Value:
    """The value that ``text`` shows, of the type named ``kind`` (a name of ``order.TYPE_NAMES``) or else guessed.

    Raises InvalidData for malformed text, numbers out of range, and beyond the bounds of ``chappe.defaults``; and
    UnsupportedValue for a type that does not exist.
    """
    if len(text) > VALUE_BYTES_MAX:
        raise InvalidData(f"a text of {len(text):,} characters is too long: at most {VALUE_BYTES_MAX:,} are possible")
    if kind is not None and kind not in TYPE_NAMES:
        raise UnsupportedValue(f"there is no type {kind!r}, only {', '.join(TYPE_NAMES)}")
    if kind in _PARSERS:
        return _in_bounds(_PARSERS[kind], text)
    if kind in _FORMS:
        return _scalar(text, kind)
    value = _TextReader(text).whole() if text[:1] in ("(", "{") else _guess(text)
    if kind == "table" and value is EMPTY_SET:
        return EMPTY_TABLE
    if kind is not None and type_name(value) != kind:
        raise InvalidData(f"{_shown(text)} is not a value of type {kind}")
    return value


def _in_bounds(make: Callable[[Any], Value], argument: object) -> Value:
    try:
        return make(argument)
    except UnsupportedValue as problem:
        raise InvalidData(str(problem)) from None


def _whole(digits: str) -> int:
    if len(digits) > _DIGITS_MAX + 1:
        raise InvalidData(f"{_shown(digits)} is outside of 64 bits")
    return int(digits)


def _nanoseconds(found: re.Match[str]) -> int:
    return _whole(found[1]) * UNITS_NS[found[2]]


def _string(text: str) -> Value:
    """A string, of bytes where the text holds what ``surrogateescape`` makes of them."""
    try:
        return to_value(text.encode("utf-8", "surrogateescape"))
    except UnicodeEncodeError:
        raise InvalidData(f"{_shown(text)} holds half of a surrogate pair") from None


def _enum_value(text: str) -> Value:
    _string(text)
    return EnumValue(text)


# How the text of a type looks, what is said of any other, and the value of what matches. Of those up to the subnet that
# ``_guess`` tries the first that matches counts.
_Form: TypeAlias = tuple[re.Pattern[str], str, Callable[[re.Match[str]], Value]]
_FORMS: Final[dict[str | None, _Form]] = {
    "none": (re.compile("nil"), "is not nil", lambda found: None),
    "boolean": (re.compile("[TF]"), "is neither T nor F", lambda found: found[0] == "T"),
    "integer": (_INTEGER, "is not a whole number", lambda found: to_value(_whole(found[0]))),
    "real": (
        re.compile(r"[+-]?(?:[0-9]+\.[0-9]*(?:[eE][+-]?[0-9]+)?|inf|nan)", re.ASCII),
        "is not a real number such as 1.5, inf or nan",
        lambda found: float(found[0]),
    ),
    "timespan": (_TIMESPAN, _NO_TIMESPAN, lambda found: Timespan(_nanoseconds(found))),
    "port": (
        re.compile(r"([0-9]{1,5})/(tcp|udp|icmp|\?)", re.ASCII),
        "is not a port such as 80/tcp, 53/udp, 8/icmp or 0/?",
        lambda found: Port(int(found[1]), PROTOCOLS[0] if found[2] == "?" else found[2]),
    ),
    "subnet": (
        re.compile(r"([0-9a-fA-F:.]+)/([0-9]{1,3})", re.ASCII),
        "is not a subnet such as 10.0.0.0/8",
        lambda found: Subnet(Address(found[1]), int(found[2])),
    ),
    "count": (_INTEGER, "is not a whole number", lambda found: Count(_whole(found[0]))),
    "timestamp": (_TIMESPAN, _NO_TIMESPAN, lambda found: Timestamp(_nanoseconds(found))),
}
_GUESSED: Final = tuple(_FORMS)[: tuple(_FORMS).index("subnet") + 1]
# Types whose texts look like anything.
_PARSERS: Final[dict[str | None, Callable[[str], Value]]] = {
    "string": _string,
    "address": Address,
    "enum-value": _enum_value,
}


def _scalar(text: str, kind: str | None) -> Value:
    pattern, complaint, make = _FORMS[kind]
    found = pattern.fullmatch(text)
    if found is None:
        raise InvalidData(f"{_shown(text)} {complaint}")
    return _in_bounds(make, found)


def _guess(text: str) -> Value:
    """The scalar that a text looks like; a string if it looks like no other."""
    for kind in _GUESSED:
        if _FORMS[kind][0].fullmatch(text):
            large = kind == "integer" and _whole(text) > INTEGER_MAX
            return _scalar(text, "count" if large else kind)
    if _ADDRESS.fullmatch(text):
        try:
            return Address(text)
        except UnsupportedValue:
            return text
    return _in_bounds(_string, text)


class _TextReader:
    def __init__(self, text: str) -> None:
        self._text = text
        self._pos = 0
        self._elements = 0

    def whole(self) -> Value:
        value = self._value(0)
        if self._pos != len(self._text):
            raise InvalidData(f"{_shown(self._text[self._pos :])} follows the end of a container")
        return value

    def _value(self, depth: int) -> Value:
        self._elements += 1
        if self._elements > VALUE_ELEMENTS_MAX:
            raise InvalidData(f"a value has more than {VALUE_ELEMENTS_MAX:,} elements")
        opening = self._text[self._pos : self._pos + 1]
        if opening not in ("(", "{"):
            found = _WORD.match(self._text, self._pos)
            assert found is not None  # it matches nothing, too
            self._pos = found.end()
            return _guess(found.group())
        if depth >= VALUE_DEPTH_MAX:
            raise InvalidData(f"a value is nested deeper than {VALUE_DEPTH_MAX} containers")
        self._pos += 1
        return self._vector(depth + 1) if opening == "(" else self._braces(depth + 1)

    def _vector(self, depth: int) -> Value:
        items: list[Value] = []
        while not self._ends(")", bool(items)):
            items.append(self._value(depth))
        return tuple(items)

    def _braces(self, depth: int) -> Value:
        keys: list[Value] = []
        values: list[Value] = []
        while not self._ends("}", bool(keys)):
            keys.append(self._value(depth))
            if self._take(" -> "):
                values.append(self._value(depth))
        if values and len(values) != len(keys):
            raise InvalidData(f"{_shown(self._text)} mixes a set and a table")
        if len(arrange(keys)) != len(keys):
            raise InvalidData(f"{_shown(self._text)} has the same member or key twice")
        if values:
            return Table(zip(keys, values, strict=True))
        return Set(keys) if keys else EMPTY_SET

    def _ends(self, closing: str, begun: bool) -> bool:
        """Return True at the end of the container; otherwise the next element comes."""
        if self._take(closing):
            return True
        if self._pos >= len(self._text) or (begun and not self._take(", ")):
            raise InvalidData(f"{_shown(self._text)} lacks a {closing} or a comma and space at {self._pos}")
        return False

    def _take(self, what: str) -> bool:
        if not self._text.startswith(what, self._pos):
            return False
        self._pos += len(what)
        return True


def _shown(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:60] + "...")
