"""Queues: each member computes the same owner of a message, and what becomes of that while members come and go."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from math import inf
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.sources import needs_sources

from chappe.core import Send
from chappe.data.binary import decode, encode
from chappe.data.scalars import Count, EnumValue
from chappe.defaults import QUEUE_ANNOUNCE_S, QUEUE_LEASE_S, QUEUE_MEMBERS_MAX
from chappe.errors import ProtocolError, UsageError
from chappe.mesh.filters import Filter
from chappe.mesh.messages import NOBODY, Message
from chappe.mesh.queues import MessageQueues, pack_announcement, parse_announcement, topic_of

WORKERS = topic_of(b"workers")
PUBLISHER = b"P" * 16
SUBSCRIBER = 5


class Net:
    """Members of one queue in one mesh; announcements arrive in ``pump``."""

    def __init__(self, count: int) -> None:
        needs_sources()  # a compiled core takes no other topology
        self.now = 100.0
        self.queues: dict[bytes, MessageQueues] = {}
        self.waiting: list[tuple[bytes, bytes | None, Message]] = []
        self.originals = False
        for number in range(count):
            self.join(number)
        self.pump()

    def join(self, number: int, *prefixes: bytes, subscriber: int = SUBSCRIBER) -> MessageQueues:
        own = bytes([number + 1]) * 16
        if own not in self.queues:
            self.queues[own] = MessageQueues(own, FakeTopology(self, own))  # type: ignore[arg-type]
        queues = self.queues[own]
        self.send(own, queues.put(subscriber, WORKERS, prefixes or (b"jobs/",), self.now))
        self.look()
        return queues

    def leave(self, number: int) -> None:
        own = bytes([number + 1]) * 16
        self.send(own, self.queues[own].remove(SUBSCRIBER, self.now))

    def die(self, number: int) -> None:
        del self.queues[bytes([number + 1]) * 16]

    def look(self) -> None:
        filters = dict.fromkeys(self.queues, (WORKERS,))
        for own, queues in self.queues.items():
            others = {each: wanted for each, wanted in filters.items() if each != own}
            self.send(own, queues.handle_subscription(others))

    def send(self, own: bytes, effects: Iterable[object]) -> None:
        for each in effects:
            assert isinstance(each, Send)
            self.waiting.append((own, each.to, Message(each.topic, each.message, origin=own)))

    def pump(self) -> None:
        while self.waiting:
            self.deliver()

    def deliver(self) -> None:
        own, to, message = self.waiting.pop(0)
        for each, queues in self.queues.items():
            if each != own and to in (None, each):
                queues.hear([message], self.now)

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        for own, queues in list(self.queues.items()):
            if queues.next_timeout() <= self.now:
                self.send(own, queues.handle_timeout(self.now))
        self.pump()

    def takers(self, message: Message) -> list[bytes]:
        found = []
        for own, queues in self.queues.items():
            assert queues.invariants() == []
            for subscriber in queues.of:
                found += [own] * len(queues.own(subscriber, [message]))
        return found


class FakeTopology:
    """All others of a net are in reach."""

    forwards = True

    def __init__(self, net: Net, own: bytes) -> None:
        self._net, self._own = net, own
        self.states: Any = self
        self.rules = None

    @property
    def has_originals(self) -> bool:
        return self._net.originals

    def reaches(self, endpoint: bytes) -> bool:
        return endpoint in self._net.queues

    has_way = reaches

    def vouches(self, origin: bytes, speaker: bytes) -> bool:
        return origin == NOBODY and self._net.originals and speaker not in self._net.queues


def jobs(count: int, topic: bytes = b"jobs/a") -> list[Message]:
    return [Message(topic, encode(number), origin=PUBLISHER, place=number + 1) for number in range(count)]


def test_each_message_goes_to_one_and_all_get_their_share() -> None:
    net = Net(5)

    takers = [net.takers(each) for each in jobs(2_000)]

    assert {len(each) for each in takers} == {1}
    assert all(300 < each < 500 for each in Counter(who for [who] in takers).values())


def test_equal_messages_go_to_several_members_where_the_publisher_is_told() -> None:
    net = Net(3)
    same = [Message(b"jobs/a", encode("tick"), origin=PUBLISHER, place=number) for number in range(1, 100)]

    assert len({taker for each in same for taker in net.takers(each)}) == 3


def test_over_originals_the_owner_is_found_by_topic_and_payload() -> None:
    net = Net(4)
    net.originals = True

    for each in jobs(100):
        brought = Message(each.topic, each.payload, origin=NOBODY)
        elsewhere = Message(each.topic, each.payload, origin=b"B" * 16, place=7)
        assert len(net.takers(each)) == 1
        assert net.takers(each) == net.takers(brought) == net.takers(elsewhere)


def test_only_members_that_want_the_topic_own_it() -> None:
    net = Net(0)
    net.join(0, b"jobs/")
    net.join(1, b"jobs/b")
    net.join(1, b"other/", subscriber=6)
    net.pump()

    assert {taker for each in jobs(100) for taker in net.takers(each)} == {b"\1" * 16}
    assert len({taker for each in jobs(100, b"jobs/b") for taker in net.takers(each)}) == 2
    assert {taker for each in jobs(9, b"other/") for taker in net.takers(each)} == {b"\2" * 16}


def test_two_subscribers_of_one_endpoint_share_too() -> None:
    net = Net(1)
    net.join(0, subscriber=6)
    [queues] = net.queues.values()

    took = [len(queues.own(each, jobs(200))) for each in (SUBSCRIBER, 6)]

    assert sum(took) == 200
    assert min(took) > 60


def test_while_a_member_joins_a_message_goes_to_two_at_most_and_to_one_at_least() -> None:
    net = Net(3)
    net.join(3)  # nobody has heard of it, nor it of others

    found = [{len(net.takers(each)) for each in jobs(100)}]
    while net.waiting:
        net.deliver()
        found.append({len(net.takers(each)) for each in jobs(100)})

    assert found[0] == {2}
    assert found[-1] == {1}
    assert set().union(*found) == {1, 2}


def test_a_member_that_leaves_moves_its_own_messages_only() -> None:
    net = Net(4)
    before = {each.payload: net.takers(each)[0] for each in jobs(400)}
    net.leave(3)
    net.pump()

    after = {each.payload: net.takers(each) for each in jobs(400)}

    assert {len(each) for each in after.values()} == {1}
    left = b"\4" * 16
    assert left in before.values()
    assert all(after[payload] == [who] for payload, who in before.items() if who != left)


def test_messages_of_a_member_that_dies_go_to_nobody_until_it_is_known() -> None:
    net = Net(4)
    net.die(0)
    assert {len(net.takers(each)) for each in jobs(200)} == {0, 1}
    net.look()
    assert {len(net.takers(each)) for each in jobs(200)} == {1}


def test_a_member_beyond_an_original_dies_with_its_lease() -> None:
    net = Net(2)
    net.originals = True
    far = Message(WORKERS, pack_announcement(b"F" * 16, {1: (b"",)}), origin=NOBODY)
    for queues in net.queues.values():
        queues.hear([far], net.now)
    net.pass_time(0.0)  # they tell it of themselves
    assert {len(net.takers(each)) for each in jobs(200)} == {0, 1}
    for _ in range(4):
        net.pass_time(QUEUE_LEASE_S / 4 - 0.01)
        net.look()
    assert {len(net.takers(each)) for each in jobs(200)} == {0, 1}
    net.pass_time(0.1)
    assert {len(net.takers(each)) for each in jobs(200)} == {1}


def test_members_announce_themselves_as_long_as_they_are() -> None:
    net = Net(2)
    for _ in range(10):
        net.pass_time(QUEUE_ANNOUNCE_S)
    assert {len(net.takers(each)) for each in jobs(200)} == {1}
    net.leave(0)
    net.leave(1)
    assert [each.next_timeout() for each in net.queues.values()] == [inf, inf]


def test_a_message_for_this_endpoint_alone_stays_here() -> None:
    net = Net(4)
    alone = Message(b"jobs/a", encode(1), origin=PUBLISHER, receiver=b"\1" * 16)

    assert net.queues[b"\1" * 16].own(SUBSCRIBER, [alone]) == [alone]


def test_an_endpoint_that_passes_nothing_on_takes_what_an_original_brings_it() -> None:
    net = Net(4)
    first = net.queues[b"\1" * 16]
    first._topology.forwards = False

    assert len(first.own(SUBSCRIBER, [Message(b"jobs/a", encode(number)) for number in range(50)])) == 50


def test_nobody_makes_others_members_and_queues_whose_names_begin_alike_are_apart() -> None:
    net = Net(1)
    [queues] = net.queues.values()
    body = pack_announcement(b"F" * 16, {1: (b"",)})
    for message in (
        Message(WORKERS, body, origin=b"\7" * 16),
        Message(WORKERS + b"2", body, origin=b"F" * 16),
        Message(WORKERS, b"garbage", origin=b"F" * 16),
        Message(WORKERS, pack_announcement(b"\1" * 16, {9: (b"",)}), origin=b"\1" * 16),
    ):
        queues.hear([message], net.now)

    assert queues.story(WORKERS) == [(b"\1" * 16, SUBSCRIBER)]


def test_an_announcement_that_was_overtaken_changes_nothing() -> None:
    net = Net(1)
    [queues] = net.queues.values()
    endpoint = b"F" * 16
    for sequence, members in ((7, {1: (b"j",)}), (9, {}), (8, {2: (b"j",)})):
        body = pack_announcement(endpoint, members)  # type: ignore[arg-type]
        queues.hear([Message(WORKERS, body, origin=endpoint, sequence=sequence)], net.now)

    assert queues.story(WORKERS) == [(b"\1" * 16, SUBSCRIBER)]
    assert queues.invariants() == []


def test_further_members_than_the_bound_are_not_counted() -> None:
    net = Net(1)
    [queues] = net.queues.values()
    many: dict[int, Filter] = dict.fromkeys(range(QUEUE_MEMBERS_MAX), (b"j",))
    queues.hear([Message(WORKERS, pack_announcement(b"F" * 16, many), origin=b"F" * 16)], net.now)
    queues.hear([Message(WORKERS, pack_announcement(b"G" * 16, {1: (b"j",)}), origin=b"G" * 16)], net.now)

    assert len(queues.story(WORKERS)) == 1 + QUEUE_MEMBERS_MAX
    assert queues.invariants() == []


def test_prefixes_that_cannot_be_announced_are_refused_and_nothing_changes() -> None:
    net = Net(1)
    [queues] = net.queues.values()
    with pytest.raises(UsageError, match="common prefixes"):
        queues.put(6, WORKERS, (b"x" * 40_000, b"y" * 40_000), net.now)
    assert queues.story(WORKERS) == [(b"\1" * 16, SUBSCRIBER)]
    assert list(queues.of) == [SUBSCRIBER]
    for name in (b"", b"x" * 256):
        with pytest.raises(UsageError, match="1 to 255 bytes"):
            topic_of(name)


def test_an_announcement_is_a_value_and_comes_back() -> None:
    members = {3: (b"a", b"b\xff"), 4: (b"",)}
    body = pack_announcement(PUBLISHER, members)

    rows = ((Count(3), "a", b"b\xff"), (Count(4), ""))
    assert decode(body) == (EnumValue("chappe::queue"), str(UUID(bytes=PUBLISHER)), rows)
    assert parse_announcement(body) == (PUBLISHER, members)


@given(st.integers(0, 100), st.binary(max_size=8))
def test_whatever_is_announced_is_members_or_refused(at: int, piece: bytes) -> None:
    body = pack_announcement(PUBLISHER, {3: (b"a", b"b"), 4: (b"",)})
    for each in (body[:at] + piece, body[:at] + piece + body[at + len(piece) :], body[:at] + body[at + 1 :]):
        try:
            endpoint, members = parse_announcement(each)
        except ProtocolError:
            continue
        assert len(endpoint) == 16
        assert len(members) <= QUEUE_MEMBERS_MAX
