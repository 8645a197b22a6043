"""Data stores in an event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from tests.api.chain_rig import new_configuration
from tests.waiting import PATIENCE_S

from chappe import AsyncDataStore, AsyncEndpoint, DataStore, Endpoint
from chappe.errors import (
    BufferFull,
    Closed,
    MasterExists,
    NoMaster,
    StaleData,
    StorageLocked,
    TimedOut,
    TypeClash,
    UsageError,
)


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def limited() -> None:
        await asyncio.wait_for(test(), PATIENCE_S)

    asyncio.run(limited())


@asynccontextmanager
async def joined() -> AsyncIterator[tuple[AsyncDataStore, AsyncDataStore]]:
    async with AsyncExitStack() as stack:
        one = await stack.enter_async_context(AsyncEndpoint())
        two = await stack.enter_async_context(AsyncEndpoint())
        master = await one.attach_master("s")
        await two.peer("127.0.0.1", await one.listen())
        yield master, await two.attach_clone("s")


@pytest.mark.parametrize("role", ["master", "clone"])
def test_every_operation(role: str) -> None:
    async def test() -> None:
        async with joined() as stores:
            writer, other = stores if role == "master" else stores[::-1]
            await writer.put("k", 1)
            known = role == "master"  # a clone only hears that it was done
            assert await writer.increment("n", 5) == (5 if known else None)
            assert await writer.decrement("n", 2) == (3 if known else None)
            await writer.append("text", "ab")
            await writer.insert_into("set", 1)
            await writer.insert_into("set", 2)
            await writer.remove_from("set", 1)
            await writer.insert_into("table", "a", 1)
            await writer.push("vector", "x")
            await writer.push("vector", "y")
            await writer.pop("vector")
            assert [await writer.put_unique("u", n) for n in (1, 2)] == [True, False]
            await writer.put("gone", 1, wait=False)
            await writer.erase("gone")
            await writer.put_many((n, n) for n in range(1_000))
            assert await stores[0].await_idle()
            assert dict(other.items()) == dict(writer.items())
            assert (other["k"], other["n"], other.get("text"), other["set"]) == (1, 3, "ab", frozenset({2}))
            assert (other.get_index_from_value("vector", 0), len(other.keys()), len(other)) == ("x", 1_007, 1_007)
            assert "k" in other
            with pytest.raises(TypeClash):
                await writer.increment("text")
            with pytest.raises(UsageError):
                await writer.put_many([("x", 1)], expiry_s=-1)
            await writer.clear()
            assert await stores[0].await_idle()
            assert list(other) == other.snapshot() == []
            assert (writer.role, writer.name, writer.ready, bool(writer)) == (role, "s", True, True)

    run(test)


def test_watches_and_proxies() -> None:
    async def test() -> None:
        async with joined() as (master, clone):
            async with clone.watch(prefix="k") as watch:
                assert await watch.get(0.01) is None
                waiting = asyncio.ensure_future(watch.get())
                await asyncio.sleep(0)
                await master.put("k", 1)
                found = await waiting
                assert found is not None
                assert (found.kind, found.key, found.value, found.publisher) == ("insert", "k", 1, master.entity)
                await master.put("k", 2)
                async for each in watch:
                    assert each.value == 2
                    break
            proxy = clone.proxy()
            proxy.put_unique("u", 1)
            async with asyncio.timeout(PATIENCE_S):
                while not proxy.available:
                    await clone.put("x", 1)
            answer = proxy.receive(0)
            assert answer is not None
            assert answer.take() is True

    run(test)


def test_waiting_ends_in_time_and_when_the_store_is_closed() -> None:
    async def test() -> None:
        async with joined() as (master, clone):
            with master.watch(messages_max=2, on_full="block").source as watch:
                await master.put("k", 1)
                await master.put("k", 2)
                with pytest.raises(BufferFull):
                    await master.put("k", 3, timeout=0.05)
                with pytest.raises(TimedOut):
                    await clone.put("k", 3, timeout=0.05)
                watch.poll()
            assert await clone.await_idle()
            await clone.close()
            with pytest.raises(Closed):
                await clone.put("k", 1)
            with pytest.raises(Closed):
                clone.get("k")

    run(test)


def test_attaching(tmp_path: Path) -> None:
    async def test() -> None:
        async with AsyncEndpoint() as one, AsyncEndpoint() as two:
            await two.peer("127.0.0.1", await one.listen())
            with pytest.raises(NoMaster):
                await two.attach_clone("s", timeout=0.05)
            early = await two.attach_clone("s", timeout=0)
            with pytest.raises(StaleData):
                early.get("k")
            async with await one.attach_master("s", "sqlite", path=tmp_path / "s") as master:
                await master.put("k", 1)
                with pytest.raises(MasterExists):
                    await two.attach_master("s")
                assert await master.await_idle()
                attaching = asyncio.ensure_future(two.attach_clone("other", timeout=None))
                await asyncio.sleep(0.02)
                attaching.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await attaching
            async with await one.attach_master("s", "sqlite", path=tmp_path / "s") as again:
                assert again["k"] == 1

    run(test)


def test_a_master_that_nobody_receives_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its name, and its file, are free again, whether the thread that made it was done at the cancellation or not."""
    attach = Endpoint.attach_master
    made, goes_on = threading.Event(), threading.Event()

    def attach_slowly(*given: Any, **options: Any) -> DataStore:
        found = attach(*given, **options)
        made.set()
        goes_on.wait(PATIENCE_S)
        return found

    async def test() -> None:
        async with AsyncEndpoint() as endpoint:
            for done in (False, True):
                made.clear()
                goes_on.clear()
                monkeypatch.setattr(Endpoint, "attach_master", attach_slowly)
                attaching = asyncio.ensure_future(endpoint.attach_master("s", "sqlite", path=tmp_path / "s"))
                await asyncio.to_thread(made.wait)
                if done:
                    goes_on.set()
                attaching.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await attaching
                goes_on.set()
                monkeypatch.setattr(Endpoint, "attach_master", attach)
                while True:
                    with suppress(MasterExists, StorageLocked):
                        await (await endpoint.attach_master("s", "sqlite", path=tmp_path / "s")).close()
                        break
                    await asyncio.sleep(0.01)

    run(test)


def test_a_master_on_a_chain_tells_of_it() -> None:
    async def test() -> None:
        async with AsyncExitStack() as stack:
            one = await stack.enter_async_context(AsyncEndpoint())
            two = await stack.enter_async_context(AsyncEndpoint())
            await one.peer("127.0.0.1", await two.listen())
            chain = new_configuration("ab", durable=False)
            first = await one.attach_master("s", chain=chain, server="a")
            second = await two.attach_master("s", chain=chain, server="b")
            await second.put("k", 1, timeout=PATIENCE_S)
            assert first["k"] == 1
            statuses = first.chain(), second.chain()
            assert [None if each is None else each.role for each in statuses] == ["head", "tail"]
        async with joined() as (master, clone):
            assert master.chain() is clone.chain() is None

    run(test)
