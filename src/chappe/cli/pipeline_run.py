"""One run of a pipeline in a terminal, under a supervisor or for a machine: from claim to exit code; its numbers."""

from __future__ import annotations

import json
import os
import queue
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, redirect_stderr, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal

import msgspec
from rich.console import Console, Group
from rich.text import Text

from chappe.api.log.lines import readable_name
from chappe.cli.console import exit_code, hand_signals, say, warn
from chappe.cli.screen import Fitting, People, Screen
from chappe.cli.serving import notify, serve_run
from chappe.cli.units import human_bytes
from chappe.data import terminal
from chappe.data.markup import many
from chappe.errors import ChappeError, UsageError
from chappe.observing.numbers import Family, of_pipelines
from chappe.observing.snapshot import ObservedPipeline, ObservedQuery
from chappe.spark.pipeline.model import Pipeline, PipelineInvalid, Trigger
from chappe.spark.pipeline.running import PipelineFailed, RunningPipeline
from chappe.spark.pipeline.states import Failure, PipelineState, States, started_at
from chappe.spark.sentences import is_sparks, sentence

PIPE_WIDTH: Final = 160  # of a table where no terminal says how wide it is
HEAD: Final = "bold cyan"
QUERY: Final = ("query", "in/s", "processed/s", "rows", "batch", "took", "late", "state rows", "state", "watermark")
SPARE: Final = ("late", "state", "state rows", "watermark", "batch", "processed/s")
STEP_S: Final = 0.1
WRITE_S: Final = 1.0  # how often the state file is brought up to date
LAG: Final = ("query", "topic", "lag records", "lag bytes", "lag")


def show(screen: Screen, name: str, running: RunningPipeline, began: float) -> None:
    """Show the state of a running pipeline; call it several times a second."""
    numbers, elapsed = running.numbers, f"{time.monotonic() - began:6.1f} s"
    head = Text(f"{elapsed}  {name}: {running.stage}", style="bold")
    note = Text("Ctrl-C ends it after the batch under way", style="dim")
    screen.show(
        lambda: Group(head, note, *tables(numbers)),
        lambda: (f"{elapsed}  {running.stage}: {line(each)}" for each in numbers),
    )


def line(numbers: ObservedQuery) -> str:
    if numbers.batch < 0:
        return f"{numbers.name}: no batch yet"
    state = (
        f", state {many(numbers.state_rows, 'row')} ({human_bytes(numbers.state_bytes)})" if numbers.state_rows else ""
    )
    return (
        f"{numbers.name}: {numbers.rows_in_s:,.0f} rows/s in, {numbers.rows_processed_s:,.0f} processed, "
        f"lag {many(numbers.lag_records, 'record')} ({seconds(numbers.lag_s)}), "
        f"batch {numbers.batch} took {numbers.batch_s:.2f} s, {numbers.rows:,} rows so far{state}"
    )


def tables(numbers: Sequence[ObservedQuery]) -> tuple[Fitting, Fitting]:
    """Return tables of the queries, and of the lag of each of their topics."""
    queries = [
        (
            each.name,
            f"{each.rows_in_s:,.0f}",
            f"{each.rows_processed_s:,.0f}",
            f"{each.rows:,}",
            "" if each.batch < 0 else str(each.batch),
            f"{each.batch_s:.2f} s",
            f"{each.late_rows:,}",
            f"{each.state_rows:,}",
            human_bytes(each.state_bytes),
            each.watermark,
        )
        for each in numbers
    ]
    lags = [
        (each.name, readable_name(lag.topic), f"{lag.records:,}", human_bytes(lag.bytes), seconds(lag.seconds))
        for each in numbers
        for lag in each.lag
    ]
    return (
        Fitting(QUERY, queries, left=("query", "watermark"), spare=SPARE, style=HEAD),
        Fitting(LAG, lags, left=("query", "topic"), spare=("query", "lag bytes"), style=HEAD),
    )


def seconds(value: float | None) -> str:
    """Return a lag in seconds, or a question mark."""
    return "? s" if value is None else f"{value:,.1f} s"


