"""A program that is killed and stopped under load, as its users write one: ROLE TOWER [ADDRESS]."""

from __future__ import annotations

import signal
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from chappe import Consumer, DataStoreToTopic, Endpoint, Producer, TopicToDataStore
from chappe.system import time


def produce(tower: str) -> None:
    with Producer("numbers", tower=tower, identity="restarted") as producer:
        ready()
        while True:
            producer.send(b"%d" % producer.next_offset)
            time.sleep(0.005)


def consume(tower: str) -> None:
    with Consumer("numbers", tower=tower, identity="restarted") as consumer, Path("read").open("a") as file:
        ready()
        while True:
            if (batch := consumer.poll(None)) is not None:
                file.write("".join(f"{record.offset}\n" for record in batch))
                file.flush()
                consumer.commit()


def bridge(kind: type[DataStoreToTopic | TopicToDataStore], tower: str, address: str) -> None:
    with ExitStack() as ending:
        endpoint = ending.enter_context(Endpoint())
        store = endpoint.attach_master("users", "sqlite", path="users")
        ending.enter_context(kind(store, "numbers", tower=tower))
        host, _, port = address.partition(":")
        endpoint.listen(host, int(port))
        ready()
        signal.pause()


def ready() -> None:
    print("ready", flush=True)


def stop(*_: Any) -> None:
    sys.exit(0)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, stop)
    role, tower, address = [*sys.argv[1:], ""][:3]
    if role == "produce":
        produce(tower)
    elif role == "consume":
        consume(tower)
    else:
        bridge(DataStoreToTopic if role == "to-topic" else TopicToDataStore, tower, address)
