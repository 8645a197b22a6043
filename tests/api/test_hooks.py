"""Hooks: called in the order of the statuses, one after the other, and before whatever others publish later."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from itertools import groupby
from select import select
from typing import Any

import pytest

from chappe import AsyncEndpoint, Endpoint
from chappe.defaults import HOOKS_HOLD_S
from chappe.errors import Closed, UsageError
from chappe.mesh.events import EndpointDiscovered, HookFailed, PeerAdded, PeerLost, Status
from chappe.testing import World

NAMES = ("discovered", "connected", "disconnected", "removed", "unreachable")
THERE_AND_BACK = ("discovered", "connected", "removed", "unreachable")


def hooks(note: Callable[[str, Status], object]) -> dict[str, Any]:
    """One of each kind."""
    return {f"on_{name}": lambda event, name=name: note(name, event) for name in NAMES}


def test_each_status_has_its_hook_and_the_order_is_that_of_the_statuses(chappe_world: World) -> None:
    called: list[tuple[str, Status]] = []
    with Endpoint(**hooks(lambda *call: called.append(call))) as node, Endpoint() as guest:
        statuses, port = node.statuses(), guest.listen()
        node.peer("127.0.0.1", port)
        node.unpeer("127.0.0.1", port)
        node.peer("127.0.0.1", port)
        guest.close()
        chappe_world.wait_until(lambda: len(called) == 8)
        assert [event for _, event in called] == [each for each in statuses.poll() if isinstance(each, Status)]
    assert [name for name, _ in called] == [
        *THERE_AND_BACK, "discovered", "connected", "disconnected", "unreachable",
    ]  # fmt: skip
    assert {event.id for _, event in called} == {guest.id}


def test_what_a_hook_publishes_goes_out_before_all_that_others_publish_later(chappe_world: World) -> None:
    running: list[Status] = []
    most = 0

    def greet(event: Status) -> None:
        nonlocal most
        running.append(event)
        most = max(most, len(running))
        for _ in range(2):
            time.sleep(1)
            node.publish("news", type(event).__name__)
        running.pop()

    with Endpoint(on_discovered=greet, on_connected=greet) as node, Endpoint() as guest:
        heard, over = guest.subscribe("news"), threading.Event()

        def publish() -> None:
            publisher = node.publisher("news")
            while not over.is_set():
                node.publish("news", "one")
                node.publish_batch([("news", "many")] * 3)
                publisher.publish("another")
                time.sleep(0.01)

        program = chappe_world.start(publish)
        guest.peer("127.0.0.1", node.listen())
        chappe_world.wait_until(lambda: heard.available >= 10)
        over.set()
        program.result()
        values = [each.value for each in heard.poll()]
    ours = [name for name, _ in groupby(values) if name not in ("one", "many", "another")]
    assert ours == ["EndpointDiscovered", "PeerAdded"]
    assert values[:4] == ["EndpointDiscovered"] * 2 + ["PeerAdded"] * 2
    assert {*values[4:]} == {"one", "many", "another"}
    assert most == 1


def test_a_hook_that_does_not_return_holds_others_for_five_seconds_once(chappe_world: World) -> None:
    goes_on = threading.Event()
    with Endpoint(on_connected=lambda event: chappe_world.wait_until(goes_on.is_set, 60)) as node, Endpoint() as guest:
        fd, statuses = node.publisher("a").fd(), node.statuses()
        node.peer("127.0.0.1", guest.listen())
        began = chappe_world.now
        assert select([fd], [], [], 0)[0] == []
        node.publish("a", 1)
        assert HOOKS_HOLD_S - 0.5 < chappe_world.now - began < HOOKS_HOLD_S + 0.5
        assert select([fd], [], [], 0)[0] == [fd]
        node.publish("a", 2)
        assert chappe_world.now - began < HOOKS_HOLD_S + 0.5
        told = [each for each in statuses.poll() if isinstance(each, HookFailed)]
        assert [each.hook for each in told] == ["on_connected"]
        assert "not returned after 5 s" in str(told[0])
        goes_on.set()
        chappe_world.advance(1)
        goes_on.clear()
        with Endpoint() as third:  # the next one is waited for again
            node.peer("127.0.0.1", third.listen())
            began = chappe_world.now
            node.publish("a", 3)
            assert chappe_world.now - began > HOOKS_HOLD_S - 0.5
            goes_on.set()


def test_what_a_hook_raises_is_told_and_the_endpoint_goes_on(chappe_world: World) -> None:
    called: list[str] = []

    def fail(name: str, event: Status) -> None:
        called.append(name)
        raise LookupError(name)

    with Endpoint(**hooks(fail)) as node, Endpoint() as guest:
        errors, statuses, port = node.subscribe("<$>/local/data/errors"), node.statuses(), guest.listen()
        node.peer("127.0.0.1", port)
        node.unpeer("127.0.0.1", port)
        chappe_world.wait_until(lambda: errors.available == 4)
        told = [each for each in statuses.poll() if isinstance(each, HookFailed)]
        assert [each.hook for each in told] == [f"on_{name}" for name in THERE_AND_BACK]
        assert (
            str(told[0]) == "the hook on_discovered failed: it raised LookupError('discovered'); the endpoint goes on"
        )
        assert node.publish("a", 1) == 0
    assert called == list(THERE_AND_BACK)


def test_a_hook_may_call_everything_and_wait_for_it(chappe_world: World) -> None:
    done: list[object] = []
    with Endpoint() as guest, Endpoint() as third:
        heard, port = third.subscribe("from/hook"), third.listen()

        def greet(event: PeerAdded) -> None:
            if event.id == guest.id:
                done.append(node.peer("127.0.0.1", port))
                done.append(node.await_peer(third.id))
                done.append(node.publish("from/hook", 1, to=third.id))
                done.append(len(node.topology().endpoints))
                done.append(node.ping(third.id) >= 0)
                node.unpeer("127.0.0.1", port)
                node.subscribe("x").close()
                node.close()
                done.append("closed")

        node = Endpoint(on_connected=greet)
        guest.peer("127.0.0.1", node.listen())
        chappe_world.wait_until(lambda: len(done) == 6)
        assert done == [third.id, True, 1, 3, True, "closed"]
        assert [each.value for each in heard.poll()] == [1]
        with pytest.raises(Closed):
            node.publish("a", 1)


def test_a_hook_that_waits_for_room_gets_it_while_others_wait_for_the_hook(chappe_world: World) -> None:
    def greet(event: PeerAdded) -> None:
        for number in range(200):
            node.publish("news", number)

    with Endpoint(on_connected=greet, peer_messages_max=4) as node, Endpoint() as guest:
        heard = guest.subscribe("news", on_full="block", messages_max=4)

        def lead() -> None:
            with suppress(Closed):
                node.subscribe("").get(60)

        chappe_world.start(lead)  # so that it is another thread that sees the room
        chappe_world.advance(0.1)
        node.peer("127.0.0.1", guest.listen())  # so that the peering stands here
        program = chappe_world.start(lambda: [node.publish("news", -1) for _ in range(3)])
        found: list[object] = []
        began = chappe_world.now
        while len(found) < 203:
            message = heard.get(timeout=10)
            assert message is not None
            found.append(message.value)
            time.sleep(0.01)
        program.result()
        assert chappe_world.now - began < HOOKS_HOLD_S  # others that wait pass on that there is room
    assert found == [*range(200), -1, -1, -1]


def test_every_connection_is_disconnected_or_removed_before_close_returns(chappe_world: World) -> None:
    called: list[str] = []
    with Endpoint(**hooks(lambda name, event: called.append(name))) as node, Endpoint() as guest:
        node.peer("127.0.0.1", guest.listen())
    assert called.count("connected") == 1
    assert called.count("removed") + called.count("disconnected") == 1


def test_hooks_of_an_event_loop_may_be_coroutines(chappe_world: World) -> None:
    called: list[object] = []

    async def program() -> list[object]:
        async def greet(event: PeerAdded) -> None:
            await asyncio.sleep(1)
            called.append(await node.publish("news", "first"))
            raise LookupError("a coroutine")

        async def publish() -> None:
            while True:
                await node.publish("news", "later")
                await node.publish_batch([("news", "later")] * 3)
                await asyncio.sleep(0.01)

        async with AsyncEndpoint(on_discovered=called.append, on_connected=greet) as node, AsyncEndpoint() as guest:
            heard, statuses = guest.subscribe("news"), node.statuses()
            task = asyncio.create_task(publish())
            await guest.peer("127.0.0.1", await node.listen())
            found: list[object] = []
            while len(found) < 5:
                message = await heard.get(timeout=10)
                assert message is not None
                found.append(message.value)
            task.cancel()
            while not isinstance(event := await statuses.get(timeout=10), HookFailed):
                assert event is not None
            called.append(event.reason)
        return found

    assert asyncio.run(program()) == ["first", *["later"] * 4]
    assert isinstance(called[0], EndpointDiscovered)
    assert called[1:] == [1, "it raised LookupError('a coroutine'); the endpoint goes on"]


def test_a_coroutine_may_close_its_endpoint(chappe_world: World) -> None:
    async def program() -> bool:
        async def leave(event: PeerAdded) -> None:
            await node.close()

        node = AsyncEndpoint(on_connected=leave)
        async with AsyncEndpoint() as guest:
            statuses = guest.statuses()
            await guest.peer("127.0.0.1", await node.listen(), retry_s=0.1)
            while not isinstance(event := await statuses.get(timeout=10), PeerLost):
                assert event is not None
            await node.close()
            assert event.id == node.id
            return event.left

    assert asyncio.run(program())


def test_what_is_no_function_is_refused() -> None:
    async def greet(event: PeerAdded) -> None:
        pass

    with pytest.raises(UsageError, match="on_removed is a function that takes a status, not 5"):
        Endpoint(on_removed=5)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="on_connected is a coroutine function, which an AsyncEndpoint can call"):
        Endpoint(on_connected=greet)
