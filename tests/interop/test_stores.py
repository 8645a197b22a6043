"""Original stores and ours, side by side and one after the other, also where there is a lot to catch up on."""

from __future__ import annotations

import pytest
from tests.interop.network import Network, silent, take, wait_for_listener, wait_until_stored
from tests.waiting import PATIENCE_S

from chappe.log.events import RecordsLost

LONG_S = PATIENCE_S

pytestmark = [pytest.mark.interop, pytest.mark.process]

LOTS = 250_000  # clients of an original store stop for ever at 100,001 (fault 4)
MORE = 120_000


def test_an_original_consumer_gets_past_100001_from_our_store(network: Network, topic: str) -> None:
    store = network.store()
    producer = network.producer(topic)
    lines = [f"{n}" for n in range(LOTS)]
    producer.send_many(lines)
    producer.close()
    consumer = network.original_consumer(topic, from_beginning=True)
    consumer.expect(LOTS, LONG_S)
    assert consumer.contents(topic) == lines
    store.close()


def test_our_consumer_gets_past_100001_from_an_original_store(network: Network, topic: str) -> None:
    network.original_store()
    producer = network.producer(topic)
    wait_for_listener(producer, b"M")
    values = [b"%d" % n for n in range(MORE)]
    producer.send_many(values)
    producer.flush(LONG_S)
    producer.close()
    witness = network.new_witness("F")
    consumer = network.consumer(topic)
    records = take(consumer, MORE, LONG_S)
    assert len(records) == MORE
    assert [record.value for record in records] == values
    assert silent(consumer)
    assert len(witness.messages) < 10, "each FETCH is answered with all that it asked for: they must be few"
    # a FETCH that took long to answer was repeated, and so was its whole answer
    assert consumer._core.duplicates % 100_001 < MORE / 10


def test_our_store_fetches_from_an_original_store(network: Network, topic: str) -> None:
    """What was acknowledged by an original store alone is had from there, also past 100,001 records."""
    network.original_store()
    producer = network.producer(topic)
    wait_for_listener(producer, b"M")
    producer.send_many(b"%d" % n for n in range(MORE))
    producer.flush(LONG_S)
    store = network.store()
    producer.send(b"the last one")
    wait_until_stored(store, topic, MORE + 1, LONG_S)
    assert not any(isinstance(event, RecordsLost) for event in store.events())
    consumer = network.consumer(topic)
    assert [record.value for record in take(consumer, MORE + 1)] == [*(b"%d" % n for n in range(MORE)), b"the last one"]


def test_our_store_takes_over_from_an_original_store(network: Network, topic: str) -> None:
    """Also what no producer speaks of any more; the original then can be switched off."""
    original = network.original_store()
    lines = [f"line {n}" for n in range(2000)]
    for producer in (network.producer(topic), network.producer(topic)):
        wait_for_listener(producer, b"M")
        producer.send_many(lines)
        producer.close()
    store = network.store()
    wait_until_stored(store, topic, 4000)
    original.kill()
    late = network.original_consumer(topic, from_beginning=True)
    late.expect(4000)
    assert sorted(late.contents(topic)) == sorted(lines + lines)


def test_side_by_side(network: Network, topic: str) -> None:
    """Both stores have everything of both kinds of producer: each alone serves both kinds of consumer."""
    ours, original = network.store(), network.original_store()
    producer, other = network.producer(topic, min_acks=2), network.original_producer(topic)
    wait_for_listener(producer, b"M")
    lines = [f"ours {n}" for n in range(1000)] + [f"theirs {n}" for n in range(1000)]
    producer.send_many(lines[:1000])
    other.send(lines[1000:])
    producer.flush(20)
    wait_until_stored(ours, topic, 2000)
    assert other.finish() == 0
    producer.close()

    late = network.original_consumer(topic, from_beginning=True)
    late.expect(2000)
    assert sorted(late.contents(topic)) == sorted(lines)
    late.kill()
    original.kill()
    alone = network.original_consumer(topic, from_beginning=True)
    alone.expect(2000)
    assert sorted(alone.contents(topic)) == sorted(lines)
    ours.close()
    network.original_store()
    consumer = network.consumer(topic)
    assert sorted(record.value or b"" for record in take(consumer, 2000)) == sorted(line.encode() for line in lines)
    assert silent(consumer)


def test_an_original_store_comes_back(network: Network, topic: str) -> None:
    """What was published while it was away is fetched from our producer, and acknowledged."""
    store = network.original_store()
    producer = network.producer(topic)
    wait_for_listener(producer, b"M")
    lines = [f"line {n}" for n in range(2000)]
    producer.send_many(lines[:1000])
    producer.flush(20)
    store.kill()
    producer.send_many(lines[1000:])
    network.original_store()
    producer.flush(20)
    producer.close()
    consumer = network.original_consumer(topic, from_beginning=True)
    consumer.expect(2000)
    assert consumer.contents(topic) == lines


def test_our_store_comes_back(network: Network, topic: str) -> None:
    """A living original consumer hears of it once more, and gets nothing twice.

    With an original producer this cannot be had: what it sent while the store was away it answers to FETCH with
    wrong contents, once something before was acknowledged (fault 2).
    """
    store = network.store()
    early = network.original_consumer(topic, from_beginning=True)
    producer = network.producer(topic)
    wait_for_listener(producer, b"M" + topic.encode())
    wait_for_listener(producer, b"R")
    lines = [f"line {n}" for n in range(2000)]
    producer.send_many(lines[:1000])
    producer.flush(20)
    store.close()
    producer.send_many(lines[1000:])
    store = network.store()
    producer.flush(20)
    producer.close()
    wait_until_stored(store, topic, 2000)
    late = network.original_consumer(topic, from_beginning=True)
    for consumer in (early, late):
        consumer.expect(2000)
        assert consumer.contents(topic) == lines
    ours = network.consumer(topic)
    assert [record.value for record in take(ours, 2000)] == [line.encode() for line in lines]


def test_an_original_producer_survives_a_restart_of_our_store(network: Network, topic: str) -> None:
    """Nothing is sent while the store is away: then there is nothing to ask the producer for.

    Whether the producer ends by itself is not asked: it may hang when a peer vanished shortly before (fault 7).
    """
    store = network.store()
    producer = network.original_producer(topic)
    producer.send(f"line {n}" for n in range(100))
    wait_until_stored(store, topic, 100)
    store.close()
    store = network.store()
    producer.send(f"line {n}" for n in range(100, 200))
    wait_until_stored(store, topic, 200)
    consumer = network.original_consumer(topic, from_beginning=True)
    consumer.expect(200)
    assert consumer.contents(topic) == [f"line {n}" for n in range(200)]
