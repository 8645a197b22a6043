"""Publishing to ordered topics for asyncio: nothing here blocks the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from functools import partial
from types import TracebackType
from typing import Any

from chappe.api.chain.client import WAIT_S
from chappe.api.faces import AsyncCloseable, Seconds, made_in_thread
from chappe.api.log.aio import ROOM_S
from chappe.api.log.ordered_producer import OrderedProducer
from chappe.errors import BufferFull
from chappe.system.forking import own


class AsyncOrderedProducer(AsyncCloseable):
    """``OrderedProducer`` for asyncio; at the bound of the buffer ``send`` waits without blocking the loop.

    Use as ``async with AsyncOrderedProducer(topic, chain=...) as producer``; the arguments are those of
    ``OrderedProducer`` without ``on_full``. It asks the chain for its topic at its first use, and raises then. All
    methods are coroutines, ``partitions`` too.
    """

    def __init__(self, topic: str, **options: Any) -> None:
        own(self)
        self.topic = topic
        self._options = options
        self._made: OrderedProducer | None = None
        self._making = asyncio.Lock()

    async def __aenter__(self) -> AsyncOrderedProducer:
        await self._producer()
        return self

    async def _producer(self) -> OrderedProducer:
        if self._made is None:
            async with self._making:
                if self._made is None:
                    make = partial(OrderedProducer, self.topic, on_full="error", **self._options)
                    self._made = await made_in_thread(make, OrderedProducer.close)
        return self._made

    async def send(
        self,
        value: bytes | str | None,
        key: bytes | str | None = None,
        headers: Mapping[str, bytes | str] | Iterable[tuple[str, bytes | str]] | None = None,
        timestamp: int | datetime | None = None,
        partition: int | None = None,
    ) -> None:
        producer = await self._producer()
        while True:
            try:
                producer.send(value, key, headers, timestamp, partition)
                return
            except BufferFull:
                await asyncio.sleep(ROOM_S)

    async def append(
        self,
        values: Sequence[bytes | str | None],
        *,
        key: bytes | str | None = None,
        partition: int | None = None,
        expected_offset: int | None = None,
        timeout: Seconds = WAIT_S,
    ) -> range:
        producer = await self._producer()
        while True:
            try:
                return await asyncio.to_thread(
                    producer.append,
                    values,
                    key=key,
                    partition=partition,
                    expected_offset=expected_offset,
                    timeout=timeout,
                )
            except BufferFull:
                await asyncio.sleep(ROOM_S)

    async def ends(self, timeout: Seconds = WAIT_S) -> tuple[int, ...]:
        return await asyncio.to_thread((await self._producer()).ends, timeout)

    async def partitions(self) -> tuple[str, ...]:
        return (await self._producer()).partitions

    async def flush(self, timeout: Seconds = None) -> None:
        await asyncio.to_thread((await self._producer()).flush, timeout)

    async def close(self, timeout: Seconds = 10.0) -> None:
        if self._made is not None:
            await asyncio.to_thread(self._made.close, timeout)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._made is not None:
            await asyncio.to_thread(self._made.__exit__, kind, error, trace)

    def __repr__(self) -> str:
        return f"<AsyncOrderedProducer of topic {self.topic!r}>" if self._made is None else f"<Async{self._made!r}"
