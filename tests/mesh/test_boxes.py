"""Outbox and inbox: bounds, order, policies and counters, against a plain list."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chappe.defaults import CONTROL_BYTES_MAX, CONTROL_FRAMES_MAX
from chappe.mesh.flows import pack_batch, pack_detour
from chappe.mesh.forwarding.boxes import Outbox, Policy, SubscriberInbox
from chappe.mesh.messages import Message

EVERYTHING = 1 << 30


def numbered(number: int, size: int = 8) -> bytes:
    return number.to_bytes(8, "big") + bytes(size - 8)


def note(number: int, size: int = 8) -> Message:
    return Message(b"t", numbered(number, size - 1 if size > 8 else 8))


# -- outbox -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", Policy)
def test_frames_leave_in_order_within_the_wanted_bytes(policy: Policy) -> None:
    box = Outbox(policy=policy)
    frames = [numbered(number, 10) for number in range(10)]
    assert all(box.put(frame) for frame in frames)
    assert box.take(35) == frames[:3]
    assert box.take(1) == frames[3:4]
    assert box.take(60) == frames[4:]
    assert box.take(60) == []
    assert (box.taken, box.taken_bytes, box.bytes, len(box)) == (10, 100, 0, 0)


def test_a_frame_of_any_size_passes() -> None:
    box = Outbox(bytes_max=100, policy=Policy.DROP_NEWEST)
    assert box.put(bytes(10_000))
    assert box.full
    assert not box.put(b"x")
    assert box.take(100) == [bytes(10_000)]
    assert not box.full


@pytest.mark.parametrize(("messages_max", "bytes_max"), [(5, EVERYTHING), (1000, 40)])
def test_a_full_outbox_follows_its_policy(messages_max: int, bytes_max: int) -> None:
    frames = [numbered(number) for number in range(12)]
    left = {
        Policy.DROP_OLDEST: frames[-5:],
        Policy.DROP_NEWEST: frames[:5],
        Policy.DISCONNECT: frames[:5],
        Policy.BLOCK: frames[:10],
    }
    for policy in Policy:
        box = Outbox(messages_max, bytes_max, policy)
        accepted = []
        for frame in frames:
            assert box.full == (len(box) >= 5)
            accepted.append(box.put(frame))
        assert box.dropped == 12 - len(left[policy])
        assert box.dropped_bytes == 8 * box.dropped
        assert accepted.count(False) == (0 if policy is Policy.DROP_OLDEST else box.dropped)
        assert box.overflowed == (policy is Policy.DISCONNECT)
        assert box.take(EVERYTHING) == left[policy]


def test_what_is_put_first_leaves_in_its_order() -> None:
    box = Outbox()
    box.put_control(b"control")
    box.put(b"message")
    for frame in (b"one", b"two"):
        box.put_first(frame)
    assert box.take(1) == [b"one"]
    box.put_first(b"three")
    assert box.take(EVERYTHING) == [b"two", b"three", b"control", b"message"]


def test_control_frames_pass_a_full_box_and_keep_their_place() -> None:
    box = Outbox(2, policy=Policy.DROP_NEWEST)
    box.put_control(b"first")
    box.put(b"one")
    box.put_control(b"second")
    box.put(b"two")
    assert not box.put(b"three")
    assert box.put_control(b"third")
    assert box.take(8) == [b"first", b"one"]
    assert box.take(EVERYTHING) == [b"second", b"two", b"third"]
    assert (box.bytes, box.control_bytes, box.taken, box.taken_bytes) == (0, 0, 5, 22)


def test_the_oldest_message_makes_room_not_a_control_frame() -> None:
    box = Outbox(2, policy=Policy.DROP_OLDEST)
    box.put(b"one")
    box.put_control(b"ping")
    for frame in (b"two", b"three", b"four"):
        assert box.put(frame)
    assert box.dropped == 2
    assert box.take(EVERYTHING) == [b"ping", b"three", b"four"]


def test_too_many_control_frames_end_the_connection() -> None:
    by_number, by_bytes = Outbox(), Outbox()
    assert all(by_number.put_control(b"x") for _ in range(CONTROL_FRAMES_MAX))
    assert not by_number.overflowed
    assert not by_number.put_control(b"x")
    assert by_number.overflowed
    assert by_bytes.put_control(bytes(CONTROL_BYTES_MAX))
    assert not by_bytes.put_control(b"x")
    assert by_bytes.overflowed


@given(
    st.sampled_from(Policy),
    st.lists(st.tuples(st.sampled_from(["put", "put", "put", "control", "take"]), st.integers(8, 60)), max_size=80),
)
def test_an_outbox_is_a_bounded_queue(policy: Policy, steps: list[tuple[str, int]]) -> None:
    box = Outbox(6, 100, policy)
    times = 2 if policy is Policy.BLOCK else 1
    put, dropped_newest, taken = [], 0, []
    for number, (what, size) in enumerate(steps):
        if what == "take":
            frames = box.take(size)
            assert len(frames) <= 1 or sum(map(len, frames)) <= size
            taken += frames
        elif what == "control":
            put.append(numbered(number, size))
            assert box.put_control(put[-1])
        elif box.put(numbered(number, size)):
            put.append(numbered(number, size))
        else:
            dropped_newest += 1
        assert box.bytes <= times * 100 + 60
        assert len(box) - len(box._control) <= times * 6
    taken += box.take(EVERYTHING)
    numbers = [frame[:8] for frame in taken]
    assert numbers == sorted(numbers)
    assert set(taken) <= set(put)
    assert box.dropped == dropped_newest + len(put) - len(taken)
    assert policy is Policy.DROP_OLDEST or taken == put
    assert policy is not Policy.DROP_OLDEST or dropped_newest == 0
    assert (box.taken, box.taken_bytes) == (len(taken), sum(map(len, taken)))
    assert (len(box), box.bytes, box.control_bytes) == (0, 0, 0)


def batch(number: int, count: int, size: int = 1) -> bytes:
    return pack_batch(bytes(16), 1_000 * number + count, 1, b"t", [bytes(size)] * count)


def test_a_batch_counts_as_many_messages_and_leaves_as_one() -> None:
    box = Outbox(10)
    frames = [batch(1, 4), numbered(2, 50), batch(3, 3)]
    assert [box.put_batch(each) for each in frames] == [True] * 3
    assert (len(box), box.accepted, box.messages, box.full) == (8, 8, 0, False)
    assert box.put_control(b"control")
    assert box.put_batch(batch(4, 2))
    assert box.full
    assert box.take(len(frames[0])) == frames[:1]
    assert (len(box), box.messages, box.accepted, box.taken, box.full) == (7, 4, 10, 1, False)
    assert box.take(EVERYTHING) == [*frames[1:], b"control", batch(4, 2)]
    assert (len(box), box.messages, box.accepted, box.taken) == (0, 10, 10, 5)
    box.put_batch(batch(5, 9))
    assert box.discard() == [batch(5, 9)]
    assert len(box) == 0
    assert box.put(b"x" * 40)
    assert not box.full
    assert box.take(EVERYTHING) == [b"x" * 40]
    assert box.messages == 11
    assert box.invariants() == []


@pytest.mark.parametrize("policy", Policy)
def test_the_messages_of_a_batch_that_is_dropped_are_counted(policy: Policy) -> None:
    dropped: list[bytes] = []
    box = Outbox(10, policy=policy)
    box.on_drop = dropped.append
    frames = [batch(number, 5) for number in range(5)]
    took = [box.put_batch(each) for each in frames]
    gone = {Policy.BLOCK: frames[4:], Policy.DROP_OLDEST: frames[:3]}.get(policy, frames[2:])
    assert dropped == gone
    assert box.dropped == 5 * len(gone)
    assert box.dropped_bytes == sum(map(len, gone))
    assert took == [policy is Policy.DROP_OLDEST or each not in gone for each in frames]
    assert box.overflowed is (policy is Policy.DISCONNECT)
    assert box.invariants() == []
    assert len(box) == 25 - box.dropped
    assert box.take(EVERYTHING) == [each for each in frames if each not in gone]


@pytest.mark.parametrize("policy", Policy)
def test_only_who_blocks_takes_more_detours_than_there_is_room_for_and_has_a_bound_in_bytes(policy: Policy) -> None:
    frames = [pack_detour(bytes(16), number, 1, 0, batch(number, 3)[4:]) for number in range(100)]
    box = Outbox(2, 1_000, policy)
    taken = [box.put_batch(each) for each in frames]
    assert box.invariants() == []
    if policy is Policy.BLOCK:
        assert 2_000 <= box.bytes < 2_000 + len(frames[0])
        assert len(box) == 3 * taken.count(True) > 10
        assert taken == sorted(taken, reverse=True)
        assert not box.put(numbered(1))
    else:
        assert len(box) == 3
    assert box.dropped == 300 - len(box) + (policy is Policy.BLOCK)


# -- inbox --------------------------------------------------------------------------------------------


def test_messages_come_in_order_singly_or_many() -> None:
    box = SubscriberInbox(100, 1000, Policy.BLOCK)
    messages = [note(number) for number in range(10)]
    assert box.put(messages[0])
    assert box.put_many(messages[1:]) == 0
    assert box.take_many(1) == messages[:1]
    assert box.take_many(3) == messages[1:4]
    assert box.take_many(5, 18) == messages[4:6]
    assert box.take_many(1, 18) == messages[6:7]
    assert box.take_many(5, 1) == messages[7:8]
    assert box.take_many(100, 18) == messages[8:]
    assert box.take_many(5) == []
    assert (box.taken, box.taken_bytes, box.bytes, len(box)) == (10, 90, 0, 0)


@pytest.mark.parametrize(("messages_max", "bytes_max"), [(5, EVERYTHING), (1000, 45)])
@pytest.mark.parametrize("at_once", [1, 4, 12])
def test_a_full_inbox_follows_its_policy(messages_max: int, bytes_max: int, at_once: int) -> None:
    messages = [note(number) for number in range(12)]
    left = {
        Policy.DROP_OLDEST: messages[-5:],
        Policy.DROP_NEWEST: messages[:5],
        Policy.DISCONNECT: messages[:5],
        Policy.BLOCK: messages[:10],
    }
    for policy in Policy:
        box = SubscriberInbox(messages_max, bytes_max, policy)
        refused = sum([box.put_many(messages[at : at + at_once]) for at in range(0, 12, at_once)])
        assert box.full
        assert box.dropped == 12 - len(left[policy])
        assert box.dropped_bytes == 9 * box.dropped
        assert refused == (0 if policy is Policy.DROP_OLDEST else box.dropped)
        assert box.overflowed == (policy is Policy.DISCONNECT)
        assert box.take_many(100) == left[policy]


@given(
    st.sampled_from(Policy),
    st.lists(st.tuples(st.sampled_from(["put", "many", "take", "take_many"]), st.integers(9, 40)), max_size=80),
)
def test_an_inbox_is_a_bounded_queue(policy: Policy, steps: list[tuple[str, int]]) -> None:
    box = SubscriberInbox(12, 150, policy)
    times = 2 if policy is Policy.BLOCK else 1
    offered, taken, refused = 0, [], 0
    for what, size in steps:
        if what == "put":
            refused += not box.put(note(offered, size))
            offered += 1
        elif what == "many":
            refused += box.put_many([note(offered + at) for at in range(size // 9)])
            offered += size // 9
        elif what == "take":
            taken += box.take_many(1)
        else:
            some = box.take_many(size // 9, 3 * size)
            assert len(some) == 1 or sum([len(each.topic) + len(each.payload) for each in some]) <= 3 * size
            taken += some
        assert box.bytes <= times * 150 + 40
        assert len(box) <= times * 12
    taken += box.take_many(EVERYTHING)
    numbers = [message.payload[:8] for message in taken]
    assert all(one < two for one, two in pairwise(numbers))
    assert len(taken) + box.dropped == offered
    assert box.dropped == refused or policy is Policy.DROP_OLDEST
    assert (box.taken, len(box), box.bytes) == (len(taken), 0, 0)
    assert box.taken_bytes == sum([len(message.topic) + len(message.payload) for message in taken])


def test_policies_are_read_by_name() -> None:
    assert [Policy(name) for name in ("block", "drop_oldest", "drop_newest", "disconnect")] == list(Policy)
