"""Programs that speak the original's protocol and nothing else, at a forwarder that they take for a tower."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import zmq
from tests.api.members import PATIENCE_S, read, values, wait_until
from tests.runtime.rogues import garbage, junk, rogue, throw

from chappe import Consumer, Forwarder, Keys, Producer
from chappe.api import permissions
from chappe.api.identity import new_address
from chappe.errors import AddressInUse, UsageError
from chappe.log.messages import (
    Ack,
    ConsumerHello,
    Fetch,
    GetHeads,
    Head,
    Message,
    RecordMessage,
    StoreHello,
    decode,
    encode,
)
from chappe.transports.addresses import ForwarderAddress, TowerAddress


class Node:
    """What the original does to be met: a publishing socket that others find by beacons, and one that hears them."""

    def __init__(self, tower: str, prefixes: list[bytes]) -> None:
        towers = TowerAddress.parse_many(tower)
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.address = new_address()
        self._pub = self._context.socket(zmq.XPUB)
        self._pub.setsockopt(zmq.XPUB_VERBOSE, 1)
        port = self._pub.bind_to_random_port("tcp://127.0.0.1")
        self._sub = self._context.socket(zmq.SUB)
        for prefix in prefixes:
            self._sub.setsockopt(zmq.SUBSCRIBE, prefix.replace(b"?", self.address.encode()))
        self._beacon_pub, self._beacon_sub = self._context.socket(zmq.PUB), self._context.socket(zmq.SUB)
        for kind in (b"W", b"B"):
            self._beacon_sub.setsockopt(zmq.SUBSCRIBE, kind)
        for where in towers:
            self._beacon_pub.connect(f"tcp://{where.host}:{where.sub_port}")
            self._beacon_sub.connect(f"tcp://{where.host}:{where.pub_port}")
        self._beacon = [b"B", self.address.encode(), b"", str(port).encode()]
        self._heard: dict[bytes, bytes] = {}  # endpoint -> address
        self.subscribed: set[bytes] = set()
        assert self._beacon_sub.poll(int(PATIENCE_S * 1000))
        assert self._beacon_sub.recv_multipart() == [b"W"]

    def look(self) -> list[Message]:
        """Beacon, listen to whoever is new, and return what was published for us."""
        self._beacon_pub.send_multipart(self._beacon)
        while self._beacon_sub.poll(0):
            frames = self._beacon_sub.recv_multipart()
            if frames != [b"W"] and frames[2] not in self._heard and frames[1] != self.address.encode():
                self._heard[frames[2]] = frames[1]
                self._sub.connect(frames[2].decode())
        while self._pub.poll(0):
            self.subscribed.add(self._pub.recv()[1:])
        found = []
        while self._sub.poll(0):
            found.append(decode(self._sub.recv_multipart()))
        return found

    @property
    def met(self) -> int:
        return len(self._heard)

    def publish(self, message: Message) -> None:
        self._pub.send_multipart(encode(message))

    def close(self) -> None:
        self._context.destroy(0)


class Original(Node):
    """A producer as the C program is one: no batches, and what was not acknowledged is told to who fetches it."""

    def __init__(self, tower: str, topic: str) -> None:
        super().__init__(tower, [b"K?", b"F?"])
        self.topic = topic
        self.sent: list[bytes] = []
        self.acknowledged = -1

    def send(self, value: bytes) -> None:
        self.publish(RecordMessage(self.topic, self.address, self.topic, len(self.sent), value))
        self.sent.append(value)

    def turn(self) -> None:
        if self.sent:
            self.publish(Head(self.topic, self.address, self.topic, len(self.sent) - 1))
        for message in self.look():
            if isinstance(message, Ack):
                self.acknowledged = max(self.acknowledged, message.sequence)
            elif isinstance(message, Fetch):
                for offset in range(message.sequence, min(message.sequence + message.count, len(self.sent))):
                    record = RecordMessage(
                        message.address, self.address, self.topic, offset, self.sent[offset], direct=True
                    )
                    self.publish(record)


class Listener(Node):
    """A consumer as the C program is one, from the beginning."""

    def __init__(self, tower: str, topic: str) -> None:
        name = topic.encode()
        super().__init__(tower, [b"D?", b"E?", b"L?", b"M" + name, b"H" + name])
        self.topic = topic
        self.got: dict[str, list[bytes]] = {}
        self.doubled = 0
        self._asked = False

    def turn(self) -> None:
        if not self._asked and b"G" in self.subscribed:
            self._asked = True
            self.publish(GetHeads(self.topic, self.address))
        for message in self.look():
            if isinstance(message, RecordMessage):
                known = self.got.setdefault(message.address, [])
                if message.sequence == len(known):
                    known.append(message.content)
                elif message.sequence > len(known):
                    self._fetch(message.address)
                elif not message.direct:
                    self.doubled += 1
            elif isinstance(message, StoreHello):  # it may have answered GET-HEADS before it knew that we listen
                self.publish(ConsumerHello(message.address, self.address, (self.topic,)))
            elif isinstance(message, Head) and message.sequence >= len(self.got.setdefault(message.address, [])):
                self._fetch(message.address)

    def _fetch(self, partition: str) -> None:
        self.publish(Fetch(partition, self.address, self.topic, len(self.got[partition]), 100_000))


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as made:
        yield made


def start(stack: ExitStack, directory: Path, peers: str = "") -> Forwarder:
    others = [peers] if peers else []
    made = Forwarder(directory, listen="127.0.0.1:0", originals="127.0.0.1:0", peers=others)
    return stack.enter_context(made)


def original(stack: ExitStack, forwarder: Forwarder, topic: str, *others: Forwarder) -> Original:
    made = Original(",".join(str(each.originals) for each in (forwarder, *others)), topic)
    stack.callback(made.close)
    return made


def listener(stack: ExitStack, forwarder: Forwarder, topic: str, *others: Forwarder) -> Listener:
    made = Listener(",".join(str(each.originals) for each in (forwarder, *others)), topic)
    stack.callback(made.close)
    return made


def until(happened: object, *nodes: Original | Listener) -> None:
    def turned() -> bool:
        for each in nodes:
            each.turn()
        return bool(happened())  # type: ignore[operator]

    wait_until(turned)


def test_what_an_original_sends_reaches_members_of_chappe_and_is_acknowledged(stack: ExitStack, tmp_path: Path) -> None:
    forwarder = start(stack, tmp_path)
    consumer = stack.enter_context(Consumer("hello", forwarders=forwarder.address))
    producer = original(stack, forwarder, "hello")
    until(lambda: b"M" in producer.subscribed, producer)
    for number in range(500):
        producer.send(b"%d" % number)
    until(lambda: producer.acknowledged == 499, producer)
    assert values(read(consumer, 500)) == producer.sent


def test_what_members_of_chappe_send_reaches_an_original_that_was_there_and_one_that_comes(
    stack: ExitStack, tmp_path: Path
) -> None:
    forwarder = start(stack, tmp_path)
    early = listener(stack, forwarder, "hello")
    until(lambda: b"G" in early.subscribed, early)
    with Producer("hello", forwarders=forwarder.address) as producer:
        sent = [b"%d" % number for number in range(1_000)]
        producer.send_many(sent)
        producer.flush(PATIENCE_S)
        until(lambda: early.got.get(producer.partition) == sent, early)
        late = listener(stack, forwarder, "hello")
        until(lambda: late.got.get(producer.partition) == sent, late)


def test_originals_meet_the_forwarder_alone_and_get_each_record_once(stack: ExitStack, tmp_path: Path) -> None:
    forwarder = start(stack, tmp_path)
    producer, consumer = original(stack, forwarder, "hello"), listener(stack, forwarder, "hello")
    until(lambda: b"M" in producer.subscribed and b"G" in consumer.subscribed, producer, consumer)
    for number in range(300):
        producer.send(b"%d" % number)
    until(lambda: consumer.got.get(producer.address) == producer.sent, producer, consumer)
    assert (producer.met, consumer.met, consumer.doubled) == (1, 1, 0)
    assert forwarder.status().peers == 2


def test_originals_at_two_forwarders_do_not_miss_one_that_dies(stack: ExitStack, tmp_path: Path) -> None:
    one = start(stack, tmp_path / "one")
    two = start(stack, tmp_path / "two", one.address)
    producer, consumer = original(stack, one, "hello", two), listener(stack, one, "hello", two)
    ours = stack.enter_context(Consumer("hello", forwarders=[one.address, two.address]))
    until(lambda: producer.met == consumer.met == 2, producer, consumer)
    until(lambda: b"M" in producer.subscribed and b"G" in consumer.subscribed, producer, consumer)
    for number in range(100):
        producer.send(b"%d" % number)
    until(lambda: consumer.got.get(producer.address) == producer.sent, producer, consumer)
    one.close()
    for number in range(100, 200):
        producer.send(b"%d" % number)
    until(lambda: consumer.got.get(producer.address) == producer.sent, producer, consumer)
    until(lambda: producer.acknowledged == 199, producer)
    assert values(read(ours, 200)) == producer.sent


def test_an_original_that_leaves_is_forgotten_and_its_records_are_not(stack: ExitStack, tmp_path: Path) -> None:
    forwarder = start(stack, tmp_path)
    producer = original(stack, forwarder, "hello")
    until(lambda: b"M" in producer.subscribed, producer)
    producer.send(b"kept")
    until(lambda: producer.acknowledged == 0, producer)
    producer.close()
    wait_until(lambda: forwarder.status().peers == 0)
    consumer = listener(stack, forwarder, "hello")
    until(lambda: consumer.got.get(producer.address) == [b"kept"], consumer)


def test_garbage_where_originals_come_does_no_harm(stack: ExitStack, tmp_path: Path) -> None:
    forwarder = start(stack, tmp_path)
    assert forwarder.originals is not None
    where = TowerAddress.parse(forwarder.originals)
    for port in (where.sub_port, where.pub_port):
        for raw in garbage(port):
            throw(port, raw)
    with rogue(zmq.PUB) as publisher, rogue(zmq.XSUB) as subscriber:
        publisher.connect(f"tcp://127.0.0.1:{where.sub_port}")
        subscriber.connect(f"tcp://127.0.0.1:{where.pub_port}")
        for prefix in (b"", b"B" * 300, b"\xff", b"W"):
            subscriber.send(b"\1" + prefix)

        def annoyed() -> bool:
            for frames in [*junk(1), [b"B"], [b"B", b"x", b"", b"y"], [b"Bx"] * 9]:
                publisher.send_multipart([b"B" + frames[0], *frames[1:]])
            return forwarder.status().malformed > 100

        wait_until(annoyed)
    producer = original(stack, forwarder, "hello")
    until(lambda: b"M" in producer.subscribed, producer)
    producer.send(b"well")
    until(lambda: producer.acknowledged == 0, producer)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Of identities; what originals do is what ``originals`` may: all but what is in ``private``."""
    made = tmp_path / "keys"
    permissions.init(made, "hub", "server")
    permissions.add(made, "all", "member")
    path = made / "permissions.toml"
    rule = '[[rules]]\ndeny = ["everything"]\nnames = ["originals"]\ntopics = ["private/*"]\n\n[[rules]]'
    path.write_text(path.read_text().replace("[[rules]]", rule, 1))
    permissions.sign(path)
    return made


