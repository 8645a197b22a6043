"""Views, rows and records of a pipeline as DataFrames: analysed by Spark, nothing started.

``run`` and ``check`` come through here alike, so what has passed a check starts.
"""

from __future__ import annotations

import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar

from chappe.errors import ChappeError, UsageError
from chappe.reading.selection import escaped
from chappe.spark.options import Options, SinkOptions
from chappe.spark.pipeline.model import (
    RECORD_COLUMNS,
    Input,
    Output,
    Pipeline,
    PipelineInvalid,
    PipelineQuery,
    Problem,
    StorePlace,
)
from chappe.spark.pipeline.reading import FUNCTION
from chappe.spark.sentences import line_in_sql, sentence

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql import types as t

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Prepared:
    """A query with its rows and, for a topic or table, the records that they become; the same where they do not."""

    query: PipelineQuery
    rows: DataFrame
    records: DataFrame


def prepare(spark: SparkSession, pipeline: Pipeline, towers: str) -> list[Prepared]:
    """Let Spark analyse everything. Raises PipelineInvalid: something does not fit; all that is found is named."""
    problems: list[Problem] = []

    def attempt(keys: tuple[str | int, ...], make: Callable[[], T]) -> T | None:
        try:
            return make()
        except PipelineInvalid as invalid:
            problems.extend(invalid.problems)
        except Exception as error:
            if not _explains(error):
                raise
            problems.append(pipeline.problem(keys, sentence(error)))
        return None

    inputs: dict[str, DataFrame] = {}
    for each in pipeline.inputs:
        frame = attempt(("inputs", each.name), partial(_input, spark, pipeline, each, towers))
        if frame is not None:
            frame.createOrReplaceTempView(each.name)
            inputs[each.name] = frame
    if problems:  # whatever queries said now would only follow from it
        raise PipelineInvalid(problems)
    made = attempt((), lambda: _call(spark, pipeline, inputs)) if pipeline.python else None
    prepared = []
    for query in pipeline.queries if not problems else ():
        keys = (*query.at, "output")
        rows = made[query.name] if made is not None else attempt(query.at, partial(_sql, spark, query))
        if rows is None:
            continue
        records = attempt(keys, partial(_checked, query, rows))
        if records is not None:
            prepared.append(Prepared(query, rows, records))
    if problems:
        raise PipelineInvalid(problems)
    return prepared


def _explains(error: Exception) -> bool:
    from pyspark.errors import PySparkException

    return isinstance(error, PySparkException | ChappeError)


def _input(spark: SparkSession, pipeline: Pipeline, given: Input, towers: str) -> DataFrame:
    frame = spark.readStream.format("chappe").options(**source_options(given, towers)).load()
    at = ("inputs", given.name)
    decodes = given.options.get("valueFormat") == "schema"
    if decodes and given.schema is not None:
        text = f"input {given.name} has a `schema`, and `valueFormat` says that records name theirs: leave one out"
        raise PipelineInvalid([pipeline.problem((*at, "schema"), text)])
    if given.schema is not None:
        try:
            frame = _typed(frame, given.schema, given.key)
        except Exception as error:
            if not _explains(error):
                raise
            text = f"`schema` of input {given.name}: {sentence(error)}"
            raise PipelineInvalid([pipeline.problem((*at, "schema"), text)]) from error
    elif decodes:
        frame = _with_fields(frame)
    if given.watermark is not None:
        column = given.watermark.column
        if dict(frame.dtypes).get(column) not in ("timestamp", "timestamp_ntz"):
            kind = dict(frame.dtypes).get(column)
            what = f"column `{column}` is {kind}, and no timestamp" if kind else f"there is no column `{column}`"
            there = [name for name, kind in frame.dtypes if kind.startswith("timestamp")]
            raise PipelineInvalid(
                [
                    pipeline.problem(
                        (*at, "watermark"), f"`watermark` of input {given.name}: {what}; take {' or '.join(there)}"
                    )
                ]
            )
        frame = frame.withWatermark(column, f"{given.watermark.delay_ms} milliseconds")
    return frame


def _typed(frame: DataFrame, schema: str, key: Sequence[str]) -> DataFrame:
    """Return the columns of a schema, members of the ``key`` or else of a JSON value; and the record's own columns.

    The latter are named ``record_...`` where the schema has the name.
    """
    from pyspark.sql import functions as f
    from pyspark.sql import types as t

    from chappe.spark.tables import of_key

    kind = t.StructType.fromDDL(schema)
    if not isinstance(kind, t.StructType):
        raise UsageError("it is one type; write columns with their types, such as metric STRING, value DOUBLE")
    keys = [column.alias(name) for name, column in of_key(kind, key).items()]
    value: Any = f.from_json(f.col("value").cast("string"), t.StructType([e for e in kind.fields if e.name not in key]))
    return _spread(frame, value, kind, keys)


