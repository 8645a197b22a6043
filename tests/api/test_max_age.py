"""Readers that take nothing that is too old, on a clock that takes no time."""

from __future__ import annotations

import asyncio
import select
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path

import pytest

from chappe import AsyncConsumer, AsyncEndpoint, Consumer, Endpoint, Producer
from chappe.api.mesh.aged_subscriber import AgedSubscriber
from chappe.api.mesh.arguments import encode_value
from chappe.api.mesh.subscriber import Subscriber
from chappe.errors import Closed, TooSlow, UsageError
from chappe.log.events import RecordsTooOld
from chappe.mesh.events import MessagesDropped
from chappe.testing import Log, World


def made(log: Log, topic: str = "t", count: int = 3, apart_s: float = 10.0) -> None:
    """Records 0, 1, ..., of one partition, one after the other."""
    with Producer(topic) as producer:
        for n in range(count):
            producer.send(str(n))
            producer.flush(10)
            log.world.advance(apart_s)


@pytest.mark.parametrize("wrong", [0, -1, float("inf"), float("nan"), True, "1"])
def test_an_age_that_is_none(chappe_world: World, wrong: float) -> None:
    with pytest.raises(UsageError, match="max_age_s is a number of seconds above 0"):
        Consumer("t", max_age_s=wrong)
    with Endpoint() as endpoint, pytest.raises(UsageError, match="max_age_s is a number"):
        endpoint.subscribe("t", max_age_s=wrong)
    with pytest.raises(UsageError, match="on_stale is 'end' or 'drop', not 'die'"):
        Consumer("t", max_age_s=1, on_stale="die")  # type: ignore[arg-type]


# -- the log ----------------------------------------------------------------------------------------------


def test_the_first_record_that_is_too_old_ends_a_consumer_where_it_stands(chappe_log: Log, tmp_path: Path) -> None:
    made(chappe_log, count=4, apart_s=10.0)  # they are 40, 30, 20 and 10 s old
    with Consumer("t", max_age_s=25.0, identity="snail", directory=tmp_path) as consumer:
        with pytest.raises(
            TooSlow, match=r"a record of topic 't', partition .* was 4\d\.\d s old .* at most 25 s"
        ) as told:
            consumer.poll(10)
        assert 40 <= told.value.age_s < 45
        assert told.value.count == 2
        for _ in range(2):
            with pytest.raises(TooSlow):
                consumer.poll(10)
        assert list(consumer.position().values()) == [0]
        chappe_log.write("t", "later")
        chappe_log.world.advance(5)
        assert list(consumer.position().values()) == [0]  # what comes afterwards counts for nothing
        consumer.commit()
    with Consumer("t", identity="snail", directory=tmp_path) as consumer:
        assert [each.value for each in islice(consumer, 4)] == [b"0", b"1", b"2", b"3"]


def test_who_has_ended_is_no_reader_that_is_behind(chappe_log: Log) -> None:
    made(chappe_log, count=4, apart_s=10.0)
    with Consumer("t", max_age_s=5.0) as consumer:
        with pytest.raises(TooSlow) as told:
            consumer.poll(10)
        assert told.value.count > 1  # others waited behind it
        assert consumer._core._delivery.queued_bytes == 0


def test_what_is_too_old_is_left_out_and_counted(chappe_log: Log) -> None:
    made(chappe_log, count=4, apart_s=10.0)
    with Consumer("t", max_age_s=25.0, on_stale="drop") as consumer:
        assert [each.value for each in consumer.to_end()] == [b"2", b"3"]
        assert consumer.too_old == 2
        told = [each for each in consumer.events() if isinstance(each, RecordsTooOld)]
        assert sum(each.count for each in told) == 2
        assert 40 <= max(each.age_s for each in told) < 45
        assert "dropped" in str(told[0])
        assert list(consumer.position().values()) == [4]
        assert consumer.lag() == dict.fromkeys(consumer.lag(), 0)


