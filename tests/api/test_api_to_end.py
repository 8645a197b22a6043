"""Reading to the end, and being ready for what comes next."""

from __future__ import annotations

import asyncio
import threading
from functools import partial
from pathlib import Path

import pytest
from tests.api.members import PATIENCE_S, values
from tests.waiting import Clock, until

from chappe.api.log.aio import AsyncConsumer, AsyncProducer
from chappe.api.log.consumed_batch import ConsumedBatch
from chappe.api.log.consumer import Consumer
from chappe.api.log.producer import Producer
from chappe.api.log.store import Store
from chappe.errors import Closed, TimedOut
from chappe.log.sources import Key


def put(tower: str, topic: str, *records: str) -> None:
    with Producer(topic, tower=tower) as producer:
        producer.send_many(records)
        producer.flush(PATIENCE_S)


def test_everything_that_is_stored_comes_and_then_the_loop_ends(tower: str, store: Store) -> None:
    put(tower, "t", "a", "b")
    put(tower, "t", "c")
    with Consumer("t", tower=tower) as consumer:
        assert set(values(list(consumer.to_end(PATIENCE_S)))) == {b"a", b"b", b"c"}
        assert list(consumer.to_end(PATIENCE_S)) == []
        put(tower, "t", "d")
        assert values(list(consumer.to_end(PATIENCE_S))) == [b"d"]
        put(tower, "t", "e")
        assert [each.values() for each in consumer.batches_to_end(PATIENCE_S)] == [[b"e"]]


def test_a_topic_that_nobody_has_ends_at_once(tower: str, store: Store) -> None:
    put(tower, "other", "a")
    with Consumer("t", tower=tower) as consumer:
        assert list(consumer.to_end(PATIENCE_S)) == []


def test_a_loop_left_early_goes_on_in_the_next_one(tower: str, store: Store) -> None:
    put(tower, "t", *"abcd")
    with Consumer("t", tower=tower) as consumer:
        assert next(iter(consumer.to_end(PATIENCE_S))).value == b"a"
        assert values(list(consumer.to_end(PATIENCE_S))) == [b"b", b"c", b"d"]


def test_it_ends_on_a_live_topic_with_all_that_was_stored_before(tower: str, store: Store) -> None:
    stop = threading.Event()
    with Producer("t", tower=tower) as producer, Consumer("t", tower=tower) as consumer:

        def send() -> None:
            while not stop.wait(0.001):
                producer.send("x")

        thread = threading.Thread(target=send)
        thread.start()
        try:
            for _ in range(3):
                producer.flush(PATIENCE_S)
                before = producer.stored
                for record in consumer.to_end(PATIENCE_S):
                    last = record.offset
                assert last >= before - 1
        finally:
            stop.set()
            thread.join()


def test_without_a_store_it_is_what_producers_keep(tower: str) -> None:
    with Producer("t", tower=tower, min_acks=0) as producer, Consumer("t", tower=tower) as consumer:
        producer.send_many(["a", "b"])
        assert values(list(consumer.to_end(PATIENCE_S))) == [b"a", b"b"]


def test_who_is_missing_is_said(tower: str) -> None:
    with Consumer("t", tower=tower) as consumer:
        consumer.wait_ready(PATIENCE_S)  # nobody could be missed
        with pytest.raises(TimedOut, match=r"knows no store, and no producer of 't'.*chappe store DIRECTORY"):
            list(consumer.to_end(0.01))
    with Consumer("t", tower="127.0.0.1:1") as consumer:
        for wait in (consumer.wait_ready, lambda timeout: list(consumer.to_end(timeout))):
            with pytest.raises(TimedOut, match=r"no tower answers at 127\.0\.0\.1:1 .* chappe up"):
                wait(0.01)
    for min_acks, missing in ((0, "nobody listened to topic 't'"), (2, "0 of the 2 stores that min_acks asks for")):
        producer = Producer("t", tower=tower, min_acks=min_acks)
        until(partial(getattr, producer, "tower"))
        with pytest.raises(TimedOut, match=missing):
            producer.wait_ready(0.0)
        producer.close()
    for closed in (producer, consumer):
        with pytest.raises(Closed):
            closed.wait_ready(0.01)


def test_only_who_waits_times_out_not_who_is_busy_with_a_batch(
    tower: str, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tower, "t", "a")
    with Consumer("t", tower=tower) as consumer:
        unread = consumer._unread

        def and_one_that_never_comes(since: float) -> dict[Key, int] | None:
            found = unread(since)
            return None if found is None else {**found, ("t", "p"): 9}

        monkeypatch.setattr(consumer, "_unread", and_one_that_never_comes)
        monkeypatch.setattr(consumer, "_still_unread", lambda left: left)
        steps = consumer.steps_to_end(PATIENCE_S)
        until(lambda: isinstance(next(steps), ConsumedBatch))
        clock = Clock(monkeypatch)
        clock.forward_s += 2 * PATIENCE_S
        assert not isinstance(next(steps), ConsumedBatch)
        clock.forward_s += 2 * PATIENCE_S
        with pytest.raises(TimedOut, match=r"nothing came of partition p of topic 't', which ends at offset 8"):
            next(steps)


def test_a_record_sent_after_wait_ready_is_not_missed(tower: str, store: Store) -> None:
    with Producer("t", tower=tower) as producer:
        producer.wait_ready(PATIENCE_S)
        for number in range(3):
            with Consumer("t", tower=tower, reset="latest") as consumer:
                consumer.wait_ready(PATIENCE_S)
                producer.send(b"%d" % number)
                batch = consumer.poll(PATIENCE_S)
                assert batch is not None
                assert batch.values() == [b"%d" % number]
            producer.flush(PATIENCE_S)  # what no store has yet is of the next one's time, too


def test_the_same_under_asyncio(tower: str, tmp_path: Path) -> None:
    async def run() -> None:
        async with AsyncProducer("t", tower=tower) as producer, AsyncConsumer("t", tower=tower) as consumer:
            with pytest.raises(TimedOut):
                async for _ in consumer.to_end(0.01):
                    pass
            with await asyncio.to_thread(Store, tmp_path, tower=tower):
                await producer.wait_ready(PATIENCE_S)
                await consumer.wait_ready(PATIENCE_S)
                await producer.send("a")
                await producer.flush(PATIENCE_S)
                assert [record.value async for record in consumer.to_end(PATIENCE_S)] == [b"a"]
                assert [batch async for batch in consumer.batches_to_end(PATIENCE_S)] == []

    asyncio.run(run())
