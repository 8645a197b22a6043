"""Processes of chains: ``python -m benchmarks.chain_members ROLE OPTIONS``, driven as ``link`` describes."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.link import RECORD_BYTES, Meter, lists, orders, say, singles, tether
from chappe import Chain, ChainCall, ChainConfiguration, ChainServer, OrderedProducer, OrderedStore
from chappe.api.chain.key_values import KeyValues

MEMBERS = "benchmarks.chain_members"
BATCH = 600  # records in one command, about 64 KiB
WAIT_S = 60.0
LONG_S = 600.0
VALUE_BYTES = 4_096
PER_MIB = (1 << 20) // VALUE_BYTES
PULSE_S = 0.002
Options = dict[str, Any]


class Counter:
    """Counts bytes: what is measured is the chain, not a machine."""

    def __init__(self) -> None:
        self.total = 0

    def apply(self, command: bytes) -> bytes:
        """Count."""
        self.total += len(command)
        return b""

    def read(self, query: bytes) -> bytes:
        """How many."""
        return b"%d" % self.total

    def snapshot(self) -> bytes:
        """All there is."""
        return b"%d" % self.total

    def restore(self, state: bytes) -> None:
        """Be as then."""
        self.total = int(state)


def configuration(options: Options) -> ChainConfiguration:
    """What servers and clients share."""
    return ChainConfiguration(options["servers"], "benchmark")


def server(options: Options) -> None:
    """One of the chain; every order: who is in it."""
    with ChainServer(Counter(), configuration(options), options["name"], directory=Path(options["directory"])) as made:
        say(ready=True)
        for _ in orders():
            say(members=made.status().members)


def map_server(options: Options) -> None:
    """One of keys and values; every order: who is in it."""
    where = Path(options["directory"])
    with ChainServer(KeyValues(), configuration(options), options["name"], directory=where) as made:
        say(ready=True)
        for _ in orders():
            say(members=made.status().members)


def putter(options: Options) -> None:
    """Writes one value after the other; order ``fill``: so many MiB more; ``longest``: between two confirmations."""
    pulse = _Pulse()
    with Chain(configuration(options)) as chain, Chain(configuration(options)) as other:
        threading.Thread(target=pulse.run, args=(other,), daemon=True).start()
        say(ready=True)
        for order in orders():
            if order["do"] == "fill":
                first = order["first"] * PER_MIB
                chain.call_many(map(_put, range(first, first + order["mib"] * PER_MIB)), timeout=LONG_S)
                say(filled=True)
            else:
                say(longest_s=pulse.take())


class _Pulse:
    """Writes all the time, and knows how long it took at most."""

    def __init__(self) -> None:
        self._longest = 0.0
        self._last = time.monotonic()

    def run(self, chain: Chain) -> None:
        """Write for ever, as fast as that goes with little work: a few values."""
        number = 0
        while True:
            number += 1
            chain.call(_put(number % 1_000), timeout=LONG_S)
            now = time.monotonic()
            self._longest = max(self._longest, now - self._last)
            self._last = now
            time.sleep(PULSE_S)

    def take(self) -> float:
        """The longest pause since the last call, one that lasts still included."""
        longest, self._longest = max(self._longest, time.monotonic() - self._last), 0.0
        return longest


def _put(number: int) -> bytes:
    value = f"{number:0{VALUE_BYTES}}"
    return b'["put", "%d", "%s"]' % (number, value.encode())


def client(options: Options) -> None:
    """A client; each order of those below."""
    with Chain(configuration(options)) as chain:
        say(ready=True)
        for order in orders():
            meter = Meter()
            match order["do"]:
                case "batches":
                    chain.call_many([bytes(BATCH * RECORD_BYTES)] * (order["count"] // BATCH), timeout=WAIT_S)
                case "pipelined":
                    _pipelined(chain, order["count"], order["window"])
                case "alone":
                    say(p50_ms=_alone(chain, order["count"]))
                    continue
                case "write on":
                    say(**_longest(chain, order["seconds"]))
                    continue
            say(**meter.facts())


def ordered_store(options: Options) -> None:
    """A store of the chain; it only runs."""
    where = Path(options["directory"])
    with OrderedStore(where, chain=configuration(options), name=options["name"], tower=options["tower"]):
        say(ready=True)
        for _ in orders():
            pass


def ordered_producer(options: Options) -> None:
    """Order ``count``: send so many records, and wait until they are confirmed."""
    with OrderedProducer("ordered", chain=configuration(options), timeout=WAIT_S) as producer:
        say(ready=True)
        for order in orders():
            meter = Meter()
            if options["single"]:
                for value in singles(order["count"]):
                    producer.send(value)
            else:
                for values in lists(order["count"]):
                    producer.send_many(values)
            producer.flush(WAIT_S)
            say(**meter.facts())


def _pipelined(chain: Chain, count: int, window: int) -> None:
    """One command after the other, so many of them under way."""
    command = bytes(RECORD_BYTES)
    calls: deque[ChainCall] = deque()
    for _ in range(count):
        if len(calls) == window:
            calls[0].wait(WAIT_S)
            while calls and calls[0].done():
                calls.popleft().take()
        calls.append(chain.submit(command))
    for each in calls:
        each.wait(WAIT_S)
        each.take()


def _alone(chain: Chain, count: int) -> float:
    """How long one command takes when there is no other, in the middle."""
    took = []
    for _ in range(count):
        begun = time.perf_counter()
        chain.call(bytes(RECORD_BYTES), timeout=WAIT_S)
        took.append(1e3 * (time.perf_counter() - begun))
    return median(took)


def _longest(chain: Chain, seconds: float) -> dict[str, int]:
    """Write for so long, one after the other; between which two confirmations it took longest."""
    until = time.monotonic() + seconds
    begin = end = 0
    last = time.monotonic_ns()
    while time.monotonic() < until:
        chain.call(bytes(RECORD_BYTES), timeout=WAIT_S)
        now = time.monotonic_ns()
        if now - last > end - begin:
            begin, end = last, now
        last = now
    return {"begin": begin, "end": end}


ROLES: dict[str, Callable[[Options], None]] = {
    each.__name__: each for each in (server, map_server, client, putter, ordered_store, ordered_producer)
}

if __name__ == "__main__":
    tether()
    ROLES[sys.argv[1]](json.loads(sys.argv[2]))