def test_times_in_no_order_leave_runs(chappe_log: Log) -> None:
    now = datetime.fromtimestamp(chappe_log.world._scheduler.time_ns() / 1e9, UTC)
    ages = [0, 100, 1, 2, 100, 100, 3, 100]
    with Producer("t") as producer:
        for age in ages:
            producer.send(str(age), timestamp=now - timedelta(seconds=age))
        producer.flush(10)
    with Consumer("t", max_age_s=50.0, on_stale="drop") as consumer:
        batches = list(consumer.batches_to_end())
        assert [(each.first, each.next) for each in batches] == [(0, 1), (2, 4), (6, 7)]
        assert [[record.offset for record in each] for each in batches] == [[0], [2, 3], [6]]
        assert consumer.too_old == 4
        assert consumer._core._delivery.queued_bytes == 0
        chappe_log.write("t", "young")
        assert consumer.poll(10) is not None


def test_old_and_young_that_take_turns_wait_as_one_batch(chappe_log: Log) -> None:
    now = datetime.fromtimestamp(chappe_log.world._scheduler.time_ns() / 1e9, UTC)
    with Producer("t") as producer:
        for number in range(101):
            producer.send(str(number), timestamp=now - timedelta(seconds=number % 2 * 100))
        producer.flush(10)
    with Consumer("t", max_age_s=50.0, on_stale="drop") as consumer:
        offsets: list[int] = []
        while batch := consumer.poll(10):
            offsets += [each.offset for each in batch]
            assert len(consumer._inbox.queue) <= 1
            assert consumer._core._delivery.queued_bytes == sum(len(each.batch.raw) for each in consumer._inbox.queue)
            assert list(consumer.position().values()) == [batch.next]
        assert offsets == list(range(0, 101, 2))
        assert consumer.too_old == 50


def test_young_ones_that_wait_behind_old_ones_may_be_too_old_when_they_are_taken(chappe_log: Log) -> None:
    now = datetime.fromtimestamp(chappe_log.world._scheduler.time_ns() / 1e9, UTC)
    with Producer("t") as producer:
        for age in (0, 100, 40, 0):
            producer.send(str(age), timestamp=now - timedelta(seconds=age))
        producer.flush(10)
    with Consumer("t", max_age_s=50.0, on_stale="drop") as consumer:
        assert consumer.poll(10) is not None
        chappe_log.world.advance(15.0)
        assert [each.value for each in consumer.to_end()] == [b"0"]
        assert consumer.too_old == 2


def test_a_loop_looks_at_each_record_when_its_turn_comes(chappe_log: Log) -> None:
    chappe_log.write("t", *(str(n) for n in range(10)))
    with Consumer("t", max_age_s=5.0) as consumer:
        got = []

        def loop() -> None:
            for record in consumer:
                got.append(record.offset)
                chappe_log.world.advance(1.0)

        with pytest.raises(TooSlow) as told:
            loop()
        assert 3 <= len(got) <= 6
        assert told.value.count == 10 - len(got)
        assert list(consumer.position().values()) == [len(got)]


def test_a_loop_leaves_out_what_grew_too_old_meanwhile(chappe_log: Log) -> None:
    chappe_log.write("t", *(str(n) for n in range(10)))
    with Consumer("t", max_age_s=5.0, on_stale="drop") as consumer:
        got = []
        for record in consumer.to_end():
            got.append(record.offset)
            chappe_log.world.advance(1.0)
        assert 3 <= len(got) <= 6
        assert consumer.too_old == 10 - len(got)
        assert list(consumer.position().values()) == [10]
        chappe_log.write("t", "young")
        batch = consumer.poll(10)
        assert batch is not None
        assert batch.first == 0  # of another producer


def test_the_asyncio_face_of_a_consumer(chappe_log: Log) -> None:
    made(chappe_log)

    async def program() -> int:
        async with AsyncConsumer("t", max_age_s=1.0) as consumer:
            with pytest.raises(TooSlow):
                async for _ in consumer:
                    pass
        async with AsyncConsumer("t", max_age_s=1.0, on_stale="drop") as consumer:
            assert [each async for each in consumer.to_end()] == []
            return consumer.consumer.too_old

    assert asyncio.run(program()) == 3


# -- the mesh ---------------------------------------------------------------------------------------------


@pytest.fixture
def pair(chappe_world: World) -> Iterator[tuple[Endpoint, Endpoint]]:
    with Endpoint() as here, Endpoint() as there:
        here.peer("127.0.0.1", there.listen())
        yield here, there


