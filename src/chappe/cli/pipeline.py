"""``chappe pipeline``: run and check pipelines that are files; list, look at and stop those that run."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
import typer
from typer import Argument, Option

from chappe.cli import dashboard, options
from chappe.cli.console import say, show_json, tell, warn
from chappe.cli.serving import Metrics
from chappe.cli.watching import watchable

if TYPE_CHECKING:
    from chappe.spark.pipeline.model import Pipeline

STOP_S: Final = 150.0  # more than a batch gets to be finished

app = typer.Typer(
    name="pipeline",
    help="Run pipelines: topics in, SQL or Python, topics, tables or Parquet out.",
    no_args_is_help=True,
)

File = Annotated[Path, Argument(metavar="FILE", help="The pipeline: *.toml, or *.py.")]
Name = Annotated[str, Argument(metavar="NAME", help="Name of a running pipeline.")]


@app.command()
def run(
    file: File,
    master: Annotated[
        str | None,
        Option(help="Where Spark runs: local[*] (here), spark://HOST:PORT, ..., sc://HOST:PORT (Spark Connect)."),
    ] = None,
    once: Annotated[bool, Option("--once", help="Process what is there now, and end.")] = False,
    seconds: Annotated[float | None, Option(min=0, help="End this long after the queries have started.")] = None,
    metrics: Metrics = None,
    tower: options.Tower = options.TOWER,
    acting: options.Acting = None,
    plain: options.Plain = False,
    look: dashboard.Wanted = False,
    as_json: options.Json = False,
) -> None:
    """Run a pipeline until Ctrl-C, SIGTERM or `stop`; a batch under way is finished first."""
    from chappe.cli.pipeline_run import PipelineRun
    from chappe.spark.session import check_master

    options.be(acting, plain)
    with _problems(as_json):
        pipeline = _read(file, tower)
        this = PipelineRun(
            pipeline, tower, check_master(master) if master else None, once, seconds, metrics, as_json,
            security="plain" if plain else None,
        )  # fmt: skip
        with dashboard.beside(look, "--tower", tower, *(["--plain"] if plain else [])) as url:
            if url is not None:
                tell(as_json, {"event": "dashboard", "url": url}, f"dashboard at {url}")
            code = this.run()
    if code:
        raise typer.Exit(code)


@app.command()
def check(
    file: File, tower: options.Tower = options.TOWER, acting: options.Acting = None, as_json: options.Json = False
) -> None:
    """Check a pipeline: its file, names, options, and its queries as Spark sees them; nothing is started."""
    options.be(acting)
    with _problems(as_json):
        pipeline = _read(file, tower)
        found = _analyse(pipeline, tower)
    lines = [f"pipeline {pipeline.name} in {file} is fine"]
    for each in found:
        columns = ", ".join(f"{column['name']} {column['type']}" for column in each["columns"])
        lines.append(f"  {each['name']} to {each['output']}: {columns}")
    facts = {"file": str(file), "name": pipeline.name, "ok": True, "problems": [], "queries": found}
    tell(as_json, facts, "\n".join(lines))


@app.command("list")
@watchable
def list_running(as_json: options.Json = False) -> None:
    """List the running pipelines of this user."""
    from chappe.spark.pipeline.states import States

    running = States().running()
    if as_json:
        for each in running:
            show_json(msgspec.to_builtins(each))
        return
    if not running:
        print("no pipeline runs; start one with: chappe pipeline run FILE")
        return
    from rich.table import Table

    from chappe.cli.pipeline_run import PIPE_WIDTH, seconds
    from chappe.cli.screen import cell, wide_console

    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in ("name", "stage", "process", "since", "processed/s", "lag", "file"):
        table.add_column(name, overflow="fold" if name == "file" else "ellipsis", no_wrap=name != "file")
    for each in running:
        lags = [query.lag_s for query in each.queries]
        table.add_row(
            cell(each.name),
            each.stage,
            str(each.pid),
            each.began,
            f"{sum(query.rows_processed_s for query in each.queries):,.0f}",
            seconds(None if None in lags else max(filter(None, lags), default=0.0)),
            cell(each.file),
        )
    wide_console(PIPE_WIDTH).print(table)


@app.command()
@watchable
def status(name: Name, as_json: options.Json = False) -> None:
    """Show how a running pipeline is: rates, lag, state."""
    from chappe.spark.pipeline.states import States

    found = States().find(name)
    if as_json:
        show_json(msgspec.to_builtins(found))
        return
    from chappe.cli.pipeline_run import PIPE_WIDTH, tables
    from chappe.cli.screen import wide_console

    console = wide_console(PIPE_WIDTH)
    lines = [
        f"{found.name}: {found.stage}, process {found.pid}, since {found.began}, seen {found.updated}",
        f"file {found.file}",
        f"Spark at {found.master}, its log {found.log}",
        *([f"metrics at {found.metrics}"] if found.metrics else []),
    ]
    for line in lines:
        console.print(line, soft_wrap=True, markup=False, highlight=False)
    console.print(*tables(found.queries))


@app.command()
def stop(name: Name) -> None:
    """Ask a running pipeline to end, and wait until it has finished the batch under way."""
    from chappe.spark.pipeline.states import States

    if not States().stop(name, STOP_S):
        warn(f"pipeline {name} has not ended after {STOP_S:g} s; it goes on ending, `chappe pipeline status` shows how")
        raise typer.Exit(1)
    say(f"pipeline {name} ended")


def _read(file: Path, towers: str) -> Pipeline:
    from chappe.spark.pipeline.frames import option_problems
    from chappe.spark.pipeline.model import PipelineInvalid
    from chappe.spark.pipeline.reading import read_pipeline

    pipeline = read_pipeline(file)
    problems = list(option_problems(pipeline, towers))
    if problems:
        raise PipelineInvalid(problems)
    return pipeline


def _analyse(pipeline: Pipeline, towers: str) -> list[dict[str, Any]]:
    """Let Spark analyse the queries; return the columns of each. Raises PipelineInvalid."""
    from chappe.spark.pipeline.frames import prepare
    from chappe.spark.pipeline.running import SETTINGS
    from chappe.spark.session import spark_session

    with tempfile.TemporaryFile("w+", encoding="utf-8") as noise, redirect_stderr(noise):
        spark = spark_session("chappe pipeline check", conf={**SETTINGS, **pipeline.settings}, master="local[1]")
        try:
            prepared = prepare(spark, pipeline, towers)
            return [
                {
                    "name": each.query.name,
                    "output": each.query.output.kind,
                    "columns": [{"name": name, "type": kind} for name, kind in each.rows.dtypes],
                }
                for each in prepared
            ]
        finally:
            spark.stop()


@contextmanager
def _problems(as_json: bool) -> Iterator[None]:
    """Print all problems of a file, one line each, and end with exit code 2."""
    from chappe.spark.pipeline.model import PipelineInvalid

    try:
        yield
    except PipelineInvalid as invalid:
        problems = [{"file": str(each.file), "line": each.line, "text": each.text} for each in invalid.problems]
        if as_json:
            show_json({"ok": False, "problems": problems})
        for each in () if as_json else invalid.problems:
            warn(str(each))
        raise typer.Exit(2) from None
