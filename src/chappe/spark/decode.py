"""Values as typed columns: JSON, and recorded messages of the mesh."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as sf
from pyspark.sql import types as t

from chappe.bridges.form import SENDER
from chappe.data import zeek
from chappe.data.binary import decode
from chappe.data.scalars import INTEGER_MAX
from chappe.data.text import to_text
from chappe.data.values import Value
from chappe.errors import InvalidData, UsageError
from chappe.spark.event_types import Convert, Unfit, compiled, inferred, positional
from chappe.spark.tables import quoted

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
    """Return the JSON objects in a column as columns of their own, in its place, in batches and in streams.

    Fields are told apart by upper and lower case where the session's names are (``spark.sql.caseSensitive``). Of a
    field that an object has twice the last one counts.

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
        UsageError: A schema is needed and none can be found, names collide, or are alike but for upper and lower case.
    """
    if column not in df.columns:
        raise UsageError(f"the DataFrame has no column {column}: it has {', '.join(df.columns)}")
    wanted = parsed(df, schema) if schema is not None else _inferred(df, sample, column)
    if not isinstance(wanted, t.StructType) or not wanted.fields:
        raise UsageError('the schema has no fields; name them, for example "host string, load double"')
    _refuse_doubled(wanted, fold=into is None and not _tells_cases(df))
    decoded = sf.from_json(_text(column), wanted, {"columnNameOfCorruptRecord": CORRUPT})
    kept = [sf.col(quoted(name)) for name in df.columns if name != column]
    if into is not None:
        _refuse({into}, df, column)
        return df.select(*kept, decoded.alias(into))
    _refuse(set(wanted.fieldNames()), df, column)
    place = "__decoded"
    whole = df.select(*kept, decoded.alias(place))
    return whole.select(*kept, *(sf.col(f"{place}.{quoted(name)}").alias(name) for name in wanted.fieldNames()))


def _text(column: str) -> Column:
    return sf.col(quoted(column)).cast("string")


def _tells_cases(df: DataFrame) -> bool:
    return df.sparkSession.conf.get("spark.sql.caseSensitive") == "true"


def _refuse_doubled(kind: t.DataType, *, fold: bool) -> None:
    """Refuse sibling fields of the same name; ``fold`` ignores case at the top level."""
    if isinstance(kind, t.ArrayType):
        _refuse_doubled(kind.elementType, fold=False)
    elif isinstance(kind, t.MapType):
        _refuse_doubled(kind.valueType, fold=False)
    elif isinstance(kind, t.StructType):
        seen: dict[str, str] = {}
        for field in kind.fields:
            name = field.name.lower() if fold else field.name
            other = seen.get(name)
            if other is not None:
                twice = f"the schema names a field twice: {other}"
                raise UsageError(twice if other == field.name else _alike(other, field.name))
            seen[name] = field.name
            _refuse_doubled(field.dataType, fold=False)


def _alike(one: str, other: str) -> str:
    return (
        f"the fields {one} and {other} differ by upper and lower case alone, which Spark passes over: give decode_json "
        "a schema with one of them, or set spark.sql.caseSensitive to true"
    )


def _refuse(names: set[str], df: DataFrame, column: str) -> None:
    taken = {name.lower() for name in df.columns if name != column}
    both = sorted(name for name in names if name.lower() in taken)
    if both:
        raise UsageError(
            f"the DataFrame has a column {', '.join(both)} already: put the fields into one column with into='data', "
            "or drop it first"
        )


def parsed(df: DataFrame, schema: t.StructType | str) -> t.StructType:
    return schema if isinstance(schema, t.StructType) else df.sparkSession.createDataFrame([], schema).schema


def sampled(df: DataFrame, sample: DataFrame | int, caller: str) -> DataFrame:
    """Return the rows that give a schema. Raises UsageError for a stream, in the name of the function ``caller``."""
    source = df.limit(sample) if isinstance(sample, int) else sample
    if source.isStreaming:
        raise UsageError(
            f"a stream cannot be looked at before it runs: give {caller} a schema, or a batch DataFrame of the topic "
            'as sample=spark.read.format("chappe").option("subscribe", ...).load().limit(1000)'
        )
    return source


def _inferred(df: DataFrame, sample: DataFrame | int, column: str) -> t.StructType:
    source = sampled(df, sample, "decode_json")
    rows = [row[0] for row in source.select(_text(column)).collect()]
    objects = [found for found in map(_object, rows) if found is not None]
    if not _tells_cases(df):
        _refuse_alike(objects)
    if not objects:
        seen = ", ".join(repr(text[:40]) for text in rows[:_FAULTS] if text is not None)
        raise UsageError(
            f"no JSON object among {len(rows)} records{f' such as {seen}' if seen else ''}; give decode_json a schema"
        )
    # one array of all of them has the type that fits all
    ddl = source.sparkSession.range(1).select(sf.schema_of_json(sf.lit(json.dumps(objects)))).first()
    assert ddl is not None
    found = source.sparkSession.createDataFrame([], f"found {ddl[0]}").schema["found"].dataType
    assert isinstance(found, t.ArrayType)
    assert isinstance(found.elementType, t.StructType)
    return found.elementType


def _object(text: str | None) -> dict[str, Any] | None:
    """Decode a JSON object, keeping the last of repeated fields; None for any other text."""
    try:
        found = json.loads(text or "")
        json.dumps(found)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _refuse_alike(objects: Iterable[Any]) -> None:
    """Refuse fields at one place that differ only by case, in any objects: Spark would confuse them."""
    seen: dict[tuple[str, ...], str] = {}
    waiting: list[tuple[tuple[str, ...], Any]] = [((), each) for each in objects]
    while waiting:
        place, value = waiting.pop()
        if isinstance(value, list):
            waiting += [((*place, ""), each) for each in value]
        elif isinstance(value, dict):
            for name, each in value.items():
                inner = (*place, name.lower())
                if seen.setdefault(inner, name) != name:
                    raise UsageError(_alike(*sorted((seen[inner], name))))
                waiting.append((inner, each))


RECORD: Final = ("key", "value", "headers")  # what the new columns stand for
_NAMED: Final = 10  # events in one error


def decode_events(
    df: DataFrame,
    schema: t.StructType | str | None = None,
    sample: DataFrame | int = SAMPLE,
    *,
    event: str | None = None,
) -> DataFrame:
    """Turn the records of ``chappe record`` into columns, in batches and in streams.

    ``key``, ``value`` and ``headers`` are replaced by these; other columns stay.

    ================ ================================================================================================
    mesh_topic       string: where it was published
    sender           string: the id of the endpoint that published it
    event            string: its name; null for a value that is not an event of Zeek
    args             struct: the arguments, by position; of any other vector its elements, else the one value
    network_time     timestamp: when it happened by Zeek's clock, if the event says so
    metadata         map<bigint, string>: what else the event says about itself, as text
    _corrupt         string: why ``args`` is null although there was something; null where all is well
    ================ ================================================================================================

    Each message of a batch of Zeek is a row. ``chappe.spark.event_types`` has the table of types. Arguments that the
    schema does not name are left out, and fields without an argument are null; a value that does not fit its field
    makes ``args`` null.

    Args:
        df: Has the columns ``key`` and ``value``, and perhaps ``headers``, as ``format("chappe")`` reads them.
        schema: Names and types of the arguments, as Spark writes them (``"uid string, bytes bigint"``). None: ``_1``,
            ``_2``, ... with types that fit a sample.
        sample: How many records of ``df`` are looked at; or another DataFrame to look at, which a stream needs.
        event: Only events of this name are rows, and what is damaged. Needed where different events have different
            arguments.

    Raises:
        UsageError: A schema is needed and none can be found, a type that no value has, or a column is missing.
    """
    for name in ("key", "value"):
        if name not in df.columns:
            raise UsageError(f"the DataFrame has no column {name}: read it with format('chappe')")
    wanted = _given(df, schema) if schema is not None else _sampled(df, sample, event)
    new = _new(wanted)
    positional(new)  # finds out now what cannot be
    kept = [name for name in df.columns if name not in RECORD]
    both = sorted({name.lower() for name in kept} & set(new.fieldNames()))
    if both:
        raise UsageError(f"the DataFrame has a column {', '.join(both)} already: rename or drop it first")
    columns = [*kept, *[name for name in RECORD if name in df.columns]]
    work = partial(_decoded, wanted=wanted, kept=len(kept), event=event)
    schema = t.StructType([*[df.schema[name] for name in kept], *new])
    return df.select(*map(quoted, columns)).mapInArrow(work, schema)


def _new(args: t.StructType) -> t.StructType:
    text = t.StringType()
    new = t.StructType().add("mesh_topic", text).add("sender", text).add("event", text).add("args", args)
    metadata = t.MapType(t.LongType(), text)
    return new.add("network_time", t.TimestampType()).add("metadata", metadata).add(CORRUPT, text)


def _given(df: DataFrame, schema: t.StructType | str) -> t.StructType:
    found = parsed(df, schema)
    if not found.fields:
        raise UsageError('the schema has no fields; name the arguments, for example "uid string, bytes bigint"')
    return found


def _sampled(df: DataFrame, sample: DataFrame | int, event: str | None) -> t.StructType:
    source = sampled(df, sample, "decode_events")
    found: dict[str | None, list[tuple[Value, ...]]] = {}
    rows = [row[0] for row in source.select("value").collect()]
    for raw in rows:
        try:
            for message in _messages(bytes(raw or b"")):
                name, args, _ = _taken_apart(message)
                if event is None or name == event:
                    found.setdefault(name, []).append(args)
        except InvalidData:
            continue  # damaged rows have a column of their own
    if not found:
        what = "no message of the mesh" if event is None else f"no event {event}"
        raise UsageError(f"{what} among {len(rows)} records: give decode_events a schema")
    if len(found) > 1:
        names = ", ".join(sorted(str(name or "values that are not events") for name in found)[:_NAMED])
        raise UsageError(f"there are different events: {names}; choose one with event='NAME', or give a schema")
    (samples,) = found.values()
    wanted = inferred(samples)
    if not wanted.fields:
        raise UsageError(f"no message of {len(samples)} has arguments: give decode_events a schema")
    return wanted


def _decoded(
    batches: Iterable[pa.RecordBatch], *, wanted: t.StructType, kept: int, event: str | None
) -> Iterator[pa.RecordBatch]:
    _, convert = positional(wanted)
    types = {field.name: compiled(field.dataType)[0] for field in _new(wanted).fields[2:]}
    for batch in batches:
        rows = [
            row
            for index, raw in enumerate(batch.column("value").to_pylist())
            for row in _rows(index, raw, convert, event)
        ]
        indices, *found = zip(*rows, strict=True) if rows else [()] * (1 + len(types))
        if indices != tuple(range(batch.num_rows)):
            batch = batch.take(pa.array(indices, pa.int32()))
        columns = dict(zip(batch.schema.names[:kept], batch.columns[:kept], strict=True))
        columns["mesh_topic"] = _texts(batch.column("key"))
        columns["sender"] = _senders(batch)
        for (name, kind), column in zip(types.items(), found, strict=True):
            columns[name] = pa.array(column, kind)
        yield pa.RecordBatch.from_pydict(columns)


def _rows(index: int, raw: bytes | None, convert: Convert, event: str | None) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of a record: its number, and the new columns from ``event`` on."""
    if raw is None:
        yield index, None, None, None, None, None
        return
    try:
        messages = _messages(raw)
    except InvalidData as problem:
        yield index, None, None, None, None, str(problem)
        return
    for message in messages:
        name = message.name if type(message) is zeek.Event else None
        if event is not None and name != event:
            continue
        try:
            _, args, metadata = _taken_apart(message)
            yield index, name, convert(args), *_of_metadata(metadata), None
        except (InvalidData, Unfit) as problem:
            yield index, name, None, None, None, str(problem)


