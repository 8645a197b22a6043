"""What goes over connections of chains: every message there and back, cut anywhere, and garbage."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chappe.errors import ProtocolError
from chappe.replication.agreement import core as agreement
from chappe.replication.chain import messages as chain
from chappe.replication.chain.wire import (
    ANSWER,
    FRAME_BYTES,
    MESSAGES_MAX,
    REQUEST,
    SERVER,
    Exclude,
    Excluded,
    Header,
    Look,
    Other,
    Refused,
    Seen,
    chain_of,
    decode_header,
    encode_header,
    pack,
    unpack_answers,
    unpack_between,
    unpack_requests,
)

words = st.integers(0, 2**63 - 1)
ballots = st.tuples(st.integers(0, 2**62), words)
texts = st.text(max_size=20)
entries = st.builds(chain.Entry, words, words, words, words, words, st.binary(max_size=50))
between = st.one_of(
    st.builds(agreement.Prepare, st.integers(0, 2**62), ballots),
    st.builds(agreement.Promise, st.integers(0, 2**62), ballots, words, ballots, st.binary(max_size=50)),
    st.builds(agreement.Accept, st.integers(0, 2**62), ballots, st.binary(max_size=50)),
    st.builds(agreement.Accepted, st.integers(0, 2**62), ballots, words),
    st.builds(agreement.Refuse, st.integers(0, 2**62), ballots, ballots),
    st.builds(agreement.Decided, st.integers(0, 2**62), st.binary(max_size=50)),
    st.builds(agreement.Ask, st.integers(0, 2**62)),
    st.builds(chain.Beat, words, words, words, words, words, words, words, st.booleans()),
    st.builds(chain.Resume, words, st.lists(st.tuples(words, words), max_size=3).map(tuple), words),
    st.builds(chain.Append, words, words, st.lists(entries, max_size=3).map(tuple), words, words, st.booleans()),
    st.builds(chain.Ack, words, words, words, words, words),
    st.builds(chain.Join, words, words, words, st.booleans()),
    st.builds(chain.Piece, words, words, words, words, words, words, st.binary(max_size=50)),
    st.builds(chain.Want, words, words, words, words),
    st.builds(chain.Confirm, words, words, words),
    st.builds(chain.Confirmed, words, words, words, words, words),
)
requests = st.one_of(
    st.builds(chain.Open, st.binary(min_size=1, max_size=64)),
    st.builds(chain.Listen, words, st.binary(min_size=1, max_size=64)),
    st.builds(chain.Do, words, words, words, st.binary(max_size=50)),
    st.builds(chain.Read, words, st.binary(max_size=50)),
    st.builds(Look, words),
    st.builds(Exclude, words, words, st.booleans()),
)
others = st.builds(Other, texts, words, words, words)
names = st.lists(texts, max_size=3).map(tuple)
answers = st.one_of(
    st.builds(chain.Opened, st.binary(min_size=1, max_size=64), words),
    st.builds(chain.Done, words, words, words, st.binary(max_size=50), words, st.booleans()),
    st.builds(chain.Says, words, words, st.binary(max_size=50)),
    st.builds(chain.Chain, words, st.lists(words, max_size=3).map(tuple), texts),
    st.builds(
        Seen, words, words, words, names, names, st.booleans(), words, words, words,
        st.lists(others, max_size=3).map(tuple), words, words, texts,
    ),
    st.builds(Excluded, words, texts),
    st.builds(Refused, texts),
)  # fmt: skip
UNPACK: dict[str, Callable[[bytes], list[Any]]] = {
    "between": unpack_between,
    "requests": unpack_requests,
    "answers": unpack_answers,
}
KINDS: dict[str, st.SearchStrategy[Any]] = {"between": between, "requests": requests, "answers": answers}


@given(st.sampled_from(sorted(KINDS)).flatmap(lambda kind: st.tuples(st.just(kind), st.lists(KINDS[kind], min_size=1))))
def test_messages_come_as_they_were_sent(case: tuple[str, list[Any]]) -> None:
    kind, messages = case
    frames = pack([chain.encode(each) for each in messages])

    assert [each for frame in frames for each in UNPACK[kind](frame)] == messages


@given(st.sampled_from(sorted(KINDS)).flatmap(lambda kind: st.tuples(st.just(kind), KINDS[kind])))
def test_a_message_that_is_cut_anywhere_is_refused(case: tuple[str, Any]) -> None:
    kind, message = case
    (frame,) = pack([chain.encode(message)])

    for end in range(len(frame)):
        with pytest.raises(ProtocolError):
            UNPACK[kind](frame[:end])


@given(st.sampled_from(sorted(UNPACK)), st.binary(max_size=300))
def test_garbage_is_refused_or_is_a_message(kind: str, raw: bytes) -> None:
    try:
        found = UNPACK[kind](raw)
    except ProtocolError:
        return
    assert found


@pytest.mark.parametrize(
    "raw", [b"\x91\x91\xa4\xff\xff\xff\xff", b"\x91\x92\xa4look\xa1\xff", b"\x91\x92\xa7refused\xa1\xff"]
)
@pytest.mark.parametrize("kind", sorted(UNPACK))
def test_text_that_is_no_text_is_refused(kind: str, raw: bytes) -> None:
    with pytest.raises(ProtocolError):
        UNPACK[kind](raw)


@given(
    st.sampled_from(sorted(KINDS)).flatmap(lambda kind: st.tuples(st.just(kind), KINDS[kind])),
    st.integers(0, 2**16),
    st.integers(0, 255),
)
def test_a_message_of_which_a_byte_is_another_one_is_refused_or_another_message(
    case: tuple[str, Any], place: int, byte: int
) -> None:
    kind, message = case
    frame = bytearray(pack([chain.encode(message)])[0])
    frame[place % len(frame)] = byte
    try:
        found = UNPACK[kind](bytes(frame))
    except ProtocolError:
        return
    assert found


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("between", chain.Ack(-1, 0, 0, 0, 0)),
        ("between", chain.Beat(2**63, 0, 0, 0, 0, 0, 0)),
        ("between", chain.Piece(0, 0, 0, 0, 0, 0, bytes(chain.PIECE_BYTES_MAX + 1))),
        ("between", chain.Append(0, 0, (chain.Entry(0, 0, 0, 0, 0, b""),) * (chain.ENTRIES_MAX + 1), 0, 0, False)),
        ("between", chain.Resume(0, ((0, 0),) * (chain.ENTRIES_MAX + 1), 0)),
        ("between", agreement.Decided(0, bytes(agreement.VALUE_BYTES_MAX + 1))),
        ("requests", chain.Do(0, 0, 0, bytes(chain.COMMAND_BYTES_MAX + 1))),
        ("requests", chain.Open(b"")),
        ("answers", chain.Done(0, 0, 0, bytes(chain.RESULT_BYTES_MAX + 1), 0, False)),
        ("answers", chain.Chain(0, tuple(range(16)), "")),
        ("answers", Refused("x" * 1_001)),
    ],
)
def test_a_message_beyond_its_bounds_is_refused(kind: str, message: Any) -> None:
    with pytest.raises(ProtocolError):
        UNPACK[kind](pack([msgspec.msgpack.encode(message)])[0])


def test_a_request_is_no_message_of_a_server_nor_an_answer() -> None:
    (frame,) = pack([chain.encode(chain.Read(1, b"what"))])

    for unpack in (unpack_between, unpack_answers):
        with pytest.raises(ProtocolError):
            unpack(frame)


def test_messages_are_gathered_up_to_the_bounds_of_a_frame() -> None:
    small = [chain.encode(Look(each)) for each in range(MESSAGES_MAX + 1)]
    large = [chain.encode(chain.Read(each, bytes(FRAME_BYTES // 2))) for each in range(3)]

    assert [len(unpack_requests(each)) for each in pack(small)] == [MESSAGES_MAX, 1]
    assert [len(unpack_requests(each)) for each in pack(large)] == [1, 1, 1]
    assert pack([]) == []


@pytest.mark.parametrize("kind", [SERVER, REQUEST, ANSWER])
def test_a_header_comes_as_it_was_sent_and_cut_is_refused(kind: int) -> None:
    raw = encode_header(kind, 2, chain_of("orders", ["a", "b"]))

    assert decode_header(raw) == Header(kind, 2, chain_of("orders", ["a", "b"]))
    for end in range(len(raw)):
        with pytest.raises(ProtocolError):
            decode_header(raw[:end])


@pytest.mark.parametrize(
    ("place", "byte", "says"),
    [(0, 0, "not of a chain"), (3, 2, "version 2"), (4, 9, "not of a chain"), (5, 15, "not of a chain")],
)
def test_a_header_of_something_else_is_refused(place: int, byte: int, says: str) -> None:
    raw = bytearray(encode_header(REQUEST, 0, bytes(8)))
    raw[place] = byte

    with pytest.raises(ProtocolError, match=says):
        decode_header(bytes(raw))


def test_other_names_are_another_chain() -> None:
    chains = {chain_of("orders", ["a", "b"]), chain_of("orders", ["b", "a"]), chain_of("bills", ["a", "b"])}

    assert len(chains) == 3
