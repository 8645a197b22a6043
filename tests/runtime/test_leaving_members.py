"""A member that goes while a consumer is behind: what it has sent is read before its connection ends."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import zmq
from tests.waiting import PATIENCE_S, until

from chappe.api.log.consumer import Consumer
from chappe.api.log.tower import Tower
from chappe.log.messages import RecordMessage, encode
from chappe.runtime.meeting import AtTowers
from chappe.transports.addresses import TowerAddress, bind

SIZE = 400_000
COUNT = 120  # 48 MB: more than a consumer takes that is not read, and less than its socket holds besides


class Original:
    """A producer that speaks as Dafka's C programs do, without a store that it would wait for."""

    def __init__(self, tower: str) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._beacons = self._context.socket(zmq.XPUB)
        self._pub = self._context.socket(zmq.XPUB)
        self._pub.setsockopt(zmq.SNDHWM, 0)
        self.port = bind(self._pub, "127.0.0.1")
        self._beacons.connect(f"tcp://127.0.0.1:{TowerAddress.parse(tower).sub_port}")
        self._beacons.recv()  # the tower listens
        self.beacon()
        while self._pub.recv() != b"\1Mhello":
            pass

    def beacon(self, kind: bytes = b"B") -> None:
        self._beacons.send_multipart([kind, b"ORIGINAL", b"127.0.0.1", str(self.port).encode()])

    def publish(self, first: int, count: int) -> None:
        for sequence in range(first, first + count):
            content = sequence.to_bytes(4, "big").ljust(SIZE, b"x")
            self._pub.send_multipart(encode(RecordMessage("hello", "ORIGINAL", "hello", sequence, content)))

    def close(self) -> None:
        self._context.destroy(linger=10_000)


@pytest.fixture
def tower() -> Iterator[str]:
    with Tower("127.0.0.1:0") as made:
        yield made.address


def met(consumer: Consumer) -> list[str]:
    with consumer._node.lock:
        return [address for address, _ in consumer._node.discovery.met]


def read(consumer: Consumer, count: int) -> list[int]:
    """The numbers of the next records, or of those that come before none comes for long."""
    values: list[int] = []
    while len(values) < count and (batch := consumer.poll(PATIENCE_S)) is not None:
        values += [int.from_bytes(each.value[:4], "big") for each in batch if each.value]
    return values


def leaving(consumer: Consumer) -> float:
    meeting = consumer._node.node.meeting
    assert isinstance(meeting, AtTowers)
    with consumer._node.lock:
        return meeting._leaving.next_timeout()


@contextmanager
def left_behind(tower: str) -> Iterator[tuple[Consumer, Original]]:
    """A consumer that is behind with what a producer sent, and knows that the producer has gone."""
    with Consumer("hello", tower=tower, reset="earliest") as consumer:
        original = Original(tower)
        original.publish(0, COUNT)
        until(lambda: consumer._core.paused, "the consumer is behind")
        original.beacon(b"G")
        until(lambda: met(consumer) == [], "the consumer knows that the producer has gone")
        yield consumer, original
        original.close()


def test_what_a_member_sent_before_it_went_is_read(tower: str) -> None:
    with left_behind(tower) as (consumer, original):
        original.close()

        assert read(consumer, COUNT) == list(range(COUNT))
        until(lambda: leaving(consumer) == float("inf"), "then its connection ends")


def test_a_member_that_comes_back_meanwhile_keeps_its_connection(tower: str) -> None:
    with left_behind(tower) as (consumer, original):
        original.beacon()
        until(lambda: met(consumer) == ["ORIGINAL"], "and that it is here")
        original.publish(COUNT, 3)

        assert read(consumer, COUNT + 3) == list(range(COUNT + 3))