def publish(world: World, here: Endpoint, subscriber: Subscriber, *numbers: int) -> None:
    """Publish, and wait until they are there."""
    wanted = subscriber.available + len(numbers)
    for number in numbers:
        here.publish("t", number)
    world.wait_until(lambda: subscriber.available >= min(wanted, subscriber._messages_max))


def test_without_a_bound_nothing_is_noted(pair: tuple[Endpoint, Endpoint]) -> None:
    assert type(pair[1].subscribe("t")) is Subscriber


def test_a_message_that_waited_too_long_ends_a_subscription(
    chappe_world: World, pair: tuple[Endpoint, Endpoint]
) -> None:
    here, there = pair
    subscriber = there.subscribe("t", max_age_s=5.0)
    chappe_world.wait_until(lambda: here.core.peer_subscriptions())
    publish(chappe_world, here, subscriber, 0, 1)
    chappe_world.advance(4.0)
    publish(chappe_world, here, subscriber, 2, 3)
    found = subscriber.get(0)
    assert found is not None
    assert found.value == 0
    chappe_world.advance(2.0)
    with pytest.raises(TooSlow, match=r"a message to 't' was 6\.\d s old when it was taken, at most 5 s") as told:
        subscriber.get(0)
    assert told.value.count == 1
    assert 6 <= told.value.age_s < 7
    assert subscriber.available == 0
    with pytest.raises(TooSlow):
        subscriber.get(0)
    with pytest.raises(TooSlow):
        subscriber.poll()
    chappe_world.wait_until(lambda: not here.core.peer_subscriptions())  # nobody sends it anything
    subscriber.close()
    with pytest.raises(Closed):
        subscriber.get(0)


def test_messages_that_waited_too_long_are_dropped_and_reported(
    chappe_world: World, pair: tuple[Endpoint, Endpoint]
) -> None:
    here, there = pair
    statuses = there.statuses()
    subscriber = there.subscribe("t", max_age_s=5.0, on_stale="drop")
    chappe_world.wait_until(lambda: here.core.peer_subscriptions())
    publish(chappe_world, here, subscriber, 0, 1, 2)
    chappe_world.advance(6.0)
    publish(chappe_world, here, subscriber, 3, 4)
    assert [each.value for each in subscriber.get_many(10, 0)] == [3, 4]
    assert subscriber.dropped == 3
    (told,) = [each for each in statuses.poll() if isinstance(each, MessagesDropped)]
    assert told.count == 3
    assert str(told) == "dropped 3 messages for a subscriber to t: they were older than 5 s, up to 6.0 s"
    assert subscriber.get(0) is None


@pytest.mark.parametrize("policy", ["drop_oldest", "block"])
def test_a_descriptor_tells_of_nothing_once_all_was_dropped(
    chappe_world: World, pair: tuple[Endpoint, Endpoint], policy: str
) -> None:
    here, there = pair
    subscriber = there.subscribe("t", max_age_s=5.0, on_stale="drop", on_full=policy)  # type: ignore[arg-type]
    chappe_world.wait_until(lambda: here.core.peer_subscriptions())
    descriptor = subscriber.fd()
    publish(chappe_world, here, subscriber, 0, 1)
    assert select.select([descriptor], [], [], 0)[0]
    chappe_world.advance(6.0)
    assert subscriber.get_many(10, 0) == []
    assert not select.select([descriptor], [], [], 0)[0]


def test_what_the_endpoint_did_not_take_for_a_subscriber_counts_beside_what_was_too_old(
    chappe_world: World, pair: tuple[Endpoint, Endpoint]
) -> None:
    here, there = pair
    subscriber = there.subscribe("t", max_age_s=5.0, on_stale="drop", on_full="block")
    chappe_world.wait_until(lambda: here.core.peer_subscriptions())
    publish(chappe_world, here, subscriber, 0)
    there.core.router.dropped_here[subscriber.number] = 3
    chappe_world.advance(6.0)
    assert subscriber.get_many(10, 0) == []
    assert subscriber.dropped == 4
    subscriber.close()
    assert subscriber.dropped == 4


