"""What many members in one process cost: threads, descriptors, memory, and the processor while nothing happens."""

from __future__ import annotations

import time
from typing import Any

from benchmarks.children import Children
from benchmarks.outcome import Line
from benchmarks.settings import Settings

ENDPOINTS = 1_000
STAR = 100
PAIRS = 1_000
STORES = 2
RECORDS = 10  # of each producer
SETTLE_S = 3.0  # members that have just met tell each other what they have
QUIET_S = 40.0  # HEADs of what was sent come less and less often until then
IDLE_S = 5.0
CPU_SHARE = 0.01  # of a core, while idle
CPU_US = 280.0  # of a record from one of them to another: half of what it costs where each has its own sockets
THREADS = 4
DESCRIPTORS = 200  # of those that share sockets


def _cost(found: dict[str, Any]) -> str:
    return f"{found['threads']} threads, {found['descriptors']} descriptors, {found['kib']:.0f} KiB each"


def _numbers(found: dict[str, Any]) -> dict[str, float]:
    return {name: float(value) for name, value in found.items()}


def _line(what: str, found: dict[str, Any], cpu_share: float | None, note: str = "") -> Line:
    met = found["threads"] <= THREADS and (cpu_share is None or found["cpu_share"] < cpu_share)
    return Line(
        what,
        f"{_cost(found)}; {100 * found['cpu_share']:.2f}% of a core",
        f"<= {THREADS} threads" + ("" if cpu_share is None else f", < {100 * cpu_share:.0f}% of a core"),
        met=met,
        note=f"of the whole process, all in all; processor time over {found['seconds']:.0f} s without events{note}",
        numbers=_numbers(found),
    )


def _endpoints(settings: Settings) -> list[Line]:
    lines = []
    endpoints = settings.count(ENDPOINTS)
    for what, how, count, share in (
        ("without peers", "idle", endpoints, CPU_SHARE),
        ("each listening", "listening", endpoints, CPU_SHARE),
        ("a star of peers", "star", min(STAR, endpoints), None),
    ):
        with Children(settings.work / f"many-{how}") as children:
            child = children.start("benchmarks.mesh_members", "crowd", endpoints=count, how=how)
            child.hear()
            found = child.ask(seconds=settings.seconds(IDLE_S))
            lines.append(_line(f"{count:,} endpoints in one process, {what}", found, share))
    return lines


def _pairs(settings: Settings) -> list[Line]:
    """Producers and consumers, a topic for each pair, with a tower and stores in other processes."""
    count = settings.count(PAIRS)
    what = f"{count:,} producers and {count:,} consumers in one process"
    with Children(settings.work / "many-pairs") as children:
        tower = children.member("tower").hear()["tower"]
        stores = [
            children.member("store", directory=str(settings.work / f"many-store-{each}"), tower=tower)
            for each in range(STORES)
        ]
        for store in stores:
            store.hear()
        child = children.member("crowd", members=count, tower=tower)
        child.hear()
        time.sleep(settings.seconds(SETTLE_S))
        before = stores[0].cpu_s()
        idle = child.ask(seconds=settings.seconds(IDLE_S))
        store_share = (stores[0].cpu_s() - before) / idle["seconds"]
        sent = child.ask(records=RECORDS)
        time.sleep(settings.seconds(QUIET_S))
        later = child.ask(seconds=settings.seconds(IDLE_S))
    cpu_us = 1e6 * sent["cpu_s"] / (RECORDS * count)
    return [
        _line(f"{what}, idle", idle, CPU_SHARE, f"; each of {STORES} stores {100 * store_share:.1f}% of a core"),
        Line(
            f"{what}, {RECORDS} records from each to each",
            f"{cpu_us:.0f} us of processor for a record; {_cost(sent)}",
            f"< {CPU_US:.0f} us, <= {THREADS} threads, <= {DESCRIPTORS} descriptors",
            met=cpu_us < CPU_US and sent["threads"] <= THREADS and sent["descriptors"] <= DESCRIPTORS,
            note="sent, stored and taken one by one; each topic has one record in a batch",
            numbers=_numbers(sent),
        ),
        _line(f"{what}, idle again", later, CPU_SHARE),
    ]


def many(settings: Settings) -> list[Line]:
    """Endpoints: idle, each listening, and a star whose members have chattered. Producers and consumers: pairs."""
    return _endpoints(settings) + _pairs(settings)
