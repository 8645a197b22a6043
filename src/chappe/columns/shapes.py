"""The shape of values, which says what type of Arrow they become; and values into columns, one after the other.

============ ==========================================================================================================
value        column
============ ==========================================================================================================
none         null in any column; a column of nothing else is of type null
boolean      bool
count        uint64
integer      int64
real         double
string       string; bytes that are not UTF-8 are ``\\xNN``, as Zeek prints them
address      string
subnet       string, as ``10.0.0.0/8``
port         struct<number: uint16, protocol: string>
timestamp    timestamp[ns, UTC]
timespan     duration[ns]
enum value   string
set          list, its members in order; of strings, as text for people, where the members have different types
table        map, its keys in order; keys or values of different types, and keys that are none, are text for people
vector       list if its elements have one type; else, as Zeek's records, struct<_1, _2, ...> by position, which up to
             ``FIELDS_MAX`` elements can be; beyond that list<string> of text for people
============ ==========================================================================================================

What is said of a vector is said of all vectors at one place of all events in a batch: a struct if all are of one length
and elements differ, and else a list. Nones fit into every type.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache, reduce
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from chappe.arrow import pyarrow
from chappe.data import order
from chappe.data.order import SET, TABLE, VECTOR
from chappe.data.text import to_text
from chappe.data.values import TAGS, Set, Table, Value
from chappe.defaults import COLUMNS_MAX

if TYPE_CHECKING:
    import pyarrow as pa

TEXT: Final = 100  # beside the tags of values: of types that have none in common
LIST: Final = 101  # vectors of different lengths, or that are too long for a struct
FIELDS_MAX: Final = COLUMNS_MAX


class Apart(Exception):
    """Two values have no column in common."""


class Shape(NamedTuple):
    """A tag, and what is inside: of a vector the shape of each element, of other containers those of all of them."""

    tag: int
    inner: tuple[Shape | None, ...] = ()  # None: nothing is known, as of a none


MIXED: Final = Shape(TEXT)
_SCALARS: Final = tuple([Shape(tag) for tag in range(SET)])


def shape_of(value: Value) -> Shape | None:
    tag = TAGS[type(value)]
    if isinstance(value, Set):
        return Shape(SET, (_mixed(map(shape_of, value.members)),))
    if isinstance(value, Table):
        keys, values = [shape_of(key) for key, _ in value.pairs()], [shape_of(each) for _, each in value.pairs()]
        return Shape(TABLE, (MIXED if None in keys else _mixed(keys), _mixed(values)))
    if tag == VECTOR:
        assert isinstance(value, tuple)
        found = tuple([shape_of(each) for each in value])
        return Shape(VECTOR, found) if len(found) <= FIELDS_MAX else Shape(LIST, (_mixed(found),))
    return _SCALARS[tag] if tag else None


def join(a: Shape | None, b: Shape | None) -> Shape | None:
    """Return the shape of a column that both fit into; raises Apart if they do not fit together."""
    if a is None or b is None or a == b:
        return b if a is None else a
    if a.tag == b.tag and len(a.inner) == len(b.inner) and a.inner:
        return Shape(a.tag, tuple([join(one, other) for one, other in zip(a.inner, b.inner, strict=True)]))
    if {a.tag, b.tag} <= {VECTOR, LIST}:
        return Shape(LIST, (join(common(a.inner), common(b.inner)),))
    raise Apart


def common(inner: Iterable[Shape | None]) -> Shape | None:
    return reduce(join, inner, None)


def _mixed(inner: Iterable[Shape | None]) -> Shape | None:
    try:
        return common(inner)
    except Apart:
        return MIXED


def listed(shape: Shape) -> Shape | type[Apart] | None:
    """Return the shape of the elements, of a vector that is a list; ``Apart`` if it is a struct."""
    try:
        return common(shape.inner)
    except Apart:
        return Apart


@cache
def scalar_types() -> dict[int, pa.DataType]:
    pa = pyarrow()
    text = pa.string()
    return {
        order.BOOLEAN: pa.bool_(),
        order.COUNT: pa.uint64(),
        order.INTEGER: pa.int64(),
        order.REAL: pa.float64(),
        **dict.fromkeys((order.STRING, order.ADDRESS, order.SUBNET, order.ENUM_VALUE, TEXT), text),
        order.PORT: pa.struct([("number", pa.uint16()), ("protocol", text)]),
        order.TIMESTAMP: pa.timestamp("ns", "UTC"),
        order.TIMESPAN: pa.duration("ns"),
    }


def arrow_type(shape: Shape | None) -> pa.DataType:
    pa = pyarrow()
    if shape is None:
        return pa.null()
    found = scalar_types().get(shape.tag)
    if found is not None:
        return found
    if shape.tag == TABLE:
        return map_type(*map(arrow_type, shape.inner))
    element = listed(shape)
    if isinstance(element, type):
        return struct_type([arrow_type(each) for each in shape.inner])
    return list_type(arrow_type(element))


def list_type(element: pa.DataType) -> pa.DataType:
    pa = pyarrow()
    return pa.list_(pa.field("element", element))


def map_type(key: pa.DataType, value: pa.DataType) -> pa.DataType:
    """Return a map's type; keys of which nothing is known are text."""
    pa = pyarrow()
    return pa.map_(pa.string() if pa.types.is_null(key) else key, value)


def struct_type(fields: Iterable[pa.DataType]) -> pa.DataType:
    pa = pyarrow()
    return pa.struct([(f"_{number}", each) for number, each in enumerate(fields, 1)])


def column(shape: Shape | None, values: Iterable[Value]) -> pa.Array:
    convert = _converter(shape)
    return pyarrow().array([convert(each) for each in values], arrow_type(shape))


def as_text(value: Value) -> str:
    """Return a string as it is in a column, any other value as text for people."""
    if type(value) is bytes:
        return value.decode("utf-8", "backslashreplace")
    return to_text(value).encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def _converter(shape: Shape | None) -> Callable[[Any], Any]:
    if shape is None:
        return lambda value: None
    make = _OBJECTS.get(shape.tag)
    if shape.tag == TEXT:
        return as_text  # of a member, which is never missing: nones among others are text too
    if make is None:
        make = _of_container(shape)
    return lambda value: None if value is None else make(value)


def _of_container(shape: Shape) -> Callable[[Any], Any]:
    if shape.tag == TABLE:
        key, item = map(_converter, shape.inner)
        return lambda table: [(key(name), item(each)) for name, each in table.pairs()]
    element = listed(shape)
    if isinstance(element, type):
        fields = [_converter(each) for each in shape.inner]
        return lambda vector: tuple([convert(each) for convert, each in zip(fields, vector, strict=True)])
    convert = _converter(element)
    return lambda items: [convert(each) for each in (items.members if isinstance(items, Set) else items)]


_OBJECTS: Final[dict[int, Callable[[Any], Any]]] = {
    order.BOOLEAN: bool,
    **dict.fromkeys((order.COUNT, order.INTEGER, order.TIMESTAMP, order.TIMESPAN), int),
    order.REAL: float,
    **dict.fromkeys((order.STRING, order.ADDRESS, order.SUBNET, order.ENUM_VALUE), as_text),
    order.PORT: tuple,
}
