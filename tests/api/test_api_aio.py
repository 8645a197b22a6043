"""The asyncio faces: the same promises, and an event loop that is never blocked."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import pytest
import zmq
from tests.api.members import PATIENCE_S

from chappe.api.log.aio import AsyncConsumer, AsyncProducer
from chappe.api.log.consumed_batch import ConsumedBatch
from chappe.api.log.store import Store
from chappe.errors import Closed, OffsetOutOfRange, TimedOut, UsageError
from chappe.log.batch import Record
from chappe.runtime import log_seats
from chappe.storage.journal import Journal

KIB = b"x" * 1024
MIB = bytes(1 << 20)


async def soon(awaited: Awaitable[object]) -> None:
    await asyncio.wait_for(awaited, PATIENCE_S)


async def longest_stop(done: asyncio.Event) -> int:
    """How often, at most, a thread of ours came round while the loop did once: it is as slow as the machine is."""
    rounds, longest = 0, 0

    def go_round() -> None:
        nonlocal rounds
        while not done.is_set():
            time.sleep(0.01)
            rounds += 1

    thread = threading.Thread(target=go_round, daemon=True)
    thread.start()
    while not done.is_set():
        before = rounds
        await asyncio.sleep(0.001)
        longest = max(longest, rounds - before)
    thread.join()
    return longest


def test_records_flow_and_the_loop_goes_round(tower: str, store: Store) -> None:
    async def run() -> None:
        done = asyncio.Event()
        watch = asyncio.create_task(longest_stop(done))
        async with AsyncConsumer("hello", reset="earliest", tower=tower) as consumer:
            async with AsyncProducer("hello", tower=tower) as producer:
                for number in range(100):
                    assert await producer.send(b"%d" % number, key="k") == number
                await soon(producer.flush(PATIENCE_S))
                assert producer.stored == 100
            found = []
            async for record in consumer:
                assert (record.partition, record.key) == (producer.partition, b"k")
                found.append(record.value)
                if len(found) == 100:
                    break
        done.set()
        assert found == [b"%d" % number for number in range(100)]
        assert await watch < 100  # a second's worth

    asyncio.run(soon(run()))


def test_the_loop_goes_round_beside_a_consumer_that_takes_nothing(tower: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was blocked for as long as a full peer is waited for, and that is for ever here."""
    monkeypatch.setattr(log_seats, "FULL_PEER_WAIT_LIVE_S", 1e9)

    async def run() -> None:
        async with AsyncProducer("hello", tower=tower, min_acks=0) as producer:
            node = producer._producer._node.node
            context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
            stopped = context.socket(zmq.SUB)
            stopped.setsockopt(zmq.RCVHWM, 1)
            for prefix in (b"M", b"R"):
                stopped.setsockopt(zmq.SUBSCRIBE, prefix + b"hello")
            stopped.connect(node.endpoint)
            try:
                sending = asyncio.create_task(send_all(producer))
                while not node.choked:
                    assert not sending.done()
                    await asyncio.sleep(0.001)
                for _ in range(100):  # the loop goes round though the producer waits
                    await asyncio.sleep(0)
                assert not sending.done()
                with pytest.raises(TimedOut):
                    await producer.flush(0.01)
            finally:
                context.destroy(0)
            assert await sending > 0

    async def send_all(producer: AsyncProducer) -> int:
        sent = 0
        while not producer._producer._node.choked:
            sent = await producer.send(MIB)
        return await producer.send(MIB) - sent

    asyncio.run(soon(run()))


def test_a_wait_for_records_ends_with_its_time(tower: str) -> None:
    async def run() -> None:
        async with AsyncConsumer("hello", tower=tower) as consumer:
            assert await consumer.poll(0.05) is None

    asyncio.run(soon(run()))


def test_a_loop_left_early_goes_on_with_the_next_record(tower: str, store: Store) -> None:
    async def run() -> None:
        async with AsyncProducer("hello", tower=tower) as producer:
            for number in range(10):
                await producer.send(b"%d" % number)
        async with AsyncConsumer("hello", reset="earliest", tower=tower) as consumer:
            found = []
            for stop in (3, 7, 9):
                async for record in consumer:
                    found.append(record.offset)
                    if record.offset == stop:
                        break
        assert found == list(range(10))

    asyncio.run(soon(run()))


