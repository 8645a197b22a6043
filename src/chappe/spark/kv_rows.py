"""Rows of batches and streams written into a data store of the mesh, by the driver.

============================ ==================================
column of Spark              value
============================ ==================================
string                       string
binary                       string
boolean                      boolean
whole number, ``decimal(n)`` integer; count above 2**63-1
float, double                real
timestamp, timestamp_ntz     timestamp; the latter is UTC
interval day to second       timespan
array                        vector
map                          table
struct                       table, by name
null                         none
============================ ==================================

A key of one column is its value, one of several a vector of them. If ``value`` is the only other column it is the
value; otherwise all others together are a table by name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DayTimeIntervalType,
    DecimalType,
    FractionalType,
    IntegralType,
    MapType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)
from pyspark.sql.utils import is_remote

from chappe.bridges.kv_form import QUERY
from chappe.data.scalars import INTEGER_MAX, INTEGER_MIN, Count
from chappe.errors import UsageError
from chappe.spark.tables import VALUE

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from chappe.api.kv.data_store import DataStore

ROWS: Final = 4096  # written at once
_SAME: Final = (StringType, BinaryType, BooleanType, IntegralType, TimestampType, DayTimeIntervalType)
_COUNT_MAX: Final = 2**64 - 1


def write_store(
    df: DataFrame,
    store: DataStore,
    key: str | Sequence[str],
    delete: str | None = None,
    *,
    expiry_s: float | None = None,
    checkpoint: str | None = None,
) -> DataStreamWriter | None:
    """Upsert rows into a store, and delete others.

    A batch is written at once; this returns when all of it is done, durably on a master that lasts. For a stream its
    writer is returned: set the trigger and start it. A batch of a stream that Spark repeats, after a failure or a
    restart, is written again if it was not wholly written before, and left out otherwise: how far a query is stands in
    the store, under a vector that begins with ``chappe/query``. Rows set values, so that repeating them does no harm.

    All rows of a batch pass through the driver's memory. Of rows with one key the last one wins.

    Args:
        df: A batch, or a stream in append or update mode.
        store: A master or a clone that the driver holds.
        key: One or several columns.
        delete: A boolean column, which is no part of the value: rows where it is true erase their key.
        expiry_s: Rows expire so long after they are written.
        checkpoint: Of a stream: where Spark keeps how far it is (``checkpointLocation``).

    Raises:
        UsageError: A column is not there, or has a type that no value has.
        StoreError: The store did not take a row; those before it may be written.
    """
    names = (key,) if isinstance(key, str) else tuple(key)
    rows = _Rows(df.schema, names, delete)
    if not df.isStreaming:
        _write(df, store, rows, expiry_s)
        return None
    if checkpoint is None:
        raise UsageError("a stream needs a `checkpoint`: the directory where Spark keeps how far it is")
    if is_remote():
        raise UsageError(
            "over Spark Connect a stream runs where the store is not: "
            "use write_table, and TopicToDataStore for the store"
        )

    def write(batch: DataFrame, number: int) -> None:
        query = batch.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
        mark = (QUERY, query or checkpoint)
        if number <= store.get(mark, -1):
            return  # it was written, and Spark does not know
        _write(batch, store, rows, expiry_s)
        store.put(mark, number)

    return df.writeStream.foreachBatch(write).option("checkpointLocation", checkpoint)


def _write(df: DataFrame, store: DataStore, rows: _Rows, expiry_s: float | None) -> None:
    source = rows.of(df)
    while chunk := list(islice(source, ROWS)):
        kept: list[tuple[Any, Any]] = []
        for name, value, gone in chunk:
            if not gone:
                kept.append((name, value))
                continue
            store.put_many(kept, expiry_s=expiry_s)
            kept = []
            store.erase(name)
        store.put_many(kept, expiry_s=expiry_s)


class _Rows:
    """Makes keys and values of rows; raises UsageError for columns that cannot be."""

    def __init__(self, schema: StructType, key: Sequence[str], delete: str | None) -> None:
        self._key = [(name, _converter(_type(schema, name))) for name in key]
        if not key:
            raise UsageError("a store needs a key: name one column or several")
        if delete is not None and not isinstance(_type(schema, delete), BooleanType):
            raise UsageError(f"column `{delete}` says which rows to erase, and is not boolean")
        self._delete = delete
        rest = [name for name in schema.fieldNames() if name not in {*key, delete}]
        self._rest = [(name, _converter(schema[name].dataType)) for name in rest]
        self._plain = rest == [VALUE]

    def of(self, df: DataFrame) -> Iterator[tuple[Any, Any, bool]]:
        """Key, value, and whether it is to be erased."""
        for batch in df.toArrow().to_batches(ROWS):
            for row in batch.to_pylist():
                key = tuple([convert(row[name]) for name, convert in self._key])
                gone = self._delete is not None and row[self._delete] is True
                yield key[0] if len(key) == 1 else key, None if gone else self._value(row), gone

    def _value(self, row: dict[str, Any]) -> Any:
        if self._plain:
            return self._rest[0][1](row[VALUE])
        return {name: convert(row[name]) for name, convert in self._rest}


def _type(schema: StructType, name: str) -> DataType:
    if name not in schema.fieldNames():
        raise UsageError(f"there is no column `{name}`: there are {', '.join(schema.fieldNames())}")
    return schema[name].dataType


def _converter(kind: DataType) -> Callable[[Any], Any]:
    """What makes of an object, as Arrow hands it out for a type of Spark, one that a store takes."""
    match kind:
        case ArrayType():
            element = _converter(kind.elementType)
            return lambda found: found if found is None else tuple([element(each) for each in found])
        case MapType():
            key, value = _converter(kind.keyType), _converter(kind.valueType)
            return lambda found: found if found is None else {key(name): value(each) for name, each in found}
        case StructType():
            fields = [(field.name, _converter(field.dataType)) for field in kind.fields]
            return lambda found: found if found is None else {name: convert(found[name]) for name, convert in fields}
        case DecimalType() if kind.scale == 0:
            return _whole
        case TimestampNTZType():
            return lambda found: found if found is None else _in_utc(found)
        case FractionalType() if not isinstance(kind, DecimalType):
            return _same
        case _ if isinstance(kind, _SAME):
            return _same
        case _:
            raise UsageError(f"no value of a store is a {kind.simpleString()}: cast it, for example to string")


def _same(found: Any) -> Any:
    return found


def _in_utc(found: datetime) -> datetime:
    return found.replace(tzinfo=UTC)


def _whole(found: Decimal | None) -> int | None:
    if found is None:
        return None
    number = int(found)
    if INTEGER_MIN <= number <= INTEGER_MAX:
        return number
    if 0 <= number <= _COUNT_MAX:
        return Count(number)
    raise UsageError(f"{number} is larger than the numbers of a store: cast it to string")
