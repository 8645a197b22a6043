"""JSON in values as typed columns."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as sf
from pyspark.sql import types as t

from chappe.errors import UsageError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

CORRUPT: Final = "_corrupt"
SAMPLE: Final = 1_000  # records looked at for a schema
_FAULTS: Final = 3  # of a sample, named in the error


def decode_json(
    df: DataFrame,
    schema: t.StructType | str | None = None,
    sample: DataFrame | int = SAMPLE,
    *,
    column: str = "value",
    into: str | None = None,
) -> DataFrame:
    """The JSON objects in a column as columns of their own, in its place, in batches and in streams.

    What does not decode is null in every new column; if the schema has a string column ``_corrupt``, that has the text
    then.

    Args:
        df: Has the column, as text or bytes.
        schema: Fields and types, as Spark writes them (``"host string, load double"``). None: those found in a sample.
        sample: How many records of ``df`` are looked at; or another DataFrame with that column to look at. A stream
            cannot be looked at before it runs, so it needs this: ``spark.read.format("chappe")...load().limit(1000)``.
        column: Has the JSON; it is replaced.
        into: The name of one column that gets all fields, as a struct; needed where a field is named like a column of
            ``df``.

    Raises:
        UsageError: A schema is needed and none can be found, or names collide.
    """
    if column not in df.columns:
        raise UsageError(f"the DataFrame has no column {column}: it has {', '.join(df.columns)}")
    wanted = parsed(df, schema) if schema is not None else _inferred(df, sample, column)
    if not isinstance(wanted, t.StructType) or not wanted.fields:
        raise UsageError('the schema has no fields; name them, for example "host string, load double"')
    decoded = sf.from_json(_text(column), wanted, {"columnNameOfCorruptRecord": CORRUPT})
    kept = [sf.col(f"`{name}`") for name in df.columns if name != column]
    if into is not None:
        _refuse({into}, df, column)
        return df.select(*kept, decoded.alias(into))
    _refuse(set(wanted.fieldNames()), df, column)
    place = "__decoded"
    whole = df.select(*kept, decoded.alias(place))
    return whole.select(*kept, *(sf.col(f"{place}.`{name}`").alias(name) for name in wanted.fieldNames()))


def _text(column: str) -> Column:
    return sf.col(f"`{column}`").cast("string")


def _refuse(names: set[str], df: DataFrame, column: str) -> None:
    taken = {name.lower() for name in df.columns if name != column}
    both = sorted(name for name in names if name.lower() in taken)
    if both:
        raise UsageError(
            f"the DataFrame has a column {', '.join(both)} already: put the fields into one column with into='data', "
            "or drop it first"
        )


def parsed(df: DataFrame, schema: t.StructType | str) -> t.StructType:
    """A schema of fields, however it was given."""
    return schema if isinstance(schema, t.StructType) else df.sparkSession.createDataFrame([], schema).schema


def sampled(df: DataFrame, sample: DataFrame | int, caller: str) -> DataFrame:
    """What is looked at for a schema. Raises UsageError for a stream, in the name of the function ``caller``."""
    source = df.limit(sample) if isinstance(sample, int) else sample
    if source.isStreaming:
        raise UsageError(
            f"a stream cannot be looked at before it runs: give {caller} a schema, or a batch DataFrame of the topic "
            'as sample=spark.read.format("chappe").option("subscribe", ...).load().limit(1000)'
        )
    return source


def _inferred(df: DataFrame, sample: DataFrame | int, column: str) -> t.StructType:
    """The fields of all objects in a sample, with types that fit all of them."""
    source = sampled(df, sample, "decode_json")
    rows = [row[0] for row in source.select(_text(column)).collect()]
    objects = [text for text in rows if text is not None and _is_object(text)]
    if not objects:
        seen = ", ".join(repr(text[:40]) for text in rows[:_FAULTS] if text is not None)
        raise UsageError(
            f"no JSON object among {len(rows)} records{f' such as {seen}' if seen else ''}; give decode_json a schema"
        )
    # one array of all of them has the type that fits all
    ddl = source.sparkSession.range(1).select(sf.schema_of_json(sf.lit(f"[{','.join(objects)}]"))).first()
    assert ddl is not None
    found = source.sparkSession.createDataFrame([], f"found {ddl[0]}").schema["found"].dataType
    assert isinstance(found, t.ArrayType)
    assert isinstance(found.elementType, t.StructType)
    return found.elementType


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False
