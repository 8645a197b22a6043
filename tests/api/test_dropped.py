"""Members that nothing refers to any more close, as Python's files do; a producer delivers until it is closed."""

from __future__ import annotations

import asyncio
import gc
import os
import warnings
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
from tests.waiting import until

from chappe import Consumer, Endpoint, MapServer, Producer, SharedMap, Store, Tower
from chappe.api.log.aio import AsyncConsumer
from chappe.api.mesh.aio import AsyncEndpoint
from chappe.errors import StorageLocked


@pytest.fixture
def tower() -> Iterator[str]:
    with Tower("127.0.0.1:0") as made:
        yield made.address


def dropped(make: Callable[[], Any], driven: Callable[[Any], Any]) -> str:
    """Make a member, drop it, and wait until what drives it has ended; returns the warning."""
    gc.collect()  # of earlier tests
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always", ResourceWarning)
        member = make()
        found = driven(member)
        assert not found.closed
        del member
        gc.collect()
        until(lambda: found.closed, "it closes")
    (warning,) = [str(each.message) for each in told if "use it in a `with` statement" in str(each.message)]
    return warning


def test_the_log(tower: str, tmp_path: Path) -> None:
    assert "unclosed <Tower" in dropped(lambda: Tower("127.0.0.1:0"), lambda each: each._node.driver.turns)
    assert "unclosed <Store" in dropped(
        lambda: Store(tmp_path / "kept", tower=tower), lambda each: each._node.driver.turns
    )
    with ExitStack() as stack:

        def reopen() -> bool:
            with suppress(StorageLocked):  # until the thread that closes it is done
                stack.enter_context(Store(tmp_path / "kept", tower=tower))
                return True
            return False

        until(reopen, "the directory is free")
        stack.enter_context(Producer("t", tower=tower)).send(b"x")

        def read() -> Consumer:
            consumer = Consumer("t", tower=tower)
            assert next(iter(consumer)).value == b"x"
            return consumer

        assert "unclosed <Consumer" in dropped(read, lambda each: each._node)


def test_maps() -> None:
    assert "unclosed <MapServer" in dropped(lambda: MapServer("127.0.0.1:0"), lambda each: each._node.turns)
    with MapServer("127.0.0.1:0") as server, SharedMap(server.address) as other:

        def write() -> SharedMap[bytes]:
            shared = SharedMap(server.address)
            shared.set("k", b"v", wait=False)
            return shared

        assert "unclosed <SharedMap" in dropped(write, lambda each: each.member.driver.turns)
        until(lambda: other.get("k") == b"v", "what it wrote is done")


def test_the_mesh() -> None:
    with Endpoint() as near, near.subscribe("t") as subscriber:
        port = near.listen()

        def publish() -> Endpoint:
            endpoint = Endpoint()
            endpoint.subscribe("other")
            endpoint.attach_master("store").put("k", 1)
            endpoint.peer("127.0.0.1", port)
            until(lambda: endpoint.publish("t", 1) == 1, "somebody listens")
            return endpoint

        assert "unclosed <Endpoint" in dropped(publish, lambda each: each.node.turns)
        assert subscriber.get(timeout=10.0) is not None
        until(lambda: not near.peers(), "it says goodbye")


def test_what_is_made_of_an_endpoint_keeps_it() -> None:
    endpoint = Endpoint()
    turns = endpoint.node.turns
    subscriber, store = endpoint.subscribe("t"), endpoint.attach_master("store")
    del endpoint
    gc.collect()
    store.put("k", 1)
    assert subscriber.available == 0
    assert not turns.closed
    turns.check()
    store.close()
    subscriber.close()


def test_asyncio(tower: str) -> None:
    async def made(face: Callable[[], Any]) -> Any:
        return face()

    def endpoint() -> Any:
        return asyncio.run(made(AsyncEndpoint))

    def consumer() -> Any:
        return asyncio.run(made(lambda: AsyncConsumer("t", tower=tower)))

    assert "unclosed <Endpoint" in dropped(endpoint, lambda each: each.endpoint.node.turns)
    assert "unclosed <Consumer" in dropped(consumer, lambda each: each.consumer._node)


def test_a_producer_delivers_until_it_is_closed(tower: str, tmp_path: Path) -> None:
    producer = Producer("t", tower=tower)
    producer.send(b"x")
    found = weakref.ref(producer)
    del producer
    gc.collect()
    with Store(tmp_path / "kept", tower=tower), Consumer("t", tower=tower) as consumer:
        assert next(iter(consumer)).value == b"x"
        left = found()
        assert left is not None
        left.close()


def test_a_child_closes_nothing_of_its_parent(tower: str) -> None:
    with MapServer("127.0.0.1:0") as server:
        shared = SharedMap(server.address)
        child = os.fork()
        if not child:
            del shared
            gc.collect()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        shared["k"] = b"v"
        shared.close()


def test_a_member_that_never_opened_is_no_news(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", ResourceWarning)
        with Tower("127.0.0.1:0") as tower, pytest.raises(Exception, match="in use"):
            Tower(tower.address)
        gc.collect()