def with_keys(stack: ExitStack, directory: Path, home: Path) -> Forwarder:
    made = Forwarder(directory, listen="127.0.0.1:0", originals="127.0.0.1:0", security=Keys(home / "hub"))
    return stack.enter_context(made)


def test_beside_keys_originals_come_in_where_they_are_named_and_do_what_their_identity_may(
    stack: ExitStack, tmp_path: Path, home: Path
) -> None:
    member = Keys(home / "all")
    with pytest.raises(UsageError, match="chappe keys add originals --role member"):
        with_keys(stack, tmp_path / "kept", home)
    permissions.add(home, "originals", "member")
    forwarder = with_keys(stack, tmp_path / "kept", home)
    ours = stack.enter_context(Consumer("hello", forwarders=forwarder.address, security=member))
    sender, heard = original(stack, forwarder, "hello"), listener(stack, forwarder, "hello")
    nosy, liar = listener(stack, forwarder, "private/x"), original(stack, forwarder, "private/x")
    until(lambda: b"M" in sender.subscribed and b"G" in heard.subscribed, sender, heard)
    for number in range(100):
        sender.send(b"%d" % number)
    until(lambda: sender.acknowledged == 99, sender, heard)
    assert values(read(ours, 100)) == sender.sent
    until(lambda: heard.got.get(sender.address) == sender.sent, sender, heard)

    with Producer("private/x", forwarders=forwarder.address, security=member) as producer:
        producer.send(b"secret")
        producer.flush(PATIENCE_S)
        liar.send(b"forged")
        with Producer("hello", forwarders=forwarder.address, security=member) as other:
            other.send(b"open")
            other.flush(PATIENCE_S)
            until(lambda: heard.got.get(other.partition) == [b"open"], heard, nosy, liar)
        with Consumer("private/x", forwarders=forwarder.address, security=member) as reader:
            assert values(read(reader, 1)) == [b"secret"]
        until(lambda: any("originals" in str(each) for each in forwarder.status().refusals), heard, nosy, liar)
    assert not any(nosy.got.values())
    assert liar.acknowledged == -1


def test_beside_keys_originals_come_in_nowhere_else(stack: ExitStack, tmp_path: Path, home: Path) -> None:
    permissions.add(home, "originals", "member")
    where = ForwarderAddress.parse(with_keys(stack, tmp_path / "kept", home).address)
    with Consumer("hello", forwarders=f"127.0.0.1:{where.in_port}:{where.out_port}:{where.query_port}") as stranger:
        wait_until(
            lambda: any("it asks for keys, and this program has none" in str(each) for each in stranger.events())
        )


def test_without_it_no_port_is_taken_and_a_taken_one_is_told(stack: ExitStack, tmp_path: Path) -> None:
    plain = stack.enter_context(Forwarder(tmp_path / "one", listen="127.0.0.1:0"))
    assert plain.originals is None
    taken = ForwarderAddress.parse(plain.address).in_port
    with pytest.raises(AddressInUse):
        Forwarder(tmp_path / "two", listen="127.0.0.1:0", originals=f"127.0.0.1:{taken}:0")
    start(stack, tmp_path / "two")
