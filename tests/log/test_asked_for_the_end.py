"""Producers answer GET-HEADS: whoever asks for the end of a topic's partitions is told of theirs."""

from __future__ import annotations

import pytest
from tests.fixed_clock import FixedClock
from tests.log.store_rig import WALL

from chappe.core import Effect, Publish, Subscribe
from chappe.limits import LOG_LIMITS
from chappe.log.member import LogProducers, ProducingMember
from chappe.log.messages import Fetch, GetHeads, Head, Message, RecordMessage
from chappe.log.producer import LogProducer

CLOCK = FixedClock(us=WALL)

NOW = 100.0


class Rig:
    """A node with producers of some topics, each with three records."""

    def __init__(self, *topics: str, records: int = 3) -> None:
        self.node = ProducingMember("N")
        self.began: list[Effect] = []
        for number, topic in enumerate(topics):
            made = LogProducers(f"P{number}", self.node.subscriptions, clock=CLOCK)
            part = LogProducer(topic, made.address, subscriptions=made.subscriptions, kept=made.kept, clock=CLOCK)
            self.began += [*self.node.add(made, NOW), *self.node.add_topic(made, part, NOW)]
            for _ in range(records):
                part.append(b"x")
            self.node.carry(made, part.flush(NOW))

    def ask(self, prefix: str, requester: str = "C") -> list[Message]:
        return published(self.node.handle_message(GetHeads(prefix, requester), NOW))

    def listen(self, *prefixes: bytes) -> list[Message]:
        return published([each for raw in prefixes for each in self.node.handle_subscription(raw, True, NOW)])


def published(actions: list[Effect]) -> list[Message]:
    return [each.message for each in actions if isinstance(each, Publish)]


@pytest.mark.parametrize(
    ("prefix", "topics"),
    [("hello", ["hello"]), ("he", ["hello", "hero"]), ("", ["hello", "hero", "x"]), ("hello2", [])],
)
def test_all_partitions_of_topics_that_begin_so_are_told(prefix: str, topics: list[str]) -> None:
    rig = Rig("hello", "x", "hero")
    rig.listen(b"EC")
    found = rig.ask(prefix)
    assert sorted(each.subject for each in found if isinstance(each, Head)) == topics
    assert all(isinstance(each, Head) and (each.topic, each.sequence, each.direct) == ("C", 2, True) for each in found)


def test_the_answer_waits_for_the_subscription_to_it_and_comes_once() -> None:
    rig = Rig("hello")
    assert rig.ask("hello") == []
    assert rig.listen(b"ED") == []
    assert rig.listen(b"EC") == [Head("C", "P0", "hello", 2, direct=True)]
    assert rig.listen(b"EC") == []


def test_where_nothing_was_sent_nothing_is_told() -> None:
    rig = Rig("hello", records=0)
    rig.listen(b"EC")
    assert rig.ask("hello") == []


def test_those_who_never_listen_make_room_for_others() -> None:
    rig = Rig("hello")
    rig.listen(b"EC")
    for number in range(LOG_LIMITS.answers_max + 10):
        assert rig.ask("hello", f"never{number}") == []
    assert rig.ask("hello") == [Head("C", "P0", "hello", 2, direct=True)]


def test_whoever_is_heard_to_ask_is_heard_to_fetch() -> None:
    """A consumer of Dafka's fetches once: the subscription to FETCH has to come before the one to GET-HEADS."""
    rig = Rig("hello")
    prefixes = [each.prefix for each in rig.began if isinstance(each, Subscribe)]
    assert prefixes.index(b"FP0") < prefixes.index(b"Ghello")
    assert b"FP0" < b"Ghello", "so does what a new connection subscribes to, which is in the order of the octets"
    rig.listen(b"EC", b"DC")
    rig.ask("hello")
    found = published(rig.node.handle_message(Fetch("P0", "C", "hello", 0, 100_000), NOW))
    assert [each.sequence for each in found if isinstance(each, RecordMessage)] == [0, 1, 2]
