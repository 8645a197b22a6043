"""The columns of a topic as Spark types."""

from __future__ import annotations

from typing import Final

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from chappe.errors import UsageError

_TYPES: Final[dict[str, DataType]] = {
    "topic": StringType(),
    "partition": StringType(),
    "offset": LongType(),
    "timestamp": TimestampType(),
    "key": BinaryType(),
    "value": BinaryType(),
    "headers": ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())])),
}


def schema_of(columns: tuple[str, ...]) -> StructType:
    """The schema of a read with these columns."""
    return StructType([StructField(name, _TYPES[name]) for name in columns])


def check_schema(given: StructType, columns: tuple[str, ...]) -> None:
    """Raises UsageError if the user gave a schema of another shape."""
    wanted = schema_of(columns)
    if given.simpleString() != wanted.simpleString():
        raise UsageError(
            f"the columns here are {wanted.simpleString()}: leave out .schema(...) and choose with `columns`"
        )
