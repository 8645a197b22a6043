"""``chappe archive``: topics kept as Parquet by a Spark job."""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, redirect_stderr
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from typer import Argument, Option

from chappe.cli import completing, options
from chappe.cli.console import Bar, debugging, exit_code, left_text, rate_of, show_json, tell, warn
from chappe.cli.serving import Metrics, notify, serve_run
from chappe.cli.units import human_bytes
from chappe.data.markup import many
from chappe.errors import ChappeError, UsageError
from chappe.observing.numbers import Family, of_member

if TYPE_CHECKING:
    from chappe.data.topic import Filter
    from chappe.spark.archive.job import ArchiveJob, ArchiveProgress

LOOK_S: Final = 0.1
STOP_S: Final = 60.0  # a batch under way is given up within this time


def archive(
    topic: Annotated[str, Argument(metavar="TOPIC|PREFIX*", help="What to archive.", autocompletion=completing.TOPICS)],
    to: Annotated[Path, Option("--to", metavar="DIR", help="Where the archive is, or is to be made.")],
    follow: Annotated[bool, Option("--follow", help="Go on with what comes, until Ctrl-C.")] = False,
    skip_lost: Annotated[
        bool, Option("--skip-lost", help="Go on without records that retention took before they were archived.")
    ] = False,
    open_sealed: Annotated[
        bool, Option("--opened", help="Open sealed topics, with the keys of this identity; else they stay sealed.")
    ] = False,
    master: Annotated[
        str | None, Option(help="Where Spark runs: local[*] (here), spark://HOST:PORT, ...; all must see DIR.")
    ] = None,
    tower: options.Tower = options.TOWER,
    metrics: Metrics = None,
    acting: options.Acting = None,
    as_json: options.Json = False,
) -> None:
    """Keep topics as Parquet files, each record exactly once.

    The same command again goes on.
    """
    from chappe.spark.archive.reading import parse_wanted
    from chappe.spark.session import check_master

    options.be(acting)
    options.need_text(topic)
    wanted = parse_wanted(topic)
    if master is not None and master.startswith("sc://"):
        raise UsageError("an archive is written by the driver: give a --master such as spark://HOST:PORT, not sc://")
    if master is not None:
        check_master(master)
    need_packages("pyspark", "pyarrow", "numpy")
    with ExitStack() as ending:
        bar = ending.enter_context(Bar("starting Spark", quiet=as_json))
        if not debugging():
            ending.enter_context(_apart())
        run = _ArchiveRun(wanted, to.absolute(), follow, bar, as_json)
        url = serve_run(metrics, None, ending, run.families, run.unready)
        if url is not None:
            tell(as_json, {"event": "metrics", "url": url}, f"metrics at {url}")
        stop = run.to_the_end(master or "local[*]", tower, skip_lost, open_sealed)
    run.account()
    if stop is not None and not follow:
        warn("interrupted: what is archived stays, and the same command goes on from there")
        raise typer.Exit(exit_code(stop))


@contextmanager
def _apart() -> Iterator[None]:
    """Redirect the output of Java and Spark to a file, which keeps the bar intact; a failure names the file."""
    descriptor, log = tempfile.mkstemp(prefix="chappe-archive-", suffix=".log")
    keep = False
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8", errors="backslashreplace") as file, redirect_stderr(file):
            yield
    except Exception as error:
        from chappe.spark.sentences import is_sparks, sentence

        told = isinstance(error, ChappeError) and type(error) is not UsageError
        keep = (told or is_sparks(error)) and os.path.getsize(log) > 0
        if not keep:
            raise
        kind = ChappeError if is_sparks(error) else type(error)
        raise kind(f"{sentence(error)}; Spark's log: {log}") from error
    finally:
        if not keep:
            os.unlink(log)


def need_packages(*names: str, what: str = "this", extras: str = "spark") -> None:
    """Raise UsageError if one of ``names``, which ``extras`` of chappe install, is missing."""
    missing = [name for name in names if find_spec(name) is None]
    if missing:
        raise UsageError(f"{what} needs {' and '.join(missing)}; run: pip install 'chappe[{extras}]'")


