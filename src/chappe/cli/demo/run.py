"""A run of the demo: starts its parts, watches them, ends them, and says where the results are."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import time
from collections.abc import Iterable
from contextlib import ExitStack, redirect_stderr, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rich.console import Console

from chappe.cli import options
from chappe.cli.console import hear_warnings, host_and_ports, warn
from chappe.cli.dashboard import beside
from chappe.cli.demo.feed import DemoFeed
from chappe.cli.demo.query import DemoQuery, Windows
from chappe.cli.demo.view import DemoStatus, MetricsTable, lines, picture
from chappe.cli.screen import Screen
from chappe.data.markup import are
from chappe.errors import ChappeError, TimedOut

if TYPE_CHECKING:
    from chappe import Producer, Store, Tower

LOG: Final = "spark.log"  # output of Java and Spark
START_S: Final = 30.0  # for the first input
STEP_S: Final = 0.1
METRICS_TOPIC: Final = "demo.metrics"
LINES_TOPIC: Final = "demo.lines"


@dataclass
class Demo:
    directory: Path
    source: str | None
    seconds: float | None
    tower: str
    console: Console
    dashboard: bool = False
    status: DemoStatus = field(default_factory=lambda: DemoStatus(time.monotonic()))
    notes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.topic = METRICS_TOPIC if self.source is None else LINES_TOPIC
        self.windows = Windows(self.directory / "windows")

    def run(self) -> None:
        """Run to the end. Raises ChappeError if a part fails."""
        try:
            # the parts end within the log, which takes output of a Java that is ended while it starts
            with ExitStack() as parts:
                # output of Java and Spark on standard error would tear the table apart
                log = (self.directory / LOG).open("a", encoding="utf-8", errors="backslashreplace")
                parts.enter_context(redirect_stderr(parts.enter_context(log)))
                self.screen = parts.enter_context(Screen(self.console))
                self._run(parts.enter_context(ExitStack()))
        except KeyboardInterrupt:
            warn("stopped while starting or ending; a next demo goes on from here")
            return
        for note in self.notes:
            warn(note)
        if self.windows.newest:
            self.console.print(MetricsTable(self.status.flow, self.windows, 50, live=False))
        self._print(results(self.directory, self.topic, self.directory / LOG))

    def _run(self, ending: ExitStack) -> None:
        from chappe import Producer, Store

        self.status.stage = "starting tower, store and producer"
        self._show()
        hear_warnings(self.tower, self._hear_warning)
        tower = ending.enter_context(free_tower(self.tower))
        store = ending.enter_context(Store(self.directory / "log", tower=tower.address))
        url = ending.enter_context(beside(self.dashboard, "--tower", tower.address))
        self._say_how_to_look(tower.address, url)
        identity, directory = f"{self.topic}-feed", self.directory / "feed"
        producer = Producer(self.topic, tower=tower.address, identity=identity, directory=directory)
        ending.callback(_leave, producer)
        feed = DemoFeed(producer, self.source)
        ending.callback(feed.stop)
        kind = self._first_kind(feed)
        checkpoint, log = self.directory / "checkpoint", self.directory / LOG
        query = DemoQuery(store.endpoint, self.topic, kind, checkpoint, self.windows, log)
        ending.callback(query.stop)
        stopped = False
        try:
            self._watch((tower, store), feed, query)
        except KeyboardInterrupt:  # the proper end; a second one, below, leaves out the rest
            stopped = True
        self.status.stage = "ending: Spark reads what is stored"
        self._show()
        feed.stop()
        feed.check()
        self._hear(feed, query)
        left = producer.next_offset - producer.stored
        self.notes += [f"{are(left, 'record')} not stored yet; the next demo sends what is left"] if left else []
        drained = False
        for done in query.drain() if query.running or not stopped else ():
            drained = done
            self._hear(feed, query)
            self._show()
            time.sleep(STEP_S)
        if not drained:
            self.notes.append("Spark has not read everything yet; a next demo goes on from here")

    def _first_kind(self, feed: DemoFeed) -> str:
        """Wait until the kind of records is known; standard input tells it with the first line."""
        self.status.stage = "waiting for input"
        began = time.monotonic()
        while "kind" not in feed.facts:
            feed.check()
            if self.seconds is not None and time.monotonic() - began > max(self.seconds, START_S):
                raise TimedOut("no input came; give the demo a file, or lines on standard input")
            self._show()
            time.sleep(STEP_S)
        return str(feed.facts["kind"])

    def _watch(self, members: Iterable[Store | Tower], feed: DemoFeed, query: DemoQuery) -> None:
        """Show the progress until the time is over or the input has ended."""
        end = float("inf")
        began = time.monotonic()
        while time.monotonic() < end:
            for member in members:
                member.wait(0.0)
            feed.check()
            query.check()
            if query.running and self.seconds is not None and end == float("inf"):
                end = time.monotonic() + self.seconds
            self.status.stage = _stage(query, time.monotonic() - began)
            self._hear(feed, query)
            self._show()
            if self.seconds is None and query.running and feed.facts.get("ended"):
                return
            time.sleep(STEP_S)

    def _show(self) -> None:
        self.screen.show(lambda: picture(self.status, self.windows, self.console), lambda: lines(self.status))

    def _hear(self, feed: DemoFeed, query: DemoQuery) -> None:
        flow = self.status.flow
        flow.batches, flow.windows_s = query.batches, query.delay_s
        flow.in_windows, flow.windows = self.windows.records, self.windows.updates
        flow.hear(feed.facts)

    def _hear_warning(self, text: str) -> None:
        self.status.note, self.notes[:] = text, [text]

    def _say_how_to_look(self, tower: str, url: str | None) -> None:
        self.status.look = look(self.topic, tower, self.tower, url)
        if not self.console.is_terminal:
            self._print(
                ["To look at it while it runs, in another terminal:", *(f"  {each}" for each in self.status.look)]
            )

    def _print(self, texts: Iterable[str]) -> None:
        for line in texts:
            self.console.print(line, soft_wrap=True, markup=False, highlight=False)


def free_tower(address: str) -> Tower:
    """Run a tower at ``address`` if that is free and on this machine, else at any port."""
    from chappe import Tower

    if address.startswith(("127.", "localhost:")):
        with suppress(ChappeError):
            return Tower(address)
    return Tower("127.0.0.1:0")


def _leave(producer: Producer) -> None:
    with suppress(TimedOut):
        producer.close(0.0)  # the journal keeps what is not stored


def _stage(query: DemoQuery, seconds: float) -> str:
    if not query.running:
        return f"starting Spark, {seconds:.0f} s (takes about 30); records wait in the store"
    return "running" if query.batches else "Spark runs and computes its first windows"


def look(topic: str, tower: str, expected: str, url: str | None = None) -> list[str]:
    """Return commands that show the topic while the demo runs, and its dashboard, or the command for one.

    ``expected`` is where commands look for a tower in the demo's own environment; ``url`` is the demo's dashboard.
    """
    host, port, second = host_and_ports(tower)
    where = ""
    if expected != options.TOWER or host_and_ports(options.TOWER) != (host, port, second):
        where = f" --tower {host}:{port}" + (f":{second}" if second != port + 1 else "")
    chappe = shown(program())
    page = url or f"{chappe} dashboard{where}"
    return [f"{chappe} topics{where}", f"{chappe} consume {topic}{where}", page]


def results(directory: Path, topic: str, log: Path) -> list[str]:
    """Say where the demo left its results, and how to look at them."""
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
    """Return the command by which a shell here calls chappe."""
    beside = Path(sys.executable).with_name("chappe")
    if not beside.exists():
        return f"{sys.executable} -m chappe"
    found = shutil.which("chappe")
    return "chappe" if found is not None and Path(found).samefile(beside) else str(beside)


def shown(path: str) -> str:
    """Shorten a path to a relative one where that is shorter."""
    relative = os.path.relpath(path) if os.path.isabs(path) else path
    return path if relative.startswith("..") else relative


def _quoted(code: str) -> str:
    return shlex.quote(code) if set(code) & set('"$`\\!') else f'"{code}"'
