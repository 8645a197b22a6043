"""Shared maps' processes: ``python -m benchmarks.maps_members ROLE OPTIONS``, driven as ``link`` describes."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import zmq

from benchmarks.link import Meter, orders, say, tether
from chappe import MapServer, SharedMap

MEMBERS = "benchmarks.maps_members"
KEYS = 10_000  # written again and again
VALUE = b"20 bytes, as measured"[:20]
LAST = "/last"
SILENCE_S = 120.0
UNDER_WAY = 200  # messages of a plain client that have not come back
Options = dict[str, Any]


def server(options: Options) -> None:
    """A server without a backend; every order: what it may confirm, as one of a pair, and its clients."""
    with MapServer(f"127.0.0.1:{options.get('port', 0)}", **options.get("pair", {})) as made:
        say(port=int(made.address.rpartition(":")[2]))
        for _ in orders():
            status = made.status()
            say(confirms="" if status.pair is None else status.pair.confirms, clients=status.clients)


def client(options: Options) -> None:
    """A client; each order of those below."""
    ports = options["ports"] if "ports" in options else [options["port"]]
    with SharedMap(*[f"127.0.0.1:{port}" for port in ports]) as shared:
        say(ready=True)
        for order in orders():
            meter = Meter()
            match order["do"]:
                case "set many":
                    shared.set_many(_items(order["count"]))
                case "fill":
                    shared.set_many((f"/entry/{number}", VALUE) for number in range(order["count"]))
                case "set last":
                    shared[LAST] = str(order["round"]).encode()
                case "await last":
                    shared.wait_for(LAST, str(order["round"]).encode(), timeout=SILENCE_S)
                case "get":
                    _get(shared, order["count"])
                case "write on":
                    say(server=shared.server)
                    say(**_longest(shared, order["seconds"]))
                    continue
            say(**meter.facts())


def _longest(shared: SharedMap[bytes], seconds: float) -> dict[str, int]:
    """Write for so long, one after the other; between which two confirmations it took longest."""
    before = time.monotonic_ns()
    until = before + int(seconds * 1e9)
    begin = end = number = 0
    while before < until:
        shared.set("/one", b"%d" % number, timeout=SILENCE_S)
        number += 1
        now = time.monotonic_ns()
        if now - before > end - begin:
            begin, end = before, now
        before = now
    return {"begin": begin, "end": end, "writes": number}


def newcomer(options: Options) -> None:
    """Each order: a new client, until it has all ``keys``."""
    say(ready=True)
    for order in orders():
        began = time.monotonic()
        with SharedMap(f"127.0.0.1:{options['port']}", timeout=SILENCE_S) as shared:
            took = time.monotonic() - began
            if len(shared) < order["keys"]:
                sys.exit("keys are missing")
        say(ms=1000 * took)


def relay(options: Options) -> None:
    """What a server cannot do less: it takes each message and publishes it again."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context.instance()
    publisher, collector = context.socket(zmq.XPUB), context.socket(zmq.PULL)
    publisher.setsockopt(zmq.XPUB_NODROP, 1)
    say(
        publisher=publisher.bind_to_random_port("tcp://127.0.0.1"),
        collector=collector.bind_to_random_port("tcp://127.0.0.1"),
    )
    publisher.recv()
    while True:
        publisher.send_multipart(collector.recv_multipart())


def plain(options: Options) -> None:
    """A client that sends and takes messages as the Guide's programs do, and keeps nothing."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context.instance()
    hearing, writing = context.socket(zmq.SUB), context.socket(zmq.PUSH)
    hearing.setsockopt(zmq.SUBSCRIBE, b"/")
    hearing.setsockopt(zmq.RCVTIMEO, int(1000 * SILENCE_S))
    hearing.connect(f"tcp://127.0.0.1:{options['publisher']}")
    writing.connect(f"tcp://127.0.0.1:{options['collector']}")
    while not hearing.poll(100):  # until it is subscribed
        writing.send_multipart(_kvset(0))
    while hearing.poll(200):
        hearing.recv_multipart()
    say(ready=True)
    for order in orders():
        meter = Meter()
        _to_and_fro(hearing, writing, order["count"])
        say(**meter.facts())


def _to_and_fro(hearing: zmq.Socket[bytes], writing: zmq.Socket[bytes], count: int) -> None:
    come = 0
    messages = [_kvset(number) for number in range(KEYS)]
    for sent in range(count):
        writing.send_multipart(messages[sent % KEYS])
        if sent - come >= UNDER_WAY:
            hearing.recv_multipart()
            come += 1
    while come < count:
        hearing.recv_multipart()
        come += 1


def _kvset(number: int) -> list[bytes]:
    return [b"/key/%d" % number, bytes(8), bytes(16), b"", VALUE]


def _items(count: int) -> Iterator[tuple[str, bytes]]:
    keys = [f"/key/{number}" for number in range(KEYS)]
    return ((keys[number % KEYS], VALUE) for number in range(count))


def _get(shared: SharedMap[bytes], count: int) -> None:
    keys = [f"/key/{number}" for number in range(KEYS)]
    total = 0
    for _ in range(count // KEYS):
        for key in keys:
            total += shared[key] is not None
    if total != count // KEYS * KEYS:
        sys.exit("keys are missing")


ROLES: dict[str, Callable[[Options], None]] = {each.__name__: each for each in (server, client, newcomer, relay, plain)}

if __name__ == "__main__":
    tether()
    ROLES[sys.argv[1]](json.loads(sys.argv[2]))
