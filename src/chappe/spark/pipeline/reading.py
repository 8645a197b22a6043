"""A pipeline's file, read and checked without Spark: TOML, or Python with the same TOML in a comment block."""

from __future__ import annotations

import ast
import difflib
import re
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Final, cast

from chappe.errors import UsageError
from chappe.spark.pipeline import model
from chappe.spark.pipeline.model import PipelineInvalid, Problem
from chappe.spark.pipeline.tables import FileComplaints, TomlTable
from chappe.spark.session import check_master
from chappe.system.toml import TomlLines, toml_problem

FILE_BYTES_MAX: Final = 1 << 20  # a larger file is not a pipeline
DIRECTORY: Final = "chappe-data/pipelines"  # of checkpoints, beside the file
FUNCTION: Final = "pipeline"

_PLACE: Final = ("stores", "towers")
_QUERY: Final = ("sql", "sql_file", "output")
_TOP: Final = ("name", *_PLACE, "spark", "inputs", *_QUERY, "queries")
_INPUT: Final = ("topic", "prefix", *_PLACE, "schema", "key", "watermark", "starting", "options")
_OUTPUT: Final = ("kind", "topic", "key", "path", *_PLACE, "chain", "mode", "checkpoint", "trigger", "options")
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_VIEW: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
_URI: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")
_BLOCK: Final = re.compile(r"(?m)^# /// chappe *\n(?P<body>(?:#(?: .*)?\n)*?)# /// *$")
# What belongs to each kind of output besides kind, mode, checkpoint, trigger and options, and what it needs.
_BELONGS: Final = {
    "topic": {"topic", "key", "chain", *_PLACE},
    "table": {"topic", "key", "chain", *_PLACE},
    "parquet": {"path"},
    "console": set[str](),
}
_SOME: Final = {"topic", "key", "path", "chain", *_PLACE}  # what does not belong to all of them
_NEEDS: Final = {"topic": (), "table": ("topic", "key"), "parquet": ("path",), "console": ()}
# Options of Spark's Parquet writer in a stream; those that begin with "parquet." are Parquet's own.
_PARQUET: Final = ("compression", "maxRecordsPerFile", "partitionBy", "retention")
_OF_OUTPUT: Final = {
    "path": "path", "checkpointlocation": "checkpoint", "topic": "topic", "chain": "chain", "outputmode": "mode",
}  # fmt: skip
_OF_INPUT: Final = {"subscribe": "topic", "subscribepattern": "prefix", "startingoffsets": "starting"}


def read_pipeline(file: Path) -> model.Pipeline:
    """Read and check a file; start, import or ask nothing. Raises PipelineInvalid, which names all that is wrong."""
    text, python = _read(file)
    block = _block(file, text) if python else text
    try:
        values = tomllib.loads(block)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        line, problem = toml_problem(str(error), block)
        raise PipelineInvalid([Problem(file, line, f"not TOML: {problem}")]) from error
    complaints = FileComplaints(file, TomlLines(block))
    pipeline = _PipelineReader(file, python, complaints).read(values)
    if python:
        complaints.found += _function_problems(file, text, pipeline)
    if complaints.found:
        raise PipelineInvalid(sorted(complaints.found, key=lambda each: (each.file != file, each.line)))
    return pipeline


def _read(file: Path) -> tuple[str, bool]:
    if file.suffix not in (".toml", ".py"):
        raise PipelineInvalid([Problem(file, 1, "a pipeline is a file named *.toml or *.py")])
    return _text(file), file.suffix == ".py"


def _text(file: Path) -> str:
    try:
        if file.stat().st_size > FILE_BYTES_MAX:
            raise PipelineInvalid([Problem(file, 1, f"larger than {FILE_BYTES_MAX} bytes: this is not a pipeline")])
        return file.read_bytes().decode()
    except OSError as error:
        raise PipelineInvalid([Problem(file, 1, f"cannot be read: {error.strerror}")]) from error
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise PipelineInvalid([Problem(file, line, "not UTF-8 text")]) from error


