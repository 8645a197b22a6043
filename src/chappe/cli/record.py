"""``chappe record`` and ``replay``: topics of the mesh kept in a topic of the log, and what was kept back again."""

from __future__ import annotations

import json
import math
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, fields, replace
from datetime import datetime
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, Literal

import typer
from typer import Argument, Option

from chappe.api.log.lines import iso_time
from chappe.api.times import as_micros
from chappe.cli import declared, mesh, options
from chappe.cli.archive import need_packages
from chappe.cli.console import Bar, exit_code, hear_warnings, left_text, rate_of, say, tell, warn
from chappe.cli.units import human_bytes, parse_moment, parse_start
from chappe.data.markup import are, many
from chappe.errors import TimedOut, UsageError
from chappe.system import program, settings

if TYPE_CHECKING:
    from chappe import Endpoint
    from chappe.bridges.event_files import EventFiles
    from chappe.bridges.player import Player, Start
    from chappe.bridges.recorder import Recorded, Recorder
    from chappe.security import Keys, Security
    from chappe.spark.archive.replay import Replay

PATIENCE_S: Final = 5.0  # then it is said that nobody peers
RATE_S: Final = 1.0  # the rate shown is an average over this time


@options.with_groups
def record(
    trust: mesh.Trust,
    queues: mesh.Queues,
    dialling: mesh.DialOptions,
    topics: Annotated[list[str], Argument(metavar="PREFIX", help="Topics of the mesh that start so.")],
    to: Annotated[str | None, Option("--to", metavar="TOPIC", help="The topic of the log that gets them.")] = None,
    parquet: Annotated[
        Path | None,
        Option(metavar="DIR", file_okay=False, help="Instead of --to: files of Parquet here, events as columns."),
    ] = None,
    peers: mesh.LastingPeers = None,
    forwarding: mesh.Forwarding = True,
    mesh_listen: Annotated[
        str | None, Option(metavar="HOST:PORT", help="Accept peers here; port 0: any.", rich_help_panel=mesh.PANEL)
    ] = None,
    min_acks: Annotated[int, Option(min=1, max=100, help="Stores that must have each record.")] = 1,
    tower: options.Tower = options.TOWER,
    listen: options.Listen = options.LISTEN,
    name: options.Name = None,
    as_json: options.Json = False,
) -> None:
    """Keep what is published in the mesh, until Ctrl-C: a record for each message, or rows of files with --parquet.

    The same command again goes on with what stores did not have yet. `chappe replay TOPIC` brings records back.
    """
    from chappe.bridges.event_files import EventFiles
    from chappe.bridges.recorder import Recorder

    program.call_members(name)
    if (to is None) == (parquet is None):
        raise UsageError("give either --to TOPIC, for records in the log, or --parquet DIR, for files of events")
    if not peers and mesh_listen is None:
        raise UsageError("nobody can be heard: give --peer HOST:PORT to dial an endpoint, or --mesh-listen HOST:PORT")
    security = trust.security()
    dialled = mesh.addresses(security, peers or ())
    listened = mesh.addresses(security, [] if mesh_listen is None else [mesh_listen])
    if to is not None:
        to = options.written_topic(to)
        hear_warnings(tower)
    with ExitStack() as ending:
        endpoint = ending.enter_context(queues.endpoint(security, forwarding=forwarding))
        at = next(iter(mesh.listen(endpoint, listened)), None)
        recorder: Recorder | EventFiles
        facts: dict[str, object] = {"event": "recording", "id": endpoint.id, "address": at}
        if to is not None:
            recorder = Recorder(
                endpoint, *topics, to=to, tower=tower, listen=listen, min_acks=min_acks, security=_log_security(trust)
            )
            facts["partition"] = recorder.partition
        else:
            assert parquet is not None
            recorder = EventFiles(endpoint, *topics, directory=parquet)
        with _stopped_by_signals(recorder):
            dialling.keep(endpoint, dialled)
            if as_json:
                print(json.dumps(facts), flush=True)
            elif at is not None:
                say(f"peers can dial {at}")
            with Bar("waiting for peers", quiet=as_json) as bar:
                recorder.show = _RecordingBar(endpoint, bar).show
                try:
                    recorder.run()
                finally:
                    done = recorder.finish()
    if isinstance(recorder, EventFiles):
        _tell_files(as_json, recorder, done, str(parquet))
        return
    account = {"event": "done", "topic": to} | asdict(done) | {"seconds": round(done.seconds, 3)}
    tell(as_json, account, f"recorded {many(done.records, 'message')}, {human_bytes(done.bytes)}, in topic {to}")
    if done.left:
        warn(f"{are(done.left, 'record')} not stored yet, but in a journal, and the same command stores the rest")
    if done.dropped:
        warn(f"lost {many(done.dropped, 'message')}: more came than stores could take, or larger than a record can be")
    if done.left or done.dropped:
        raise typer.Exit(1)