def _with_fields(frame: DataFrame) -> DataFrame:
    """Return the fields of values with a schema, and the record's own columns; other values stay as they are."""
    from pyspark.sql import functions as f
    from pyspark.sql import types as t

    kind = frame.schema["value"].dataType
    return _spread(frame, f.col("value"), kind, []) if isinstance(kind, t.StructType) else frame


def _spread(frame: DataFrame, value: Column, kind: t.StructType, keys: list[Column]) -> DataFrame:
    from pyspark.sql import functions as f

    from chappe.spark.tables import quoted

    taken = {each.lower() for each in kind.fieldNames()}
    names = {each: f"record_{each}" if each in taken else each for each in RECORD_COLUMNS}
    own = [(f.col(n).cast("string") if n == "key" else f.col(n)).alias(alias) for n, alias in names.items()]
    parsed = frame.select(value.alias("chappe_value"), *keys, *own)
    found = set(parsed.columns[1 : 1 + len(keys)])
    columns = [quoted(name) if name in found else f"chappe_value.{quoted(name)}" for name in kind.fieldNames()]
    return parsed.select(*columns, *names.values())


def _sql(spark: SparkSession, query: PipelineQuery) -> DataFrame:
    """Return the rows of a SQL query. In parentheses nothing but a query passes: commands would run at once."""
    assert query.sql is not None
    try:
        return spark.sql(f"SELECT * FROM ({query.sql.text.strip().rstrip(';')}\n)")
    except Exception as error:
        if not _explains(error):
            raise
        above = len(query.sql.text) - len(query.sql.text.lstrip())
        line = query.sql.line + query.sql.text[:above].count("\n") + line_in_sql(error) - 1
        last = query.sql.line + query.sql.text.rstrip().count("\n")
        raise PipelineInvalid([Problem(query.sql.file, min(line, last), sentence(error))]) from error


def _call(spark: SparkSession, pipeline: Pipeline, inputs: dict[str, DataFrame]) -> dict[str, DataFrame]:
    """Call a Python file's function; return the rows of each query."""
    module = _module(pipeline)
    function = getattr(module, FUNCTION)
    wanted = [name for name in inspect.signature(function).parameters if name in inputs]
    try:
        made = function(spark, **{name: inputs[name] for name in wanted})
    except Exception as error:
        raise _in_file(pipeline, error) from error
    names = [query.name for query in pipeline.queries]
    if len(names) == 1 and not isinstance(made, dict):
        made = {names[0]: made} if _is_frame(made) else made
    if not isinstance(made, dict) or set(made) != set(names) or not all(map(_is_frame, made.values())):
        wants = "a DataFrame" if len(names) == 1 else f"a dict with a DataFrame for each of {', '.join(names)}"
        got = f"a dict of {', '.join(map(str, made))}" if isinstance(made, dict) else type(made).__name__
        raise UsageError(f"function `{FUNCTION}` returns {wants}, not {got}")
    return made


def _module(pipeline: Pipeline) -> ModuleType:
    from pyspark import cloudpickle

    name = "chappe_pipeline_" + "".join(c if c.isalnum() else "_" for c in pipeline.name)
    spec = importlib.util.spec_from_file_location(name, pipeline.file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise _in_file(pipeline, error) from error
    cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]
    return module


def _in_file(pipeline: Pipeline, error: Exception) -> PipelineInvalid:
    """Return an exception of the user's code, with the innermost of its lines in the file."""
    line, trace = 1, error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == str(pipeline.file):
            line = trace.tb_lineno
        trace = trace.tb_next
    name = "" if _explains(error) else f"{type(error).__name__}: "
    return PipelineInvalid([Problem(pipeline.file, line, f"{name}{sentence(error)}")])


def _is_frame(value: object) -> bool:
    return hasattr(value, "writeStream") and hasattr(value, "schema")


def _checked(query: PipelineQuery, rows: DataFrame) -> DataFrame:
    if not rows.isStreaming:
        raise UsageError(f"query {query.name} reads no input of the pipeline: it would end at once and never again")
    names = [name.lower() for name in rows.columns]
    doubled = next((name for n, name in enumerate(rows.columns) if name.lower() in names[:n]), None)
    if doubled:
        raise UsageError(f"query {query.name} has two columns named `{doubled}`; give one another name with AS")
    records = _records(query.output, rows)
    if query.output.kind in ("topic", "table"):
        from chappe.spark.columns import RecordColumns

        RecordColumns.find(records.schema, query.output.topic)
    _check_mode(records, query)
    return records


