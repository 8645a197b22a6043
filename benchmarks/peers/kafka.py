"""Kafka through confluent-kafka: records that all replicas have, in batches or with a window; and their reader."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from itertools import chain
from statistics import median
from typing import Any

from confluent_kafka import Consumer, KafkaException, Producer  # type: ignore[import-not-found,unused-ignore]
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[import-not-found,unused-ignore]

from benchmarks.link import RECORD_BYTES, Meter, lists, orders, say, singles, tether

TOPIC = "benchmark"
AGAIN_S = 0.5
MESSAGE_BYTES = 2_000_000  # of a batch: the largest record is half of it
TAKEN = 10_000  # records that a consumer takes at once, at most


def producer(ports: list[int], window: int, linger_ms: float) -> None:
    """Order ``count``, and perhaps the ``size`` of records, or ``alone``: one after the other."""
    servers = {"bootstrap.servers": ",".join(f"127.0.0.1:{port}" for port in ports)}
    _create(AdminClient(servers), len(ports))
    client = Producer(
        {
            **servers,
            "acks": "all",
            "linger.ms": linger_ms,
            "queue.buffering.max.messages": 1_000_000,
            "message.max.bytes": MESSAGE_BYTES,
        }
    )
    say(ready=True)
    for order in orders():
        if order.get("alone"):
            say(p50_ms=_alone(client, order["count"]))
            continue
        meter = Meter()
        for value in chain.from_iterable(lists(order["count"], order.get("size", RECORD_BYTES))):
            while len(client) >= window:
                client.poll(0.1)
            _produce(client, value)
        client.flush()
        say(**meter.facts())


def _produce(client: Any, value: bytes) -> None:
    while True:
        try:
            client.produce(TOPIC, value)
            return
        except BufferError:  # of bytes, which are bounded, too
            client.poll(0.1)


def consumer(ports: list[int]) -> None:
    """Order ``count``: take so many records."""
    servers = {"bootstrap.servers": ",".join(f"127.0.0.1:{port}" for port in ports)}
    client = Consumer({**servers, "group.id": "benchmark", "auto.offset.reset": "earliest"})
    client.subscribe([TOPIC])
    say(ready=True)
    for order in orders():
        meter, left = Meter(), order["count"]
        while left:
            left -= sum(each.error() is None for each in client.consume(min(left, TAKEN), 0.5))
        say(**meter.facts())


def _create(admin: Any, replicas: int) -> None:
    """Have the topic, when all servers have met."""
    while True:
        topic = NewTopic(TOPIC, num_partitions=1, replication_factor=replicas)
        try:
            admin.create_topics([topic])[TOPIC].result()
            return
        except KafkaException as problem:
            if problem.args[0].name() == "TOPIC_ALREADY_EXISTS":
                return
            time.sleep(AGAIN_S)


def _alone(client: Any, count: int) -> float:
    """How long one takes when there is no other, in the middle."""
    took = []
    for value in singles(count):
        begun = time.perf_counter()
        client.produce(TOPIC, value)
        client.flush()
        took.append(1e3 * (time.perf_counter() - begun))
    return median(took)


ROLES: dict[str, Callable[..., None]] = {"producer": producer, "consumer": consumer}

if __name__ == "__main__":
    tether()
    ROLES[sys.argv[1]](**json.loads(sys.argv[2]))
