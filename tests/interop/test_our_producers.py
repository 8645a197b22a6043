"""Records of our producers reach everybody."""

from __future__ import annotations

import math
import time

import pytest
import zmq
from tests.interop.network import Network, silent, take, wait_for_listener, wait_until_stored
from tests.interop.originals import PATIENCE_S, eventually, settle

from chappe.errors import TimedOut
from chappe.log.batch import Batch

pytestmark = [pytest.mark.interop, pytest.mark.process]

MANY = [f"line {n}" for n in range(20_000)]
RAW = [line.encode() for line in MANY]


def test_live_to_an_original_consumer(network: Network, topic: str) -> None:
    producer = network.producer(topic, min_acks=0)
    consumer = network.original_consumer(topic)
    wait_for_listener(producer, b"M" + topic.encode())
    producer.send_many(MANY)
    consumer.expect(len(MANY))
    assert consumer.contents(topic) == MANY
    assert {address for _, address, _ in consumer.lines} == {producer.partition}


def test_an_original_consumer_fetches_what_it_missed(network: Network, topic: str) -> None:
    """It asks when it hears HEAD for the first time, and is answered from what our producer still keeps.

    Should that one request be lost it asks again only at the next record (fault 5): therefore there is one.
    """
    producer = network.producer(topic)
    producer.send_many(MANY[:1000])
    consumer = network.original_consumer(topic, from_beginning=True)
    wait_for_listener(producer, b"M" + topic.encode())
    producer.send("the next record")
    consumer.expect(1001)
    assert consumer.contents(topic) == [*MANY[:1000], "the next record"]


def test_an_original_consumer_begins_at_once_with_what_is_kept(network: Network, topic: str) -> None:
    """It asks when it subscribes, and neither a store, nor another record, nor the HEAD of each second tells it.

    It asks once, a second after its start. If its first beacon was lost our producer has not met it by then, and HEAD
    tells it in earnest; here the next consumer asks.
    """
    producer = network.producer(topic)
    producer.send_many(MANY[:1000])
    eventually(lambda: producer._core.partitions()[0].published == 1000, "all is published")
    with producer.lock:
        producer._core.partitions()[0]._head_at = math.inf
    deadline = time.monotonic() + PATIENCE_S
    while True:
        consumer = network.original_consumer(topic, from_beginning=True)
        try:
            consumer.expect(1000, timeout=5.0)
        except AssertionError:
            assert time.monotonic() < deadline, "no consumer was answered"
            assert consumer.printed == 0
        else:
            break
    assert consumer.contents(topic) == MANY[:1000]


def test_stored_by_an_original_store(network: Network, topic: str) -> None:
    network.original_store()
    producer = network.producer(topic)
    wait_for_listener(producer, b"M")
    producer.send_many(MANY)
    producer.flush(20)
    assert producer.stored == len(MANY)
    producer.close()
    late, ours = network.original_consumer(topic, from_beginning=True), network.consumer(topic)
    late.expect(len(MANY))
    assert late.contents(topic) == MANY
    assert [record.value for record in take(ours, len(MANY))] == RAW


def test_several_topics_of_one_producer(network: Network, topic: str) -> None:
    """Originals tell its partitions apart by the topic: the address is the same."""
    network.original_store()
    producer = network.producer(topic)
    other = topic + "-other"
    live = network.original_consumer(other)
    wait_for_listener(producer, b"M")
    wait_for_listener(producer, b"M" + other.encode())
    producer.send_many(MANY[:1000])
    producer.send_many(MANY[1000:3000], topic=other)
    producer.flush(20)
    live.expect(2000)
    assert live.contents(other) == MANY[1000:3000]
    producer.close()
    late = network.original_consumer(topic, from_beginning=True)
    late.expect(1000)
    assert late.contents(topic) == MANY[:1000]


def test_an_original_store_fetches_what_it_missed(network: Network, topic: str) -> None:
    producer = network.producer(topic)
    producer.send_many(MANY)
    network.original_store()
    producer.flush(20)
    producer.close()
    late = network.original_consumer(topic, from_beginning=True)
    late.expect(len(MANY))
    assert late.contents(topic) == MANY


