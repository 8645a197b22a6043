"""Frames of the handshake: the original's byte for byte; every fault with the code that it is answered with."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.mesh.test_mesh_messages import ONES, body_of, filters, ids
from tests.mesh.vectors import bodies

from chappe.mesh.links.greetings import (
    REASON_CHARS_MAX,
    VERSIONS,
    Code,
    DropConn,
    Fault,
    Greeting,
    Hello,
    OriginatorAck,
    OriginatorSyn,
    Probe,
    ResponderSynAck,
    VersionSelect,
    pack_greeting,
    parse_greeting,
)

GOLDEN: dict[str, Greeting] = {
    "hello": Hello(ONES, 1, 1),
    "probe": Probe(),
    "version_select": VersionSelect(ONES, 1),
    "drop_conn_redundant": DropConn(ONES, 39, "redundant connection"),
    "drop_conn_incompatible": DropConn(ONES, 2, "unsupported versions offered"),
    "originator_syn": OriginatorSyn((b"/a", b"/test")),
    "originator_syn_empty": OriginatorSyn(()),
    "responder_syn_ack": ResponderSynAck((b"/test",)),
    "originator_ack": OriginatorAck(),
}
octets = st.integers(0, 255)
greetings = st.one_of(
    st.builds(Hello, ids, octets, octets),
    st.just(Probe()),
    st.builds(VersionSelect, ids, octets),
    st.builds(DropConn, ids, octets, st.text("abc \xe4\u20ac\U0001f600", max_size=REASON_CHARS_MAX)),
    st.builds(OriginatorSyn, filters),
    st.builds(ResponderSynAck, filters),
    st.just(OriginatorAck()),
)


@pytest.mark.parametrize("name", GOLDEN)
def test_the_frames_of_the_original(name: str) -> None:
    body = bodies()[name]
    assert body_of(pack_greeting(GOLDEN[name])) == body
    assert parse_greeting(body) == GOLDEN[name]
    for length in range(len(body)):
        with pytest.raises(Fault) as fault:
            parse_greeting(body[:length])
        assert fault.value.code is Code.INVALID_MESSAGE
    with pytest.raises(Fault, match="failed to parse"):
        parse_greeting(body + b"\0")


def test_the_versions_that_are_spoken_are_offered() -> None:
    assert VERSIONS == (1, 2)
    assert Hello(ONES) == Hello(ONES, 1, 2)
    assert body_of(pack_greeting(Hello(ONES))) == bodies()["hello"][:-1] + b"\2"


@given(greetings)
def test_every_greeting_round_trips(greeting: Greeting) -> None:
    assert parse_greeting(body_of(pack_greeting(greeting))) == greeting


@pytest.mark.parametrize("name", ["hello", "probe", "version_select", "drop_conn_redundant"])
def test_a_wrong_magic_has_its_own_code(name: str) -> None:
    body = bodies()[name]
    with pytest.raises(Fault, match="wrong magic number") as fault:
        parse_greeting(body[:1] + b"ZEEC" + body[5:])
    assert fault.value.code is Code.WRONG_MAGIC


@pytest.mark.parametrize("first", [0, 1, 2, 3, 4, 5, 13, 0x11, 255])
def test_an_unknown_type_is_an_invalid_message(first: int) -> None:
    with pytest.raises(Fault, match="invalid message type tag") as fault:
        parse_greeting(bytes((first,)) + bodies()["hello"][1:])
    assert fault.value.code is Code.INVALID_MESSAGE


def test_what_a_peer_says_is_printable_and_short() -> None:
    said = parse_greeting(body_of(pack_greeting(DropConn(ONES, 1, "\x1b[31m\n" + "x" * 5000))))
    assert isinstance(said, DropConn)
    assert said.reason == "?[31m?" + "x" * (REASON_CHARS_MAX - 6)


@given(st.binary(max_size=60) | st.builds(bytes.__add__, st.sampled_from([b"\x09ZEEK", b"\x0a"]), st.binary()))
def test_any_bytes_parse_or_are_a_fault(body: bytes) -> None:
    try:
        parse_greeting(body)
    except Fault:
        pass