def _messages(raw: bytes) -> list[zeek.Message | Value]:
    """Parse a record: a message of Zeek, those of a batch, or another value. Raises InvalidData."""
    try:
        found = zeek.parse(raw)
    except InvalidData:
        return [decode(raw)]  # damaged, or another value
    return [*zeek.flat(found)] if type(found) is zeek.Batch else [found]


def _taken_apart(message: zeek.Message | Value) -> tuple[str | None, tuple[Value, ...], zeek.Metadata]:
    """Return name, arguments and metadata. Raises InvalidData."""
    if type(message) is zeek.Event:
        return message.name, message.args, message.metadata
    value: Any = message.to_value() if isinstance(message, zeek.OTHERS) else message
    return None, value if type(value) is tuple else (value,), ()


def _of_metadata(metadata: zeek.Metadata) -> tuple[int | None, list[tuple[int, str]] | None]:
    """Return the network time in microseconds, and the rest. Raises InvalidData."""
    if not metadata:
        return None, None
    time: int | None = None
    others: dict[int, str] = {}
    for key, value in metadata:
        if key == zeek.NETWORK_TIME:
            time = int(value) // 1000  # type: ignore[arg-type]  # the message was checked: it is a timestamp
        elif key > INTEGER_MAX:
            raise InvalidData(f"the key {key} of the metadata does not fit into bigint")
        else:
            others[int(key)] = to_text(value).encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    return time, list(others.items()) or None


def _texts(column: pa.Array) -> pa.Array:
    try:
        return column.cast(pa.string())
    except pa.ArrowInvalid:
        decoded = [None if raw is None else raw.decode("utf-8", "backslashreplace") for raw in column.to_pylist()]
        return pa.array(decoded, pa.string())


def _senders(batch: pa.RecordBatch) -> pa.Array:
    if "headers" not in batch.schema.names:
        return pa.nulls(batch.num_rows, pa.string())
    column = batch.column("headers")
    if _is_recorded(column):
        return _texts(column.flatten().field(1))
    found = [next((each["value"] for each in row or () if each["key"] == SENDER), None) for row in column.to_pylist()]
    return _texts(pa.array(found, pa.binary()))


def _is_recorded(column: pa.Array) -> bool:
    """True if each row has the one header that a recorder writes."""
    one_each = column.null_count == 0 and pc.all(pc.equal(pc.list_value_length(column), 1)).as_py()
    return bool(one_each and pc.all(pc.equal(column.flatten().field(0), SENDER)).as_py())