@dataclass(slots=True)
class PipelineRun:
    """A pipeline from start to end in this process."""

    pipeline: Pipeline
    towers: str
    master: str | None
    once: bool
    seconds: float | None
    metrics: str | None
    json: bool
    states: States = field(default_factory=States)
    security: Literal["plain"] | None = None  # of the numbers
    running: RunningPipeline | None = None
    written_at: float = 0.0
    told: bool = False
    stops: list[KeyboardInterrupt] = field(default_factory=list)  # signals that asked it to end
    clean: bool = True  # False if it was stopped before it began, or in the middle of a batch

    def run(self) -> int:
        """Run to the end; return the exit code.

        Raises:
            ChappeError: The pipeline could not start, or a query failed.
        """
        try:
            import psutil  # type: ignore[import-untyped, unused-ignore]  # noqa: F401
        except ImportError as error:
            raise UsageError("pipelines need Spark and psutil; run: pip install 'chappe[spark]'") from error
        log = self.states.log_path(self.pipeline.name)
        state = PipelineState(
            name=self.pipeline.name,
            file=str(self.pipeline.file.absolute()),
            pid=os.getpid(),
            started=started_at(os.getpid()) or 0.0,
            began=_now(),
            log=str(log),
        )
        console = People(file=sys.stderr)
        try:
            # Python's locks and imports do not bear the signals everywhere: the pipeline's thread would wait for ever
            with self.states.claim(state), hand_signals(self.stops.append):
                say(f"starting pipeline {state.name}; Ctrl-C ends it after the batch under way")
                running = self._run(state, log, console)
        except KeyboardInterrupt as stop:  # before there was anything to end
            self._say_unfinished()
            return exit_code(stop)
        return self._account(running, log)

    def _run(self, state: PipelineState, log: Path, console: Console) -> RunningPipeline:
        with ExitStack() as ending:
            # output of Java and Spark on standard error would tear the table apart
            file = ending.enter_context(log.open("w", encoding="utf-8", errors="backslashreplace"))
            ending.enter_context(redirect_stderr(file))
            trigger = Trigger(available_now=True) if self.once else None
            if self.stops:
                raise self.stops[0]
            state.metrics = serve_run(self.metrics, self.security, ending, self._families, self._unready) or ""
            self.running = running = RunningPipeline(self.pipeline, self.towers, master=self.master, trigger=trigger)
            screen = ending.enter_context(Screen(console, quiet=self.json))
            self._follow(state, running, partial(show, screen, state.name, running, time.monotonic()))
            return running

    def _families(self) -> Iterable[Family]:
        running = self.running
        stage, queries = ("starting", ()) if running is None else (running.stage, tuple(running.numbers))
        return of_pipelines([ObservedPipeline(self.pipeline.name, stage, os.getpid(), "", "", "", queries=queries)])

    def _unready(self) -> str:
        stage = "starting" if self.running is None else self.running.stage
        return "" if stage == "running" else f"pipeline {self.pipeline.name} is {stage}"

    def _follow(self, state: PipelineState, running: RunningPipeline, update: Callable[[], None]) -> None:
        """Show, print and write down the progress until the pipeline has ended; stop it when that is asked for."""
        end = float("inf")
        asked = False
        while running.alive:
            if self.stops and not asked:
                asked = True
                self.clean = running.stage != "starting"
                running.stop()
            if len(self.stops) > 1:  # leave out the rest
                running.stop(hurry=True)
                self.clean = False
                return
            self._tell(state, running)
            if running.stage == "running" and end == float("inf") and self.seconds is not None:
                end = time.monotonic() + self.seconds
            if time.monotonic() >= end:
                running.stop()
            update()
            state.master, state.page = running.master, running.page
            if time.monotonic() >= self.written_at + WRITE_S:
                self.written_at = time.monotonic()
                state.stage, state.updated = running.stage, _now()
                state.queries = running.numbers
                self.states.write(state)
            running.join(STEP_S)
        self._tell(state, running)

    def _tell(self, state: PipelineState, running: RunningPipeline) -> None:
        if not self.told and running.stage == "running":
            self.told = True
            notify("READY=1")
            if self.json:
                self._print(event="started", pipeline=state.name, pid=state.pid, master=running.master,
                            metrics=state.metrics, log=state.log, file=state.file)  # fmt: skip
        while True:
            try:
                event = running.events.get_nowait()
            except queue.Empty:
                return
            if isinstance(event, ObservedQuery):
                if self.json:
                    self._print(event="progress", **msgspec.to_builtins(event))
                continue
            for row in event.rows:
                head = f'{{"event": "row", "query": {json.dumps(event.query)}, "row": ' if self.json else ""
                print(terminal.json_line(f"{head}{row}{'}' if head else ''}".encode()).decode(), flush=True)
            if event.more:
                warn(f"{event.query}: {event.more} more rows of this batch are not printed")

    def _account(self, running: RunningPipeline, log: Path) -> int:
        """Say how the run ended; return the exit code."""
        error = running.error
        if error is not None and is_sparks(error):
            error = PipelineFailed(f"Spark failed: {sentence(error)}")
            error.__cause__ = running.error
        if error is not None:
            file = str(self.pipeline.file.absolute())
            with suppress(OSError):  # it is told anyway
                self.states.fail(Failure(self.pipeline.name, file, str(error), _now(), str(log)))
            if self.json and not isinstance(error, PipelineInvalid):
                self._print(event="failed", pipeline=self.pipeline.name, error=str(error))
            if isinstance(error, ChappeError) and not isinstance(error, UsageError):
                raise type(error)(f"{error}; Spark's log: {log}") from error
            raise error
        clean = self.clean and not running.unfinished
        rows, batches = (sum(getattr(each, name) for each in running.numbers) for name in ("rows", "batches"))
        if self.json:
            self._print(event="ended", pipeline=self.pipeline.name, rows=rows, batches=batches, finished=clean)
        elif clean:
            say(f"pipeline {self.pipeline.name} ended: {many(rows, 'row')} in {many(batches, 'batch', 'batches')}")
        if not clean:
            self._say_unfinished()
        return 0 if clean else exit_code(self.stops[0] if self.stops else KeyboardInterrupt())

    def _say_unfinished(self) -> None:
        warn(f"pipeline {self.pipeline.name} was stopped in the middle; the next run goes on from its checkpoint")

    def _print(self, **fields: Any) -> None:
        print(json.dumps(fields), flush=True)


def _now() -> str:
    return f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"
