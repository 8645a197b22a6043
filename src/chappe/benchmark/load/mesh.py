"""The mesh under load: publishers, a chain of endpoints, subscribers at its end, and visitors that come and go."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Final

import chappe  # loads what a process uses, and no more
from chappe.benchmark.load.crew import Crew
from chappe.benchmark.load.frame import READY_S, STAMP_BYTES, WAIT_S, Meter, SourceLoad, rest, send, serve, take
from chappe.benchmark.orders import Orders, say
from chappe.data.scalars import Count

TOPIC: Final = "/chappe/bench"
HOST: Final = "127.0.0.1"
TAKE: Final = 4_096  # messages taken at once
SIZE_MIN: Final = STAMP_BYTES


def start(crew: Crew, loads: Sequence[SourceLoad], subscribers: int, hops: int, visitors: int) -> None:
    """Start all processes: of ``hops`` links from publishers to subscribers, and with that many visitors."""
    each = [{"load": asdict(load)} for load in loads]
    last = [facts["port"] for facts in crew.start("mesh.publisher", "publisher", "sources", each)]
    links = 0
    for hop in range(1, hops):
        links += len(last)
        role = "forwarder" if hops == 2 else f"forwarder {hop}"
        last = [facts["port"] for facts in crew.start("mesh.forwarder", role, "servers", [{}], ports=last)]
    ready = crew.start("mesh.subscriber", "subscriber", "sinks", [{}] * subscribers, ports=last)
    crew.meet("publisher", ids=[facts["id"] for facts in ready], links=links + subscribers * len(last))
    if visitors:
        crew.start("mesh.visitor", "visitor", "servers", [{}] * visitors, ports=last)


def _peer(endpoint: chappe.Endpoint, ports: Sequence[int]) -> None:
    for port in ports:
        endpoint.peer(HOST, port, timeout=READY_S)


def publisher(orders: Orders, options: dict[str, Any]) -> None:
    """Publish messages: a stamp, and text that makes up the size."""
    from chappe.benchmark.node import await_links

    load = SourceLoad.of(options)
    text = "x" * (load.size - SIZE_MIN)
    with chappe.Endpoint(security="plain") as found:
        say("ready", port=found.listen(HOST))
        order = orders.next("meet")
        until = time.monotonic() + READY_S
        for each in order["ids"]:
            found.await_peer(each, until - time.monotonic())
        await_links(found, order["links"], until)
        say("met")

        def call(stamp: int, count: int) -> None:
            message = (TOPIC, [Count(stamp), text])
            if count == 1:
                found.publish(*message)
            else:
                found.publish_batch([message] * count)

        send(orders, load, Meter(), call, lambda: None)


def forwarder(orders: Orders, options: dict[str, Any]) -> None:
    with chappe.Endpoint(security="plain") as found:
        _peer(found, options["ports"])
        say("ready", port=found.listen(HOST))
        serve(orders, Meter())


def subscriber(orders: Orders, options: dict[str, Any]) -> None:
    """Take messages; publishers wait for one that is slow."""
    meter = Meter("received")
    ages = meter.latencies["received"]
    with chappe.Endpoint(security="plain") as found, found.subscribe(TOPIC, on_full="block") as messages:
        _peer(found, options["ports"])
        say("ready", id=found.id)

        def call() -> None:
            taken = messages.get_many(TAKE, WAIT_S)
            now = time.monotonic_ns()
            for each in taken:
                ages.add(now - each.value[0])
            if taken:
                meter.add(len(taken))

        take(orders, meter, call)


def visitor(orders: Orders, options: dict[str, Any]) -> None:
    """Come, subscribe, stay for the first message and leave, again and again."""
    meter = Meter("peered")
    chappe.Endpoint(security="plain").close()  # the first one of a process loads modules
    say("ready")
    meter.begin(orders)
    while not orders.waiting:
        began = time.monotonic_ns()
        with chappe.Endpoint(security="plain") as found, found.subscribe(TOPIC) as messages:
            _peer(found, options["ports"])
            meter.latencies["peered"].add(time.monotonic_ns() - began)
            messages.get(WAIT_S)
        meter.add(1)
        meter.say()
    rest(orders, meter)
