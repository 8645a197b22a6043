"""A program that closes nothing: CASE TOWER PORT-OR-DIRECTORY. What it published is to arrive all the same."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import sys

from chappe.api.log.aio import AsyncProducer
from chappe.api.log.producer import Producer
from chappe.api.mesh.endpoint import Endpoint

COUNT = 500


def send(topic: str, tower: str) -> None:
    producer = Producer(topic, tower=tower)
    for number in range(COUNT):
        producer.send(b"%d" % number)


async def send_async(tower: str) -> None:
    producer = AsyncProducer("async", tower=tower)
    for number in range(COUNT):
        await producer.send(b"%d" % number)


def everything(tower: str, port: int) -> None:
    context = multiprocessing.get_context("fork")
    worker = context.Process(target=send, args=("worker", tower))
    worker.start()
    worker.join()
    endpoint = Endpoint()
    endpoint.peer("127.0.0.1", port)
    clone = endpoint.attach_clone("shared")
    send("plain", tower)
    asyncio.run(send_async(tower))
    if not os.fork():
        sys.exit()  # what its parent made is not its business
    for number in range(COUNT):
        clone.put(number, number, wait=False)
        endpoint.publish("news", number)


def killed(tower: str, directory: str) -> None:
    producer = Producer("killed", tower=tower, identity="me", directory=directory)
    for number in range(COUNT):
        assert producer.send(b"%d" % number, "key", {"name": b"x"}, 1 + number) == number
    os._exit(9)


if __name__ == "__main__":
    _, case, tower, port = sys.argv
    if case == "killed":
        killed(tower, port)
    if case == "everything":
        everything(tower, int(port))
    else:
        send("plain", tower)
        send("other", tower)
        raise ValueError("of the program")
