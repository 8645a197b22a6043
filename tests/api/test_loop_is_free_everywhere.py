"""No call of the asynchronous faces of log, maps, chains and data stores, sealed or not, blocks the event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.api.blocking import LoopGuard
from tests.api.blocking import guard as guard
from tests.api.chain_rig import new_configuration, serving
from tests.api.sealed_net import make_home
from tests.waiting import PATIENCE_S

from chappe import (
    AsyncChain,
    AsyncConsumer,
    AsyncDataStore,
    AsyncEndpoint,
    AsyncProducer,
    AsyncSharedMap,
    Forwarder,
    Keys,
    MapServer,
    Store,
    Tower,
)
from chappe.storage.kv_backends import SqliteBackend

MANY = 2_000


@asynccontextmanager
async def beside(kind: Any, *arguments: Any, **options: Any) -> AsyncIterator[Any]:
    """A member that has no asynchronous face, made and closed by another thread."""
    made = await asyncio.to_thread(kind, *arguments, **options)
    try:
        yield made
    finally:
        await asyncio.to_thread(made.close)


async def flow(consumer: AsyncConsumer, *producers: AsyncProducer) -> None:
    """All that producers send comes, by each way to take it."""
    for producer in producers:
        await producer.wait_ready(PATIENCE_S)
        for number in range(MANY):
            await producer.send(b"%d" % number)
        await producer.send_and_wait(b"last")
        await producer.flush(PATIENCE_S)
    found = await consumer.poll(PATIENCE_S)
    assert found is not None
    got = len(found)
    async for _ in consumer:
        got += 1
        if got == len(producers) * (MANY + 1):
            break
    assert await consumer.poll(0.001) is None


# -- the log ----------------------------------------------------------------------------------------------------------


def test_every_day_of_producers_and_consumers(guard: LoopGuard, tmp_path: Path) -> None:
    async def body() -> None:
        async with beside(Tower, "127.0.0.1:0") as tower, beside(Store, tmp_path / "store", tower=tower.address):
            options: Any = {"tower": tower.address}
            async with (
                await asyncio.to_thread(AsyncConsumer, "t", identity="me", directory=tmp_path, **options) as consumer,
                AsyncProducer("t", **options) as one,
                AsyncProducer("t", **options) as other,
            ):
                await flow(consumer, one, other)
                await asyncio.to_thread(consumer.consumer.commit)
            async with AsyncConsumer("t", **options) as reader:
                assert len([record async for record in reader.to_end(PATIENCE_S)]) == 2 * (MANY + 1)

    guard.run(body)


def test_every_day_of_sealed_topics(guard: LoopGuard, tmp_path: Path) -> None:
    home = make_home(tmp_path / "keys")

    async def body() -> None:
        options: Any = {"listen": "127.0.0.1:0", "security": Keys(home / "hub")}
        async with (
            beside(Forwarder, tmp_path / "data", **options) as forwarder,
            AsyncConsumer("patients/1", forwarders=forwarder.address, security=Keys(home / "bob")) as bob,
            AsyncProducer("patients/1", forwarders=forwarder.address, security=Keys(home / "ann")) as ann,
        ):
            await flow(bob, ann)

    guard.run(body)


# -- shared maps ------------------------------------------------------------------------------------------------------


async def use(one: AsyncSharedMap[str], other: AsyncSharedMap[str]) -> None:
    async with one.watch(prefix="/a") as watch:
        await one.set("/a/1", "x")
        assert await other.wait_for("/a/1", "x", timeout=PATIENCE_S)
        await other.set_many({f"/a/{number}": "y" for number in range(MANY)})
        assert await other.compare_and_set("/a/1", "y", "z", timeout=PATIENCE_S)
        await one.set("/b", "not waited for", wait=False)
        await other.delete("/a/1", timeout=PATIENCE_S)
        assert await watch.get(PATIENCE_S) is not None
    assert other.get("/a/2") == "y"


def test_every_day_of_shared_maps(guard: LoopGuard, tmp_path: Path) -> None:
    async def body() -> None:
        async with (
            beside(MapServer, "127.0.0.1:0", backend="sqlite", path=tmp_path / "map.db") as server,
            AsyncSharedMap(server.address, values=str) as one,
            AsyncSharedMap(server.address, values=str) as other,
        ):
            await use(one, other)

    guard.run(body)


def test_every_day_of_sealed_maps(guard: LoopGuard, tmp_path: Path) -> None:
    home = make_home(tmp_path / "keys")

    async def body() -> None:
        async with beside(MapServer, "127.0.0.1:0", name="patients", security=Keys(home / "hub")) as server:
            options: Any = {"values": str, "name": "patients"}
            async with (
                AsyncSharedMap(server.address, security=Keys(home / "ann"), **options) as one,
                AsyncSharedMap(server.address, security=Keys(home / "bob"), **options) as other,
            ):
                await use(one, other)

    guard.run(body)


def test_a_map_whose_server_has_a_disk_that_stalls(
    guard: LoopGuard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stalled, free = threading.Event(), threading.Event()
    commit = SqliteBackend.commit

    def slow(*arguments: object) -> None:
        stalled.set()
        free.wait(PATIENCE_S)
        commit(*arguments)  # type: ignore[arg-type]

    async def body() -> None:
        async with beside(MapServer, "127.0.0.1:0", backend="sqlite", path=tmp_path / "map.db") as server:
            shared = AsyncSharedMap(server.address, values=str)
            await shared.wait_ready()
            with monkeypatch.context() as patch:
                patch.setattr(SqliteBackend, "commit", slow)
                setting = asyncio.create_task(shared.set("/a", "x"))
                while not stalled.is_set():
                    await guard.beat()
                await guard.beat()
                assert not setting.done()
                free.set()
                await setting
            await shared.close()

    guard.run(body)


# -- chains -----------------------------------------------------------------------------------------------------------


def test_every_day_of_a_chain(guard: LoopGuard, tmp_path: Path) -> None:
    async def body() -> None:
        configuration = new_configuration()
        servers = serving(configuration, tmp_path)
        await asyncio.to_thread(servers.__enter__)
        async with AsyncChain(configuration) as chain:
            assert (await chain.call(b"one", timeout=PATIENCE_S)).result == b"1"
            assert len(await chain.call_many([b"x"] * 200, timeout=PATIENCE_S)) == 200
            assert await chain.read(b"", timeout=PATIENCE_S) == b"201"
            assert set(await chain.status(timeout=PATIENCE_S)) == set(configuration.names)
            assert chain.events() == []
        await asyncio.to_thread(servers.__exit__, None, None, None)

    guard.run(body)


# -- data stores on a chain, and sealed ones --------------------------------------------------------------------------


async def _write(stores: Iterable[AsyncDataStore]) -> None:
    for writer in stores:
        await writer.put("k", 1, timeout=PATIENCE_S)
        await writer.increment("n", timeout=PATIENCE_S)
        await writer.put_many({str(number): "x" for number in range(MANY)}, timeout=PATIENCE_S)


def test_every_day_of_masters_on_a_chain(guard: LoopGuard, tmp_path: Path) -> None:
    chain = new_configuration("ab")

    async def body() -> None:
        async with AsyncEndpoint() as one, AsyncEndpoint() as two:
            await one.peer("127.0.0.1", await two.listen())
            first = await one.attach_master("s", chain=chain, server="a", directory=tmp_path / "a")
            second = await two.attach_master("s", chain=chain, server="b", directory=tmp_path / "b")
            await _write((first, second))
            assert first.chain() is not None
            await second.close()
            await first.close()

    guard.run(body)


def test_every_day_of_a_sealed_data_store(guard: LoopGuard, tmp_path: Path) -> None:
    home = make_home(tmp_path / "keys")

    async def body() -> None:
        async with (
            AsyncEndpoint(security=Keys(home / "ann")) as ann,
            AsyncEndpoint(security=Keys(home / "bob")) as bob,
        ):
            await ann.peer("127.0.0.1", await bob.listen())
            master = await ann.attach_master("patients/beds", "sqlite", path=tmp_path / "beds")
            clone = await bob.attach_clone("patients/beds", timeout=PATIENCE_S)
            await _write((master, clone))
            await clone.close()
            await master.close()

    guard.run(body)


def test_what_is_published_sealed(guard: LoopGuard, tmp_path: Path) -> None:
    home = make_home(tmp_path / "keys")

    async def body() -> None:
        async with (
            AsyncEndpoint(security=Keys(home / "ann")) as ann,
            AsyncEndpoint(security=Keys(home / "bob")) as bob,
            bob.subscribe("patients/") as subscriber,
        ):
            await ann.peer("127.0.0.1", await bob.listen())
            assert await ann.await_peer(bob.id)
            await ann.publish("patients/1", "x")
            await ann.publish_batch(("patients/1", number) for number in range(MANY))
            got = 0
            while got < MANY + 1:
                got += len(await subscriber.get_many(100))

    guard.run(body)
