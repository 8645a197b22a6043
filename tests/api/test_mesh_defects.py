"""Defects of ours that a peer brings to light, made on purpose: who pays for them, and who hears of them."""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Callable
from typing import Any

import pytest
from tests.endpoints import PATIENCE_S, Make, until
from tests.sources import needs_sources

from chappe import Endpoint, __version__
from chappe.api.mesh.aio import AsyncEndpoint
from chappe.errors import ChappeError, MemberStopped
from chappe.kv.master import KvMaster
from chappe.mesh.events import DefectContained, EndpointHalted, PeerAdded, PeerLost
from chappe.mesh.forwarding.routing import Router
from chappe.mesh.links.handshake import PeerHandshake

pytestmark = pytest.mark.provokes_defects
assert __version__

POISON = "/poison"


def fail_on_poison(router: Router, original: Callable[..., Any]) -> Callable[..., Any]:
    def find_route(topic: bytes) -> Any:
        if topic.startswith(POISON.encode()):
            raise RuntimeError("a defect")
        return original(topic)

    return find_route


@pytest.fixture
def hub(make: Make, monkeypatch: pytest.MonkeyPatch) -> Endpoint:
    """An endpoint that cannot cope with a topic."""
    made = make()
    router = made.core.router
    monkeypatch.setattr(router.routes, "find", fail_on_poison(router, router.routes.find))
    return made


def wait_for(statuses: Any, kind: type) -> Any:
    """The next status of a kind."""
    while True:
        event = statuses.get(PATIENCE_S)
        assert event is not None, f"no {kind.__name__}"
        if isinstance(event, kind):
            return event


def halt(endpoint: Endpoint) -> None:
    """Have the endpoint meet a defect that no connection brought."""
    needs_sources()

    def handle_timeout(now: float) -> list[Any]:
        raise RuntimeError("a defect")

    with endpoint.node.lock:
        endpoint.core.handle_timeout = handle_timeout  # type: ignore[method-assign]
        endpoint.core.next_timeout = lambda: -1.0  # type: ignore[method-assign]
        endpoint.node.turns.wake()


# -- what comes over a connection -------------------------------------------------------------------


def test_a_defect_costs_the_connection_that_brought_it_and_nobody_else(hub: Endpoint, make: Make) -> None:
    statuses = hub.statuses()
    got = hub.subscribe("/")
    port = hub.listen()
    friend, rogue = make(), make()
    friend.peer("127.0.0.1", port)
    rogue.peer("127.0.0.1", port, retry_s=0)
    lost = rogue.statuses()

    rogue.publish(f"{POISON}/1", 1)

    found = wait_for(statuses, DefectContained)
    assert isinstance(found.error, RuntimeError)
    assert POISON.encode().hex() in str(found)
    assert wait_for(statuses, PeerLost).id == rogue.id
    wait_for(lost, PeerLost)
    friend.publish("/good", 2)
    message = got.get(PATIENCE_S)
    assert message is not None
    assert message.data == 2
    assert [each.id for each in hub.peers()] == [friend.id]


