"""``chappe record``: topics of the mesh into a durable topic of the log."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Final

import typer
from typer import Argument, Option

from chappe.cli import mesh, options
from chappe.cli.console import Bar, hear_warnings, say, tell, warn
from chappe.cli.units import human_bytes
from chappe.data.topic import check_topic
from chappe.errors import UsageError

if TYPE_CHECKING:
    from chappe import Endpoint
    from chappe.bridges.recorder import Recorded, Recorder

PATIENCE_S: Final = 5.0  # then it is said that nobody peers
RATE_S: Final = 1.0  # the rate shown is an average over this time
FINISH_S: Final = 10.0  # at the end stores get this long to acknowledge the rest


@options.with_groups
def record(
    trust: mesh.Trust,
    topics: Annotated[list[str], Argument(metavar="PREFIX", help="Topics of the mesh that start so.")],
    to: Annotated[str, Option("--to", metavar="TOPIC", help="The topic of the log that gets them.")],
    peer: Annotated[
        list[str] | None,
        Option("--peer", metavar="HOST[:PORT]", help="An endpoint to dial.", rich_help_panel=mesh.PANEL),
    ] = None,
    mesh_listen: Annotated[
        str | None, Option(metavar="HOST:PORT", help="Accept peers here; port 0: any.", rich_help_panel=mesh.PANEL)
    ] = None,
    min_acks: Annotated[int, Option(min=1, max=100, help="Stores that must have each record.")] = 1,
    tower: options.Tower = options.TOWER,
    listen: options.Listen = options.LISTEN,
    as_json: options.Json = False,
) -> None:
    """Keep what is published in the mesh: a record for each message, until Ctrl-C.

    The same command again goes on with what stores did not have yet. `chappe replay TOPIC` brings records back.
    """
    from chappe import Endpoint
    from chappe.bridges.recorder import Recorder

    if not peer and mesh_listen is None:
        raise UsageError("nobody can be heard: give --peer HOST:PORT to dial an endpoint, or --mesh-listen HOST:PORT")
    security = trust.security()
    dialled = mesh.addresses(security, peer or ())
    listened = mesh.addresses(security, [] if mesh_listen is None else [mesh_listen])
    check_topic(to)
    hear_warnings(tower)
    with ExitStack() as ending:
        endpoint = ending.enter_context(Endpoint(security=security))
        at = next(iter(mesh.listen(endpoint, listened)), None)
        recorder = Recorder(endpoint, *topics, to=to, tower=tower, listen=listen, min_acks=min_acks)
        with _stopped_by_signals(recorder):
            mesh.keep_dialling(endpoint, dialled)
            if as_json:
                facts = {"event": "recording", "id": endpoint.id, "address": at, "partition": recorder.partition}
                print(json.dumps(facts), flush=True)
            elif at is not None:
                say(f"peers can dial {at}")
            with Bar("waiting for peers", quiet=as_json) as bar:
                recorder.show = _Shown(endpoint, bar).show
                try:
                    recorder.run()
                finally:
                    done = recorder.finish(FINISH_S)
    account = {"event": "done", "topic": to} | asdict(done) | {"seconds": round(done.seconds, 3)}
    tell(as_json, account, f"recorded {done.records:,} messages, {human_bytes(done.bytes)}, in topic {to}")
    if done.left:
        warn(f"{done.left:,} records are not stored yet: they are in a journal, and the same command stores them")
    if done.dropped:
        warn(f"{done.dropped:,} messages are lost: more came than stores could take, or larger than a record can be")
    if done.left or done.dropped:
        raise typer.Exit(1)


@contextmanager
def _stopped_by_signals(recorder: Recorder) -> Iterator[None]:
    """Ctrl-C and SIGTERM end the recording in order: a message that was taken is not forgotten half-way."""

    def stop(_signum: int, _frame: FrameType | None) -> None:
        recorder.stop()

    before = {each: signal.signal(each, stop) for each in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


class _Shown:
    """What is shown while it records."""

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
            f"{self._rate:,.0f} messages/s, {peers} peers",
            now.records,
            None,
        )
