"""NATS without JetStream: paced stamped messages and their ages."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import nats  # type: ignore[import-not-found,unused-ignore]
import uvloop  # type: ignore[import-not-found,unused-ignore]

from benchmarks.link import Meter, age_ns, orders, pace, quantiles, say, stamped, tether

SUBJECT = "benchmark"


async def producer(port: int) -> None:
    client = await nats.connect(f"nats://127.0.0.1:{port}")
    say(ready=True)
    source = orders()
    while (order := await asyncio.to_thread(next, source, None)) is not None:
        meter = Meter()
        for due in pace(order["count"], order["rate"]):
            await client.publish(SUBJECT, stamped(due))
            await asyncio.sleep(0)  # the client's own task flushes now, before the next pause
            await asyncio.sleep(0)
        say(**meter.facts())


async def consumer(port: int) -> None:
    client = await nats.connect(f"nats://127.0.0.1:{port}")
    ages: list[int] = []
    wanted = 0
    full = asyncio.Event()

    async def on_message(message: Any) -> None:
        ages.append(age_ns(message.data))
        if len(ages) == wanted:
            full.set()

    await client.subscribe(SUBJECT, cb=on_message)
    await client.flush()
    say(ready=True)
    source = orders()
    while (order := await asyncio.to_thread(next, source, None)) is not None:
        meter = Meter()
        wanted = order["count"]
        if len(ages) < wanted:
            full.clear()
            await full.wait()
        facts = meter.facts()
        say(**facts, **quantiles(ages[:wanted], (facts["end"] - facts["start"]) / 1e9))
        del ages[:wanted]


if __name__ == "__main__":
    tether()
    options: dict[str, Any] = json.loads(sys.argv[2])
    uvloop.run({"producer": producer, "consumer": consumer}[sys.argv[1]](options["port"]))