def test_a_defect_in_a_handshake_costs_that_connection(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    hub = make()
    statuses = hub.statuses()
    handle = PeerHandshake.take

    def take(self: PeerHandshake, body: bytes) -> Any:
        if self._own == hub.core.own_id:
            raise RuntimeError("a defect")
        return handle(self, body)

    monkeypatch.setattr(PeerHandshake, "take", take)
    port = hub.listen()
    with pytest.raises(ChappeError):
        make().peer("127.0.0.1", port, retry_s=0)
    wait_for(statuses, DefectContained)
    monkeypatch.undo()
    make().peer("127.0.0.1", port)
    wait_for(statuses, PeerAdded)


def test_a_defect_of_a_store_costs_the_connection_that_brought_it(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    def handle_message(self: KvMaster, topic: bytes, messages: Any, now: float) -> Any:
        raise RuntimeError("a defect")

    monkeypatch.setattr(KvMaster, "handle_message", handle_message)
    hub = make()
    statuses = hub.statuses()
    store = hub.attach_master("s")
    got = hub.subscribe("/")
    port = hub.listen()
    rogue = make()
    rogue.peer("127.0.0.1", port, retry_s=0)
    rogue.attach_clone("s", timeout=0)

    wait_for(statuses, DefectContained)
    assert wait_for(statuses, PeerLost).id == rogue.id
    store.put("key", 1)
    assert store.get("key") == 1
    friend = make()
    friend.peer("127.0.0.1", port)
    friend.publish("/good", 2)
    assert got.get(PATIENCE_S) is not None


# -- what nobody brought ----------------------------------------------------------------------------


def test_a_halted_endpoint_refuses_every_call_and_says_so(make: Make) -> None:
    endpoint, peer = make(), make()
    peer_statuses = peer.statuses()
    peer.peer("127.0.0.1", endpoint.listen(), retry_s=0)
    statuses, subscriber, store = endpoint.statuses(), endpoint.subscribe("/"), endpoint.attach_master("s")
    store.put("key", 1)
    watch, proxy, publisher = store.watch(), store.proxy(), endpoint.publisher("/a")
    outcomes: list[BaseException] = []

    def wait() -> None:
        try:
            subscriber.get(None)
        except ChappeError as error:
            outcomes.append(error)

    waiting = [threading.Thread(target=wait) for _ in range(2)]
    for each in waiting:
        each.start()
    halt(endpoint)

    assert isinstance(wait_for(statuses, EndpointHalted), EndpointHalted)
    for each in waiting:
        each.join(PATIENCE_S)
    assert [type(each) for each in outcomes] == [MemberStopped, MemberStopped]
    assert wait_for(peer_statuses, PeerLost).id == endpoint.id  # at once, not when silence is noticed
    calls: list[Callable[[], object]] = [
        lambda: endpoint.publish("/a", 1),
        lambda: endpoint.publish_batch([("/a", 1)]),
        lambda: publisher.publish(1),
        lambda: endpoint.subscribe("/b"),
        lambda: endpoint.peer("127.0.0.1", 1),
        lambda: endpoint.peer_nosync("127.0.0.1", 1),
        lambda: endpoint.unpeer("127.0.0.1", 1),
        lambda: endpoint.listen(),
        lambda: endpoint.peers(),
        lambda: endpoint.await_peer(peer.id),
        lambda: endpoint.ping(peer.id),
        lambda: endpoint.forward("/c"),
        lambda: endpoint.statuses(),
        lambda: endpoint.attach_master("t"),
        lambda: endpoint.attach_clone("u"),
        lambda: subscriber.get(0),
        lambda: subscriber.add("/d"),
        lambda: store.put("key", 2),
        lambda: store.put("key", 2, wait=False),
        lambda: store.put_unique("other", 2),
        lambda: store.put_many([("key", 3)]),
        lambda: store.get("key"),
        lambda: store.exists("key"),
        lambda: store.keys(),
        lambda: store.snapshot(),
        lambda: store.changes_since(0),
        lambda: store.await_idle(1),
        lambda: store.watch(),
        lambda: store.proxy(),
        lambda: watch.get(0),
        lambda: proxy.get("key"),
    ]
    for call in calls:
        with pytest.raises(MemberStopped, match="a defect"):
            call()
    assert not store.ready
    endpoint.close()


def test_a_call_that_meets_the_defect_itself_halts_the_endpoint_too(make: Make) -> None:
    """The thread that waits is the one that reads what comes."""
    endpoint = make()
    subscriber = endpoint.subscribe("/")
    endpoint.listen()
    endpoint.node.turns.look = lambda: (False, math.inf)  # type: ignore[method-assign]  # the loop leaves it to this one
    halt(endpoint)
    with pytest.raises(MemberStopped):
        subscriber.get(PATIENCE_S)


def test_coroutines_that_wait_are_woken(make: Make) -> None:
    async def run() -> None:
        async with AsyncEndpoint() as endpoint:
            subscriber = endpoint.subscribe("/")
            store = await endpoint.attach_master("s")
            task = asyncio.create_task(subscriber.get(None))
            await asyncio.sleep(0)
            halt(endpoint.endpoint)
            with pytest.raises(MemberStopped):
                await asyncio.wait_for(task, PATIENCE_S)
            with pytest.raises(MemberStopped):
                await store.put("key", 1)
            with pytest.raises(MemberStopped):
                await endpoint.publish("/a", 1)

    asyncio.run(run())


def test_threads_that_wait_for_an_answer_are_woken(make: Make) -> None:
    endpoint = make()
    outcomes: list[BaseException] = []

    def ask() -> None:
        try:
            endpoint.await_peer("00000000-0000-4000-8000-000000000001", None)
        except ChappeError as error:
            outcomes.append(error)

    thread = threading.Thread(target=ask)
    thread.start()
    until(lambda: bool(endpoint.asked))
    halt(endpoint)
    thread.join(PATIENCE_S)
    assert [type(each) for each in outcomes] == [MemberStopped]
