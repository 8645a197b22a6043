"""``chappe replay``: archived records back into topics, or recorded messages back into the mesh."""

from __future__ import annotations

import math
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from chappe.cli import mesh, options, replay_mesh
from chappe.cli.archive import need_packages
from chappe.cli.console import exit_code, hear_warnings, say, tell, warn
from chappe.cli.units import parse_moment
from chappe.errors import UsageError

if TYPE_CHECKING:
    from chappe.cli.progress import Bar
    from chappe.spark.archive.replay import Progress, Replay

ARCHIVE_PANEL: Final = "Archive"
INTERRUPTED_FLUSH_S: Final = 2.0  # after Ctrl-C stores get this long to acknowledge the rest


@options.with_groups
def replay(
    trust: mesh.Trust,
    recorded: Annotated[
        str | None, typer.Argument(metavar="TOPIC", help="A topic that `chappe record` made: back into the mesh.")
    ] = None,
    source: Annotated[
        Path | None, typer.Option("--from", metavar="DIR", help="An archive that `chappe archive` made: into topics.")
    ] = None,
    speed: Annotated[
        str,
        typer.Option(metavar="original|N|max", help="original: as the timestamps say; N: so many times faster; max."),
    ] = "original",
    start: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="Only records from this time on: 2026-01-31T12:00, or 2h (ago); of TOPIC also an offset.",
        ),
    ] = None,
    end: Annotated[str | None, typer.Option(metavar="TIME", help="Only records before this time.")] = None,
    topic: Annotated[
        str | None,
        typer.Option(
            metavar="TOPIC|PREFIX*", help="What to replay; all topics by default.", rich_help_panel=ARCHIVE_PANEL
        ),
    ] = None,
    to: Annotated[
        str | None,
        typer.Option(
            metavar="TOPIC",
            help="Where one topic's records go; by default where they came from.",
            rich_help_panel=ARCHIVE_PANEL,
        ),
    ] = None,
    anew: Annotated[
        bool,
        typer.Option(
            "--anew",
            help="Start from the beginning even if this replay was interrupted before.",
            rich_help_panel=ARCHIVE_PANEL,
        ),
    ] = False,
    peer: mesh.Peers = None,
    tower: options.Tower = options.TOWER,
    listen: options.Listen = options.LISTEN,
    as_json: options.Json = False,
) -> None:
    """Bring back what was kept, in order.

    TOPIC, recorded from the mesh, is published there again, to the topics that it came from. An archive (--from DIR)
    goes back into topics until it is stored; interrupted, it goes on when the command is given again.
    """
    if (recorded is None) == (source is None):
        raise UsageError(
            "give either a TOPIC that `chappe record` made, to replay it into the mesh, or --from DIR, an archive, "
            "to replay it into topics"
        )
    if recorded is not None:
        _refuse({"--topic": topic, "--to": to, "--anew": anew}, "go with --from DIR: a recorded topic has its own")
        code = replay_mesh.replay_mesh(recorded, peer, trust.security(), parse_speed(speed), start, end, tower, as_json)
    else:
        assert source is not None
        _refuse(
            {"--peer": peer, "--tls": trust.tls, "--anonymous": trust.anonymous, "--plain": trust.plain},
            "go with a recorded TOPIC: an archive goes back into topics",
        )
        code = _archive(source, topic, to, speed, start, end, anew, tower, listen, as_json)
    if code:
        raise typer.Exit(code)


def _refuse(given: dict[str, object], why: str) -> None:
    wrong = [option for option, value in given.items() if value]
    if wrong:
        raise UsageError(f"{' and '.join(wrong)} {why}")


def _archive(
    source: Path,
    topic: str | None,
    to: str | None,
    speed: str,
    start: str | None,
    end: str | None,
    anew: bool,
    tower: str,
    listen: str,
    as_json: bool,
) -> int:
    factor = parse_speed(speed)
    need_packages("pyarrow", "numpy")
    since = None if start is None else parse_moment(start, "--start")
    until = None if end is None else parse_moment(end, "--end")
    from chappe.cli.progress import Bar
    from chappe.data.topic import check_topic
    from chappe.spark.archive.order import EARLIEST_US, LATEST_US
    from chappe.spark.archive.replay import Order, Replay

    order = Order(
        topic,
        None if to is None else check_topic(to),
        factor,
        EARLIEST_US if since is None else since,
        LATEST_US if until is None else until,
    )
    hear_warnings(tower)
    with ExitStack() as ending:
        bar = ending.enter_context(Bar("looking at the archive", quiet=as_json))
        run = ending.enter_context(Replay(source, order, tower=tower, listen=listen, anew=anew))
        if run.resumed:
            say(f"going on after {run.progress.earlier:,} records that an earlier run has sent (--anew starts again)")
        code = _to_the_end(run, bar)
    _account(run.progress, source, as_json)
    return code


def parse_speed(text: str) -> float | None:
    """1.0 for ``original``, None for ``max``, or a factor. Raises UsageError."""
    if text == "max":
        return None
    if text == "original":
        return 1.0
    try:
        factor = float(text.removesuffix("x"))
    except ValueError:
        factor = math.nan
    if not 0 < factor < math.inf:
        raise UsageError(f"--speed is original, max, or how many times faster, such as 10; not {text!r}")
    return factor


def _to_the_end(run: Replay, bar: Bar) -> int:
    from chappe.cli.progress import left_text

    def show(now: Progress) -> None:
        rate = (now.sent - now.earlier) / now.seconds if now.seconds > 0 else 0.0
        text = f"{now.sent:,} sent, {now.stored:,} stored, {rate:,.0f} records/s{left_text(now.left_s)}"
        bar.update(text, now.sent, now.total)

    run.show = show
    try:
        run.run()
    except KeyboardInterrupt as stop:
        run.interrupted(INTERRUPTED_FLUSH_S)
        warn(
            f"interrupted: {run.progress.sent:,} of {run.progress.total:,} records are sent; "
            "the same command goes on from there"
        )
        return exit_code(stop)
    return 0


def _account(done: Progress, source: Path, as_json: bool) -> None:
    facts = asdict(done) | {"directory": str(source), "seconds": round(done.seconds, 3)}
    del facts["left_s"]
    records = done.sent - done.earlier
    rate = f"{done.seconds:.1f} s ({records / done.seconds if done.seconds > 0 else 0.0:,.0f} records/s)"
    tell(as_json, facts, f"replayed {records:,} records in {rate}, {done.stored:,} are stored")
