"""The mesh under asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any
from uuid import uuid4

import pytest
from tests.waiting import PATIENCE_S

from chappe import AsyncEndpoint
from chappe.api.mesh.aio import AsyncSubscriber
from chappe.api.mesh.received import Received
from chappe.errors import Closed, PeerUnavailable, TimedOut, UsageError
from chappe.mesh.events import EndpointDiscovered, PeerAdded
from chappe.transports.tcp import TcpLink


def play(body: Any) -> None:
    asyncio.run(asyncio.wait_for(body(), 3 * PATIENCE_S))


def test_messages_statuses_and_peers() -> None:
    async def body() -> None:
        async with AsyncEndpoint() as one, AsyncEndpoint() as two:
            statuses = one.statuses()
            subscriber = one.subscribe("/t", on_full="block")
            waiting = asyncio.create_task(one.await_peer(two.id))
            port = await one.listen()
            assert await two.peer("localhost", port) == one.id
            assert await waiting
            assert [type(await statuses.get(PATIENCE_S)) for _ in range(2)] == [EndpointDiscovered, PeerAdded]
            await two.publish_batch(("/t", number) for number in range(5_000))
            await two.publish("/t", 5_000)
            found = []
            async for topic, value in subscriber:
                assert topic == "/t"
                found.append(value)
                if value == 5_000:
                    break
            assert found == list(range(5_001))
            assert await subscriber.get(0.01) is None
            subscriber.add("/u")
            await two.unpeer("localhost", port)
            assert two.peers() == []

    play(body)


READS: dict[str, Callable[[AsyncSubscriber], Awaitable[object]]] = {
    "get": lambda subscriber: subscriber.get(),
    "get_many": lambda subscriber: subscriber.get_many(1),
    "messages": lambda subscriber: anext(aiter(subscriber)),
    "read_arrow": lambda subscriber: subscriber.read_arrow(),
}


@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_reads_that_are_cancelled_all_the_time_lose_nothing(
    read: Callable[[AsyncSubscriber], Awaitable[object]],
) -> None:
    count = 200

    def values(found: Any) -> list[object]:
        if isinstance(found, Received):
            return [found.data]
        return [
            value for each in found for value in (each["_1"].to_pylist() if hasattr(each, "schema") else [each.data])
        ]

    async def body() -> None:
        async with AsyncEndpoint() as endpoint, AsyncEndpoint() as other:
            subscriber = other.subscribe("/t", on_full="block")
            await endpoint.peer("127.0.0.1", await other.listen())
            found: list[object] = []
            for number in range(count):
                await endpoint.publish("/t", number)
                reading = asyncio.ensure_future(read(subscriber))
                for _ in range(number % 7):
                    await asyncio.sleep(0)
                reading.cancel()
                with suppress(asyncio.CancelledError):
                    found += values(await reading)
            while len(found) < count:
                found += values(await read(subscriber))
            assert found == [*range(count)]

    play(body)


def test_an_endpoint_belongs_to_one_event_loop() -> None:
    async def make() -> tuple[AsyncEndpoint, AsyncSubscriber]:
        made = AsyncEndpoint()
        return made, made.subscribe("/t")

    async def read(read: Callable[[AsyncSubscriber], Awaitable[object]], subscriber: AsyncSubscriber) -> None:
        await read(subscriber)

    endpoint, subscriber = asyncio.run(make())
    for each in READS.values():
        with pytest.raises(UsageError, match="this AsyncEndpoint belongs to another event loop: make one in each loop"):
            asyncio.run(read(each, subscriber))
    asyncio.run(endpoint.close())
    assert endpoint.endpoint.node.turns.closed


def test_where_no_event_loop_runs_no_endpoint_is_made() -> None:
    with pytest.raises(UsageError, match="an AsyncEndpoint is made where an event loop runs: inside of a coroutine"):
        AsyncEndpoint()


def test_ping_pong_between_tasks_of_one_loop() -> None:
    async def body() -> None:
        async with AsyncEndpoint() as one, AsyncEndpoint() as two:
            there, back = one.subscribe("/there"), two.subscribe("/back")
            await two.peer("127.0.0.1", await one.listen())
            await one.await_peer(two.id)

            async def echo() -> None:
                async for received in there:
                    await one.publish("/back", received.data)

            task = asyncio.create_task(echo())
            for number in range(200):
                await two.publish("/there", number)
                answer = await back.get(PATIENCE_S)
                assert answer is not None
                assert answer.value == number
            task.cancel()

    play(body)


def test_a_publisher_without_room_does_not_block_the_loop() -> None:
    async def body() -> None:
        async with AsyncEndpoint() as one, AsyncEndpoint(peer_messages_max=100) as two:
            slow = one.subscribe("/t", on_full="block", messages_max=100)
            await two.peer("127.0.0.1", await one.listen())
            text = "x" * 2_000
            sending = asyncio.create_task(two.publish_batch(("/t", (number, text)) for number in range(10_000)))
            await asyncio.sleep(0.2)
            assert not sending.done()
            found: list[int] = []
            while len(found) < 10_000:
                found += [each.value[0] for each in await slow.get_many(1_000, PATIENCE_S)]
            await sending
            assert found == list(range(10_000))

    play(body)


def test_a_busy_loop_does_not_stop_the_endpoint() -> None:
    async def body() -> None:
        async with AsyncEndpoint() as one, AsyncEndpoint() as two:
            subscriber = one.subscribe("/t")
            await two.peer("127.0.0.1", await one.listen())
            await two.publish("/t", 1)
            blocking = two.endpoint.statuses()
            while not subscriber.available:  # the loop does nothing; the endpoint's own thread does
                blocking.get(0.01)
            assert subscriber.available == 1

    play(body)


def test_failures_and_ends() -> None:
    async def body() -> None:
        one = AsyncEndpoint()
        with pytest.raises(PeerUnavailable):
            await one.peer("127.0.0.1", 1, retry_s=0)
        with pytest.raises(TimedOut):
            await one.peer("127.0.0.1", 1, retry_s=5, timeout=0.05)
        assert not await one.await_peer(uuid4(), 0.01)
        subscriber = one.subscribe("/t")
        waiting = asyncio.create_task(subscriber.get())
        await asyncio.sleep(0.01)
        await one.close()
        with pytest.raises(Closed):
            await waiting

    play(body)


def test_a_publisher_goes_on_as_soon_as_there_is_room_though_more_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[bytes] = []

    def send(link: TcpLink, take: Any) -> bool:
        """The socket takes one message at a time, and never all that waits."""
        if allowed:
            taken.extend(take(link.number, 1))
            link.sent_bytes += 1
        return False

    allowed = False

    async def body() -> None:
        nonlocal allowed
        async with AsyncEndpoint(peer_messages_max=4) as one, AsyncEndpoint() as two:
            two.subscribe("/t")
            await one.peer("127.0.0.1", await two.listen())
            assert await one.await_peer(two.id)
            with monkeypatch.context() as patch:
                patch.setattr(TcpLink, "send", send)
                for number in range(4):
                    await one.publish("/t", number)
                fifth = asyncio.create_task(one.publish("/t", 4))
                await asyncio.sleep(0)
                assert not fifth.done()
                allowed = True
                assert await fifth == 1

    play(body)
