"""Data stores' processes: ``python -m benchmarks.data_stores_members ROLE OPTIONS``, driven as ``link`` describes."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from benchmarks.link import Meter, orders, quantiles, say, tether
from benchmarks.mesh_members import HOST, peer
from chappe import DataStore, Endpoint

NAME = "benchmark"
KEYS = 10_000  # written again and again
LAST = "last"
SILENCE_S = 60.0
Options = dict[str, Any]


def _put(store: DataStore, count: int) -> None:
    put = store.put
    for number in range(count):
        put(f"key-{number % KEYS}", number)


def _put_unconfirmed(store: DataStore, count: int) -> None:
    put = store.put
    for number in range(count):
        put(f"key-{number % KEYS}", number, wait=False)


def _get(store: DataStore, count: int) -> None:
    get = store.get
    keys = [f"key-{number}" for number in range(KEYS)]
    total = 0
    for _ in range(count // KEYS):
        for key in keys:
            total += get(key) is not None
    if total != count // KEYS * KEYS:
        sys.exit("keys are missing")


def _timed(order: dict[str, Any], write: Callable[[str, int], object]) -> None:
    began = time.monotonic()
    times = []
    for number in range(order["count"]):
        key = f"{order['do']}-{order['round']}-{number}"
        sent = time.monotonic_ns()
        write(key, number)
        times.append(time.monotonic_ns() - sent)
    say(**quantiles(times, time.monotonic() - began))


def _serve(store: DataStore, endpoint: Endpoint) -> None:
    """Orders that masters and clones understand."""
    for order in orders():
        meter = Meter()
        match order["do"]:
            case "put":
                _put(store, order["count"])
                say(**meter.facts())
            case "put unconfirmed":
                _put_unconfirmed(store, order["count"])
                store.put(LAST, order["round"], wait=False)
                say(**meter.facts())
            case "put many":
                store.put_many((f"key-{number % KEYS}", number) for number in range(order["count"]))
                say(**meter.facts())
            case "put from threads":
                with ThreadPoolExecutor(order["threads"]) as threads:
                    each = order["count"] // order["threads"]
                    for done in [threads.submit(_put, store, each) for _ in range(order["threads"])]:
                        done.result()
                say(**meter.facts())
            case "await last":
                with store.watch(key=LAST) as watch:
                    while store.get(LAST) != order["round"]:
                        if watch.get(SILENCE_S) is None:
                            sys.exit("the last write did not come")
                say(**meter.facts())
            case "get":
                _get(store, order["count"])
                say(**meter.facts())
            case "put one by one":
                _timed(order, store.put)
            case "put and get one by one":

                def put_and_get(key: str, number: int) -> None:
                    store.put(key, number, wait=False)
                    while store.get(key) is None:
                        pass

                _timed(order, put_and_get)
            case "put unique one by one":
                _timed(order, store.put_unique)
            case "frames":
                found = endpoint.peers()
                say(sent=sum(each.sent for each in found), received=sum(each.received for each in found))


def master(options: Options) -> None:
    """A master with ``entries``, on ``backend``."""
    more = {"path": options["path"]} if "path" in options else {}
    with Endpoint() as endpoint, endpoint.attach_master(NAME, options.get("backend", "memory"), **more) as store:
        store.put_many((f"entry-{number}", number) for number in range(options.get("entries", 0)))
        say(port=endpoint.listen())
        _serve(store, endpoint)


def clone(options: Options) -> None:
    """A clone."""
    with Endpoint() as endpoint:
        peer(endpoint, options)
        with endpoint.attach_clone(NAME) as store:
            say(ready=True)
            _serve(store, endpoint)


def attacher(options: Options) -> None:
    """Each order: a new clone is attached, until it can be read."""
    say(ready=True)
    for order in orders():
        with Endpoint() as endpoint:
            endpoint.peer(HOST, options["ports"][0])
            began = time.monotonic()
            with endpoint.attach_clone(NAME) as store:
                took = time.monotonic() - began
                if len(store) < order["entries"]:
                    sys.exit("entries are missing")
            say(ms=1000 * took)


ROLES: dict[str, Callable[[Options], None]] = {each.__name__: each for each in (master, clone, attacher)}

if __name__ == "__main__":
    tether()
    ROLES[sys.argv[1]](json.loads(sys.argv[2]))
