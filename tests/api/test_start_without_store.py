"""A consumer begins with what producers keep, where no store is and nothing is sent."""

from __future__ import annotations

import math

from tests.api.members import read, values, wait_until

from chappe.api.log.consumer import Consumer
from chappe.api.log.producer import Producer


def test_a_second_consumer_of_a_process_does_not_wait_for_the_next_head(tower: str) -> None:
    """Its node has subscribed to the topic already, so no producer sees a new listener; but it asks."""
    with Producer("hello", tower=tower, min_acks=0) as producer, Consumer("hello", tower=tower) as first:
        producer.send_many([b"0", b"1"])
        assert values(read(first, 2)) == [b"0", b"1"]
        (partition,) = producer._core.partitions()
        with producer.lock:
            partition._head_at = math.inf
        with Consumer("hello", tower=tower) as second:
            assert second._node.node is first._node.node
            assert values(read(second, 2)) == [b"0", b"1"]
        wait_until(lambda: first.poll(0) is None)
