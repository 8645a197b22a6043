"""The original's own Python bindings (``CHAPPE_BROKER``): events, ping-pong, and a data store with one clone.

The same program runs on ``chappe.compat.broker``, or whatever module ``BENCHMARK_BINDINGS`` names.

An original that is sent more than it takes disconnects, so the sender keeps at most ``WINDOW`` events on their way:
receivers tell it how many they have taken, of all rounds together.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import threading
import time
from collections.abc import Callable
from itertools import islice
from typing import Any

from benchmarks.link import RECORD_BYTES, Meter, Sequence, orders, quantiles, say, sips, tether

broker: Any = importlib.import_module(os.environ.get("BENCHMARK_BINDINGS", "broker"))

TOPIC = "/benchmark"
BACK = "/back"
STORE = "benchmark"
KEYS = 10_000
WINDOW = 1_000
TEXT = "x" * RECORD_BYTES
SILENCE_S = 30.0


def _endpoint(options: dict[str, Any] | None = None) -> Any:
    """With TLS if the options have the directory ``keys``."""
    keys = (options or {}).get("keys")
    switches = broker.BrokerOptions()
    switches.disable_ssl = keys is None
    switches.ignore_broker_conf = True
    configuration = broker.Configuration(switches)
    if keys is not None:
        configuration.openssl_cafile = f"{keys}/authority.pem"
        configuration.openssl_certificate = f"{keys}/endpoint.pem"
        configuration.openssl_key = f"{keys}/endpoint.key"
    return broker.Endpoint(configuration)


def _peer(endpoint: Any, options: dict[str, Any]) -> None:
    for port in options.get("ports", ()):
        endpoint.peer("127.0.0.1", port)


def _take(subscriber: Any, count: int, each: Callable[[int], None] = lambda _: None) -> None:
    while count:
        found = subscriber.get(min(count, 100))
        count -= len(found)
        each(len(found))


def receiver(options: dict[str, Any]) -> None:
    endpoint = _endpoint()
    subscriber = endpoint.make_subscriber(TOPIC)
    _peer(endpoint, options)
    say(port=endpoint.listen("127.0.0.1", 0))
    taken = 0

    def confirm(count: int) -> None:
        nonlocal taken
        before, taken = taken, taken + count
        if taken * 4 // WINDOW > before * 4 // WINDOW:
            endpoint.publish(BACK, [broker.Count(os.getpid()), broker.Count(taken)])

    for order in orders():
        meter = Meter()
        _take(subscriber, order["count"], confirm)
        say(**meter.facts())
    endpoint.shutdown()


def sender(options: dict[str, Any]) -> None:
    endpoint = _endpoint()
    subscriber = endpoint.make_subscriber(BACK)
    _peer(endpoint, options)
    time.sleep(0.5)  # it does not say when it knows who wants something
    say(ready=True)
    published = 0
    taken: dict[int, int] = {}  # by receiver
    for order in orders():
        meter = Meter()
        for number in range(order["count"]):
            while published - (min(taken.values()) if len(taken) == options.get("receivers", 1) else 0) >= WINDOW:
                who, count = subscriber.get()[1]
                taken[who.value] = count.value
            endpoint.publish(TOPIC, [broker.Count(number), TEXT])
            published += 1
        say(**meter.facts())
    endpoint.shutdown()


def slow_reader(options: dict[str, Any]) -> None:
    """Takes ``rate`` events a second. Order ``until``: take all up to this number, as fast as they come."""
    endpoint = _endpoint(options)
    subscriber = endpoint.make_subscriber(options["topic"])
    _peer(endpoint, options)
    say(ready=True)
    came, began = Sequence(), time.monotonic()
    order: list[dict[str, Any]] = []
    threading.Thread(target=lambda: order.extend(islice(orders(), 1)), daemon=True).start()
    for _ in sips(options["rate"]):
        found = subscriber.get(1, 1.0)
        for _, value in found or ():
            came.take(value[0].value)
        if came.taken <= 1:
            began = time.monotonic()
        if order:
            break
    seconds = time.monotonic() - began
    rate = came.taken / seconds
    while came.next < order[0]["until"] and (found := subscriber.get(100, SILENCE_S)):
        for _, value in found:
            came.take(value[0].value)
    say(**came.facts(), rate=rate)
    next(orders(), None)


def publisher(options: dict[str, Any]) -> None:
    """Order ``seconds``: publish for so long all that a window lets it, which the receiver moves."""
    endpoint = _endpoint(options)
    subscriber = endpoint.make_subscriber(BACK)
    say(port=endpoint.listen("127.0.0.1", 0))
    [order] = islice(orders(), 1)
    endpoint.publish(options["topic"], None)
    while not subscriber.get(1, 0.2):  # it does not say when it knows who wants something
        endpoint.publish(options["topic"], None)
    until, published, taken = time.monotonic() + order["seconds"], 0, 0
    while time.monotonic() < until:
        while published - taken >= WINDOW and time.monotonic() < until:
            for _, value in subscriber.get(1, 0.1) or ():
                taken = value.value
        endpoint.publish(options["topic"], [broker.Count(published), TEXT])
        published += 1
    say(published=published)
    next(orders(), None)


def forwarder(options: dict[str, Any]) -> None:
    """Stands between others; passes on what is for the topics in ``forward``, which others must not do in a loop."""
    endpoint = _endpoint()
    for topic in (TOPIC, BACK) if options.get("forward") else ():
        endpoint.forward(broker.Topic(topic))
    _peer(endpoint, options)
    say(port=endpoint.listen("127.0.0.1", 0))
    for _ in orders():
        say(peers=len(endpoint.peers()))
    endpoint.shutdown()


def echo(options: dict[str, Any]) -> None:
    endpoint = _endpoint()
    subscriber = endpoint.make_subscriber(TOPIC)
    say(port=endpoint.listen("127.0.0.1", 0))
    while True:
        endpoint.publish(BACK, subscriber.get()[1])


def pinger(options: dict[str, Any]) -> None:
    endpoint = _endpoint()
    subscriber = endpoint.make_subscriber(BACK)
    _peer(endpoint, options)
    time.sleep(0.5)
    say(ready=True)
    for order in orders():
        began = time.monotonic()
        times = []
        for number in range(order["count"]):
            sent = time.monotonic_ns()
            endpoint.publish(TOPIC, [broker.Count(number), TEXT])
            subscriber.get()
            times.append(time.monotonic_ns() - sent)
        say(**quantiles(times, time.monotonic() - began))
    endpoint.shutdown()


def master(options: dict[str, Any]) -> None:
    endpoint = _endpoint()
    store = endpoint.attach_master(STORE, broker.Backend.Memory)
    say(port=endpoint.listen("127.0.0.1", 0))
    _serve(endpoint, store)


def clone(options: dict[str, Any]) -> None:
    endpoint = _endpoint()
    _peer(endpoint, options)
    store = endpoint.attach_clone(STORE)
    while store.get("ready") is None:
        time.sleep(0.01)
    say(ready=True)
    _serve(endpoint, store)


def attacher(options: dict[str, Any]) -> None:
    """Each order: how long a new clone takes from ``attach_clone`` until it has answered its first ``get``."""
    say(ready=True)
    for _ in orders():
        endpoint = _endpoint()
        _peer(endpoint, options)
        began = time.monotonic()
        store = endpoint.attach_clone(STORE)
        while store.get("ready") is None:
            pass
        say(ms=1000 * (time.monotonic() - began))
        endpoint.shutdown()


def _serve(endpoint: Any, store: Any) -> None:
    for order in orders():
        meter = Meter()
        count = order.get("count", 0)
        if order["do"] == "put":
            for number in range(count):
                store.put(f"key-{number % KEYS}", number)
            store.put("ready", 1)
            store.get("ready")  # everything before it is done
            say(**meter.facts())
        elif order["do"] == "put unconfirmed":
            for number in range(count):
                store.put(f"key-{number % KEYS}", number)
                if number % 500 == 499:
                    store.get("ready")  # it takes only so many at once
            store.put("last", order["round"])
            say(**meter.facts())
        elif order["do"] == "await last":
            while store.get("last") != order["round"]:
                time.sleep(0.0005)
            say(**meter.facts())
        elif order["do"] == "get":
            for number in range(count):
                store.get(f"key-{number % KEYS}")
            say(**meter.facts())
        else:
            began = time.monotonic()
            times = []
            for number in range(count):
                key = f"{order['do']}-{order['round']}-{number}"
                sent = time.monotonic_ns()
                if order["do"] == "put one by one":
                    store.put(key, number)
                    while store.get(key) is None:
                        pass
                else:
                    store.put_unique(key, number)
                times.append(time.monotonic_ns() - sent)
            say(**quantiles(times, time.monotonic() - began))
    endpoint.shutdown()


if __name__ == "__main__":
    tether()
    ROLES = {each.__name__: each for each in (receiver, sender, forwarder, echo, pinger, master, clone)}
    ROLES.update(attacher=attacher, slow_reader=slow_reader, publisher=publisher)
    ROLES[sys.argv[1]](json.loads(sys.argv[2]))