def test_a_full_buffer_waits_without_blocking_the_loop(tower: str, tmp_path: Path) -> None:
    async def run() -> None:
        producer = AsyncProducer("hello", tower=tower, buffer_bytes=100_000)

        async def send() -> None:
            for _ in range(300):
                await producer.send(KIB)

        task = asyncio.create_task(send())
        while producer._producer._core.kept_bytes < 100_000:
            await asyncio.sleep(0.001)
        done, _ = await asyncio.wait({task}, timeout=0.05)
        assert not done
        store = await asyncio.to_thread(Store, tmp_path, tower=tower)
        await task
        await producer.close()
        assert producer.stored == 300
        await asyncio.to_thread(store.close)

    asyncio.run(soon(run()))


def test_an_offset_out_of_range_wakes_who_waits(tower: str, store: Store) -> None:
    async def run() -> None:
        async with AsyncProducer("hello", tower=tower) as producer:
            await producer.send(b"x")
        async with AsyncConsumer("hello", reset=9, tower=tower) as consumer:
            with pytest.raises(OffsetOutOfRange):
                await consumer.poll()

    asyncio.run(soon(run()))


def test_a_cancelled_wait_takes_no_record_with_it(tower: str, store: Store) -> None:
    async def run() -> None:
        async with AsyncConsumer("hello", reset="earliest", tower=tower) as consumer:
            waiting = asyncio.create_task(consumer.poll())
            await asyncio.sleep(0)
            waiting.cancel()
            async with AsyncProducer("hello", tower=tower) as producer:
                await producer.send(b"x")
            batch = await consumer.poll()
            assert batch is not None
            assert batch.values() == [b"x"]

    asyncio.run(soon(run()))


@contextmanager
def held(lock: threading.RLock) -> Iterator[threading.Event]:
    """Another thread holds the lock until the event is set, which is so at the end."""
    has, free = threading.Event(), threading.Event()

    def hold() -> None:
        with lock:
            has.set()
            free.wait(PATIENCE_S)

    thread = threading.Thread(target=hold)
    thread.start()
    has.wait(PATIENCE_S)
    try:
        yield free
    finally:
        free.set()
        thread.join()


Reader = Callable[[], Awaitable[object]]
READERS: dict[str, Callable[[AsyncConsumer], Reader]] = {
    "poll": lambda consumer: lambda: consumer.poll(PATIENCE_S),
    "records": lambda consumer: partial(anext, aiter(consumer)),
    "to_end": lambda consumer: partial(anext, consumer.to_end(PATIENCE_S)),
    "batches_to_end": lambda consumer: partial(anext, consumer.batches_to_end(PATIENCE_S)),
}


@pytest.mark.parametrize("reader", READERS.values(), ids=READERS)
def test_a_read_that_is_cancelled_while_it_waits_for_the_lock_takes_nothing(
    tower: str, store: Store, reader: Callable[[AsyncConsumer], Reader]
) -> None:
    async def run() -> None:
        async with AsyncConsumer("hello", tower=tower) as consumer, AsyncProducer("hello", tower=tower) as producer:
            await consumer.wait_ready(PATIENCE_S)
            for value in (b"x", b"y"):
                await producer.send_and_wait(value)
            while len(consumer.consumer._inbox.queue) < 2:
                await asyncio.sleep(0.001)
            read = reader(consumer)
            assert taken(await read()) == [b"x"]
            asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
            with held(consumer._lock) as free:
                reading = asyncio.ensure_future(read())
                await asyncio.sleep(0.02)  # it may have handed the wait to a thread
                reading.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await reading
                free.set()
            await asyncio.to_thread(int)  # behind whatever the one thread had to do
            assert consumer.consumer.position() == {("hello", producer.partition): 1}
            assert taken(consumer.consumer.take()) == [b"y"]

    asyncio.run(soon(run()))


@pytest.mark.parametrize("reader", READERS.values(), ids=READERS)
def test_reads_that_are_cancelled_all_the_time_lose_nothing(
    tower: str, store: Store, reader: Callable[[AsyncConsumer], Reader]
) -> None:
    """A cancellation may come at any ``await``: here after each number of rounds of the loop."""
    count = 300

    async def run() -> None:
        async with AsyncConsumer("hello", tower=tower) as consumer, AsyncProducer("hello", tower=tower) as producer:
            found: list[bytes | None] = []
            for number in range(count):
                await producer.send(b"%d" % number)
                reading = asyncio.ensure_future(reader(consumer)())
                for _ in range(number % 7):
                    await asyncio.sleep(0)
                reading.cancel()
                with suppress(asyncio.CancelledError):
                    found += taken(await reading)
                ((_, next_),) = consumer.consumer.position().items() or (((), 0),)
                assert next_ == len(found)
            while len(found) < count:
                found += taken(await asyncio.wait_for(reader(consumer)(), PATIENCE_S))
            assert found == [b"%d" % number for number in range(count)]

    asyncio.run(run())


