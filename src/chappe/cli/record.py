"""``chappe record``: topics of the mesh kept in a topic of the log, or in files of Parquet."""

from __future__ import annotations

import time
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer
from typer import Argument, Option

from chappe.cli import mesh, options
from chappe.cli.console import Bar, hand_signals, hear_warnings, say, show_json, tell, warn
from chappe.cli.serving import Numbers, notify, serve_run
from chappe.cli.units import human_bytes
from chappe.data.markup import are, many
from chappe.errors import UsageError
from chappe.observing.lines import RATE_POINTS_MAX, TimeSeries
from chappe.observing.numbers import Family, of_member
from chappe.system import program

if TYPE_CHECKING:
    from chappe import Endpoint
    from chappe.bridges.event_files import EventFiles
    from chappe.bridges.recorder import Recorded, Recorder

PATIENCE_S: Final = 5.0  # then a warning says that nobody peers


@options.with_groups
def record(
    trust: mesh.Trust,
    queues: mesh.Queues,
    dialling: mesh.DialOptions,
    numbers: Numbers,
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
    """Keep what is published in the mesh: in a topic, or as Parquet files.

    The same command again goes on with what stores did not have yet. `chappe replay TOPIC` brings records back.
    """
    from chappe.api.metrics import MemberNumbers
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
                endpoint, *topics, to=to, tower=tower, listen=listen, min_acks=min_acks, security=trust.of_log
            )
            facts["partition"] = recorder.partition
        else:
            assert parquet is not None
            recorder = EventFiles(endpoint, *topics, directory=parquet)
        of_endpoint = MemberNumbers(endpoint)
        name = to or str(parquet)
        metrics = serve_run(
            numbers.metrics,
            security,
            ending,
            lambda: [*of_endpoint.families(), *_numbers(name, recorder.progress())],
            lambda: "; ".join(of_endpoint.unready()),
        )
        if metrics is not None:
            facts["metrics"] = metrics
            if not as_json:
                say(f"metrics at {metrics}")
        with hand_signals(lambda _: recorder.stop()):  # a message that was taken is not forgotten half-way
            dialling.keep(endpoint, dialled)
            if as_json:
                show_json(facts)
            elif at is not None:
                say(f"peers can dial {at}")
            notify("READY=1")
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


def _numbers(name: str, now: Recorded) -> Iterable[Family]:
    counts = {
        "chappe_recorded_messages": now.records,
        "chappe_recording_lost_messages": now.dropped,
        "chappe_recording_waiting_messages": now.waiting + now.left,
    }
    return of_member("recording", name, counts.items())


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


class _RecordingBar:
    def __init__(self, endpoint: Endpoint, bar: Bar) -> None:
        self._endpoint = endpoint
        self._bar = bar
        self._counters = TimeSeries(points_max=RATE_POINTS_MAX)
        self._lonely_at: float | None = time.monotonic() + PATIENCE_S

    def show(self, now: Recorded) -> None:
        rate = self._counters.rise("records", now.records, now.seconds)
        peers = sum(each.status.name == "PEERED" for each in self._endpoint.peers())
        if peers:
            self._lonely_at = None
        elif self._lonely_at is not None and time.monotonic() > self._lonely_at:
            self._lonely_at = None
            warn("nobody peers with this endpoint yet; still trying")
        lost = f", {now.dropped:,} lost" if now.dropped else ""
        self._bar.update(
            f"{now.records:,} recorded, {now.left:,} not stored yet, {now.waiting:,} waiting{lost}, "
            f"{rate:,.0f} messages/s, {many(peers, 'peer')}",
            now.records,
            None,
        )
