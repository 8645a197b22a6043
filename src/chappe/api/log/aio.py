"""Producers and consumers for asyncio: nothing here blocks the event loop."""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import suppress
from datetime import datetime
from types import TracebackType
from typing import Any, TypeVar

from chappe.api.faces import AsyncCloseable, Seconds, own_loop
from chappe.api.log.consumed_batch import ConsumedBatch
from chappe.api.log.consumer import Consumer, ResetLike
from chappe.api.log.decoding import Decoding
from chappe.api.log.inbox import LOOK_S
from chappe.api.log.producer import Producer
from chappe.api.log.topic_writers import TopicProgress
from chappe.defaults import KEYS_COME_S
from chappe.errors import BadValue, BufferFull, Sealed
from chappe.log.batch import Record
from chappe.log.sources import Key
from chappe.schemas.codec import as_codec, encoded
from chappe.system import time
from chappe.system.forking import own

ROOM_S = 0.005  # how often a full buffer is looked at again
LOCK_S = 0.001  # the event loop itself waits this long for a lock: less than another thread may keep the GIL
T = TypeVar("T")


async def _promptly(lock: threading.RLock, call: Callable[..., T], *arguments: Any) -> T:
    """Run ``call`` under the lock in the event loop's thread, waiting for the lock in another thread.

    There is no ``await`` after the call, so a cancellation comes before or after it: nothing is taken or sent whose
    result is lost.
    """
    while not lock.acquire(timeout=LOCK_S):
        await asyncio.to_thread(_pass, lock)
    try:
        return call(*arguments)
    finally:
        lock.release()


def _pass(lock: threading.RLock) -> None:
    with lock:
        pass


class AsyncProducer(AsyncCloseable):
    """``Producer`` for asyncio; at the bound of the buffer ``send`` waits without blocking the loop.

    Use as ``async with AsyncProducer(topic) as producer``; the arguments are those of ``Producer`` without
    ``on_full``. With an identity ``send`` waits for the disk now and then, so it runs in a thread. Making one with an
    identity reads its journal and syncs: ``await asyncio.to_thread(AsyncProducer, topic, identity=...)`` keeps that
    from the event loop. ``send``, ``delivered``, ``wait_ready``, ``send_and_wait``, ``flush`` and ``close`` are
    coroutines.
    """

    def __init__(self, topic: str | None = None, *, codec: object = None, **options: Any) -> None:
        own(self)
        self._codec = None if codec is None else as_codec(codec)
        self._waits = getattr(self._codec, "waits", None)
        self._producer = Producer(topic, on_full="error", **options)
        self._lock = self._producer.lock
        self._journaled = options.get("identity") is not None

    # -- looking ------------------------------------------------------------------------------------------

    @property
    def topic(self) -> str | None:
        return self._producer.topic

    @property
    def topics(self) -> dict[str, TopicProgress]:
        return self._producer.topics

    @property
    def name(self) -> str:
        return self._producer.name

    @property
    def partition(self) -> str:
        return self._producer.partition

    @property
    def next_offset(self) -> int:
        return self._producer.next_offset

    @property
    def stored(self) -> int:
        return self._producer.stored

    @property
    def connected(self) -> int:
        return self._producer.connected

    @property
    def tower(self) -> bool:
        return self._producer.tower

    def events(self) -> list[object]:
        return self._producer.events()

    def __repr__(self) -> str:
        return repr(self._producer).replace("Producer", "AsyncProducer", 1)

    # -- sending ------------------------------------------------------------------------------------------

    async def send(
        self,
        value: Any,
        key: bytes | str | None = None,
        headers: Mapping[str, bytes | str] | Iterable[tuple[str, bytes | str]] | None = None,
        timestamp: int | datetime | None = None,
        topic: str | None = None,
    ) -> int:
        if self._codec is not None:
            encode = (self._codec, value, topic or self.topic or "")
            asks = self._waits is not None and self._waits(None)
            value = await asyncio.to_thread(encoded, *encode) if asks else encoded(*encode)
        keys_until = None
        while True:
            try:
                if self._journaled:
                    return await asyncio.to_thread(self._producer.send, value, key, headers, timestamp, topic)
                return await _promptly(self._lock, self._producer.send, value, key, headers, timestamp, topic)
            except BufferFull:
                await asyncio.sleep(ROOM_S)
            except Sealed as error:
                keys_until = keys_until or time.monotonic() + KEYS_COME_S
                if not error.passing or time.monotonic() >= keys_until:
                    raise
                await asyncio.sleep(ROOM_S)

    async def wait_ready(self, timeout: float | None = 10.0) -> None:
        await asyncio.to_thread(self._producer.wait_ready, timeout)

    async def delivered(self, offset: int, topic: str | None = None) -> int:
        """Wait until ``min_acks`` stores hold a record; return its offset."""
        return await asyncio.wrap_future(await _promptly(self._lock, self._producer.delivered, offset, topic))

    async def send_and_wait(
        self,
        value: Any,
        key: bytes | str | None = None,
        headers: Mapping[str, bytes | str] | Iterable[tuple[str, bytes | str]] | None = None,
        timestamp: int | datetime | None = None,
        topic: str | None = None,
    ) -> int:
        """Send a record and wait until ``min_acks`` stores hold it; return its offset."""
        return await self.delivered(await self.send(value, key, headers, timestamp, topic), topic)

    async def flush(self, timeout: float | None = None) -> None:
        await asyncio.to_thread(self._producer.flush, timeout)

    async def close(self, timeout: float | None = 10.0) -> None:
        await asyncio.to_thread(self._producer.close, timeout)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self._producer.__exit__, kind, error, trace)


