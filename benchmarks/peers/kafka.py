"""Kafka through confluent-kafka: records that all replicas have, in batches or with a window."""

from __future__ import annotations

import json
import sys
import time
from statistics import median
from typing import Any

from confluent_kafka import KafkaException, Producer  # type: ignore[import-not-found,unused-ignore]
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[import-not-found,unused-ignore]

from benchmarks.link import Meter, orders, say, singles, tether

TOPIC = "benchmark"
AGAIN_S = 0.5


def producer(ports: list[int], window: int, linger_ms: float) -> None:
    """Order ``count``, and perhaps ``alone``: one after the other."""
    servers = {"bootstrap.servers": ",".join(f"127.0.0.1:{port}" for port in ports)}
    _create(AdminClient(servers), len(ports))
    client = Producer({**servers, "acks": "all", "linger.ms": linger_ms, "queue.buffering.max.messages": 1_000_000})
    say(ready=True)
    for order in orders():
        if order.get("alone"):
            say(p50_ms=_alone(client, order["count"]))
            continue
        meter = Meter()
        for value in singles(order["count"]):
            while len(client) >= window:
                client.poll(0.1)
            client.produce(TOPIC, value)
        client.flush()
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


if __name__ == "__main__":
    tether()
    producer(**json.loads(sys.argv[2]))
