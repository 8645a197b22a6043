"""Processor time of a message at the endpoint that passes it on: without ``on_forward``, filtered, and transformed.

    python -m benchmarks.on_forward

One process for the publisher, one for the endpoint in the middle and one for the receiver; the processor time of the
middle one is told, for each message, the lowest of the rounds. Messages come singly, or from ``publish_batch``.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Final

from chappe import Endpoint, Forwarded

MESSAGES: Final = 20_000
ROUNDS: Final = 5
VALUE: Final = {"name": "sensor", "reading": 20.5, "tags": ("a", "b")}


def by_topic(message: Forwarded) -> Forwarded | None:
    """Look at the topic alone."""
    return message if message.topic.startswith("readings/") else None


def transform(message: Forwarded) -> Forwarded:
    """Decode the value, and pass on another one."""
    return message.with_value({**message.value, "name": "?"})


KINDS: Final[dict[str, Callable[[Forwarded], Forwarded | None] | None]] = {
    "without": None,
    "filter by topic": by_topic,
    "transform": transform,
}


def pass_on(kind: str, pipe: Connection) -> None:
    """The endpoint in the middle: tells its port, and its processor time whenever it is asked."""
    with Endpoint(on_forward=KINDS[kind]) as node:
        pipe.send(node.listen())
        while pipe.recv():
            pipe.send(time.process_time())


def receive(port: int, pipe: Connection) -> None:
    """The endpoint at the end: tells when all messages of a round are there."""
    with Endpoint() as node, node.subscribe("", on_full="block") as heard:
        node.peer("127.0.0.1", port)
        pipe.send(node.id)
        while pipe.recv():
            left = MESSAGES
            while left:
                left -= len(heard.get_many(left))
            pipe.send(None)


def measure(kind: str, batches: bool) -> float:
    """Microseconds of the one in the middle for each message."""
    context = multiprocessing.get_context("spawn")
    (middle, far), (end, farther) = context.Pipe(), context.Pipe()
    first = context.Process(target=pass_on, args=(kind, far))
    first.start()
    port = middle.recv()
    second = context.Process(target=receive, args=(port, farther))
    second.start()
    found: list[float] = []
    with Endpoint() as node:
        node.peer("127.0.0.1", port)
        node.await_peer(end.recv())
        for _ in range(ROUNDS):
            end.send(True)
            middle.send(True)
            before = middle.recv()
            if batches:
                node.publish_batch([("readings/1", VALUE)] * MESSAGES)
            else:
                for _ in range(MESSAGES):
                    node.publish("readings/1", VALUE)
            end.recv()
            middle.send(True)
            found.append((middle.recv() - before) / MESSAGES * 1e6)
    for pipe, process in ((end, second), (middle, first)):
        pipe.send(False)
        process.join()
    return min(found)


if __name__ == "__main__":
    for name in KINDS:
        print(f"{name}: {measure(name, False):.1f} us singly, {measure(name, True):.1f} us in batches", flush=True)
