"""Values to and from JSON: the original's JSON format, version 1.

A value is ``{"@data-type": T, "data": D}`` without spaces, T being a name of ``order.TYPE_NAMES`` and D::

    none        {}                             timestamp   "YYYY-MM-DDThh:mm:ss.mmm" in UTC
    boolean     true or false                  timespan    "NUMBERunit": the largest of s, ms, us, ns that is exact
    count       a JSON integer                 set         an array of values, in order
    integer     a JSON integer                 vector      an array of values
    real        a number with six decimals     table       an array of {"key": ..., "value": ...}, in order

Strings, enum values, addresses, subnets and ports are JSON strings, the last three in their text form.
``chappe.data.quirks`` lists where this loses precision or is not legal JSON; ``legal=True`` avoids all of it, and the
original reads that too.

``loads`` reads both. It also takes an integer for a real, which the original refuses, because JavaScript writes 1.0 as
1; times with up to nine decimals and a time zone; and timespans in min (or m), h and d.

``loads_plain`` reads JSON as any program writes it: ``null`` is none, a whole number an integer (a count above
2**63-1), any other number a real, an array a vector, an object a table by strings. An object with ``@data-type`` is the
typed value that it says, at any depth; what it holds may be plain again. ``dumps_plain`` writes the shortest of that.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Final

from chappe.data import scalars
from chappe.data.convert import to_value
from chappe.data.order import TYPE_NAMES, arrange, check_depth
from chappe.data.quirks import ESCAPES, REAL_FORMAT, json_time, repair
from chappe.data.scalars import Address, Count, EnumValue, Port, Subnet, Timespan, Timestamp
from chappe.data.text import UNITS_NS, from_text
from chappe.data.values import TAGS, Set, Table, Value
from chappe.defaults import VALUE_BYTES_MAX, VALUE_DEPTH_MAX, VALUE_ELEMENTS_MAX
from chappe.errors import ErrorCode, InvalidData, UnsupportedValue

MESSAGE_TYPE: Final = "data-message"
_TYPE: Final = "@data-type"
_TIME: Final = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(?:Z|([+-])(\d\d)(?::(\d\d))?)?", re.ASCII)
_ESCAPED: Final = re.compile(r'[\\"\b\f\n\r\t\v]')


# -- writing --------------------------------------------------------------------------------------


def dumps(value: object, *, legal: bool = False) -> str:
    """The JSON of a value, or of what ``to_value`` makes one of: character for character the original's.

    Bytes that are not UTF-8 are in it as ``surrogateescape``. ``legal`` writes JSON that every reader understands,
    reals and times in full precision. Raises UnsupportedValue for anything else; and with ``legal`` for what JSON
    cannot express: NaN, infinities, strings that are not UTF-8.
    """
    return f"{{{_typed(value, legal)}}}"


def dumps_message(topic: str, value: object, *, legal: bool = False) -> str:
    """The JSON of a data message: a value under a topic."""
    return f'{{"type":"{MESSAGE_TYPE}","topic":{_quoted(topic, legal)},{_typed(value, legal)}}}'


def dumps_plain(value: object) -> str:
    """The JSON that ``loads_plain`` reads as this value, typed only where plain JSON has no such type.

    It is one line of what can be printed; of the numbers only NaN and infinities are not legal JSON.
    """
    return _plain_text(to_value(value), 0)


def _plain_text(value: Any, depth: int) -> str:
    kind = type(value)  # addresses, subnets and ports are bytes and tuples to isinstance
    if value is None or kind is bool or kind is int or (kind is float and math.isfinite(value)):
        return json.dumps(value)
    if kind is str or kind is bytes:
        return _plain_string(value if kind is str else value.decode("utf-8", "surrogateescape"))
    if kind is tuple or kind is Set:
        check_depth(depth)
        items = ", ".join([_plain_text(each, depth + 1) for each in value])
        return f"[{items}]" if kind is tuple else f'{{"{_TYPE}": "set", "data": [{items}]}}'
    if kind is Table:
        check_depth(depth)
        pairs = [(key, _plain_text(each, depth + 1)) for key, each in value.pairs()]
        if all(type(key) is str and key != _TYPE for key, _ in pairs):
            return f"{{{', '.join([f'{_plain_string(key)}: {text}' for key, text in pairs])}}}"
        entries = [f'{{"key": {_plain_text(key, depth + 1)}, "value": {text}}}' for key, text in pairs]
        return f'{{"{_TYPE}": "table", "data": [{", ".join(entries)}]}}'
    if kind is Count or kind is float:
        data = str(value)
    else:
        data = _plain_string(scalar_text(value))
    return f'{{"{_TYPE}": "{_NAMES[kind]}", "data": {data}}}'


def _plain_string(text: str) -> str:
    quoted = json.dumps(text, ensure_ascii=False)
    if quoted.isprintable():
        return quoted
    return "".join([each if each.isprintable() else json.dumps(each)[1:-1] for each in quoted])


def scalar_text(value: Value) -> str:
    """Return the data of a scalar's JSON without quotes, times in full precision."""
    if isinstance(value, Timestamp):
        return _exact_time(value)
    return _duration(int(value)) if isinstance(value, Timespan) else str(value)


