"""Names with several addresses, of which the first is dead: loopback has more addresses than one on Linux."""

from __future__ import annotations

import socket
import sys
from pathlib import Path

import pytest
import zmq
from tests.ports import free_ports
from tests.waiting import PATIENCE_S, until

from chappe import Consumer, MapServer, Producer, SharedMap, Store, Tower, read_topic
from chappe.system import machine
from chappe.transports import resolving

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="127.0.0.2 is an address on Linux alone")
NAME = "several.invalid"  # which the system's resolver does not know


@pytest.fixture(autouse=True)
def addresses(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the name stands for."""
    found = ["127.0.0.2", "127.0.0.1"]

    def look_up(_: object, host: str, port: int) -> list[machine.Target]:
        assert host == NAME
        return [(socket.AF_INET6 if ":" in each else socket.AF_INET, (each, port)) for each in found]

    monkeypatch.setattr(machine.Machine, "look_up", look_up)
    return found


def test_the_log_finds_its_tower_at_the_second_address(tmp_path: Path) -> None:
    with Tower("127.0.0.1:0") as tower:
        there = f"{NAME}:{tower.address.partition(':')[2]}"
        with Store(tmp_path / "kept", tower=there), Producer("t", tower=there) as producer:
            producer.send(b"x")
            producer.flush(PATIENCE_S)
            with Consumer("t", tower=there) as consumer:
                assert [each.value for each in consumer.to_end()] == [b"x"]
            assert read_topic("t", tower=there)["value"].to_pylist() == [b"x"]


def test_a_tower_that_comes_later_is_found_at_any_address() -> None:
    port = free_ports(2)
    with Producer("t", tower=f"{NAME}:{port}") as producer, Tower(f"127.0.0.1:{port}"):
        until(lambda: producer.tower)


def test_a_store_is_asked_at_the_second_address(tower: str, store: Store) -> None:
    with Producer("t", tower=tower) as producer:
        producer.send(b"x")
        producer.flush(PATIENCE_S)
    there = f"tcp://{NAME}:{store.endpoint.rpartition(':')[2]}"
    assert read_topic("t", stores=there)["value"].to_pylist() == [b"x"]


def test_a_map_is_followed_and_written_at_the_second_address() -> None:
    with MapServer("127.0.0.1:0") as server:
        port = server.address.rpartition(":")[2]
        with SharedMap(f"{NAME}:{port}") as shared:
            shared["k"] = b"v"
            assert shared["k"] == b"v"


def test_a_name_with_an_address_of_version_6_alone_is_dialled(addresses: list[str]) -> None:
    addresses[:] = ["::1"]
    with socket.socket(socket.AF_INET6) as listening, zmq.Context() as context:
        try:
            listening.bind(("::1", 0))
        except OSError:
            pytest.skip("this machine has no IPv6")
        listening.listen()
        with context.socket(zmq.DEALER) as dealer:
            port = listening.getsockname()[1]
            assert resolving.connect(dealer, f"tcp://{NAME}:{port}") == [f"tcp://[::1]:{port}"]


def test_where_nobody_answers_only_sockets_with_many_peers_dial_all() -> None:
    port = free_ports()
    with zmq.Context() as context, context.socket(zmq.SUB) as sub, context.socket(zmq.DEALER) as dealer:
        endpoint = f"tcp://{NAME}:{port}"
        assert resolving.connect(sub, endpoint) == [f"tcp://127.0.0.2:{port}", f"tcp://127.0.0.1:{port}"]
        assert resolving.connect(dealer, endpoint) == [endpoint]
        assert resolving.connect(dealer, f"tcp://127.0.0.1:{port}") == [f"tcp://127.0.0.1:{port}"]