def taken(read: object) -> list[bytes | None]:
    return read.values() if isinstance(read, ConsumedBatch) else [read.value] if isinstance(read, Record) else []


def test_a_cancellation_is_not_swallowed_by_what_comes_at_the_same_time(tower: str) -> None:
    async def run() -> None:
        async with AsyncConsumer("hello", tower=tower) as consumer:
            for rounds in range(4):
                reading = asyncio.create_task(consumer.poll(PATIENCE_S))
                while not consumer._ready._waiters:
                    await asyncio.sleep(0)
                consumer._ready.set()
                for _ in range(rounds):
                    await asyncio.sleep(0)
                reading.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await reading

    asyncio.run(soon(run()))


def test_closing_ends_the_reads_of_other_tasks(tower: str) -> None:
    async def run() -> None:
        for reader in READERS.values():
            consumer = AsyncConsumer("hello", tower=tower)
            reading = asyncio.ensure_future(reader(consumer)())
            await asyncio.sleep(0.02)
            await consumer.close()
            with pytest.raises(Closed, match="the consumer was closed"):
                await reading

    asyncio.run(soon(run()))


def test_several_tasks_wait_for_what_comes(tower: str, store: Store) -> None:
    async def run() -> None:
        async with AsyncConsumer("hello", tower=tower) as consumer, AsyncProducer("hello", tower=tower) as producer:
            reading = [asyncio.create_task(consumer.poll()) for _ in range(5)]
            for number in range(5):
                await producer.send_and_wait(b"%d" % number)
            found = [value for batch in await asyncio.gather(*reading) for value in taken(batch)]
            assert len(found) == 5
            assert {*found} == {b"%d" % number for number in range(5)}

    asyncio.run(soon(run()))


def test_a_consumer_belongs_to_one_event_loop(tower: str, store: Store) -> None:
    consumer = AsyncConsumer("hello", tower=tower)
    assert asyncio.run(consumer.poll(0.01)) is None
    for reader in READERS.values():

        async def again(reader: Callable[[AsyncConsumer], Reader] = reader) -> None:
            await reader(consumer)()

        with pytest.raises(UsageError, match="belongs to another event loop: make one in each loop"):
            asyncio.run(again())
    asyncio.run(consumer.close())


def test_a_lock_that_another_thread_holds_does_not_hold_the_loop(tower: str, store: Store) -> None:
    async def run() -> None:
        async with AsyncProducer("hello", tower=tower) as producer, AsyncConsumer("hello", tower=tower) as consumer:
            await producer.wait_ready(PATIENCE_S)
            for lock, call in (
                (producer._lock, lambda: producer.send(b"x")),
                (producer._lock, lambda: producer.delivered(0)),
                (consumer._lock, lambda: consumer.poll(PATIENCE_S)),
            ):
                with held(lock) as free:
                    calling = asyncio.ensure_future(call())
                    for _ in range(10):
                        await asyncio.sleep(0)
                    assert not calling.done()
                    free.set()  # which nobody would do if the loop waited for the lock
                    await soon(calling)

    asyncio.run(run())


def test_a_journal_that_waits_for_its_disk_holds_neither_the_loop_nor_other_producers(
    tower: str, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stalled, works = threading.Event(), threading.Event()
    append = Journal.append

    def stall(self: Journal, body: bytes, end: int) -> None:
        stalled.set()
        works.wait(PATIENCE_S)
        append(self, body, end)

    async def run() -> None:
        async with (
            AsyncProducer("hello", tower=tower, identity="me", directory=tmp_path / "me") as journaled,
            AsyncProducer("hello", tower=tower) as other,
        ):
            monkeypatch.setattr(Journal, "append", stall)
            sending = asyncio.create_task(journaled.send(b"a"))
            while not stalled.is_set():
                await asyncio.sleep(0.001)
            journaled.events()  # which takes no lock
            await other.send(b"b")
            await soon(other.flush(PATIENCE_S))
            assert not works.is_set()
            assert not sending.done() or not journaled.stored
            works.set()
            await soon(sending)
            await soon(journaled.flush(PATIENCE_S))

    asyncio.run(run())
