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


async def read(count: int) -> None:
    async with AsyncConsumer("ticks", reset="latest") as consumer:
        async for record in consumer:
            print(record.timestamp, record.value)
            count -= 1
            if count == 0:
                return


async def main() -> None:
    reading = asyncio.create_task(read(10))
    await asyncio.sleep(1)  # the consumer begins with what comes after it
    await write(10)
    await asyncio.wait_for(reading, timeout=10)


if __name__ == "__main__":
    asyncio.run(main())
