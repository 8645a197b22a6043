"""What planning a micro-batch costs where partitions are many: the driver's part of the source, without Spark's own."""

from __future__ import annotations

import json
import pickle
import time
from statistics import median

from pyspark.sql.streaming.datasource import ReadAllAvailable

from benchmarks.children import Children
from benchmarks.members import TOPIC
from benchmarks.outcome import Line
from benchmarks.rounds import tower
from benchmarks.settings import Settings
from benchmarks.stored import start_store
from chappe import Producer
from chappe.api.log.discovery import discover
from chappe.spark.options import Options
from chappe.spark.stream import TopicStreamReader

PARTITIONS = {10_000: 200.0, 100_000: 700.0}  # and the milliseconds that a batch may take
ROUNDS = 9
RECORDS = 2  # in each partition
ACTIVE = 20  # partitions with something new in each batch


def planning(settings: Settings) -> list[Line]:
    """The calls that Spark makes for one batch, JSON and pickles included, as its runner makes them."""
    return [_planning(settings, partitions, most) for partitions, most in PARTITIONS.items()]


def _planning(settings: Settings, partitions: int, most_ms: float) -> Line:
    partitions = settings.count(partitions)
    with Children(settings.work / f"planning-{partitions}") as children:
        address = tower(children)
        directory = settings.work / f"store-planning-{partitions}"
        filler = children.member("filler", directory=str(directory))
        filler.hear()
        filler.ask(topics=10, partitions=partitions // 10, records=RECORDS)
        filler.kill()
        store = start_store(children, settings, address, f"planning-{partitions}")
        store.ask()
        producers = [Producer(f"{TOPIC}.{n % 10}", tower=address, min_acks=1) for n in range(ACTIVE)]
        try:
            (found,) = discover(address)
            costs, size = _rounds(found.endpoint, producers)
        finally:
            for each in producers:
                each.close()
    middle = median(costs)
    return Line(
        f"planning a batch, {partitions:,} partitions",
        f"{middle:.0f} ms",
        f"< {most_ms:.0f} ms",
        "",
        "",
        middle < most_ms,
        f"slowest {max(costs):.0f} ms; {ACTIVE} partitions have something new; offsets in the checkpoint "
        f"{size / 1024:.0f} KiB, which is what stores keep",
        {"ms": middle, "offset_bytes": size},
    )


def _rounds(endpoint: str, producers: list[Producer]) -> tuple[list[float], int]:
    given = {"stores": endpoint, "subscribePattern": f"{TOPIC}.*", "startingOffsets": "earliest"}
    reader = TopicStreamReader(Options.parse(given))
    at = json.dumps(reader.initialOffset())
    costs: list[float] = []
    for number in range(ROUNDS + 1):
        for each in producers:
            each.send(b"new")
            each.flush(30)
        began = time.monotonic()
        end = json.dumps(reader.latestOffset(json.loads(at), ReadAllAvailable()))
        json.dumps(reader.reportLatestOffset())
        tasks = reader.partitions(json.loads(at), json.loads(end))
        pickle.dumps(tasks)
        reader.commit(json.loads(end))
        if number:  # the first one reads everything
            costs.append(1000 * (time.monotonic() - began))
        at = end
    reader.stop()
    return costs, len(at)
