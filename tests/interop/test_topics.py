"""Topics whose names begin alike, and names at the edge."""

from __future__ import annotations

import pytest
from tests.interop.network import Network, silent, take, wait_for_listener

pytestmark = [pytest.mark.interop, pytest.mark.process]


def test_originals_take_a_topic_for_a_prefix(network: Network, topic: str) -> None:
    """An original consumer of ``tp`` also gets ``tpX``; ours gets it only if it asks for ``tp*``."""
    store = network.store()
    longer = topic + "X"
    original = network.original_consumer(topic)
    exact, prefix = network.consumer(topic), network.consumer(topic + "*")
    short, long = network.producer(topic), network.producer(longer)
    theirs = network.original_producer(longer)
    for producer in (short, long):
        wait_for_listener(producer, b"M" + topic.encode(), 2)
        wait_for_listener(producer, b"R" + topic.encode())  # our two consumers share a node
        producer.send_many(f"{n}" for n in range(100))
        producer.flush(10)
    theirs.send(f"{n}" for n in range(100))
    assert theirs.finish() == 0
    original.expect(300)
    assert (len(original.contents(topic)), len(original.contents(longer))) == (100, 200)
    assert len(take(prefix, 300)) == 300
    assert {record.topic for record in take(exact, 100)} == {topic}
    assert silent(exact)
    assert silent(prefix, 0.1)
    late = network.original_consumer(topic, from_beginning=True)
    late.expect(300)
    assert (len(late.contents(topic)), len(late.contents(longer))) == (100, 200)
    assert store.status().duplicates == 0


@pytest.mark.parametrize("long", ["x" * 255, "日本", "with space".replace(" ", ".")])
def test_names_at_the_edge(network: Network, long: str) -> None:
    network.store()
    network.original_store()
    consumer = network.consumer(long)
    producer = network.original_producer(long)
    producer.send(["one", "two"])
    assert producer.finish() == 0
    assert [(record.topic, record.value) for record in take(consumer, 2)] == [(long, b"one"), (long, b"two")]
    late = network.original_consumer(long, from_beginning=True)
    late.expect(2)
    assert late.contents(long) == ["one", "two"]