@pytest.mark.parametrize("policy", ["drop_oldest", "drop_newest", "block"])
def test_ages_are_those_of_what_is_left(chappe_world: World, pair: tuple[Endpoint, Endpoint], policy: str) -> None:
    """Whatever the inbox drops, and wherever: the ages stay with their messages."""
    here, there = pair
    subscriber = there.subscribe("t", max_age_s=5.0, on_stale="drop", messages_max=4, on_full=policy)  # type: ignore[arg-type]
    assert isinstance(subscriber, AgedSubscriber)
    chappe_world.wait_until(lambda: here.core.peer_subscriptions())
    publish(chappe_world, here, subscriber, 0, 1, 2)
    chappe_world.advance(3.0)
    publish(chappe_world, here, subscriber, 3, 4, 5, 6)
    chappe_world.advance(3.0)  # those of the first lot are 6 s old, the others 3
    lots = [each.value for each in subscriber.get_many(10, 0)]
    assert lots == {"drop_oldest": [3, 4, 5, 6], "drop_newest": [3], "block": [3, 4, 5, 6]}[policy]
    assert subscriber.available == 0


def test_the_fresh_ones_before_the_first_that_is_too_old_are_taken_before_it_ends(
    chappe_world: World, pair: tuple[Endpoint, Endpoint]
) -> None:
    """Of several publishers what comes last may be the oldest."""
    here, there = pair
    subscriber = there.subscribe("t", max_age_s=5.0)
    chappe_world.wait_until(lambda: here.core.peer_subscriptions())
    publish(chappe_world, here, subscriber, 0, 1)
    for number, age_s in ((2, 6.0), (3, 0.0), (4, 9.0)):
        here.try_publish(b"t", encode_value(number), since=time.monotonic() - age_s)
    chappe_world.wait_until(lambda: subscriber.available == 5)
    assert [each.value for each in subscriber.poll()] == [0, 1]
    with pytest.raises(TooSlow, match=r"was 6\.\d s old") as told:
        subscriber.poll()
    assert told.value.count == 2


def test_how_long_a_message_waited_to_be_published_counts(chappe_world: World, pair: tuple[Endpoint, Endpoint]) -> None:
    here, there = pair
    full = there.subscribe("t", on_full="block", messages_max=1)
    subscriber = there.subscribe("t", max_age_s=2.0, on_stale="drop")
    chappe_world.wait_until(lambda: here.core.peer_subscriptions())
    while here.try_publish(b"t", encode_value(0)) is not None:
        chappe_world.advance(0.1)
    waiting = [
        chappe_world.start(here.publish, "t", 1),
        chappe_world.start(here.publish_batch, [("t", 2), ("t", 3)]),
    ]
    assert {each.value for each in subscriber.get_many(100, 0)} == {0}
    chappe_world.advance(4.0)
    assert not any(each.done() for each in waiting)
    while full.get(1.0) is not None:
        assert subscriber.poll() == []
    assert all(each.done() for each in waiting)
    assert subscriber.dropped == 3


def test_the_asyncio_face_of_a_subscriber(chappe_world: World) -> None:
    async def program() -> int:
        async with AsyncEndpoint() as one, AsyncEndpoint() as other:
            heard = one.subscribe("t", max_age_s=5.0)
            await other.peer("127.0.0.1", await one.listen(), timeout=10)
            await other.publish("t", 1)
            await asyncio.sleep(10)
            with pytest.raises(TooSlow) as told:
                await heard.get(timeout=10)
            return told.value.count

    assert asyncio.run(program()) == 1


def test_how_long_a_message_waited_to_be_published_counts_for_asyncio_too(chappe_world: World) -> None:
    async def program() -> int:
        async with AsyncEndpoint() as one, AsyncEndpoint() as other:
            full = one.subscribe("t", on_full="block", messages_max=1)
            heard = one.subscribe("t", max_age_s=2.0, on_stale="drop")
            await other.peer("127.0.0.1", await one.listen(), timeout=10)
            while other.endpoint.try_publish(b"t", encode_value(0)) is not None:
                await asyncio.sleep(0.1)
            assert {each.value for each in await heard.get_many(100, 0)} == {0}
            waiting = asyncio.gather(other.publish("t", 1), other.publish_batch([("t", 2), ("t", 3)]))
            await asyncio.sleep(4.0)
            assert not waiting.done()
            while await full.get(timeout=1) is not None:
                assert await heard.get(timeout=0) is None
            await waiting
            return heard.dropped

    assert asyncio.run(program()) == 3
