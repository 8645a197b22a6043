"""Shared maps: updates through a server, to one and to ten clients, reads, and snapshots.

Beside them, in the same run: ZeroMQ alone, a program that publishes again what it is sent; and the ZeroMQ Guide's
server in C, if ``CHAPPE_GUIDE`` names a directory with its program ``clonesrv5``. Its ports are fixed, 5556 to 5558.
"""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from statistics import median

from benchmarks.children import Child, Children
from benchmarks.maps_members import MEMBERS
from benchmarks.maps_pairs import failover, paired_updates
from benchmarks.maps_rates import line, rate
from benchmarks.outcome import Line, Rate
from benchmarks.settings import Settings

GUIDE = "CHAPPE_GUIDE"  # names the directory of the Guide's C programs
GUIDE_PORT = 5556
UPDATES = 300_000
PLAIN_UPDATES = 100_000
CLIENTS = 10
GETS = 2_000_000
SNAPSHOTS = ((100_000, 300.0), (1_000_000, 4_000.0))  # keys, milliseconds
UPDATE_TARGET = 150_000.0
DELIVERY_TARGET = 500_000.0
GET_TARGET = 1_000_000.0


def _plain_rate(settings: Settings, children: Children, publisher: int, collector: int) -> Rate:
    """Updates a second of a client that speaks the protocol only, until they have come back."""
    client = children.start(MEMBERS, "plain", publisher=publisher, collector=collector)
    client.hear()
    return rate(settings, partial(client.ask), settings.count(PLAIN_UPDATES))


def limits(settings: Settings) -> tuple[Rate, Rate | None]:
    """ZeroMQ alone, and the Guide's server."""
    with Children(settings.work / "maps-raw") as children:
        ports = children.start(MEMBERS, "relay").hear()
        raw = _plain_rate(settings, children, ports["publisher"], ports["collector"])
    program = Path(os.environ.get(GUIDE, "")) / "clonesrv5"
    if GUIDE not in os.environ or not program.is_file():
        return raw, None
    with Children(settings.work / "maps-guide") as children:
        quiet = [
            "sh",
            "-c",
            'exec "$0" >/dev/null',
            str(program),
        ]  # it writes a line for each update, which nobody reads
        children.program("clonesrv5", quiet)
        return raw, _plain_rate(settings, children, GUIDE_PORT + 1, GUIDE_PORT + 2)


def updates(settings: Settings) -> list[Line]:
    """One client writes, confirmed; then one and ten have what it writes."""
    raw, guide = limits(settings)
    count = settings.count(UPDATES)
    with Children(settings.work / "maps") as children:
        server = children.start(MEMBERS, "server")
        port = server.hear()["port"]
        writer = children.start(MEMBERS, "client", port=port)
        writer.hear()
        one = rate(settings, partial(writer.ask, do="set many"), count, {"server": server})
        gets = rate(settings, partial(writer.ask, do="get"), max(settings.count(GETS), 20_000))
        plain = _plain_rate(settings, children, port + 1, port + 2)
        others = [children.start(MEMBERS, "client", port=port) for _ in range(CLIENTS - 1)]
        for each in others:
            each.hear()
        ten = Rate(tuple([_deliveries(writer, others, count, number) for number in range(settings.repeats + 1)][1:]))
    beside = ("the Guide's server in C", guide) if guide is not None else ("ZeroMQ alone, in Python", raw)
    return [
        line("map: updates of one client, confirmed", one, UPDATE_TARGET, beside),
        line(f"map: deliveries of updates to {CLIENTS} clients", ten, DELIVERY_TARGET),
        line("map: updates of a client of the Guide's protocol", plain, None, beside),
        line("map: get", gets, GET_TARGET),
    ]


def _deliveries(writer: Child, others: list[Child], count: int, number: int) -> float:
    for each in others:
        each.order(do="await last", round=number)
    began = writer.ask(do="set many", count=count)["start"]
    ended = [writer.ask(do="set last", round=number)["end"], *[each.hear()["end"] for each in others]]
    seconds: float = (max(ended) - began) / 1e9
    return count * CLIENTS / seconds


def snapshots(settings: Settings) -> list[Line]:
    """A new client, until it has all keys."""
    lines = []
    for full, target_ms in SNAPSHOTS:
        keys = settings.count(full)
        with Children(settings.work / f"maps-{full}") as children:
            port = children.start(MEMBERS, "server").hear()["port"]
            writer = children.start(MEMBERS, "client", port=port)
            writer.hear()
            writer.ask(do="fill", count=keys)
            newcomer = children.start(MEMBERS, "newcomer", port=port)
            newcomer.hear()
            took = [newcomer.ask(keys=keys)["ms"] for _ in range(settings.repeats + 1)][1:]
        middle = median(took)
        lines.append(
            Line(
                f"map: snapshot of {keys:,} keys",
                f"{middle:.0f} ms median, {max(took):.0f} ms longest",
                f"< {target_ms:.0f} ms",
                met=middle < target_ms,
                numbers={"median_ms": middle, "max_ms": max(took)},
            )
        )
    return lines


def maps(settings: Settings) -> list[Line]:
    """All but the crowd (``maps_crowd``)."""
    return [*updates(settings), *paired_updates(settings), *failover(settings), *snapshots(settings)]
