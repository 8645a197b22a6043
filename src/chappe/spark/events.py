"""Recorded messages of the mesh as typed columns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from chappe.bridges.form import SENDER
from chappe.data import zeek
from chappe.data.binary import decode
from chappe.data.scalars import INTEGER_MAX
from chappe.data.text import to_text
from chappe.data.values import Value
from chappe.errors import InvalidData, UsageError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql import types as t

    from chappe.spark.event_types import Convert

SAMPLE: Final = 1_000  # records looked at for a schema
CORRUPT: Final = "_corrupt"
RECORD: Final = ("key", "value", "headers")  # what the new columns stand for
NEW: Final = ("mesh_topic", "sender", "event", "args", "network_time", "metadata", CORRUPT)
_NAMED: Final = 10  # events in one error


def decode_events(
    df: DataFrame,
    schema: t.StructType | str | None = None,
    sample: DataFrame | int = SAMPLE,
    *,
    event: str | None = None,
) -> DataFrame:
    """What ``chappe record`` made records of, as columns, in batches and in streams.

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
    from chappe.spark.event_types import positional

    for name in ("key", "value"):
        if name not in df.columns:
            raise UsageError(f"the DataFrame has no column {name}: read it with format('chappe')")
    wanted = _given(df, schema) if schema is not None else _sampled(df, sample, event)
    positional(wanted)  # finds out now what cannot be
    kept = [name for name in df.columns if name not in RECORD]
    both = sorted({name.lower() for name in kept} & set(NEW))
    if both:
        raise UsageError(f"the DataFrame has a column {', '.join(both)} already: rename or drop it first")
    columns = [*kept, *[name for name in RECORD if name in df.columns]]
    work = partial(_decoded, wanted=wanted, kept=len(kept), event=event)
    return df.select(*[f"`{name}`" for name in columns]).mapInArrow(work, _columns(df, kept, wanted))


def _columns(df: DataFrame, kept: list[str], wanted: t.StructType) -> t.StructType:
    from pyspark.sql import types as t

    types = (t.StringType(), t.StringType(), t.StringType(), wanted, t.TimestampType())
    new = [t.StructField(name, each) for name, each in zip(NEW, types, strict=False)]
    metadata = t.StructField("metadata", t.MapType(t.LongType(), t.StringType()))
    return t.StructType([*[df.schema[name] for name in kept], *new, metadata, t.StructField(CORRUPT, t.StringType())])


# -- the schema -----------------------------------------------------------------------------------------


def _given(df: DataFrame, schema: t.StructType | str) -> t.StructType:
    from pyspark.sql import types as t

    found = schema if isinstance(schema, t.StructType) else df.sparkSession.createDataFrame([], schema).schema
    if not found.fields:
        raise UsageError('the schema has no fields; name the arguments, for example "uid string, bytes bigint"')
    return found


def _sampled(df: DataFrame, sample: DataFrame | int, event: str | None) -> t.StructType:
    from chappe.spark.event_schema import inferred

    source = df.limit(sample) if isinstance(sample, int) else sample
    if source.isStreaming:
        raise UsageError(
            "a stream cannot be looked at before it runs: give decode_events a schema, or a batch DataFrame of the "
            'topic as sample=spark.read.format("chappe").option("subscribe", ...).load().limit(1000)'
        )
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
        names = ", ".join(sorted(str(name or "values that are no events") for name in found)[:_NAMED])
        raise UsageError(f"there are different events: {names}; choose one with event='NAME', or give a schema")
    (samples,) = found.values()
    wanted = inferred(samples)
    if not wanted.fields:
        raise UsageError(f"no message of {len(samples)} has arguments: give decode_events a schema")
    return wanted


# -- the rows -------------------------------------------------------------------------------------------


def _decoded(
    batches: Iterable[pa.RecordBatch], *, wanted: t.StructType, kept: int, event: str | None
) -> Iterator[pa.RecordBatch]:
    """What a task does."""
    import pyarrow as pa

    from chappe.spark.event_types import positional

    args_type, convert = positional(wanted)
    types = {
        "event": pa.string(),
        "args": args_type,
        "network_time": pa.timestamp("us", "UTC"),
        "metadata": pa.map_(pa.int64(), pa.string()),
        CORRUPT: pa.string(),
    }
    for batch in batches:
        rows = _Rows(convert, event)
        for index, raw in enumerate(batch.column("value").to_pylist()):
            rows.add(index, raw)
        if len(rows.index) != batch.num_rows or rows.several:
            batch = batch.take(pa.array(rows.index, pa.int32()))
        senders = _senders(batch)
        columns = dict(zip(batch.schema.names[:kept], batch.columns[:kept], strict=True))
        columns["mesh_topic"] = _texts(batch.column("key"))
        columns["sender"] = senders
        found = (rows.events, rows.args, rows.times, rows.metadata, rows.corrupt)
        for (name, kind), column in zip(types.items(), found, strict=True):
            columns[name] = pa.array(column, kind)
        yield pa.RecordBatch.from_pydict(columns)


