"""Topics as tables: the latest record of each key is the row, and a record without a value removes it.

**What decides among records of one key** is the timestamp; among equal ones the name of the partition, then the
offset. So

- one writer: its records have the times at which they were written, and the last one wins. What one task writes in
  one go lies in one partition, in its order;
- several writers: the one whose clock says later wins, whichever store heard of it first. Every reader comes to the
  same table, from any store, in any order of reading. Hosts whose clocks differ by seconds overwrite each other by
  their clocks, the executors of one cluster too;
- a writer that sets timestamps itself (a replay, events of the past) decides by these: an older event that comes late
  does not replace a newer one.

A table is as large as what its topic keeps: a key whose last record retention removed is gone from the table. There is
no compaction of topics by key.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import functions as f
from pyspark.sql import types as t

from chappe.errors import UsageError
from chappe.spark.options import SINK_NAMES, refuse_unknown

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

KEY: Final = "key"
VALUE: Final = "value"
PLACE: Final = ("timestamp", "partition", "offset")  # what decides which record of a key is the latest
_PLAIN: Final = (t.StringType, t.BinaryType)  # the only column of a key with such a type is the key itself
# The text of other types depends on the session's time zone, or is not the same for equal values.
_KEY_TYPES: Final = (*_PLAIN, t.IntegralType, t.BooleanType, t.DateType, t.DecimalType)


def read_table(
    spark: SparkSession,
    topic: str,
    schema: str | t.StructType | None = None,
    *,
    key: str | Sequence[str] = (),
    **source_options: Any,
) -> DataFrame:
    """Return the table that a topic holds now.

    Without ``schema`` its columns are key and value, binary, and the timestamp of the latest record. With one they are
    the schema's: values are JSON objects, as ``table_rows`` makes them; a value that does not parse gives nulls.

    Args:
        schema: A type of Spark, or text such as ``user string, score int``: all columns, those of the key included.
        key: The columns of the key, as they were given to ``table_rows``; they need a schema. Without, the key is a
            binary column ``key`` before those of the schema.
        source_options: As of ``format("chappe")``: ``towers`` or ``stores``, ``endingTimestamp`` for the table of
            that time, ``failOnDataLoss`` and others.

    Raises:
        UsageError: A column of the key is not in the schema, or cannot be one.
    """
    names = _names(key)
    if names and schema is None:
        raise UsageError("`key` names columns, and there is no `schema` that has them")
    table = latest(spark, topic, source_options)
    if schema is None:
        return table
    wanted = schema if isinstance(schema, t.StructType) else t.StructType.fromDDL(schema)
    if not isinstance(wanted, t.StructType):
        raise UsageError(f"`schema` has to name columns, such as 'user string, score int', not {schema!r}")
    _check_key(wanted, names)
    return _typed(table, wanted, names)


def latest(spark: SparkSession, topic: str, source_options: Mapping[str, Any], *others: str) -> DataFrame:
    """Return the latest record of each key that is not deleted: key, value, timestamp and ``others``."""
    options = {name: str(value) for name, value in source_options.items()}
    options |= {"subscribe": topic, "columns": ",".join((*PLACE, KEY, VALUE, *others))}
    rows = spark.read.format("chappe").options(**options).load()
    newest = f.max(f.struct(*PLACE, VALUE, *others)).alias("newest")
    found = rows.where(f.col(KEY).isNotNull()).groupBy(KEY).agg(newest).where("newest.value IS NOT NULL")
    return found.select(KEY, "newest.value", "newest.timestamp", *[f"newest.{name}" for name in others])


def table_rows(df: DataFrame, key: str | Sequence[str], delete: str | Column | None = None) -> DataFrame:
    """Return rows as records of a table: the columns key and value, as ``format("chappe")`` writes them.

    One key column that is a string or binary is the key as it is; several, or one of another type, become a
    JSON object. The other columns become a JSON object, the value.

    Args:
        df: A batch or a stream.
        key: One or several columns; their types are string, binary, boolean, date, whole or decimal numbers. A single
            one must not be null where the row is written.
        delete: A boolean column, by name (then it is not part of the value) or as an expression: rows where it is true
            remove their key from the table.

    Raises:
        UsageError: A column is not there, or has a type that cannot be a key.
    """
    names = _names(key)
    if not names:
        raise UsageError("a table needs a key: name one column or several")
    _check_key(df.schema, names)
    dropped = {*names, *([delete] if isinstance(delete, str) else ())}
    if isinstance(delete, str) and delete not in df.columns:
        raise UsageError(f"there is no column `{delete}` that says which rows to delete: there are {_all(df.schema)}")
    rest = [f.col(quoted(name)) for name in df.columns if name not in dropped]
    value = f.to_json(f.struct(*rest)) if rest else f.lit("{}")
    if delete is not None:
        gone = f.col(quoted(delete)) if isinstance(delete, str) else delete
        value = f.when(f.coalesce(gone, f.lit(False)), f.lit(None)).otherwise(value)
    return df.select(_key_of(df.schema, names).alias(KEY), value.cast("binary").alias(VALUE))


def write_table(
    df: DataFrame, topic: str, key: str | Sequence[str], delete: str | Column | None = None, **sink_options: Any
) -> DataStreamWriter | None:
    """Upsert rows into the table of a topic, and delete others, exactly once.

    A batch is written at once. For a stream its writer is returned: set trigger and ``checkpointLocation`` and start
    it. Rows of one key are best brought together first (``df.repartition(key)``): of a key that is twice in a batch,
    the row that comes last in its task wins.

    Args:
        df: A batch, or a stream in append mode.
        key, delete: Like those of ``table_rows``.
        sink_options: As of ``format("chappe")`` for writing, and ``checkpointLocation``.

    Raises:
        UsageError: As ``table_rows``, or an option is not known.
    """
    options = {name: str(value) for name, value in sink_options.items()}
    known = {name: value for name, value in options.items() if name.lower() != "checkpointlocation"}
    refuse_unknown({name.lower(): value for name, value in known.items()}, SINK_NAMES, {})
    rows = table_rows(df, key, delete)
    if df.isStreaming:
        return rows.writeStream.format("chappe").options(**options).option("topic", topic)
    rows.write.format("chappe").mode("append").options(**options).option("topic", topic).save()
    return None


def of_key(schema: t.StructType, names: Sequence[str]) -> dict[str, Column]:
    """Return the key's columns, from the record's ``key``. Raises UsageError if one is missing or cannot be a key."""
    _check_key(schema, names)
    if not names:
        return {}
    fields = [t.StructField(each.name, each.dataType) for each in schema.fields if each.name in names]
    if _is_plain([each.dataType for each in fields]):
        return {fields[0].name: f.col(KEY).cast(fields[0].dataType)}
    parsed = f.from_json(f.col(KEY).cast("string"), t.StructType(fields))
    return {each.name: parsed.getField(each.name) for each in fields}


def _names(key: str | Sequence[str]) -> tuple[str, ...]:
    return (key,) if isinstance(key, str) else tuple(key)


def quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"


def _all(schema: t.StructType) -> str:
    return ", ".join(schema.fieldNames())


def _check_key(schema: t.StructType, names: Sequence[str]) -> None:
    for name in names:
        if name not in schema.fieldNames():
            raise UsageError(f"there is no column `{name}` to be the key: there are {_all(schema)}")
        kind = schema[name].dataType
        if not isinstance(kind, _KEY_TYPES):
            raise UsageError(f"column `{name}` is {kind.simpleString()}, which cannot be a key: make it a string")


def _is_plain(kinds: Sequence[t.DataType]) -> bool:
    return len(kinds) == 1 and isinstance(kinds[0], _PLAIN)


def _key_of(schema: t.StructType, names: Sequence[str]) -> Column:
    columns = [f.col(quoted(name)) for name in names]
    if _is_plain([schema[name].dataType for name in names]):
        missing = f.raise_error(f.lit(f"column `{names[0]}` is null in a row: a table needs every key"))
        return f.when(columns[0].isNull(), missing.cast("binary")).otherwise(columns[0].cast("binary"))
    return f.to_json(f.struct(*columns), {"ignoreNullFields": "false"}).cast("binary")


def _typed(table: DataFrame, schema: t.StructType, names: Sequence[str]) -> DataFrame:
    fields = [t.StructField(each.name, each.dataType) for each in schema.fields]
    of_value = [each for each in fields if each.name not in names]
    found = of_key(schema, names)
    if of_value:
        parsed = f.from_json(f.col(VALUE).cast("string"), t.StructType(of_value))
        found |= {each.name: parsed.getField(each.name) for each in of_value}
    columns = [found[each.name].alias(each.name) for each in fields]
    return table.select(*([] if names else [f.col(KEY)]), *columns)
