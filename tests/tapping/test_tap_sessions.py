"""Who looks at a tap sees what is wanted of what passes, once, and how much was left out."""

from __future__ import annotations

import pytest
from tests.fixed_clock import FixedClock

from chappe.errors import ProtocolError
from chappe.tapping.messages import (
    PREFIXES_MAX,
    Look,
    Passed,
    Refused,
    Seen,
    Shown,
    Subscribed,
    decode_answer,
    decode_look,
    encode,
    unknown_kind,
)
from chappe.tapping.sessions import ANSWER_MAX, MESSAGES_MAX, SESSIONS_MAX, SILENT_S, SUBSCRIPTIONS_MAX, Sessions

ALL = Look()
CLOCK = FixedClock()
A, B = b"client a", b"client b"


def passed(topic: bytes, count: int = 1) -> Passed:
    return Passed(0, topic, "data", "here", count=count)


@pytest.fixture
def sessions() -> Sessions:
    made = Sessions(CLOCK)
    assert made.look(A, ALL, 0.0) is None
    assert made.look(B, Look((b"t/", b"u")), 0.0) is None
    return made


def test_each_sees_what_it_looks_for_and_once(sessions: Sessions) -> None:
    all_of_them = [passed(b"t/1"), passed(b"other"), passed(b"u")]
    sessions.show(all_of_them, 0)
    assert sessions.take(A) == Shown(list(all_of_them))
    assert sessions.take(B) == Shown([all_of_them[0], all_of_them[2]])
    assert sessions.take(A) == sessions.take(B) == Shown([])
    assert set(sessions.prefixes) == {b"", b"t/", b"u"}


def test_what_has_no_room_is_counted_and_told_once(sessions: Sessions) -> None:
    sessions.show([passed(b"x", 10) for _ in range(MESSAGES_MAX + 3)], 5)
    assert sessions.take(A).missed == 35
    assert sessions.take(B) == Shown([], 5)
    shown = sessions.take(A)
    assert (len(shown.seen), shown.missed) == (ANSWER_MAX, 0)


def test_who_comes_hears_who_wants_what_and_then_what_changes(sessions: Sessions) -> None:
    wants = {("p1", b"t/1"): ("record",), ("p1", b""): ("head",), ("p2", b"x"): ("record",)}
    CLOCK.ns = 7_000
    sessions.show_wants(wants)
    everything = [Subscribed(7, topic, who, kinds) for (who, topic), kinds in wants.items()]
    assert sessions.take(A).seen == everything
    assert sessions.take(B).seen == everything[:2]  # the second one gets what begins with t/, too
    sessions.forget(B)
    CLOCK.ns = 8_000
    sessions.look(B, Look((b"x",)), 0.0)
    assert sessions.take(B).seen == [Subscribed(8, b"", "p1", ("head",)), Subscribed(8, b"x", "p2", ("record",))]
    CLOCK.ns = 9_000
    sessions.show_wants({("p1", b""): ("head",), ("p2", b"x"): ("record", "batch")})
    gone, more = Subscribed(9, b"t/1", "p1", ()), Subscribed(9, b"x", "p2", ("record", "batch"))
    assert sessions.take(A).seen == [gone, more]
    assert sessions.take(B).seen == [more]


def test_subscriptions_are_bounded_too(sessions: Sessions) -> None:
    sessions.show_wants({("p", b"%d" % each): ("record",) for each in range(SUBSCRIPTIONS_MAX + 4)})
    assert sessions.take(A).missed == 4


def test_who_is_silent_is_forgotten_and_who_asks_is_not(sessions: Sessions) -> None:
    sessions.look(A, ALL, SILENT_S - 1)
    assert sessions.next_timeout() == SILENT_S
    sessions.handle_timeout(SILENT_S)
    assert sessions.prefixes == (b"",)
    sessions.handle_timeout(2 * SILENT_S)
    assert not sessions


def test_who_was_forgotten_is_told_that_something_was_missed(sessions: Sessions) -> None:
    sessions.handle_timeout(SILENT_S)
    sessions.look(A, Look(again=True), SILENT_S)
    sessions.look(B, Look((b"t/",)), SILENT_S)
    sessions.look(A, Look(again=True), SILENT_S)
    assert (sessions.take(A).missed, sessions.take(B).missed) == (1, 0)


def test_no_more_than_so_many_look_at_once() -> None:
    sessions = Sessions(CLOCK)
    for number in range(SESSIONS_MAX):
        assert sessions.look(b"%d" % number, ALL, 0.0) is None
    assert isinstance(sessions.look(b"late", ALL, 0.0), Refused)
    assert sessions.look(b"0", ALL, 0.0) is None
    sessions.forget(b"0")
    assert sessions.look(b"late", ALL, 0.0) is None


@pytest.mark.parametrize("message", [ALL, Look((b"a", b"\xff"), again=True)])
def test_a_question_is_read_as_it_was_meant(message: Look) -> None:
    assert decode_look(encode(message)) == message


@pytest.mark.parametrize("message", [Shown([passed(b"t"), Subscribed(1, b"", "p", ("x",))], 3), Refused("no")])
def test_an_answer_is_read_as_it_was_meant(message: Shown | Refused) -> None:
    assert decode_answer(encode(message)) == message
    raw = encode(message)
    for end in range(len(raw)):
        with pytest.raises(ProtocolError):
            decode_answer(raw[:end])


@pytest.mark.parametrize("raw", [b"", b"\xc1", b"\x91" * 5_000, encode(Look((b"a",) * (PREFIXES_MAX + 1)))])
def test_what_is_no_question_is_refused(raw: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode_look(raw)


def test_what_taps_wrote_before_they_said_their_format_is_understood() -> None:
    assert decode_look(bytes.fromhex("94a46c6f6f6b91c40161c303")) == Look((b"a",), True, 3)
    former = bytes.fromhex(
        "94a573686f776e929ba670617373656401c40174a76d657373616765a377686fa0a0030105c402787895aa7375627363726962656402"
        "c40174a26d6591a67265636f72640403"
    )
    seen: list[Seen] = [
        Passed(1, b"t", "message", "who", first=3, size=5, content=b"xx"),
        Subscribed(2, b"t", "me", ("record",)),
    ]
    assert decode_answer(former) == Shown(seen, 4, 3)
    assert encode(Shown(seen, 4, 3))[1:].startswith(former[1:])


def test_a_question_that_only_newer_taps_know_is_answered_in_a_sentence() -> None:
    answer = unknown_kind(b"\x92\xa4peek\x01")
    assert answer is not None
    assert "'peek' is not one of them: upgrade it" in answer.reason
    for garbage in (b"", b"\xc1", encode(Look()), b"\x80"):
        assert unknown_kind(garbage) is None
