"""The mesh's processes: ``python -m benchmarks.mesh_members ROLE OPTIONS``, driven as ``link`` describes."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from typing import Any

from benchmarks.link import RECORD_BYTES, Crowd, Meter, orders, quantiles, say, tether
from chappe import AsyncEndpoint, Endpoint, Received, Subscriber, Tls
from chappe.api.mesh import endpoint as endpoint_module
from chappe.data.scalars import Count
from chappe.data.zeek import Batch, Event
from chappe.mesh.endpoint import EndpointOptions
from chappe.security import Security

TOPIC = "/benchmark"
PONG = "/pong"
SILENCE_S = 30.0  # who gets nothing for so long gives up
TEXT = "x" * RECORD_BYTES
TAKE = 4_096  # messages taken at once
ZEEK_EVENTS = 500  # in one batch of Zeek; counts of rounds are multiples of it
HOST = "localhost"
Options = dict[str, Any]


def security(options: Options) -> Security:
    keys: str | None = options.get("keys")
    return None if keys is None else Tls.of(keys, "endpoint")


def endpoint(options: Options) -> Endpoint:
    if "version" in options:  # users cannot choose it
        choosing = partial(EndpointOptions, version_max=options["version"])
        vars(endpoint_module)["EndpointOptions"] = choosing
    return Endpoint(security=security(options), forwarding=options.get("forwarding", True))


def peer(found: Endpoint, options: Options) -> None:
    """Peer with everybody in ``ports``."""
    for port in options.get("ports", ()):
        found.peer(HOST, port)


def _awake(subscriber: Subscriber) -> None:
    """Wait for the first message, which says that the sender knows that we subscribed."""
    if subscriber.get(SILENCE_S) is None:
        sys.exit("nobody publishes")


def _events(count: int) -> Iterator[tuple[str, object]]:
    return ((TOPIC, [Count(number), TEXT]) for number in range(count))


def _batches(subscriber: Subscriber, count: int) -> Iterator[list[Received]]:
    while count:
        found = subscriber.get_many(min(count, TAKE), SILENCE_S)
        if not found:
            sys.exit(f"no message came for {SILENCE_S:g} s, {count} are missing")
        count -= len(found)
        yield found


def _take_columns(subscriber: Subscriber, count: int) -> int:
    import pyarrow.compute as pc

    total = 0
    while count:
        found = subscriber.read_arrow(SILENCE_S)
        if not found:
            sys.exit(f"no message came for {SILENCE_S:g} s, {count} are missing")
        for batch in found:
            count -= batch.num_rows
            total += pc.sum(batch.column("_1")).as_py()
    return total


def _take(subscriber: Subscriber, count: int, how: str) -> int:
    """Take ``count`` messages; returns something made of all of them, so that nothing can be left out."""
    total = 0
    if how in ("columns", "zeek"):
        return _take_columns(subscriber, count)
    if how == "single":
        for received in islice(subscriber, count):
            total += received.value[0]
    elif how == "values":
        for batch in _batches(subscriber, count):
            for received in batch:
                total += received.value[0]
    else:
        for batch in _batches(subscriber, count):
            for received in batch:
                total += len(received.payload)
    return total


def receiver(options: Options) -> None:
    """Order ``count``: take so many messages."""
    with endpoint(options) as found, found.subscribe(TOPIC, on_full="block") as subscriber:
        peer(found, options)
        say(port=found.listen())
        for order in orders():
            meter = Meter()
            total = _take(subscriber, order["count"], options["how"])
            say(total=total, **meter.facts())


def forwarder(options: Options) -> None:
    """Passes messages on from one peer to another."""
    with endpoint(options) as found:
        peer(found, options)
        say(port=found.listen())
        for _ in orders():
            say(peers=len(found.peers()))


def sender(options: Options) -> None:
    """Order ``count``: publish so many messages."""
    with endpoint(options) as found:
        peer(found, options)
        if not found.node.turns.wait(lambda: TOPIC.encode() in found.core.peer_subscriptions(), SILENCE_S):
            sys.exit("nobody subscribes")
        say(ready=True)
        # made once, as another program would have made it
        batch = Batch.parse(Batch([Event("ping", Count(number), TEXT) for number in range(ZEEK_EVENTS)]).encode())
        for order in orders():
            meter = Meter()
            if options["how"] == "single":
                publish = found.publish
                for topic, value in _events(order["count"]):
                    publish(topic, value)
            elif options["how"] == "zeek":
                for _ in range(order["count"] // ZEEK_EVENTS):
                    found.publish(TOPIC, batch)
            else:
                found.publish_batch(_events(order["count"]))
            say(**meter.facts())


def echo(options: Options) -> None:
    """Sends back what it gets."""
    with endpoint(options) as found, found.subscribe(TOPIC) as subscriber:
        say(port=found.listen())
        for received in subscriber:
            found.publish(PONG, received.data)


def pinger(options: Options) -> None:
    """Order ``count``: so many messages there and back, one after the other."""
    with endpoint(options) as found, found.subscribe(PONG) as subscriber:
        peer(found, options)
        found.publish(TOPIC, [Count(0), TEXT])
        _awake(subscriber)
        say(ready=True)
        for order in orders():
            meter = Meter()
            times = []
            for number in range(order["count"]):
                sent = time.monotonic_ns()
                found.publish(TOPIC, [Count(number), TEXT])
                answer = subscriber.get(SILENCE_S)
                if answer is None or answer.value[0] != number:
                    sys.exit("a pong is missing")
                times.append(time.monotonic_ns() - sent)
            facts = meter.facts()
            say(**facts, **quantiles(times, (facts["end"] - facts["start"]) / 1e9))


def async_echo(options: Options) -> None:
    """As ``echo``, on an event loop."""

    async def run() -> None:
        async with AsyncEndpoint(security=security(options)) as found:
            subscriber = found.subscribe(TOPIC)
            say(port=await found.listen())
            async for received in subscriber:
                await found.publish(PONG, received.data)

    asyncio.run(run())


def async_pinger(options: Options) -> None:
    """As ``pinger``, on an event loop."""

    async def run() -> None:
        async with AsyncEndpoint(security=security(options)) as found:
            subscriber = found.subscribe(PONG)
            for port in options["ports"]:
                await found.peer(HOST, port)
            say(ready=True)
            for order in orders():
                meter = Meter()
                times = []
                for number in range(order["count"]):
                    sent = time.monotonic_ns()
                    await found.publish(TOPIC, [Count(number), TEXT])
                    answer = await subscriber.get(SILENCE_S)
                    if answer is None or answer.value[0] != number:
                        sys.exit("a pong is missing")
                    times.append(time.monotonic_ns() - sent)
                facts = meter.facts()
                say(**facts, **quantiles(times, (facts["end"] - facts["start"]) / 1e9))

    asyncio.run(run())


def listener(options: Options) -> None:
    """An endpoint to be peered with."""
    with endpoint(options) as found:
        say(port=found.listen(), id=found.id)
        for _ in orders():
            say(peers=len(found.peers()))


def dialler(options: Options) -> None:
    """Each order: a new endpoint peers and awaits its peer."""
    say(ready=True)
    for _ in orders():
        with endpoint(options) as found:
            began = time.monotonic()
            found.peer(HOST, options["ports"][0])
            if not found.await_peer(options["id"]):
                sys.exit("no peering")
            took = time.monotonic() - began
        say(ms=1000 * took)


def crowd(options: Options) -> None:
    """Order ``seconds``: what several endpoints in this process cost while nothing happens for so long."""
    with endpoint(options):
        pass  # what the first one loads is not the others'
    measured = Crowd()
    found = [endpoint(options) for _ in range(options["endpoints"])]
    if options["how"] == "listening":
        for each in found:
            each.listen()
    elif options["how"] == "star":
        _chatter(found)
    say(ready=True)
    for order in orders():
        say(**measured.idle(len(found), order["seconds"]))


def _chatter(found: list[Endpoint]) -> None:
    """Peer all with the first one, and have each hear from every other."""
    port = found[0].listen()
    subscribers = [each.subscribe(TOPIC) for each in found]
    for each in found[1:]:
        each.peer(HOST, port)
    for each in found:
        for other in found:
            if each is not other and not each.await_peer(other.id, SILENCE_S):
                sys.exit("the endpoints do not find each other")
    for each in found:
        each.publish(TOPIC, TEXT)
    for subscriber in subscribers:
        _take(subscriber, len(found) - 1, "payloads")


ROLES: dict[str, Callable[[Options], None]] = {
    each.__name__: each
    for each in (
        receiver,
        forwarder,
        sender,
        echo,
        pinger,
        async_echo,
        async_pinger,
        listener,
        dialler,
        crowd,
    )
}

if __name__ == "__main__":
    tether()
    ROLES[sys.argv[1]](json.loads(sys.argv[2]))
