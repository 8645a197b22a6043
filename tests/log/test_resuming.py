"""A partition that goes on after a restart asks the stores first: its journal may be older than what they hold."""

from __future__ import annotations

import pytest
from tests.fixed_clock import FixedClock

from chappe.core import Effect, Persist, Publish, Report
from chappe.defaults import HEAD_HURRY_S
from chappe.limits import LOG_LIMITS
from chappe.log.batch import Batch
from chappe.log.events import IdentityBehind
from chappe.log.messages import Ack, BatchMessage, Fetch, Head, Stored
from chappe.log.producer import LogProducer

NOW = 100.0
WALL = 1_700_000_000_000_000
CLOCK = FixedClock(us=WALL)


def resumed(next_offset: int = 60, stores: int = 1) -> LogProducer:
    """A producer in its second life, whose journal ends at ``next_offset``; so many stores listen."""
    producer = LogProducer("hello", "P", journal=[], next_offset=next_offset, resumed=True, clock=CLOCK)
    producer.start(NOW)
    for _ in range(stores):
        producer.handle_subscription(b"F", True, NOW)
    return producer


def stored(producer: LogProducer, next_: int, store: str = "S", now: float = NOW) -> list[Effect]:
    return producer.handle_message(Stored("P", store, "hello", next_ - 1), now)


def send(producer: LogProducer, value: bytes = b"x", now: float = NOW) -> list[Effect]:
    """What becomes of one more record."""
    producer.append(value)
    return flush(producer, now)


def flush(producer: LogProducer, now: float = NOW) -> list[Effect]:
    actions = producer.flush(now)
    return producer.handle_done(actions[0].job, None, now) if actions and isinstance(actions[0], Persist) else actions


def published(actions: list[Effect]) -> list[tuple[int, int]]:
    found = [each.message for each in actions if isinstance(each, Publish)]
    batches = [Batch.parse(each.body) for each in found if isinstance(each, BatchMessage)]
    return [(each.base, each.next) for each in batches]


def rolled_back(held: int, sent: int = 0) -> list[Effect]:
    return [Report(IdentityBehind("hello", "P", 60, held, sent))]


def test_new_records_wait_until_every_store_has_said_how_far_it_holds_the_partition() -> None:
    producer = resumed(stores=2)
    assert producer.handle_timeout(NOW) == [Publish(Head("hello", "P", "hello", 59))]
    assert producer.next_timeout() == NOW + HEAD_HURRY_S
    assert send(producer) == []
    stored(producer, 60, "S")
    assert flush(producer) == []
    stored(producer, 40, "T")
    assert published(flush(producer)) == [(60, 61)]


def test_a_store_that_holds_more_than_the_journal_knows_of_is_reported_and_nothing_is_sent() -> None:
    producer = resumed(stores=2)
    stored(producer, 60, "S")
    send(producer)

    assert stored(producer, 100, "T") == rolled_back(100)
    assert flush(producer, NOW + 60) == []
    assert producer.handle_timeout(NOW + 60) == []
    producer.handle_subscription(b"SME", True, NOW)
    assert producer.handle_message(Fetch("P", "ME", "hello", 0, 9), NOW) == []
    assert stored(producer, 100, "S") == []
    assert "go on with a new identity" in str(rolled_back(100)[0].event)  # type: ignore[union-attr]


def test_who_asks_for_what_was_never_published_knows_it_from_another_life() -> None:
    """A store with a hole right behind the end of the journal acknowledges nothing beyond it."""
    producer = resumed()
    assert producer.handle_message(Fetch("P", "ME", "hello", 60, 2), NOW) == rolled_back(61)
    assert flush(producer, NOW + 60) == []

    fresh = LogProducer("hello", "P", journal=[], resumed=True, clock=CLOCK)
    fresh.start(NOW)
    fresh.handle_timeout(NOW)  # this asks who knows more, by speaking of offset 0
    assert fresh.handle_message(Fetch("P", "ME", "hello", 0, 100_000), NOW) == []  # an original always does
    fresh.handle_subscription(b"SME", True, NOW)
    assert fresh.handle_message(Fetch("P", "ME", "hello", 0, 1), NOW) == []
    assert fresh.handle_message(Fetch("P", "ME", "hello", 0, 2), NOW) != []


def test_the_journal_of_a_partition_without_records_may_be_old_too() -> None:
    producer = resumed(0)
    assert producer.handle_timeout(NOW) == [Publish(Head("hello", "P", "hello", 0))]

    (report,) = stored(producer, 7)
    assert isinstance(report, Report)
    assert isinstance(report.event, IdentityBehind)


@pytest.mark.parametrize("stores", [0, 1])
def test_where_no_store_answers_new_records_wait_for_a_while_only(stores: int) -> None:
    producer = resumed(stores=stores)

    assert send(producer, now=NOW + LOG_LIMITS.resume_wait_s - 0.01) == []
    assert published(flush(producer, NOW + LOG_LIMITS.resume_wait_s)) == [(60, 61)]


def test_a_store_of_the_original_that_was_told_may_acknowledge_what_it_was_told() -> None:
    producer = resumed()
    send(producer, now=NOW + LOG_LIMITS.resume_wait_s)

    assert producer.handle_message(Ack("P", "hello", 60), NOW) != []
    assert producer.stored == 61


def test_what_another_store_says_is_no_answer_of_an_original_that_listens() -> None:
    """A store of ours may have been asked in an earlier life, and be about to come; an original never says anything."""
    producer = resumed()
    producer.handle_subscription(b"WORIGINAL", True, NOW)
    send(producer)
    stored(producer, 40, "S")
    assert flush(producer) == []

    producer.handle_subscription(b"F", True, NOW + 1)
    assert stored(producer, 100, "T", NOW + 1) == rolled_back(100)


