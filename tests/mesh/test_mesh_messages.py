"""Frames after the handshake: the original's byte for byte, ours round trip, everything wrong a ProtocolError."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.mesh.vectors import bodies, session

from chappe.data.binary import VARBYTE_MAX, pack_varbyte, parse_varbyte
from chappe.defaults import (
    ENDPOINTS_MAX,
    FILTER_BYTES_MAX,
    FILTER_TOPICS_MAX,
    LINK_STATE_BYTES_MAX,
    MESH_MESSAGE_BYTES_MAX,
    MESH_TOPIC_BYTES_MAX,
    PING_BYTES_MAX,
)
from chappe.errors import ProtocolError, UsageError
from chappe.mesh.filters import minimal
from chappe.mesh.messages import (
    BYE,
    DATA,
    LINK_STATE,
    NOBODY,
    PING,
    PONG,
    RESERVED_TOPIC,
    ROUTING_UPDATE,
    LinkState,
    Message,
    Neighbour,
    pack_filter,
    pack_link_state,
    pack_message,
    pack_ping,
    pack_pong,
    pack_routing_update,
    parse_filter,
    parse_link_state,
    parse_message,
    ping_token,
)

ONES = bytes.fromhex("11111111222233334444555555555555")
AAS = bytes.fromhex("aaaaaaaabbbb4ccc8dddeeeeeeeeeeee")
ids = st.binary(min_size=16, max_size=16)
topics = st.binary(max_size=40)
filters = st.lists(topics, max_size=10).map(minimal)
keyed = st.builds(Neighbour, ids, st.just(False), st.just(()), ids)
neighbours = st.builds(Neighbour, ids) | st.builds(Neighbour, ids, st.just(True), filters) | keyed
states = st.builds(
    LinkState,
    ids,
    st.integers(0, 2**64 - 1),
    st.booleans(),
    filters,
    (
        st.lists(neighbours, max_size=8, unique_by=lambda each: each.id)
        | st.lists(keyed, max_size=8, unique_by=lambda each: each.id)
    ).map(tuple),
    st.booleans(),
    st.booleans(),
)


def framed(body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + body


def body_of(frame: bytes) -> bytes:
    """The body of the one frame that ``frame`` is."""
    assert struct.unpack_from(">I", frame)[0] == len(frame) - 4
    return frame[4:]


def test_the_messages_of_the_original_are_packed_byte_for_byte() -> None:
    golden = {name: framed(body) for name, body in bodies().items()}
    token = ping_token(BYE, 0x0102030405060708)
    assert pack_message(ONES, NOBODY, DATA, 16, b"/test", b"\x05\x04ping") == golden["data"]
    assert pack_message(ONES, AAS, DATA, 16, b"/test", b"\x02" + bytes(7) + b"\1") == golden["data_unicast"]
    assert pack_routing_update(ONES, AAS, (b"/a", b"/b/c")) == golden["routing_update"]
    assert pack_ping(ONES, AAS, token) == golden["ping_bye"]
    assert pack_pong(AAS, ONES, token) == golden["pong_bye"]


def test_the_messages_of_the_original_are_parsed() -> None:
    golden = {name: body for name, body in bodies().items() if len(body) >= 37 and not name.startswith("drop")}
    parsed = {name: parse_message(body) for name, body in golden.items()}
    token = ping_token(BYE, 0x0102030405060708)
    assert parsed == {
        "data": Message(b"/test", b"\x05\x04ping", DATA, ONES),
        "data_unicast": Message(b"/test", b"\x02" + bytes(7) + b"\1", DATA, ONES, AAS),
        "routing_update": Message(RESERVED_TOPIC, b"\x02\x02/a\x04/b/c", ROUTING_UPDATE, ONES, AAS),
        "ping_bye": Message(RESERVED_TOPIC, token, PING, ONES, AAS),
        "pong_bye": Message(RESERVED_TOPIC, token, PONG, AAS, ONES),
    }
    assert parse_filter(parsed["routing_update"].payload) == (b"/a", b"/b/c")
    assert token == ping_token(BYE, int.from_bytes(token[3:]))


@pytest.mark.parametrize("name", ["session_hs_client_smaller.json", "session_hs_server_smaller.json"])
def test_what_two_originals_told_each_other_round_trips(name: str) -> None:
    messages = [frame for _, _, frame in session(name) if len(frame) >= 41 and frame[4] not in (6, 8)]
    assert len(messages) == 6
    for frame in messages:
        message = parse_message(body_of(frame))
        again = pack_message(
            message.sender, message.receiver, message.kind, message.ttl, message.topic, message.payload
        )
        assert again == frame


@pytest.mark.parametrize("name", ["data", "data_unicast", "routing_update", "ping_bye", "pong_bye"])
def test_a_message_cut_off_within_envelope_or_topic_is_a_protocol_error(name: str) -> None:
    body = bodies()[name]
    end = 37 + int.from_bytes(body[35:37], "big")
    for length in range(end):
        with pytest.raises(ProtocolError):
            parse_message(body[:length])
    parse_message(body[:end])


@pytest.mark.parametrize("kind", [0, 6, 7, 8, 12, 0x10, 0x11, 0x12, 0x1B, 0x21, 0xFF])
def test_an_unknown_type_is_a_protocol_error(kind: int) -> None:
    body = body_of(pack_message(ONES, NOBODY, kind, 16, b"t", b"p"))
    with pytest.raises(ProtocolError, match="unknown"):
        parse_message(body)


@given(st.lists(topics))
def test_a_filter_round_trips_in_its_order(wanted: list[bytes]) -> None:
    packed = pack_filter(wanted)
    assert parse_filter(packed) == tuple(wanted)
    for length in range(len(packed)):
        with pytest.raises(ProtocolError):
            parse_filter(packed[:length])
    with pytest.raises(ProtocolError, match="too many"):
        parse_filter(packed + b"\0")


def test_a_filter_that_announces_more_than_it_has_costs_nothing() -> None:
    with pytest.raises(ProtocolError):
        parse_filter(pack_varbyte(VARBYTE_MAX) + b"\0")
    with pytest.raises(ProtocolError, match="cut off or too long"):
        parse_filter(b"\x01" + pack_varbyte(VARBYTE_MAX) + b"x")


def test_a_filter_has_a_bound_in_topics_and_bytes() -> None:
    parse_filter(pack_filter([b""] * FILTER_TOPICS_MAX))
    with pytest.raises(ProtocolError):
        parse_filter(pack_filter([b""] * (FILTER_TOPICS_MAX + 1)))
    with pytest.raises(ProtocolError):
        parse_filter(pack_filter([bytes(MESH_TOPIC_BYTES_MAX + 1)]))
    large = [bytes(MESH_TOPIC_BYTES_MAX)] * (FILTER_BYTES_MAX // MESH_TOPIC_BYTES_MAX + 1)
    with pytest.raises(ProtocolError, match="larger"):
        parse_filter(pack_filter(large))
    with pytest.raises(UsageError, match="too large"):
        pack_routing_update(ONES, AAS, tuple(large))


@given(ids, states)
def test_a_link_state_round_trips(sender: bytes, state: LinkState) -> None:
    message = parse_message(body_of(pack_link_state(sender, state)))
    assert (message.kind, message.topic, message.sender) == (LINK_STATE, RESERVED_TOPIC, sender)
    assert parse_link_state(message.payload) == state
    for length in range(len(message.payload)):
        with pytest.raises(ProtocolError):
            parse_link_state(message.payload[:length])
    with pytest.raises(ProtocolError, match="too many"):
        parse_link_state(message.payload + b"\0")


def test_the_bytes_of_a_link_state_are_these() -> None:
    state = LinkState(ONES, 5, True, (b"/a",), (Neighbour(AAS), Neighbour(ONES, True, (b"",))))
    payload = ONES + bytes(7) + b"\x05" + b"\x01" + b"\x01\x02/a" + b"\x02" + AAS + b"\0" + ONES + b"\x01\x01\x00"
    assert parse_message(body_of(pack_link_state(AAS, state))).payload == payload


def test_the_bytes_of_a_link_state_with_keys_are_these() -> None:
    key = bytes(range(16))
    state = LinkState(ONES, 5, True, (), (Neighbour(AAS, key=key), Neighbour(ONES, key=key)))
    payload = ONES + bytes(7) + b"\x05" + b"\x01" + b"\x00" + b"\x02" + AAS + b"\x02" + key + ONES + b"\x02" + key
    assert link_state_payload(state) == payload
    mixed = LinkState(ONES, 5, True, (), (*state.neighbours, Neighbour(bytes(16), True, (b"",)), Neighbour(b"n" * 16)))
    for each in (state, mixed):
        whole = link_state_payload(each)
        assert parse_link_state(whole) == each
        for length in range(len(whole)):
            with pytest.raises(ProtocolError):
                parse_link_state(whole[:length])


def test_the_flags_of_a_link_state_are_these() -> None:
    for flags in range(8):
        state = LinkState(ONES, 5, bool(flags & 1), (), (), bool(flags & 2), bool(flags & 4))
        payload = link_state_payload(state)
        assert payload == ONES + bytes(7) + b"\x05" + bytes((flags,)) + b"\x00\x00"
        assert (
            parse_link_state(payload[:24] + bytes((flags | 0xF8,)) + payload[25:]) == state
        )  # unknown ones do nothing


def test_filters_of_a_link_state_come_minimal() -> None:
    state = LinkState(ONES, 5, True, (b"b", b"a", b"ab"), (Neighbour(AAS, True, (b"x", b"")),))
    parsed = parse_link_state(parse_message(body_of(pack_link_state(AAS, state))).payload)
    assert parsed.filter == (b"a", b"b")
    assert parsed.neighbours[0].filter == (b"",)


def link_state_payload(state: LinkState) -> bytes:
    return parse_message(body_of(pack_link_state(AAS, state))).payload


def test_a_link_state_names_each_neighbour_once_and_of_a_known_kind() -> None:
    twice = LinkState(ONES, 1, True, (), (Neighbour(AAS), Neighbour(AAS)))
    with pytest.raises(ProtocolError, match="twice"):
        parse_link_state(link_state_payload(twice))
    once = link_state_payload(LinkState(ONES, 1, True, (), (Neighbour(AAS),)))
    with pytest.raises(ProtocolError, match="unknown kind"):
        parse_link_state(once[:-1] + b"\x03")


def test_a_link_state_has_bounds() -> None:
    many = tuple(Neighbour(number.to_bytes(16, "big")) for number in range(1, ENDPOINTS_MAX + 2))
    assert parse_link_state(link_state_payload(LinkState(ONES, 1, True, (), many[1:]))).neighbours == many[1:]
    with pytest.raises(UsageError, match="too large"):
        pack_link_state(AAS, LinkState(ONES, 1, True, (), many))
    with_keys = tuple(Neighbour(each.id, key=each.id) for each in many[1:])
    assert parse_link_state(link_state_payload(LinkState(ONES, 1, True, (), with_keys))).neighbours == with_keys
    head = link_state_payload(LinkState(ONES, 1, True, (), ()))[:-1]
    with pytest.raises(ProtocolError):
        parse_link_state(head + pack_varbyte(VARBYTE_MAX))
    with pytest.raises(ProtocolError):
        parse_link_state(head + pack_varbyte(len(many)) + b"".join(each.id + b"\0" for each in many))
    with pytest.raises(ProtocolError, match="too large"):
        parse_link_state(head + bytes(LINK_STATE_BYTES_MAX))


def test_what_is_too_large_is_not_sent() -> None:
    pack_message(ONES, NOBODY, DATA, 16, bytes(MESH_TOPIC_BYTES_MAX), b"")
    with pytest.raises(UsageError, match="topic"):
        pack_message(ONES, NOBODY, DATA, 16, bytes(MESH_TOPIC_BYTES_MAX + 1), b"")
    room = bytes(MESH_MESSAGE_BYTES_MAX - 37)
    pack_message(ONES, NOBODY, DATA, 16, b"", room)
    with pytest.raises(UsageError, match="message"):
        pack_message(ONES, NOBODY, DATA, 16, b"t", room)


def test_a_huge_ping_is_not_answered() -> None:
    pack_pong(ONES, AAS, bytes(PING_BYTES_MAX))
    with pytest.raises(ProtocolError, match="not answered"):
        pack_pong(ONES, AAS, bytes(PING_BYTES_MAX + 1))


@given(st.binary(max_size=200))
def test_any_bytes_parse_or_are_a_protocol_error(body: bytes) -> None:
    for parse in (parse_message, parse_filter, parse_link_state):
        try:
            parse(body)
        except ProtocolError:
            pass


@given(states, st.data())
def test_a_damaged_link_state_parses_or_is_a_protocol_error(state: LinkState, data: st.DataObject) -> None:
    payload = bytearray(link_state_payload(state))
    payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    try:
        parsed = parse_link_state(bytes(payload))
    except ProtocolError:
        return
    assert parse_link_state(link_state_payload(parsed)) == parsed


@given(st.integers(0, VARBYTE_MAX), st.binary(max_size=3))
def test_a_varbyte_round_trips(number: int, before: bytes) -> None:
    packed = pack_varbyte(number)
    assert parse_varbyte(before + packed + b"\xff", len(before)) == (number, len(before) + len(packed))
    for length in range(len(packed)):
        with pytest.raises(ProtocolError):
            parse_varbyte(packed[:length], 0)


@pytest.mark.parametrize("wrong", [b"\xff" * 5, b"\xff" * 4 + b"\x10", b"\x80" * 5 + b"\0", b""])
def test_a_varbyte_of_more_than_32_bits_is_a_protocol_error(wrong: bytes) -> None:
    with pytest.raises(ProtocolError):
        parse_varbyte(wrong, 0)
    assert parse_varbyte(b"\x81\x80\0", 0) == (1, 3)  # longer than needed
