"""Data stores of the mesh as DataFrames: what they hold now, what their topics hold, and rows written into them.

Stores are read and written by the driver, with the master or clone that it holds; a store is in its memory already.
``chappe.spark.event_types`` has the table of types. That of the way back is this; null is none:

============================ ==================================
column of Spark              value
============================ ==================================
string, binary               string
boolean                      boolean
whole number, ``decimal(n)`` integer; count above 2**63-1
float, double                real
timestamp, timestamp_ntz     timestamp; the latter is UTC
interval day to second       timespan
array                        vector
map                          table
struct                       table, by name
============================ ==================================

A key of one column is its value, one of several a vector of them. If ``value`` is the only other column it is the
value; otherwise all others together are a table by name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC
from decimal import Decimal
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql import functions as f
from pyspark.sql import types as t
from pyspark.sql.utils import is_remote

from chappe.api.kv.map_store import MapStore, as_store
from chappe.bridges.kv_form import EXPIRES, QUERY, VERSION, StoreEntry, entry_of, is_mark
from chappe.data.scalars import COUNT_MAX, INTEGER_MAX, INTEGER_MIN, Count, Timestamp
from chappe.data.text import to_text
from chappe.data.values import Value
from chappe.errors import InvalidData, UsageError
from chappe.spark.decode import CORRUPT, SAMPLE
from chappe.spark.event_types import Unfit, inferred, positional
from chappe.spark.tables import KEY, VALUE, latest

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from chappe.api.kv.data_store import DataStore
    from chappe.api.kv.shared_map import SharedMap


ROWS: Final = 10_000  # in one Arrow batch
HEADERS: Final = "headers"
_EXTRAS: Final = (t.StructField("expiry", t.TimestampType()), t.StructField("version", t.LongType()))
WRITTEN_ROWS: Final = 4096  # written at once
_SAME: Final = (
    t.StringType | t.BinaryType | t.BooleanType | t.IntegralType | t.FloatType | t.DoubleType | t.TimestampType
    | t.DayTimeIntervalType
)  # fmt: skip


def read_store(
    spark: SparkSession, store: DataStore | SharedMap[Any], schema: str | t.StructType | None = None
) -> DataFrame:
    """Read the entries of a store now: the columns key, value, expiry and version.

    ``expiry`` is when an entry expires; null if it does not, or if nobody but the master knows. ``version`` is the
    number of the latest change of the entry in this copy of the store: it rises, and means nothing in another copy.

    Args:
        store: A master or a clone that the driver holds, or a shared map: its keys are strings, and its values strings
            or, of a map of anything but bytes and str, what the JSON is.
        schema: The types of key and value, as text such as ``key string, value struct<score: int>`` or a type of Spark.
            None: types that fit all entries.

    Raises:
        UsageError: The schema is malformed, or an entry does not fit.
        StaleData: A clone was without its master for too long.
    """
    held = as_store(store)
    found = [each.typed for each in held.snapshot() if not is_mark(each.key)]
    entries = [StoreEntry(each.key, each.value, False, each.expires_ns, each.version) for each in found]
    wanted = _given(schema) if schema is not None else _fitting(entries)
    arrow, convert = positional(_schema(wanted))
    batches = []
    for start in range(0, max(len(entries), 1), ROWS):
        rows = []
        for entry in entries[start : start + ROWS]:
            try:
                rows.append(convert(_row(entry)))
            except Unfit as problem:
                raise UsageError(f"key {_shown(entry.key)} of store {held.name!r}: {problem}") from None
        batches.append(pa.RecordBatch.from_struct_array(pa.array(rows, arrow)))
    return spark.createDataFrame(pa.Table.from_batches(batches), _schema(wanted))


def read_store_topic(
    spark: SparkSession, topic: str, schema: str | t.StructType | None = None, **source_options: Any
) -> DataFrame:
    """Return the store that a topic holds: the columns key, value, expiry, version, and ``_corrupt``.

    ``_corrupt`` says why key or value is null in a row that does not fit.

    The topic is one that ``DataStoreToTopic`` writes; among records of a key the latest counts, as in
    ``read_table``, and what has expired is left out. Keys and values of records from elsewhere are strings.

    Args:
        schema: As ``read_store``; None: types that fit a sample.
        source_options: As of ``format("chappe")``: ``towers`` or ``stores``, ``endingTimestamp`` for the store of that
            time, ``failOnDataLoss`` and others.

    Raises:
        UsageError: The schema is malformed.
    """
    table = latest(spark, topic, source_options, HEADERS).select(KEY, VALUE, HEADERS)
    wanted = _given(schema) if schema is not None else _sampled(table)
    found = table.mapInArrow(
        partial(_decoded, wanted=wanted), t.StructType([*_schema(wanted), t.StructField(CORRUPT, t.StringType())])
    )
    return found.where(f.col("expiry").isNull() | (f.col("expiry") > f.current_timestamp()))


def _given(schema: str | t.StructType) -> t.StructType:
    found = schema if isinstance(schema, t.StructType) else t.StructType.fromDDL(schema)
    if not isinstance(found, t.StructType) or found.fieldNames() != [KEY, VALUE]:
        raise UsageError(f"`schema` has the columns key and value, such as 'key string, value int', not {schema!r}")
    return t.StructType([t.StructField(each.name, each.dataType) for each in found.fields])


def _fitting(entries: Iterable[StoreEntry]) -> t.StructType:
    types = [field.dataType for field in inferred((each.key, each.value) for each in entries).fields]
    types = types or [t.StringType(), t.StringType()]
    return t.StructType([t.StructField(KEY, types[0]), t.StructField(VALUE, types[1])])


def _sampled(table: DataFrame) -> t.StructType:
    entries = []
    for row in table.limit(SAMPLE).collect():
        try:
            entries.append(entry_of(bytes(row.key), bytes(row.value), _pairs(row.headers)))
        except InvalidData:
            continue  # damaged rows have a column of their own
    return _fitting(entries)


def _schema(wanted: t.StructType) -> t.StructType:
    return t.StructType([*wanted.fields, *_EXTRAS])


def _row(entry: StoreEntry) -> tuple[Value, ...]:
    expiry = None if entry.expires_ns is None else Timestamp(entry.expires_ns)
    return entry.key, entry.value, expiry, entry.version


def _shown(key: Value) -> str:
    return to_text(key)[:60]


def _decoded(batches: Iterable[pa.RecordBatch], *, wanted: t.StructType) -> Iterator[pa.RecordBatch]:
    found, convert = positional(_schema(wanted))
    arrow = pa.struct([*found, pa.field(CORRUPT, pa.string())])
    for batch in batches:
        rows: list[tuple[Any, ...]] = []
        columns = (batch.column(name).to_pylist() for name in (KEY, VALUE, HEADERS))
        for key, value, headers in zip(*columns, strict=True):
            try:
                rows.append((*convert(_row(entry_of(key, value, _pairs(headers)))), None))
            except (InvalidData, Unfit) as problem:
                rows.append((None, None, None, None, str(problem)))
        yield pa.RecordBatch.from_struct_array(pa.array(rows, arrow))


def _pairs(headers: Sequence[Any] | None) -> list[tuple[str, bytes]]:
    return [(each["key"], bytes(each["value"])) for each in headers or () if each["key"] in (VERSION, EXPIRES)]


def write_store(
    df: DataFrame,
    store: DataStore | SharedMap[Any],
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
        store: A master or a clone that the driver holds, or a shared map.
        key: One or several columns.
        delete: A boolean column, which is not part of the value: rows where it is true erase their key.
        expiry_s: Seconds from the writing of a row to its expiry.
        checkpoint: Of a stream: where Spark keeps how far it is (``checkpointLocation``).

    Raises:
        UsageError: A column is not there, or has a type that no value has.
        StoreError: The store did not take a row; those before it may be written.
    """
    names = (key,) if isinstance(key, str) else tuple(key)
    rows = _RowConverter(df.schema, names, delete)
    found = as_store(store)
    if not df.isStreaming:
        _write(df, found, rows, expiry_s)
        return None
    if checkpoint is None:
        raise UsageError("a stream needs a `checkpoint`: the directory where Spark keeps how far it is")
    if is_remote():
        raise UsageError(
            "over Spark Connect a stream runs where the store is not: "
            "use write_table, and TopicToDataStore for the store"
        )

    if isinstance(found, MapStore):
        found.keep_marks()

    def write(batch: DataFrame, number: int) -> None:
        query = batch.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
        mark = (QUERY, query or checkpoint)
        if number <= found.get(mark, -1):
            return  # it was written, and Spark does not know
        _write(batch, found, rows, expiry_s)
        found.put(mark, number)

    return df.writeStream.foreachBatch(write).option("checkpointLocation", checkpoint)


