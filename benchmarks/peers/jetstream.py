"""JetStream through nats-py: asynchronous publishing with a window, a push consumer without acknowledgements."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from statistics import median
from typing import Any

import nats  # type: ignore[import-not-found,unused-ignore]
import uvloop  # type: ignore[import-not-found,unused-ignore]

from benchmarks.link import Meter, orders, say, singles, tether

STREAM = "benchmark"
SUBJECT = "benchmark.records"
WINDOW = 4_000  # publishes not yet acknowledged
PENDING_MAX = 10_000_000


async def producer(port: int, window: int = WINDOW, replicas: int = 1) -> None:
    client = await nats.connect(f"nats://127.0.0.1:{port}")
    stream = client.jetstream(publish_async_max_pending=window)
    while True:
        try:
            await stream.add_stream(name=STREAM, subjects=[SUBJECT], num_replicas=replicas)
            break
        except nats.js.errors.APIError:
            await asyncio.sleep(0.2)  # the servers have not met, or no leader yet
    say(ready=True)
    for order in orders():
        meter = Meter()
        if order.get("alone"):
            say(p50_ms=await _alone(stream, order["count"]))
            continue
        for value in singles(order["count"]):
            await stream.publish_async(SUBJECT, value)
        await stream.publish_async_completed()
        say(**meter.facts())


async def _alone(stream: Any, count: int) -> float:
    """How long one takes when there is no other, in the middle."""
    took = []
    for value in singles(count):
        begun = time.perf_counter()
        await stream.publish(SUBJECT, value)
        took.append(1e3 * (time.perf_counter() - begun))
    return median(took)


async def consumer(port: int) -> None:
    wanted = got = size = 0
    full = asyncio.Event()

    async def on_message(message: Any) -> None:
        nonlocal got, size
        size += len(message.data)
        got += 1
        if got == wanted:
            full.set()

    client = await nats.connect(f"nats://127.0.0.1:{port}", pending_size=64 * 1024 * 1024)
    await client.jetstream().subscribe(
        SUBJECT,
        cb=on_message,
        manual_ack=True,
        config=nats.js.api.ConsumerConfig(ack_policy=nats.js.api.AckPolicy.NONE),
        pending_msgs_limit=PENDING_MAX,
        pending_bytes_limit=PENDING_MAX * 200,
    )
    say(ready=True)
    source = orders()
    while (order := await asyncio.to_thread(next, source, None)) is not None:
        meter = Meter()
        wanted += order["count"]
        if got < wanted:
            full.clear()
            await full.wait()
        say(bytes=size, **meter.facts())


if __name__ == "__main__":
    tether()
    options: dict[str, Any] = json.loads(sys.argv[2])
    uvloop.run({"producer": producer, "consumer": consumer}[sys.argv[1]](**options))
