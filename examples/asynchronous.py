"""Producer and consumer under asyncio: the consumer hears records while the producer still sends.

chappe up &
python examples/asynchronous.py
"""

from __future__ import annotations

import asyncio

from chappe import AsyncConsumer, AsyncProducer


async def write(count: int) -> None:
    async with AsyncProducer("ticks") as producer:
        for number in range(count):
            await producer.send(f"tick {number}")
            await asyncio.sleep(0.1)
        await producer.flush(timeout=10)


async def read(count: int, ready: asyncio.Event) -> None:
    async with AsyncConsumer("ticks", reset="latest") as consumer:
        await consumer.wait_ready()  # whatever is sent from now on arrives
        ready.set()
        async for record in consumer:
            print(record.timestamp, record.value)
            count -= 1
            if count == 0:
                return


async def main() -> None:
    ready = asyncio.Event()
    reading = asyncio.create_task(read(10, ready))
    await asyncio.wait_for(ready.wait(), timeout=10)
    await write(10)
    await asyncio.wait_for(reading, timeout=10)


if __name__ == "__main__":
    asyncio.run(main())