def _write(df: DataFrame, store: DataStore | MapStore, rows: _RowConverter, expiry_s: float | None) -> None:
    source = rows.of(df)
    while chunk := list(islice(source, WRITTEN_ROWS)):
        kept: list[tuple[Any, Any]] = []
        for name, value, gone in chunk:
            if not gone:
                kept.append((name, value))
                continue
            store.put_many(kept, expiry_s=expiry_s)
            kept = []
            store.erase(name)
        store.put_many(kept, expiry_s=expiry_s)


class _RowConverter:
    """Makes keys and values of rows; raises UsageError for columns that cannot be."""

    def __init__(self, schema: t.StructType, key: Sequence[str], delete: str | None) -> None:
        self._key = [(name, _from_spark(_type(schema, name))) for name in key]
        if not key:
            raise UsageError("a store needs a key: name one column or several")
        if delete is not None and not isinstance(_type(schema, delete), t.BooleanType):
            raise UsageError(f"column `{delete}` says which rows to erase, and is not boolean")
        self._delete = delete
        rest = [name for name in schema.fieldNames() if name not in {*key, delete}]
        self._rest = [(name, _from_spark(schema[name].dataType)) for name in rest]
        self._plain = rest == [VALUE]

    def of(self, df: DataFrame) -> Iterator[tuple[Any, Any, bool]]:
        """Yield key, value, and whether it is to be erased."""
        for batch in df.toArrow().to_batches(WRITTEN_ROWS):
            for row in batch.to_pylist():
                key = tuple([convert(row[name]) for name, convert in self._key])
                gone = self._delete is not None and row[self._delete] is True
                yield key[0] if len(key) == 1 else key, None if gone else self._value(row), gone

    def _value(self, row: dict[str, Any]) -> Any:
        if self._plain:
            return self._rest[0][1](row[VALUE])
        return {name: convert(row[name]) for name, convert in self._rest}


