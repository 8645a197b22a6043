"""Members on real sockets, and strangers who send them what they should not."""

from __future__ import annotations

import errno
import math
import socket
import struct
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest
import zmq
from tests.api.members import PATIENCE_S, read, values, wait_until
from tests.ports import free_ports
from tests.runtime.rogues import garbage, junk, rogue, throw

from chappe.api.log.consumer import Consumer
from chappe.api.log.producer import Producer
from chappe.api.log.store import Store
from chappe.api.log.tower import Tower
from chappe.core import Effect
from chappe.defaults import MESSAGE_BYTES_MAX, SUBSCRIPTION_BYTES_MAX
from chappe.errors import AddressInUse, UsageError
from chappe.log.batch import encode_batch
from chappe.log.events import MachineRefused
from chappe.log.messages import Fetch, StoreInfo, encode
from chappe.runtime import driver as node_module
from chappe.runtime.driver import Inlet
from chappe.runtime.log_ports import LogPorts
from chappe.runtime.meeting import Members
from chappe.transports.addresses import TowerAddress, bind, reachable_host

MEMBERS = ("LogStore", "ProducingMember", "ConsumingMember")


@dataclass
class World:
    """A tower, a store, a producer and a consumer that know each other."""

    tower: Tower
    store: Store
    producer: Producer
    consumer: Consumer
    sent: int = 0

    @property
    def nodes(self) -> list[LogPorts]:
        return [self.store._node, self.producer._node.node, self.consumer._node.node]

    @property
    def ports(self) -> dict[str, int]:
        address = TowerAddress.parse(self.tower.address)
        return {
            "tower sub": address.sub_port,
            "tower pub": address.pub_port,
            "queries": int(self.store.endpoint.rpartition(":")[2]),
            **{type(node.core.role).__name__: int(node.endpoint.rpartition(":")[2]) for node in self.nodes},
        }

    def works(self) -> None:
        """Records still go all the way."""
        wanted = [b"%d" % n for n in range(self.sent, self.sent + 5)]
        self.producer.send_many(wanted)
        self.producer.flush(PATIENCE_S)
        assert values(read(self.consumer, 5)) == wanted
        self.sent += 5
        assert not [node.driver.turns.halted for node in self.nodes if node.driver.turns.halted]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with (
        Tower("127.0.0.1:0") as tower,
        Store(tmp_path, tower=tower.address) as store,
        Producer("hello", tower=tower.address) as producer,
        Consumer("hello", tower=tower.address, reset="earliest") as consumer,
    ):
        made = World(tower, store, producer, consumer)
        made.works()
        yield made
        made.works()


def announce(world: World, publisher: zmq.Socket[bytes]) -> None:
    """Have every member listen to a socket."""
    port = bind(publisher, "127.0.0.1")
    beacons = publisher.context.socket(zmq.XPUB)
    beacons.setsockopt(zmq.LINGER, 2_000)
    beacons.connect(f"tcp://127.0.0.1:{world.ports['tower sub']}")
    beacons.recv()  # the tower listens
    beacons.send_multipart([b"B", b"ROGUE", b"127.0.0.1", str(port).encode()])


@pytest.mark.parametrize(
    "where", ["tower sub", "tower pub", "queries", "LogStore", "ProducingMember", "ConsumingMember"]
)
def test_bytes_that_are_no_zeromq_do_no_harm(world: World, where: str) -> None:
    for raw in garbage(seed=1):
        throw(world.ports[where], raw)


