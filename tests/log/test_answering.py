"""Answers to originals, piece by piece."""

from __future__ import annotations

import math

from tests.fixed_clock import FixedClock
from tests.log.store_rig import WALL, StoreRig, published

from chappe.core import Effect, Publish
from chappe.defaults import FETCH_RECORDS_MAX
from chappe.limits import LOG_LIMITS, LogLimits
from chappe.log.answering import PAUSE_S, Answering
from chappe.log.batch import encode_batch
from chappe.log.messages import Fetch, Head, RecordMessage
from chappe.log.producer import LogProducer
from chappe.log.storage import AppendRecords

CLOCK = FixedClock(us=WALL)

PIECE_RECORDS = LOG_LIMITS.answer_records
NOW = 100.0


def said(name: str, first: int, count: int) -> Effect:
    """Stands for ``count`` records."""
    return Publish(Fetch("P", name, "hello", first, count))


def piece(wanted: Fetch, limit: int) -> tuple[list[Effect], int]:
    return [said(wanted.address, wanted.sequence, limit)], wanted.sequence + limit


def fetch(name: str, first: int, count: int) -> Fetch:
    return Fetch("P", name, "hello", first, count)


def serve(answering: Answering, pieces: int) -> list[Effect]:
    actions: list[Effect] = []
    for _ in range(pieces):
        assert answering.due < math.inf
        actions += answering.serve(answering.due)
    return actions


def test_little_is_answered_at_once() -> None:
    answering = Answering(piece)
    assert answering.fetch(fetch("A", 7, 3), NOW) == [said("A", 7, 3)]
    assert answering.serve(NOW + PAUSE_S) == []
    assert answering.due == math.inf


def test_much_is_answered_in_pieces_with_pauses_between() -> None:
    answering = Answering(piece)
    assert answering.fetch(fetch("A", 0, 2 * PIECE_RECORDS + 5), NOW) == [said("A", 0, PIECE_RECORDS)]
    assert answering.due == NOW + PAUSE_S
    assert serve(answering, 2) == [said("A", PIECE_RECORDS, PIECE_RECORDS), said("A", 2 * PIECE_RECORDS, 5)]
    assert answering.due == math.inf


def test_everybody_gets_a_turn() -> None:
    answering = Answering(piece)
    answering.fetch(fetch("A", 0, 3 * PIECE_RECORDS), NOW)
    assert answering.fetch(fetch("B", 0, PIECE_RECORDS), NOW) == []
    assert serve(answering, 3) == [
        said("A", PIECE_RECORDS, PIECE_RECORDS),
        said("B", 0, PIECE_RECORDS),
        said("A", 2 * PIECE_RECORDS, PIECE_RECORDS),
    ]


def test_who_asks_again_is_answered_anew_and_not_twice() -> None:
    answering = Answering(piece)
    answering.fetch(fetch("A", 0, 2 * PIECE_RECORDS), NOW)
    answering.fetch(fetch("A", 5, 1), NOW)
    assert serve(answering, 1) == [said("A", 5, 1)]


def test_nobody_gets_more_than_an_original_asks_for() -> None:
    answering = Answering(piece)
    answering.fetch(fetch("A", 0, 2**32 - 1), NOW)
    last = serve(answering, FETCH_RECORDS_MAX // PIECE_RECORDS - 1)[-1]
    assert last == said("A", FETCH_RECORDS_MAX - PIECE_RECORDS, PIECE_RECORDS)
    assert answering.serve(answering.due) == [] or answering.due == math.inf


def test_who_left_is_not_answered_any_more() -> None:
    answering = Answering(piece)
    answering.fetch(fetch("A", 0, 5 * PIECE_RECORDS), NOW)
    answering.gone("A")
    assert answering.serve(NOW + PAUSE_S) == []
    assert answering.due == math.inf


def test_answers_under_way_have_a_bound() -> None:
    answering = Answering(piece, LogLimits(answers_max=2))
    for name in "ABCD":
        answering.fetch(fetch(name, 0, 2 * PIECE_RECORDS), NOW)
    heard = [each.message.address for each in serve(answering, 3) if isinstance(each, Publish)]
    assert heard == ["A", "B", "B"]


def test_a_store_says_once_that_there_is_more_and_only_at_the_end() -> None:
    """An original does not ask for the same hundred thousand twice within a second, and not later either."""
    rig = StoreRig()
    rig.keep(0, *[b"x"] * 4000)
    actions = rig.core.handle_message(fetch("C", 0, 2500), rig.now)
    assert len(actions) == PIECE_RECORDS
    actions += rig.wait(0.1)

    heard = published(actions)
    assert [each.sequence for each in heard if isinstance(each, RecordMessage)] == list(range(2500))
    assert heard[-1] == Head("C", "P", "hello", 3999, direct=True)
    assert sum(isinstance(each, Head) for each in heard) == 1


def test_headers_that_do_not_decode_are_nothing_to_an_original() -> None:
    rig = StoreRig()
    rig.keep(0, *[b"x"] * PIECE_RECORDS)
    body = encode_batch(PIECE_RECORDS, [b"y"], WALL, headers=[b"\xff"])
    rig.storage.publish(rig.storage.write([AppendRecords("hello", "P", PIECE_RECORDS, 1, WALL, WALL, body)]))
    actions = rig.core.handle_message(fetch("C", 0, PIECE_RECORDS + 1), rig.now)
    actions += rig.wait(0.1)
    heard = [each for each in published(actions) if isinstance(each, RecordMessage)]
    assert heard[-1] == RecordMessage("C", "P", "hello", PIECE_RECORDS, b"y", True)


def test_a_producer_answers_in_pieces_what_it_still_keeps() -> None:
    producer = LogProducer("hello", "P", clock=CLOCK)
    producer.handle_subscription(b"DC", True, NOW)
    for _ in range(3):
        for _ in range(1500):
            producer.append(b"x")
        producer.flush(NOW)
    actions = producer.handle_message(fetch("C", 10, FETCH_RECORDS_MAX), NOW)
    assert len(actions) == PIECE_RECORDS
    for tick in range(1, 10):
        actions += producer.handle_timeout(NOW + tick / 100)

    heard = [each.message for each in actions if isinstance(each, Publish)]
    assert [each.sequence for each in heard if isinstance(each, RecordMessage)] == list(range(10, 4500))
    assert producer.next_timeout() == NOW + 1
