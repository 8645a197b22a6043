"""What was refused is dialled again, also by who has no keys."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import TypeVar

import pytest
import zmq
from tests.ports import free_address
from tests.waiting import PATIENCE_S, until

from chappe import Consumer, Forwarder, Keys, MapServer, Producer, SharedMap, Store, Tower
from chappe.api import permissions
from chappe.errors import AddressInUse, WriteUnknown
from chappe.transports.dialled import Dialled
from chappe.transports.gate import gate_of
from chappe.transports.zeromq import open_socket


@pytest.fixture
def keys(tmp_path: Path) -> Keys:
    permissions.init(tmp_path / "keys", "hub", "server")
    return Keys(tmp_path / "keys" / "hub")


def told(member: Producer | Consumer | SharedMap[str]) -> None:
    until(lambda: any("one of us has keys" in str(each) for each in member.events()), "a refusal")


Made = TypeVar("Made")


def at_the_same_port(make: Callable[[], Made]) -> Made:
    """ZeroMQ frees it a little after the socket is closed."""
    made: list[Made] = []

    def free() -> bool:
        with suppress(AddressInUse):
            made.append(make())
        return bool(made)

    until(free, "a free port")
    return made[0]


def test_who_has_no_keys_comes_back_when_a_tower_has_none_any_more(keys: Keys, tmp_path: Path) -> None:
    with ExitStack() as stack:
        with closing(Tower("127.0.0.1:0", security=keys)) as tower:
            where = tower.address
            producer = stack.enter_context(closing(Producer("hello", tower=where, security="plain")))
            consumer = stack.enter_context(closing(Consumer("hello", tower=where, security="plain")))
            told(producer)
            told(consumer)
        stack.enter_context(closing(at_the_same_port(lambda: Tower(where, security="plain"))))
        stack.enter_context(closing(Store(tmp_path / "kept", tower=where, security="plain")))
        producer.send(b"well")
        producer.flush(PATIENCE_S)
        batch = consumer.poll(PATIENCE_S)
        assert batch is not None
        assert [each.value for each in batch] == [b"well"]


def test_who_has_no_keys_comes_back_when_a_forwarder_has_none_any_more(keys: Keys, tmp_path: Path) -> None:
    with ExitStack() as stack:
        with closing(Forwarder(tmp_path / "kept", listen="127.0.0.1:0", security=keys)) as forwarder:
            where = forwarder.address
            producer = stack.enter_context(closing(Producer("hello", forwarders=where, security="plain")))
            told(producer)
        again = at_the_same_port(lambda: Forwarder(tmp_path / "kept", listen=where, security="plain"))
        stack.enter_context(closing(again))
        producer.send(b"well")
        producer.flush(PATIENCE_S)


def test_who_has_no_keys_comes_back_when_a_map_server_has_none_any_more(keys: Keys) -> None:
    where = free_address(3)
    with ExitStack() as stack:
        with MapServer(where, security=keys):
            shared = stack.enter_context(SharedMap(where, values=str, security="plain", timeout=0))
            told(shared)
        stack.enter_context(at_the_same_port(lambda: MapServer(where, security="plain")))
        shared.wait_ready(PATIENCE_S)
        with suppress(WriteUnknown):  # its server was asked before it had said that it is chappe's
            shared.set("/a", "1", timeout=PATIENCE_S)
        shared.set("/a", "2", timeout=PATIENCE_S)


def test_of_several_that_are_dialled_only_the_one_that_refused_is_dialled_again(keys: Keys) -> None:
    with ExitStack() as stack:
        gate = gate_of(keys)
        assert gate is not None
        plain, guarded = open_socket(zmq.XPUB), open_socket(zmq.XPUB, gate)
        gate.listen(guarded)
        sub = open_socket(zmq.SUB)
        sub.setsockopt(zmq.SUBSCRIBE, b"")
        for each in (plain, guarded, sub):
            stack.callback(each.close)
        ports = [each.bind_to_random_port("tcp://127.0.0.1") for each in (plain, guarded)]
        dialled = Dialled(sub, None, lambda event: None)
        stack.callback(dialled.close)
        again: list[int] = []
        dialled.beside = again.append
        dialled.listen()
        for port in ports:
            dialled.connect(f"tcp://127.0.0.1:{port}")

        def looked() -> bool:
            dialled.look()
            return bool(again)

        until(looked, "that it is dialled again")
        assert set(again) == {1}
        assert plain.recv() == b"\1"
        assert not plain.poll(0), "the other one was left alone"
