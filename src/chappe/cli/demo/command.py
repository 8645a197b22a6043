"""``chappe demo``: real input through a tower, a store on disk and Spark, shown live."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, redirect_stderr
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from chappe.cli import options
from chappe.cli.console import say, warn
from chappe.errors import TimedOut, UsageError

if TYPE_CHECKING:
    from rich.console import Console

    from chappe.cli.demo.children import Child
    from chappe.cli.demo.query import Query
    from chappe.cli.demo.view import Status, View
    from chappe.cli.demo.windows import Windows

DIRECTORY: Final = Path("chappe-data/demo")
MARK: Final = "demo.json"  # says what the directory holds; without it the directory is not ours to delete
FORM: Final = 2  # of the query's state in the checkpoint
LOG: Final = "spark.log"  # what Java and Spark say
SECONDS: Final = 30.0  # without a terminal and without --seconds
START_S: Final = 30.0  # for the first input
CHILD_START_S: Final = 120.0  # on a busy machine; one that ends is noticed at once
STEP_S: Final = 0.1
PIPE_WIDTH: Final = 110  # of the table where no terminal says how wide it is
METRICS_TOPIC: Final = "demo.metrics"
LINES_TOPIC: Final = "demo.lines"


def demo(
    source: Annotated[
        str | None,
        typer.Option("--input", metavar="FILE|-", help="Lines of text or JSON instead of this machine's measurements."),
    ] = None,
    seconds: Annotated[
        float | None,
        typer.Option(
            min=0, help="End this long after the query has started; without it, on Ctrl-C or at the input's end."
        ),
    ] = None,
    directory: Annotated[
        Path,
        typer.Option(envvar="CHAPPE_DEMO_DIRECTORY", help="Where topic, checkpoint and Parquet are kept."),
    ] = DIRECTORY,
    tower: Annotated[
        str,
        typer.Option(
            envvar="CHAPPE_TOWER", metavar="ADDRESS", help="Where its tower listens; if that is taken, at another port."
        ),
    ] = options.TOWER,
    fresh: Annotated[bool, typer.Option("--fresh", help="Delete what an earlier demo left, and start anew.")] = False,
) -> None:
    """See it work: this machine's measurements through tower, store, producer and Spark, live."""
    from rich.console import Console

    _check_spark()
    console = Console()
    if not console.is_terminal:
        console.width = PIPE_WIDTH
    if seconds is None and source is None and not console.is_terminal:
        seconds = SECONDS
    resumed = _prepare(directory, source, fresh)
    say(f"{'resuming' if resumed else 'starting'} in {directory}" + ("; --fresh starts anew" if resumed else ""))
    _Demo(directory, source, seconds, tower, console).run()


def _check_spark() -> None:
    """Fail before anything is started if Spark cannot be."""
    from importlib.util import find_spec

    missing = [name for name in ("pyspark", "pyarrow", "psutil") if find_spec(name) is None]
    if missing:
        raise UsageError(f"the demo needs {', '.join(missing)}; run: pip install 'chappe[demo,spark]'")


def _prepare(directory: Path, source: str | None, fresh: bool) -> bool:
    """Make the directory; returns whether an earlier demo is resumed. Raises UsageError."""
    if source not in (None, "-") and not Path(source).is_file():
        raise UsageError(f"there is no file {source}")
    mark = directory / MARK
    made_of = source if source in (None, "-") else str(Path(source).resolve())
    if directory.exists() and any(directory.iterdir()) and not mark.exists():
        raise UsageError(f"{directory} holds something that is not a demo's; choose another --directory")
    if mark.exists() and fresh:
        shutil.rmtree(directory)
    resumed = mark.exists()
    if resumed:
        try:
            found = json.loads(mark.read_text())
            before, form = found["input"], found.get("form", 1)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise UsageError(f"{mark} is damaged; start anew with --fresh") from error
        if before != made_of:
            what = "measurements" if before is None else "standard input" if before == "-" else before
            raise UsageError(
                f"{directory} holds a demo of {what}; add --fresh to delete it, or choose another --directory"
            )
        if form != FORM:
            raise UsageError(
                f"{directory} holds a demo of another version of chappe, which Spark cannot go on with; add --fresh to "
                "delete it, or choose another --directory"
            )
    directory.mkdir(parents=True, exist_ok=True)
    mark.write_text(json.dumps({"input": made_of, "form": FORM}) + "\n")
    return resumed


