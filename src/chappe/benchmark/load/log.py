"""The log under load: producers and consumers, at a tower and store of their own or at those that run."""

from __future__ import annotations

import secrets
import shutil
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import asdict
from itertools import groupby
from pathlib import Path
from typing import Any, Final

import chappe  # loads what a process uses, and no more
from chappe.benchmark.load.crew import Crew
from chappe.benchmark.load.frame import (
    FLUSH_S,
    READY_S,
    STAMP_BYTES,
    WAIT_S,
    Meter,
    SourceLoad,
    rest,
    send,
    serve,
    take,
)
from chappe.benchmark.orders import Orders, say
from chappe.errors import TimedOut
from chappe.log.events import WritesRefused

RUN_BYTES: Final = 8  # of a value: which run it belongs to, since others may write the topic
SIZE_MIN: Final = RUN_BYTES + STAMP_BYTES
KEEP_BYTES: Final = 4 << 30  # of records; a run of hours does not fill the disk


def start(
    crew: Crew,
    loads: Sequence[SourceLoad],
    consumers: int,
    *,
    directory: Path | None,
    where: dict[str, Any],
    topic: str,
    min_acks: int,
) -> None:
    if directory is not None:
        (tower,) = crew.start("log.tower", "tower", "servers", [{}])
        where = {"tower": tower["address"], "listen": "127.0.0.1", "security": "plain"}
        crew.start("log.store", "store", "servers", [{}], where=where, directory=str(directory))
    own = {"where": where, "topic": topic, "run": secrets.token_hex(RUN_BYTES // 2)}
    crew.start("log.consumer", "consumer", "sinks", [{}] * consumers, **own)
    crew.start(
        "log.producer", "producer", "sources", [{"load": asdict(each)} for each in loads], min_acks=min_acks, **own
    )


def tower(orders: Orders, options: dict[str, Any]) -> None:
    del options
    with chappe.Tower("127.0.0.1:0", security="plain") as found:
        say("ready", address=found.address)
        serve(orders, Meter())


def store(orders: Orders, options: dict[str, Any]) -> None:
    """Run the store; where its parent is killed, it removes the records."""
    orders.on_orphaned = lambda: shutil.rmtree(options["directory"], ignore_errors=True)
    meter = Meter()
    with chappe.Store(
        options["directory"], retention=[("*", chappe.Retention(bytes=KEEP_BYTES))], **options["where"]
    ) as found:
        say("ready")
        meter.begin(orders)
        while not orders.wait(WAIT_S):
            for event in found.events():
                if isinstance(event, WritesRefused):
                    meter.problem = str(event)
            meter.say()
        rest(orders, meter)


def producer(orders: Orders, options: dict[str, Any]) -> None:
    """Send records; a record is confirmed when ``min_acks`` stores have it."""
    load = SourceLoad.of(options)
    min_acks: int = options["min_acks"]
    meter = Meter("stored") if min_acks else Meter()
    head = options["run"].encode()
    filler = bytes(load.size - SIZE_MIN)
    with chappe.Producer(options["topic"], min_acks=min_acks, **options["where"]) as found:
        found.wait_ready(READY_S)
        say("ready")

        def call(stamp: int, count: int) -> None:
            value = head + stamp.to_bytes(STAMP_BYTES, "little") + filler
            offset = found.send(value) if count == 1 else found.send_many([value] * count)[-1]
            if min_acks:

                def stored(done: Future[int]) -> None:
                    if not done.cancelled() and done.exception() is None:
                        meter.latencies["stored"].add(time.monotonic_ns() - stamp)

                found.delivered(offset).add_done_callback(stored)

        def end() -> None:
            try:
                found.flush(FLUSH_S)
                meter.touch()
            except TimedOut as error:
                meter.problem = str(error)

        send(orders, load, meter, call, end)


def consumer(orders: Orders, options: dict[str, Any]) -> None:
    meter = Meter("consumed")
    ages = meter.latencies["consumed"]
    head = options["run"].encode()
    with chappe.Consumer(options["topic"], reset="latest", **options["where"]) as found:
        found.wait_ready(READY_S)
        say("ready")

        def call() -> None:
            batch = found.poll(WAIT_S)
            if batch is None:
                return
            now, count = time.monotonic_ns(), 0
            for stamp, times in stamps((record.value for record in found.iterate(batch)), head):
                ages.add(now - stamp, times)
                count += times
            meter.add(count)

        take(orders, meter, call)


def stamps(values: Iterable[bytes | None], head: bytes) -> Iterator[tuple[int, int]]:
    """Yield the stamps of those of a run, which begin with ``head``, and how many in a row have each.

    Records of one call share theirs: to take a number apart for each would cost more than the record.
    """
    for mark, same in groupby((value or b"")[:SIZE_MIN] for value in values):
        if len(mark) == SIZE_MIN and mark.startswith(head):
            yield int.from_bytes(mark[RUN_BYTES:], "little"), sum(1 for _ in same)
