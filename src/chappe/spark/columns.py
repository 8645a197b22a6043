"""The columns of a topic as Spark types, and which columns of a DataFrame become what of a record.

The latter is checked before a single row is written.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from pyspark.sql import types as t

from chappe.errors import UsageError

_TYPES: Final[dict[str, t.DataType]] = {
    "topic": t.StringType(),
    "partition": t.StringType(),
    "offset": t.LongType(),
    "timestamp": t.TimestampType(),
    "key": t.BinaryType(),
    "value": t.BinaryType(),
    "headers": t.ArrayType(t.StructType().add("key", t.StringType()).add("value", t.BinaryType())),
}
# Every record has them. Where Spark knows, it does not look for nulls.
_ALWAYS: Final = frozenset({"topic", "partition", "offset", "timestamp"})
WRITTEN: Final = ("value", "key", "topic", "headers", "timestamp")
# A topic that was read has them: they say where records came from, and the new ones lie elsewhere.
PASSED_OVER: Final = frozenset({"partition", "offset"})
_SORTABLE: Final = (t.NumericType, t.StringType, t.BinaryType, t.DateType, t.TimestampType, t.TimestampNTZType)
_EXAMPLES: Final = {
    "value": "string or binary, for example to_json(struct(*))",
    "key": "string or binary",
    "topic": "string",
    "headers": "array<struct<key:string,value:binary>> or map<string,binary>",
    "timestamp": "timestamp",
}


def schema_of(columns: tuple[str, ...], value: t.DataType | None = None) -> t.StructType:
    """Return the columns; ``value`` is the type of values with a schema."""
    kinds = _TYPES if value is None else {**_TYPES, "value": value}
    return t.StructType([t.StructField(name, kinds[name], name not in _ALWAYS) for name in columns])


def required(schema: t.StructType) -> frozenset[str]:
    """Return the columns without nulls for Spark; a table's catalogue may allow some where ``schema_of`` does not."""
    return frozenset(each.name for each in schema.fields if not each.nullable)


def check_schema(given: t.StructType, columns: tuple[str, ...], value: t.DataType | None = None) -> None:
    """Raise UsageError if the user gave a schema of another shape; ``value`` as for ``schema_of``."""
    wanted = schema_of(columns, value)
    if given.simpleString() != wanted.simpleString():
        raise UsageError(
            f"the columns here are {wanted.simpleString()}: leave out .schema(...) and choose with `columns`"
        )


@dataclass(frozen=True, slots=True)
class RecordColumns:
    """The indexes of the DataFrame's columns for each part of a record; None for parts that it has not.

    ``topic`` is None where an option names the topic, whatever the columns. ``order`` are the columns that each
    task's rows are sorted by.
    """

    value: int
    topic: int | None
    key: int | None
    headers: int | None
    timestamp: int | None
    order: tuple[int, ...] = ()

    @classmethod
    def find(cls, schema: t.StructType, topic: str | None, order: Sequence[str] = ()) -> RecordColumns:
        """Find them by name, upper or lower case; ``topic`` and ``order`` are what the options say. Raises UsageError:
        one is missing, has a type that cannot be written, or is of no use; the text names it.
        """
        places = _places(schema)
        if "value" not in places:
            raise UsageError(f"there is no column `value` to write: there are {', '.join(schema.fieldNames())}")
        if topic is None and "topic" not in places:
            raise UsageError("nothing says which topic to write to: give the option `topic`, or a column `topic`")
        for name, index in places.items():
            if name in WRITTEN and not (name == "topic" and topic is not None):
                _check(name, schema.fields[index])
        _refuse_others(places, order)
        return cls(
            places["value"],
            places.get("topic") if topic is None else None,
            places.get("key"),
            places.get("headers"),
            places.get("timestamp"),
            tuple(_sorted_by(name, schema, places) for name in order),
        )


def _places(schema: t.StructType) -> dict[str, int]:
    places: dict[str, int] = {}
    for index, each in enumerate(schema.fields):
        name = each.name.lower()
        if name in places:
            raise UsageError(f"there are two columns named `{name}`; drop one")
        places[name] = index
    return places


def _check(name: str, column: t.StructField) -> None:
    kind = column.dataType
    fits = {
        "value": isinstance(kind, t.StringType | t.BinaryType),
        "key": isinstance(kind, t.StringType | t.BinaryType),
        "topic": isinstance(kind, t.StringType),
        "headers": _are_headers(kind),
        "timestamp": isinstance(kind, t.TimestampType),
    }
    if not fits[name]:
        raise UsageError(
            f"column `{name}` is {kind.simpleString()}, which cannot be written; make it {_EXAMPLES[name]}"
        )


def _are_headers(kind: t.DataType) -> bool:
    if isinstance(kind, t.MapType):
        return isinstance(kind.keyType, t.StringType) and isinstance(kind.valueType, t.StringType | t.BinaryType)
    if not isinstance(kind, t.ArrayType) or not isinstance(kind.elementType, t.StructType):
        return False
    fields = kind.elementType.fields
    return (
        [each.name for each in fields] == ["key", "value"]
        and isinstance(fields[0].dataType, t.StringType)
        and isinstance(fields[1].dataType, t.StringType | t.BinaryType)
    )


def _refuse_others(places: dict[str, int], order: Sequence[str]) -> None:
    """Refuse columns that would be left out in silence: they are more likely a mistake than a wish."""
    expected = {*WRITTEN, *PASSED_OVER, *(each.lower() for each in order)}
    for name in places:
        if name not in expected:
            close = difflib.get_close_matches(name, [each for each in WRITTEN if each not in places], 1)
            hint = f"did you mean `{close[0]}`?" if close else "drop it, or put it into `value`"
            raise UsageError(f"column `{name}` has no place in a record: {hint}")


def _sorted_by(name: str, schema: t.StructType, places: dict[str, int]) -> int:
    index = places.get(name.lower())
    if index is None:
        raise UsageError(f"`orderBy` names `{name}`, and there are only {', '.join(schema.fieldNames())}")
    kind = schema.fields[index].dataType
    if not isinstance(kind, _SORTABLE):
        raise UsageError(f"`orderBy` names `{name}`, which is {kind.simpleString()} and cannot be sorted by")
    return index