class _Demo:
    """One run: its parts, from start to end."""

    def __init__(
        self, directory: Path, source: str | None, seconds: float | None, tower: str, console: Console
    ) -> None:
        from chappe.cli.demo.view import Status
        from chappe.cli.demo.windows import Windows

        self._directory = directory
        self._source = source
        self._seconds = seconds
        self._tower = tower
        self._console = console
        self._topic = METRICS_TOPIC if source is None else LINES_TOPIC
        self._windows: Windows = Windows(directory / "windows")
        self._status: Status = Status(time.monotonic())
        self._notes: list[str] = []

    def run(self) -> None:
        """Run to the end; raises ChappeError if a part fails."""
        from chappe.cli.demo.places import results
        from chappe.cli.demo.view import MetricsTable, View
        from chappe.cli.screen import Screen

        try:
            # the parts end within the log, which takes what Java says when it is ended while it starts
            with self._log(), Screen(self._console) as screen, ExitStack() as ending:
                self._run(View(self._status, self._windows, self._console, screen), ending)
        except KeyboardInterrupt:
            warn("stopped while starting or ending; a next demo goes on from here")
            return
        for note in self._notes:
            warn(note)
        if self._windows.newest:
            self._console.print(MetricsTable(self._status.flow, self._windows, 50, live=False))
        self._print(results(self._directory, self._topic, self._directory / LOG))

    @contextmanager
    def _log(self) -> Iterator[None]:
        """Send what Java and Spark say on standard error to a file: it would tear the table apart."""
        with (
            (self._directory / LOG).open("a", encoding="utf-8", errors="backslashreplace") as log,
            redirect_stderr(log),
        ):
            yield

    def _run(self, view: View, ending: ExitStack) -> None:
        self._status.stage = "starting tower and store"
        log = ending.enter_context(_child("store", "log", str(self._directory / "log"), self._tower))
        tower = str(log.wait_for("tower", CHILD_START_S, view.update))
        endpoint = str(log.wait_for("endpoint", CHILD_START_S, view.update))
        self._say_how_to_look(tower)
        self._status.stage = "starting the producer"
        feed = ending.enter_context(self._feed(tower, view))
        children = (log, feed)
        kind = self._first_kind(feed, view)
        query = ending.enter_context(self._query(endpoint, kind))
        stopped = False
        try:
            self._watch(children, query, view)
        except KeyboardInterrupt:  # the proper end; a second one, below, leaves out the rest
            stopped = True
        self._status.stage = "ending: Spark reads what is stored"
        view.update()
        feed.stop()
        log.check()
        self._hear(feed, query)
        self._notes += filter(None, [feed.last_words.removeprefix("chappe: ")])
        drained = False
        for done in query.drain() if query.running or not stopped else ():
            drained = done
            self._hear(feed, query)
            view.update()
            time.sleep(STEP_S)
        if not drained:
            self._notes.append("Spark has not read everything yet; a next demo goes on from here")

    @contextmanager
    def _feed(self, tower: str, view: View) -> Iterator[Child]:
        from chappe.cli.demo.children import ChildDied

        directory = str(self._directory / "feed")
        more = [] if self._source is None else [self._source]
        stdin = sys.stdin.fileno() if self._source == "-" else subprocess.DEVNULL
        with _child("producer", "feed", tower, self._topic, directory, *more, stdin=stdin) as feed:
            try:
                feed.wait_for("partition", CHILD_START_S, view.update)
                yield feed
            except ChildDied:
                feed.kill()  # told to stop, it would wait until a store that may be gone has everything
                raise

    def _first_kind(self, feed: Child, view: View) -> str:
        """What the records are; a producer of standard input knows only when the first line is there."""
        self._status.stage = "waiting for input" if self._source == "-" else "starting the producer"
        began = time.monotonic()
        while "kind" not in feed.facts:
            feed.check()
            if self._seconds is not None and time.monotonic() - began > max(self._seconds, START_S):
                raise TimedOut("no input came; give the demo a file, or lines on standard input")
            view.update()
            time.sleep(STEP_S)
        return str(feed.facts["kind"])

    @contextmanager
    def _query(self, endpoint: str, kind: str) -> Iterator[Query]:
        from chappe.cli.demo.query import Query

        query = Query(endpoint, self._topic, kind, self._directory / "checkpoint", self._windows)
        try:
            yield query
        finally:
            query.stop()

    def _watch(self, children: tuple[Child, Child], query: Query, view: View) -> None:
        """Show what happens until the time is over or the input has ended."""
        end = float("inf")
        began = time.monotonic()
        while time.monotonic() < end:
            for child in children:
                child.check()
            query.check()
            if query.running and self._seconds is not None and end == float("inf"):
                end = time.monotonic() + self._seconds
            self._status.stage = _stage(query, time.monotonic() - began)
            self._hear(children[1], query)
            self._status.note = " / ".join(filter(None, (child.last_words for child in children)))
            view.update()
            if self._seconds is None and query.running and children[1].facts.get("ended"):
                return
            time.sleep(STEP_S)

    def _hear(self, feed: Child, query: Query) -> None:
        flow = self._status.flow
        flow.batches, flow.windows_s = query.batches, query.delay_s
        flow.in_windows, flow.windows = self._windows.records, self._windows.updates
        flow.hear(feed.facts)

    def _say_how_to_look(self, tower: str) -> None:
        """Into the picture, or where there is none, once."""
        from chappe.cli.demo.places import look

        self._status.look = look(self._topic, tower, self._tower)
        if not self._console.is_terminal:
            self._print(
                ["To look at it while it runs, in another terminal:", *(f"  {each}" for each in self._status.look)]
            )

    def _print(self, lines: Iterable[str]) -> None:
        for line in lines:
            self._console.print(line, soft_wrap=True, markup=False, highlight=False)


def _stage(query: Query, seconds: float) -> str:
    if not query.running:
        return f"starting Spark, {seconds:.0f} s (takes about 30); records wait in the store"
    return "running" if query.batches else "Spark runs and computes its first windows"


@contextmanager
def _child(name: str, role: str, *arguments: str, stdin: int = subprocess.DEVNULL) -> Iterator[Child]:
    from chappe.cli.demo.children import Child

    child = Child(name, role, *arguments, stdin=stdin)
    try:
        yield child
    except BaseException:
        child.stop()
        raise
    child.stop()
