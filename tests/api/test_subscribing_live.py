"""Topics are subscribed and unsubscribed while a consumer runs, on real sockets."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from pathlib import Path

import pytest
from tests.api.members import PATIENCE_S, patience, read, values, wait_until

from chappe.api.log.aio import AsyncConsumer
from chappe.api.log.consumer import Consumer
from chappe.api.log.producer import Producer
from chappe.api.log.store import Store
from chappe.errors import Closed, UsageError
from chappe.log.batch import Record


def publish(tower: str, topic: str, *records: bytes) -> None:
    with Producer(topic, tower=tower) as producer:
        producer.send_many(list(records))
        producer.flush(PATIENCE_S)


def test_topics_come_and_go_and_each_goes_on_where_it_was(tower: str, store: Store) -> None:
    with Producer(tower=tower) as producer, Consumer("a", tower=tower) as consumer:

        def send(value: bytes, *topics: str) -> None:
            for topic in topics:
                producer.send(value, topic=topic)
            producer.flush(PATIENCE_S)

        send(b"0", "a", "b", "c.x")
        assert [each.topic for each in read(consumer, 1)] == ["a"]
        consumer.subscribe("b", "c.*", "b")
        assert {each.topic for each in read(consumer, 2)} == {"b", "c.x"}
        consumer.unsubscribe("b", "c.*")
        send(b"1", "b", "c.x", "a")
        assert [(each.topic, each.value) for each in read(consumer, 1)] == [("a", b"1")]
        send(b"2", "b", "c.x")
        consumer.subscribe("c.*", "b")
        found = [(each.topic, each.value) for each in read(consumer, 4)]
        assert sorted(found) == [("b", b"1"), ("b", b"2"), ("c.x", b"1"), ("c.x", b"2")]
        assert {topic: offset for (topic, _), offset in consumer.position().items()} == {"a": 2, "b": 3, "c.x": 3}


def test_live_records_come_of_what_is_subscribed_by_now_without_a_store(tower: str) -> None:
    """Its publisher confirms one form of a topic for each connection, and takes it back with the subscription."""
    with Producer(tower=tower, min_acks=0) as producer, Consumer("a", "b", tower=tower) as consumer:
        for number in range(3):
            for topic in "ab":
                producer.send(b"%d" % number, topic=topic)
            assert {each.topic for each in read(consumer, 2)} == {"a", "b"}
            consumer.unsubscribe("b")
            consumer.subscribe("b")
            consumer.wait_ready(PATIENCE_S)


def test_what_waited_to_be_read_comes_again_and_a_loop_goes_on_with_the_others(tower: str, store: Store) -> None:
    publish(tower, "a", *[b"%d" % n for n in range(5)])
    publish(tower, "b", *[b"%d" % n for n in range(5)])
    with Consumer("a", "b", tower=tower) as consumer, patience(consumer):
        seen: list[Record] = []
        for record in consumer:
            seen.append(record)
            if len(seen) == 2:
                left = record.topic
                consumer.unsubscribe(left)
            if len({(each.topic, each.offset) for each in seen}) == 7:
                break
        assert {each.topic for each in seen[2:]} == {"a", "b"} - {left}
        assert [v for (topic, _), v in consumer.position().items() if topic == left] == [2]
        consumer.subscribe(left)
        assert values(read(consumer, 3)) == [b"2", b"3", b"4"]


def test_another_thread_that_polls_gets_nothing_of_it_afterwards(tower: str, store: Store) -> None:
    with Producer(tower=tower) as producer, Consumer("a", "b", tower=tower) as consumer:
        taken: list[Record] = []
        over = threading.Event()

        def poll() -> None:
            while not over.is_set():
                taken.extend(consumer.poll(0.05) or ())

        reader = threading.Thread(target=poll)
        reader.start()
        try:
            for number in range(60):
                for topic in "ab":
                    producer.send(b"%d" % number, topic=topic)
                if number % 10 == 5:
                    consumer.unsubscribe("b")
                if number % 10 == 9:
                    consumer.subscribe("b")
            producer.flush(PATIENCE_S)
            wait_until(lambda: len(taken) == 120, lambda: len(taken))
        finally:
            over.set()
            reader.join()
        counts = Counter((each.topic, each.offset) for each in taken)
        assert set(counts.values()) == {1}


def test_a_thread_that_waits_for_ever_gets_what_is_subscribed_meanwhile(tower: str, store: Store) -> None:
    publish(tower, "b", b"0")
    with Consumer("a", tower=tower) as consumer, patience(consumer):
        consumer.unsubscribe("a")
        found: list[object] = []
        reader = threading.Thread(target=lambda: found.append(consumer.poll(None)))
        reader.start()
        consumer.subscribe("b")
        reader.join()
        assert getattr(found[0], "topic", None) == "b"


def test_committed_positions_are_kept_and_gone_on_from(tower: str, store: Store, tmp_path: Path) -> None:
    publish(tower, "a", b"0", b"1")
    with Consumer("a", tower=tower, identity="me", directory=tmp_path) as consumer:
        read(consumer, 2)
        consumer.unsubscribe("a")
        consumer.subscribe("b")
        consumer.commit()
    publish(tower, "a", b"2")
    with Consumer("b", tower=tower, identity="me", directory=tmp_path) as consumer:
        assert [each for (topic, _), each in consumer.position().items() if topic == "a"] == [2]
        consumer.subscribe("a")
        assert values(read(consumer, 1)) == [b"2"]


def test_the_latest_of_a_topic_that_is_subscribed_later(tower: str, store: Store) -> None:
    publish(tower, "b", b"old")
    with Consumer("a", tower=tower, reset="latest") as consumer, Producer("b", tower=tower) as producer:
        consumer.wait_ready(PATIENCE_S)
        consumer.subscribe("b")
        consumer.wait_ready(PATIENCE_S)
        producer.send(b"new")
        producer.flush(PATIENCE_S)
        assert values(read(consumer, 1)) == [b"new"]


def test_what_is_wrong_is_said_in_a_sentence_and_changes_nothing(tower: str, store: Store) -> None:
    with Consumer("a", "b*", tower=tower) as consumer:
        consumer.subscribe("a")
        with pytest.raises(UsageError, match=r"'b' is not subscribed; subscribed are: 'a', 'b\*'"):
            consumer.unsubscribe("a", "b")
        for call in (consumer.subscribe, consumer.unsubscribe):
            with pytest.raises(UsageError, match="at least one topic"):
                call()
            with pytest.raises(UsageError, match="one by one"):
                call(["a"])  # type: ignore[arg-type]
        assert "'a', 'b*'" in repr(consumer)
        consumer.unsubscribe("a", "b*")
        assert "no topics" in repr(consumer)
        assert consumer.poll(0) is None
    for call in (consumer.subscribe, consumer.unsubscribe):
        with pytest.raises(Closed):
            call("a")


def test_topics_come_and_go_in_an_event_loop(tower: str, store: Store) -> None:
    publish(tower, "a", b"0")
    publish(tower, "b", b"0")

    async def run() -> None:
        async with AsyncConsumer("a", tower=tower) as consumer:
            first = await consumer.poll(PATIENCE_S)
            pending = asyncio.create_task(consumer.poll(PATIENCE_S))
            await asyncio.sleep(0)
            await consumer.unsubscribe("a")
            await consumer.subscribe("b")
            second = await pending
            assert first is not None
            assert second is not None
            assert (first.topic, second.topic) == ("a", "b")
            with pytest.raises(UsageError, match="not subscribed"):
                await consumer.unsubscribe("a")

    asyncio.run(run())