def _block(file: Path, text: str) -> str:
    """Return the TOML in a Python file's comments, with blank lines before it, so that line numbers are the file's."""
    found = list(_BLOCK.finditer(text))
    if len(found) != 1:
        what = "two comment blocks" if found else "no comment block"
        raise PipelineInvalid(
            [Problem(file, 1, f"{what} `# /// chappe` ... `# ///` with inputs and output: one is needed")]
        )
    above = text[: found[0].start("body")].count("\n")
    return "\n" * above + re.sub(r"(?m)^# ?", "", found[0]["body"])


def _function_problems(file: Path, text: str, pipeline: model.Pipeline) -> Iterator[Problem]:
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError) as error:
        yield Problem(file, getattr(error, "lineno", None) or 1, f"not Python: {getattr(error, 'msg', error)}")
        return
    functions = [each for each in tree.body if isinstance(each, ast.FunctionDef) and each.name == FUNCTION]
    if not functions:
        yield Problem(file, 1, f"no function `{FUNCTION}(spark, ...)`: it makes the rows of the output")
        return
    names = [each.arg for each in (*functions[-1].args.posonlyargs, *functions[-1].args.args)]
    if names[:1] != ["spark"]:
        yield Problem(file, functions[-1].lineno, f"the first parameter of `{FUNCTION}` is `spark`, the session")
    inputs = [each.name for each in pipeline.inputs]
    for name in names[1:]:
        if name not in inputs:
            known = f"there are {', '.join(inputs)}" if inputs else "there are none"
            yield Problem(file, functions[-1].lineno, f"parameter `{name}` is not an input of the pipeline: {known}")