def test_who_waits_gets_what_comes_singly_before_more_is_looked_for_and_many_at_once(world: World) -> None:
    node = world.consumer._node.node
    driver = node.driver
    queue: list[list[bytes]] = []
    handled: list[bytes] = []

    def take() -> list[bytes]:
        if not queue:
            raise zmq.Again
        return queue.pop(0)

    def handle(link: object, frames: list[bytes]) -> list[Effect]:
        handled.append(frames[0])
        return []

    def read(*values: bytes) -> tuple[bool, list[bytes]]:
        queue.extend([each] for each in values)
        handled.clear()
        more = driver.drain(inlet)
        return more, list(handled)

    with driver.lock, pytest.MonkeyPatch.context() as patch:
        inlet = Inlet(node._pub.socket, Members(), take, gathers=True)
        patch.setattr(node, "hear", handle)
        patch.setattr(driver.turns, "_leading", lambda: bool(handled))
        assert read() == (False, [])  # the last messages came singly
        assert read(b"1") == (True, [b"1"])
        assert read() == (False, [])
        assert read(b"2", b"3", b"4") == (True, [b"2"])
        assert read() == (False, [b"3", b"4"])  # they do not come singly
        assert read(b"5", b"6") == (False, [b"5", b"6"])
        assert read(b"7") == (False, [b"7"])
        patch.setattr(driver.turns, "_leading", lambda: False)
        assert read(b"8", b"9") == (False, [b"8", b"9"])  # it is not what somebody waits for
        timeouts: list[float] = []
        patch.setattr(node, "next_timeout", lambda: timeouts.append(1.0) or math.inf)  # type: ignore[func-returns-value]
        patch.setattr(driver.turns, "_leading", lambda: bool(handled))
        assert read() == (False, [])
        assert read(b"10") == (True, [b"10"])
        patch.setattr(driver, "_suspects", {})
        assert driver._handle([])  # there is more to do
        assert not timeouts
        driver._handle([])
        assert timeouts


def test_junk_in_publications_is_counted_and_dropped(world: World) -> None:
    with rogue(zmq.XPUB) as publisher:
        publisher.setsockopt(zmq.XPUB_VERBOSE, 1)
        announce(world, publisher)
        seen: set[bytes] = set()
        while not {b"\1Mhello", b"\1M", b"\1K" + world.producer.partition.encode()} <= seen:
            seen.add(publisher.recv())
        before = [node.driver.malformed for node in world.nodes]
        for frames in junk(seed=2):
            publisher.send_multipart(frames)
            for prefix in (b"K", b"F", b"A"):  # what the producer listens to
                publisher.send_multipart([prefix + world.producer.partition.encode() + frames[0], *frames[1:]])
        wait_until(lambda: all(node.driver.malformed > count for node, count in zip(world.nodes, before, strict=True)))


def test_oversized_messages_close_the_connection_not_the_member(world: World) -> None:
    with rogue(zmq.PUB) as publisher, rogue(zmq.DEALER) as dealer:
        announce(world, publisher)
        dealer.connect(world.store.endpoint)
        dealer.send_multipart([b"12345678", bytes(MESSAGE_BYTES_MAX + 1)])
        for _ in range(3):
            publisher.send_multipart([b"Mhello\0\1" + bytes(MESSAGE_BYTES_MAX)])


@pytest.mark.parametrize("where", MEMBERS)
def test_junk_subscriptions_and_messages_to_publishers_do_no_harm(world: World, where: str) -> None:
    (node,) = [node for node in world.nodes if type(node.core.role).__name__ == where]
    before = node.driver.malformed
    with rogue(zmq.XSUB) as subscriber, rogue(zmq.XSUB) as lengthy:
        for each in (subscriber, lengthy):
            each.connect(node.endpoint)
        for prefix in (b"", b"L", b"L\0", b"L" + b"x" * 300, b"W" * 300, b"W\xff", b"S\0", b"R", b"\0"):
            subscriber.send(b"\1" + prefix)
        lengthy.send(b"\1" + b"M" * 1000)  # this ends its connection, again and again
        for frames in junk(seed=3):
            lengthy.send_multipart(frames)
            if max(map(len, frames)) <= SUBSCRIPTION_BYTES_MAX:
                subscriber.send_multipart(frames)
        subscriber.send(b"neither one nor the other")
        wait_until(lambda: node.driver.malformed > before)


def test_junk_queries_are_counted_and_good_ones_still_answered(world: World) -> None:
    node = world.store._node
    before = node.driver.malformed
    with rogue(zmq.DEALER) as dealer:
        dealer.connect(world.store.endpoint)
        for frames in junk(seed=4):
            dealer.send_multipart(frames)
        for raw in (b"", b"\xc1", b"\x91" * 10_000, msgspec.msgpack.encode(["read", b"t" * 300, b"p", 0])):
            dealer.send_multipart([b"12345678", raw])
        dealer.send_multipart([b"12345678", msgspec.msgpack.encode(["read", b"hello", b"nobody", -1, -1])])
        assert dealer.recv_multipart()[0] == b"12345678"
    assert node.driver.malformed > before


