"""Several partitions of one member: each gets what is meant for it, and nothing else."""

from __future__ import annotations

import math

import pytest
from tests.fixed_clock import FixedClock

from chappe.core import Deliver, Effect, Publish, Subscribe
from chappe.defaults import HEAD_INTERVAL_S
from chappe.log.batch import Batch, encode_batch
from chappe.log.member import LogProducers, ProducingMember
from chappe.log.messages import Ack, BatchMessage, Fetch, Head, RecordMessage, Stored
from chappe.log.producer import GREET_S, LogProducer, StoredTo

NOW = 100.0
WALL = 1_700_000_000_000_000
CLOCK = FixedClock(us=WALL)
TOPICS = ("one", "two", "three")


class Rig:
    """A member that published a record to each topic."""

    def __init__(self, *, min_acks: int = 1) -> None:
        self.node = ProducingMember("N")
        self.all = LogProducers("P", self.node.subscriptions, clock=CLOCK)
        self.parts: dict[str, LogProducer] = {}
        assert self.all.next_timeout() == math.inf
        self.started = self.node.add(self.all, NOW)
        for topic in TOPICS:
            self.add(topic, min_acks)

    def add(self, topic: str, min_acks: int) -> None:
        part = LogProducer(
            topic, "P", min_acks=min_acks, subscriptions=self.all.subscriptions, kept=self.all.kept, clock=CLOCK
        )
        self.parts[topic] = part
        assert self.node.add_topic(self.all, part, NOW) == [Subscribe(b"G" + topic.encode())]

    def publish(self, topic: str, *values: bytes) -> list[Effect]:
        for value in values:
            self.parts[topic].append(value)
        return self.parts[topic].flush(NOW)

    @property
    def stored(self) -> list[int]:
        return [self.parts[topic].stored for topic in TOPICS]


def test_one_set_of_subscriptions_serves_all_topics() -> None:
    assert Rig().started == [Subscribe(b"AP"), Subscribe(b"TP"), Subscribe(b"FP"), Subscribe(b"KP")]


def test_each_topic_has_offsets_of_its_own_under_one_address() -> None:
    rig = Rig()
    for topic in TOPICS:
        assert rig.publish(topic, b"a") == [Publish(BatchMessage(topic, "P", topic, encode_batch(0, [b"a"], WALL)))]
    (sent,) = rig.publish("two", b"b")
    assert isinstance(sent, Publish)
    assert isinstance(sent.message, BatchMessage)
    assert (sent.message.subject, Batch.parse(sent.message.body).base) == ("two", 1)
    assert rig.all.kept_bytes == sum(part.kept_bytes for part in rig.parts.values()) > 0
    for topic in TOPICS:
        rig.all.handle_message(Stored("P", "S", topic, rig.parts[topic].next_offset - 1), NOW)
    assert rig.all.kept_bytes == 0


def test_an_acknowledgement_counts_for_its_subject_alone() -> None:
    rig = Rig()
    for topic in TOPICS:
        rig.publish(topic, b"a", b"b")
    rig.all.handle_message(Stored("P", "S", "two", 1), NOW)
    assert rig.stored == [0, 2, 0]
    rig.all.handle_message(Ack("P", "three", 0), NOW)
    assert rig.stored == [0, 2, 1]
    for strange in (Stored("P", "S", "none", 1), Stored("Q", "S", "one", 1), Head("one", "P", "one", 1)):
        assert rig.all.handle_message(strange, NOW) == []
    assert rig.stored == [0, 2, 1]


def test_a_request_is_answered_from_its_subject() -> None:
    rig = Rig()
    rig.node.handle_subscription(b"DME", True, NOW)
    for topic in TOPICS:
        rig.publish(topic, topic.encode())
    answer = rig.all.handle_message(Fetch("P", "ME", "three", 0, 9), NOW)
    assert answer == [Publish(RecordMessage("ME", "P", "three", 0, b"three", direct=True))]


def test_heads_go_out_for_each_topic_that_has_records() -> None:
    rig = Rig()
    for topic in TOPICS[:2]:
        rig.publish(topic, b"a")
    due = rig.all.next_timeout()
    assert due == NOW + HEAD_INTERVAL_S
    assert rig.all.handle_timeout(due) == [Publish(Head(topic, "P", topic, 0)) for topic in TOPICS[:2]]


def test_a_new_listener_hears_of_the_topic_that_it_wants() -> None:
    rig = Rig()
    for topic in TOPICS:
        rig.publish(topic, b"a")
    rig.node.handle_subscription(b"Rt", True, NOW)
    soon = NOW + GREET_S
    assert rig.all.handle_timeout(soon) == [Publish(Head(topic, "P", topic, 0)) for topic in TOPICS[1:]]


def test_a_topic_that_is_added_later_knows_who_listens() -> None:
    rig = Rig()
    rig.node.handle_subscription(b"Mfour", True, NOW)  # an original
    rig.add("four", 1)
    assert Publish(RecordMessage("four", "P", "four", 0, b"a")) in rig.publish("four", b"a")


@pytest.mark.parametrize("min_acks", [0, 1])
def test_who_waits_for_a_record_is_told_once(min_acks: int) -> None:
    rig = Rig(min_acks=min_acks)
    rig.parts["one"].awaited = 1
    told: list[Effect] = []
    for _ in range(4):
        told += rig.publish("one", b"a")
    for sequence in (0, 1, 3):
        told += rig.all.handle_message(Stored("P", "S", "one", sequence), NOW)
    assert [each for each in told if isinstance(each, Deliver)] == [Deliver("P", StoredTo("one", 2))]