class _PipelineReader:
    def __init__(self, file: Path, python: bool, complaints: FileComplaints) -> None:
        self._file = file
        self._folder = file.absolute().parent
        self._python = python
        self._complaints = complaints

    def read(self, values: Mapping[str, object]) -> model.Pipeline:
        top = TomlTable(values, (), self._complaints)
        top.allow(_TOP)
        name = top.text("name") or self._file.stem
        if not _NAME.fullmatch(name):
            top.complain(
                "name", f"{name!r} cannot be a pipeline's name: letters, digits, dot, underscore and dash, at most 64"
            )
        spark = top.table("spark") or TomlTable({}, ("spark",), self._complaints)
        spark.allow(("master", "settings"))
        place = self._place(top, model.StorePlace())
        inputs = tuple(self._input(key, table, place) for key, table in top.tables("inputs"))
        if not inputs and not self._python:
            top.complain("", "no [inputs.NAME]: say which topics the pipeline reads")
        return model.Pipeline(
            name=name,
            file=self._file,
            python=self._python,
            master=self._master(spark),
            settings=self._settings(spark),
            inputs=inputs,
            queries=tuple(self._queries(top, name, place)),
            lines=self._complaints.lines,
        )

    def _master(self, spark: TomlTable) -> str:
        value = spark.text("master")
        try:
            return check_master(value or "local[*]")
        except UsageError as error:
            spark.complain("master", str(error))
            return "local[*]"

    def _settings(self, spark: TomlTable) -> dict[str, str]:
        found = spark.settings("settings")
        for name in found:
            if not name.startswith("spark."):  # Spark would ignore it
                text = f"`{name}` is not a setting of Spark: their names begin with `spark.`"
                self._complaints.add((*spark.keys, "settings", name), text)
        return found

    def _place(self, table: TomlTable, default: model.StorePlace) -> model.StorePlace:
        stores, towers = table.texts("stores"), table.texts("towers")
        if stores and towers:
            table.complain("towers", "give `stores` or `towers`, not both")
        return model.StorePlace(stores, towers) if stores or towers else default

    def _input(self, name: str, table: TomlTable, place: model.StorePlace) -> model.Input:
        table.allow(_INPUT)
        if not _VIEW.fullmatch(name):
            table.complain("", f"{name!r} cannot be an input's name: letters, digits and underscores, as SQL needs it")
        topics, prefix = table.texts("topic"), table.text("prefix")
        if ("topic" in table) == ("prefix" in table):
            table.complain("", f"`{table.path()}` needs `topic` or `prefix`, one of them: that is what it reads")
        if any(each.endswith("*") for each in topics):
            table.complain("topic", "`topic` names topics; for all that begin alike write `prefix`")
        options = table.settings("options")
        for option in options:
            if option.lower() in _OF_INPUT or option.lower() in _PLACE:
                key = _OF_INPUT.get(option.lower(), option.lower())
                self._complaints.add((*table.keys, "options", option), f"say `{key}` instead of option `{option}`")
        keyed, schema = table.texts("key"), table.text("schema")
        if keyed and schema is None:
            table.complain("key", "`key` names columns of `schema` that the record's key has, and there is no `schema`")
        return model.Input(
            name,
            topics,
            prefix.removesuffix("*") if prefix else None,
            self._place(table, place),
            schema,
            table.parsed("watermark", _watermark),
            self._starting(table),
            options,
            keyed,
        )

    def _starting(self, table: TomlTable) -> dict[str, str]:
        value = table.values.get("starting", "earliest")
        if value in ("earliest", "latest"):
            return {"startingOffsets": str(value)}
        with suppress(ValueError, OverflowError, OSError):
            if isinstance(value, str):
                value = datetime.fromisoformat(value)
            if isinstance(value, date) and not isinstance(value, datetime):
                value = datetime(value.year, value.month, value.day)
            if isinstance(value, datetime):
                return {"startingTimestamp": str(int(value.astimezone(UTC).timestamp() * 1000))}
        table.complain("starting", f"`{table.path('starting')}` is earliest, latest or a time such as 2026-01-31T12:00")
        return {}

    def _queries(self, top: TomlTable, name: str, place: model.StorePlace) -> Iterator[model.PipelineQuery]:
        tables = top.array("queries")
        if tables and any(each in top for each in _QUERY):
            top.complain("queries", "with [[queries]], `sql`, `sql_file` and `output` belong into each of them")
        if not tables:
            if "queries" not in top:
                yield self._query(top, name, name, place)
            return
        seen: set[str] = set()
        for table in tables:
            table.allow(("name", *_QUERY))
            own = table.text("name") or ""
            if not _NAME.fullmatch(own):
                table.complain(
                    "name", "each of [[queries]] needs a `name` of letters, digits, dot, underscore and dash"
                )
            elif own in seen:
                table.complain("name", f"two queries are named {own}")
            seen.add(own)
            yield self._query(table, own, f"{name}/{own}", place)

    def _query(self, table: TomlTable, name: str, directory: str, place: model.StorePlace) -> model.PipelineQuery:
        sql = self._sql(table)
        out = table.table("output")
        if out is None and "output" not in table:
            table.complain("", "no [output]: say where the rows go")
        out = out or TomlTable({"kind": "console"}, (*table.keys, "output"), self._complaints)
        checkpoint = self._path(out.text("checkpoint") or f"{DIRECTORY}/{directory}")
        return model.PipelineQuery(
            name,
            sql,
            self._output(out, place),
            checkpoint,
            out.parsed("trigger", trigger) or model.Trigger(),
            table.keys,
        )

    def _sql(self, table: TomlTable) -> model.Sql | None:
        given = [each for each in ("sql", "sql_file") if each in table]
        if self._python:
            for each in given:
                table.complain(each, f"a Python file has no `{each}`: its function `{FUNCTION}` makes the rows")
            return None
        if len(given) != 1:
            what = "both `sql` and `sql_file`" if given else "neither `sql` nor `sql_file`"
            table.complain("", f"{what}: one of them makes the rows")
            return None
        value = table.text(given[0])
        if value is None:
            return None
        if given == ["sql"]:
            return model.Sql(value, self._file, self._complaints.lines.of_text((*table.keys, "sql")))
        path = self._folder / value
        try:
            return model.Sql(_text(path), self._file.parent / value, 1)
        except PipelineInvalid as error:
            table.complain("sql_file", f"{value}: {error.problems[0].text}")
            return None

    def _output(self, table: TomlTable, place: model.StorePlace) -> model.Output:
        table.allow(_OUTPUT)
        kind = table.choice("kind", model.KINDS)
        if "kind" not in table:
            table.complain("", f"no `{table.path('kind')}`: it is {', '.join(model.KINDS)}")
        known = kind or "topic"
        for name in _NEEDS[known] if kind else ():
            if name not in table:
                table.complain("", f"an output of kind {kind} needs `{name}`")
        for name in sorted(set(table.values) & _SOME - _BELONGS[known] if kind else ()):
            table.complain(name, f"an output of kind {kind} has no `{name}`")
        topics = table.texts("topic")
        if len(topics) > 1 or any(each.endswith("*") for each in topics):
            table.complain("topic", "an output writes to one topic; a column `topic` can say which for each row")
        key, mode = table.texts("key"), table.choice("mode", model.MODES, "update" if kind == "table" else "append")
        if kind == "topic" and len(key) > 1:
            table.complain("key", "`key` is one column; put several into one with concat_ws, or struct and to_json")
        if kind == "parquet" and mode != "append":
            table.complain("mode", "files are only added to: an output of kind parquet has mode append")
        if mode == "complete" and kind in ("topic", "table"):
            table.complain("mode", f"an output of kind {kind} has mode append or update: a topic is never emptied")
        path, chain = table.text("path"), table.text("chain")
        if chain and ("stores" in table or "towers" in table):
            table.complain("chain", "`chain` says where rows go: leave out `stores` and `towers`")
        if kind == "console" and "options" in table:
            table.complain("options", "an output of kind console has no `options`")
        return model.Output(
            cast(model.Kind, known),
            cast(model.Mode, mode),
            topics[0] if topics else None,
            self._path(path) if path else None,
            key,
            self._place(table, place),
            self._output_options(table, known),
            self._path(chain) if chain else None,
        )

    def _output_options(self, table: TomlTable, kind: str) -> dict[str, str]:
        """Check Parquet options, of which Spark ignores unknown ones; the sink checks options of a topic."""
        options = table.settings("options")
        known = {each.lower(): each for each in _PARQUET}
        for option in options:
            name = option.lower()
            if name in _OF_OUTPUT or name in _PLACE:
                text = f"say `{_OF_OUTPUT.get(name, name)}` instead of option `{option}`"
            elif kind != "parquet" or name in known or name.startswith("parquet."):
                continue
            else:
                near = difflib.get_close_matches(name, known, 1)
                there = (
                    f"did you mean `{known[near[0]]}`?" if near else f"there are {', '.join(_PARQUET)}, and parquet.*"
                )
                text = f"unknown option `{option}` of kind parquet: {there}"
            self._complaints.add((*table.keys, "options", option), text)
        return options

    def _path(self, text: str) -> str:
        return text if _URI.match(text) else str(self._folder / Path(text).expanduser())


def trigger(text: str) -> model.Trigger:
    """Return the trigger from ``1 second``, ``available-now`` or ``as fast as possible``; raises UsageError."""
    if text == model.AVAILABLE_NOW:
        return model.Trigger(available_now=True)
    if text == model.BACK_TO_BACK:
        return model.Trigger()
    if text.lower().startswith(("continuous", "real")):
        raise UsageError(
            f"{text!r}: neither continuous nor real-time mode works with Python data sources; "
            f"the quickest is {model.BACK_TO_BACK!r}"
        )
    try:
        return model.Trigger(interval_ms=model.duration_ms(text))
    except UsageError as error:
        known = f"{model.AVAILABLE_NOW!r}, {model.BACK_TO_BACK!r}"
        raise UsageError(f"{text!r} is not a trigger; write {known} or a duration such as '1 second'") from error


def _watermark(text: str) -> model.Watermark:
    column, _, delay = text.strip().partition(" ")
    if not delay.strip():
        raise UsageError(f"{text!r} is not a watermark; write a column and a duration: timestamp 10 seconds")
    return model.Watermark(column.strip("`"), model.duration_ms(delay))