def test_a_store_that_answers_nonsense_does_no_harm(world: World) -> None:
    """It claims partitions with impossible numbers and names, and answers reads with what are no batches."""
    stop = threading.Event()
    evil = encode_batch(3, [b"evil"], 1)
    nonsense: list[list[bytes]] = [
        [msgspec.msgpack.encode(["heads", [[b"hello", b"P", -5, 10, 0, 0, 0, 1]], 1, False])],
        [msgspec.msgpack.encode(["heads", [[b"hello" * 99, b"P", 0, 10, 0, 0, 0, 1]], 1, False])],
        [msgspec.msgpack.encode(["heads", [[b"hello", b"P\0", 0, 10, 0, 0, 0, 1]], 1, False])],
        [msgspec.msgpack.encode(["heads", [[b"hello", b"EVIL", 0, 2**63 - 1, 0, 0, 0, 1]], 1, False])],
        [b""],
        [b"\xff"],
        [msgspec.msgpack.encode(["error", "no"])],
        [msgspec.msgpack.encode(["read", b"hello", b"EVIL", 0, 9, True]), b"no batch"],
        [msgspec.msgpack.encode(["read", b"hello", b"EVIL", 0, 9, True]), evil, evil[:-1]],
        [msgspec.msgpack.encode(["seek", b"hello", b"EVIL", 7])],
        [msgspec.msgpack.encode(["read", b"hello", b"EVIL", 9, 0, True, 2**62])],
    ]

    answered = 0

    def answer(router: zmq.Socket[bytes]) -> None:
        nonlocal answered
        while not stop.is_set():
            if router.poll(50):
                client, request_id, *_ = router.recv_multipart()
                router.send_multipart([client, request_id, *nonsense[answered % len(nonsense)]])
                router.send_multipart([client, struct.pack(">Q", 2**63), b"\xff"])
                router.send_multipart([client, b"short"])
                answered += 1

    with rogue(zmq.ROUTER) as router, rogue(zmq.XPUB) as publisher:
        port = bind(router, "127.0.0.1")
        publisher.setsockopt(zmq.XPUB_VERBOSE, 1)
        announce(world, publisher)
        listening = 0
        while listening < 2:  # the store and the consumer
            listening += publisher.recv() == b"\1I"
        for endpoint in (f"tcp://127.0.0.1:{port}", "tcp://\udcff:1", "ipc:///tmp/x"):
            for frame in encode(StoreInfo("", "ROGUE", "rogue", endpoint)):
                publisher.send(frame)
        thread = threading.Thread(target=answer, args=(router,))
        thread.start()
        try:
            wait_until(lambda: world.consumer._node.node.driver.malformed >= 3)
            wait_until(lambda: world.store._node.driver.malformed >= 3)
            world.works()
        finally:
            stop.set()
            thread.join()


def test_junk_beacons_are_counted_and_not_passed_on(world: World) -> None:
    with rogue(zmq.XPUB) as beacons, rogue(zmq.XSUB) as listener:
        listener.connect(f"tcp://127.0.0.1:{world.ports['tower pub']}")
        for raw in (b"\1", b"\1" + b"x" * 1000, b"\1W", b"\0B", b"no subscription", b""):
            listener.send(raw)
        beacons.connect(f"tcp://127.0.0.1:{world.ports['tower sub']}")
        beacons.recv()
        known = world.tower.nodes()
        for frames in (
            *([b"B", *frames] for frames in junk(seed=5)),
            [b"B", b"A", b"h", b"0"],
            [b"B", b"A", b"h\xff", b"1"],
            [b"G", b"A", b"", b"x"],
        ):
            beacons.send_multipart(frames)
        wait_until(lambda: world.tower.malformed > 10)
        assert world.tower.nodes() == known


def test_a_beacon_to_nowhere_does_not_hold_up_the_others(world: World) -> None:
    with rogue(zmq.XPUB) as beacons:
        beacons.connect(f"tcp://127.0.0.1:{world.ports['tower sub']}")
        beacons.recv()
        for number in range(50):
            beacons.send_multipart([b"B", b"NOWHERE%d" % number, b"127.0.0.1", b"%d" % (number + 1)])
        wait_until(lambda: world.producer.connected >= 52)
        world.works()


