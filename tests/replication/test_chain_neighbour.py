"""What is under way to a neighbour in a chain, call by call."""

from __future__ import annotations

from dataclasses import replace

from chappe.limits import CHAIN_LIMITS
from chappe.replication.chain.downstream import Downstream
from chappe.replication.chain.log import ENTRY_BYTES, EntryLog
from chappe.replication.chain.messages import Ack, Append, Entry

SIZE = 1_000  # of an entry, as it counts
LIMITS = replace(CHAIN_LIMITS, append_bytes=10 * SIZE, ahead_bytes=100 * SIZE)


def log_of(entries: int) -> EntryLog:
    return EntryLog(0, 0, [Entry(1, 0, 1, seq, 0, bytes(SIZE - ENTRY_BYTES)) for seq in range(1, entries + 1)])


def neighbour() -> Downstream:
    made = Downstream(1, 2, LIMITS)
    made.begin(0, 0.0)
    return made


def entries(messages: list[Append]) -> int:
    return sum(len(each.entries) for each in messages)


def acked(target: Downstream, end: int, now: float, *, full: bool = False) -> None:
    assert target.acknowledge(Ack(1, 2, end, end, 0, full), 1_000, now)


def test_no_more_is_under_way_than_its_bound_and_the_rest_goes_when_that_is_acknowledged() -> None:
    log, target = log_of(1_000), neighbour()

    assert entries(target.feed(log, 1, 0, 0, 0.0)) == 100
    assert target.feed(log, 1, 0, 0, 0.0) == []
    assert [len(each.entries) for each in target.feed(log, 1, 5, 5, 0.0)] == [0]  # how far others are is said
    acked(target, 25, 0.1)
    assert entries(target.feed(log, 1, 5, 5, 0.1)) == 20  # two messages have come whole


def test_one_that_stands_still_is_sent_one_message_again_and_again() -> None:
    log, target = log_of(1_000), neighbour()
    target.feed(log, 1, 0, 0, 0.0)

    again = 0
    for beat in range(1, 51):
        target.repeat(beat / 10)
        again += entries(target.feed(log, 1, 0, 0, beat / 10))

    assert again <= 25 * 10  # in five seconds, a message each 0.2 s; and not all that was under way
    assert again >= 20 * 10


def test_what_was_lost_comes_again_and_then_the_rest_at_once() -> None:
    log, target = log_of(300), neighbour()
    target.feed(log, 1, 0, 0, 0.0)
    acked(target, 10, 0.0)
    target.feed(log, 1, 0, 0, 0.0)

    target.repeat(0.3)
    (again,) = target.feed(log, 1, 0, 0, 0.3)
    assert (again.base, len(again.entries)) == (10, 10)
    acked(target, 20, 0.4)

    assert entries(target.feed(log, 1, 0, 0, 0.4)) == 100


def test_what_one_that_is_full_has_left_is_sent_when_it_takes_more() -> None:
    log, target = log_of(50), neighbour()
    target.feed(log, 1, 0, 0, 0.0)

    acked(target, 10, 0.1, full=True)
    assert entries(target.feed(log, 1, 0, 0, 0.1)) == 0
    acked(target, 10, 0.3)
    (first,) = [each for each in target.feed(log, 1, 0, 0, 0.3) if each.entries]
    assert first.base == 10
    acked(target, 20, 0.3)

    assert entries(target.feed(log, 1, 0, 0, 0.3)) == 30


def test_one_whose_rest_is_not_in_the_log_any_more_is_to_ask_again() -> None:
    log, target = log_of(50), neighbour()
    log.shorten(5)

    assert target.feed(log, 1, 0, 0, 0.0) == []
    assert not target.known
