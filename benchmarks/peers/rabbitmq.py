"""RabbitMQ streams through rstream: lists of records published at once, or packed into sub-entries.

Confirmations are awaited.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import uvloop  # type: ignore[import-not-found,unused-ignore]
from rstream import (  # type: ignore[import-not-found,unused-ignore]
    ConfirmationStatus,
    Consumer,
    ConsumerOffsetSpecification,
    MessageContext,
    OffsetType,
    Producer,
)

from benchmarks.link import Meter, lists, orders, say, tether

STREAM = "benchmark"
LIST = 1_000  # records of one publish frame; counts of records are multiples of it
UNCONFIRMED_MAX = 20_000
ENTRY = 100  # records of one sub-entry
PACKED_UNCONFIRMED_MAX = 400_000
CREDIT = 100  # chunks under way to the consumer
LOGIN = {"host": "127.0.0.1", "username": "guest", "password": "guest"}


async def producer(options: dict[str, Any]) -> None:
    """With ``sub_entries``, records are packed into entries, which the client publishes twice a second."""
    packed: bool = options["sub_entries"]
    size = ENTRY if packed else LIST
    unconfirmed_max = UNCONFIRMED_MAX if not packed else PACKED_UNCONFIRMED_MAX
    confirms = size if packed else 1  # records that one confirmation stands for
    sent = confirmed = 0
    room = asyncio.Event()

    def on_confirm(status: ConfirmationStatus) -> None:
        nonlocal confirmed
        assert status.is_confirmed
        confirmed += confirms
        if sent - confirmed <= unconfirmed_max:
            room.set()

    async with Producer(port=options["port"], **LOGIN) as client:
        await client.create_stream(STREAM)
        send = client.send_sub_entry if packed else client.send_batch
        say(ready=True)
        for order in orders():
            meter = Meter()
            for values in lists(order["count"]):
                for start in range(0, len(values), size):
                    while sent - confirmed > unconfirmed_max:
                        room.clear()
                        await room.wait()
                    sent += size
                    await send(STREAM, values[start : start + size], on_publish_confirm=on_confirm)
            while confirmed < sent:
                await asyncio.sleep(0.0005)
            say(**meter.facts())


async def consumer(options: dict[str, Any]) -> None:
    wanted = got = size = 0
    full = asyncio.Event()

    def on_message(message: bytes, context: MessageContext) -> None:
        nonlocal got, size
        size += len(message)
        got += 1
        if got == wanted:
            full.set()

    client = Consumer(port=options["port"], **LOGIN)
    await client.start()
    await client.subscribe(
        STREAM,
        on_message,
        decoder=bytes,
        offset_specification=ConsumerOffsetSpecification(OffsetType.FIRST, None),
        initial_credit=CREDIT,
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
    uvloop.run({"producer": producer, "consumer": consumer}[sys.argv[1]](options))
