"""Rules of the permissions, asked in the log: who may not is told so, and is counted where he was refused."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from functools import partial
from pathlib import Path

import pytest
import zmq
from tests.api.rogues import rogue, rules
from tests.waiting import PATIENCE_S, until

from chappe import Consumer, Forwarder, Keys, Producer, Store, Tower
from chappe.api import permissions
from chappe.api.log.discovery import discover
from chappe.errors import NotPermitted, TimedOut
from chappe.log.events import IdentityClash
from chappe.transports.addresses import TowerAddress
from chappe.transports.gate import gate_of
from chappe.transports.queries import StoreClient
from chappe.transports.zeromq import new_socket

SERVER = (["store", "introduce"], "hub", ["*"])
SENSOR = (["produce"], "sensor", ["a/*", "one"])
READER = (["consume"], "reader", ["a/*", "one"])


@pytest.fixture
def home(tmp_path: Path) -> Path:
    made = tmp_path / "keys"
    permissions.init(made, "hub", "server")
    permissions.add(made, "sensor", "producer")
    permissions.add(made, "reader", "consumer")
    permissions.add(made, "other", "consumer")
    rules(made, SERVER, SENSOR, READER)
    return made


class Net:
    """A tower and a store."""

    def __init__(self, home: Path, stack: ExitStack) -> None:
        self.home = home
        keys = Keys(home / "hub")
        self.tower = stack.enter_context(closing(Tower("127.0.0.1:0", security=keys))).address
        self.store = stack.enter_context(closing(Store(home.parent / "data", tower=self.tower, security=keys)))
        self._stack = stack

    def producer(self, keys: Keys, topic: str | None = None) -> Producer:
        made = Producer(topic, tower=self.tower, security=keys)
        self._stack.callback(leave, made)
        return made

    def consumer(self, keys: Keys, *topics: str) -> Consumer:
        return self._stack.enter_context(closing(Consumer(*topics, tower=self.tower, security=keys)))

    def client(self, keys: Keys) -> StoreClient:
        return self._stack.enter_context(closing(StoreClient(self.store.endpoint, security=keys)))

    def refusals(self, who: str) -> int:
        return self.store.status().refusals.get(who, 0)


def leave(producer: Producer) -> None:
    try:
        producer.close(0.1)
    except (TimedOut, NotPermitted):
        pass


@pytest.fixture
def net(home: Path) -> Iterator[Net]:
    with ExitStack() as stack:
        yield Net(home, stack)


def announce(tower: str, keys: Keys, forged: list[tuple[bytes, str, str, str]]) -> None:
    """Send a tower beacons: kind, address, host and port with name."""
    where = TowerAddress.parse(tower)
    gate = gate_of(keys)
    assert gate is not None
    with closing(new_socket(zmq.XPUB, gate)) as sock:
        sock.setsockopt(zmq.SNDHWM, 0)
        sock.setsockopt(zmq.LINGER, int(PATIENCE_S * 1000))
        sock.connect(gate.dial(sock, f"tcp://{where.host}:{where.sub_port}#hub"))
        until(lambda: sock.poll(100) and sock.recv().startswith(b"\1B"), "a tower that listens")
        for each in forged:
            sock.send_multipart([each[0], *(part.encode() for part in each[1:])])


def test_forged_beacons_of_an_identity_with_another_right_reach_nobody(net: Net, home: Path) -> None:
    rules(home, SERVER, SENSOR, READER, (["subscribe"], "other", ["*"]))
    hub, sensor, other = (Keys(home / each) for each in ("hub", "sensor", "other"))
    consumer = net.consumer(Keys(home / "reader"), "a/*")
    journal = home.parent / "journal"
    with Producer("a/x", tower=net.tower, security=sensor, identity="p", directory=journal) as producer:
        producer.send(b"before")
        producer.flush(60)
        discovery = producer._node.node.discovery
        until(lambda: discovery.peers == 2, "a producer that has met a store and a consumer")
        places = {where.removeprefix("tcp://127.0.0.1:"): address for address, where in discovery.met}
        goodbyes = [(b"G", address, "127.0.0.1", port) for port, address in places.items()]
        claims = [(b"B", f"identity-{producer.partition}", "127.0.0.1", f"9#{name}") for name in ("sensor", "other")]
        invented = [(b"B", f"X{n}", "127.0.0.1", f"{n}#{name}") for n in range(1, 1000) for name in ("hub", "other")]
        gate = gate_of(hub)
        assert gate is not None

        for expected in (2000, 4000, 6000):
            announce(net.tower, other, [*claims, *invented, *goodbyes])
            until(partial(lambda least: gate.refusals.count >= least, expected), "a tower that refuses")
        producer.send(b"after")
        producer.flush(60)

        records = iter(consumer)
        assert [next(records).value for _ in range(2)] == [b"before", b"after"]
        assert discovery.peers == 2
        assert not [each for each in producer.events() if isinstance(each, IdentityClash)]


def test_members_do_what_they_may_and_are_told_what_they_may_not(net: Net, home: Path) -> None:
    sensor, reader = Keys(home / "sensor"), Keys(home / "reader")
    producer = net.producer(sensor, "a/x")
    with pytest.raises(
        NotPermitted, match=r"sensor may not produce 'b': no rule allows it; whoever signs .*permissions"
    ):
        producer.send(b"1", topic="b")
    with pytest.raises(NotPermitted, match="sensor may not consume 'a/x'"):
        net.consumer(sensor, "a/x")
    with pytest.raises(NotPermitted, match="reader may not produce 'a/x'"):
        net.producer(reader, "a/x")
    with pytest.raises(NotPermitted, match="reader may not consume all topics: no rule allows all of it"):
        net.consumer(reader, "*")
    with pytest.raises(NotPermitted, match="reader may not introduce"):
        Tower("127.0.0.1:0", security=reader)
    with pytest.raises(NotPermitted, match="reader may not store"):
        Store(home.parent / "other", tower=net.tower, security=reader)

    consumer = net.consumer(reader, "a/*", "one")
    producer.send(b"1")
    producer.send(b"2", topic="one")
    producer.flush(60)
    found = {consumer.poll(60).topic for _ in range(2)}  # type: ignore[union-attr]

    assert found == {"a/x", "one"}
    assert net.store.status().refusals == {}


def test_a_store_takes_no_records_of_who_may_not_produce_them(net: Net, home: Path) -> None:
    producer = net.producer(rogue(home, "sensor"), "b")
    producer.send(b"1")

    until(lambda: net.refusals("sensor"), "a refusal")
    with pytest.raises(TimedOut):
        producer.flush(0.5)

    assert net.store.status().topics == 0
    producer.send(b"2", topic="a/x")
    until(lambda: net.store.status().topics == 1, "what it may do")


def test_a_store_tells_nobody_what_he_may_not_consume(net: Net, home: Path) -> None:
    everything = (["everything"], "hub", ["*"])
    rules(home, everything, SENSOR, READER)
    producer = net.producer(Keys(home / "hub"), "b")
    producer.send(b"secret")
    producer.send(b"open", topic="a/x")
    producer.flush(60)
    client = net.client(rogue(home, "reader"))

    (info,) = client.heads()[0]
    assert info.topic == "a/x"
    with pytest.raises(NotPermitted, match="reader may not consume 'b': no rule allows it"):
        client.read("b", producer.partition, 0)
    with pytest.raises(NotPermitted):
        client.heads("b")
    with pytest.raises(NotPermitted):
        client.attach_sink("sink", "run", "home", False)
    assert client.read("a/x", producer.partition, 0)[1]
    assert net.refusals("reader") >= 3


def test_administrators_are_told_who_was_refused_and_others_are_not(net: Net, home: Path) -> None:
    rules(home, SERVER, SENSOR, READER, (["administer"], "other", ["*"]))
    thief = net.client(rogue(home, "sensor"))
    for _ in range(3):
        with pytest.raises(NotPermitted):
            thief.read("a/x", "P", 0)
    administrator, reader = net.client(Keys(home / "other")), net.client(Keys(home / "reader"))

    def told() -> bool:
        with suppress(NotPermitted):  # until the store has the rules
            administrator.heads()
        return ("sensor", "consume", 3) in administrator.refusals

    until(told, "refusals")
    reader.heads()
    assert reader.refusals == []


def test_who_publishes_gives_nothing_to_who_may_not_consume_it(net: Net, home: Path) -> None:
    rules(home, SERVER, SENSOR, (["produce"], "sensor", ["b"]), READER)
    producer = net.producer(Keys(home / "sensor"), "b")
    consumer = net.consumer(rogue(home, "reader"), "*")
    producer.send(b"secret", topic="b")
    producer.send(b"open", topic="one")
    producer.flush(60)

    batch = consumer.poll(60)

    assert batch is not None
    assert batch.topic == "one"
    assert consumer.poll(0.5) is None


def test_a_consumer_takes_nothing_from_who_may_not_produce_it(net: Net, home: Path) -> None:
    consumer = net.consumer(Keys(home / "reader"), "a/*")
    forger = net.producer(rogue(home, "other"), "a/x")
    forger.send(b"forged")
    sensor = net.producer(Keys(home / "sensor"), "a/x")
    until(lambda: net.refusals("other"), "a refusal")
    sensor.send(b"true")
    sensor.flush(60)

    batch = consumer.poll(60)

    assert batch is not None
    assert [each.value for each in batch] == [b"true"]
    assert consumer.poll(0.3) is None


def test_a_change_of_rules_counts_while_all_run(net: Net, home: Path) -> None:
    """A reader that does not know of it, so that what others do is seen."""
    sensor = net.producer(Keys(home / "sensor"), "a/x")
    stale = net.consumer(rogue(home, "reader"), "a/x")
    reader = net.consumer(Keys(home / "reader"), "one", "a/x")
    sensor.send(b"before")
    sensor.flush(60)
    assert stale.poll(60) is not None
    assert reader.poll(60) is not None

    rules(home, SERVER, (["produce"], "sensor", ["one"]), (["consume"], "reader", ["one"]), (["produce"], "hub", ["*"]))

    def told() -> bool:
        try:
            sensor.send(b"after")
        except NotPermitted as error:
            return "sensor may not produce 'a/x'" in str(error)
        return False

    until(told, "the end of a right to produce")
    with pytest.raises(NotPermitted, match="reader may not consume 'a/x'"):
        until(lambda: reader.poll(0.1) and False, "the end of a right to consume")
    hub = net.producer(Keys(home / "hub"), "a/x")
    hub.send(b"secret")
    hub.flush(60)
    while (batch := stale.poll(0.5)) is not None:
        assert b"secret" not in [each.value for each in batch]

    rules(home, SERVER, SENSOR, READER)

    until(lambda: not refused(sensor), "a right that is given back")
    sensor.flush(60)
    seen: list[object] = []

    def had() -> bool:
        try:
            batch = reader.poll(0.1)
        except NotPermitted:
            return False
        seen.extend([] if batch is None else [each.value for each in batch])
        return b"again" in seen

    until(had, "what came after it was given back")


def test_forwarders_ask_as_well(home: Path) -> None:
    with ExitStack() as stack:
        forwarder = stack.enter_context(
            closing(Forwarder(home.parent / "data", listen="127.0.0.1:0", security=Keys(home / "hub")))
        )
        where = forwarder.address
        reader = stack.enter_context(closing(Consumer("a/*", forwarders=where, security=Keys(home / "reader"))))
        curious = stack.enter_context(closing(Consumer("*", forwarders=where, security=rogue(home, "other"))))
        forger = Producer("a/x", forwarders=where, security=rogue(home, "reader"))
        stack.callback(leave, forger)
        forger.send(b"forged")
        until(lambda: forwarder.status().refusals.get("reader"), "a forger who was refused")
        producer = Producer("a/x", forwarders=where, security=Keys(home / "sensor"))
        stack.callback(leave, producer)
        producer.send(b"true")
        producer.flush(60)

        batch = reader.poll(60)

        assert batch is not None
        assert [each.value for each in batch] == [b"true"]
        assert curious.poll(0.5) is None
        assert forwarder.status().refusals.get("other")


def test_who_is_given_a_forwarder_that_may_not_store_a_topic_is_told(home: Path) -> None:
    """By its name, as it does not even know of what nobody sends it."""
    everything = (["produce", "consume"], "sensor", ["*"])
    rules(home, (["store", "introduce"], "hub", ["a/*"]), everything)
    keys = Keys(home / "sensor")
    with ExitStack() as stack:
        forwarder = stack.enter_context(
            closing(Forwarder(home.parent / "data", listen="127.0.0.1:0", security=Keys(home / "hub")))
        )
        where = forwarder.address
        with pytest.raises(NotPermitted, match="hub may not store 'b': no rule allows it, and it is the only way; who"):
            Producer("b", forwarders=where, security=keys)
        with pytest.raises(NotPermitted, match="hub may not store all topics that begin with 'b/'"):
            Consumer("b/*", forwarders=where, security=keys)
        producer = Producer("a/x", forwarders=where, security=keys)
        stack.callback(leave, producer)
        reader = stack.enter_context(closing(Consumer("a/x", forwarders=where, security=keys)))
        with pytest.raises(NotPermitted, match="hub may not store 'b'"):
            producer.send(b"1", topic="b")
        stack.enter_context(closing(Consumer("*", forwarders=where, security=keys)))
        producer.send(b"1")
        producer.flush(60)
        assert reader.poll(60) is not None

        rules(home, (["store", "introduce"], "hub", ["b"]), everything)

        with pytest.raises(NotPermitted, match="hub may not store 'a/x'"):
            until(lambda: producer.send(b"2") and False, "that what runs is told as well")
        with pytest.raises(NotPermitted, match="hub may not store 'a/x'"):
            until(lambda: reader.poll(0.1) and False, "that what runs is told as well")
        rules(home, (["store", "introduce"], "hub", ["a/*"]), everything)
        until(lambda: not refused(producer), "that it may again")
        producer.flush(60)


def refused(producer: Producer) -> bool:
    try:
        producer.send(b"again")
    except NotPermitted:
        return True
    return False


def test_who_produces_what_nobody_may_store_is_told_why_it_is_not(net: Net, home: Path) -> None:
    rules(home, (["store", "introduce"], "hub", ["a/*"]), (["produce"], "sensor", ["*"]))
    producer = net.producer(Keys(home / "sensor"), "b")
    producer.send(b"1")
    with pytest.raises(TimedOut, match=r"by version \d+ of the permissions nobody may store 'b'"):
        producer.flush(0.1)


def test_the_store_that_is_found_is_one_that_may_store(net: Net, home: Path) -> None:
    false_store = Store(home.parent / "false", tower=net.tower, security=rogue(home, "other"))
    with closing(false_store):
        until(lambda: net.refusals("other"), "a store that is none")
        found = discover(net.tower, 20.0, security=Keys(home / "reader"))
        assert [each.endpoint for each in found] == [net.store.endpoint]