def _tell_files(as_json: bool, recorder: EventFiles, done: Recorded, directory: str) -> None:
    account = {"event": "done", "parquet": directory, "malformed": recorder.malformed} | asdict(done)
    account |= {"seconds": round(done.seconds, 3)}
    tell(
        as_json,
        account,
        f"recorded {many(done.records, 'event')}, {human_bytes(done.bytes)} of columns, in {directory}",
    )
    if recorder.malformed:
        warn(f"{many(recorder.malformed, 'message')} cannot be decoded, and will be in no file")
    if done.dropped:
        warn(f"lost {many(done.dropped, 'message')}: more came than could be written")
    if recorder.malformed or done.dropped:
        raise typer.Exit(1)


@contextmanager
def _stopped_by_signals(recorder: Recorder | EventFiles) -> Iterator[None]:
    """Ctrl-C and SIGTERM end the recording in order: a message that was taken is not forgotten half-way."""

    def stop(_signum: int, _frame: FrameType | None) -> None:
        recorder.stop()

    before = {each: signal.signal(each, stop) for each in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


class _RecordingBar:
    def __init__(self, endpoint: Endpoint, bar: Bar) -> None:
        self._endpoint = endpoint
        self._bar = bar
        self._rate = 0.0
        self._at, self._records = 0.0, 0
        self._lonely_at: float | None = time.monotonic() + PATIENCE_S

    def show(self, now: Recorded) -> None:
        if now.seconds - self._at >= RATE_S:
            self._rate = (now.records - self._records) / (now.seconds - self._at)
            self._at, self._records = now.seconds, now.records
        peers = sum(each.status.name == "PEERED" for each in self._endpoint.peers())
        if peers:
            self._lonely_at = None
        elif self._lonely_at is not None and time.monotonic() > self._lonely_at:
            self._lonely_at = None
            warn("nobody peers with this endpoint yet; still trying")
        lost = f", {now.dropped:,} lost" if now.dropped else ""
        self._bar.update(
            f"{now.records:,} recorded, {now.left:,} not stored yet, {now.waiting:,} waiting{lost}, "
            f"{self._rate:,.0f} messages/s, {many(peers, 'peer')}",
            now.records,
            None,
        )


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
    peers: mesh.Peers = None,
    tower: options.Tower = options.TOWER,
    listen: options.Listen = options.LISTEN,
    name: options.Name = None,
    as_json: options.Json = False,
) -> None:
    """Bring back what was kept, in order.

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
        code = _replay_archive(
            source, what, parse_speed(speed), (start, end), tower, listen, _log_security(trust), as_json
        )
    if code:
        raise typer.Exit(code)


def _log_security(trust: mesh.Trust) -> Literal["plain"] | None:
    """What the log beside a mesh takes: an identity of the environment's also where the mesh is plain."""
    return "plain" if trust.plain and settings.identity() is None else None


def _typed(context: typer.Context) -> dict[str, bool]:
    """The options of the mesh on the command line: file and environment say them for other replays."""
    ours = [*(each.name for group in (mesh.Queues, mesh.DialOptions) for each in fields(group)), "peers"]
    return {
        each.opts[0].removeprefix("--"): True
        for each in context.command.params
        if each.name in ours and declared.source_of(context, each.name) == "COMMANDLINE"
    }


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


def _play(run: Player | Replay, show: Callable[[Any], None], interrupted: Callable[[], str]) -> int:
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
    security: Literal["plain"] | None,
    as_json: bool,
) -> int:
    need_packages("pyarrow", "numpy")
    since, until = (_moment(text, option) for text, option in zip(between, ("--start", "--end"), strict=True))
    from chappe.spark.archive.order import EARLIEST_US, LATEST_US
    from chappe.spark.archive.replay import Order, Progress, Replay

    to = None if what.to is None else options.written_topic(what.to)
    times = (EARLIEST_US if since is None else as_micros(since), LATEST_US if until is None else as_micros(until))
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
    from chappe.bridges.player import Player, Progress

    addresses = mesh.addresses(security, into.peers or [mesh.HERE])
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
