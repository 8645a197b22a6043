"""Every message against the bytes of the original, whole and byte by byte, and against malformed bytes."""

from __future__ import annotations

from collections.abc import Iterator
from copy import copy
from typing import Any, Final

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.log.vectors import frames_of, load

from chappe.core import Publish
from chappe.data.topic import decode_topic
from chappe.defaults import SUBJECTS_MAX
from chappe.errors import ProtocolError, UsageError
from chappe.log.messages import (
    UNKNOWN_US,
    Ack,
    AskClock,
    AskTraffic,
    BatchMessage,
    ClockTold,
    ConsumerHello,
    Fetch,
    GetHeads,
    Head,
    Message,
    OnDisk,
    RecordMessage,
    Stored,
    StoreHello,
    StoreInfo,
    TrafficTold,
    decode,
    encode,
)

ENCODED: Final[list[dict[str, Any]]] = load("proto_encode.json")["vectors"]
DECODED: Final[list[dict[str, Any]]] = load("proto_decode.json")["vectors"]
TOO_LONG: Final = "record_300_topic"  # the original sends a topic that it cannot have meant; nobody here can
GOOD: Final = [vector for vector in ENCODED if vector["name"] != TOO_LONG]

# What the original takes for a message although it is cut off, and why it is none here.
CUT_OFF: Final = {
    "head_short_seq": "8 bytes wanted",
    "head_short_subject": "255 bytes wanted",
    "head_no_nul": "topic does not end",
    "one_octet": "topic does not end",
    "empty": "topic does not end",
    "record_short": "8 bytes wanted",
    "whello_hugecount2": "claims 4294967295 topics",
}
WHOLE: Final = {
    "head_ok": Head("hello", "A", "hello", 41),
    "head_trailing": Head("hello", "A", "hello", 41),
    "record_ok": RecordMessage("hello", "A", "hello", 7, b"CONTENT"),
    "record_two_content": RecordMessage("hello", "A", "hello", 7, b"A"),  # the original reads the rest as a message
    "head_extra_frame": Head("hello", "A", "hello", 41),
    "topic_ne_subject": Head("hello", "A", "other", 41),
    "ack_ok": Ack("P", "hello", 41),
}


def message_of(fields: dict[str, Any]) -> Message:
    """The message that a vector of the encoder describes."""
    id_, topic = fields["id"], fields["topic"]
    sequence = int(fields.get("sequence", 0))
    match id_:
        case "M" | "D":
            content = bytes.fromhex(fields["content_hex"])
            return RecordMessage(topic, fields["address"], fields["subject"], sequence, content, id_ == "D")
        case "F":
            return Fetch(topic, fields["address"], fields["subject"], sequence, fields["count"])
        case "K":
            return Ack(topic, fields["subject"], sequence)
        case "H" | "E":
            return Head(topic, fields["address"], fields["subject"], sequence, id_ == "E")
        case "G":
            return GetHeads(topic, fields["address"])
        case "W":
            return ConsumerHello(topic, fields["address"], tuple(fields["subjects"]))
        case "L":
            return StoreHello(topic, fields["address"])
    raise AssertionError(id_)


OUR_OWN: Final[list[Message]] = [
    BatchMessage("metrics", "P" * 32, "metrics", b"body"),
    BatchMessage("C" * 32, "P" * 32, "metrics", b"body", direct=True),
    Stored("P" * 32, "store", "metrics", 41),
    OnDisk("metrics", "store", "P" * 32, 7, 41),
    StoreInfo("", "S" * 32, "store", "tcp://127.0.0.1:5000"),
    AskClock("P" * 32, "C" * 32, 7),
    ClockTold("C" * 32, "P" * 32, "S" * 32, 7, 1_700_000_000_000_000, 250, 3_000_000),
    ClockTold("C" * 32, "P" * 32, "S" * 32, 2**64 - 1, 2**63 - 1, UNKNOWN_US, 2**63 - 1),
    AskTraffic("P" * 32, "D" * 32, 7),
    TrafficTold("D" * 32, "P" * 32, 7, b"body"),
]


@pytest.mark.parametrize("vector", GOOD, ids=lambda vector: vector["name"])
def test_a_message_becomes_the_bytes_that_the_original_sends(vector: dict[str, Any]) -> None:
    assert encode(message_of(vector["fields"])) == frames_of(vector)


@pytest.mark.parametrize("vector", GOOD, ids=lambda vector: vector["name"])
def test_the_bytes_of_the_original_become_the_message(vector: dict[str, Any]) -> None:
    assert decode(frames_of(vector)) == message_of(vector["fields"])


@pytest.mark.parametrize("message", OUR_OWN, ids=lambda message: type(message).__name__)
def test_messages_of_our_own_survive_the_wire(message: Message) -> None:
    assert decode(encode(message)) == message


