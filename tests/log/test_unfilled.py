"""What a store went past without having it: nothing behind it is acknowledged until it is filled or said to be gone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.log.store_rig import WALL, StoreRig
from tests.log.test_healing import Stores

from chappe.core import Ask, Effect, Publish, Reply, Report
from chappe.limits import LOG_LIMITS, LogLimits
from chappe.log.backfill import SILENT_S, Unfilled
from chappe.log.batch import encode_batch
from chappe.log.events import RecordsLost
from chappe.log.gap import GIVE_UP_TRIES
from chappe.log.messages import Ack, Fetch, Stored
from chappe.log.storage import AppendRecords, Hole, RunRetention
from chappe.storage.segments.storage import SegmentStorage

KEY = ("hello", "P")


def acknowledged(actions: Sequence[Effect]) -> int:
    """The offset after the last one acknowledged; 0 if none is."""
    messages = [each.message for each in actions if isinstance(each, Publish)]
    return max((each.sequence + 1 for each in messages if isinstance(each, Ack | Stored)), default=0)


def fetched(actions: Sequence[Effect]) -> list[tuple[int, int]]:
    messages = [each.message for each in actions if isinstance(each, Publish)]
    return [(each.sequence, each.count) for each in messages if isinstance(each, Fetch)]


def speak(rig: StoreRig, head: int, seconds: float) -> list[Effect]:
    """Its producer announces ``head`` once a second, and answers nothing; writes are carried out."""
    actions: list[Effect] = []
    for _ in range(round(seconds)):
        actions += rig.settle(rig.head(head))
        actions += rig.settle(rig.wait(1.0))
    return actions


def passed(*, first: int = 0) -> StoreRig:
    """A store that has 0 and 5, or only 5, and gave up what is missing before it."""
    rig = StoreRig()
    if not first:
        assert acknowledged(rig.settle(rig.batch(0, b"a"))) == 1
    actions = rig.settle(rig.batch(5, b"f")) + speak(rig, 5, LOG_LIMITS.give_up_s + 10)
    assert rig.contents()[-1] == (5, b"f")
    assert acknowledged(actions) == (0 if first else 1)
    return rig


def test_what_a_living_producer_did_not_answer_for_is_not_acknowledged_past() -> None:
    rig = passed()
    assert acknowledged(speak(rig, 5, 100)) == 1
    assert acknowledged(rig.settle(rig.batch(6, b"g"))) == 1


def test_when_its_producer_fills_it_everything_is_acknowledged() -> None:
    rig = passed()
    assert (1, 4) in fetched(speak(rig, 5, SILENT_S + 1))

    actions = rig.settle(rig.batch(1, b"b", b"c", direct=True))
    assert acknowledged(actions) == 3
    actions = rig.settle(rig.batch(3, b"d", b"e", b"f", direct=True))
    assert acknowledged(actions) == 6
    assert rig.contents() == list(enumerate([b"a", b"b", b"c", b"d", b"e", b"f"]))


def test_when_its_producer_says_that_it_is_gone_the_rest_is_acknowledged() -> None:
    rig = passed()
    for _ in range(2):  # the beginning of one answer may be lost on its way
        assert acknowledged(speak(rig, 5, SILENT_S + 1)) == 1
        rig.settle(rig.batch(5, b"f", direct=True))

    assert acknowledged(speak(rig, 5, 1)) == 6


def test_the_second_message_of_an_answer_says_nothing_of_what_comes_before() -> None:
    rig = passed()
    for _ in range(3):
        speak(rig, 5, SILENT_S + 1)
        rig.batch(1, b"b", direct=True)  # the write of it does not end
        rig.batch(4, b"e", direct=True)

    assert rig.core._backfill.unfilled.limit(KEY, 6) == 1


def test_another_store_fills_it_too() -> None:
    rig, other = passed(), StoreRig("B")
    other.keep(0, b"a", b"b", b"c", b"d", b"e", b"f")
    other.now = rig.now
    stores = Stores(rig, other)
    stores.wait(3.0)

    assert rig.contents() == other.contents()
    assert acknowledged(stores.others) == 6


def test_after_a_restart_it_is_missed_as_before() -> None:
    again = StoreRig(storage=passed().storage)
    assert acknowledged(speak(again, 5, 2)) == 1


def test_the_beginning_of_a_partition_is_missed_like_any_other_part() -> None:
    rig = passed(first=5)
    assert rig.storage.holes() == [Hole("hello", "P", 0, 4, "damaged")]

    speak(rig, 5, SILENT_S + 1)
    assert acknowledged(rig.settle(rig.batch(0, b"a", b"b", b"c", b"d", b"e", direct=True))) == 6
    assert [offset for offset, _ in rig.contents()] == [0, 1, 2, 3, 4, 5]


def test_what_a_producer_has_no_longer_is_not_waited_for() -> None:
    rig = StoreRig()
    rig.batch(5, b"f")
    actions: list[Effect] = []
    for _ in range(10):
        actions += rig.settle([*rig.batch(5, b"f", direct=True), *rig.wait(1.0)])

    assert acknowledged(actions) == 6
    assert rig.storage.holes() == []


def disclaim(
    rig: StoreRig, seconds: int, other: StoreRig | None = None, answers: Sequence[int] = (4, 5)
) -> list[Effect]:
    """Its producer announces its end once a second, and answers each FETCH with what it has, which begins at 4.

    The other store, if any, answers what it is asked.
    """
    rest: list[Effect] = []

    def carry(actions: Sequence[Effect]) -> None:
        for each in (done := rig.settle(actions)):
            if isinstance(each, Ask) and other is not None:
                reply, *_ = other.core.handle_request(b"", b"12345678", each.request, b"", other.now)
                assert isinstance(reply, Reply)
                carry(rig.answer(each, reply.message.answer, *reply.message.batches))
        rest.extend(done)
        if fetched(done):
            for base in answers:
                carry(rig.batch(base, b"x", direct=True))

    for _ in range(seconds):
        carry(rig.head(5))
        carry(rig.wait(1.0))
    return rest


def hurt() -> StoreRig:
    """A store of a partition whose producer has lost records 2 and 3 to damage of its journal."""
    rig = StoreRig()
    assert acknowledged(rig.settle(rig.batch(0, b"a", b"b"))) == 2
    return rig


def test_records_that_their_producer_has_lost_are_not_waited_for_where_no_other_store_is_known() -> None:
    rig = hurt()
    actions = disclaim(rig, 10)

    assert acknowledged(actions) == 6
    assert Report(RecordsLost("hello", "P", 2, 3, "no store or producer has them any more")) in actions
    assert [(each.first, each.last) for each in rig.storage.holes()] == [(2, 3)]

    other = StoreRig("B")  # it was not known, and has them after all
    other.keep(0, b"a", b"b", b"c", b"d")
    other.now = rig.now
    Stores(rig, other).wait(3.0)
    assert rig.contents() == [(0, b"a"), (1, b"b"), (2, b"c"), (3, b"d"), (4, b"x"), (5, b"x")]


@pytest.mark.parametrize("answers", [True, False])
def test_nor_where_every_other_store_has_answered_that_it_lacks_them(answers: bool) -> None:
    rig, other = hurt(), StoreRig("B")
    other.keep(0, b"a", b"b")
    rig.meet(other)

    assert acknowledged(disclaim(rig, 3, other if answers else None)) < 6
    assert acknowledged(disclaim(rig, 10, other if answers else None)) == (6 if answers else 0)


def test_a_store_that_has_left_may_come_back_with_records_that_their_producer_has_lost() -> None:
    rig, other = hurt(), StoreRig("B")
    rig.meet(other)
    disclaim(rig, 1, other)
    rig.core.handle_gone("B", rig.now)

    assert acknowledged(disclaim(rig, 20)) < 6
    assert acknowledged(disclaim(rig, round(LOG_LIMITS.give_up_s))) == 6


def test_an_answer_that_lost_its_head_says_nothing_of_what_a_producer_has() -> None:
    """What is held has no room: each FETCH asks for everything up to the end."""
    rig = StoreRig(limits=LogLimits(held_bytes_max=10))
    rig.settle(rig.batch(0, b"a", b"b"))

    assert acknowledged(disclaim(rig, 20, answers=(4,))) < 6


def test_an_original_says_by_its_silence_that_it_has_nothing() -> None:
    rig = StoreRig()
    rig.subscribe(b"FP", b"KP")
    assert acknowledged([*rig.settle(rig.record(5, b"f")), *speak(rig, 5, LOG_LIMITS.give_up_s + 10)]) == 6
    assert rig.storage.holes() == []

    again = StoreRig()
    again.subscribe(b"FP", b"KP")
    again.core._backfill.unfilled.miss(KEY, 0, 5)
    again.keep(5, b"f")
    assert acknowledged(speak(again, 5, GIVE_UP_TRIES + 2)) == 6


def test_an_original_that_answers_with_single_records_fills_it() -> None:
    rig = passed()
    rig.subscribe(b"FP", b"KP")
    speak(rig, 5, SILENT_S + 1)
    actions: list[Effect] = []
    for sequence in range(1, 5):
        actions += rig.settle(rig.record(sequence, b"%d" % sequence, direct=True))

    assert acknowledged(actions) == 6


def test_what_retention_removed_is_not_waited_for() -> None:
    rig = passed()
    rig.storage.reset("hello", "P", 5)
    rig.core.handle_done(RunRetention(), None, rig.now)

    assert acknowledged(speak(rig, 5, 1)) == 6


def test_the_missing_beginning_survives_a_restart_on_disk(tmp_path: Path) -> None:
    storage = SegmentStorage(tmp_path)
    storage.reset("hello", "P", 0)
    body = encode_batch(5, [b"f"], WALL)
    storage.publish(storage.write([AppendRecords("hello", "P", 5, 1, WALL, WALL, body)]))
    assert [(hole.first, hole.last) for hole in storage.holes()] == [(0, 4)]
    storage.forget(storage.retain([], WALL))
    storage.close()

    storage = SegmentStorage(tmp_path)
    assert [(hole.first, hole.last) for hole in storage.holes()] == [(0, 4)]
    storage.close()


@pytest.mark.parametrize(
    ("first", "end", "left"),
    [
        (0, 2, [(2, 9), (20, 30)]),
        (4, 6, [(2, 4), (6, 9), (20, 30)]),
        (0, 25, [(25, 30)]),
        (2, 30, []),
        (9, 20, [(2, 9), (20, 30)]),
    ],
)
def test_what_is_filled_is_taken_out(first: int, end: int, left: list[tuple[int, int]]) -> None:
    unfilled = Unfilled()
    unfilled.miss(KEY, 20, 30)
    unfilled.miss(KEY, 2, 9)
    unfilled.filled(KEY, first, end)

    for offset in range(31):
        assert unfilled.limit(KEY, offset) == min([offset, *(low for low, _ in left)])
    assert list(unfilled) == ([KEY] if left else [])