def test_a_store_that_ends_and_comes_back_is_found_again(world: World, tmp_path: Path) -> None:
    world.store.close()
    world.producer.send_many([b"5", b"6"])
    world.store = Store(tmp_path, tower=world.tower.address)
    try:
        world.producer.flush(PATIENCE_S)
        assert values(read(world.consumer, 2)) == [b"5", b"6"]
    finally:
        world.sent = 7
        world.works()
        world.producer.close()
        world.store.close()
        world.works = lambda: None  # type: ignore[method-assign]


# -- addresses --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("127.0.0.1", "127.0.0.1:5556:5557"),
        ("host.example:7000", "host.example:7000:7001"),
        ("tcp://host:1:9", "host:1:9"),
        (":7000", "127.0.0.1:7000:7001"),
        ("127.0.0.1:0", "127.0.0.1:0:0"),
    ],
)
def test_a_tower_address_is_a_host_and_one_or_two_ports(text: str, expected: str) -> None:
    assert str(TowerAddress.parse(text)) == expected
    assert TowerAddress.parse(expected) == TowerAddress.parse(text)


@pytest.mark.parametrize("text", ["", " "])
def test_an_empty_tower_address_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="the address of a tower is empty"):
        TowerAddress.parse(text)


@pytest.mark.parametrize("text", ["host:port", "h:1:2:3", "h:99999", "h:-1", "a b:1", "a/b:1"])
def test_what_is_no_tower_address_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is not the address of a tower"):
        TowerAddress.parse(text)


# -- what the machine refuses ----------------------------------------------------------------------------


def test_a_store_without_a_descriptor_left_answers_later_and_goes_on(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An original asks with FETCH just when nothing can be opened: it is not answered, and the store lives on."""

    def none_left(*_: object) -> object:
        raise OSError(errno.EMFILE, "Too many open files")

    with rogue(zmq.XPUB) as publisher, monkeypatch.context() as broken:
        broken.setattr(world.store._storage, "read", none_left)
        broken.setattr(node_module, "COMPLAIN_S", 0.0)
        announce(world, publisher)
        subscribed: set[bytes] = set()
        while b"\1F" not in subscribed:
            subscribed.add(publisher.recv())
        with world.store._node.driver.lock:
            world.store._node.store.handle_subscription(b"DROGUE", True, 0.0)
        publisher.send_multipart(encode(Fetch(world.producer.partition, "ROGUE", "hello", 0, 5)))
        wait_until(lambda: any(isinstance(each, MachineRefused) for each in list(world.store._events)))
    assert world.store.status().topics == 1


def test_several_towers_are_separated_by_commas() -> None:
    assert [str(each) for each in TowerAddress.parse_many("a:1,b:2")] == ["a:1:2", "b:2:3"]


def test_where_we_listened_before_it_is_tried_until_the_old_socket_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    port = free_ports()
    with rogue(zmq.PUB) as one:
        bind(one, "127.0.0.1", port)
    slow = socket.socket()  # as if ZeroMQ had not closed it yet
    wait_until(lambda: _bound(slow, port))
    monkeypatch.setattr("chappe.transports.addresses.time.sleep", lambda seconds: slow.close())
    with rogue(zmq.PUB) as two:
        assert bind(two, "127.0.0.1", port) == port


def _bound(sock: socket.socket, port: int) -> bool:
    try:
        sock.bind(("127.0.0.1", port))
    except OSError:
        return False
    return True


def test_a_port_in_use_and_a_host_that_is_not_ours_are_clear_errors() -> None:
    with rogue(zmq.PUB) as one, rogue(zmq.PUB) as two:
        port = bind(one, "127.0.0.1")
        with pytest.raises(AddressInUse, match=f"port {port} on 127.0.0.1 is in use"):
            bind(two, "127.0.0.1", port)
        with pytest.raises(UsageError, match="cannot listen on"):
            bind(two, "192.0.2.1")
        with pytest.raises(UsageError, match="cannot listen on"):
            bind(two, "not a host")


def test_a_host_is_reached_as_it_is_and_all_interfaces_by_one_of_them() -> None:
    assert reachable_host("127.0.0.1") == "127.0.0.1"
    assert reachable_host("*").count(".") == 3