def test_the_bytes_of_a_question_about_a_clock_and_of_its_answer_are_these() -> None:
    def u64(number: int) -> bytes:
        return number.to_bytes(8, "big")

    assert encode(AskClock("P", "C", 7)) == [b"TP\0\x01" + b"\x01C" + u64(7)]
    told = b"CC\0\x01" + b"\x01P" + b"\x05store" + u64(7) + u64(1_000_001) + u64(250) + u64(3)
    assert encode(ClockTold("C", "P", "store", 7, 1_000_001, 250, 3)) == [told]


def test_the_bytes_of_a_question_about_what_passes_and_of_its_answer_are_these() -> None:
    assert encode(AskTraffic("P", "D", 7)) == [b"QP\0\x01" + b"\x01D" + (7).to_bytes(8, "big")]
    assert encode(TrafficTold("D", "P", 7, b"body")) == [b"UD\0\x01" + b"\x01P" + (7).to_bytes(8, "big"), b"body"]


@pytest.mark.parametrize("wrong", ["wall_us", "ago_us"])
def test_a_clock_beyond_all_times_is_refused(wrong: str) -> None:
    for time in (2**63, 2**64 - 1):
        fields = {"wall_us": 5, "error_us": 2**64 - 1, "ago_us": 5} | {wrong: time}
        with pytest.raises(ProtocolError, match="beyond all times"):
            decode(encode(ClockTold("C", "P", "store", 7, **fields)))


def test_every_kind_of_dafka_has_a_vector() -> None:
    assert {vector["fields"]["id"] for vector in ENCODED} == set("MDFKHEGWL")


def test_a_topic_over_255_bytes_is_neither_sent_nor_taken() -> None:
    (vector,) = [vector for vector in ENCODED if vector["name"] == TOO_LONG]

    with pytest.raises(UsageError, match="255"):
        encode(GetHeads("a" * 300, "A"))
    with pytest.raises(ProtocolError, match="topic does not end"):
        decode(frames_of(vector))


@pytest.mark.parametrize("vector", DECODED, ids=lambda vector: vector["name"])
def test_the_decoder_agrees_with_the_original_but_on_what_is_cut_off(vector: dict[str, Any]) -> None:
    name = vector["name"]
    if name in WHOLE:
        assert vector["recv_rc"] == 0
        assert decode(frames_of(vector)) == WHOLE[name]
        return
    assert (vector["recv_rc"] == 0) == (name in CUT_OFF), "a departure without a name"
    with pytest.raises(ProtocolError, match=CUT_OFF.get(name)):
        decode(frames_of(vector))


def prefixes() -> Iterator[tuple[str, Message, list[bytes]]]:
    """Each vector and message of our own, its header frame cut after every byte."""
    known = [(vector["name"], message_of(vector["fields"]), frames_of(vector)) for vector in GOOD]
    known += [(type(message).__name__, message, encode(message)) for message in OUR_OWN]
    for name, message, (header, *rest) in known:
        for size in range(len(header)):
            yield name, message, [header[:size], *rest]


def test_no_message_is_taken_before_its_last_byte() -> None:
    for name, _, frames in prefixes():
        with pytest.raises(ProtocolError):
            print(name, len(frames[0]), decode(frames))


@pytest.mark.parametrize("vector", GOOD, ids=lambda vector: vector["name"])
def test_octets_behind_the_last_field_are_ignored(vector: dict[str, Any]) -> None:
    header, *rest = frames_of(vector)

    assert decode([header + b"\xff\0\xff", *rest]) == message_of(vector["fields"])


def test_a_message_without_its_content_frame_is_refused() -> None:
    for message in (RecordMessage("t", "A", "t", 0, b"x"), BatchMessage("t", "A", "t", b"x")):
        with pytest.raises(ProtocolError, match="content frame"):
            decode(encode(message)[:1])


def test_no_frames_are_no_message() -> None:
    with pytest.raises(ProtocolError):
        decode([])


def test_a_hello_cannot_claim_more_topics_than_it_holds() -> None:
    (header,) = encode(ConsumerHello("S", "C", ("a", "b")))
    more = header.replace((2).to_bytes(4, "big"), (3).to_bytes(4, "big"), 1)

    with pytest.raises(ProtocolError):
        decode([more])
    with pytest.raises(ProtocolError, match=f"claims {SUBJECTS_MAX + 1} topics"):
        decode([header.replace((2).to_bytes(4, "big"), (SUBJECTS_MAX + 1).to_bytes(4, "big"), 1) + bytes(400_000)])


@pytest.mark.parametrize("field", ["address", "subject", "store_id", "listed", "asking", "source"])
def test_a_name_with_nul_is_refused_for_it_could_never_be_answered(field: str) -> None:
    messages: dict[str, Message] = {
        "address": GetHeads("hello", "Ax"),
        "asking": AskClock("hello", "Ax", 1),
        "source": ClockTold("hello", "A", "Ax", 1, 2),
        "subject": Head("hello", "A", "Ax", 1),
        "store_id": StoreInfo("", "A", "Ax", "tcp://127.0.0.1:1"),
        "listed": ConsumerHello("S", "C", ("Ax",)),
    }
    (header,) = encode(messages[field])

    with pytest.raises(ProtocolError, match="NUL"):
        decode([header.replace(b"Ax", b"A\0")])


