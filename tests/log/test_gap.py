"""The machine that fills gaps, alone: whom it asks, in which state it is, and when it goes on."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from chappe.core import Ask, Effect, Publish
from chappe.defaults import RETRY_S
from chappe.errors import ProtocolError
from chappe.limits import LOG_LIMITS, LogLimits
from chappe.log.batch import Batch, encode_batch
from chappe.log.gap import GIVE_UP_TRIES, QUIET_S, Gaps, GapState, PartitionGap
from chappe.log.messages import Fetch
from chappe.log.queries import Answer, ErrorAnswer, ReadAnswer, ReadRequest
from chappe.log.sources import ANSWER_S, Key, Sources

KEY = ("t", "P")
NOW = 100.0


class Owner:
    """Takes whatever it gets, and passes over what nobody has after ``patience``."""

    def __init__(self, limits: LogLimits = LOG_LIMITS, *, eager: bool = True, head: int = 10) -> None:
        self.sources = Sources(limits.reads_max, limits=limits)
        self.gaps = Gaps("C", self.sources, limits, eager=eager)
        self.gaps.owner = self
        self.gap = PartitionGap(0, head, said=head)
        self.gaps.want(KEY, self.gap)
        self.patience = 0.0
        self.from_s = -math.inf
        self.passed: list[tuple[int, int]] = []
        self.taken: list[int] = []

    def store(self, name: str, first: int, next_: int) -> None:
        self.sources.found(name, f"tcp://{name}:1", NOW)
        self.gaps.listed(self.sources.stores[name], KEY, self.gap, first, next_)

    def answer(self, ask: Effect, answer: Answer, now: float, *batches: bytes) -> list[Effect]:
        assert isinstance(ask, Ask)
        found = self.sources.answered(ask.ticket)
        assert found is not None
        for batch in self.gaps.answered(found[1], found[0], answer, list(batches), now):
            self.arrive(batch, now)
        return self.gaps.look(now)

    def arrive(self, batch: Batch, now: float, *, live: bool = True) -> None:
        if batch.base > self.gap.next:
            self.gaps.hold_early(KEY, self.gap, batch, live=live)
            return
        self.gap.next = batch.next
        self.gap.head = max(self.gap.head, batch.next)
        self.taken.append(batch.base)
        self.take_held(KEY, self.gap, now)

    def wait(self, seconds: float, now: float) -> list[tuple[float, Effect]]:
        actions: list[tuple[float, Effect]] = []
        end = now + seconds
        while (now := max(now, self.gaps.next_timeout(), 0)) < end:
            actions += [(now, each) for each in self.gaps.look(now)]
            self.gaps.unanswered(self.sources.overdue(now))
            assert self.gaps.invariants(KEY, self.gap) == []
        return actions

    # -- GapOwner

    def asks_from(self) -> float:
        return self.from_s

    def place(self, key: Key, gap: PartitionGap, now: float) -> list[Effect]:
        return []

    def fetching(self, key: Key, gap: PartitionGap, now: float) -> list[Effect]:
        return []

    def patience_s(self, key: Key, gap: PartitionGap, now: float) -> float:
        return self.patience

    def pass_over(self, key: Key, gap: PartitionGap, goal: int, now: float) -> list[Effect]:
        self.passed.append((gap.next, goal))
        return []

    def take_held(self, key: Key, gap: PartitionGap, now: float) -> list[Effect]:
        while (batch := self.gaps.pop_held(gap)) is not None:
            self.taken.append(batch.base)
            gap.next = batch.next
        if gap.state is not GapState.CLOSED:
            self.gaps.progress(key, gap)
        return []

    def readable_to(self, key: Key, gap: PartitionGap) -> float:
        return math.inf

    def known_to(self, key: Key) -> int:
        return -1


def raw(base: int, count: int) -> bytes:
    return encode_batch(base, [b"x"] * count, 1)


def records(base: int, count: int) -> Batch:
    return Batch.parse(raw(base, count))


def read(store: str, offset: int) -> tuple[str, ReadRequest]:
    return f"tcp://{store}:1", ReadRequest(b"t", b"P", offset)


def asked(actions: list[Effect]) -> list[tuple[str, object]]:
    return [(each.to, each.request) for each in actions if isinstance(each, Ask)]


def known(first: int, next_: int, hole_last: int = -1, ahead: int = 0) -> ReadAnswer:
    return ReadAnswer(b"t", b"P", first, next_, True, hole_last, ahead)


def test_a_gap_is_read_from_a_store_and_closed_by_what_comes() -> None:
    owner = Owner()
    owner.store("A", 0, 10)
    (ask,) = owner.gaps.look(NOW)
    assert asked([ask]) == [read("A", 0)]
    assert owner.gap.state is GapState.READING
    assert owner.gaps.look(NOW) == []  # one at a time

    assert owner.answer(ask, known(0, 10), NOW, raw(0, 4), raw(4, 6)) == []
    assert (owner.taken, owner.gap.state, owner.gaps.open) == ([0, 4], GapState.CLOSED, {})
    assert owner.gaps.next_timeout() == math.inf


def test_what_comes_behind_the_next_answer_is_asked_for_before_it_is_there() -> None:
    owner = Owner(head=20)
    owner.store("A", 0, 20)
    (first,) = owner.gaps.look(NOW)
    second, third = owner.answer(first, known(0, 20, ahead=8), NOW, raw(0, 4))
    assert asked([second, third]) == [read("A", 4), read("A", 8)]
    (fourth,) = owner.answer(second, known(0, 20, ahead=12), NOW, raw(4, 4))
    assert asked([fourth]) == [read("A", 12)]  # and what begins at 8 is under way
    assert owner.answer(third, known(0, 20, ahead=20), NOW, raw(8, 4)) == []  # nothing comes behind the last one
    assert owner.answer(fourth, known(0, 20), NOW, raw(12, 8)) == []
    assert (owner.taken, owner.gap.state) == ([0, 4, 8, 12], GapState.CLOSED)


def test_what_was_asked_for_ahead_is_held_if_it_comes_too_early_and_asked_again_if_it_does_not_fit() -> None:
    owner = Owner(head=20)
    owner.store("A", 0, 20)
    (first,) = owner.gaps.look(NOW)
    second, third = owner.answer(first, known(0, 20, ahead=8), NOW, raw(0, 4))
    assert owner.answer(third, known(0, 20), NOW, raw(8, 4)) == []  # the one before it is still under way
    assert (owner.taken, owner.gap.next) == ([0], 4)
    (fourth,) = owner.answer(second, known(0, 20, ahead=16), NOW, raw(4, 4))
    assert (owner.taken, asked([fourth])) == ([0, 4, 8], [read("A", 12)])  # where the held ones end

    fifth, sixth = owner.answer(fourth, known(0, 20, ahead=18), NOW, raw(12, 2))
    assert asked([fifth, sixth]) == [read("A", 14), read("A", 18)]
    (seventh,) = owner.answer(fifth, known(0, 20), NOW, raw(14, 2))  # fewer than it said: 16 and 17 are asked for
    assert asked([seventh]) == [read("A", 16)]
    assert owner.answer(sixth, known(0, 20), NOW, raw(18, 2)) == []
    assert owner.answer(seventh, known(0, 20), NOW, raw(16, 2)) == []
    assert (owner.taken[-3:], owner.gap.state) == ([14, 16, 18], GapState.CLOSED)


def test_what_was_asked_for_ahead_and_is_not_answered_is_asked_for_again() -> None:
    owner = Owner(head=20)
    owner.store("A", 0, 20)
    owner.store("B", 0, 20)
    (first,) = owner.gaps.look(NOW)
    second, third = owner.answer(first, known(0, 20, ahead=8), NOW, raw(0, 4))
    assert owner.answer(second, known(0, 20), NOW, raw(4, 4)) == []
    assert isinstance(third, Ask)
    later = [each for _, each in owner.wait(2 * ANSWER_S, NOW)]
    assert asked(later)[0] == read("B" if third.to == "tcp://A:1" else "A", 8)


def test_no_more_is_asked_for_ahead_than_may_be_under_way() -> None:
    owner = Owner(replace(LOG_LIMITS, reads_max=1), head=20)
    owner.store("A", 0, 20)
    (first,) = owner.gaps.look(NOW)
    assert asked(owner.answer(first, known(0, 20, ahead=8), NOW, raw(0, 4))) == [read("A", 4)]


def test_the_next_store_is_asked_when_one_refuses_is_damaged_or_does_not_answer() -> None:
    owner = Owner()
    owner.store("A", 0, 10)
    owner.store("B", 0, 10)
    owner.store("C", 0, 10)
    (ask,) = owner.gaps.look(NOW)
    actions = owner.answer(ask, ErrorAnswer("no"), NOW)
    (endpoint, _) = asked(actions)[0]
    assert endpoint != ask.to  # type: ignore[union-attr]

    actions = owner.answer(actions[0], known(0, 10, hole_last=3), NOW)
    (second, _) = asked(actions)[0]
    assert len({ask.to, endpoint, second}) == 3  # type: ignore[union-attr]

    owner.gaps.unanswered(owner.sources.overdue(NOW + ANSWER_S))
    again = asked(owner.gaps.look(NOW + ANSWER_S))
    assert [each for each, _ in again] == [ask.to]  # type: ignore[union-attr]  # answers again, by now


def test_a_batch_that_is_none_opens_the_gap_again_and_passes_the_store_over() -> None:
    owner = Owner()
    owner.store("A", 0, 10)
    (ask,) = owner.gaps.look(NOW)
    with pytest.raises(ProtocolError):
        owner.answer(ask, known(0, 10), NOW, b"garbage")
    assert owner.gap.state is GapState.OPEN
    assert asked([each for _, each in owner.wait(ANSWER_S - 0.1, NOW)]) == []


def test_without_a_store_the_producer_is_asked_soon_again_and_then_less_often() -> None:
    owner = Owner()
    actions = owner.wait(1.4, NOW)
    assert [each for _, each in actions] == [Publish(Fetch("P", "C", "t", 0, 10))] * 4
    pauses = [actions[n + 1][0] - actions[n][0] for n in range(3)]
    assert pauses[0] < RETRY_S / 5
    assert min(pauses[1:]) >= RETRY_S - 1e-6


def test_what_nobody_has_is_given_up_until_somebody_speaks_of_it_again() -> None:
    owner = Owner()
    fetches = owner.wait(60.0, NOW)
    assert len(fetches) == GIVE_UP_TRIES
    assert (owner.gap.state, owner.gap.head, owner.gaps.open) == (GapState.CLOSED, 0, {})
    assert owner.passed == []


@pytest.mark.parametrize("patience", [0.0, 40.0])
def test_what_nobody_has_before_what_is_held_is_passed_over_after_some_patience(patience: float) -> None:
    owner = Owner()
    owner.patience = patience
    owner.arrive(records(7, 3), NOW)
    fetches = owner.wait(60.0, NOW)
    assert owner.passed == [(0, 7)]
    assert (owner.taken, owner.gap.state) == ([7], GapState.CLOSED)
    assert all(isinstance(each, Publish) for _, each in fetches)
    assert len(fetches) >= max(GIVE_UP_TRIES, 0.9 * patience / RETRY_S)


def test_damage_at_the_only_store_is_passed_over_and_reading_goes_on_behind_it() -> None:
    owner = Owner()
    owner.store("A", 0, 10)
    (ask,) = owner.gaps.look(NOW)
    owner.answer(ask, known(0, 10, hole_last=3), NOW)
    actions = owner.wait(10.0, NOW)
    assert owner.passed == [(0, 4)]
    assert asked([each for _, each in actions])[0] == read("A", 4)


def test_while_the_answer_to_a_fetch_comes_it_is_not_asked_for_again() -> None:
    owner = Owner(head=100)
    (fetch,) = owner.gaps.look(NOW)
    assert isinstance(fetch, Publish)
    for offset in range(50):
        now = NOW + offset * RETRY_S / 2
        owner.gap.retry_at = now + RETRY_S  # as its owner does for what is not live
        owner.arrive(records(offset, 1), now, live=False)
        assert owner.gaps.look(now) == []
    assert owner.gap.state is GapState.FETCHING


def test_what_a_producer_has_no_more_it_says_twice_as_the_head_of_an_answer_may_be_lost() -> None:
    owner = Owner()
    owner.patience = math.inf
    now, gone_to = NOW, []
    for base in (5, 5, 3, 7):
        while not owner.gaps.look(now):  # a FETCH, when it is time for the next one
            now += RETRY_S / 10
        owner.arrive(records(base, 2), now, live=False)
        gone_to.append(owner.gap.gone_to)
    assert gone_to == [0, 5, 3, 3]


def test_what_may_come_live_just_now_is_not_asked_for() -> None:
    owner = Owner()
    owner.store("A", 0, 10)
    owner.gap.said, owner.gap.heard_at = 0, NOW
    assert owner.gaps.look(NOW + QUIET_S) == []
    assert len(owner.gaps.look(NOW + QUIET_S + 0.1)) == 1


def test_nobody_is_asked_while_the_owner_takes_nothing_or_too_much_is_under_way() -> None:
    owner = Owner(LogLimits(reads_max=1))
    owner.store("A", 0, 10)
    owner.from_s = NOW + 5.0
    assert (owner.gaps.look(NOW), owner.gaps.next_timeout()) == ([], NOW + 5.0)
    assert len(owner.gaps.look(NOW + 5.0)) == 1
    other = PartitionGap(0, 10, said=10)
    owner.gaps.want(("t", "Q"), other)
    assert owner.gaps.pursue(("t", "Q"), other, NOW + 6.0) == []
    assert owner.gaps.next_timeout() == math.inf


def test_everybodys_turn_comes() -> None:
    owner = Owner(LogLimits(look_max=3, fetch_records_max=5))
    for number in range(10):
        owner.gaps.want(("t", f"Q{number}"), PartitionGap(0, 10, said=10))
    asked_for = [each.message.address for _, each in owner.wait(1.0, NOW) if isinstance(each, Publish)]
    assert len(asked_for) >= 11
    assert {each.message.count for each in owner.gaps.look(NOW + 3.0) if isinstance(each, Publish)} == {5}


def test_what_is_held_has_a_bound_and_neither_overlaps_nor_is_out_of_order() -> None:
    size = len(records(5, 1).raw)
    owner = Owner(LogLimits(held_bytes_max=3 * size))
    for base in (5, 6, 5, 8, 9):
        owner.arrive(records(base, 1), NOW)
    assert [each.base for each in owner.gap.held or ()] == [5, 6, 8]
    assert owner.gaps.held_bytes == 3 * size
    owner.arrive(records(0, 7), NOW)
    assert (owner.gap.next, owner.gaps.held_bytes, owner.taken) == (7, size, [0])


def test_the_story_of_a_partition_says_what_is_done_about_it() -> None:
    owner = Owner()
    owner.store("A", 0, 4)
    owner.arrive(records(7, 3), NOW)
    owner.gaps.look(NOW)
    assert owner.gaps.story(KEY, owner.gap, NOW) == (
        "t/P: reading, next is 0, known to exist 10, held 7..9 in 1 batches, not tried, at A"
    )


@pytest.mark.parametrize("change", ["state", "held", "dropped"])
def test_what_is_wrong_with_a_gap_is_said(change: str) -> None:
    owner = Owner()
    owner.arrive(records(7, 3), NOW)
    assert owner.gaps.invariants(KEY, owner.gap) == []
    if change == "state":
        owner.gap.state = GapState.CLOSED
    elif change == "held":
        owner.gap.next = 8
    else:
        del owner.gaps.open[KEY]
    assert owner.gaps.invariants(KEY, owner.gap)
