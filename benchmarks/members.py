"""chappe's processes in a benchmark: ``python -m benchmarks.members ROLE OPTIONS``, driven as ``link`` describes."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

from benchmarks.link import (
    RECORD_BYTES,
    Crowd,
    Meter,
    age_ns,
    json_lines,
    lists,
    orders,
    pace,
    quantiles,
    records,
    say,
    singles,
    stamped,
    tether,
)
from chappe import ConsumedBatch, Consumer, Forwarder, Producer, Retention, Store, Tower
from chappe.api.identity import new_address
from chappe.log.batch import Batch, encode_batch
from chappe.log.storage import AppendRecords
from chappe.storage.segments import SegmentStorage
from chappe.system.cpus import give_way

TOPIC = "benchmark"
FILL_APPENDS = 1_000  # batches of one write
SILENCE_S = 30.0  # a consumer that gets nothing for so long gives up
Options = dict[str, Any]


def tower(options: Options) -> None:
    with Tower("127.0.0.1:0") as found:
        say(tower=found.address)
        for _ in orders():
            say(nodes=found.nodes())


def store(options: Options) -> None:
    """Answers every order with its counters. Syncs are counted around the system call, and last ``sync_s`` longer."""
    syncs = 0
    sync = os.fdatasync
    longer_s: float = options.get("sync_s", 0.0)

    def counted(descriptor: int) -> None:
        nonlocal syncs
        syncs += 1
        sync(descriptor)
        if longer_s:
            time.sleep(longer_s)

    os.fdatasync = counted  # type: ignore[assignment]
    kept = options.get("keep_bytes")
    retention = [("*", Retention(bytes=kept))] if kept else []
    began = time.monotonic()
    with Store(options["directory"], tower=options["tower"], retention=retention) as found:
        give_way()  # as ``chappe store`` does
        say(opened_s=time.monotonic() - began)
        for _ in orders():
            status = found.status()
            say(
                syncs=syncs,
                cpu_s=time.process_time(),
                records=status.written_records,
                bytes=status.written_bytes,
                topics=status.topics,
                refusing=status.refusing,
            )


def forwarder(options: Options) -> None:
    """Answers every order with what it has stored."""
    with Forwarder(options["directory"], listen="127.0.0.1:0") as found:
        say(forwarder=found.address)
        for _ in orders():
            say(records=found.status().written_records)


def _where(options: Options) -> Options:
    """Through what a member meets others."""
    return {each: options[each] for each in ("tower", "forwarders") if each in options}


def filler(options: Options) -> None:
    """Order ``topics``, ``partitions`` (of each) and ``records`` (of each): put them into a store's directory.

    A partition is what one producer wrote, so making many through producers would take hours; this writes what a
    store writes, batch by batch. The directory is not closed: whoever drives this kills it, as a crash would.
    """
    storage = SegmentStorage(options["directory"])
    say(ready=True)
    for order in orders():
        meter = Meter()
        values = records()[: order["records"]]
        now_us = time.time_ns() // 1000
        for topic in range(order["topics"]):
            names = (new_address() for _ in range(order["partitions"]))
            while part := list(islice(names, FILL_APPENDS)):
                body = encode_batch(0, values, now_us)
                topic_name = f"{TOPIC}.{topic}"
                appends = [AppendRecords(topic_name, each, 0, len(values), now_us, now_us, body) for each in part]
                storage.publish(storage.write(appends))
        say(**meter.facts())


def _send(
    producer: Producer,
    count: int,
    single: bool,
    size: int = RECORD_BYTES,
    *,
    arrow: bool = False,
    whole: list[bytes] | None = None,
) -> None:
    if arrow:
        import pyarrow as pa

        table = pa.table({"value": records(size)})
        for values in lists(count, size):
            producer.send_arrow(table.slice(0, len(values)))
    elif single:
        send = producer.send
        for value in singles(count):
            send(value)
    else:
        for values in lists(count, size, whole):
            producer.send_many(values)


def producer(options: Options) -> None:
    """Order ``count``, and perhaps their ``size``: send so many records, and wait until they are stored if they are."""
    acks: int = options["acks"]
    whole = json_lines() if options.get("lines") else None
    compression = options.get("compression")
    with Producer(TOPIC, **_where(options), min_acks=acks, compression=compression) as found:
        say(ready=True)
        for order in orders():
            meter = Meter()
            size = order.get("size", RECORD_BYTES)
            _send(found, order["count"], options["single"], size, arrow=options.get("arrow", False), whole=whole)
            sent = time.monotonic_ns()
            if acks:
                found.flush(60)
            say(sent=sent, **meter.facts())


def endless_producer(options: Options) -> None:
    """Sends at full speed until it is killed; what it sent is said every second or so."""
    with Producer(TOPIC, tower=options["tower"]) as found:
        say(ready=True)
        for values in lists(sys.maxsize):
            found.send_many(values)


def paced_producer(options: Options) -> None:
    """Order ``count`` and ``rate``: send stamped records at that rate."""
    with Producer(TOPIC, tower=options["tower"], min_acks=options["acks"]) as found:
        say(ready=True)
        for order in orders():
            meter = Meter()
            for due in pace(order["count"], order["rate"]):
                found.send(stamped(due))
            say(**meter.facts())


def new_producers(options: Options) -> None:
    """Each order: a new producer whose first record is stamped before its constructor ran."""
    say(ready=True)
    for _ in orders():
        stamp = stamped()
        found = Producer(TOPIC, tower=options["tower"])
        found.send(stamp)
        made = age_ns(stamp) / 1e6
        found.flush(10)
        stored = age_ns(stamp) / 1e6
        found.close()
        say(constructor_ms=made, stored_ms=stored)


def new_consumers(options: Options) -> None:
    """Each order: a new consumer, timed until its first record."""
    say(ready=True)
    for _ in orders():
        began = time.monotonic()
        found = Consumer(TOPIC, tower=options["tower"], reset="latest")
        made = time.monotonic()
        first = found.poll(SILENCE_S)
        ready = time.monotonic()
        found.close()
        if first is None:
            sys.exit("a new consumer got no record")
        say(constructor_ms=1000 * (made - began), ready_ms=1000 * (ready - began))


def _load_arrow() -> None:
    """Import what the first batch would import, before anything is measured."""
    ConsumedBatch(TOPIC, "", Batch.parse(encode_batch(0, records()[:1], 0)), 0).to_arrow()


class _Reader:
    """Takes a wanted number of records, as batches to Arrow or one by one."""

    def __init__(self, consumer: Consumer, single: bool) -> None:
        self.bytes = 0
        self._consumer = consumer
        self._single = single
        self._records = iter(consumer)
        self._ahead = 0  # of the last batch, belonging to the next order
        self.first = 0  # when the first batch came

    def take(self, count: int) -> None:
        if self._single:
            for record in islice(self._records, count):
                self.bytes += len(record.value or b"")
            return
        got = self._ahead
        while got < count:
            rows = self._next().to_arrow()
            self.first = self.first or time.monotonic_ns()
            got += rows.num_rows
            self.bytes += rows.column(5).nbytes
        self._ahead = got - count

    def _next(self) -> ConsumedBatch:
        batch = self._consumer.poll(SILENCE_S)
        if batch is None:
            sys.exit(f"no record came for {SILENCE_S:g} s; events: {self._consumer.events()}")
        return batch


def consumer(options: Options) -> None:
    """Order ``count``: take so many records."""
    _load_arrow()
    with Consumer(TOPIC, **_where(options), reset="earliest") as found:
        reader = _Reader(found, options["single"])
        say(ready=True)
        for order in orders():
            meter = Meter()
            reader.take(order["count"])
            say(bytes=reader.bytes, **meter.facts())


def late_consumer(options: Options) -> None:
    """Order ``count``: make a consumer of ``topics`` and take so many records from the beginning."""
    _load_arrow()
    say(ready=True)
    for order in orders():
        meter = Meter()
        with Consumer(options.get("topics", TOPIC), tower=options["tower"], reset="earliest") as found:
            reader = _Reader(found, options["single"])
            reader.take(order["count"])
            say(first=reader.first, **meter.facts())


def endless_consumer(options: Options) -> None:
    """Takes batches until it is killed."""
    with Consumer(TOPIC, tower=options["tower"], reset="latest") as found:
        say(ready=True)
        for batch in found.batches():
            batch.to_arrow()


def _ages(found: Consumer) -> Iterator[int]:
    while (batch := found.poll(SILENCE_S)) is not None:
        for record in found.iterate(batch):
            yield age_ns(record.value or b"")


def timing_consumer(options: Options) -> None:
    """Order ``count``: take so many stamped records and say how old they were."""
    with Consumer(TOPIC, tower=options["tower"], reset="earliest", stored=options.get("stored", False)) as found:
        say(ready=True)
        ages = _ages(found)
        for order in orders():
            meter = Meter()
            taken = list(islice(ages, order["count"]))
            facts = meter.facts()
            say(**facts, **quantiles(taken, (facts["end"] - facts["start"]) / 1e9))


def crowd(options: Options) -> None:
    """``members`` producers and as many consumers, a topic for each pair, in this process.

    Order ``seconds``: what they cost while nothing happens for so long. Order ``records``: each producer sends so many,
    one after the other, and each consumer gets them.
    """
    with Producer(TOPIC, tower=options["tower"]), Consumer(TOPIC, tower=options["tower"]):
        pass  # what the first ones load is not the others'
    measured = Crowd()
    members: int = options["members"]
    producers = [Producer(f"{TOPIC}.{number}", tower=options["tower"]) for number in range(members)]
    consumers = [Consumer(f"{TOPIC}.{number}", tower=options["tower"]) for number in range(members)]
    for producer, consumer in zip(producers, consumers, strict=True):
        producer.wait_ready(SILENCE_S)
        consumer.wait_ready(SILENCE_S)
    say(ready=True)
    for order in orders():
        if "seconds" in order:
            say(**measured.idle(2 * members, order["seconds"]))
            continue
        meter = Meter()
        for value in singles(order["records"]):
            for producer in producers:
                producer.send(value)
        for producer in producers:
            producer.flush(SILENCE_S)
        for consumer in consumers:
            _Reader(consumer, single=True).take(order["records"])
        say(**measured.facts(2 * members, meter))


ROLES: dict[str, Callable[[Options], None]] = {
    each.__name__: each
    for each in (
        tower,
        store,
        forwarder,
        filler,
        producer,
        endless_producer,
        paced_producer,
        new_producers,
        new_consumers,
        consumer,
        late_consumer,
        endless_consumer,
        timing_consumer,
        crowd,
    )
}

if __name__ == "__main__":
    tether()
    ROLES[sys.argv[1]](json.loads(sys.argv[2]))