@dataclass(slots=True)
class _ArchiveRun:
    """Runs an archive job on a thread of its own: Ctrl-C does not interrupt the job itself."""

    wanted: Filter
    directory: Path
    follow: bool
    bar: Bar
    json: bool
    job: ArchiveJob | None = None
    stopped: bool = False
    error: BaseException | None = None
    first: ArchiveProgress | None = None  # of the first batch: what comes before is Spark's start
    last: ArchiveProgress | None = None

    def to_the_end(self, master: str, towers: str, skip_lost: bool, open_sealed: bool) -> KeyboardInterrupt | None:
        """Run until everything is archived, or return the Ctrl-C that ended it. Raises ChappeError."""
        args = (master, towers, skip_lost, open_sealed)
        worker = threading.Thread(target=self._work, args=args, daemon=True, name="archive")
        worker.start()
        stop: KeyboardInterrupt | None = None
        try:
            while worker.is_alive():
                worker.join(LOOK_S)
                self._show()
        except KeyboardInterrupt as interrupt:
            stop = interrupt
            self.stopped = True
            if self.job is not None:
                self.job.stop()
            worker.join(STOP_S)
        if self.error is not None and stop is None:
            raise self.error
        return stop

    def families(self) -> Iterable[Family]:
        done = self.last
        counts = (0, 0, 0) if done is None else (done.records, done.files, done.bytes)
        names = ("chappe_archive_records", "chappe_archive_files", "chappe_archive_bytes")
        return of_member("archive", str(self.wanted), zip(names, counts, strict=True))

    def unready(self) -> str:
        return "" if self.job is not None else "Spark is starting"

    def account(self) -> None:
        done = self.last
        facts: dict[str, Any] = {"event": "done", "topic": str(self.wanted), "directory": str(self.directory)}
        if done is None:
            tell(self.json, facts | {"records": 0}, "nothing was archived")
            return
        rate = rate_of(done.records, done.seconds)
        text = f"archived {many(done.records, 'record')} in {done.seconds:.1f} s ({rate:,.0f} records/s) "
        text += f"in {self.directory}"
        text += f", which has {many(done.files, 'file')}, {human_bytes(done.bytes)}"
        tell(self.json, facts | _facts(done), text)

    def _work(self, master: str, towers: str, skip_lost: bool, open_sealed: bool) -> None:
        from chappe.spark.archive.job import ArchiveJob
        from chappe.spark.archive.manifest import ArchiveWriter
        from chappe.spark.session import spark_session

        try:
            with ArchiveWriter(self.directory) as opened:
                spark = spark_session("chappe archive", master=master, apart=True)
                try:
                    options: dict[str, Any] = {
                        "follow": self.follow,
                        "skip_lost": skip_lost,
                        "open_sealed": open_sealed,
                        "on_progress": self._progress,
                    }
                    self.job = ArchiveJob(spark, opened, self.wanted, towers=towers, **options)
                    notify("READY=1")
                    if not self.stopped:
                        self.job.run()
                finally:
                    spark.stop()
        except BaseException as error:
            self.error = error

    def _progress(self, progress: ArchiveProgress) -> None:
        self.last = progress
        if self.first is None and progress.records:
            self.first = progress
        if self.json:
            show_json({"event": "progress"} | _facts(progress))

    def _show(self) -> None:
        now = self.last
        if now is None:
            return
        # measured from the first batch on, once there is another one
        first = self.first if self.first is not None and now.seconds > self.first.seconds else None
        records, seconds = (0, 0.0) if first is None else (first.records, first.seconds)
        rate = rate_of(now.records - records, now.seconds - seconds)
        text = f"{now.records:,} archived, {rate:,.0f} records/s"
        if self.follow:
            self.bar.update(f"{text}, following", now.records, None)
        else:
            left = (now.total - now.records) / rate if rate else None
            self.bar.update(f"{text}{left_text(left)}", now.records, max(now.total, now.records))


def _facts(progress: ArchiveProgress) -> dict[str, object]:
    return asdict(progress) | {"seconds": round(progress.seconds, 3)}
