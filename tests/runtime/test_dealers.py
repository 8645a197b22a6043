"""Connections to the query sockets of more stores than there may be connections."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import zmq
from tests.api.members import wait_until

from chappe.core import Ask, Effect
from chappe.log.node import LogNode
from chappe.log.queries import Answer, HeadsAnswer, HeadsRequest, encode_query
from chappe.runtime import dealers as module
from chappe.runtime.dealers import Dealers
from chappe.runtime.driver import Inlet, Ports

STORES = 7


class Asker:
    """A role that remembers which questions were answered."""

    address = "ME"

    def __init__(self) -> None:
        self.found: list[int] = []

    def handle_answer(
        self, ticket: int, answer: Answer, batches: Sequence[bytes | memoryview], now: float
    ) -> list[Effect]:
        self.found.append(ticket)
        return []


class Owner:
    """What a driver does for the connections of a node."""

    def __init__(self) -> None:
        self.inlets: dict[int, Inlet] = {}
        self.watched = 0
        self.asker = Asker()
        self.ports = Ports()
        node: Any = LogNode(self.asker)  # type: ignore[arg-type]
        driver: Any = self
        self.dealers = Dealers(driver, node)

    def suspect(self, inlet: Inlet) -> None:
        pass

    def watch(self, inlet: Inlet) -> None:
        self.inlets[id(inlet.sock)] = inlet
        self.watched = max(self.watched, len(self.inlets))

    def unwatch(self, inlet: Inlet) -> None:
        del self.inlets[id(inlet.sock)]
        inlet.sock.close()

    def receive(self) -> None:
        for inlet in list(self.inlets.values()):
            while not inlet.sock.closed and inlet.sock.poll(0):  # what is handled may close it
                self.dealers.hear(inlet.link, [*inlet.sock.recv_multipart()])

    def close(self) -> None:
        self.dealers.close()
        for inlet in self.inlets.values():
            inlet.sock.close()


@pytest.fixture
def stores() -> Iterator[list[zmq.Socket[bytes]]]:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    yield [context.socket(zmq.ROUTER) for _ in range(STORES)]
    context.destroy(0)


def test_every_store_is_heard_though_there_are_more_than_connections(
    stores: list[zmq.Socket[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "DEALERS_MAX", 3)
    owner = Owner()
    dealers, found = owner.dealers, owner.asker.found
    ports = [store.bind_to_random_port("tcp://127.0.0.1") for store in stores]

    def serve() -> None:
        for store in stores:
            while store.poll(0):
                client, request_id, _ = store.recv_multipart()
                store.send_multipart([client, request_id, encode_query(HeadsAnswer([], 0, False))])
        owner.receive()

    for turn in range(3):
        for index, port in enumerate(ports):
            dealers.ask(Ask(f"tcp://127.0.0.1:{port}", turn * STORES + index, HeadsRequest(b"", 0)))
        assert owner.watched <= 3

        def all_answered(turn: int = turn) -> bool:
            serve()
            return sorted(found) == list(range((turn + 1) * STORES))

        wait_until(all_answered)
    owner.close()


def test_who_never_answers_gives_way_in_the_end(
    stores: list[zmq.Socket[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "DEALERS_MAX", 1)
    owner = Owner()
    dealers = owner.dealers
    ports = [store.bind_to_random_port("tcp://127.0.0.1") for store in stores[:2]]
    for number, port in enumerate(ports):
        dealers.ask(Ask(f"tcp://127.0.0.1:{port}", number, HeadsRequest(b"", 0)))
    assert stores[0].poll(30_000)
    assert not stores[1].poll(0)

    monkeypatch.setattr(module, "BUSY_S", 0.0)
    dealers.ask(Ask(f"tcp://127.0.0.1:{ports[1]}", 2, HeadsRequest(b"", 0)))
    assert stores[1].poll(30_000)
    owner.close()


def test_requests_that_wait_for_a_connection_have_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "DEALERS_MAX", 1)
    monkeypatch.setattr(module, "QUEUED_MAX", 5)
    owner = Owner()
    dealers = owner.dealers
    for number in range(20):
        dealers.ask(Ask(f"tcp://127.0.0.1:{number + 1}", number, HeadsRequest(b"", 0)))
    assert len(dealers._queued) == 5
    owner.close()
