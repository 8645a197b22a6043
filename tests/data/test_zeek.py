from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.data.strategies import texts, values, vectors

from chappe.data.binary import decode, encode
from chappe.data.order import same
from chappe.data.values import Count, EnumValue, Timestamp, Value
from chappe.data.zeek import (
    NETWORK_TIME,
    USER_METADATA,
    Batch,
    Event,
    IdentifierUpdate,
    LogCreate,
    LogWrite,
    Message,
    from_value,
    parse,
)
from chappe.errors import InvalidData, UnsupportedValue

GOLDEN = {each.name: each.binary for each in vectors()}
TIME = Timestamp(1683106077000000000)
MESSAGES: list[Message] = [
    Event("ping", "x", Count(1)),
    Event("ping", metadata={1: TIME, 200: "mine"}),
    Event("n" * 200, ()),
    LogCreate(EnumValue("Log::CONN"), EnumValue("Log::WRITER_ASCII"), (1,), ("a",)),
    LogWrite(EnumValue("Log::CONN"), EnumValue("Log::WRITER_ASCII"), "conn", b"\x00\xff"),
    IdentifierUpdate("x", Count(5)),
    Batch([]),
    Batch([Event("a"), Batch([Event("b", 1)]), IdentifierUpdate("x", None)]),
]


def test_the_golden_events() -> None:
    ping = Event("ping", "x", Count(1))
    timed = Event("ping", "x", metadata={NETWORK_TIME: TIME})

    assert (ping.encode(), timed.encode()) == (GOLDEN["zeek_event_ping"], GOLDEN["zeek_event_meta"])
    assert (Event.parse(ping.encode()), Event.parse(timed.encode())) == (ping, timed)
    assert (timed.time, ping.time, ping.metadata) == (TIME, None, ())


@pytest.mark.parametrize("message", MESSAGES, ids=repr)
def test_every_message_round_trips(message: Message) -> None:
    raw = message.encode()

    assert decode(raw) == message.to_value()
    for back in (parse(raw), parse(memoryview(raw)), from_value(decode(raw))):
        assert type(back) is type(message)
        assert back == message
        assert hash(back) == hash(message)
        assert back.encode() == raw


@given(texts, st.lists(values, max_size=4), st.lists(st.tuples(st.integers(2, 1 << 32), values), max_size=3))
def test_every_event_round_trips(name: str, args: list[Value], metadata: list[tuple[int, Value]]) -> None:
    event = Event(name, *args, metadata=metadata)

    back = Event.parse(event.encode())

    assert back == event
    assert same(back.args, tuple(args))
    assert same(back.metadata, tuple((Count(key), value) for key, value in metadata))
    assert from_value(decode(event.encode())) == event


def test_arguments_are_decoded_when_they_are_read() -> None:
    raw = bytearray(Event("ping", "x", 1).encode())
    raw[-9] = 99  # the tag of the last argument

    event = Event.parse(bytes(raw))

    assert event.name == "ping"
    assert event.encode() == bytes(raw)
    with pytest.raises(InvalidData, match="type 99"):
        _ = event.args


def test_a_batch_splits_without_decoding_arguments() -> None:
    raw = bytearray(Batch([Event("a", True), Event("b", False)]).encode())
    raw[-1] = 2  # a boolean that only the decoder looks at

    events = list(Batch.parse(bytes(raw)))

    assert [each.name for each in events if isinstance(each, Event)] == ["a", "b"]
    assert events[1] == Event("b", True)


def test_metadata_is_found_before_and_after_the_arguments_were_read() -> None:
    raw = Event("ping", (1, ("x",)), metadata={USER_METADATA: 5}).encode()
    first, second = Event.parse(raw), Event.parse(raw)

    assert first.metadata == ((200, 5),)
    assert (second.args, second.metadata) == (((1, ("x",)),), ((200, 5),))


def test_events_of_other_shapes_are_read() -> None:
    content = ("ping", (1,), (), "more")

    assert Event.parse(encode((Count(1), Count(1), content, "more"))) == Event("ping", 1)
    assert parse(encode((Count(1), Count(1), ("ping", ())))).encode() == Event("ping").encode()


@pytest.mark.parametrize(
    "value",
    [
        None,
        (),
        (1, Count(1), ("ping", ())),
        (Count(2), Count(1), ("ping", ())),
        (Count(1), 1, ("ping", ())),
        (Count(1), Count(0), ("ping", ())),
        (Count(1), Count(6), ("ping", ())),
        (Count(1), Count(1), "ping"),
        (Count(1), Count(1), ("ping",)),
        (Count(1), Count(1), (EnumValue("ping"), ())),
        (Count(1), Count(1), (b"\xff", ())),
        (Count(1), Count(1), ("ping", "x")),
        (Count(1), Count(2), (EnumValue("a"), EnumValue("b"), None)),
        (Count(1), Count(2), (EnumValue("a"), "b", None, None)),
        (Count(1), Count(3), (EnumValue("a"), EnumValue("b"), 1, "x")),
        (Count(1), Count(4), ("x",)),
        (Count(1), Count(4), (1, 2)),
        (Count(1), Count(5), "x"),
    ],
)
def test_what_is_no_message_is_refused(value: Value) -> None:
    with pytest.raises(InvalidData):
        parse(encode(value))
    with pytest.raises(InvalidData):
        from_value(value)


@pytest.mark.parametrize("metadata", ["x", ("x",), ((Count(1),),), ((1, 2),), ((Count(1), 5),)])
def test_bad_metadata_is_refused_when_it_is_read(metadata: Value) -> None:
    event = Event.parse(encode((Count(1), Count(1), ("ping", (), metadata))))

    assert event.args == ()
    with pytest.raises(InvalidData):
        _ = event.metadata


def test_what_is_no_event_is_not_made() -> None:
    with pytest.raises(UnsupportedValue):
        Event("ping", object())
    with pytest.raises(UnsupportedValue):
        Event("ping", metadata={-1: 5})
    with pytest.raises(UnsupportedValue, match="network time"):
        Event("ping", metadata={1: 5})


def read_all(message: Message) -> None:
    if isinstance(message, Event):
        _ = (message.args, message.metadata)
    elif isinstance(message, Batch):
        for each in message:
            read_all(each)


@given(st.sampled_from(MESSAGES), st.data())
def test_damaged_messages_are_read_or_refused(message: Message, data: st.DataObject) -> None:
    raw = bytearray(message.encode())
    raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    try:
        read_all(parse(bytes(raw[: data.draw(st.integers(0, len(raw)))])))
    except InvalidData:
        return
