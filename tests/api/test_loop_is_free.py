"""No call of an asynchronous face blocks the event loop: not under a full peer, a stalled disk, or while it closes."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from pathlib import Path

import pytest
from tests.api.blocking import LoopGuard
from tests.api.blocking import guard as guard
from tests.endpoints import Make, until
from tests.waiting import PATIENCE_S

from chappe import AsyncEndpoint
from chappe.runtime import worker
from chappe.runtime.turns import Turns
from chappe.runtime.worker import Lane
from chappe.storage.kv_backends import SqliteBackend

# -- the guard itself -------------------------------------------------------------------------------


def test_the_guard_finds_a_wait_in_the_loops_thread(guard: LoopGuard) -> None:
    async def body() -> None:
        async with AsyncEndpoint() as endpoint:
            await endpoint.listen()
            endpoint.endpoint.subscribe("/t").get(0.01)

    with pytest.raises(AssertionError, match="the event loop's thread waits on sockets"):
        guard.run(body)


def test_the_guard_finds_who_follows_in_the_loops_thread(guard: LoopGuard) -> None:
    async def body() -> None:
        async with AsyncEndpoint() as endpoint:
            await endpoint.listen()
            turns = endpoint.endpoint.node.turns
            leader = threading.Thread(target=turns.wait, args=(lambda: False, PATIENCE_S), daemon=True)
            leader.start()
            while turns._leading is None:
                await asyncio.sleep(0.001)
            endpoint.endpoint.subscribe("/t").get(0.01)

    with pytest.raises(AssertionError, match="a lock that it took itself"):
        guard.run(body)


def test_the_guard_finds_a_wait_under_a_members_lock(guard: LoopGuard, monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(turns: Turns) -> None:
        with turns.lock:
            time.sleep(0.001)

    monkeypatch.setattr(Turns, "slow", slow, raising=False)

    async def body() -> None:
        async with AsyncEndpoint() as endpoint:
            lane = Lane(worker.CALLBACKS, endpoint.endpoint.node.turns.run)
            lane.do(lambda: slow(endpoint.endpoint.node.turns))
            await asyncio.to_thread(lane.close, PATIENCE_S)

    with pytest.raises(AssertionError, match="a thread that holds a lock sleeps"):
        guard.run(body)


# -- endpoints --------------------------------------------------------------------------------------


def test_every_day_of_an_endpoint(guard: LoopGuard) -> None:
    async def body() -> None:
        async with AsyncEndpoint() as one, AsyncEndpoint() as two:
            statuses = one.statuses()
            async with one.subscribe("/t", on_full="block") as subscriber:
                port = await one.listen()
                assert await two.peer("localhost", port) == one.id  # a name is looked up
                assert await one.await_peer(two.id)
                assert await statuses.get(PATIENCE_S) is not None
                await two.publish_batch(("/t", number) for number in range(5_000))
                got = 0
                while got < 5_000:
                    got += len(await subscriber.get_many(100))
                assert await subscriber.get(0.001) is None
            await two.unpeer("localhost", port)
            two.peer_nosync("localhost", port)
            assert two.peers()

    guard.run(body)


def test_a_full_peer(guard: LoopGuard, make: Make) -> None:
    slow = make()
    subscriber = slow.subscribe("/t", on_full="block", messages_max=10)
    port = slow.listen()

    async def body() -> None:
        async with AsyncEndpoint(peer_messages_max=10) as endpoint:
            await endpoint.peer("127.0.0.1", port)
            assert await endpoint.await_peer(slow.id)
            count = 0

            async def publish() -> None:
                nonlocal count
                while True:
                    await endpoint.publish("/t", "x" * 100_000)
                    count += 1

            publishing = asyncio.create_task(publish())
            while endpoint.endpoint.room([b"/t"]):
                await guard.beat()
            full = count
            await guard.beat()
            for _ in range(30):
                assert await asyncio.to_thread(subscriber.get, PATIENCE_S) is not None
            while count < full + 10:
                await guard.beat()
                subscriber.poll()
            publishing.cancel()
            await asyncio.to_thread(subscriber.close)

    guard.run(body)


def test_closing_beside_a_peer_that_does_not_answer(guard: LoopGuard, make: Make) -> None:
    silent = make()
    port = silent.listen()
    locked, free = threading.Event(), threading.Event()

    def hold() -> None:
        with silent.node.lock:
            locked.set()
            free.wait(PATIENCE_S)

    async def body() -> None:
        endpoint = AsyncEndpoint()
        subscriber = endpoint.subscribe("/t")
        await endpoint.peer("127.0.0.1", port)
        holder = threading.Thread(target=hold)
        holder.start()
        await asyncio.to_thread(locked.wait, PATIENCE_S)
        closing = asyncio.create_task(endpoint.close())
        await guard.beat()
        assert not closing.done()
        free.set()
        await closing
        await subscriber.close()
        await asyncio.to_thread(holder.join)

    guard.run(body)


def test_a_name_that_takes_long(guard: LoopGuard, monkeypatch: pytest.MonkeyPatch) -> None:
    free = threading.Event()
    asked: list[object] = []

    def slow(host: object, *_: object, **__: object) -> list[object]:
        asked.append(host)
        free.wait(PATIENCE_S)
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", slow)

    async def body() -> None:
        endpoint = AsyncEndpoint(security="plain")
        endpoint.peer_nosync("slow.invalid", 9999)
        while not asked:
            await guard.beat()
        await endpoint.close()  # does not wait for it

    guard.run(body)
    free.set()
    until(lambda: not any(each.name == "chappe-look-up" for each in threading.enumerate()))


# -- data stores ------------------------------------------------------------------------------------


def test_every_day_of_a_data_store(guard: LoopGuard, tmp_path: Path) -> None:
    async def body() -> None:
        async with AsyncEndpoint() as one, AsyncEndpoint() as two:
            await two.peer("localhost", await one.listen())
            master = await one.attach_master("s", "sqlite", path=tmp_path / "s")
            clone = await two.attach_clone("s")
            async with clone.watch() as watch:
                for writer in (master, clone):
                    await writer.put("k", 1)
                    await writer.increment("n")
                    await writer.put_many((number, "x") for number in range(2_000))
                    await writer.put("gone", 1, wait=False, expiry_s=0.001)
                    assert writer["k"] == 1
                assert await clone.await_idle(PATIENCE_S)
                assert await watch.get(PATIENCE_S) is not None
            await clone.close()
            await master.close()

    guard.run(body)


def test_a_backend_that_stalls(guard: LoopGuard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stalled, free = threading.Event(), threading.Event()
    commit = SqliteBackend.commit

    def slow(*arguments: object) -> None:
        stalled.set()
        free.wait(PATIENCE_S)
        commit(*arguments)  # type: ignore[arg-type]

    async def body() -> None:
        async with AsyncEndpoint() as one:
            store = await one.attach_master("s", "sqlite", path=tmp_path / "s")
            other = await one.attach_master("other", "sqlite", path=tmp_path / "other")
            await store.put("k", 1)
            with monkeypatch.context() as patch:
                patch.setattr(SqliteBackend, "commit", slow)
                putting = asyncio.create_task(store.put("k", 2, timeout=None))
                while not stalled.is_set():
                    await guard.beat()
            await other.put("k", 3)  # its disk does not stall
            assert not putting.done()
            closing = asyncio.create_task(store.close())
            await guard.beat()
            assert not closing.done()
            free.set()
            await closing
            await putting

    guard.run(body)
