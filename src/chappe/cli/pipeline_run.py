"""One run of a pipeline in a terminal, under a supervisor or for a machine: from claim to exit code."""

from __future__ import annotations

import json
import os
import queue
import sys
import time
from contextlib import ExitStack, redirect_stderr
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from rich.console import Console

from chappe.cli.console import exit_code, say, warn
from chappe.cli.pipeline_view import View
from chappe.cli.screen import Screen
from chappe.errors import ChappeError, UsageError
from chappe.spark.pipeline.metrics import Metrics
from chappe.spark.pipeline.model import Pipeline, PipelineInvalid, Trigger
from chappe.spark.pipeline.running import Progress, Running
from chappe.spark.pipeline.states import State, States, started_at

STEP_S: Final = 0.1
WRITE_S: Final = 1.0  # how often the state file is brought up to date


class Run:
    """A pipeline from start to end in this process; ``run`` returns the exit code."""

    def __init__(
        self,
        pipeline: Pipeline,
        towers: str,
        master: str | None,
        once: bool,
        seconds: float | None,
        metrics: tuple[str, int] | None,
        as_json: bool,
    ) -> None:
        self._pipeline = pipeline
        self._towers = towers
        self._master = master
        self._trigger = Trigger(available_now=True) if once else None
        self._seconds = seconds
        self._metrics = metrics
        self._json = as_json
        self._states = States()
        self._written_at = 0.0
        self._told = False
        self._interrupt: KeyboardInterrupt | None = None
        self._clean = True  # whether what was asked to end had begun, and finished its batches

    def run(self) -> int:
        """Run to the end.

        Raises:
            ChappeError: It could not start, or a query failed.
        """
        try:
            import psutil  # type: ignore[import-untyped, unused-ignore]  # noqa: F401
        except ImportError as error:
            raise UsageError("pipelines need Spark and psutil; run: pip install 'chappe[spark]'") from error
        log = self._states.log_path(self._pipeline.name)
        state = State(
            name=self._pipeline.name,
            file=str(self._pipeline.file.absolute()),
            pid=os.getpid(),
            started=started_at(os.getpid()) or 0.0,
            began=_now(),
            log=str(log),
        )
        console = Console(file=sys.stderr)
        try:
            with self._states.claim(state):
                say(f"starting pipeline {state.name}; Ctrl-C ends it after the batch under way")
                running = self._run(state, log, console)
        except KeyboardInterrupt as stop:  # before there was anything to end
            self._say_unfinished()
            return exit_code(stop)
        return self._account(running, log)

    def _run(self, state: State, log: Path, console: Console) -> Running:
        with ExitStack() as ending:
            # what Java and Spark say on standard error would tear the table apart
            file = ending.enter_context(log.open("w", encoding="utf-8", errors="backslashreplace"))
            ending.enter_context(redirect_stderr(file))
            running = Running(self._pipeline, self._towers, master=self._master, trigger=self._trigger)
            if self._metrics is not None:
                try:
                    server = Metrics(state.name, running, *self._metrics)
                except BaseException:
                    running.stop(hurry=True)
                    raise
                ending.callback(server.close)
                state.metrics = server.address
            screen = ending.enter_context(Screen(console, quiet=self._json))
            view = View(state.name, running, screen)
            while True:
                try:
                    self._follow(state, running, view)
                    return running
                except KeyboardInterrupt as stop:
                    if self._interrupt is not None:  # a second one: leave out the rest
                        running.stop(hurry=True)
                        self._clean = False
                        return running
                    self._interrupt = stop
                    self._clean = running.stage != "starting"
                    running.stop()

    def _follow(self, state: State, running: Running, view: View) -> None:
        """Show, tell and write down what happens until the pipeline has ended."""
        end = float("inf")
        while running.alive:
            self._tell(state, running)
            if running.stage == "running" and end == float("inf") and self._seconds is not None:
                end = time.monotonic() + self._seconds
            if time.monotonic() >= end:
                running.stop()
            view.update()
            state.master = running.master
            if time.monotonic() >= self._written_at + WRITE_S:
                self._written_at = time.monotonic()
                state.stage, state.updated = running.stage, _now()
                state.queries = [each.as_dict() for each in running.numbers]
                self._states.write(state)
            running.join(STEP_S)
        self._tell(state, running)

    def _tell(self, state: State, running: Running) -> None:
        """Print what has happened since the last time."""
        if self._json and not self._told and running.stage == "running":
            self._told = True
            self._print(event="started", pipeline=state.name, pid=state.pid, master=running.master,
                        metrics=state.metrics, log=state.log, file=state.file)  # fmt: skip
        while True:
            try:
                event = running.events.get_nowait()
            except queue.Empty:
                return
            if isinstance(event, Progress):
                if self._json:
                    self._print(event="progress", **event.numbers.as_dict())
                continue
            for row in event.rows:
                head = f'{{"event": "row", "query": {json.dumps(event.query)}, "row": ' if self._json else ""
                print(f"{head}{row}{'}' if head else ''}", flush=True)
            if event.more:
                warn(f"{event.query}: {event.more} more rows of this batch are not printed")

    def _account(self, running: Running, log: Path) -> int:
        """Say how it ended; returns the exit code."""
        error = running.error
        if error is not None:
            if self._json and not isinstance(error, PipelineInvalid):
                self._print(event="failed", pipeline=self._pipeline.name, error=str(error))
            if isinstance(error, ChappeError) and not isinstance(error, UsageError):
                raise type(error)(f"{error}; Spark's log: {log}") from error
            raise error
        clean = self._clean and not running.unfinished
        rows, batches = (sum(getattr(each, name) for each in running.numbers) for name in ("rows", "batches"))
        if self._json:
            self._print(event="ended", pipeline=self._pipeline.name, rows=rows, batches=batches, finished=clean)
        elif clean:
            say(f"pipeline {self._pipeline.name} ended: {rows:,} rows in {batches:,} batches")
        if not clean:
            self._say_unfinished()
        return 0 if clean else exit_code(self._interrupt or KeyboardInterrupt())

    def _say_unfinished(self) -> None:
        warn(f"pipeline {self._pipeline.name} was stopped in the middle; the next run goes on from its checkpoint")

    def _print(self, **fields: Any) -> None:
        print(json.dumps(fields), flush=True)


def _now() -> str:
    return f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"