def _typed(value: Any, legal: bool, depth: int = 0) -> str:
    """The two members, type and data, without braces."""
    if type(value) not in _NAMES:
        value = to_value(value, depth)
    kind = type(value)
    write = _WRITERS.get(kind)
    if write is not None:
        data = write(value, legal)
    else:
        check_depth(depth)
        depth += 1
        if kind is Table:
            items = [
                f'{{"key":{{{_typed(key, legal, depth)}}},"value":{{{_typed(each, legal, depth)}}}}}'
                for key, each in value.pairs()
            ]
        else:
            items = [f"{{{_typed(each, legal, depth)}}}" for each in value]
        data = f"[{','.join(items)}]"
    return f'"{_TYPE}":"{_NAMES[kind]}","data":{data}'


def _quoted(text: str, legal: bool) -> str:
    if not legal:
        return f'"{_ESCAPED.sub(lambda found: ESCAPES[found.group()], text)}"'
    try:
        text.encode()
    except UnicodeEncodeError:
        raise UnsupportedValue("a string that is not UTF-8 cannot be written as legal JSON") from None
    return json.dumps(text, ensure_ascii=False)


def _real_text(value: float, legal: bool) -> str:
    if not legal:
        return REAL_FORMAT % value
    if not math.isfinite(value):
        raise UnsupportedValue(f"{value} cannot be written as legal JSON")
    return repr(value)


def _exact_time(time: Timestamp) -> str:
    seconds, ns = divmod(int(time), UNITS_NS["s"])
    return f"{scalars.EPOCH + timedelta(seconds=seconds):%Y-%m-%dT%H:%M:%S}.{ns:09d}"


def _duration(ns: int) -> str:
    for unit in ("s", "ms", "us"):
        if ns % UNITS_NS[unit] == 0:
            return f"{ns // UNITS_NS[unit]}{unit}"
    return f"{ns}ns"


_NAMES: Final[dict[type, str]] = {kind: TYPE_NAMES[tag] for kind, tag in TAGS.items()}
_WRITERS: Final[dict[type, Callable[[Any, bool], str]]] = {
    type(None): lambda value, legal: "{}",
    bool: lambda value, legal: "true" if value else "false",
    Count: lambda value, legal: str(value),
    int: lambda value, legal: str(to_value(value)),  # which refuses what is outside of 64 bits
    float: _real_text,
    str: _quoted,
    bytes: lambda value, legal: _quoted(value.decode("utf-8", "surrogateescape"), legal),
    **dict.fromkeys((Address, Subnet, Port), lambda value, legal: f'"{value}"'),
    Timestamp: lambda value, legal: f'"{_exact_time(value) if legal else json_time(value)}"',
    Timespan: lambda value, legal: f'"{_duration(int(value))}"',
    EnumValue: lambda value, legal: _quoted(str(value), legal),
}


# -- reading --------------------------------------------------------------------------------------


def loads(text: str | bytes) -> Value:
    """The value that a JSON text is; raises InvalidData."""
    return _value(_parse(text), 0, _Budget())


def loads_plain(text: str | bytes) -> Value:
    """The value that any JSON is, typed or not; raises InvalidData."""
    return _value(_parse(text, _entries_once), 0, _Budget(plain=True))


def loads_message(text: str | bytes) -> tuple[str, Value]:
    """Topic and value of a data message; raises InvalidData."""
    found = _parse(text)
    if not isinstance(found, dict) or found.get("type") != MESSAGE_TYPE:
        raise InvalidData(f'a message needs "type":"{MESSAGE_TYPE}"')
    topic = found.get("topic")
    if not isinstance(topic, str) or not topic:
        raise InvalidData('a message needs a "topic" that is not empty')
    return topic, _value(found, 0, _Budget())


class _Budget:
    """Bounds the elements of one value that are still allowed, and says whether it may be plain JSON."""

    def __init__(self, *, plain: bool = False) -> None:
        self.plain = plain
        self._left = VALUE_ELEMENTS_MAX

    def enter(self, depth: int, count: int) -> None:
        """Spend the elements of a container that lies in ``depth`` others; raises InvalidData."""
        if depth >= VALUE_DEPTH_MAX:
            raise InvalidData(f"a value is nested deeper than {VALUE_DEPTH_MAX} containers")
        self._left -= count
        if self._left < 0:
            raise InvalidData(f"a value has more than {VALUE_ELEMENTS_MAX:,} elements")


def _parse(text: str | bytes, entries: Callable[[list[tuple[str, Any]]], Any] | None = None) -> Any:
    if len(text) > VALUE_BYTES_MAX:
        raise InvalidData(f"a JSON text of {len(text):,} bytes is too long: at most {VALUE_BYTES_MAX:,} are possible")
    if isinstance(text, bytes):
        text = text.decode("utf-8", "surrogateescape")
    try:
        try:
            return json.loads(text, strict=False, object_pairs_hook=entries)
        except json.JSONDecodeError:
            return json.loads(repair(text), strict=False, object_pairs_hook=entries)
    except json.JSONDecodeError as problem:
        raise InvalidData(f"no JSON: {problem}").coded(ErrorCode.INVALID_JSON) from None
    except (ValueError, RecursionError):
        raise InvalidData("no JSON for a value: a number too long, or nested too deep") from None


