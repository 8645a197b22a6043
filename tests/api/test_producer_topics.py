"""One producer for several topics."""

from __future__ import annotations

import asyncio
import threading
import time
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.api.members import PATIENCE_S, read
from tests.waiting import new_threads

from chappe.api.log import topic_writers as module
from chappe.api.log.aio import AsyncProducer
from chappe.api.log.consumer import Consumer
from chappe.api.log.producer import Producer
from chappe.api.log.store import Store
from chappe.api.log.topic_writers import TopicProgress
from chappe.errors import BufferFull, IdentityInUse, StorageFormat, TimedOut, UsageError
from chappe.log.batch import encode_batch


def found(tower: str, topic: str, count: int) -> list[tuple[int, bytes | None]]:
    with Consumer(topic, tower=tower, reset="earliest") as consumer:
        return [(record.offset, record.value) for record in read(consumer, count)]


def test_each_topic_has_its_own_offsets_in_one_partition(tower: str, store: Store) -> None:
    threads = set(threading.enumerate())
    with Producer("own", tower=tower) as producer:
        assert not new_threads(threads)
        for number in range(100):
            assert producer.send(b"a%d" % number) == number
            assert producer.send(b"b%d" % number, topic="other") == number
        assert producer.send_many([b"c"] * 3, topic="third") == range(3)
        assert producer.send_batch(encode_batch(0, [b"d"] * 2, 1), topic="third") == range(3, 5)
        assert not new_threads(threads)
        producer.flush(PATIENCE_S)

        assert producer.topics == {
            "own": TopicProgress(100, 100), "other": TopicProgress(100, 100), "third": TopicProgress(5, 5)
        }  # fmt: skip
        assert (producer.topic, producer.next_offset, producer.stored) == ("own", 100, 100)
        with Consumer("*", tower=tower, reset="earliest") as consumer:
            records = read(consumer, 205)
    assert {record.partition for record in records} == {producer.partition}
    for topic, letter in (("own", b"a"), ("other", b"b")):
        of_topic = [(record.offset, record.value) for record in records if record.topic == topic]
        assert of_topic == [(number, letter + b"%d" % number) for number in range(100)]


def test_without_a_topic_of_its_own_each_send_names_one(tower: str, store: Store) -> None:
    with Producer(tower=tower) as producer:
        for call in (
            lambda: producer.send(b"x"),
            lambda: producer.send_many([b"x"]),
            lambda: producer.send_batch(encode_batch(0, [b"x"], 1)),
            lambda: producer.next_offset,
        ):
            with pytest.raises(UsageError, match="name one, as in send"):
                call()
        producer.flush(PATIENCE_S)
        assert producer.topics == {}
        assert producer.send(b"x", topic="named") == 0
        with pytest.raises(UsageError):
            producer.send(b"x", topic="")
    assert found(tower, "named", 1) == [(0, b"x")]


def test_a_fast_sequence_over_many_topics_is_gathered_in_each(tower: str) -> None:
    producer = Producer("a", tower=tower)
    with producer._lock:  # so that our thread does not send them
        common = producer._writer(None)._common
        common.sent_at, common.silence_s = time.monotonic(), 1e9
        for _ in range(10):
            for topic in ("a", "b", "c"):
                producer.send(b"x", topic=topic)
        assert [(core.published, core.next_offset) for core in producer._topics.partitions()] == [(0, 10)] * 3
    producer.leave(0.0)


def test_errors_say_how_much_of_which_topic(tower: str) -> None:
    producer = Producer("a", tower=tower)
    producer.send_many([b"x"] * 3)
    producer.send(b"x", topic="b")
    with pytest.raises(TimedOut, match="3 records of topic 'a' and 1 records of topic 'b' are not stored"):
        producer.close(0.0)


def test_the_bound_is_for_all_topics_together(tower: str) -> None:
    producer = Producer(tower=tower, buffer_bytes=100_000, on_full="error")
    values = [b"x" * 1024] * 30
    for topic in ("a", "b", "c"):
        producer.send_many(values, topic=topic)
    with pytest.raises(BufferFull, match=r"bytes \(\d+ of topic 'a'\) are not stored yet, the buffer is full"):
        producer.send_many(values * 10, topic="a")
    assert sum(each.next_offset for each in producer.topics.values()) < 300
    producer.leave(0.0)


def test_the_number_of_topics_is_bounded(tower: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PRODUCER_TOPICS_MAX", 2)
    producer = Producer("a", tower=tower)
    producer.send(b"x", topic="b")
    with pytest.raises(UsageError, match="at most 2 topics"):
        producer.send(b"x", topic="c")
    producer.leave(0.0)


def test_an_identity_lasts_for_all_topics(tower: str, tmp_path: Path) -> None:
    first = Producer("own", tower=tower, identity="me", directory=tmp_path)
    first.send(b"a")
    first.send_many([b"b0", b"b1"], topic="other/ü")
    with pytest.raises(IdentityInUse):
        Producer("own", tower=tower, identity="me", directory=tmp_path)
    with pytest.raises(TimedOut):
        first.close(0.0)

    with ExitStack() as closing:
        again = closing.enter_context(Producer("own", tower=tower, identity="me", directory=tmp_path))
        assert again.partition == first.partition
        assert again.topics == {"own": TopicProgress(1, 0), "other/ü": TopicProgress(2, 0)}
        closing.enter_context(Store(tmp_path / "store", tower=tower))
        again.flush(PATIENCE_S)  # what the first life left, though this one sends nothing to it
        assert again.send(b"b2", topic="other/ü") == 2
        again.flush(PATIENCE_S)
        assert found(tower, "other/ü", 3) == [(0, b"b0"), (1, b"b1"), (2, b"b2")]
        assert found(tower, "own", 1) == [(0, b"a")]


def test_an_identity_without_a_topic_stays_so(tower: str, store: Store, tmp_path: Path) -> None:
    for life in range(2):
        with Producer(tower=tower, identity="me", directory=tmp_path) as producer:
            assert producer.send(b"x", topic="a") == life
    with pytest.raises(StorageFormat, match="a producer without a topic of its own"):
        Producer("a", tower=tower, identity="me", directory=tmp_path)


def test_the_asyncio_face_writes_several_topics(tower: str, store: Store) -> None:
    async def run() -> None:
        async with AsyncProducer(tower=tower) as producer:
            assert await producer.send(b"x", topic="a") == 0
            assert await producer.send(b"y", topic="b") == 0
            await producer.flush(PATIENCE_S)
            assert producer.topics == {"a": TopicProgress(1, 1), "b": TopicProgress(1, 1)}
            assert producer.topic is None

    asyncio.run(run())


def test_it_shows_what_it_is(tower: str, store: Store) -> None:
    producer = Producer(tower=tower)
    assert repr(producer) == f"<Producer of partition {producer.partition[:8]}, no topic yet>"
    for topic in "abcde":
        producer.send(b"x", topic=topic)
    producer.close()
    shown = f"<closed Producer of partition {producer.partition[:8]}, 'a' at 1 (1 stored), "
    assert repr(producer) == shown + "'b' at 1 (1 stored), 'c' at 1 (1 stored) and 2 topics more>"