def test_a_listed_topic_over_255_bytes_is_refused() -> None:
    (header,) = encode(ConsumerHello("S", "C", ("a" * 255,)))
    assert decode([header]) == ConsumerHello("S", "C", ("a" * 255,))
    long = header.replace((255).to_bytes(4, "big"), (256).to_bytes(4, "big")) + b"a"

    with pytest.raises(ProtocolError, match="255"):
        decode([long])


@pytest.mark.parametrize("endpoint", ["", "ipc:///tmp/x", "inproc://x", "tcp://h", "tcp://h:0", "tcp://é:1"])
def test_a_store_that_cannot_be_reached_is_refused(endpoint: str) -> None:
    with pytest.raises(ProtocolError, match="endpoint"):
        decode(encode(StoreInfo("", "S", "store", endpoint)))


names = st.binary(max_size=255).map(lambda raw: decode_topic(raw.replace(b"\0", b"")))
u64 = st.integers(0, 2**64 - 1)
u63 = st.integers(0, 2**63 - 1)
messages = st.one_of(
    st.builds(RecordMessage, names, names, names, u64, st.binary(max_size=50), st.booleans()),
    st.builds(Fetch, names, names, names, u64, st.integers(0, 2**32 - 1)),
    st.builds(Ack, names, names, u64),
    st.builds(Head, names, names, names, u64, st.booleans()),
    st.builds(GetHeads, names, names),
    st.builds(ConsumerHello, names, names, st.lists(names, max_size=5).map(tuple)),
    st.builds(StoreHello, names, names),
    st.builds(BatchMessage, names, names, names, st.binary(max_size=50), st.booleans()),
    st.builds(Stored, names, names, names, u64),
    st.builds(StoreInfo, names, names, names, st.integers(1, 65535).map(lambda port: f"tcp://127.0.0.1:{port}")),
    st.builds(AskClock, names, names, u64),
    st.builds(ClockTold, names, names, names, u64, u63, u64, u63),
)


@given(messages)
def test_any_message_survives_the_wire_even_with_topics_that_are_not_utf8(message: Message) -> None:
    frames = encode(message)

    assert decode(frames) == message
    assert decode([*frames, b"more"]) == message


@given(st.lists(st.binary(max_size=100), max_size=4))
@example([b"W\0\x01\0\0\0\0\x01\0\0\0\x05"])
def test_random_frames_are_a_message_or_a_protocol_error(frames: list[bytes]) -> None:
    decode_or_refuse(frames)


@given(st.sampled_from("MDFKHEGWLRSAITC"), st.binary(max_size=20), st.binary(max_size=300), st.binary(max_size=9))
def test_random_fields_are_a_message_or_a_protocol_error(id_: str, topic: bytes, fields: bytes, content: bytes) -> None:
    decode_or_refuse([id_.encode() + topic + b"\0\x01" + fields, content])


@given(messages, st.data())
def test_a_message_with_one_wrong_byte_is_a_message_or_a_protocol_error(message: Message, data: st.DataObject) -> None:
    header, *rest = encode(message)
    wrong = bytearray(header)
    wrong[data.draw(st.integers(0, len(header) - 1))] = data.draw(st.integers(0, 255))

    decode_or_refuse([bytes(wrong), *rest])


def decode_or_refuse(frames: list[bytes]) -> None:
    """What decodes can also be encoded, and means the same again."""
    try:
        message = decode(frames)
    except ProtocolError:
        return
    assert decode(encode(message)) == message


def session() -> list[list[bytes]]:
    """Every message between members of the captured session of original programs, beacons left out."""
    return [
        frames_of(event)
        for connection in load("session.json")["connections"]
        for event in connection["events"]
        if event["kind"] == "message" and not connection["socket_pair"].startswith("beacon")
    ]


def test_every_message_of_a_real_session_is_understood_and_would_be_sent_the_same() -> None:
    captured = session()

    assert {frames[0][:1] for frames in captured} == {bytes((id_,)) for id_ in b"MDFKHEGWL"}
    for frames in captured:
        assert encode(decode(frames)) == frames


def test_every_cut_message_of_a_real_session_is_refused() -> None:
    for header, *rest in session():
        for size in range(len(header)):
            with pytest.raises(ProtocolError):
                decode([header[:size], *rest])


def test_what_is_told_is_never_changed_and_can_be_a_key() -> None:
    message = BatchMessage("t", "10.0.0.1:1", "t", b"", False)
    for each, name in ((message, "topic"), (Publish(message), "message")):
        assert hash(each) == hash(copy(each))
        with pytest.raises(AttributeError):
            setattr(each, name, "other")
