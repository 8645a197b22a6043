"""``python -m benchmarks.map_clients``: one map and as many real clients as this machine has descriptors for.

A pair of servers in processes of their own, and clients in others (``map_clients_members``), each with two connections
to each server. It says what they cost the servers: memory and processor for each client, when all join, when nothing
happens, for each update, and when the active server is killed. As processor time does not depend on what else runs, it
counts for more than seconds.
"""

from __future__ import annotations

import argparse
import os
import resource
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.children import Child, ChildFailed, Children
from benchmarks.map_clients_members import JOIN_S, MEMBERS
from benchmarks.maps_pairs import Pair

CLIENTS: Final = 9_800
HOLDERS: Final = 3  # processes with clients
KEYS: Final = 1_000
MAPS: Final = 50  # in one process, made one after the other, each of which waits for the next heartbeat
SPARE: Final = 200  # descriptors of a process that are no clients'
IDLE_S: Final = 20.0
UPDATES: Final = 5
PATIENCE_S: Final = 300.0


@dataclass(frozen=True, slots=True)
class Row:
    """What happened, and what it took the server that did it."""

    what: str
    seconds: float
    cpu_s: float
    messages: int  # to all clients, but heartbeats
    beats: int
    lost: int


class Crowd:
    """Servers, clients and what was measured."""

    def __init__(self, children: Children, clients: int, holders: int, keys: int) -> None:
        self.clients = clients
        self.rows: list[Row] = []
        self._children = children
        self.pair = Pair(children)
        self.pair.await_paired()
        self.writer = self.pair.client()
        self.writer.ask(do="fill", count=keys)
        self.active = self.pair.servers["primary"]
        self.before_mib = self.active.rss_mib()
        ports = list(self.pair.ports.values())
        each = clients // holders

        def join() -> None:
            self.holders = [
                children.start(MEMBERS, "hold", ports=ports, first=each * number, count=each, seconds=JOIN_S)
                for number in range(holders)
            ]

        self._measure("all join", join)

    def _measure(self, what: str, begin: Callable[[], None], server: Child | None = None) -> list[dict[str, Any]]:
        """Begin, hear what each holder tells, and note it."""
        server = server or self.active
        began, cpu_s = time.monotonic(), server.cpu_s()
        begin()
        facts = [each.hear(2 * JOIN_S) for each in self.holders]
        self.rows.append(
            Row(
                what,
                time.monotonic() - began,
                server.cpu_s() - cpu_s,
                sum(each["messages"] for each in facts),
                sum(each["beats"] for each in facts),
                sum(each["told"].get("MapServerLost", 0) for each in facts),
            )
        )
        if any(each["following"] != each["count"] for each in facts) and what != "nothing":
            raise ChildFailed(f"{what}: only {sum(each['following'] for each in facts):,} clients follow a server")
        return facts

    def _order(self, **order: object) -> None:
        for each in self.holders:
            each.order(**order)

    def idle(self) -> None:
        """Nothing happens."""
        self._measure("nothing", lambda: self._order(seconds=IDLE_S))

    def update(self, number: int) -> None:
        """One update, until all have it."""

        def begin() -> None:
            self._order(until="value", key="/last", value=str(number), seconds=PATIENCE_S)
            self.writer.ask(do="set last", round=number)

        facts = self._measure("an update", begin)
        if any(each["having"] != each["count"] for each in facts):
            raise ChildFailed(f"an update did not come to all within {PATIENCE_S:g} s")

    def fail_over(self) -> None:
        """The active server is killed, until all follow the other one."""
        backup = self.pair.servers["backup"]

        def begin() -> None:
            self.active.signal(signal.SIGKILL)
            self.active.kill()
            self._order(until="server", server=1, seconds=PATIENCE_S)

        self._measure("the active server is killed", begin, backup)
        self.active = backup


def _maps(children: Children, port: int) -> dict[str, Any]:
    """What ``SharedMap`` takes in a process with many."""
    made = children.start(MEMBERS, "maps", port=port, count=MAPS)
    made.hear()
    return made.ask(seconds=IDLE_S)


def _show(crowd: Crowd, mib: tuple[float, float], descriptors: int) -> None:
    clients = crowd.clients
    print(f"| clients | server, MiB | KiB for each | at most, MiB | descriptors |\n|---|---|---|---|---|\n"
          f"| {clients:,} | {mib[0]:,.0f} | {1024 * (mib[0] - crowd.before_mib) / clients:.0f} | {mib[1]:,.0f} "
          f"| {descriptors:,} |\n")  # fmt: skip
    print("| what happens | s | us of the server's processor for each client | messages for each | HUGZ for each "
          "| servers lost |\n|---|---|---|---|---|---|")  # fmt: skip
    for row in crowd.rows:
        print(f"| {row.what} | {row.seconds:.1f} | {1e6 * row.cpu_s / clients:,.0f} | {row.messages / clients:.1f} "
              f"| {row.beats / clients:.1f} | {row.lost:,} |")  # fmt: skip


def main() -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.map_clients", description=__doc__)
    parser.add_argument("--clients", type=int, default=CLIENTS, metavar="N")
    parser.add_argument("--holders", type=int, default=HOLDERS, metavar="N", help="processes that have them")
    parser.add_argument("--keys", type=int, default=KEYS, metavar="N", help="in the map")
    options = parser.parse_args()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # those of the processes that are started, too
    clients = options.clients // options.holders * options.holders
    wanted = max(2 * clients, 4 * clients // options.holders) + SPARE
    if most != resource.RLIM_INFINITY and wanted > most:
        parser.error(f"{clients:,} clients need {wanted:,} descriptors in one process, and {most:,} are allowed")
    with tempfile.TemporaryDirectory() as logs, Children(Path(logs)) as children:
        try:
            crowd = Crowd(children, clients, options.holders, options.keys)
            mib = crowd.active.rss_mib(), crowd.active.rss_mib("VmHWM")
            descriptors = len(os.listdir(f"/proc/{crowd.active.pid}/fd"))
            crowd.idle()
            for number in range(UPDATES):
                crowd.update(number)
            crowd.fail_over()
            crowd.update(UPDATES)
            alone = _maps(children, crowd.pair.ports["backup"])
        except ChildFailed as error:
            print(error, file=sys.stderr)
            return 1
        _show(crowd, mib, descriptors)
        print(f"\n{MAPS} maps (`SharedMap`) of {options.keys:,} keys in one process: {alone['kib']:.0f} KiB, "
              f"{alone['descriptors'] / MAPS:.1f} descriptors and {1e6 * alone['cpu_s'] / IDLE_S / MAPS:.0f} us of the "
              f"processor a second for each; {alone['threads']} threads in all")  # fmt: skip
    return 0


if __name__ == "__main__":
    sys.exit(main())
