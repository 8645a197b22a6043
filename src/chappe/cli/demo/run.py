"""A run of the demo: starts its parts, watches them, ends them, and says where the results are."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, redirect_stderr
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Final, Self

import msgspec
from rich.console import Console

from chappe.cli import options
from chappe.cli.console import host_and_ports, warn
from chappe.cli.demo.query import Query, Windows
from chappe.cli.demo.view import MetricsTable, Status, View
from chappe.cli.screen import Screen
from chappe.errors import ChappeError, TimedOut

LOG: Final = "spark.log"  # what Java and Spark say
START_S: Final = 30.0  # for the first input
CHILD_START_S: Final = 120.0  # on a busy machine; one that ends is noticed at once
STEP_S: Final = 0.1
METRICS_TOPIC: Final = "demo.metrics"
LINES_TOPIC: Final = "demo.lines"
LAST_LINES: Final = 20
STOP_S: Final = 15.0  # a child that has not ended after this is killed
POLL_S: Final = 0.05


class ChildDied(ChappeError):
    """A child process ended although nobody asked it to; the text has its last words."""


class Child:
    """A process of the demo. ``facts`` is everything that it told, by name, the newest of each."""

    def __init__(self, name: str, role: str, *arguments: str, stdin: int = subprocess.DEVNULL) -> None:
        self.name = name
        self.facts: dict[str, Any] = {}
        self._last: deque[str] = deque(maxlen=LAST_LINES)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "chappe.cli.demo.child", role, str(os.getpid()), *arguments],
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self._readers = [
            threading.Thread(target=target, args=(stream,), name=f"chappe demo {name}", daemon=True)
            for target, stream in ((self._hear, self._process.stdout), (self._remember, self._process.stderr))
        ]
        for reader in self._readers:
            reader.start()
        self.pid = self._process.pid

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def last_words(self) -> str:
        """The last line that the process wrote to standard error."""
        return self._last[-1] if self._last else ""

    def wait_for(self, fact: str, timeout_s: float, meanwhile: Callable[[], None]) -> Any:
        """Wait until the child told ``fact``, and call ``meanwhile`` several times a second; raises ChildDied."""
        deadline = time.monotonic() + timeout_s
        while fact not in self.facts:
            self.check()
            if time.monotonic() > deadline:
                raise ChildDied(f"the {self.name} did not start within {timeout_s:g} s{self._said()}")
            meanwhile()
            time.sleep(POLL_S)
        return self.facts[fact]

    def check(self) -> None:
        """Raise ChildDied if the process has ended."""
        code = self._process.poll()
        if code is not None:
            self._join()
            how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
            raise ChildDied(f"the {self.name} (process {self.pid}) {how}{self._said()}")

    def stop(self) -> None:
        """Ask the process to end, and wait until it has."""
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
        self._process.wait()
        self._join()

    def kill(self) -> None:
        """End the process at once."""
        self._process.kill()
        self._process.wait()

    def _join(self) -> None:
        for reader in self._readers:
            reader.join(1.0)

    def _said(self) -> str:
        return f"; it said: {' / '.join(self._last)}" if self._last else "; it said nothing"

    def _hear(self, stream: IO[bytes]) -> None:
        for line in stream:
            try:
                self.facts.update(msgspec.json.decode(line, type=dict[str, Any]))
            except msgspec.DecodeError:
                self._last.append(line.decode("utf-8", "backslashreplace").rstrip())

    def _remember(self, stream: IO[bytes]) -> None:
        for line in stream:
            text = line.decode("utf-8", "backslashreplace").strip()
            if text:
                self._last.append(text)


@dataclass
class Demo:
    """One run: its parts, from start to end."""

    directory: Path
    source: str | None
    seconds: float | None
    tower: str
    console: Console
    status: Status = field(default_factory=lambda: Status(time.monotonic()))
    notes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.topic = METRICS_TOPIC if self.source is None else LINES_TOPIC
        self.windows = Windows(self.directory / "windows")

    def run(self) -> None:
        """Run to the end; raises ChappeError if a part fails."""
        try:
            # the parts end within the log, which takes what Java says when it is ended while it starts
            with ExitStack() as parts:
                # what Java and Spark say on standard error would tear the table apart
                log = (self.directory / LOG).open("a", encoding="utf-8", errors="backslashreplace")
                parts.enter_context(redirect_stderr(parts.enter_context(log)))
                screen = parts.enter_context(Screen(self.console))
                ending = parts.enter_context(ExitStack())
                self._run(View(self.status, self.windows, self.console, screen), ending)
        except KeyboardInterrupt:
            warn("stopped while starting or ending; a next demo goes on from here")
            return
        for note in self.notes:
            warn(note)
        if self.windows.newest:
            self.console.print(MetricsTable(self.status.flow, self.windows, 50, live=False))
        self._print(results(self.directory, self.topic, self.directory / LOG))

    def _run(self, view: View, ending: ExitStack) -> None:
        self.status.stage = "starting tower and store"
        log = ending.enter_context(Child("store", "log", str(self.directory / "log"), self.tower))
        tower = str(log.wait_for("tower", CHILD_START_S, view.update))
        endpoint = str(log.wait_for("endpoint", CHILD_START_S, view.update))
        self._say_how_to_look(tower)
        self.status.stage = "starting the producer"
        feed = ending.enter_context(self._feed(tower, view))
        children = (log, feed)
        kind = self._first_kind(feed, view)
        query = Query(endpoint, self.topic, kind, self.directory / "checkpoint", self.windows)
        ending.callback(query.stop)
        stopped = False
        try:
            self._watch(children, query, view)
        except KeyboardInterrupt:  # the proper end; a second one, below, leaves out the rest
            stopped = True
        self.status.stage = "ending: Spark reads what is stored"
        view.update()
        feed.stop()
        log.check()
        self._hear(feed, query)
        self.notes += filter(None, [feed.last_words.removeprefix("chappe: ")])
        drained = False
        for done in query.drain() if query.running or not stopped else ():
            drained = done
            self._hear(feed, query)
            view.update()
            time.sleep(STEP_S)
        if not drained:
            self.notes.append("Spark has not read everything yet; a next demo goes on from here")

    @contextmanager
    def _feed(self, tower: str, view: View) -> Iterator[Child]:
        directory = str(self.directory / "feed")
        more = [] if self.source is None else [self.source]
        stdin = sys.stdin.fileno() if self.source == "-" else subprocess.DEVNULL
        with Child("producer", "feed", tower, self.topic, directory, *more, stdin=stdin) as feed:
            try:
                feed.wait_for("partition", CHILD_START_S, view.update)
                yield feed
            except ChildDied:
                feed.kill()  # told to stop, it would wait until a store that may be gone has everything
                raise

    def _first_kind(self, feed: Child, view: View) -> str:
        """What the records are; a producer of standard input knows only when the first line is there."""
        self.status.stage = "waiting for input" if self.source == "-" else "starting the producer"
        began = time.monotonic()
        while "kind" not in feed.facts:
            feed.check()
            if self.seconds is not None and time.monotonic() - began > max(self.seconds, START_S):
                raise TimedOut("no input came; give the demo a file, or lines on standard input")
            view.update()
            time.sleep(STEP_S)
        return str(feed.facts["kind"])

    def _watch(self, children: tuple[Child, Child], query: Query, view: View) -> None:
        """Show what happens until the time is over or the input has ended."""
        end = float("inf")
        began = time.monotonic()
        while time.monotonic() < end:
            for child in children:
                child.check()
            query.check()
            if query.running and self.seconds is not None and end == float("inf"):
                end = time.monotonic() + self.seconds
            self.status.stage = _stage(query, time.monotonic() - began)
            self._hear(children[1], query)
            self.status.note = " / ".join(filter(None, (child.last_words for child in children)))
            view.update()
            if self.seconds is None and query.running and children[1].facts.get("ended"):
                return
            time.sleep(STEP_S)

    def _hear(self, feed: Child, query: Query) -> None:
        flow = self.status.flow
        flow.batches, flow.windows_s = query.batches, query.delay_s
        flow.in_windows, flow.windows = self.windows.records, self.windows.updates
        flow.hear(feed.facts)

    def _say_how_to_look(self, tower: str) -> None:
        """Into the picture, or where there is none, once."""
        self.status.look = look(self.topic, tower, self.tower)
        if not self.console.is_terminal:
            self._print(
                ["To look at it while it runs, in another terminal:", *(f"  {each}" for each in self.status.look)]
            )

    def _print(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.console.print(line, soft_wrap=True, markup=False, highlight=False)


def _stage(query: Query, seconds: float) -> str:
    if not query.running:
        return f"starting Spark, {seconds:.0f} s (takes about 30); records wait in the store"
    return "running" if query.batches else "Spark runs and computes its first windows"


def look(topic: str, tower: str, expected: str) -> list[str]:
    """Commands that show the topic while the demo runs.

    Args:
        topic: Its name.
        tower: The address of the demo's tower.
        expected: Where commands look for a tower in the demo's own environment.
    """
    host, port, second = host_and_ports(tower)
    where = ""
    if expected != options.TOWER or host_and_ports(options.TOWER) != (host, port, second):
        where = f" --tower {host}:{port}" + (f":{second}" if second != port + 1 else "")
    chappe = shown(program())
    return [f"{chappe} topics{where}", f"{chappe} consume {topic}{where}"]


def results(directory: Path, topic: str, log: Path) -> list[str]:
    """Lines that say what a demo left, and how to look at it."""
    records, windows = directory / "log", directory / "windows"
    read = f"import pandas; print(pandas.read_parquet('{windows}').tail(20).to_string())"
    chappe = shown(program())
    return [
        f"topic {topic}: {records}",
        f"checkpoint:  {directory / 'checkpoint'}",
        f"Parquet:     {windows}",
        f"Spark's log: {log}",
        "",
        f"To look at the topic, serve it in another terminal with `{chappe} up {shlex.quote(str(records))}`, then:",
        f"  {chappe} topics {topic}",
        f"  {chappe} consume {topic} --from 1h --until-end",
        "To look at the Parquet:",
        f"  {shlex.quote(shown(sys.executable))} -c {_quoted(read)}",
    ]


def program() -> str:
    """How this program is called from here."""
    beside = Path(sys.executable).with_name("chappe")
    if not beside.exists():
        return f"{sys.executable} -m chappe"
    found = shutil.which("chappe")
    return "chappe" if found is not None and Path(found).samefile(beside) else str(beside)


def shown(path: str) -> str:
    """A path as one would type it here: relative where that is shorter."""
    relative = os.path.relpath(path) if os.path.isabs(path) else path
    return path if relative.startswith("..") else relative


def _quoted(code: str) -> str:
    return shlex.quote(code) if set(code) & set('"$`\\!') else f'"{code}"'
