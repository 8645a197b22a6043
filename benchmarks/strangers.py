"""What connections that say nothing, or nonsense, cost a listener: memory, descriptors, processor, its users' time."""

from __future__ import annotations

import os
import time

from benchmarks.children import Child, Children
from benchmarks.outcome import Line
from benchmarks.settings import Settings

MEMBERS = "benchmarks.strangers_members"
STRANGERS = 5_000
WATCHED_S = 5.0
LISTENERS = {
    "log": "a tower and a store: a producer's first record is stored",
    "keys": "the same with keys",
    "map": "a map server: a new client has written",
    "mesh": "an endpoint: a peer is there",
    "web": "a WebSocket face: a client is there",
}


def _descriptors(child: Child) -> int:
    return len(os.listdir(f"/proc/{child.pid}/fd"))


def _measure(listener: Child, user: Child, strangers: Child, count: int, ports: list[int], nonsense: bool) -> Line:
    calm = user.ask()["ms"]
    before = listener.rss_mib(), _descriptors(listener), listener.cpu_s()
    connected = strangers.ask(ports=ports, count=count, nonsense=nonsense)["connected"]
    busy = user.ask()["ms"]
    came = listener.cpu_s()
    time.sleep(WATCHED_S)
    after = listener.rss_mib(), _descriptors(listener), listener.cpu_s()
    numbers = {
        "connected": connected,
        "mib": after[0] - before[0],
        "descriptors": float(after[1] - before[1]),
        "cpu_us_each": 1e6 * (came - before[2]) / count,
        "cpu_share": (after[2] - came) / WATCHED_S,
        "calm_ms": calm,
        "busy_ms": busy,
    }
    strangers.ask(leave=True)
    return Line(
        "nonsense" if nonsense else "silence",
        f"{numbers['mib']:.0f} MiB, {numbers['descriptors']:,.0f} descriptors, {numbers['cpu_us_each']:.0f} us of a "
        f"core for each, then {100 * numbers['cpu_share']:.0f}% of a core; users {busy:.0f} ms",
        beside=f"without: users {calm:.0f} ms",
        note=f"{connected:,.0f} of {count:,} came in",
        numbers=numbers,
    )


def strangers(settings: Settings) -> list[Line]:
    """Each kind of listener, with each kind of stranger."""
    count = settings.count(STRANGERS)
    lines = []
    for kind, what in LISTENERS.items():
        with Children(settings.work / f"strangers-{kind}") as children:
            listener = children.start(MEMBERS, kind, directory=str(settings.work / "store"))
            found = listener.hear()
            user = children.start(MEMBERS, "user", kind=kind, address=found["address"], identity=found.get("identity"))
            others = children.start(MEMBERS, "strangers")
            user.hear()
            others.hear()
            user.ask()
            for nonsense in (False, True):
                line = _measure(listener, user, others, count, found["ports"], nonsense)
                how = f"{count:,} strangers who say {'nonsense' if nonsense else 'nothing'}"
                lines.append(
                    Line(f"{what}; {how}", line.result, beside=line.beside, note=line.note, numbers=line.numbers)
                )
    return lines
