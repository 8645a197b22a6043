"""``chappe demo``: real input through a tower, a store on disk and Spark, shown live."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, redirect_stderr
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

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
    _Demo(directory, source, seconds, console).run()


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
            before = json.loads(mark.read_text())["input"]
        except (ValueError, KeyError, TypeError) as error:
            raise UsageError(f"{mark} is damaged; start anew with --fresh") from error
        if before != made_of:
            what = "measurements" if before is None else "standard input" if before == "-" else before
            raise UsageError(
                f"{directory} holds a demo of {what}; add --fresh to delete it, or choose another --directory"
            )
    directory.mkdir(parents=True, exist_ok=True)
    mark.write_text(json.dumps({"input": made_of}) + "\n")
    return resumed


class _Demo:
    """One run: its parts, from start to end."""

    def __init__(self, directory: Path, source: str | None, seconds: float | None, console: Console) -> None:
        from chappe.cli.demo.view import Status
        from chappe.cli.demo.windows import Windows

        self._directory = directory
        self._source = source
        self._seconds = seconds
        self._console = console
        self._topic = METRICS_TOPIC if source is None else LINES_TOPIC
        self._windows: Windows = Windows(directory / "windows")
        self._status: Status = Status(time.monotonic())
        self._notes: list[str] = []

    def run(self) -> None:
        """Run to the end; raises ChappeError if a part fails."""
        from chappe.cli.demo.view import View, table
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
            self._console.print(table(self._windows, 50))
        self._say_where()

    @contextmanager
    def _log(self) -> Iterator[None]:
        """Send what Java and Spark say on standard error to a file: it would tear the table apart."""
        with (
            (self._directory / LOG).open("a", encoding="utf-8", errors="backslashreplace") as log,
            redirect_stderr(log),
        ):
            yield

    def _run(self, view: View, ending: ExitStack) -> None:
        log = ending.enter_context(_child("store", "log", str(self._directory / "log")))
        tower, endpoint = log.wait_for("tower", CHILD_START_S), log.wait_for("endpoint", CHILD_START_S)
        feed = ending.enter_context(self._feed(str(tower)))
        children = (log, feed)
        kind = self._first_kind(feed, view)
        query = ending.enter_context(self._query(str(endpoint), kind))
        stopped = False
        try:
            self._watch(children, query, view)
        except KeyboardInterrupt:  # the proper end; a second one, below, leaves out the rest
            stopped = True
        self._status.stage = "ending"
        view.update()
        feed.stop()
        log.check()
        self._hear(feed)
        self._notes += filter(None, [feed.last_words.removeprefix("chappe: ")])
        drained = False
        for done in query.drain() if query.running or not stopped else ():
            drained = done
            self._status.batches = query.batches
            view.update()
            time.sleep(STEP_S)
        if not drained:
            self._notes.append("Spark has not read everything yet; a next demo goes on from here")

    @contextmanager
    def _feed(self, tower: str) -> Iterator[Child]:
        from chappe.cli.demo.children import ChildDied

        directory = str(self._directory / "feed")
        more = [] if self._source is None else [self._source]
        stdin = sys.stdin.fileno() if self._source == "-" else subprocess.DEVNULL
        with _child("producer", "feed", tower, self._topic, directory, *more, stdin=stdin) as feed:
            try:
                feed.wait_for("partition", CHILD_START_S)
                yield feed
            except ChildDied:
                feed.kill()  # told to stop, it would wait until a store that may be gone has everything
                raise

    def _first_kind(self, feed: Child, view: View) -> str:
        """What the records are; a producer of standard input knows only when the first line is there."""
        self._status.stage = "waiting for input"
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
        self._status.stage = "starting Spark"
        while time.monotonic() < end:
            for child in children:
                child.check()
            query.check()
            if query.running and self._seconds is not None and end == float("inf"):
                end = time.monotonic() + self._seconds
            self._status.stage = "running" if query.running else "starting Spark"
            self._status.batches = query.batches
            self._hear(children[1])
            self._status.note = " / ".join(filter(None, (child.last_words for child in children)))
            view.update()
            if self._seconds is None and query.running and children[1].facts.get("ended"):
                return
            time.sleep(STEP_S)

    def _hear(self, feed: Child) -> None:
        first = int(feed.facts.get("first", 0))
        self._status.sent = int(feed.facts.get("sent", first)) - first
        self._status.stored = max(0, int(feed.facts.get("stored", first)) - first)

    def _say_where(self) -> None:
        log, windows = self._directory / "log", self._directory / "windows"
        read = f"import pandas; print(pandas.read_parquet('{windows}').tail(20).to_string())"
        chappe = _shown(_program())
        lines = (
            f"topic {self._topic}: {log}",
            f"checkpoint:  {self._directory / 'checkpoint'}",
            f"Parquet:     {windows}",
            f"Spark's log: {self._directory / LOG}",
            "",
            f"To look at the topic, serve it in another terminal with `{chappe} up {shlex.quote(str(log))}`, then:",
            f"  {chappe} topics {self._topic}",
            f"  {chappe} consume {self._topic} --from 1h --until-end",
            "To look at the Parquet:",
            f"  {shlex.quote(_shown(sys.executable))} -c {_quoted(read)}",
        )
        for line in lines:
            self._console.print(line, soft_wrap=True, markup=False, highlight=False)


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


def _program() -> str:
    """How this program is called from here."""
    beside = Path(sys.executable).with_name("chappe")
    if not beside.exists():
        return f"{sys.executable} -m chappe"
    found = shutil.which("chappe")
    return "chappe" if found is not None and Path(found).samefile(beside) else str(beside)


def _shown(path: str) -> str:
    """A path as one would type it here: relative where that is shorter."""
    relative = os.path.relpath(path) if os.path.isabs(path) else path
    return path if relative.startswith("..") else relative


def _quoted(code: str) -> str:
    return shlex.quote(code) if set(code) & set('"$`\\!') else f'"{code}"'
