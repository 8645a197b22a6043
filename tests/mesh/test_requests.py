"""Requests and answers: their bytes, and the originator's table of those that wait."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chappe.core import Resolve
from chappe.data.binary import decode, encode
from chappe.data.scalars import Count, EnumValue
from chappe.defaults import REQUEST_ANSWERS_BYTES_MAX, REQUESTS_MAX, REQUESTS_SEEN_MAX
from chappe.errors import BufferFull
from chappe.mesh.messages import NOBODY, Message
from chappe.mesh.requests import (
    AnswerHead,
    RequestHead,
    Requests,
    SeenRequests,
    inbox_of,
    pack_answer,
    pack_request,
    parse_answer,
    parse_request,
    receiver_of,
)

OWN, ONE, TWO, BRIDGE = (bytes([number]) * 16 for number in range(1, 5))
INBOX = b"<$>/inbox/01010101-0101-0101-0101-010101010101"
REQUEST = pack_request(7, INBOX, encode("hi"))
ANSWER = pack_answer(7, ONE, 3, encode(144))
ERROR = pack_answer(7, ONE, 3, encode("no"), failed=True)


def heard(
    endpoint: bytes, payload: bytes = b"\0", *, number: int = 7, responder: int = 1, origin: bytes = b""
) -> Message:
    body = pack_answer(number, endpoint, responder, payload)
    return Message(INBOX, body, origin=origin or endpoint)


def outcome(effects: Sequence[object]) -> list[bytes]:
    [found] = effects
    assert isinstance(found, Resolve)
    assert found.ticket == 1
    return [each.payload for each in found.outcome]


@pytest.fixture
def requests() -> Requests:
    """A table with request 7 of ticket 1, which waits for two answers until 10; BRIDGE may speak for anybody."""
    found = Requests(OWN, lambda origin, speaker: origin == BRIDGE)
    found.ask(7, 1, 2, 10.0)
    return found


def test_requests_and_answers_are_values_of_the_mesh_that_originals_pass_on() -> None:
    assert decode(REQUEST) == (EnumValue("chappe::request"), Count(7), INBOX.decode(), "hi")
    one = str(UUID(bytes=ONE))
    assert decode(ANSWER) == (EnumValue("chappe::answer"), Count(7), one, Count(3), 144)
    assert decode(ERROR) == (EnumValue("chappe::error"), Count(7), one, Count(3), "no")
    for body in (REQUEST, ANSWER, ERROR):
        assert encode(decode(body)) == body
    assert inbox_of(OWN) == INBOX


def test_a_request_has_the_bytes_that_are_documented() -> None:
    head = "0e04" + "0b0f" + b"chappe::request".hex() + "020000000000000007" + "052e"

    assert REQUEST.hex() == head + INBOX.hex() + "05026869"


def test_heads_come_back_and_values_stay_encoded() -> None:
    assert parse_request(REQUEST) == RequestHead(7, INBOX, encode("hi"))
    assert parse_answer(ANSWER) == AnswerHead(7, ONE, 3, encode(144), False)
    assert parse_answer(ERROR) == AnswerHead(7, ONE, 3, encode("no"), True)
    assert parse_request(ANSWER) is None
    assert parse_answer(REQUEST) is None


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        encode("hi"),
        encode((EnumValue("chappe::request"), 7, INBOX.decode(), "hi")),
        encode((EnumValue("chappe::request"), Count(7), "jobs", "hi")),
        encode((EnumValue("chappe::request"), Count(7), "<$>/inbox/" + "x" * 300, "hi")),
        encode(("chappe::request", Count(7), INBOX.decode(), "hi")),
        REQUEST[:-4],
    ],
)
def test_other_values_are_not_requests(payload: bytes) -> None:
    assert parse_request(payload) is None


@given(st.sampled_from([REQUEST, ANSWER, ERROR]), st.integers(0, 120), st.binary(max_size=8))
def test_whatever_comes_is_a_head_or_none(body: bytes, at: int, piece: bytes) -> None:
    for each in (body[:at] + piece, body[:at] + piece + body[at + len(piece) :], body[:at] + body[at + 1 :]):
        request, answer = parse_request(each), parse_answer(each)
        assert request is None or pack_request(request.number, request.inbox, request.payload) == each
        assert answer is None or len(answer.endpoint) == 16


def test_a_request_is_over_when_it_has_its_answers(requests: Requests) -> None:
    assert requests.hear([heard(ONE, b"\1\0")]) == []
    assert outcome(requests.hear([heard(TWO, b"\1\1"), heard(BRIDGE)])) == [b"\1\0", b"\1\1"]
    assert requests.invariants() == []
    assert (requests.next_timeout(), requests.handle_timeout(20.0)) == (inf, [])


def test_a_request_is_over_at_its_deadline_with_the_answers_that_came(requests: Requests) -> None:
    requests.hear([heard(ONE)])
    assert (requests.next_timeout(), requests.handle_timeout(9.9)) == (10.0, [])
    assert outcome(requests.handle_timeout(10.0)) == [b"\0"]
    assert requests.hear([heard(TWO)]) == []


def test_an_answer_that_comes_again_is_counted_once(requests: Requests) -> None:
    assert requests.hear([heard(ONE), heard(ONE, b"\1\1"), heard(ONE, origin=BRIDGE)]) == []
    assert len(outcome(requests.hear([heard(ONE, responder=2)]))) == 2


def test_nobody_answers_in_the_name_of_others(requests: Requests) -> None:
    requests.hear([heard(ONE, origin=TWO), heard(ONE, origin=NOBODY), heard(OWN, origin=TWO)])
    assert outcome(requests.handle_timeout(10.0)) == []


def test_answers_to_other_requests_and_other_values_are_dropped(requests: Requests) -> None:
    requests.ask(8, 2, 1, inf)
    requests.forget(8)
    other = Message(INBOX + b"0", pack_answer(7, ONE, 1, b"\0"), origin=ONE)  # the inbox is a prefix of its topic
    assert requests.hear([heard(ONE, number=8), heard(ONE, number=9), Message(INBOX, b"", origin=ONE), other]) == []
    assert outcome(requests.handle_timeout(10.0)) == []


def test_so_many_bytes_of_answers_end_a_request(requests: Requests) -> None:
    assert len(outcome(requests.hear([heard(ONE, bytes(REQUEST_ANSWERS_BYTES_MAX))]))) == 1


def test_so_many_requests_wait_and_no_more(requests: Requests) -> None:
    for number in range(1_000, 1_000 + REQUESTS_MAX - 1):
        requests.ask(number, number, 1, 5.0)
    with pytest.raises(BufferFull, match="65536 requests wait"):
        requests.ask(1, 1, 1, 5.0)
    assert len(requests.handle_timeout(5.0)) == REQUESTS_MAX - 1
    requests.ask(1, 1, 1, 5.0)


def test_a_responder_knows_the_requests_that_it_took_last() -> None:
    seen, heads = SeenRequests(), [RequestHead(number, INBOX, b"\0") for number in range(REQUESTS_SEEN_MAX + 1)]

    assert [seen.is_new(heads[0]), seen.is_new(heads[0]), seen.is_new(RequestHead(0, b"other", b""))] == [1, 0, 1]
    assert all(map(seen.is_new, heads[1:]))
    assert not seen.is_new(heads[-1])
    assert seen.is_new(heads[0])


def test_an_answer_goes_to_the_originator_alone_unless_an_original_brought_the_request() -> None:
    head = RequestHead(7, INBOX, b"\0")

    assert receiver_of(Message(b"t", REQUEST, origin=OWN), head) == OWN
    assert receiver_of(Message(b"t", REQUEST, origin=BRIDGE), head) == NOBODY
    assert receiver_of(Message(b"t", REQUEST), head) == NOBODY