def _entries_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise InvalidData("an object has a key twice")
    return found


def _value(found: Any, depth: int, budget: _Budget) -> Value:
    if budget.plain and not (isinstance(found, dict) and _TYPE in found):
        return _plain(found, depth, budget)
    if not isinstance(found, dict) or not isinstance(found.get(_TYPE), str):
        raise InvalidData(f'a value is an object with "{_TYPE}" and "data", not {_shown(found)}')
    kind, data = found[_TYPE], found.get("data")
    if kind in ("vector", "set", "table"):
        return _container(kind, data, depth, budget)
    read = _READERS.get(kind)
    if read is None:
        raise InvalidData(f"the type {_shown(kind)} is unknown")
    accepts, make = read
    if type(data) not in accepts:
        raise InvalidData(f"{_shown(data)} is not a value of type {kind}")
    try:
        return make(data)
    except UnsupportedValue as problem:
        raise InvalidData(str(problem)) from None


def _plain(found: Any, depth: int, budget: _Budget) -> Value:
    """The value of JSON that does not say its type."""
    if isinstance(found, dict):
        budget.enter(depth, 2 * len(found))
        return Table([(from_text(key, "string"), _value(each, depth + 1, budget)) for key, each in found.items()])
    if isinstance(found, list):
        return _container("vector", found, depth, budget)
    if isinstance(found, str):
        return from_text(found, "string")
    if isinstance(found, float) and not math.isfinite(found):
        raise InvalidData(f'JSON has no number {found}; as a real it is {{"{_TYPE}":"real","data":{found}}}')
    if type(found) is int:
        if not scalars.INTEGER_MIN <= found <= scalars.COUNT_MAX:
            raise InvalidData(f"{_shown(found)} is outside of 64 bits")
        return Count(found) if found > scalars.INTEGER_MAX else found
    plain: Value = found  # none, a boolean, a real
    return plain


def _container(kind: str, data: Any, depth: int, budget: _Budget) -> Value:
    if not isinstance(data, list):
        raise InvalidData(f"{_shown(data)} is not a value of type {kind}: it needs an array")
    budget.enter(depth, len(data) * (2 if kind == "table" else 1))
    if kind == "table":
        return _table(data, depth + 1, budget)
    items = [_value(each, depth + 1, budget) for each in data]
    if kind == "vector":
        return tuple(items)
    members = arrange(items)
    if len(members) != len(items):
        raise InvalidData("a set has a member twice")
    return Set.of_arranged(members)


def _table(data: list[Any], depth: int, budget: _Budget) -> Value:
    pairs = []
    for entry in data:
        if not isinstance(entry, dict) or (budget.plain and not entry.keys() >= {"key", "value"}):
            raise InvalidData(f'an entry of a table is an object with "key" and "value", not {_shown(entry)}')
        pairs.append((_value(entry.get("key"), depth, budget), _value(entry.get("value"), depth, budget)))
    table = Table(pairs)
    if len(table) != len(pairs):
        raise InvalidData("a table has a key twice")
    return table


def _time(text: str) -> Timestamp:
    found = _TIME.fullmatch(text)
    try:
        if found is None:
            raise ValueError
        moment = datetime.fromisoformat(found[1]).replace(tzinfo=UTC)
    except ValueError:
        raise InvalidData(f"{_shown(text)} is not a time such as 2020-01-01T00:00:00.000") from None
    seconds = scalars.timedelta_ns(moment - scalars.EPOCH) // UNITS_NS["s"]
    if found[3]:
        offset = int(found[4]) * 3600 + int(found[5] or 0) * 60
        seconds += offset if found[3] == "-" else -offset
    return Timestamp(seconds * UNITS_NS["s"] + int((found[2] or "").ljust(9, "0")))


def _real(number: int | float) -> Value:  # "float" alone would be compiled to one on the way in, without its digits
    if type(number) is int and (abs(number) > 1 << 1023 or int(float(number)) != number):
        raise InvalidData(f"{_shown(number)} is not a real: it would lose digits")
    return float(number)


# What JSON type each accepts (never a bool for a number), and how it is read.
_READERS: Final[dict[str, tuple[tuple[type, ...], Callable[[Any], Value]]]] = {
    "none": ((dict, type(None)), lambda data: None),
    "boolean": ((bool,), lambda data: data),
    "count": ((int,), Count),
    "integer": ((int,), to_value),
    "real": ((float, int), _real),
    "timestamp": ((str,), _time),
    **{
        kind: ((str,), partial(from_text, kind=kind))
        for kind in ("string", "address", "subnet", "port", "timespan", "enum-value")
    },
}


def _shown(found: object) -> str:
    text = repr(found)
    return text if len(text) <= 60 else text[:60] + "..."
