"""Every role tries everything everywhere: the table of ``docs/explanation/security.md`` is what came of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Final

import pytest
import zmq
from tests.api.rogues import rogue
from tests.api.small_roles import GONE, NO, ROLES, YES, Net, Rogue, direct_fence, fetch_fence, head_fence, net, signed
from tests.waiting import until

from chappe import Consumer, Keys, Producer, SharedMap
from chappe.api import permissions
from chappe.errors import UsageError
from chappe.kv.chp import messages as chp
from chappe.kv.chp import stream as say
from chappe.log.batch import encode_batch
from chappe.log.handing_on import PERMISSIONS
from chappe.log.messages import (
    Ack,
    AskClock,
    BatchMessage,
    ClockTold,
    ConsumerHello,
    Fetch,
    GetHeads,
    Head,
    Message,
    RecordMessage,
    Stored,
    StoreHello,
    StoreInfo,
)
from chappe.log.queries import (
    AttachSink,
    Commit,
    Drop,
    FindSink,
    HeadsRequest,
    LastRequest,
    ReadRequest,
    SeekRequest,
    Stage,
)
from chappe.replication.binary_star.messages import PRIMARY, Claim, encode_claim
from chappe.transports.addresses import TowerAddress
from chappe.transports.dialled import Dialled
from chappe.transports.gate import gate_of
from chappe.transports.zeromq import open_socket

DOCS: Final = Path(__file__).parents[2] / "docs" / "explanation" / "security.md"
BEGIN, END = "<!-- made by tests/api/test_refusal_table.py -->\n", "<!-- end -->\n"
BODY: Final = encode_batch(0, [b"x"], 0)
INSIDE, OUTSIDE = "a/x", "b/x"

Row = tuple[str, str]  # where, and what
Found = Iterator[tuple[Row, str]]


def outside(found: str) -> None:
    """What is not of its topics is refused to every role."""
    assert found == NO, found


def at_the_tower(rogue: Rogue, network: Net) -> Found:
    where = TowerAddress.parse(network.tower)
    hears = rogue.socket(zmq.SUB, f"tcp://127.0.0.1:{where.pub_port}#hub")
    hears.setsockopt(zmq.SUBSCRIBE, b"B")
    says = rogue.socket(zmq.PUB, f"tcp://127.0.0.1:{where.sub_port}#hub")
    address = f"told-by-{rogue.role}".encode()
    gate = gate_of(Keys(network.home / "hub"))
    assert gate is not None

    network.refused.clear()
    found: list[str] = []

    def told_of(name: str) -> None:
        says.send_multipart([b"B", address, b"127.0.0.1", f"1#{name}".encode()])

    def answered() -> bool:
        if not found:
            told_of(rogue.role)
        while hears.poll(2):
            if hears.recv_multipart()[1] == address:
                found.append(YES)
        if network.of(gate, rogue.name):
            found.append(NO)
        return bool(found)

    until(answered, "what becomes of its own beacon")
    yield ("tower", "hands on its own beacons"), found[0]
    network.refused.clear()
    told_of("maker")
    until(lambda: network.of(gate, rogue.name), "a refused beacon")
    network.refused.clear()
    yield ("tower", "hands on beacons that name another identity"), NO
    forged = network.store.gate.raw.replace(b"version = ", b"version = 9", 1)
    network.offered.clear()

    def offered() -> bool:
        says.send_multipart([PERMISSIONS, forged])
        return forged in network.offered

    until(offered, "forged permissions")
    assert not network.offered[forged]
    yield ("tower", "hands on permissions that the authority has not signed"), NO
    member = Keys(network.home / "maker")

    def dialled(what: str) -> str:
        where = f"{rogue.role}@127.0.0.1:1"
        if what == "a tower":
            Producer(tower=f"{where}:2", security=member).close(0)
        elif what == "a forwarder":
            Consumer("a/x", forwarders=f"{where}:2:3", security=Keys(network.home / "taker")).close()
        else:
            SharedMap(where, security=member, timeout=0).close()
        return YES

    for what in ("a tower", "a forwarder", "a map server"):
        outcome = NO
        with suppress(UsageError):
            outcome = dialled(what)
        yield ("any member that is given its address", f"is dialled as {what}"), outcome


def as_a_publisher(rogue: Rogue, network: Net) -> Found:
    """Members listen to it."""
    partition, reader = network.producer.partition, network.consumer._core.address
    keeper, own = network.store.node.address, rogue.address
    sock = rogue.announced(
        TowerAddress.parse(network.tower), "#hub", [b"H", b"T", b"F" + partition.encode(), b"S" + reader.encode()]
    )
    say_so = head_fence(own)

    def at_store(message: Message) -> str:
        return rogue.hands(sock, message, network.store, say_so)

    yield from handed(rogue, "store", at_store, keeper)
    asks = fetch_fence(partition, own)

    def at_producer(message: Message) -> str:
        return rogue.hands(sock, message, network.maker, asks)

    yield ("producer", "asks for records"), at_producer(Fetch(partition, own, INSIDE, 0, 1))
    outside(at_producer(Fetch(partition, own, OUTSIDE, 0, 1)))
    yield ("producer", "acknowledges"), at_producer(Stored(partition, own, INSIDE, 0))
    outside(at_producer(Stored(partition, own, OUTSIDE, 0)))
    yield ("producer", "acknowledges as the original does"), at_producer(Ack(partition, INSIDE, 0))
    outside(at_producer(Ack(partition, OUTSIDE, 0)))
    yield ("producer", "asks what its clock shows"), at_producer(AskClock(partition, own, 1))
    answers = direct_fence(reader, own)

    def at_consumer(message: Message) -> str:
        return rogue.hands(sock, message, network.taker, answers)

    yield ("consumer", "gives it records"), at_consumer(BatchMessage(INSIDE, own, INSIDE, BODY))
    yield ("consumer", "answers what it asked for"), at_consumer(BatchMessage(reader, own, INSIDE, BODY, direct=True))
    outside(at_consumer(BatchMessage(reader, own, OUTSIDE, BODY, direct=True)))
    yield ("consumer", "says how far a partition goes"), at_consumer(Head(INSIDE, own, INSIDE, 0))
    yield (
        ("consumer", "says that it is a store"),
        at_consumer(StoreInfo("", own, "id", f"tcp://127.0.0.1:1#{rogue.role}")),
    )
    yield ("consumer", "says so as the original does"), at_consumer(StoreHello(reader, own))


def handed(rogue: Rogue, where: str, hand: object, keeper: str) -> Found:
    """What stores and forwarders are handed alike."""
    assert callable(hand)
    own = rogue.address
    yield (where, "gives it records"), hand(BatchMessage(INSIDE, own, INSIDE, BODY))
    outside(hand(BatchMessage(OUTSIDE, own, OUTSIDE, BODY)))
    yield (where, "gives it records as the original does"), hand(RecordMessage(INSIDE, own, INSIDE, 0, b"x"))
    outside(hand(RecordMessage(OUTSIDE, own, OUTSIDE, 0, b"x")))
    yield (where, "says how far a partition goes"), hand(Head(INSIDE, own, INSIDE, 0))
    yield (where, "answers what it asked for"), hand(BatchMessage(keeper, own, INSIDE, BODY, direct=True))
    outside(hand(BatchMessage(keeper, own, OUTSIDE, BODY, direct=True)))
    yield (where, "asks for records"), hand(Fetch(own, own, INSIDE, 0, 1))
    outside(hand(Fetch(own, own, OUTSIDE, 0, 1)))
    yield (where, "asks which partitions are there"), hand(GetHeads("a/", own))
    outside(hand(GetHeads("b/", own)))
    yield (where, "says what it wants to hear of"), hand(ConsumerHello(keeper, own, ("a/",)))
    outside(hand(ConsumerHello(keeper, own, ("b/",))))
    yield (where, "says that it is a store"), hand(StoreInfo("", own, "id", f"tcp://127.0.0.1:1#{rogue.role}"))
    yield (where, "tells what its clock shows"), hand(ClockTold(keeper, own, own, 1, 1))


def as_a_subscriber(rogue: Rogue, network: Net) -> Found:
    """It listens to members."""
    own = rogue.address.encode()
    for where, place, endpoint in (
        ("producer", network.maker, network.maker.node.endpoint),
        ("store", network.store, network.store.node.endpoint),
        ("forwarder", network.relay, f"tcp://127.0.0.1:{network.ports.out_port}#relay"),
    ):
        sub = rogue.socket(zmq.SUB, endpoint)
        yield (where, "subscribes to records of a topic"), rogue.hears(sub, b"Ra/x", place)
        outside(rogue.hears(sub, b"Rb/x", place))
        yield (where, "subscribes to all records"), rogue.hears(sub, b"R", place, b"a/x", b"b/x")
        yield (where, "subscribes to records as the original does"), rogue.hears(sub, b"Ma/", place)
        outside(rogue.hears(sub, b"Mb/", place))
        yield (where, "subscribes to how far partitions go"), rogue.hears(sub, b"Ha/", place)
        yield (where, "listens to what is meant for itself"), rogue.hears(sub, b"S" + own, place)
        outside(rogue.hears(sub, b"S", place))
        outside(rogue.hears(sub, b"", place, b"Mb/x"))
        if where == "producer":
            other = b"S" + network.consumer._core.address.encode()
            boxes = network.maker.guard._boxes
            until(partial(boxes.__contains__, other), "somebody who listens there")
            yield (where, "listens to what is meant for another"), rogue.hears(sub, other, place)
    sub = rogue.socket(zmq.SUB, network.taker.node.endpoint)
    for kind, what in (
        (b"F", "subscribes to what it asks for"),
        (b"G", "subscribes to what it asks stores"),
        (b"W", "subscribes to what it wants to hear of"),
    ):
        yield ("consumer", what), rogue.hears(sub, kind, network.taker)
    yield ("consumer", "subscribes to what it asks one producer"), rogue.hears(sub, b"F" + own, network.taker)


def at_a_forwarder(rogue: Rogue, network: Net) -> Found:
    sock = rogue.dialling(f"tcp://127.0.0.1:{network.ports.in_port}#relay", b"H")
    fence = head_fence(rogue.address)
    keeper = network.relay.node.address
    yield from handed(rogue, "forwarder", lambda each: rogue.hands(sock, each, network.relay, fence), keeper)


def at_query_ports(rogue: Rogue, network: Net) -> Found:
    for where, place, endpoint in (
        ("query port of a store", network.store, network.stored),
        ("query port of a forwarder", network.relay, f"tcp://127.0.0.1:{network.ports.query_port}#relay"),
    ):
        sock = rogue.socket(zmq.DEALER, endpoint)
        topics = (INSIDE.encode(), OUTSIDE.encode())
        for what, (inside, beyond) in (
            ("reads records", [ReadRequest(each, b"P", 0) for each in topics]),
            ("asks for an offset by time", [SeekRequest(each, b"P", 0) for each in topics]),
            ("asks for newest values", [LastRequest(each) for each in topics]),
            ("asks which partitions are there", [HeadsRequest(each[:2]) for each in topics]),
        ):
            yield (where, what), rogue.asks(sock, inside, place)
            outside(rogue.asks(sock, beyond, place))
        staged, denied = (Stage("s", "r", 0, 0, 0, 0, each) for each in topics)
        yield (where, "stages rows of a sink"), rogue.asks(sock, staged, place, BODY)
        outside(rogue.asks(sock, denied, place, BODY))
        sink = "finds, attaches, commits, drops a sink"
        found = {
            rogue.asks(sock, each, place)
            for each in (
                FindSink("s"),
                AttachSink("s", "r", "h", False),
                Commit("s", "r", 0, []),
                Drop("s", "r", 0, []),
            )
        }
        assert len(found) == 1
        yield (where, sink), found.pop()


def at_maps(rogue: Rogue, network: Net) -> Found:
    host, _, port = network.map.address.partition("@")[2].partition(":")
    asks = rogue.socket(zmq.DEALER, f"tcp://{host}:{port}#maps")
    session = bytes(chp.SESSION_BYTES)
    follow = say.encode(say.Hello(1 << 40, session, (b"",), b"", 0, 0))
    write = say.encode(say.Steps(1 << 41, 1, (say.Step(((b"/k", b"x", 0, b""),)),)))
    expect = say.encode(say.Steps(1 << 41, 1, (say.Step((), ((b"/k", b"x"),)),)))
    heard = rogue.socket(zmq.SUB, f"tcp://{host}:{int(port) + 1}#maps")
    for each in (b"", b"/k", chp.HUGZ):
        heard.setsockopt(zmq.SUBSCRIBE, each)
    assert heard.recv_multipart()[0] == chp.HUGZ
    gate = network.map._ports.gate
    assert gate is not None
    where = "map server"
    yield (where, "hears that it is there"), YES
    yield (where, "follows the map"), rogue.asks_map(asks, follow)
    yield (where, "writes a key"), rogue.asks_map(asks, write)
    yield (where, "tries what a key is"), rogue.asks_map(asks, expect)
    yield (where, "follows as the other server of a pair"), NO  # the fence of all these
    yield (where, "asks for a snapshot as the Guide's programs do"), rogue.asks_map(asks, chp.icanhaz(b""))
    pushes = rogue.socket(zmq.PUSH, f"tcp://{host}:{int(port) + 2}#maps")
    network.refused.clear()
    pushes.send_multipart(chp.encode_update(chp.Update(b"/k", 1, bytes(16), b"", b"x", b"")))
    until(lambda: network.of(gate, rogue.name), "that an update is refused")
    yield (where, "writes as the Guide's programs do"), NO
    seen: set[bytes] = set()

    def published() -> bool:
        with network.map._node.lock:
            for each in (b"/k", chp.HUGZ + b"!"):
                network.map._ports._sockets.publisher.send_multipart([each])
        while heard.poll(2):
            seen.add(heard.recv_multipart()[0])
        return chp.HUGZ + b"!" in seen

    until(published, "what is published after an update")
    assert b"/k" not in seen
    yield (where, "hears updates as the Guide's programs do"), NO


def at_others(rogue: Rogue, network: Net) -> Found:
    yield ("tap", "looks at what passes"), rogue.looks()
    host, _, port = network.witness.address.partition("@")[2].partition(":")
    asks = rogue.socket(zmq.DEALER, f"tcp://{host}:{port}#judge")
    gate = network.witness._ports.gate
    assert gate is not None
    found = []
    for pair in (b"a/pair", b"b/pair"):
        network.refused.clear()
        asks.send(encode_claim(Claim(True, PRIMARY, 7, 1, 1, 0), pair))
        until(lambda: asks.poll(0) or network.of(gate, rogue.name), "an answer or a refusal")
        found.append(YES if asks.poll(0) else NO)
        if found[-1] == YES:
            asks.recv_multipart()
    yield ("witness", "claims to serve a pair's map"), found[0]
    outside(found[1])


def without_keys(rogue: Rogue, network: Net) -> Found:
    """Programs of the original, which may what the role may."""
    where = "originals' ports"
    sock = rogue.announced(network.originals, "", [b"H"])
    fence = head_fence(rogue.address)
    keeper = network.relay.node.address

    def hand(message: Message) -> str:
        return rogue.hands(sock, message, network.relay, fence)

    yield (where, "gives records"), hand(RecordMessage(INSIDE, rogue.address, INSIDE, 0, b"x"))
    outside(hand(RecordMessage(OUTSIDE, rogue.address, OUTSIDE, 0, b"x")))
    yield (where, "asks for records"), hand(Fetch(rogue.address, rogue.address, INSIDE, 0, 1))
    yield (where, "says what it wants to hear of"), hand(ConsumerHello(keeper, rogue.address, ("a/",)))
    outside(hand(ConsumerHello(keeper, rogue.address, ("b/",))))
    beacons = rogue.socket(zmq.SUB, f"tcp://127.0.0.1:{network.originals.pub_port}")
    beacons.setsockopt(zmq.SUBSCRIBE, b"B")
    sub = rogue.socket(zmq.SUB, beacons.recv_multipart()[2].decode())
    yield (where, "subscribes to records"), rogue.hears(sub, b"Ma/x", network.relay)
    outside(rogue.hears(sub, b"Mb/x", network.relay))


TRIES: Final = (at_the_tower, as_a_publisher, as_a_subscriber, at_a_forwarder, at_query_ports, at_maps, at_others)


def table(network: Net) -> str:
    found: dict[Row, dict[str, str]] = {}
    for role in ROLES:
        with ExitStack() as stack:
            rogue = Rogue(network, role, stack)
            for tries in TRIES:
                for row, outcome in tries(rogue, network):
                    found.setdefault(row, {})[role] = outcome
    for role in ROLES:
        signed(network.home, role)
        network.relay.gate.look()
        with ExitStack() as stack:
            for row, outcome in without_keys(Rogue(network, role, stack, original=True), network):
                found.setdefault(row, {})[role] = outcome
    lines = [f"| where | what | {' | '.join(ROLES)} |", "|---" * (2 + len(ROLES)) + "|"]
    before = ""
    for (where, what), outcomes in sorted(found.items(), key=lambda each: [row[0] for row in found].index(each[0][0])):
        lines.append(
            f"| {'' if where == before else where} | {what} | {' | '.join(outcomes[each] for each in ROLES)} |"
        )
        before = where
    return "\n".join(lines) + "\n"


def listeners(network: Net) -> list[tuple[int, str]]:
    """All ports that somebody with keys listens at, and what may dial them."""
    tower, ports, served = TowerAddress.parse(network.tower), network.ports, network.map._ports.address
    return [
        (zmq.PUB, f"tcp://127.0.0.1:{tower.sub_port}#hub"),
        (zmq.SUB, f"tcp://127.0.0.1:{tower.pub_port}#hub"),
        *((zmq.SUB, each.node.endpoint) for each in (network.store, network.maker, network.taker)),
        (zmq.DEALER, network.stored),
        (zmq.PUB, f"tcp://127.0.0.1:{ports.in_port}#relay"),
        (zmq.SUB, f"tcp://127.0.0.1:{ports.out_port}#relay"),
        *((zmq.DEALER, f"tcp://127.0.0.1:{each}#relay") for each in (ports.query_port, network.tap)),
        *((kind, served.endpoint(offset)) for offset, kind in enumerate((zmq.DEALER, zmq.SUB, zmq.PUSH))),
        (zmq.DEALER, network.witness._ports.address.endpoint(0)),
    ]


def refused(dialled: Dialled, told: list[object]) -> bool:
    dialled.look()
    return bool(told)


def test_whoever_is_nobody_comes_in_nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with net(tmp_path, monkeypatch) as network, ExitStack() as stack:
        gone = rogue(network.home, GONE)
        permissions.revoke(network.home, GONE)
        for each in (network.store, network.relay, network.maker, network.taker):
            each.gate.look()
        for served in (network.map._ports.gate, network.witness._ports.gate):
            assert served is not None
            served.look()
        for kind, endpoint in listeners(network):
            for keys, why in ((None, "it asks for keys, and this program has none"), (gone, "it refused us")):
                told: list[object] = []
                gate = gate_of(keys)
                sock = open_socket(kind, gate)
                stack.callback(sock.close)
                dialled = Dialled(sock, gate, told.append)
                stack.callback(dialled.close)
                dialled.listen()
                dialled.connect(endpoint if keys is not None else endpoint.partition("#")[0])
                until(partial(refused, dialled, told), f"a refusal at {endpoint}")
                assert why in str(told[0]), endpoint


def test_what_each_role_may_everywhere_is_what_the_table_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with net(tmp_path, monkeypatch) as network:
        made = table(network)
    said = DOCS.read_text().partition(BEGIN)[2].partition(END)[0]
    assert said == made
