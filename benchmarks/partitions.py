"""A store with very many partitions: how long it takes to start again, and its memory."""

from __future__ import annotations

from benchmarks.children import Children
from benchmarks.outcome import Line
from benchmarks.rounds import tower
from benchmarks.settings import Settings

TOPICS = 10
PARTITIONS = 10_000  # of each topic
QUICK_PARTITIONS = 500
RECORDS = 10  # of each partition
RESTART_S = 5.0
MEMORY_MIB = 500.0


def partitions(settings: Settings) -> list[Line]:
    """Filled, killed, started; ended in good order, and started again."""
    each = QUICK_PARTITIONS if settings.quick else PARTITIONS
    directory = str(settings.work / "store-partitions")
    lines = []
    with Children(settings.work / "partitions") as children:
        address = tower(children)
        filler = children.member("filler", directory=directory)
        filler.hear()
        filler.ask(topics=TOPICS, partitions=each, records=RECORDS)
        filler.kill()
        for how in ("killed", "closed"):
            store = children.member("store", tower=address, directory=directory)
            opened_s = store.hear()["opened_s"]
            rss_mib = store.rss_mib()
            topics = store.ask()["topics"]
            assert topics == TOPICS, f"{topics} topics after the restart"
            store.finish()
            lines.append(
                Line(
                    f"restart of a store that was {how}, {TOPICS * each:,} partitions of {RECORDS} records",
                    f"{opened_s:.2f} s, {rss_mib:.0f} MiB",
                    f"< {RESTART_S:g} s, < {MEMORY_MIB:g} MB",
                    met=opened_s < RESTART_S and rss_mib < MEMORY_MIB,
                    note=f"{TOPICS} topics; constructor of the store, resident memory of its process",
                    numbers={"restart_s": opened_s, "rss_mib": rss_mib},
                )
            )
    return lines
