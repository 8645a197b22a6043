"""``chappe archive``: topics kept as Parquet by a Spark job."""

from __future__ import annotations

import json
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, redirect_stderr
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from chappe.cli import options
from chappe.cli.console import debugging, exit_code, tell, warn
from chappe.cli.units import human_bytes
from chappe.errors import UsageError

if TYPE_CHECKING:
    from chappe.cli.progress import Bar
    from chappe.data.topic import Filter
    from chappe.spark.archive.job import ArchiveJob, Progress

LOOK_S: Final = 0.1
STOP_S: Final = 60.0  # a batch under way is given up within this time


def archive(
    topic: Annotated[str, typer.Argument(metavar="TOPIC|PREFIX*", help="What to archive.")],
    to: Annotated[Path, typer.Option("--to", metavar="DIR", help="Where the archive is, or is to be made.")],
    follow: Annotated[bool, typer.Option("--follow", help="Go on with what comes, until Ctrl-C.")] = False,
    skip_lost: Annotated[
        bool,
        typer.Option("--skip-lost", help="Go on without records that retention took before they were archived."),
    ] = False,
    master: Annotated[
        str | None, typer.Option(help="Where Spark runs: local[*] (here), spark://HOST:PORT, ...; all must see DIR.")
    ] = None,
    tower: options.Tower = options.TOWER,
    as_json: options.Json = False,
) -> None:
    """Keep topics as Parquet files, each record exactly once; the same command again goes on."""
    from chappe.cli.progress import Bar
    from chappe.spark.archive.live import parse_wanted
    from chappe.spark.masters import check_master

    wanted = parse_wanted(topic)
    if master is not None and master.startswith("sc://"):
        raise UsageError("an archive is written by the driver: give a --master such as spark://HOST:PORT, not sc://")
    if master is not None:
        check_master(master)
    need_packages("pyspark", "pyarrow", "numpy")
    with ExitStack() as ending:
        bar = ending.enter_context(Bar("starting Spark", quiet=as_json))
        if not debugging():  # what Java and Spark say would tear the bar apart
            ending.enter_context(redirect_stderr(ending.enter_context(_nowhere())))
        run = _Run(wanted, to.absolute(), follow, bar, as_json)
        stop = run.to_the_end(master or "local[*]", tower, skip_lost)
    run.account()
    if stop is not None and not follow:
        warn("interrupted: what is archived stays, and the same command goes on from there")
        raise typer.Exit(exit_code(stop))


def need_packages(*names: str) -> None:
    """Raise UsageError if one of them is not installed."""
    missing = [name for name in names if find_spec(name) is None]
    if missing:
        raise UsageError(f"this needs {' and '.join(missing)}; run: pip install 'chappe[spark]'")


@contextmanager
def _nowhere() -> Iterator[Any]:
    with tempfile.TemporaryFile("w+", encoding="utf-8") as file:
        yield file


class _Run:
    """One run of an archive job, on a thread of its own so that Ctrl-C does not hit it in the middle of something."""

    def __init__(self, wanted: Filter, directory: Path, follow: bool, bar: Bar, as_json: bool) -> None:
        self._wanted = wanted
        self._directory = directory
        self._follow = follow
        self._bar = bar
        self._json = as_json
        self._job: ArchiveJob | None = None
        self._stopped = False
        self._error: BaseException | None = None
        self._first: Progress | None = None  # of the first batch: starting takes its time, and is no measure
        self._last: Progress | None = None

    def to_the_end(self, master: str, towers: str, skip_lost: bool) -> KeyboardInterrupt | None:
        """Run until there is no more, or until Ctrl-C, which is returned. Raises ChappeError."""
        worker = threading.Thread(target=self._work, args=(master, towers, skip_lost), daemon=True, name="archive")
        worker.start()
        stop: KeyboardInterrupt | None = None
        try:
            while worker.is_alive():
                worker.join(LOOK_S)
                self._show()
        except KeyboardInterrupt as interrupt:
            stop = interrupt
            self._stopped = True
            if self._job is not None:
                self._job.stop()
            worker.join(STOP_S)
        if self._error is not None and stop is None:
            raise self._error
        return stop

    def account(self) -> None:
        """Say what was done."""
        done = self._last
        facts: dict[str, Any] = {"event": "done", "topic": str(self._wanted), "directory": str(self._directory)}
        if done is None:
            tell(self._json, facts | {"records": 0}, "nothing was archived")
            return
        rate = done.records / done.seconds if done.seconds else 0.0
        text = f"archived {done.records:,} records in {done.seconds:.1f} s ({rate:,.0f} records/s) in {self._directory}"
        text += f", which has {done.files:,} files, {human_bytes(done.bytes)}"
        tell(self._json, facts | _facts(done), text)

    def _work(self, master: str, towers: str, skip_lost: bool) -> None:
        from chappe.spark.archive.job import ArchiveJob
        from chappe.spark.archive.manifest import ArchiveWriter
        from chappe.spark.session import spark_session

        try:
            with ArchiveWriter(self._directory) as opened:
                spark = spark_session("chappe archive", master=master, apart=True)
                try:
                    self._job = ArchiveJob(
                        spark,
                        opened,
                        self._wanted,
                        towers=towers,
                        follow=self._follow,
                        skip_lost=skip_lost,
                        on_progress=self._progress,
                    )
                    if not self._stopped:
                        self._job.run()
                finally:
                    spark.stop()
        except BaseException as error:
            self._error = error

    def _progress(self, progress: Progress) -> None:
        self._last = progress
        if self._first is None and progress.records:
            self._first = progress
        if self._json:
            print(json.dumps({"event": "progress"} | _facts(progress)), flush=True)

    def _show(self) -> None:
        from chappe.cli.progress import left_text

        now = self._last
        if now is None:
            return
        rate = self._rate(now)
        text = f"{now.records:,} archived, {rate:,.0f} records/s"
        if self._follow:
            self._bar.update(f"{text}, following", now.records, None)
            return
        left = (now.total - now.records) / rate if rate else None
        self._bar.update(f"{text}{left_text(left)}", now.records, max(now.total, now.records))

    def _rate(self, now: Progress) -> float:
        first = self._first
        if first is not None and now.seconds > first.seconds:
            return (now.records - first.records) / (now.seconds - first.seconds)
        return now.records / now.seconds if now.seconds > 0 else 0.0


def _facts(progress: Progress) -> dict[str, object]:
    return asdict(progress) | {"seconds": round(progress.seconds, 3)}
