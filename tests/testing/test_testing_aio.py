"""Programs with asyncio in a test's own world."""

from __future__ import annotations

import asyncio
import time

from chappe import AsyncConsumer, AsyncEndpoint, AsyncProducer
from chappe.testing import Log, World


def test_a_loop_waits_by_the_clock_of_the_world(chappe_log: Log) -> None:
    async def program() -> list[bytes | None]:
        async with AsyncProducer("readings") as producer:
            await producer.send("20")
            await producer.send_and_wait("21")
            await asyncio.sleep(300)
            await producer.flush(10)
        async with AsyncConsumer("readings") as consumer:
            return [each.value async for each in consumer.to_end()]

    assert asyncio.run(program()) == [b"20", b"21"]


def test_endpoints_in_a_loop(chappe_world: World) -> None:
    async def program() -> object:
        async with AsyncEndpoint() as one, AsyncEndpoint() as other:
            heard = one.subscribe("alarms/")
            await other.peer("127.0.0.1", await one.listen(), timeout=10)
            await other.publish("alarms/b", 95)
            received = await heard.get(timeout=10)
            assert received is not None
            master = await one.attach_master("rooms")
            clone = await other.attach_clone("rooms")
            await clone.put("a", received.value)
            began = time.monotonic()
            assert await heard.get(timeout=100) is None
            assert 100 <= time.monotonic() - began < 101
            return master.get("a")

    assert asyncio.run(program()) == 95
