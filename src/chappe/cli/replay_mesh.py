"""``chappe replay TOPIC``: what was recorded, back into the mesh."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from chappe.cli import mesh
from chappe.cli.console import exit_code, hear_warnings, tell, warn
from chappe.cli.units import iso_time, parse_start
from chappe.errors import TimedOut, UsageError

if TYPE_CHECKING:
    from chappe.bridges.player import Player, Progress, Start
    from chappe.cli.progress import Bar
    from chappe.security import Security

PEER_S: Final = 30.0  # a peer that is not there by then is an error


def replay_mesh(
    topic: str,
    peers: Sequence[str] | None,
    security: Security,
    speed: float | None,
    start: str | None,
    end: str | None,
    tower: str,
    as_json: bool,
) -> int:
    """Play a recorded topic to peers; returns the exit code."""
    from chappe import Endpoint
    from chappe.bridges.player import Player
    from chappe.cli.progress import Bar

    addresses = mesh.addresses(security, peers or [mesh.HERE])
    since, until = _start(start), _end(end)
    hear_warnings(tower)
    with ExitStack() as ending:
        endpoint = ending.enter_context(Endpoint(security=security, forwarding=False))
        bar = ending.enter_context(Bar("waiting for peers", quiet=as_json))
        player = Player(endpoint, topic, tower=tower, start=since, end=until, speed=speed)
        for host, port in addresses:
            try:
                endpoint.peer(host, port, retry_s=mesh.RETRY_S, timeout=PEER_S)
            except TimedOut:
                raise TimedOut(f"no endpoint of the mesh answers at {mesh.shown((host, port))}") from None
        code = _to_the_end(player, bar)
    _account(player.progress, topic, as_json)
    return code


def _start(text: str | None) -> Start:
    if text is None:
        return "earliest"
    where = parse_start(text)
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


def _to_the_end(player: Player, bar: Bar) -> int:
    from chappe.cli.progress import left_text

    def show(now: Progress) -> None:
        rate = now.sent / now.seconds if now.seconds > 0 else 0.0
        text = f"{now.sent:,} of {now.total:,} published, {rate:,.0f} messages/s{left_text(now.left_s)}"
        bar.update(text, now.sent + now.skipped, now.total)

    player.show = show
    try:
        player.run()
    except KeyboardInterrupt as stop:
        now = player.progress
        onwards = f"; from there on: --start {iso_time(now.at_us)}" if now.sent else ""
        warn(f"interrupted: {now.sent:,} of {now.total:,} messages are published{onwards}")
        return exit_code(stop)
    return 0


def _account(done: Progress, topic: str, as_json: bool) -> None:
    facts = asdict(done) | {"topic": topic, "seconds": round(done.seconds, 3)}
    del facts["left_s"]
    rate = done.sent / done.seconds if done.seconds > 0 else 0.0
    tell(as_json, facts, f"published {done.sent:,} messages in {done.seconds:.1f} s ({rate:,.0f} messages/s)")
    if done.skipped:
        warn(f"{done.skipped:,} records of {topic} were not recorded from the mesh, and are left out")
