"""A chain of one store beside a plain one: what a total order of many writers costs where there is one machine."""

from __future__ import annotations

from functools import partial

from tests.ports import free_ports

from benchmarks.chain_members import MEMBERS
from benchmarks.children import Children
from benchmarks.maps_rates import rate
from benchmarks.outcome import Line, per_second, times
from benchmarks.rounds import tower
from benchmarks.settings import Settings
from benchmarks.stored import start_store

BATCHED = 2_000_000  # records, sent by send_many
SINGLE = 200_000  # records, sent one by one without waiting


def chain_of_one(settings: Settings) -> list[Line]:
    """The same records, acknowledged when they are on disk, sent in lists and one by one."""
    work = settings.work / "chain-one"
    lines = []
    with Children(work / "logs") as children:
        towers = [tower(children) for _ in range(2)]  # a store of a chain keeps what others write, too
        servers = {"a": f"127.0.0.1:{free_ports(1)}"}
        chain = children.start(
            MEMBERS, "ordered_store", servers=servers, name="a", directory=str(work / "a"), tower=towers[0]
        )
        chain.hear()
        store = start_store(children, settings, towers[1], "chain-one")
        for how, single, records in (("in lists", False, BATCHED), ("one by one", True, SINGLE)):
            ordered = children.start(MEMBERS, "ordered_producer", servers=servers, single=single)
            plain = children.member("producer", tower=towers[1], single=single, acks=1)
            ordered.hear()
            plain.hear()
            count = settings.count(records)
            ours = rate(settings, partial(ordered.ask), count, {"store": chain})
            beside = rate(settings, partial(plain.ask), count, {"store": store})
            ratio = ours.median / beside.median
            lines.append(
                Line(
                    f"chain of one store, on disk: records sent {how}",
                    per_second(ours.median),
                    ">= 1x of a plain store",
                    f"a plain store, acks=1: {per_second(beside.median)}",
                    times(ratio),
                    met=ratio >= 1.0,
                    note=f"{ours.note()}; plain: {beside.note()}",
                    numbers=ours.numbers("chappe") | beside.numbers("plain"),
                )
            )
            ordered.finish()
            plain.finish()
    return lines
