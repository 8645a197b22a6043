"""What a consumer keeps of partitions that nothing is heard of any more: their positions, and not those of nothing."""

from __future__ import annotations

import pytest
from tests.fixed_clock import FixedClock

from chappe.data.topic import Filter
from chappe.limits import LOG_LIMITS, LogLimits
from chappe.log.batch import Batch, encode_batch
from chappe.log.consumer import EARLIEST, LogConsumer
from chappe.log.delivery import Delivery, Partition, Reset
from chappe.log.gap import PartitionGap
from chappe.log.messages import BatchMessage, Head
from chappe.log.sources import Sources

KEY = ("hello", "P")
WALL = 1_700_000_000_000_000
CLOCK = FixedClock(us=WALL)


def delivered(*keys: tuple[str, str], at: float = 0.0, limits: LogLimits = LOG_LIMITS) -> Delivery:
    """Three records of each were delivered."""
    delivery = Delivery("C", EARLIEST, Sources(32), {}, limits, clock=CLOCK)
    for key in keys:
        state = delivery.partitions[key] = Partition(PartitionGap(0, 3, heard_at=at))
        delivery.advance(key, state, Batch.parse(encode_batch(0, [b"a", b"b", b"c"], WALL)))
    return delivery


def test_a_quiet_partition_is_kept_as_its_position_and_goes_on_from_there() -> None:
    delivery = delivered(KEY)
    delivery.settle(LOG_LIMITS.settled_s - 1)
    assert KEY in delivery.partitions
    delivery.settle(LOG_LIMITS.settled_s)
    assert (delivery.partitions, delivery.settled) == ({}, {KEY: 3})

    state = delivery.find(KEY)
    assert state is not None
    assert (state.gap.next, state.gap.head, delivery.settled) == (3, 3, {})
    assert delivery.advance(KEY, state, Batch.parse(encode_batch(0, [b"a"], WALL))) == []  # it came already


def test_what_is_behind_or_named_by_the_user_is_not_settled() -> None:
    delivery = delivered(KEY)
    delivery.gaps.want(KEY, delivery.partitions[KEY].gap)
    delivery.settle(LOG_LIMITS.settled_s * 9)
    assert KEY in delivery.partitions
    delivery.go_to(KEY, 1)
    delivery.gaps.close(KEY, delivery.partitions[KEY].gap)
    delivery.settle(LOG_LIMITS.settled_s * 9)
    assert KEY in delivery.partitions


def test_positions_beyond_the_bound_go_where_no_store_lists_the_partition() -> None:
    keys = [("hello", f"P{number}") for number in range(6)]
    delivery = delivered(*keys, limits=LogLimits(settled_max=3))
    delivery._sources.found("S", "tcp://s:1", 0.0)
    delivery._sources.stores["S"].note(keys[0], 0, 3)
    delivery.settle(LOG_LIMITS.settled_s)

    assert list(delivery.settled) == [keys[0], keys[4], keys[5]]


@pytest.mark.parametrize("reset", [EARLIEST, Reset("latest")])
def test_partitions_that_are_only_spoken_of_have_a_bound_and_are_forgotten(reset: Reset) -> None:
    consumer = LogConsumer(
        "C", [Filter.parse("hello")], reset, limits=LogLimits(unknown_partitions_max=50), clock=CLOCK
    )
    consumer.start(0.0)
    body = encode_batch(0, [b"x"], WALL)
    for number in range(500):
        consumer.handle_message(Head("hello", f"N{number}", "hello", 7), 0.0)
    consumer.handle_message(BatchMessage("hello", "REAL", "hello", body), 0.0)
    if reset is EARLIEST:
        assert len(consumer.heads()) == 51

    now = 0.0
    while now < 200.0:
        now = max(now + 0.01, min(consumer.next_timeout(), now + 1.0))
        consumer.handle_timeout(now)
    assert consumer.positions() == {("hello", "REAL"): 1}
    assert consumer.caught_up
    assert not consumer._delivery.partitions
