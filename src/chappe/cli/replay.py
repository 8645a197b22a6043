"""``chappe replay``: what was kept, back again: a recorded topic into the mesh, an archive into topics of the log."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from typer import Argument, Option

from chappe.cli import mesh, options
from chappe.cli.archive import need_packages
from chappe.cli.console import Bar, exit_code, hear_warnings, left_text, rate_of, say, tell, warn
from chappe.cli.units import iso_time, parse_moment, parse_start
from chappe.data.topic import check_topic
from chappe.errors import TimedOut, UsageError

if TYPE_CHECKING:
    from chappe.bridges.player import Player, Start
    from chappe.security import Security
    from chappe.spark.archive.replay import Replay

PANEL: Final = "Archive"
INTERRUPTED_FLUSH_S: Final = 2.0  # after Ctrl-C stores get this long to acknowledge the rest
PEER_S: Final = 30.0  # a peer that is not there by then is an error


@dataclass(frozen=True, slots=True)
class Archived:
    """The options that go with an archive."""

    topic: Annotated[
        str | None,
        Option(metavar="TOPIC|PREFIX*", help="What to replay; all topics by default.", rich_help_panel=PANEL),
    ] = None
    to: Annotated[
        str | None,
        Option(
            metavar="TOPIC",
            help="Where one topic's records go; by default where they came from.",
            rich_help_panel=PANEL,
        ),
    ] = None
    anew: Annotated[
        bool,
        Option("--anew", help="Start from the beginning even if this replay was interrupted.", rich_help_panel=PANEL),
    ] = False


@options.with_groups
def replay(
    trust: mesh.Trust,
    what: Archived,
    recorded: Annotated[
        str | None, Argument(metavar="TOPIC", help="A topic that `chappe record` made: back into the mesh.")
    ] = None,
    source: Annotated[
        Path | None, Option("--from", metavar="DIR", help="An archive that `chappe archive` made: into topics.")
    ] = None,
    speed: Annotated[
        str, Option(metavar="original|N|max", help="original: as the timestamps say; N: so many times faster; max.")
    ] = "original",
    start: Annotated[
        str | None,
        Option(
            metavar="TIME",
            help="Only records from this time on: 2026-01-31T12:00, or 2h (ago); of TOPIC also an offset.",
        ),
    ] = None,
    end: Annotated[str | None, Option(metavar="TIME", help="Only records before this time.")] = None,
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
        _refuse(what, "an archive, --from DIR; a recorded topic has its own")
        security = trust.security()
        code = _replay_topic(recorded, peer, security, parse_speed(speed), _start(start), _end(end), tower, as_json)
    else:
        assert source is not None
        _refuse(trust, "a recorded TOPIC; an archive goes back into topics", peer=peer)
        code = _replay_archive(source, what, parse_speed(speed), (start, end), tower, listen, as_json)
    if code:
        raise typer.Exit(code)


def _refuse(group: Any, why: str, **more: object) -> None:
    """Raise UsageError for options that are given; ``why`` says what they are for."""
    wrong = [f"--{option}" for option, value in (more | asdict(group)).items() if value]
    if wrong:
        raise UsageError(f"{' and '.join(wrong)} can only be given with {why}")


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


def _play(run: Player | Replay, bar: Bar, show: Callable[[Any], None], interrupted: Callable[[], str]) -> int:
    """Run to the end; ``interrupted`` is called on Ctrl-C, and says what to tell. Returns the exit code."""
    run.show = show
    try:
        run.run()
    except KeyboardInterrupt as stop:
        warn(f"interrupted: {interrupted()}")
        return exit_code(stop)
    return 0


def _facts(done: Any, **more: object) -> dict[str, Any]:
    facts = asdict(done) | more | {"seconds": round(done.seconds, 3)}
    del facts["left_s"]
    return facts


# -- an archive into topics ---------------------------------------------------------------------------


def _replay_archive(
    source: Path,
    what: Archived,
    speed: float | None,
    between: tuple[str | None, str | None],
    tower: str,
    listen: str,
    as_json: bool,
) -> int:
    need_packages("pyarrow", "numpy")
    since, until = (
        None if text is None else parse_moment(text, option)
        for text, option in zip(between, ("--start", "--end"), strict=True)
    )
    from chappe.spark.archive.order import EARLIEST_US, LATEST_US
    from chappe.spark.archive.replay import Order, Progress, Replay

    to = None if what.to is None else check_topic(what.to)
    times = (EARLIEST_US if since is None else since, LATEST_US if until is None else until)
    hear_warnings(tower)

    def show(now: Progress) -> None:
        rate = rate_of(now.sent - now.earlier, now.seconds)
        text = f"{now.sent:,} sent, {now.stored:,} stored, {rate:,.0f} records/s{left_text(now.left_s)}"
        bar.update(text, now.sent, now.total)

    def interrupted() -> str:
        run.interrupted(INTERRUPTED_FLUSH_S)
        now = run.progress
        return f"{now.sent:,} of {now.total:,} records are sent; the same command goes on from there"

    with ExitStack() as ending:
        bar = ending.enter_context(Bar("looking at the archive", quiet=as_json))
        order = Order(what.topic, to, speed, *times)
        run = ending.enter_context(Replay(source, order, tower=tower, listen=listen, anew=what.anew))
        if run.resumed:
            say(f"going on after {run.progress.earlier:,} records that an earlier run has sent (--anew starts again)")
        code = _play(run, bar, show, interrupted)
    done = run.progress
    records = done.sent - done.earlier
    rate = f"{done.seconds:.1f} s ({rate_of(records, done.seconds):,.0f} records/s)"
    text = f"replayed {records:,} records in {rate}, {done.stored:,} are stored"
    tell(as_json, _facts(done, directory=str(source)), text)
    return code


# -- a recorded topic into the mesh -------------------------------------------------------------------


def _replay_topic(
    topic: str,
    peers: list[str] | None,
    security: Security,
    speed: float | None,
    start: Start,
    end: datetime | None,
    tower: str,
    as_json: bool,
) -> int:
    from chappe import Endpoint
    from chappe.bridges.player import Player, Progress

    addresses = mesh.addresses(security, peers or [mesh.HERE])
    hear_warnings(tower)

    def show(now: Progress) -> None:
        rate = rate_of(now.sent, now.seconds)
        text = f"{now.sent:,} of {now.total:,} published, {rate:,.0f} messages/s{left_text(now.left_s)}"
        bar.update(text, now.sent + now.skipped, now.total)

    def interrupted() -> str:
        now = player.progress
        onwards = f"; from there on: --start {iso_time(now.at_us)}" if now.sent else ""
        return f"{now.sent:,} of {now.total:,} messages are published{onwards}"

    with ExitStack() as ending:
        endpoint = ending.enter_context(Endpoint(security=security, forwarding=False))
        bar = ending.enter_context(Bar("waiting for peers", quiet=as_json))
        player = Player(endpoint, topic, tower=tower, start=start, end=end, speed=speed)
        for host, port in addresses:
            try:
                endpoint.peer(host, port, retry_s=mesh.RETRY_S, timeout=PEER_S)
            except TimedOut:
                raise TimedOut(f"no endpoint of the mesh answers at {mesh.shown((host, port))}") from None
        code = _play(player, bar, show, interrupted)
    done = player.progress
    rate = rate_of(done.sent, done.seconds)
    text = f"published {done.sent:,} messages in {done.seconds:.1f} s ({rate:,.0f} messages/s)"
    tell(as_json, _facts(done, topic=topic), text)
    if done.skipped:
        warn(f"{done.skipped:,} records of {topic} were not recorded from the mesh, and are left out")
    return code


def _start(text: str | None) -> Start:
    where = "earliest" if text is None else parse_start(text)
    if where == "latest":
        raise UsageError("--start is earliest, an offset, an age or a time: after the latest there is nothing yet")
    return where


def _end(text: str | None) -> datetime | None:
    if text is None:
        return None
    moment = parse_start(text)
    if not isinstance(moment, datetime):
        raise UsageError(f"--end is a time such as 2026-01-31T12:00 or an age such as 2h, not {text!r}")
    return moment.astimezone(UTC)