def test_acknowledgements_without_a_name_are_no_answer() -> None:
    """An original says where it is on its way; one of ours says the same again by name, and would count twice."""
    producer = resumed(stores=2)
    send(producer)
    producer.handle_message(Ack("P", "hello", 39), NOW)
    stored(producer, 40, "S")
    assert flush(producer) == []

    stored(producer, 40, "T")
    assert published(flush(producer)) == [(60, 61)]


def test_a_store_that_comes_late_is_asked_before_it_hears_of_what_others_were_sent_meanwhile() -> None:
    late = NOW + 10
    producer = resumed(stores=0)
    for _ in range(60):
        send(producer, now=late)
    producer.handle_subscription(b"F", True, late)

    assert producer.handle_timeout(late) == [Publish(Head("hello", "P", "hello", 59))]
    assert send(producer, now=late) == []
    producer.handle_subscription(b"SME", True, late)
    assert producer.handle_message(Fetch("P", "ME", "hello", 100, 20), late) == []
    assert stored(producer, 100, now=late) == rolled_back(100, sent=60)


def test_a_late_store_that_holds_no_more_is_told_of_what_was_sent_meanwhile() -> None:
    late = NOW + 10
    producer = resumed(stores=0)
    send(producer, now=late)
    producer.handle_subscription(b"F", True, late)
    stored(producer, 60, now=late)

    assert producer.handle_timeout(late + 1) == [Publish(Head("hello", "P", "hello", 60))]
    producer.handle_subscription(b"SME", True, late)
    assert published(producer.handle_message(Fetch("P", "ME", "hello", 60, 1), late)) == [(60, 61)]
    stored(producer, 61, now=late)
    assert producer.stored == 61


def test_a_store_that_leaves_before_it_answers_is_not_waited_for() -> None:
    producer = resumed(stores=2)
    stored(producer, 60)
    producer.handle_subscription(b"F", False, NOW)
    assert published(send(producer)) == [], "it may be the one that has answered"

    stored(producer, 60)
    assert published(flush(producer)) == [(60, 61)]


def test_the_answer_of_a_store_that_left_does_not_count_for_one_that_has_not_answered() -> None:
    producer = resumed(stores=2)
    stored(producer, 60, "S")
    producer.handle_subscription(b"F", False, NOW)
    assert send(producer) == []
    assert stored(producer, 100, "T") == rolled_back(100)


def test_who_asked_for_some_of_a_batch_and_got_all_of_it_may_acknowledge_all() -> None:
    late = NOW + LOG_LIMITS.resume_wait_s
    producer = resumed(stores=0)
    for _ in range(9):
        producer.append(b"x")
    assert published(send(producer, now=late)) == [(60, 70)]
    producer.handle_subscription(b"SME", True, late)
    assert published(producer.handle_message(Fetch("P", "ME", "hello", 60, 1), late)) == [(60, 70)]

    assert not any(isinstance(each, Report) for each in stored(producer, 70, now=late))
    assert producer.stored == 70


def test_what_a_store_acknowledges_before_it_listens_is_no_answer() -> None:
    producer = resumed(stores=0)
    stored(producer, 40)  # of what an earlier life had sent: its disk is slow
    assert send(producer) == []
    producer.handle_subscription(b"F", True, NOW)
    assert flush(producer) == []
    assert stored(producer, 100) == rolled_back(100)


def test_an_answer_does_not_count_for_a_store_that_comes_after_it() -> None:
    producer = resumed(stores=2)
    stored(producer, 40, "T")  # of what an earlier life had sent
    producer.handle_subscription(b"F", True, NOW)
    stored(producer, 60, "S")
    stored(producer, 60, "U")
    assert send(producer) == []
    assert stored(producer, 100, "T") == rolled_back(100)


def test_another_copy_in_use_is_noticed_in_the_midst_of_life() -> None:
    producer = LogProducer("hello", "P", journal=[], clock=CLOCK)
    producer.start(NOW)
    assert published(send(producer)) == [(0, 1)]  # a first life asks nobody

    (report,) = stored(producer, 9)
    assert isinstance(report, Report)
    assert "1 records sent before this was known may be lost" in str(report.event)


def test_without_a_journal_an_acknowledgement_of_what_was_never_sent_means_nothing() -> None:
    producer = LogProducer("hello", "P", clock=CLOCK)
    producer.append(b"a")
    producer.flush(NOW)

    assert stored(producer, 9) == []
    assert producer.stored == 0
    assert published(producer.flush(NOW)) == []
    producer.append(b"b")
    assert published(producer.flush(NOW)) == [(1, 2)]


def test_who_asked_for_what_is_not_kept_any_more_may_acknowledge_the_later_records_that_came_instead() -> None:
    late = NOW + LOG_LIMITS.resume_wait_s
    producer = resumed(stores=0)
    for _ in range(4):
        send(producer, now=late)
    producer.handle_subscription(b"SME", True, late)
    producer.handle_message(Fetch("P", "ME", "hello", 60, 2), late)
    stored(producer, 62, now=late)
    asked_twice = Fetch("P", "ME", "hello", 60, 2)
    assert published(producer.handle_message(asked_twice, late)) == [(62, 63), (63, 64)]

    assert not any(isinstance(each, Report) for each in stored(producer, 64, now=late))
    assert producer.stored == 64