class _Rows:
    """Columns as they grow."""

    def __init__(self, convert: Convert, event: str | None) -> None:
        self._convert = convert
        self._event = event
        self.several = False  # rows of one record
        self.index: list[int] = []
        self.events: list[str | None] = []
        self.args: list[tuple[Any, ...] | None] = []
        self.times: list[int | None] = []
        self.metadata: list[list[tuple[int, str]] | None] = []
        self.corrupt: list[str | None] = []

    def add(self, index: int, raw: bytes | None) -> None:
        """A record."""
        if raw is None:
            self._add(index, None)
            return
        try:
            messages = _messages(raw)
        except InvalidData as problem:
            self._add(index, None, corrupt=str(problem))
            return
        self.several = self.several or len(messages) > 1
        for each in messages:
            self._add_message(index, each)

    def _add_message(self, index: int, message: zeek.Message | Value) -> None:
        from chappe.spark.event_types import Unfit

        name = message.name if type(message) is zeek.Event else None
        if self._event is not None and name != self._event:
            return
        try:
            _, args, metadata = _taken_apart(message)
            time, others = _of_metadata(metadata)
            self._add(index, name, self._convert(args), time, others)
        except (InvalidData, Unfit) as problem:
            self._add(index, name, corrupt=str(problem))

    def _add(
        self,
        index: int,
        name: str | None,
        args: tuple[Any, ...] | None = None,
        time: int | None = None,
        metadata: list[tuple[int, str]] | None = None,
        corrupt: str | None = None,
    ) -> None:
        self.index.append(index)
        self.events.append(name)
        self.args.append(args)
        self.times.append(time)
        self.metadata.append(metadata)
        self.corrupt.append(corrupt)


def _messages(raw: bytes) -> list[zeek.Message | Value]:
    """What a record holds: a message of Zeek, those of a batch, or another value. Raises InvalidData."""
    try:
        found = zeek.parse(raw)
    except InvalidData:
        return [decode(raw)]  # damaged, or another value
    return [*_flat(found)] if type(found) is zeek.Batch else [found]


def _flat(batch: zeek.Batch) -> Iterator[zeek.Message]:
    for each in batch:
        if isinstance(each, zeek.Batch):
            yield from _flat(each)
        else:
            yield each


def _taken_apart(message: zeek.Message | Value) -> tuple[str | None, tuple[Value, ...], zeek.Metadata]:
    """Name, arguments and metadata. Raises InvalidData."""
    if type(message) is zeek.Event:
        return message.name, message.args, message.metadata
    value: Any = message.to_value() if isinstance(message, _OTHERS) else message
    return None, value if type(value) is tuple else (value,), ()


_OTHERS: Final = (zeek.LogCreate, zeek.LogWrite, zeek.IdentifierUpdate)


def _of_metadata(metadata: zeek.Metadata) -> tuple[int | None, list[tuple[int, str]] | None]:
    """The network time in microseconds, and the rest. Raises InvalidData."""
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
    """Bytes as text, quickly where they are UTF-8."""
    import pyarrow as pa

    try:
        return column.cast(pa.string())
    except pa.ArrowInvalid:
        decoded = [None if raw is None else raw.decode("utf-8", "backslashreplace") for raw in column.to_pylist()]
        return pa.array(decoded, pa.string())


def _senders(batch: pa.RecordBatch) -> pa.Array:
    import pyarrow as pa

    if "headers" not in batch.schema.names:
        return pa.nulls(batch.num_rows, pa.string())
    column = batch.column("headers")
    if _is_recorded(column):
        return _texts(column.flatten().field(1))
    found = [next((each["value"] for each in row or () if each["key"] == SENDER), None) for row in column.to_pylist()]
    return _texts(pa.array(found, pa.binary()))


def _is_recorded(column: pa.Array) -> bool:
    """Whether each row has the one header that a recorder writes."""
    import pyarrow.compute as pc

    one_each = column.null_count == 0 and pc.all(pc.equal(pc.list_value_length(column), 1)).as_py()
    return bool(one_each and pc.all(pc.equal(column.flatten().field(0), SENDER)).as_py())
