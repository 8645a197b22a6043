"""Forwarders as processes that die, stand still, have no room, or get garbage; members know their addresses only."""

from __future__ import annotations

import json
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import zmq
from tests.api.members import PATIENCE_S, read, values, wait_until
from tests.ports import free_address
from tests.runtime.rogues import garbage, junk, rogue, throw

from chappe import Consumer, Forwarder, Producer
from chappe.api.log.discovery import discover
from chappe.errors import AddressInUse, TimedOut, UsageError
from chappe.log.events import ForwarderFound, ForwarderLost, RecordsLost
from chappe.transports.addresses import ForwarderAddress


class Process:
    """One forwarder, which listens where it listened before."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.address = free_address(3)
        self.peers: list[str] = []

    def start(self, *, file_bytes_max: int | None = None) -> None:
        def limit() -> None:
            if file_bytes_max is not None:
                signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
                resource.setrlimit(resource.RLIMIT_FSIZE, (file_bytes_max, resource.RLIM_INFINITY))

        command = [sys.executable, "-m", "chappe", "forward", str(self.directory), "--json", "--at", self.address]
        self.process = subprocess.Popen(
            [*command, *(["--peers", ",".join(self.peers)] if self.peers else [])],
            stdout=subprocess.PIPE,
            preexec_fn=limit,
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"the forwarder at {self.address} did not start: see what it wrote"
        assert json.loads(line)["forwarder"] == self.address

    def signal(self, what: signal.Signals) -> None:
        self.process.send_signal(what)

    def room(self) -> None:
        """The disk has room again."""
        resource.prlimit(self.process.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))

    def kill(self) -> None:
        self.process.kill()
        assert self.process.stdout is not None
        self.process.stdout.close()
        self.process.wait(PATIENCE_S)


@dataclass
class Pair:
    """Two forwarders that know each other, and members that know both."""

    one: Process
    two: Process
    members: ExitStack = field(default_factory=ExitStack)

    @property
    def addresses(self) -> list[str]:
        return [self.one.address, self.two.address]

    def producer(self, min_acks: int = 1) -> Producer:
        made = self.members.enter_context(Producer("hello", forwarders=self.addresses, min_acks=min_acks))
        made.wait_ready(PATIENCE_S)
        return made

    def consumer(self, at: list[str] | None = None) -> Consumer:
        made = self.members.enter_context(Consumer("hello", forwarders=at or self.addresses))
        made.wait_ready(PATIENCE_S)
        return made


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    made = Pair(Process(tmp_path / "one"), Process(tmp_path / "two"))
    made.one.start()
    made.two.peers = [made.one.address]
    made.two.start()
    made.one.peers = [made.two.address]
    try:
        with made.members:
            yield made
    finally:
        for each in (made.one, made.two):
            each.signal(signal.SIGCONT)
            each.kill()


def numbers(first: int, end: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, end)]


@pytest.mark.process
def test_a_forwarder_that_is_killed_under_load_is_not_missed_and_comes_back(pair: Pair) -> None:
    producer, consumer = pair.producer(), pair.consumer()
    producer.send_many(numbers(0, 20_000))
    pair.one.kill()
    producer.send_many(numbers(20_000, 40_000))
    producer.flush(PATIENCE_S)
    assert values(read(consumer, 40_000)) == numbers(0, 40_000)
    pair.one.start()
    pair.two.kill()  # the first one may not have all that it missed
    pair.two.start()
    producer.send_many(numbers(40_000, 50_000))
    producer.flush(PATIENCE_S)
    assert values(read(consumer, 10_000)) == numbers(40_000, 50_000)
    alone = pair.consumer([pair.one.address])
    assert values(read(alone, 50_000)) == numbers(0, 50_000)
    assert not [each for each in (*consumer.events(), *alone.events()) if isinstance(each, RecordsLost)]


@pytest.mark.process
def test_what_both_have_confirmed_survives_the_death_of_either(pair: Pair) -> None:
    producer = pair.producer(min_acks=2)
    producer.send_many(numbers(0, 5_000))
    producer.flush(PATIENCE_S)
    pair.one.kill()
    assert values(read(pair.consumer([pair.two.address]), 5_000)) == numbers(0, 5_000)
    producer.send(b"kept")
    with pytest.raises(TimedOut):
        producer.flush(0.1)
    pair.one.start()
    producer.flush(PATIENCE_S)


@pytest.mark.process
def test_a_forwarder_that_stands_still_is_not_waited_for(pair: Pair) -> None:
    producer, consumer = pair.producer(), pair.consumer()
    pair.one.signal(signal.SIGSTOP)
    producer.send_many(numbers(0, 30_000))
    producer.flush(PATIENCE_S)
    assert values(read(consumer, 30_000)) == numbers(0, 30_000)
    wait_until(lambda: [each for each in consumer.events() if each == ForwarderLost(pair.one.address)])
    pair.one.signal(signal.SIGCONT)
    wait_until(lambda: [each for each in consumer.events() if each == ForwarderFound(pair.one.address)])
    producer.send_many(numbers(30_000, 31_000))
    producer.flush(PATIENCE_S)
    assert values(read(consumer, 1_000)) == numbers(30_000, 31_000)
    assert values(read(pair.consumer([pair.one.address]), 31_000)) == numbers(0, 31_000)


@pytest.mark.process
def test_a_forwarder_without_room_passes_on_and_the_other_confirms(pair: Pair) -> None:
    pair.one.kill()
    pair.one.start(file_bytes_max=100_000)
    producer, consumer = pair.producer(min_acks=2), pair.consumer([pair.one.address])
    sent = [b"%7d" % number + bytes(993) for number in range(500)]
    producer.send_many(sent)
    assert values(read(consumer, 500)) == sent  # live, and what was missed live from the other or from the producer
    with pytest.raises(TimedOut):
        producer.flush(0.2)
    pair.one.room()
    producer.flush(PATIENCE_S)
    pair.two.kill()
    assert values(read(pair.consumer([pair.one.address]), 500)) == sent


@pytest.mark.process
def test_producers_and_consumers_at_different_forwarders_reach_each_other(pair: Pair) -> None:
    pair.one.kill()
    pair.one.start()  # now it knows the second one
    with Producer("hello", forwarders=pair.two.address) as producer:
        producer.send_many(numbers(0, 1_000))
        producer.flush(PATIENCE_S)
        assert values(read(pair.consumer([pair.one.address]), 1_000)) == numbers(0, 1_000)


def test_garbage_at_any_port_does_no_harm(tmp_path: Path) -> None:
    with Forwarder(tmp_path / "one", listen="127.0.0.1:0") as forwarder:
        where = ForwarderAddress.parse(forwarder.address)
        for port in (where.in_port, where.out_port, where.query_port):
            for raw in garbage(port):
                throw(port, raw)
        with rogue(zmq.PUB) as publisher, rogue(zmq.XSUB) as subscriber, rogue(zmq.DEALER) as asker:
            publisher.connect(f"tcp://127.0.0.1:{where.in_port}")
            subscriber.connect(f"tcp://127.0.0.1:{where.out_port}")
            asker.connect(f"tcp://127.0.0.1:{where.query_port}")
            for prefix in (b"", b"S", b"D\xff", b"S" * 300, b"R", b"\0"):
                subscriber.send(b"\1" + prefix)

            def annoyed() -> bool:
                for frames in junk(1):
                    publisher.send_multipart(frames)
                    asker.send_multipart(frames)
                return forwarder.status().malformed > 100

            wait_until(annoyed)
        with (
            Producer("hello", forwarders=forwarder.address) as producer,
            Consumer("hello", forwarders=forwarder.address) as consumer,
        ):
            producer.send_many(numbers(0, 100))
            assert values(read(consumer, 100)) == numbers(0, 100)


def test_many_producers_and_consumers_of_several_topics_share_one(tmp_path: Path) -> None:
    with ExitStack() as members:
        forwarder = members.enter_context(Forwarder(tmp_path / "one", listen="127.0.0.1:0"))
        at = forwarder.address
        consumers = [members.enter_context(Consumer(each, forwarders=at)) for each in ("a", "b", "a*", "*")]
        producers = [members.enter_context(Producer(each, forwarders=at)) for each in ("a", "a", "ab", "b")]
        for producer in producers:
            producer.send_many(numbers(0, 1_000))
        for consumer, count in zip(consumers, (2, 1, 3, 4), strict=True):
            found: dict[str, list[bytes | None]] = {}
            for record in read(consumer, 1_000 * count):
                found.setdefault(record.partition, []).append(record.value)
            assert list(found.values()) == [numbers(0, 1_000)] * count


def test_a_late_consumer_gets_what_was_sent_before(tmp_path: Path) -> None:
    with Forwarder(tmp_path / "one", listen="127.0.0.1:0") as forwarder:
        with Producer("hello", forwarders=[forwarder.address]) as producer:
            producer.send_many(numbers(0, 1_000))
            producer.flush(PATIENCE_S)
        with Consumer("hello", forwarders=[forwarder.address]) as consumer:
            assert [each.value for each in consumer.to_end(PATIENCE_S)] == numbers(0, 1_000)
        (store,) = discover("", forwarders=forwarder.address, timeout=PATIENCE_S)
        assert (store.store_id, store.endpoint) == (forwarder.store_id, forwarder.endpoint)


def test_one_that_is_asked_is_asked_where_it_was_found(tmp_path: Path) -> None:
    """Whatever it takes for its own address."""
    with Forwarder(tmp_path / "one", listen="127.0.0.1:0") as forwarder:
        forwarder._node.store.endpoint = "tcp://192.0.2.1:9"
        with Producer("hello", forwarders=forwarder.address) as producer:
            producer.send(b"a")
            producer.flush(PATIENCE_S)
        with Consumer("hello", forwarders=forwarder.address) as consumer:
            assert [each.value for each in consumer.to_end(PATIENCE_S)] == [b"a"]


def test_an_identity_goes_on_through_a_forwarder(tmp_path: Path) -> None:
    with Forwarder(tmp_path / "one", listen="127.0.0.1:0") as forwarder:
        for part in range(3):
            with Producer("hello", forwarders=forwarder.address, identity="me", directory=tmp_path) as producer:
                producer.send_many(numbers(10 * part, 10 * part + 10))
        with Consumer("hello", forwarders=forwarder.address) as consumer:
            found = read(consumer, 30)
        assert values(found) == numbers(0, 30)
        assert [each.offset for each in found] == list(range(30))


def test_who_finds_no_forwarder_is_told_what_to_start() -> None:
    nowhere = "127.0.0.1:1"
    with Consumer("hello", forwarders=nowhere) as consumer:
        with pytest.raises(TimedOut, match=f"no forwarder answers at {nowhere} .*: chappe forward"):
            consumer.wait_ready(0.05)
        assert "no forwarder" in repr(consumer)
        assert not consumer.tower
    with Producer("hello", forwarders=nowhere) as producer:
        with pytest.raises(TimedOut, match="no forwarder answers"):
            producer.wait_ready(0.05)
        assert discover("", 0.05, forwarders=nowhere) == []


LISTENED_AT = ["*", "*:5560", "a:0", "a:1:0:3", "a:1:2:0"]


@pytest.mark.parametrize(
    "wrong", ["", "a:b", "a:1:2", "a:70000", "a b:1", "a:1:2:3:4", "a:-1", ("a:1", ""), *LISTENED_AT]
)
def test_what_is_no_address_of_a_forwarder_is_refused(wrong: str) -> None:
    with pytest.raises(UsageError, match="is not the address of a forwarder"):
        Consumer("hello", forwarders=wrong)


@pytest.mark.parametrize("wrong", ["h\xe9:5560", "a!:5560", "-a:5560", 5560, [5560], b"a:5560", None])
def test_what_cannot_be_dialled_is_refused(tmp_path: Path, wrong: Any) -> None:
    with pytest.raises(UsageError, match="is not the address of a forwarder"):
        Forwarder(tmp_path, listen="127.0.0.1:0", peers=wrong)
    if wrong is not None:  # then the settings name the tower
        with pytest.raises(UsageError, match="is not the address of a tower"):
            Consumer("hello", tower=wrong)


@pytest.mark.parametrize("wrong", ["*", "*:5556", "a:0", "a:1:0", "a:0:1", "a:1,*"])
def test_a_tower_is_dialled_where_it_is_and_not_where_it_may_listen(wrong: str) -> None:
    with pytest.raises(UsageError, match="is not the address of a tower"):
        Producer("hello", tower=wrong)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "127.0.0.1;127.0.0.1"])
def test_what_is_taken_for_an_address_zeromq_dials(host: str) -> None:
    with Consumer("hello", forwarders=f"{host}:1"), Consumer("hello", tower=f"{host}:1"):
        pass


def test_none_at_all_is_refused() -> None:
    with pytest.raises(UsageError, match="no forwarder is named"):
        Producer("hello", forwarders=[])


@pytest.mark.parametrize(
    ("text", "ports", "shown"),
    [
        ("host", (5560, 5561, 5562), "host:5560"),
        ("host:7", (7, 8, 9), "host:7"),
        ("host:7:8:10", (7, 8, 10), "host:7:8:10"),
        ("*:0", (0, 0, 0), "*:0:0:0"),
    ],
)
def test_an_address_has_three_ports(text: str, ports: tuple[int, int, int], shown: str) -> None:
    made = ForwarderAddress.parse(text)
    assert (made.in_port, made.out_port, made.query_port) == ports
    assert str(made) == shown


def test_a_port_that_is_taken_is_told_and_the_directory_is_free_again(tmp_path: Path) -> None:
    with Forwarder(tmp_path / "one", listen="127.0.0.1:0") as forwarder:
        where = ForwarderAddress.parse(forwarder.address)
        for taken in (
            f"127.0.0.1:{where.in_port}:0:0",
            f"127.0.0.1:0:{where.out_port}:0",
            f"127.0.0.1:0:0:{where.query_port}",
        ):
            with pytest.raises(AddressInUse):
                Forwarder(tmp_path / "two", listen=taken)
        with Forwarder(tmp_path / "two", listen="127.0.0.1:0") as other:
            assert "Forwarder" in repr(other)
