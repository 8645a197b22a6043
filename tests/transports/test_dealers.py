"""Connections to the query sockets of more stores than there may be connections."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import zmq
from tests.api.members import wait_until

from chappe.log.actions import Action, Ask
from chappe.log.queries import Answer, HeadsAnswer, HeadsRequest, encode_query
from chappe.transports import dealers as module
from chappe.transports.dealers import Dealers

STORES = 7


class Owner:
    """What a node does for its connections."""

    def __init__(self) -> None:
        self.drains: dict[int, Callable[[], bool]] = {}
        self.watched = 0

    def suspect(self, drain: Callable[[], bool]) -> None:
        pass

    def watch_socket(self, sock: zmq.Socket[bytes], drain: Callable[[], bool]) -> None:
        self.drains[id(sock)] = drain
        self.watched = max(self.watched, len(self.drains))

    def unwatch_socket(self, sock: zmq.Socket[bytes]) -> None:
        del self.drains[id(sock)]

    def receive_views(
        self, sock: zmq.Socket[bytes], handle: Callable[[list[bytes | memoryview]], Sequence[Action]]
    ) -> bool:
        while not sock.closed and sock.poll(0):  # what is handled may close it
            handle([*sock.recv_multipart()])
        return False


@pytest.fixture
def stores() -> Iterator[list[zmq.Socket[bytes]]]:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    yield [context.socket(zmq.ROUTER) for _ in range(STORES)]
    context.destroy(0)


def test_every_store_is_heard_though_there_are_more_than_connections(
    stores: list[zmq.Socket[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "DEALERS_MAX", 3)
    owner: Any = Owner()
    found: list[int] = []

    def answered(request_id: int, answer: Answer, batches: Sequence[bytes | memoryview]) -> list[Action]:
        found.append(request_id)
        return []

    dealers = Dealers(owner, answered)
    ports = [store.bind_to_random_port("tcp://127.0.0.1") for store in stores]

    def serve() -> None:
        for store in stores:
            while store.poll(0):
                client, request_id, _ = store.recv_multipart()
                store.send_multipart([client, request_id, encode_query(HeadsAnswer([], 0, False))])
        for drain in list(owner.drains.values()):
            drain()

    for turn in range(3):
        for index, port in enumerate(ports):
            dealers.ask(Ask(f"tcp://127.0.0.1:{port}", turn * STORES + index, HeadsRequest(b"", 0)))
        assert owner.watched <= 3

        def all_answered(turn: int = turn) -> bool:
            serve()
            return sorted(found) == list(range((turn + 1) * STORES))

        wait_until(all_answered)
    dealers.close()


def test_who_never_answers_gives_way_in_the_end(
    stores: list[zmq.Socket[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "DEALERS_MAX", 1)
    owner: Any = Owner()
    dealers = Dealers(owner, lambda *_: [])
    ports = [store.bind_to_random_port("tcp://127.0.0.1") for store in stores[:2]]
    for number, port in enumerate(ports):
        dealers.ask(Ask(f"tcp://127.0.0.1:{port}", number, HeadsRequest(b"", 0)))
    assert stores[0].poll(30_000)
    assert not stores[1].poll(0)

    monkeypatch.setattr(module, "BUSY_S", 0.0)
    dealers.ask(Ask(f"tcp://127.0.0.1:{ports[1]}", 2, HeadsRequest(b"", 0)))
    assert stores[1].poll(30_000)
    dealers.close()


def test_requests_that_wait_for_a_connection_have_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "DEALERS_MAX", 1)
    monkeypatch.setattr(module, "QUEUED_MAX", 5)
    owner: Any = Owner()
    dealers = Dealers(owner, lambda *_: [])
    for number in range(20):
        dealers.ask(Ask(f"tcp://127.0.0.1:{number + 1}", number, HeadsRequest(b"", 0)))
    assert len(dealers._queued) == 5
    dealers.close()
