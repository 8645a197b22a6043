"""Whose tower it is makes no difference to members."""

from __future__ import annotations

import pytest
from tests.interop.network import Network, silent, take, wait_for_listener, wait_until_stored
from tests.interop.originals import eventually

pytestmark = [pytest.mark.interop, pytest.mark.process]


def test_our_tower_introduces_original_members(bare: Network, topic: str) -> None:
    tower = bare.start_tower()
    bare.original_store()
    consumer = bare.original_consumer(topic)
    producer = bare.original_producer(topic)
    assert tower.nodes() == 5  # an original store counts twice, and there is the witness
    lines = [f"line {n}" for n in range(100)]
    producer.send(lines)
    assert producer.finish() == 0
    consumer.expect(100)
    assert consumer.contents(topic) == lines


def test_original_tower_introduces_our_members(bare: Network, topic: str) -> None:
    bare.start_original_tower()
    bare.store()
    consumer = bare.consumer(topic)
    producer = bare.producer(topic)
    producer.send_many(f"line {n}" for n in range(10_000))
    producer.flush(10)
    records = take(consumer, 10_000)
    assert [record.value for record in records] == [b"line %d" % n for n in range(10_000)]


def test_original_tower_introduces_both_kinds(bare: Network, topic: str) -> None:
    bare.start_original_tower()
    store = bare.store()
    bare.original_store()
    original, ours = bare.original_consumer(topic), bare.consumer(topic)
    producer = bare.producer(topic)
    wait_for_listener(producer, b"M" + topic.encode(), 2)
    producer.send_many(f"ours {n}" for n in range(100))
    producer.flush(10)
    other = bare.original_producer(topic)
    other.send(f"theirs {n}" for n in range(100))
    assert other.finish() == 0
    expected = [f"ours {n}" for n in range(100)] + [f"theirs {n}" for n in range(100)]
    original.expect(200)
    assert sorted(original.contents(topic)) == sorted(expected)
    assert sorted(record.value or b"" for record in take(ours, 200)) == sorted(line.encode() for line in expected)
    assert silent(ours)
    wait_until_stored(store, topic, 200)


def test_one_tower_of_two_is_enough(bare: Network, topic: str) -> None:
    """Nodes of both kinds take several towers; ours go on with what they know even without any."""
    original = bare.start_original_tower()
    first = bare.tower
    bare.start_tower()
    bare.tower = f"{first},{bare.tower}"
    bare.store()
    consumer = bare.consumer(topic)
    original.kill()
    producer = bare.producer(topic)
    producer.send(b"still here")
    producer.flush(10)
    assert [record.value for record in take(consumer, 1)] == [b"still here"]
    eventually(lambda: producer.tower, "the other tower answers")
