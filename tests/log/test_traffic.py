"""What a node of the log tells of what passes, and what it does not answer."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from chappe.errors import ProtocolError
from chappe.log import traffic as module
from chappe.log.messages import Ack, AskTraffic, BatchMessage, Fetch, Head, RecordMessage, Stored, TrafficTold, decode
from chappe.log.traffic import ANSWERS_MAX, ROWS_MAX, SENDERS_MAX, Report, Traffic, parse_report

QUESTION = AskTraffic("node", "asker", 7)


def told(traffic: Traffic, *carries: str, waiting: int = 0, full: bool = False) -> Report:
    answer = traffic.answer(QUESTION, carries, waiting, full, 0.0)
    assert answer is not None
    return parse_report(answer.body)


def test_what_came_is_counted_by_who_says_it_and_what_stores_answered_by_where_they_are_asked() -> None:
    traffic = Traffic()
    traffic.took(BatchMessage("t", "partition", "t", b"x" * 90), 100)
    traffic.took(BatchMessage("t", "partition", "t", b"x" * 40), 50)
    traffic.took(Fetch("partition", "reader", "t", 0, 1), 20)
    traffic.took(Stored("partition", "store", "t", 3), 30)
    traffic.asked("tcp://h:1")
    traffic.asked("tcp://h:1")
    traffic.answered("tcp://h:1", 500)

    found = told(traffic, "a", "b", waiting=4, full=True)

    assert found.carries == ("a", "b")
    assert sorted(found.came) == [("partition", 2, 150), ("reader", 1, 20), ("store", 1, 30)]
    assert found.answered == (("tcp://h:1", 1, 500, 2),)
    assert (found.waiting, found.full) == (4, True)


def test_what_does_not_say_who_sent_it_is_not_counted() -> None:
    traffic = Traffic()
    traffic.took(Ack("partition", "t", 3), 30)
    traffic.took(RecordMessage("asker", "partition", "t", 1, b"x", direct=True), 30)  # by a store of the original
    traffic.took(Head("asker", "partition", "t", 1, direct=True), 30)
    assert told(traffic).came == ()

    traffic.took(BatchMessage("asker", "partition", "t", b"x", direct=True), 30)  # by its producer alone
    assert told(traffic).came == (("partition", 1, 30),)


def test_an_address_of_others_that_is_not_text_is_left_out_and_stops_nobody() -> None:
    traffic = Traffic()
    rogue = decode([b"F" + b"partition" + b"\0\x01" + b"\x03re\xff" + b"\x01t" + bytes(12)])
    assert isinstance(rogue, Fetch)
    assert rogue.address == "re\udcff"
    traffic.took(rogue, 20)
    traffic.asked("tcp://h\udcff:1")
    traffic.took(Fetch("partition", "léser", "t", 0, 1), 20)

    found = told(traffic)

    assert (found.came, found.answered) == ((("léser", 1, 20),), ())


def test_an_answer_goes_to_who_asked_under_the_number_of_the_question() -> None:
    answer = Traffic().answer(QUESTION, (), 0, False, 0.0)

    assert isinstance(answer, TrafficTold)
    assert (answer.topic, answer.address, answer.number) == ("asker", "node", 7)


def test_so_many_are_answered_in_a_second_and_no_more() -> None:
    traffic = Traffic()

    answers = [traffic.answer(QUESTION, (), 0, False, 5.0) for _ in range(ANSWERS_MAX + 3)]

    assert [each is not None for each in answers] == [True] * ANSWERS_MAX + [False] * 3
    assert traffic.answer(QUESTION, (), 0, False, 6.0) is not None


def test_an_answer_is_bounded_and_has_those_from_whom_most_came() -> None:
    traffic = Traffic()
    for number in range(ROWS_MAX + 10):
        traffic.took(Stored("p", f"s{number}", "t", 1), number)

    found = told(traffic, *(f"p{number}" for number in range(ROWS_MAX + 10)))

    assert len(found.carries) == len(found.came) == ROWS_MAX
    assert min(size for _, _, size in found.came) == 10


def test_beyond_so_many_senders_all_are_counted_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SENDERS_MAX", 3)
    traffic = Traffic()
    for number in range(4):
        traffic.took(Stored("p", f"s{number}", "t", 1), 1)

    assert told(traffic).came == (("s3", 1, 1),)
    assert SENDERS_MAX > ROWS_MAX


@given(st.binary(max_size=60))
@example(b"\x96\x02\x91\xa1\x80\x90\x90\x00\xc2")  # text that is not UTF-8
def test_what_is_no_report_of_what_passes_is_refused(body: bytes) -> None:
    with pytest.raises(ProtocolError):
        parse_report(body)


@pytest.mark.parametrize(
    "report",
    [
        (1, (), (("a", -1, 0),), (), 0, False),
        (1, (), (("a", 1),), (), 0, False),
        (1, (), (), (("a", 1, 1, -1),), 0, False),
        (1, (), (), (), -1, False),
        (1, (5,), (), (), 0, False),
        (1, (), (), ()),
    ],
)
def test_a_report_of_what_passes_with_something_else_in_it_is_refused(report: tuple[object, ...]) -> None:
    with pytest.raises(ProtocolError):
        parse_report(msgspec.msgpack.encode(report))


def test_what_a_newer_format_has_at_its_end_is_passed_over() -> None:
    assert parse_report(msgspec.msgpack.encode((2, (), (), (), 3, True, "more"))).waiting == 3
