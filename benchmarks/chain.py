"""Chains of three servers on one disk: commands that are on disk at all three before they are confirmed, and deaths."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from tests.ports import free_ports

from benchmarks.chain_members import MEMBERS
from benchmarks.chain_one import chain_of_one
from benchmarks.chain_peers import etcd_three, kafka_three, nats_three
from benchmarks.children import Child, ChildFailed, Children
from benchmarks.maps_rates import line, rate
from benchmarks.outcome import Line
from benchmarks.rounds import Together
from benchmarks.settings import Settings

NAMES = ("a", "b", "c")
ROLES = ("head", "middle", "tail")
BATCHED = 3_000_000  # records, 600 in a command
BATCHED_TARGET = 300_000.0
SINGLE = 400_000  # commands of all writers together
SINGLE_TARGET = 100_000.0
WRITERS = 8
WINDOW = 64
ALONE = 2_000
ALONE_SYNCS = 3.0  # a lone command may take as long as so many syncs
DEATHS = 3  # of each role
DEATH_TARGET_MS = 1_000.0
WRITING_S = 4.0
BEFORE_S = 1.0  # the client writes so long before a server is killed
WHOLE_S = 60.0
POLL_S = 0.1
ENTRY_BYTES = 200  # on disk, of a lone command


class _Chain:
    """The servers, as processes, each with a directory of its own."""

    def __init__(self, children: Children, work: Path, names: tuple[str, ...] = NAMES) -> None:
        self._children = children
        self._work = work
        first = free_ports(len(names))
        self._addresses = {name: f"127.0.0.1:{first + place}" for place, name in enumerate(names)}
        self.servers = {name: self._start(name) for name in names}

    def _start(self, name: str) -> Child:
        found = self._children.start(
            MEMBERS, "server", servers=self._addresses, name=name, directory=str(self._work / name)
        )
        found.hear()
        return found

    def client(self) -> Child:
        """One that is connected."""
        found = self._children.start(MEMBERS, "client", servers=self._addresses)
        found.hear()
        return found

    def members(self) -> list[str]:
        """Head first, as all agree; waits until all servers are in."""
        until = time.monotonic() + WHOLE_S
        while True:
            found = [each.ask()["members"] for each in self.servers.values()]
            if found[0] and len(found[0]) == len(self.servers) and all(each == found[0] for each in found):
                return list(found[0])
            if time.monotonic() > until:
                raise ChildFailed(f"not all servers are members of the chain: {found}")
            time.sleep(POLL_S)

    def kill(self, name: str) -> int:
        """Kill a server, and start it again; when it was killed."""
        self.servers[name].signal(signal.SIGKILL)
        killed_at = time.monotonic_ns()
        self.servers[name].kill()
        self.servers[name] = self._start(name)
        return killed_at


def _sync_ms(work: Path, count: int) -> float:
    """What a sync of the disk takes after a write as small as a lone command's, in the middle."""
    path = work / "synced"
    took = []
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
    for _ in range(count):
        os.write(descriptor, bytes(ENTRY_BYTES))
        begun = time.perf_counter()
        os.fdatasync(descriptor)
        took.append(1e3 * (time.perf_counter() - begun))
    os.close(descriptor)
    path.unlink()
    return median(took)


def _many(writers: list[Child], *, count: int) -> dict[str, Any]:
    together = Together(writers)
    together.order(do="pipelined", count=count // len(writers), window=WINDOW)
    return together.hear()


def chain(settings: Settings) -> list[Line]:
    """Three servers: batches, many writers one by one, a lone command, and what a client sees of each death."""
    work = settings.work / "chain"
    with Children(work / "logs") as children:
        servers = _Chain(children, work)
        writer = servers.client()
        servers.members()
        batched = rate(settings, partial(writer.ask, do="batches"), settings.count(BATCHED), servers.servers)
        writers = [writer, *(servers.client() for _ in range(WRITERS - 1))]
        single = rate(settings, partial(_many, writers), settings.count(SINGLE), servers.servers)
        alone = _alone(settings, work, writer)
        deaths = [_death(settings, servers, writer, place) for place in range(len(ROLES))]
    work, count = settings.work, settings.count(SINGLE)
    nats = nats_three(settings, work / "chain-nats", WRITERS, WINDOW, count, ALONE)
    kafka = kafka_three(settings, work / "chain-kafka", WRITERS, WINDOW, count, settings.count(BATCHED), ALONE)
    etcd = etcd_three(settings, work / "chain-etcd", ALONE)
    others = [each.alone for each in (etcd, nats, kafka) if each.alone]
    alone = replace(alone, beside="; ".join((alone.beside, *others)))
    title = "chain of three, on disk at all three:"
    return [
        line(f"{title} records in commands of 600, one writer", batched, BATCHED_TARGET, kafka.batched),
        line(f"{title} commands of {WRITERS} writers, {WINDOW} of each under way", single, SINGLE_TARGET, kafka.single),
        *([line("the same, beside another one", single, None, nats.single)] if nats.single else []),
        alone,
        *deaths,
        *chain_of_one(settings),
    ]


def _alone(settings: Settings, work: Path, writer: Child) -> Line:
    count = settings.count(ALONE) or 1
    before = _sync_ms(work, count)
    p50 = float(writer.ask(do="alone", count=count)["p50_ms"])
    sync = (before + _sync_ms(work, count)) / 2
    return Line(
        "chain of three, on disk at all three: a lone command",
        f"{p50:.2f} ms median",
        f"< {ALONE_SYNCS:g} syncs",
        f"a sync: {sync:.2f} ms",
        f"{p50 / sync:.1f} syncs",
        met=p50 < ALONE_SYNCS * sync,
        note=f"{count} commands; syncs measured before and after them",
        numbers={"p50_ms": p50, "sync_ms": sync},
    )


def _death(settings: Settings, servers: _Chain, writer: Child, place: int) -> Line:
    took = []
    for _ in range(1 if settings.quick else DEATHS):
        name = servers.members()[place]
        writer.order(do="write on", seconds=WRITING_S)
        time.sleep(BEFORE_S)
        killed_at = servers.kill(name)
        longest = writer.hear()
        if longest["end"] < killed_at:
            raise ChildFailed("the client waited longest at another time than when a server was killed")
        took.append((longest["end"] - killed_at) / 1e6)
    middle = median(took)
    return Line(
        f"chain of three: the {ROLES[place]} is killed, until the next command is confirmed",
        f"{middle:.0f} ms median, {max(took):.0f} ms longest",
        f"< {DEATH_TARGET_MS:.0f} ms",
        met=max(took) < DEATH_TARGET_MS,
        note=f"{len(took)} times, with kill -9; {min(took):.0f} ms shortest",
        numbers={"median_ms": middle, "max_ms": max(took)},
    )