def _type(schema: t.StructType, name: str) -> t.DataType:
    if name not in schema.fieldNames():
        raise UsageError(f"there is no column `{name}`: there are {', '.join(schema.fieldNames())}")
    return schema[name].dataType


def _from_spark(kind: t.DataType) -> Callable[[Any], Any]:
    """Return a function from the objects that Arrow makes of a Spark type to values that a store takes."""
    match kind:
        case t.ArrayType():
            element = _from_spark(kind.elementType)
            return lambda found: found if found is None else tuple([element(each) for each in found])
        case t.MapType():
            key, value = _from_spark(kind.keyType), _from_spark(kind.valueType)
            return lambda found: found if found is None else {key(name): value(each) for name, each in found}
        case t.StructType():
            fields = [(field.name, _from_spark(field.dataType)) for field in kind.fields]
            return lambda found: found if found is None else {name: convert(found[name]) for name, convert in fields}
        case t.DecimalType() if kind.scale == 0:
            return _whole
        case t.TimestampNTZType():
            return lambda found: found if found is None else found.replace(tzinfo=UTC)
        case _ if isinstance(kind, _SAME):
            return lambda found: found
        case _:
            raise UsageError(f"no value of a store is a {kind.simpleString()}: cast it, for example to string")


def _whole(found: Decimal | None) -> int | None:
    if found is None:
        return None
    number = int(found)
    if INTEGER_MIN <= number <= INTEGER_MAX:
        return number
    if 0 <= number <= COUNT_MAX:
        return Count(number)
    raise UsageError(f"{number} is larger than the numbers of a store: cast it to string")
