"""``chappe replay``: a recorded topic back into the mesh, an archive back into topics."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass, fields, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, Literal

import typer
from typer import Argument, Option

from chappe.api.log.lines import iso_time
from chappe.api.times import as_micros
from chappe.cli import completing, mesh, options
from chappe.cli.archive import need_packages
from chappe.cli.console import Bar, exit_code, hear_warnings, left_text, rate_of, say, tell, warn
from chappe.cli.units import parse_moment, parse_start
from chappe.data.markup import many
from chappe.errors import TimedOut, UsageError
from chappe.system import program

if TYPE_CHECKING:
    from chappe.bridges.player import Player, Start
    from chappe.security import Keys, Security
    from chappe.spark.archive.replay import Replay

INTERRUPTED_FLUSH_S: Final = 2.0  # after Ctrl-C stores get this long to acknowledge the rest
PEER_S: Final = 30.0  # a peer that is not there by then is an error


@dataclass(frozen=True, slots=True)
class Archived:
    """The options that go with an archive."""

    PANEL: ClassVar = "Archive"
    topic: Annotated[str | None, Option(metavar="TOPIC|PREFIX*", help="What to replay; all topics by default.")] = None
    to: Annotated[
        str | None, Option(metavar="TOPIC", help="Where one topic's records go; by default where they came from.")
    ] = None
    anew: Annotated[bool, Option("--anew", help="Start from the beginning even if this replay was interrupted.")] = (
        False
    )


@options.with_groups
def replay(
    trust: mesh.Trust,
    queues: mesh.Queues,
    dialling: mesh.DialOptions,
    what: Archived,
    context: typer.Context,
    recorded: Annotated[
        str | None,
        Argument(
            metavar="TOPIC",
            help="A topic that `chappe record` made: back into the mesh.",
            autocompletion=completing.TOPICS,
        ),
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
    peers: mesh.Peers = None,
    tower: options.Tower = options.TOWER,
    listen: options.Listen = options.LISTEN,
    name: options.Name = None,
    as_json: options.Json = False,
) -> None:
    """Replay an archive or a recorded topic, in order.

    TOPIC, recorded from the mesh, is published there again, to the topics that it came from. An archive (--from DIR)
    goes back into topics until it is stored; interrupted, it goes on when the command is given again.
    """
    program.call_members(name)
    if (recorded is None) == (source is None):
        raise UsageError(
            "give either a TOPIC that `chappe record` made, to replay it into the mesh, or --from DIR, an archive, "
            "to replay it into topics"
        )
    if recorded is not None:
        _refuse(what, "an archive, --from DIR; a recorded topic has its own")
        between = _start(start), _moment(end, "--end")
        into = _Into(queues, dialling, peers)
        code = _replay_topic(recorded, into, trust.security(), parse_speed(speed), between, tower, as_json)
    else:
        assert source is not None
        ours = replace(trust, acting=None, plain=False)  # which are of the log as well
        _refuse(ours, "a recorded TOPIC; an archive goes back into topics", **_typed(context))
        options.be(trust.acting)
        code = _replay_archive(source, what, parse_speed(speed), (start, end), tower, listen, trust.of_log, as_json)
    if code:
        raise typer.Exit(code)


def _typed(context: typer.Context) -> dict[str, bool]:
    """Return the options of the mesh on the command line: file and environment set them for other replays."""
    ours = [*(each.name for group in (mesh.Queues, mesh.DialOptions) for each in fields(group)), "peers"]
    return {
        each.opts[0].removeprefix("--"): True
        for each in context.command.params
        if each.name in ours and options.source_of(context, each.name) == "COMMANDLINE"
    }


def _refuse(group: Any, why: str, **more: object) -> None:
    """Raise UsageError for options that are given; ``why`` names where they belong."""
    wrong = [f"--{option}" for option, value in (more | asdict(group)).items() if value]
    if wrong:
        raise UsageError(f"{' and '.join(wrong)} can only be given with {why}")


def parse_speed(text: str) -> float | None:
    """Return 1.0 for ``original``, None for ``max``, or a factor. Raises UsageError."""
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


def _play(run: Player | Replay, show: Callable[[Any], None], interrupted: Callable[[], str]) -> int:
    """Run to the end; on Ctrl-C print the text of ``interrupted``. Return the exit code."""
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
    security: Literal["plain"] | None,
    as_json: bool,
) -> int:
    need_packages("pyarrow", "numpy")
    since, until = (_moment(text, option) for text, option in zip(between, ("--start", "--end"), strict=True))
    from chappe.spark.archive.order import EARLIEST_US, LATEST_US
    from chappe.spark.archive.replay import Replay, ReplayOrder, ReplayProgress

    to = None if what.to is None else options.written_topic(what.to)
    times = (EARLIEST_US if since is None else as_micros(since), LATEST_US if until is None else as_micros(until))
    hear_warnings(tower)

    def show(now: ReplayProgress) -> None:
        rate = rate_of(now.sent - now.earlier, now.seconds)
        text = f"{now.sent:,} sent, {now.stored:,} stored, {rate:,.0f} records/s{left_text(now.left_s)}"
        bar.update(text, now.sent, now.total)

    def interrupted() -> str:
        run.interrupted(INTERRUPTED_FLUSH_S)
        now = run.progress
        return f"{now.sent:,} of {now.total:,} records are sent; the same command goes on from there"

    with ExitStack() as ending:
        bar = ending.enter_context(Bar("looking at the archive", quiet=as_json))
        order = ReplayOrder(what.topic, to, speed, *times)
        run = ending.enter_context(Replay(source, order, tower=tower, listen=listen, security=security, anew=what.anew))
        if run.resumed:
            say(f"going on after {many(run.progress.earlier, 'record')} of an earlier run (--anew starts again)")
        code = _play(run, show, interrupted)
    done = run.progress
    records = done.sent - done.earlier
    rate = f"{done.seconds:.1f} s ({rate_of(records, done.seconds):,.0f} records/s)"
    text = f"replayed {many(records, 'record')} in {rate}, {done.stored:,} stored"
    tell(as_json, _facts(done, directory=str(source)), text)
    return code


# -- a recorded topic into the mesh -------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Into:
    """The mesh into which a topic is replayed."""

    queues: mesh.Queues
    dialling: mesh.DialOptions
    peers: list[str] | None


def _replay_topic(
    topic: str,
    into: _Into,
    security: Security | Keys,
    speed: float | None,
    between: tuple[Start, datetime | None],
    tower: str,
    as_json: bool,
) -> int:
    from chappe.bridges.player import Player, PlayerProgress

    addresses = mesh.addresses(security, into.peers or [mesh.HERE])
    hear_warnings(tower)

    def show(now: PlayerProgress) -> None:
        rate = rate_of(now.sent, now.seconds)
        text = f"{now.sent:,} of {now.total:,} published, {rate:,.0f} messages/s{left_text(now.left_s)}"
        bar.update(text, now.sent + now.skipped, now.total)

    def interrupted() -> str:
        now = player.progress
        onwards = f"; from there on: --start {iso_time(now.at_us)}" if now.sent else ""
        return f"{now.sent:,} of {now.total:,} messages are published{onwards}"

    with ExitStack() as ending:
        endpoint = ending.enter_context(into.queues.endpoint(security, forwarding=False))
        bar = ending.enter_context(Bar("waiting for peers", quiet=as_json))
        player = Player(endpoint, topic, tower=tower, start=between[0], end=between[1], speed=speed)
        for host, port in addresses:
            try:
                endpoint.peer(host, port, **into.dialling.arguments, timeout=PEER_S)
            except TimedOut:
                raise TimedOut(f"no endpoint of the mesh answers at {mesh.shown((host, port))}") from None
        code = _play(player, show, interrupted)
    done = player.progress
    rate = rate_of(done.sent, done.seconds)
    text = f"published {many(done.sent, 'message')} in {done.seconds:.1f} s ({rate:,.0f} messages/s)"
    tell(as_json, _facts(done, topic=topic), text)
    if done.skipped:
        warn(f"left out {many(done.skipped, 'record')} of {topic}, not recorded from the mesh")
    return code


def _moment(text: str | None, option: str) -> datetime | None:
    return None if text is None else parse_moment(text, option)


def _start(text: str | None) -> Start:
    where = "earliest" if text is None else parse_start(text)
    if where == "latest" or where == "last-value":
        raise UsageError("--start is earliest, an offset, an age or a time: after the latest there is nothing yet")
    return where