def test_original_stores_count_as_one(network: Network, topic: str) -> None:
    """Their acknowledgements carry no name: two of them may be one store that says it twice."""
    network.original_store("one")
    network.original_store("two")
    producer = network.producer(topic, min_acks=2)
    wait_for_listener(producer, b"M", 2)
    producer.send_many(MANY[:100])
    with pytest.raises(TimedOut):
        producer.flush(1.5)
    network.store()
    producer.flush(10)
    assert producer.stored == 100


def test_keys_and_empty_values(network: Network, topic: str) -> None:
    """Originals know nothing but contents: a tombstone is an empty one to them."""
    consumer = network.original_consumer(topic)
    producer = network.producer(topic, min_acks=0)
    wait_for_listener(producer, b"M" + topic.encode())
    producer.send("with a key", key="k", headers={"h": "v"}, timestamp=1)
    producer.send(None, key="k")
    producer.send("")
    producer.send("x" * 1_000_000)
    consumer.expect(4)
    assert consumer.contents(topic) == ["with a key", "", "", "x" * 1_000_000]


def test_everybody_at_once(network: Network, topic: str) -> None:
    """Both kinds of consumer and of store: each gets every record once, and ours get them in batches only."""
    store = network.store()
    network.original_store()
    original, ours = network.original_consumer(topic), network.consumer(topic)
    producer = network.producer(topic, min_acks=2)
    raw = topic.encode()
    for prefix in (b"M", b"R", b"M" + raw, b"R" + raw):
        wait_for_listener(producer, prefix)
    eventually(lambda: producer.connected >= 6, "the producer knows everybody")
    producer.send_many(MANY)
    producer.flush(20)
    original.expect(len(MANY))
    assert original.contents(topic) == MANY
    records = take(ours, len(MANY))
    assert [record.value for record in records] == RAW
    assert [record.offset for record in records] == list(range(len(MANY)))
    assert silent(ours)
    assert original.printed == len(MANY)
    assert ours._core.duplicates == 0
    wait_until_stored(store, topic, len(MANY))
    status = store.status()
    assert (status.written_records, status.duplicates) == (len(MANY), 0)
    producer.close()
    late = network.original_consumer(topic, from_beginning=True)
    late.expect(len(MANY))
    assert late.contents(topic) == MANY


@pytest.mark.parametrize("connected", [False, True])
def test_a_listener_gets_records_in_one_form(network: Network, topic: str, connected: bool) -> None:
    """Seen from outside: who subscribes to R after M gets no M, who does not gets M only."""
    producer = network.producer(topic, min_acks=0)
    raw = topic.encode()
    endpoint = producer._node.node.endpoint
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context.instance()
    with context.socket(zmq.SUB) as batches, context.socket(zmq.SUB) as singles:
        for socket, ids in ((batches, "MR"), (singles, "M")):
            socket.setsockopt(zmq.LINGER, 0)
            socket.setsockopt(zmq.RCVTIMEO, 5_000)
            if connected:
                socket.connect(endpoint)
                settle()
            for id_ in ids:
                socket.setsockopt(zmq.SUBSCRIBE, id_.encode() + raw)
            if not connected:
                socket.connect(endpoint)
        wait_for_listener(producer, b"M" + raw, 2)
        wait_for_listener(producer, b"R" + raw)
        producer.send_many(MANY[:100])
        assert [singles.recv_multipart()[1] for _ in range(100)] == RAW[:100]
        found: list[bytes | None] = []
        while len(found) < 100:
            header, body = batches.recv_multipart()
            assert header[:1] == b"R"
            found += Batch.parse(body).values()
        assert found == RAW[:100]
        assert not batches.poll(300)


def test_a_listener_that_comes_back_gets_records_in_one_form(network: Network, topic: str) -> None:
    """A new connection announces all subscriptions anew, in an order that is not the listener's choice."""
    producer = network.producer(topic, min_acks=0)
    network.original_consumer(topic)
    wait_for_listener(producer, b"M" + topic.encode())
    for round_ in range(3):
        consumer = network.consumer(topic, reset="latest")
        wait_for_listener(producer, b"M" + topic.encode(), 2)
        wait_for_listener(producer, b"R" + topic.encode())
        first = producer.next_offset
        producer.send_many(MANY[:1000])
        records = take(consumer, 1000)
        assert [record.offset for record in records] == list(range(first, first + 1000)), f"round {round_}"
        assert silent(consumer, 0.3)
        assert consumer._core.duplicates == 0
        consumer.close()
        eventually(lambda: not producer._core.subscriptions.has(b"R" + topic.encode()), "the consumer left")
