"""Pairs of map servers: updates that both have before they are confirmed, and what a client sees of a takeover."""

from __future__ import annotations

import signal
import time
from functools import partial
from statistics import median

from tests.ports import free_ports

from benchmarks.children import Child, ChildFailed, Children
from benchmarks.maps_members import MEMBERS
from benchmarks.maps_rates import line, rate
from benchmarks.outcome import Line
from benchmarks.settings import Settings

UPDATES = 150_000
UPDATE_TARGET = 60_000.0
FAILOVERS = 6
FAILOVER_TARGET_MS = 1_000.0
WRITING_S = 3.0
BEFORE_S = 0.7  # the client writes so long before the server is killed
PAIRED_S = 60.0  # the two find each other within it
POLL_S = 0.05


class Pair:
    """Two servers in processes of their own, in memory."""

    def __init__(self, children: Children) -> None:
        self._children = children
        self.ports = {role: free_ports(4) for role in ("primary", "backup")}
        self.servers = {role: self._start(role) for role in self.ports}

    def _start(self, role: str) -> Child:
        other = "backup" if role == "primary" else "primary"
        pair = {"role": role, "partner": f"127.0.0.1:{self.ports[other]}"}
        server = self._children.start(MEMBERS, "server", port=self.ports[role], pair=pair)
        server.hear()
        return server

    def client(self) -> Child:
        """A client that knows both."""
        found = self._children.start(MEMBERS, "client", ports=list(self.ports.values()))
        found.hear()
        return found

    def await_paired(self) -> None:
        """Until one is active, and confirms nothing that the other does not have."""
        until = time.monotonic() + PAIRED_S
        while "paired" not in [each.ask()["confirms"] for each in self.servers.values()]:
            if time.monotonic() > until:
                raise ChildFailed("the two servers of a pair have not found each other")
            time.sleep(POLL_S)

    def kill(self, address: str) -> int:
        """Kill the server that is there; when."""
        (role,) = [role for role, port in self.ports.items() if address.endswith(f":{port}")]
        self.servers[role].signal(signal.SIGKILL)
        killed_at = time.monotonic_ns()
        self.servers[role].kill()
        self.servers[role] = self._start(role)
        return killed_at


def paired_updates(settings: Settings) -> list[Line]:
    """One client writes; each update is confirmed when both servers have it."""
    with Children(settings.work / "maps-pair") as children:
        pair = Pair(children)
        writer = pair.client()
        pair.await_paired()
        servers = pair.servers
        found = rate(settings, partial(writer.ask, do="set many"), settings.count(UPDATES), servers)
        pair.await_paired()
    return [line("map: updates of one client through a pair, confirmed by both", found, UPDATE_TARGET)]


def failover(settings: Settings) -> list[Line]:
    """The active server is killed while a client writes, one after the other: from then to the next confirmation."""
    took = []
    with Children(settings.work / "maps-failover") as children:
        pair = Pair(children)
        writer = pair.client()
        for _ in range(settings.count(FAILOVERS) or 1):
            pair.await_paired()
            writer.order(do="write on", seconds=WRITING_S)
            server = writer.hear()["server"]
            time.sleep(BEFORE_S)
            killed_at = pair.kill(server)
            longest = writer.hear()
            if not longest["begin"] <= killed_at + 1e9 * POLL_S or longest["end"] < killed_at:
                raise ChildFailed("the client waited longest at another time than when its server was killed")
            took.append((longest["end"] - killed_at) / 1e6)
    middle = median(took)
    return [
        Line(
            "map: the active server of a pair is killed, until the next write is confirmed",
            f"{middle:.0f} ms median, {max(took):.0f} ms longest",
            f"< {FAILOVER_TARGET_MS:.0f} ms",
            met=max(took) < FAILOVER_TARGET_MS,
            note=f"{len(took)} times, with kill -9, either server in turn; {min(took):.0f} ms shortest",
            numbers={"median_ms": middle, "max_ms": max(took)},
        )
    ]
