"""``format("chappe")``: topics as DataFrames, in batches and in streams.

The driver asks the stores how far each partition goes and cuts what is new into tasks; the executors read their
ranges straight from the stores and hand Arrow batches to Spark. Offsets live in Spark's checkpoint alone, so a
restarted query reads exactly the offsets that it had planned.

Spark makes these objects in one process and pickles them into others: they hold no connection until they need it.

Topics are tables of Spark SQL, too: ``CREATE TABLE t USING chappe OPTIONS (...)``, ``SELECT`` and ``INSERT INTO``.
Spark 4.3 tells a data source in Python the options of a table when the table is created, and never again: of a
``SELECT`` and an ``INSERT`` it only hands over the columns. So ``CREATE TABLE`` answers with columns of which the
first carries the options as metadata, which Spark's catalogues keep, and from there the others take them.

Spark leaves the columns of a query as they are where they fit those of the table that is written to; then the metadata
in them is that of a table that was read. Therefore ``topic`` is a varchar in the catalogue, of a length that differs
with the options: no columns of a query are like those of another table, so Spark converts what is inserted, and gives
it the metadata of the table that is written to. What came through a query all the same is known by Spark's mark for a
varchar, and is refused.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Final

from pyspark.sql import datasource as ds
from pyspark.sql.types import DataType, StructField, StructType, VarcharType

from chappe.defaults import TOPIC_BYTES_MAX
from chappe.errors import UsageError
from chappe.spark.batch import TopicReader
from chappe.spark.columns import check_schema, required, schema_of
from chappe.spark.filters import ALL
from chappe.spark.options import NAMES, SINK_NAMES, Options, SinkOptions, refuse_unknown
from chappe.spark.sentences import untraced
from chappe.spark.stream import TopicStreamReader

_KEY: Final = "chappe"  # in the metadata of the column `topic`
_VARCHAR: Final = "__CHAR_VARCHAR_TYPE_STRING"  # Spark's mark on what was read from a varchar
_CREATION: Final = "provider"  # among what Spark says of a table that is being created
_OPTION: Final = "option."  # begins what stands in its OPTIONS
_LENGTHS: Final = 1 << 30  # of varchars, that tell tables apart
_ONE_WRITE: Final = ("writeId", "writeBatch", "writeAgain")  # would make every INSERT after the first a repetition
_READ: Final = frozenset(name.lower() for name in NAMES)
_WRITTEN: Final = frozenset(name.lower() for name in SINK_NAMES)
_SELECTS: Final = ("subscribe", "subscribepattern", "assign")
_PLACES: Final = frozenset({"stores", "towers"})
_LOST: Final = (
    "Spark did not hand over the options of this table: create it with CREATE TABLE name USING chappe OPTIONS (...), "
    "without columns of its own and without AS SELECT, and name the columns where it is inserted into from itself"
)


def is_creation(options: Mapping[str, str]) -> bool:
    return _CREATION in options


def created(options: Mapping[str, str]) -> StructType:
    """Return the columns of a new table, which carry its options. Raises UsageError."""
    given = {name[len(_OPTION) :].lower(): value for name, value in options.items() if name.startswith(_OPTION)}
    for name in _ONE_WRITE:
        if name.lower() in given:
            raise UsageError(f"`{name}` is of one write: give it with INSERT INTO name WITH (...), not to the table")
    refuse_unknown(given, (*NAMES, *SINK_NAMES), {"path": "topics have no LOCATION"})
    options_of_reading = Options.parse(_for_reading(given))
    reading = options_of_reading.reading
    if "topic" in given or given.keys() & (_WRITTEN - _READ):
        SinkOptions.parse(_for_writing(given))
    columns = _columns(options_of_reading)
    if "topic" not in reading.columns:
        raise UsageError("a table needs the column `topic` among its `columns`: it carries the options")
    # nullable, all of them: what an INSERT leaves out is null
    fields = [StructField(each.name, each.dataType) for each in columns.fields]
    return StructType([_carrying(each, given) if each.name == "topic" else each for each in fields])


def _columns(options: Options) -> StructType:
    return schema_of(options.reading.columns, None if options.value is None else options.value.type())


def reading_options(given: Mapping[str, str], schema: StructType) -> Mapping[str, str]:
    """Return the options of a table and of ``WITH``, which wins; ``given`` if it is not a table. Raises UsageError."""
    kept = _kept(schema)
    if kept is not None:
        return _for_reading(_joined(kept, given))
    if not given:
        raise UsageError(_LOST)
    return given


def writing_options(given: Mapping[str, str], schema: StructType) -> Mapping[str, str]:
    """Return the options of an INSERT: those of the table, and what ``WITH`` gives, which wins."""
    kept = _kept(schema)
    if kept is None:
        return given
    if _came_through(schema):
        if not given:
            raise UsageError(_LOST)
        return given
    return _for_writing(_joined(kept, given))


def streamed_options(given: Mapping[str, str], schema: StructType) -> Mapping[str, str]:
    """Return the options of a stream into topics, whose columns never carry those of its target. Raises UsageError."""
    if _kept(schema) is not None and not any(name.lower() == "topic" for name in given):
        raise UsageError(
            "Spark hands over no options of a table to a stream that is written to it: use writeStream.format"
            '("chappe") with the option `topic`, and `towers` or `stores`'
        )
    return given


def without_marks(schema: StructType) -> StructType:
    return StructType([StructField(each.name, each.dataType, each.nullable) for each in schema.fields])


def _carrying(field: StructField, options: Mapping[str, str]) -> StructField:
    text = json.dumps(options, sort_keys=True)
    length = TOPIC_BYTES_MAX + int.from_bytes(hashlib.sha256(text.encode()).digest()) % _LENGTHS
    return StructField(field.name, VarcharType(length), True, {_KEY: dict(options)})


def _topic(schema: StructType) -> StructField | None:
    return next((each for each in schema.fields if each.name.lower() == "topic"), None)


def _kept(schema: StructType) -> dict[str, str] | None:
    field = _topic(schema)
    return None if field is None else (field.metadata or {}).get(_KEY)


def _came_through(schema: StructType) -> bool:
    field = _topic(schema)
    return field is not None and _VARCHAR in (field.metadata or {})


def _joined(kept: Mapping[str, str], given: Mapping[str, str]) -> dict[str, str]:
    over = {name.lower(): value for name, value in given.items()}
    dropped = {name for group in (_PLACES, frozenset(_SELECTS)) if group & over.keys() for name in group}
    return {name: value for name, value in kept.items() if name not in dropped} | over


def _for_reading(options: Mapping[str, str]) -> dict[str, str]:
    """Leave out options for writing alone; a table that only names its ``topic`` reads that."""
    found = {name: value for name, value in options.items() if name not in _WRITTEN - _READ}
    if "topic" in options and not any(name in options for name in _SELECTS):
        found["subscribe"] = options["topic"]
    return found


def _for_writing(options: Mapping[str, str]) -> dict[str, str]:
    """Leave out options for reading alone, as stores are beside a chain; a table of one topic writes to that."""
    reads = _READ - _WRITTEN | (_PLACES if "chain" in options else frozenset())
    found = {name: value for name, value in options.items() if name not in reads}
    names = [part.strip() for part in options.get("subscribe", "").split(",") if part.strip()]
    if "topic" not in found and len(names) == 1:
        found["topic"] = names[0]
    return found


def _value_type(options: Options, schema: StructType) -> DataType | None:
    """Return the type that Spark was told for values with a schema: later versions of it are read as this one."""
    found = [each.dataType for each in schema.fields if each.name == "value"]
    return found[0] if options.value is not None and found else None


class ChappeDataSource(ds.DataSource):
    """The data source ``format("chappe")`` that Spark makes; the options are ``Options``."""

    @classmethod
    def name(cls) -> str:
        return "chappe"

    @untraced()
    def schema(self) -> StructType:
        """Return the columns that are wanted; of a table that is created, see ``created``."""
        if is_creation(self.options):
            return created(self.options)
        return _columns(Options.parse(self.options))

    @untraced()
    def reader(self, schema: StructType) -> ds.DataSourceReader:
        options = self._for_reading(schema)
        limits = {
            "maxRecordsPerTrigger": options.max_records,
            "maxBytesPerTrigger": options.max_bytes,
            "minRecordsPerTrigger": options.min_records,
        }
        for name, value in limits.items():
            if value is not None:
                raise UsageError(f"`{name}` is for streams; a batch is bounded by `endingOffsets`")
        return TopicReader(options, required(schema), _value_type(options, schema))

    # not untraced: Spark 4.3 answers an error here with one of its own, and ours is in that one's traceback alone
    def streamReader(self, schema: StructType) -> ds.DataSourceStreamReader:
        options = self._for_reading(schema)
        if options.reading.ending is not None:
            raise UsageError(
                "`endingOffsets` and `endingTimestamp` are for batches; a stream ends with trigger(availableNow=True)"
            )
        if options.filters != ALL:
            raise UsageError("`filters` is for batches, and `narrowed` gives it to them")
        return TopicStreamReader(options, required(schema), _value_type(options, schema))

    @untraced()
    def writer(self, schema: StructType, overwrite: bool) -> ds.DataSourceWriter:
        from chappe.spark.sink import TopicBatchWriter  # readers, which are started more often, do without

        options = SinkOptions.parse(writing_options(self.options, schema))
        return TopicBatchWriter(options, without_marks(schema), overwrite)

    @untraced()
    def streamWriter(self, schema: StructType, overwrite: bool) -> ds.DataSourceStreamWriter:
        """Make the writer of ``df.writeStream``. ``overwrite`` is output mode complete: all results are appended."""
        from chappe.spark.home import origins_of
        from chappe.spark.sink import TopicStreamWriter

        options = SinkOptions.parse(streamed_options(self.options, schema))
        return TopicStreamWriter(options, without_marks(schema), origins_of(self.options, options.topic))

    def _for_reading(self, schema: StructType) -> Options:
        options = Options.parse(reading_options(self.options, schema))
        check_schema(without_marks(schema), options.reading.columns, _value_type(options, schema))
        return options
