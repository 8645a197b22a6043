"""Processes of ``benchmarks.sharded``: who fills a topic, and who has it worked off."""

from __future__ import annotations

import hashlib
import json
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, Final

from benchmarks.link import RECORD_BYTES, orders, say, tether
from chappe import Consumer, Producer, Record, ShardedConsumer

TOPIC: Final = "work"
KEYS: Final = [b"key-%d" % number for number in range(1_000)]
HASHED: Final = bytes(1 << 16)
WAIT_S: Final = 0.001
LOOK_S: Final = 0.002


def nothing(record: Record) -> None:
    """Shows what handing out costs."""


def hashing(record: Record) -> None:
    """Needs a processor: some 50 us."""
    hashlib.sha256(HASHED).digest()


def waiting(record: Record) -> None:
    """Waits for somebody else, such as a database."""
    time.sleep(WAIT_S)


WORK: Final[dict[str, Callable[[Record], None]]] = {each.__name__: each for each in (nothing, hashing, waiting)}


def filler(options: dict[str, Any]) -> None:
    """Order ``count``: so many records with keys are stored."""
    value = bytes(RECORD_BYTES)
    with Producer(TOPIC, tower=options["tower"]) as found:
        say(ready=True)
        for order in orders():
            for number in range(order["count"]):
                found.send(value, KEYS[number % len(KEYS)])
            found.flush(60)
            say(done=True)


def reader(options: dict[str, Any]) -> None:
    """Order ``work``, ``workers``, ``warm``, ``count``, ``cpus``: how long so many records took after ``warm`` others.

    Without workers the consumer's own loop does the work.
    """
    say(ready=True)
    for order in orders():
        measure = _alone if order["workers"] == 0 else _shared
        say(seconds=measure(options["tower"], **order))


def _alone(tower: str, work: str, workers: int, warm: int, count: int, cpus: None) -> float:
    do = WORK[work]
    begin = 0.0
    with Consumer(TOPIC, tower=tower) as consumer:
        for number, record in enumerate(consumer):
            if number == warm:
                begin = time.perf_counter()
            if number == warm + count:
                break
            do(record)
    return time.perf_counter() - begin


def _shared(tower: str, work: str, workers: int, warm: int, count: int, cpus: list[int] | None) -> float:
    # The function is named: this module is the program that was started.
    function = f"benchmarks.sharded_members:{work}"
    with ShardedConsumer(function, TOPIC, workers=workers, cpus=cpus, tower=tower) as consumer:
        thread = threading.Thread(target=consumer.run)
        thread.start()
        first, begin = _when(consumer, thread, warm)
        last, end = _when(consumer, thread, first + count)
        consumer.stop()
        thread.join()
    return (end - begin) * count / (last - first)


def _when(consumer: ShardedConsumer, thread: threading.Thread, count: int) -> tuple[int, float]:
    """How many are done, and when, once so many are, by as many workers as there are."""
    while (done := consumer.progress().done) < count or None in consumer.workers():
        if not thread.is_alive():
            raise RuntimeError("the reader has ended")
        time.sleep(LOOK_S)
    return done, time.perf_counter()


if __name__ == "__main__":
    tether()
    {"filler": filler, "reader": reader}[sys.argv[1]](json.loads(sys.argv[2]))
