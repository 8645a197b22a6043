"""What endpoints tell of their links and data stores to who asks, and what they do not answer."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chappe.data.binary import encode
from chappe.data.values import Count
from chappe.errors import ProtocolError
from chappe.mesh.filters import announced
from chappe.mesh.link_reports import (
    ANSWERS_MAX,
    ASK_LINKS,
    LIVES_BYTES_MAX,
    LIVES_MAX,
    NAME_MAX,
    ROWS_MAX,
    LinkReport,
    Reporting,
    StoreReport,
    ask,
    named,
    parse_report,
)
from chappe.mesh.links.link import PeerInfo
from chappe.mesh.links.peers import PeerStatus

NIL = "00000000-0000-0000-0000-00000000000"


def peer(number: int, **counted: int) -> PeerInfo:
    return PeerInfo(number.to_bytes(16, "big"), ("127.0.0.1", 1), PeerStatus.PEERED, True, False, **counted)


def test_counters_of_links_and_ages_of_stores_come_back_under_the_number_that_was_asked() -> None:
    reporting = Reporting()
    reporting.tls = True
    dialled = PeerInfo(None, ("h", 1), PeerStatus.UNKNOWN, True)
    peers = [peer(2, sent=7, received=8, buffered=9, dropped=1), peer(1), dialled]

    report = parse_report(reporting.answer(ask(5), peers, [StoreReport("prices", False, 3, 1.5)], 0.0))

    assert (report.number, report.tls) == (5, True)
    assert report.links == (LinkReport(f"{NIL}1", 0, 0, 0, 0), LinkReport(f"{NIL}2", 7, 8, 9, 1))
    assert report.stores == (StoreReport("prices", False, 3, 1.5),)


def test_so_many_questions_are_answered_in_a_second_and_no_more() -> None:
    reporting = Reporting()

    answers = [reporting.answer(ask(number), [], [], 10.0) for number in range(ANSWERS_MAX + 5)]

    assert [bool(each) for each in answers] == [True] * ANSWERS_MAX + [False] * 5
    assert reporting.answer(ask(1), [], [], 11.0)


def test_what_is_no_question_is_not_answered_and_one_of_a_newer_format_is() -> None:
    reporting = Reporting()

    for payload in (b"", b"garbage", encode("text"), encode(()), encode((1,)), encode((1, -1)), encode((1, "x"))):
        assert reporting.answer(payload, [], [], 0.0) == b""
    assert parse_report(reporting.answer(encode((9, 4, "something new")), [], [], 0.0)).number == 4


def test_an_answer_is_bounded() -> None:
    reporting = Reporting()
    stores = [StoreReport("s" * (NAME_MAX + number % 2), True, 0, 0.0) for number in range(ROWS_MAX + 10)]

    report = parse_report(reporting.answer(ask(0), map(peer, range(1, ROWS_MAX + 9)), stores, 0.0))

    assert len(report.links) == ROWS_MAX
    assert len(report.stores) == ROWS_MAX // 2


def test_what_expires_next_of_a_store_that_was_named_is_told_within_bounds() -> None:
    reporting = Reporting()
    assert (named(ask(1, "prices")), named(ask(1)), named(b"garbage"), named(encode((1, 2, 3)))) == (
        "prices",
        "",
        "",
        "",
    )

    few = parse_report(reporting.answer(ask(1, "prices"), [], [], 0.0, [("key", 1.5), (Count(7), 0.0)]))
    many = parse_report(reporting.answer(ask(2), [], [], 0.0, [("k", 1.0)] * (LIVES_MAX + 5)))
    large = parse_report(reporting.answer(ask(3), [], [], 0.0, [("k" * (LIVES_BYTES_MAX // 2), 1.0)] * 3))

    assert few.lives == (("key", 1.5), (Count(7), 0.0))
    assert len(many.lives) == LIVES_MAX
    assert len(large.lives) == 1


@given(st.one_of(st.binary(max_size=80), st.tuples(st.integers(-9, 9), st.booleans()).map(encode)))
def test_what_is_no_report_is_refused(payload: bytes) -> None:
    with pytest.raises(ProtocolError):
        parse_report(payload)


@pytest.mark.parametrize(
    "report",
    [
        (1, 1, "yes", (), ()),
        (1, 1, None, ((NIL, 1, 1, 1),), ()),
        (1, 1, None, ((5, 1, 1, 1, 1),), ()),
        (1, 1, None, ((NIL, -1, 1, 1, 1),), ()),
        (1, 1, None, (), (("n", 1, 1, 1.0),)),
        (1, 1, None, (), (("n", True, 1, float("inf")),)),
        (1, 1, None, (), (("n", True, 1, -1.0),)),
        (1, 1, None, "x", ()),
        (1, 1, None, (), (), (("key",),)),
        (1, 1, None, (), (), (("key", -1.0),)),
        (1, 1, None, (), (), (("key", "soon"),)),
    ],
)
def test_a_report_with_something_else_in_it_is_refused(report: tuple[object, ...]) -> None:
    with pytest.raises(ProtocolError):
        parse_report(encode(report))


def test_a_newer_report_is_read_as_far_as_it_is_known() -> None:
    newer = encode((2, 3, None, (("x", 1, 2, 3, 4, "more"),), (("n", True, 5, 0.0, "more"),), "more"))

    report = parse_report(newer)

    assert report.links == (LinkReport("x", 1, 2, 3, 4),)
    assert report.stores == (StoreReport("n", True, 5, 0.0),)


def test_nobody_is_told_that_an_endpoint_listens_to_questions() -> None:
    assert announced([ASK_LINKS, b"a"]) == (b"a",)