class AsyncConsumer(AsyncCloseable):
    """``Consumer`` for asyncio: ``async for record in consumer``, or ``await consumer.poll()`` for batches.

    It belongs to the event loop of its first use. Cancelling a read loses nothing: the next one continues there.
    With an identity files are opened and synced when it is made, as with ``AsyncProducer``.
    """

    def __init__(self, *topics: str, reset: ResetLike = "earliest", **options: Any) -> None:
        own(self)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ready = asyncio.Event()
        self.consumer = Consumer(*topics, reset=reset, **options)
        self.consumer.on_ready = self._wake
        self._lock = self.consumer.lock

    def _wake(self) -> None:
        if self._loop is not None:
            with suppress(RuntimeError):  # the loop is gone; nobody waits
                self._loop.call_soon_threadsafe(self._ready.set)

    async def poll(self, timeout: float | None = None) -> ConsumedBatch | None:
        """Return the next batch, or None after ``timeout`` seconds (None: wait for ever).

        Raises:
            UsageError: It belongs to another event loop.
        """
        return await self._wait_for(self.consumer.take, timeout)

    async def __aiter__(self) -> AsyncIterator[Record]:
        """Iterate over records for ever."""
        while True:
            records = await self._wait_for(self.consumer.take_records, None)
            assert records is not None
            for record in records:
                found = (
                    record if self.consumer.decoding is None else await self._decoded(record, self.consumer.decoding)
                )
                if found is not None:
                    yield found
                if self.consumer.turn():
                    break

    async def _decoded(self, record: Record, decoding: Decoding) -> Record | None:
        """Decode a record, in a thread if a server has to be asked; a cancellation leaves the record where it was."""
        try:
            if decoding.waits(record):
                return await asyncio.to_thread(decoding.one, record, self.consumer)
            try:
                return decoding.good(record)
            except BadValue as bad:
                if not decoding.stores_bad:
                    decoding.refuse(record, bad, self.consumer)
                else:
                    await asyncio.to_thread(decoding.refuse, record, bad, self.consumer)
                return None
        except asyncio.CancelledError:
            self.consumer.seek(record.topic, record.partition, record.offset)
            raise

    @property
    def bad(self) -> int:
        return self.consumer.bad

    async def _wait_for(self, take: Callable[[], T | None], timeout: Seconds) -> T | None:
        loop = self._loop = own_loop(self._loop, "AsyncConsumer")
        deadline = None if timeout is None else loop.time() + timeout
        while (found := await _promptly(self._lock, take)) is None:
            self._ready.clear()  # no ``await`` since the look, so later news set it again
            left = None if deadline is None else deadline - loop.time()
            look_s = self.consumer.look_s
            wait_s = left if left is not None and left <= look_s else None if look_s == math.inf else look_s
            if not await self._woken(wait_s) and wait_s == left:
                return None
        return found

    async def _woken(self, wait_s: Seconds) -> bool:
        """Wait for news; return False after ``wait_s`` seconds without any."""
        try:
            async with asyncio.timeout(wait_s):  # unlike ``wait_for`` it never swallows a cancellation
                await self._ready.wait()
        except TimeoutError:
            return False
        return True

    async def to_end(self, timeout: float | None = 10.0) -> AsyncIterator[Record]:
        async for records in self._to_end(timeout, self.consumer.undecoded):
            for record in records:
                found = (
                    record if self.consumer.decoding is None else await self._decoded(record, self.consumer.decoding)
                )
                if found is not None:
                    yield found

    async def batches_to_end(self, timeout: float | None = 10.0) -> AsyncIterator[ConsumedBatch]:
        async for batch in self._to_end(timeout, lambda batch: batch):
            yield batch

    async def _to_end(self, timeout: Seconds, shown: Callable[[ConsumedBatch], T]) -> AsyncIterator[T]:
        """Yield ``shown(batch)`` for each batch, computed in the step that takes the batch."""
        self._loop = own_loop(self._loop, "AsyncConsumer")
        steps = self.consumer.steps_to_end(timeout)

        def take() -> tuple[T] | bool:
            step = next(steps, None)
            return (shown(step),) if isinstance(step, ConsumedBatch) else step is not None

        while found := await _promptly(self._lock, take):
            if isinstance(found, tuple):
                yield found[0]
            else:
                self._ready.clear()
                await self._woken(LOOK_S)

    async def subscribe(self, *topics: str) -> None:
        await _promptly(self._lock, self.consumer.subscribe, *topics)

    async def unsubscribe(self, *topics: str) -> None:
        await _promptly(self._lock, self.consumer.unsubscribe, *topics)

    async def wait_ready(self, timeout: float | None = 10.0) -> None:
        await asyncio.to_thread(self.consumer.wait_ready, timeout)

    async def commit(self, positions: Mapping[Key, int] | None = None, timeout: float | None = 10.0) -> None:
        await asyncio.to_thread(self.consumer.commit, positions, timeout)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.consumer.__exit__, kind, error, trace)

    async def close(self) -> None:
        """Leave. A pending read in another task raises Closed."""
        await asyncio.to_thread(self.consumer.close)
