"""``messages.dat``: bytes derived by hand from the layout, every value and command in and out, and garbage."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.data.strategies import VECTORS, values, vectors

from chappe.data import binary
from chappe.data.scalars import Address, Count, EnumValue, Port
from chappe.data.shapes import add_shape, add_value, skip_shape
from chappe.data.values import Set, Table, Value
from chappe.defaults import VALUE_BYTES_MAX
from chappe.errors import InvalidData
from chappe.kv import commands as cmd
from chappe.mesh.messages import COMMAND, DATA
from chappe.storage.recordings.codec import HEADER, TOPICS_MAX, RecordedMessage, RecordingEncoder, entries

COMMANDS: list[dict[str, Any]] = json.loads((VECTORS / "commands.json").read_text())
EXPIRY_BYTES = 8


def shape_of(payload: bytes) -> bytes:
    made = bytearray()
    assert add_shape(payload, 0, made) == len(payload)
    return bytes(made)


def value_of(shape: bytes) -> Value:
    assert skip_shape(shape, 0) == len(shape)
    made = bytearray()
    assert add_value(shape, 0, made) == len(shape)
    return binary.decode(bytes(made))


def through(topic: bytes, payload: bytes, kind: int = DATA) -> RecordedMessage:
    (found,) = entries(HEADER + RecordingEncoder().encode(topic, payload, kind))
    assert (found.topic, found.kind) == (topic, kind)
    return found


# -- the layout, by hand ------------------------------------------------------------------------------------------

EVENT = binary.encode((Count(1), Count(1), ("ping", (-1, Set([Port(80, "tcp")]), Table({"k": None}), EnumValue("A")))))
BY_HAND = bytes.fromhex(
    "00 03 2f 61 62"  # new topic: varbyte 3, "/ab"
    "01 0000"  # data, topic 0
    "0e 00000003 02 02"  # vector of 3: count, count,
    "0e 00000002 05 00000004"  # vector of 2: string of 4 bytes,
    "0e 00000004 03"  # vector of 4: integer,
    "0c 00000001 08"  # set of 1: port
    "0d 00000001 05 00000001 00"  # table of 1: string of 1 byte, none
    "0b 00000001"  # enum value of 1 byte
    "01 0000 05 00000000"  # data, topic 0: an empty string
    "00 01 62"  # new topic "b"
    "02 0001 00 05 00000003 02"  # command, topic 1: Put, string of 3 bytes, count
)


def test_the_header_and_entries_are_those_of_the_layout() -> None:
    assert (0x2EECC0DE).to_bytes(4, sys.byteorder) + b"\x02" == HEADER
    encoder = RecordingEncoder()
    put = bytes.fromhex(next(each["payload_hex"] for each in COMMANDS if each["name"] == "put"))
    made = encoder.encode(b"/ab", EVENT, DATA) + encoder.encode(b"/ab", binary.encode(""), DATA)
    assert made + encoder.encode(b"b", put, COMMAND) == BY_HAND
    found = list(entries(HEADER + BY_HAND))
    assert [(each.topic, each.kind, len(each.payload())) for each in found] == [
        (b"/ab", DATA, len(EVENT)),
        (b"/ab", DATA, 2),
        (b"b", COMMAND, len(put)),
    ]


def test_a_file_of_the_other_byte_order_is_read() -> None:
    other = HEADER[3::-1] + HEADER[4:]
    assert list(entries(other + BY_HAND)) == list(entries(HEADER + BY_HAND))


# -- values -------------------------------------------------------------------------------------------------------


@given(values)
def test_a_value_of_a_shape_has_the_size_and_the_shape_of_the_one_recorded(value: Value) -> None:
    payload = binary.encode(value)
    made = through(b"t", payload).payload()
    binary.decode(made)
    assert len(made) == len(payload)
    assert shape_of(made) == shape_of(payload)


@pytest.mark.parametrize("vector", vectors(), ids=lambda each: each.name)
def test_every_vector_of_the_original_comes_back_in_its_size(vector: Any) -> None:
    made = through(b"t", vector.binary).payload()
    binary.decode(made)
    assert (len(made), shape_of(made)) == (len(vector.binary), shape_of(vector.binary))


@given(values)
def test_nothing_of_the_contents_is_kept(value: Value) -> None:
    """Two values of one shape leave the same bytes."""
    payload = binary.encode(value)
    again = through(b"t", payload).payload()
    assert RecordingEncoder().encode(b"t", payload, DATA) == RecordingEncoder().encode(b"t", again, DATA)


@pytest.mark.parametrize(
    "value",
    [
        Set([Count(each) for each in range(300)]),
        Set(["", *[chr(97 + each) for each in range(26)], *[f"{each:03}" for each in range(999)]]),
        Set([False, True]),
        Set([(flag, other, 1) for flag in (False, True) for other in (False, True)]),
        Set([(Address(bytes(12) + each.to_bytes(4, "big")), Port(each, "udp")) for each in range(300)]),
        Set([Set([Count(each), Count(each + 1)]) for each in range(50)]),
        Set([Set([False]), Set([True]), Set([False, True])]),
        Set([Table({each: True}) for each in range(20)]),
        Table({bytes([each, 255]): each for each in range(256)}),
        Table({(flag, None): flag for flag in (False, True)}),
    ],
    ids=lambda each: repr(each)[:24],
)
def test_members_and_keys_of_one_shape_differ(value: Value) -> None:
    payload = binary.encode(value)
    made = value_of(shape_of(payload))
    assert isinstance(made, Set | Table)
    assert isinstance(value, Set | Table)
    assert len(made) == len(value)


def test_a_set_of_more_members_than_there_are_is_refused() -> None:
    shape = b"\x0c\0\0\0\x03" + b"\x01" * 3  # three different booleans
    assert skip_shape(shape, 0) == len(shape)
    with pytest.raises(InvalidData, match="only 2 different"):
        add_value(shape, 0, bytearray())


@pytest.mark.parametrize(
    ("shape", "problem"),
    [
        (b"\x05\xff\xff\xff\xff", "larger"),  # a string of 4 GiB
        (b"\x0e\xff\xff\xff\xff", "elements"),
        (b"\x0e\0\0\0\x10" + (b"\x05" + (VALUE_BYTES_MAX // 8).to_bytes(4, "big")) * 16, "larger"),
        (b"\x0e\0\0\0\x01" * 101 + b"\x00", "deeper"),
        (b"\x0f", "type 15"),
        (b"\x0e\0\0", "cut off"),
        (b"\x0e\0\0\0\x02\0", "cut off"),
        (b"", "cut off"),
    ],
)
def test_shapes_beyond_the_bounds_cost_nothing_and_are_refused(shape: bytes, problem: str) -> None:
    with pytest.raises(InvalidData, match=problem):
        skip_shape(shape, 0)


# -- commands -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("vector", COMMANDS, ids=lambda each: str(each["name"]))
def test_a_command_comes_back_with_its_kind_and_size(vector: dict[str, Any]) -> None:
    payload = bytes.fromhex(vector["payload_hex"])
    command = cmd.decode_message(payload).command
    made = through(b"n/<$>/data/clone", payload, COMMAND).payload()
    assert type(cmd.decode_message(made).command) is type(command)
    assert len(payload) - len(made) == EXPIRY_BYTES * (getattr(command, "expiry_ns", None) is not None)


def test_commands_of_ends_of_chappe_alone_are_not_recorded() -> None:
    payload = bytes(56) + b"\x80" + bytes(20)
    with pytest.raises(InvalidData, match="kind 128"):
        RecordingEncoder().encode(b"t", payload, COMMAND)


# -- files --------------------------------------------------------------------------------------------------------


def test_a_message_that_cannot_be_recorded_leaves_no_topic_behind() -> None:
    encoder = RecordingEncoder()
    for payload, kind in ((b"\x0f", DATA), (b"\x05\x04abc", DATA), (binary.encode(1) + b"\0", DATA), (b"", COMMAND)):
        with pytest.raises(InvalidData):
            encoder.encode(b"t", payload, kind)
    assert [each.topic for each in entries(HEADER + encoder.encode(b"u", b"\0", DATA))] == [b"u"]


def test_a_file_has_as_many_topics_as_numbers() -> None:
    encoder = RecordingEncoder()
    for number in range(TOPICS_MAX):
        encoder.encode(b"%d" % number, b"\0", DATA)
    assert encoder.encode(b"65535", b"\0", DATA) == b"\x01\xff\xff\0"
    with pytest.raises(InvalidData, match="65,536 topics"):
        encoder.encode(b"one more", b"\0", DATA)


@pytest.mark.parametrize(
    ("raw", "problem"),
    [
        (b"", "magic"),
        (b"PK\3\4 and so on", "magic"),
        (HEADER[:4], "no version"),
        (HEADER[:4] + b"\x01", "version 1 of"),
        (HEADER + b"\x03", "byte 5: an entry of kind 3"),
        (HEADER + b"\x00\x05ab", "byte 5: it is cut off"),
        (HEADER + b"\x00", "byte 5: it is cut off"),
        (HEADER + b"\x00\xff\xff", "byte 5: it is cut off"),
        (HEADER + b"\x00\xff\xff\xff\xff\xff", "byte 5: a length"),
        (HEADER + b"\x00\xff\xff\xff\x7f", "too long"),
        (HEADER + b"\x01\0\0\0", "topic number 0, and there are 0"),
        (HEADER + b"\x00\x01t\x01\0", "byte 8: it is cut off"),
        (HEADER + b"\x00\x01t\x01\0\0", "byte 8: a shape is cut off"),
        (HEADER + b"\x00\x01t\x02\0\0", "byte 8: a shape is cut off"),
        (HEADER + b"\x00\x01t\x02\0\0\x0b\xff\xff\xff\xff", "members"),
        (HEADER + b"\x00\x01t\x02\0\0\x99", "kind 153"),
    ],
)
def test_files_that_are_no_recording_say_why(raw: bytes, problem: str) -> None:
    with pytest.raises(InvalidData, match=problem):
        list(entries(raw))


@given(st.binary(max_size=200))
def test_garbage_is_read_or_refused(raw: bytes) -> None:
    try:
        for each in entries(HEADER + b"\x00\x01t" + raw):
            each.payload()
    except InvalidData:
        pass


@given(st.data())
def test_a_recording_that_was_cut_or_changed_is_read_or_refused(data: st.DataObject) -> None:
    encoder = RecordingEncoder()
    raw = HEADER + b"".join(
        encoder.encode(b"t%d" % (place % 2), binary.encode(value), DATA)
        for place, value in enumerate(data.draw(st.lists(values, max_size=4)))
    )
    cut = raw[: data.draw(st.integers(0, len(raw)))]
    place = data.draw(st.integers(0, len(cut)))
    try:
        for each in entries(cut[:place] + data.draw(st.binary(max_size=1)) + cut[place + 1 :]):
            assert skip_shape(each.shape, 0) == len(each.shape) or each.kind == COMMAND
            each.payload()
    except InvalidData:
        pass


@given(st.data())
def test_of_a_recording_that_was_cut_all_whole_messages_are_read(data: st.DataObject) -> None:
    encoder = RecordingEncoder()
    parts = [
        encoder.encode(b"t%d" % (place % 3), binary.encode(value), DATA)
        for place, value in enumerate(data.draw(st.lists(values, min_size=1, max_size=4)))
    ]
    put = bytes.fromhex(next(each["payload_hex"] for each in COMMANDS if each["name"] == "add_string"))
    parts.append(encoder.encode(b"x" * 200, put, COMMAND))
    raw = HEADER + b"".join(parts)
    cut = data.draw(st.integers(len(HEADER), len(raw)))
    told: list[str] = []
    found = list(entries(raw[:cut], told.append))
    ends = [len(HEADER) + len(b"".join(parts[: place + 1])) for place in range(len(parts))]
    assert len(found) == sum(end <= cut for end in ends)
    assert found == list(entries(raw))[: len(found)]
    assert len(told) <= 1
    assert told or cut in (len(HEADER), *ends) or raw[cut] in (DATA, COMMAND)  # or behind a topic
