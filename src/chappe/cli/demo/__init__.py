"""``chappe demo``: all of chappe on one machine: real input through a tower, a store and Spark, shown live.

run.py      a run: starts the parts, watches them, ends them, says where the results are
feed.py     the producer of measurements or lines
query.py    the Spark query, and the windows that it computes, as a table in memory and as Parquet
view.py     the running table in the terminal: newest values, rates, delays
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Annotated, Final

from typer import Option

from chappe.cli import dashboard, options
from chappe.cli.archive import need_packages
from chappe.cli.console import say
from chappe.errors import UsageError

DIRECTORY: Final = Path("chappe-data/demo")
MARK: Final = "demo.json"  # describes the directory; a directory without it is not ours to delete
FORM: Final = 2  # of the query's state in the checkpoint
SECONDS: Final = 30.0  # without a terminal and without --seconds
PIPE_WIDTH: Final = 110  # of the table where no terminal says how wide it is


def demo(
    source: Annotated[
        str | None,
        Option("--input", metavar="FILE|-", help="Lines of text or JSON instead of this machine's measurements."),
    ] = None,
    seconds: Annotated[
        float | None,
        Option(min=0, help="End this long after the query has started; without it, on Ctrl-C or at the input's end."),
    ] = None,
    directory: Annotated[
        Path, Option(envvar="CHAPPE_DEMO_DIRECTORY", help="Where topic, checkpoint and Parquet are kept.")
    ] = DIRECTORY,
    tower: Annotated[
        str,
        Option(
            envvar="CHAPPE_TOWER", metavar="ADDRESS", help="Where its tower listens; if that is taken, at another port."
        ),
    ] = options.TOWER,
    fresh: Annotated[bool, Option("--fresh", help="Delete what an earlier demo left, and start anew.")] = False,
    look: dashboard.Wanted = False,
) -> None:
    """Show chappe at work, live: this machine's measurements through store and Spark."""
    need_packages("pyspark", "pyarrow", "psutil", what="the demo", extras="demo,spark")  # before anything is started
    from chappe.cli.demo.run import Demo
    from chappe.cli.screen import wide_console

    console = wide_console(PIPE_WIDTH)
    if seconds is None and source is None and not console.is_terminal:
        seconds = SECONDS
    resumed = _prepare(directory, source, fresh)
    say(f"{'resuming' if resumed else 'starting'} in {directory}" + ("; --fresh starts anew" if resumed else ""))
    Demo(directory, source, seconds, tower, console, look).run()


def _prepare(directory: Path, source: str | None, fresh: bool) -> bool:
    """Make the directory; return True if an earlier demo is resumed. Raises UsageError."""
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
