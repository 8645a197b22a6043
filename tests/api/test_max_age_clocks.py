"""Consumers with ``max_age_s`` and producers whose clocks differ, or are set meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from chappe import Consumer, Forwarder, Producer
from chappe.errors import TooSlow
from chappe.log.batch import Record
from chappe.testing import Log, World

AHEAD = [-600.0, -3.0, 3.0, 600.0]


class Source:
    """A producer on a host of its own."""

    def __init__(self, world: World, ahead_s: float, **options: object) -> None:
        self.world = world
        world.set_clock("far", ahead_s)
        with world.on("far"):
            self.producer = Producer("t", **options)  # type: ignore[arg-type]
        self.sent = 0

    def send(self) -> None:
        with self.world.on("far"):
            self.producer.send(str(self.sent))
            self.producer.flush(10)
        self.sent += 1

    def close(self) -> None:
        with self.world.on("far"):
            self.producer.close()


@pytest.fixture
def far(chappe_log: Log) -> Iterator[Callable[[float], Source]]:
    made: list[Source] = []

    def make(ahead_s: float) -> Source:
        made.append(Source(chappe_log.world, ahead_s))
        return made[-1]

    yield make
    for each in made:
        each.close()


@contextmanager
def ends_at(age_s: float) -> Iterator[None]:
    with pytest.raises(TooSlow) as told:
        yield
    assert age_s - 0.1 <= told.value.age_s < age_s + 1.0


def take(consumer: Consumer, timeout: float = 5.0) -> list[Record]:
    batch = consumer.poll(timeout)
    return [] if batch is None else list(batch)


@pytest.mark.parametrize("ahead_s", AHEAD)
def test_what_is_fresh_passes_and_what_is_old_does_not(
    chappe_log: Log, far: Callable[[float], Source], ahead_s: float
) -> None:
    source = far(ahead_s)
    with Consumer("t", max_age_s=2.0) as consumer:
        consumer.wait_ready()
        for n in range(3):
            source.send()
            assert [each.value for each in take(consumer)] == [b"%d" % n]
            chappe_log.world.advance(1.0)
        source.send()
        chappe_log.world.advance(5.0)
        with ends_at(5.0):
            consumer.poll(5)


@pytest.mark.parametrize("ahead_s", AHEAD)
def test_what_a_store_kept_is_judged_by_its_producers_clock(
    chappe_log: Log, far: Callable[[float], Source], ahead_s: float
) -> None:
    source = far(ahead_s)
    source.send()
    chappe_log.world.advance(30.0)
    source.send()
    chappe_log.world.advance(10.0)
    with Consumer("t", max_age_s=20.0, on_stale="drop") as consumer:
        assert [each.value for each in take(consumer)] == [b"1"]
        assert consumer.too_old == 1


@pytest.mark.parametrize("ahead_s", AHEAD)
def test_the_store_knows_the_clock_of_a_producer_that_is_gone(
    chappe_log: Log, far: Callable[[float], Source], ahead_s: float
) -> None:
    source = far(ahead_s)
    source.send()
    source.close()
    chappe_log.world.kill("far")
    chappe_log.world.advance(10.0)
    with Consumer("t", max_age_s=12.0) as consumer:
        assert [each.value for each in take(consumer)] == [b"0"]
    chappe_log.world.advance(10.0)
    with Consumer("t", max_age_s=12.0) as consumer, ends_at(20.0):
        consumer.poll(5)


@pytest.mark.parametrize("jump_s", [-600.0, -3.0, 3.0, 600.0])
def test_a_producers_clock_that_is_set_is_noticed(
    chappe_log: Log, far: Callable[[float], Source], jump_s: float
) -> None:
    source = far(0.0)
    with Consumer("t", max_age_s=2.0) as consumer:
        consumer.wait_ready()
        source.send()
        assert take(consumer)
        chappe_log.world.advance(0.5)
        source.send()  # by its clock of before
        chappe_log.world.advance(0.2)
        chappe_log.world.set_clock("far", jump_s)
        chappe_log.world.advance(0.2)
        source.send()
        assert take(consumer)
        assert take(consumer)
        chappe_log.world.advance(0.2)
        source.send()
        chappe_log.world.advance(5.0)
        with ends_at(5.0):
            consumer.poll(5)


@pytest.mark.parametrize("jump_s", [-600.0, 600.0])
def test_our_own_clock_may_be_set(chappe_log: Log, far: Callable[[float], Source], jump_s: float) -> None:
    source = far(0.0)
    with chappe_log.world.on("near"), Consumer("t", max_age_s=2.0) as consumer:
        consumer.wait_ready()
        source.send()
        assert take(consumer)
        chappe_log.world.set_clock("near", jump_s)
        source.send()
        assert take(consumer)
        source.send()
        chappe_log.world.advance(5.0)
        with ends_at(5.0):
            consumer.poll(5)


def test_a_loop_notices_that_the_clock_was_set(chappe_log: Log, far: Callable[[float], Source]) -> None:
    source = far(0.0)
    with Consumer("t", max_age_s=2.0, on_stale="drop") as consumer:
        consumer.wait_ready()
        source.send()
        assert take(consumer)
        chappe_log.world.set_clock("far", -1.5)
        with chappe_log.world.on("far"):
            source.producer.send_many([b"%d" % n for n in range(10)])
            source.producer.flush(10)
        got = []
        for record in consumer.to_end():
            got.append(record.value)
            chappe_log.world.advance(0.4)
        assert 5 <= len(got) <= 6  # and not two
        assert consumer.too_old == 10 - len(got)


@pytest.mark.parametrize("ahead_s", [-600.0, 600.0])
def test_behind_a_forwarder(chappe_world: World, ahead_s: float) -> None:
    with chappe_world.on("forwarder"):
        forwarder = Forwarder(chappe_world.directory / "forwarder")
    source = Source(chappe_world, ahead_s, forwarders="127.0.0.1")
    with Consumer("t", forwarders="127.0.0.1", max_age_s=2.0) as consumer:
        consumer.wait_ready()
        for jump_s in (0.0, -100.0, 100.0):
            chappe_world.set_clock("far", ahead_s + jump_s)
            for _ in range(3):
                source.send()
                assert take(consumer)
                chappe_world.advance(0.5)
        source.send()
        chappe_world.advance(5.0)
        with ends_at(5.0):
            consumer.poll(5)
    source.close()
    with chappe_world.on("forwarder"):
        forwarder.close()


def test_nobody_is_asked_without_a_limit(chappe_log: Log, far: Callable[[float], Source]) -> None:
    source = far(600.0)
    with Consumer("t") as consumer:
        source.send()
        assert take(consumer)
        assert consumer._core.clocks is None


def test_a_producer_that_nobody_has_asked_is_taken_to_have_our_clock(
    chappe_log: Log, far: Callable[[float], Source]
) -> None:
    source = far(0.0)
    source.send()
    source.close()
    chappe_log.store.close()
    chappe_log.start_store()
    chappe_log.world.kill("far")
    chappe_log.world.advance(10.0)
    for max_age_s, found in ((12.0, 1), (8.0, 0)):
        with Consumer("t", max_age_s=max_age_s, on_stale="drop") as consumer:
            assert len(take(consumer)) == found


def test_who_waits_for_a_clock_is_told_though_later_records_do_not_need_it(
    chappe_log: Log, far: Callable[[float], Source]
) -> None:
    world, told = chappe_log.world, list[float]()
    source = far(0.0)
    with world.on("near"), Consumer("t", max_age_s=30.0, on_stale="drop") as consumer:
        consumer.wait_ready()
        source.send()
        assert [each.value for each in take(consumer)] == [b"0"]
        for other in ("far", "store"):
            world.cut("near", other)
        source.send()  # is too old when it comes, unless the clock was set meanwhile, ...
        world.advance(40.0)
        source.send()  # ... and this is not
        world.kill("far")
        world.mend()
        world.advance(10.0)
        assert consumer.take() is None
        consumer.on_ready = lambda: told.append(world.now)
        world.advance(10.0)
        assert told
        assert [each.value for each in take(consumer, 0.0)] == [b"2"]
