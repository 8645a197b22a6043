"""Data stores of the mesh as DataFrames: what they hold now, what their topics hold, and rows written into them.

Stores are read and written by the driver, with the master or clone that it holds; a store is in its memory already.
``chappe.spark.event_types`` has the table of types, ``kv_rows.py`` that of the way back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.types import LongType, StringType, StructField, StructType, TimestampType

from chappe.bridges.kv_form import EXPIRES, VERSION, Entry, entry_of, is_mark
from chappe.data.text import to_text
from chappe.data.values import Value
from chappe.errors import InvalidData, UsageError
from chappe.spark.event_schema import inferred
from chappe.spark.event_types import Convert, Unfit, compiled
from chappe.spark.tables import KEY, PLACE, VALUE, latest

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from chappe.api.kv.data_store import DataStore

SAMPLE: Final = 1_000  # entries of a topic looked at for a schema
ROWS: Final = 10_000  # in one Arrow batch
CORRUPT: Final = "_corrupt"
HEADERS: Final = "headers"
_EXTRAS: Final = (StructField("expiry", TimestampType()), StructField("version", LongType()))


def read_store(spark: SparkSession, store: DataStore, schema: str | StructType | None = None) -> DataFrame:
    """What a store holds now: the columns key, value, expiry and version.

    ``expiry`` is when an entry expires; null if it does not, or if nobody but the master knows. ``version`` is the
    number of the latest change of the entry in this copy of the store: it rises, and means nothing in another copy.

    Args:
        spark: The session.
        store: A master or a clone that the driver holds.
        schema: The types of key and value, as text such as ``key string, value struct<score: int>`` or a type of Spark.
            None: types that fit all entries.

    Raises:
        UsageError: The schema is malformed, or an entry does not fit.
        StaleData: A clone was without its master for too long.
    """
    import pyarrow as pa

    found = [each.typed for each in store.snapshot() if not is_mark(each.key)]
    entries = [Entry(each.key, each.value, False, each.expires_ns, each.version) for each in found]
    wanted = _given(schema) if schema is not None else _fitting(entries)
    arrow, convert = _converter(wanted)
    batches = []
    for start in range(0, max(len(entries), 1), ROWS):
        rows = []
        for entry in entries[start : start + ROWS]:
            try:
                rows.append(convert(entry))
            except Unfit as problem:
                raise UsageError(f"key {_shown(entry.key)} of store {store.name!r}: {problem}") from None
        batches.append(pa.RecordBatch.from_struct_array(pa.array(rows, pa.struct(arrow))))
    return spark.createDataFrame(pa.Table.from_batches(batches), _schema(wanted))


def read_store_topic(
    spark: SparkSession, topic: str, schema: str | StructType | None = None, **source_options: Any
) -> DataFrame:
    """The store that a topic holds: the columns key, value, expiry, version, and ``_corrupt``, which says why key or
    value is null in a row that does not fit.

    The topic is one that ``DataStoreToTopic`` writes; among records of a key the latest counts, as in
    ``read_table``, and what has expired is left out. Keys and values of records from elsewhere are strings.

    Args:
        spark: The session.
        topic: The topic.
        schema: As ``read_store``; None: types that fit a sample.
        source_options: As of ``format("chappe")``: ``towers`` or ``stores``, ``endingTimestamp`` for the store of that
            time, ``failOnDataLoss`` and others.

    Raises:
        UsageError: The schema is malformed.
    """
    from pyspark.sql import functions as f

    options = {name: str(value) for name, value in source_options.items()}
    columns = ",".join((*PLACE, KEY, VALUE, HEADERS))
    reader = spark.read.format("chappe").options(**options).option("subscribe", topic)
    table = latest(reader.option("columns", columns).load(), HEADERS).select(KEY, VALUE, HEADERS)
    wanted = _given(schema) if schema is not None else _sampled(table)
    found = table.mapInArrow(
        partial(_decoded, wanted=wanted), StructType([*_schema(wanted), StructField(CORRUPT, StringType())])
    )
    return found.where(f.col("expiry").isNull() | (f.col("expiry") > f.current_timestamp()))


# -- the schema -------------------------------------------------------------------------------------------


def _given(schema: str | StructType) -> StructType:
    found = schema if isinstance(schema, StructType) else StructType.fromDDL(schema)
    if not isinstance(found, StructType) or found.fieldNames() != [KEY, VALUE]:
        raise UsageError(f"`schema` has the columns key and value, such as 'key string, value int', not {schema!r}")
    return StructType([StructField(each.name, each.dataType) for each in found.fields])


def _fitting(entries: Iterable[Entry]) -> StructType:
    types = [field.dataType for field in inferred((each.key, each.value) for each in entries).fields]
    types = types or [StringType(), StringType()]
    return StructType([StructField(KEY, types[0]), StructField(VALUE, types[1])])


def _sampled(table: DataFrame) -> StructType:
    entries = []
    for row in table.limit(SAMPLE).collect():
        try:
            entries.append(entry_of(bytes(row.key), bytes(row.value), _pairs(row.headers)))
        except InvalidData:
            continue  # damaged rows have a column of their own
    return _fitting(entries)


def _schema(wanted: StructType) -> StructType:
    return StructType([*wanted.fields, *_EXTRAS])


def _converter(wanted: StructType) -> tuple[list[pa.Field], Callable[[Entry], tuple[Any, ...]]]:
    """The Arrow fields of a table of entries, and what makes a row of an entry; it raises Unfit."""
    import pyarrow as pa

    (key_type, key), (value_type, value) = [compiled(field.dataType) for field in wanted.fields]
    arrow = [
        pa.field(KEY, key_type),
        pa.field(VALUE, value_type),
        pa.field("expiry", pa.timestamp("us", "UTC")),
        pa.field("version", pa.int64()),
    ]

    def convert(entry: Entry) -> tuple[Any, ...]:
        expiry = None if entry.expires_ns is None else entry.expires_ns // 1000
        return _named(KEY, key, entry.key), _named(VALUE, value, entry.value), expiry, entry.version

    return arrow, convert


def _named(name: str, convert: Convert, value: Value) -> Any:
    try:
        return convert(value)
    except Unfit as problem:
        problem.args = (f"{name}: {problem}",)
        raise


def _shown(key: Value) -> str:
    return to_text(key)[:60]


# -- rows of a topic --------------------------------------------------------------------------------------


def _decoded(batches: Iterable[pa.RecordBatch], *, wanted: StructType) -> Iterator[pa.RecordBatch]:
    """What a task does."""
    import pyarrow as pa

    arrow, convert = _converter(wanted)
    arrow.append(pa.field(CORRUPT, pa.string()))
    for batch in batches:
        rows = []
        columns = (batch.column(name).to_pylist() for name in (KEY, VALUE, HEADERS))
        for key, value, headers in zip(*columns, strict=True):
            rows.append(_decoded_row(key, value, _pairs(headers), convert))
        yield pa.RecordBatch.from_struct_array(pa.array(rows, pa.struct(arrow)))


def _decoded_row(
    key: bytes, value: bytes, headers: list[tuple[str, bytes]], convert: Callable[[Entry], tuple[Any, ...]]
) -> tuple[Any, ...]:
    try:
        return (*convert(entry_of(key, value, headers)), None)
    except (InvalidData, Unfit) as problem:
        return (None, None, None, None, str(problem))


def _pairs(headers: Sequence[Any] | None) -> list[tuple[str, bytes]]:
    return [(each["key"], bytes(each["value"])) for each in headers or () if each["key"] in (VERSION, EXPIRES)]