def _records(output: Output, rows: DataFrame) -> DataFrame:
    """Return the rows for the sink: for a topic ``value`` and, if asked for, ``key`` and ``topic``."""
    missing = [each for each in output.key if each not in rows.columns]
    if missing:
        raise UsageError(f"`key` names {', '.join(missing)}, and there are only {', '.join(rows.columns)}")
    if output.kind == "table":
        from chappe.spark.tables import table_rows

        return table_rows(rows, key=list(output.key), delete="_deleted" if "_deleted" in rows.columns else None)
    if output.kind == "parquet":
        _check_folders(output, rows)
    if output.kind != "topic":
        return rows
    # a number named value is a member like any other: only text and bytes can be all of a record
    plain = dict(rows.dtypes).get("value") in ("string", "binary")
    return _plain(output, rows) if plain else _json(output, rows)


def _check_folders(output: Output, rows: DataFrame) -> None:
    there = {name.lower() for name in rows.columns}
    names = folders(output)
    for name in names:
        if name.lower() not in there:
            raise UsageError(f"`partitionBy` names {name}, and there are only {', '.join(rows.columns)}")
    if len(names) >= len(there):
        raise UsageError("`partitionBy` names all columns: one at least has to be in the files")


def folders(output: Output) -> list[str]:
    """Return the columns that partition the directories of a Parquet output."""
    text = next((value for name, value in output.options.items() if name.lower() == "partitionby"), "")
    return [part.strip() for part in text.split(",") if part.strip()]


def _plain(output: Output, rows: DataFrame) -> DataFrame:
    for name in output.key:
        if name != "key":
            rows = rows.withColumn("key", _key(rows, name)).drop(name)
    return rows


def _json(output: Output, rows: DataFrame) -> DataFrame:
    """Make all columns members of a JSON value, but for the one that says the topic."""
    from pyspark.sql import functions as f

    from chappe.spark.tables import quoted

    told = "topic" in rows.columns and output.topic is None
    members = [f.col(quoted(name)) for name in rows.columns if not (told and name == "topic")]
    columns = [f.to_json(f.struct(*members)).alias("value")]
    columns += [_key(rows, name).alias("key") for name in output.key]
    return rows.select(*columns, *(["topic"] if told else []))


def _key(rows: DataFrame, name: str) -> Any:
    from pyspark.sql import functions as f
    from pyspark.sql import types as t

    from chappe.spark.tables import quoted

    column, kind = f.col(quoted(name)), rows.schema[name].dataType
    if isinstance(kind, t.StructType | t.ArrayType | t.MapType):
        return f.to_json(column)
    return column if isinstance(kind, t.BinaryType) else column.cast("string")


def _check_mode(records: DataFrame, query: PipelineQuery) -> None:
    """Ask Spark whether the query can be run in this output mode: by itself it would say so only at the start."""
    from pyspark.sql.classic.dataframe import DataFrame as ClassicDataFrame

    if not isinstance(records, ClassicDataFrame):  # Spark Connect shows no plan
        return
    java: Any = records.sparkSession._jvm
    mode = getattr(java.org.apache.spark.sql.streaming.OutputMode, query.output.mode.title())()
    checker = java.org.apache.spark.sql.catalyst.analysis.UnsupportedOperationChecker
    checker.checkForStreaming(records._jdf.queryExecution().analyzed(), mode)


def source_options(given: Input, towers: str) -> dict[str, str]:
    """Return options of ``format("chappe")`` for an input; ``towers`` is asked where the file names no stores."""
    pattern = f"{escaped(given.prefix or '')}.*"
    what = {"subscribe": ",".join(given.topics)} if given.topics else {"subscribePattern": pattern}
    return {**_place(given.place, towers), **what, **given.starting, **given.options}


def sink_options(given: Output, towers: str) -> dict[str, str]:
    """Return options of ``format("chappe")`` for an output to a topic or table."""
    topic = {"topic": given.topic} if given.topic else {}
    place = {"chain": given.chain} if given.chain else _place(given.place, towers)
    return {**place, **topic, **given.options}


def option_problems(pipeline: Pipeline, towers: str) -> Iterator[Problem]:
    for each in pipeline.inputs:
        try:
            Options.parse(source_options(each, towers))
        except UsageError as error:
            yield pipeline.problem(("inputs", each.name), f"input {each.name}: {error}")
    for query in pipeline.queries:
        if query.output.kind in ("topic", "table"):
            try:
                SinkOptions.parse(sink_options(query.output, towers))
            except UsageError as error:
                yield pipeline.problem((*query.at, "output"), f"output of {query.name}: {error}")


def _place(place: StorePlace, towers: str) -> dict[str, str]:
    if place.stores:
        return {"stores": ",".join(place.stores)}
    return {"towers": ",".join(place.towers) or towers}
