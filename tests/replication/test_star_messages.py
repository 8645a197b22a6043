"""The bytes of a pair and its witness: what is captured, what comes back, and what is refused."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chappe.errors import ProtocolError
from chappe.replication.binary_star.messages import (
    ACTIVE,
    BACKUP,
    BEAT,
    PRIMARY,
    TERM_MAX,
    Answer,
    Beat,
    Claim,
    decode_answer,
    decode_claim,
    decode_state,
    encode_answer,
    encode_beat,
    encode_claim,
)

STATES = Path(__file__).parent.parent / "vectors" / "clone" / "bstar-states.json"
numbers = st.integers(0, 2**64 - 1)
terms = st.integers(0, TERM_MAX)
lives = st.integers(1, 2**64 - 1)


@st.composite
def beats(draw: st.DrawFn) -> Beat:
    role = draw(st.sampled_from((PRIMARY, BACKUP)))
    state = draw(st.sampled_from((role, 3, 4)))
    seen = draw(st.integers(1, TERM_MAX))
    known = st.integers(0, seen)
    return Beat(
        state, role, draw(st.integers(1, 60_000)), draw(lives), draw(numbers), draw(numbers), draw(numbers),
        draw(st.integers(1, seen)) if state == ACTIVE else 0, seen, draw(known), draw(st.integers(0, 2)), draw(terms),
        draw(terms), draw(numbers),
    )  # fmt: skip


claims = st.builds(
    lambda alone, role, life, count, base, more: Claim(alone, role, life, count, max(1, base + more), base),
    st.booleans(), st.sampled_from((PRIMARY, BACKUP)), lives, numbers, st.integers(0, 2**61), st.integers(0, 2**60),
)  # fmt: skip
answers = st.builds(Answer, st.booleans(), lives, numbers, terms)
names = st.binary(max_size=255)


def test_states_are_those_that_the_programs_of_the_guide_were_heard_to_send() -> None:
    heard = {
        bytes.fromhex(event["frames_hex"][0]): event["kind"].removeprefix("BSTAR-STATE ")
        for connection in json.loads(STATES.read_text())["connections"]
        for event in connection["events"]
        if event["kind"].startswith("BSTAR-STATE ")
    }

    assert {decode_state(frame): kind for frame, kind in heard.items()} == {
        1: "PRIMARY", 2: "BACKUP", 3: "ACTIVE", 4: "PASSIVE",
    }  # fmt: skip


@given(beats(), names)
def test_a_beat_comes_back(beat: Beat, name: bytes) -> None:
    frame = encode_beat(beat, name)

    assert decode_state(frame) == (beat, name)
    assert frame.startswith(BEAT)


@given(claims, names)
def test_a_claim_comes_back(claim: Claim, name: bytes) -> None:
    assert decode_claim(encode_claim(claim, name)) == (claim, name)


@given(answers)
def test_an_answer_comes_back(answer: Answer) -> None:
    assert decode_answer(encode_answer(answer)) == answer


def test_the_bytes_of_a_beat_stay() -> None:
    beat = Beat(ACTIVE, PRIMARY, 250, 7, 1_000_000, 8, 999_000, 3, 3, 3, 2, 0, 0, 8)

    assert encode_beat(beat, b"p").hex() == (
        "2a010301000000fa" "0000000000000007" "00000000000f4240" "0000000000000008" "00000000000f3e58"
        "0000000000000003" "0000000000000003" "0000000000000003" "02" "0000000000000000" "0000000000000000"
        "0000000000000008" "70"
    )  # fmt: skip


def decodes(frame: bytes) -> None:
    """Whatever comes is decoded, or refused in words; nothing else is raised."""
    for decode in (decode_state, decode_claim, decode_answer):
        with suppress(ProtocolError):
            decode(frame)


@given(st.binary(max_size=600))
def test_any_bytes_are_decoded_or_refused(frame: bytes) -> None:
    decodes(frame)


@given(st.one_of(st.builds(encode_beat, beats(), names), st.builds(encode_claim, claims, names)), st.data())
def test_a_damaged_message_is_decoded_or_refused(frame: bytes, data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(frame) - 1))
    decodes(frame[:at] + bytes([data.draw(st.integers(0, 255))]) + frame[at + 1 :])
    decodes(frame[:at])


@pytest.mark.parametrize("frame", [b"", b"0", b"5", b"33", b"3 ", b"*", b"*" * 108, b"\x003"])
def test_what_is_no_state_is_refused(frame: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode_state(frame)
