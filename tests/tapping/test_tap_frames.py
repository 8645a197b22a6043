"""What a tap says of frames is what is in them, and what cannot be read is said to be that."""

from __future__ import annotations

import random
from uuid import UUID

import pytest

from chappe.log.batch import encode_batch
from chappe.log.messages import (
    Ack,
    AskClock,
    AskTraffic,
    BatchMessage,
    ClockTold,
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
    encode,
)
from chappe.mesh.flows import pack_batch, pack_detour, pack_publication
from chappe.mesh.messages import COMMAND, DATA, LOSS, NOBODY, PING, pack_message
from chappe.tapping.frames import MALFORMED, read_log, read_mesh
from chappe.tapping.messages import CONTENT_BYTES, Passed, Shown, decode_answer
from chappe.tapping.messages import encode as encode_answer

PEER, ORIGIN, OTHER = (bytes([each]) * 16 for each in (1, 2, 3))
ALL = (b"",)


def summary(found: Passed | None) -> tuple[bytes, str, str, str, int, int, bytes] | None:
    if found is None:
        return None
    return (found.topic, found.kind, found.source, found.to, found.first, found.count, found.content)


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (RecordMessage("t", "P", "t", 7, b"value"), (b"t", "record", "P", "", 7, 1, b"value")),
        (RecordMessage("C", "P", "t", 7, b"v", True), (b"t", "record, direct", "P", "C", 7, 1, b"v")),
        (Fetch("P", "C", "t", 3, 9), (b"t", "fetch", "C", "P", 3, 9, b"")),
        (Head("t", "P", "t", 4), (b"t", "head", "P", "", 4, 1, b"")),
        (Ack("P", "t", 5), (b"t", "ack", "", "P", 5, 1, b"")),
        (Stored("P", "S", "t", 5), (b"t", "stored", "S", "P", 5, 1, b"")),
        (OnDisk("t", "S", "P", 2, 5), (b"t", "on-disk", "S", "P", 5, 1, b"")),
        (GetHeads("t", "C"), (b"t", "get-heads", "C", "", -1, 1, b"")),
        (StoreHello("C", "S"), (b"", "store-hello", "S", "C", -1, 1, b"")),
        (StoreInfo("", "S", "id", "tcp://h:1"), (b"", "store-info", "S", "", -1, 1, b"")),
        (AskClock("P", "C", 1), (b"", "ask-clock", "C", "P", -1, 1, b"")),
        (ClockTold("C", "P", "S", 1, 2), (b"", "clock", "P", "C", -1, 1, b"")),
        (AskTraffic("P", "D", 1), (b"", "ask-traffic", "D", "P", -1, 1, b"")),
        (TrafficTold("D", "P", 1, b"body"), (b"", "traffic", "P", "D", -1, 1, b"")),
        (
            BatchMessage("t", "P", "t", encode_batch(10, [b"x" * 999, b"two"], 0)),
            (b"t", "batch", "P", "", 10, 2, b"x" * CONTENT_BYTES),
        ),
    ],
)
def test_a_message_of_the_log_is_told_as_it_is(message: Message, expected: tuple[object, ...]) -> None:
    frames = encode(message)
    found = read_log(5, frames, ALL)
    assert summary(found) == expected
    assert found is not None
    assert (found.at_us, found.size) == (5, sum(map(len, frames)))


@pytest.mark.parametrize(
    ("message", "source", "to"),
    [
        (Fetch("P\udcff", "C\udcff", "t\udcff", 3, 9), "C\\xff", "P\\xff"),
        (RecordMessage("ä\udcff", "P\udcff", "t", 7, b"v", True), "P\\xff", "ä\\xff"),
        (StoreInfo("", "S\udcff", "id", "tcp://h:1"), "S\\xff", ""),
    ],
)
def test_names_that_are_no_text_can_be_told(message: Message, source: str, to: str) -> None:
    found = read_log(0, encode(message), ALL)
    assert found is not None
    assert (found.source, found.to) == (source, to)
    assert decode_answer(encode_answer(Shown([found]))) == Shown([found])


def test_what_nobody_looks_for_is_passed_over() -> None:
    assert read_log(0, encode(RecordMessage("t", "P", "t", 7, b"value")), (b"u", b"tt")) is None
    assert read_log(0, encode(RecordMessage("t", "P", "t", 7, b"value")), (b"u", b"t")) is not None


def test_garbage_in_the_log_is_told_as_that() -> None:
    rng = random.Random(1)
    good = encode(BatchMessage("t", "P", "t", encode_batch(10, [b"one", b"two"], 0)))
    for _ in range(2_000):
        frames = [bytearray(each) for each in good]
        for _ in range(rng.randint(1, 4)):
            frame = rng.choice(frames)
            frame[rng.randrange(len(frame))] = rng.randrange(256)
        found = read_log(0, [bytes(each) for each in frames], ALL)
        assert found is not None
        assert len(found.content) <= CONTENT_BYTES
        assert encode_answer(Shown([found]))
    for frames_of_it in ([b""], [b"M"], [b"Mt\0\1", b""], [good[0], b"no batch"], [good[0]]):
        found = read_log(0, frames_of_it, ALL)
        assert found is not None
        assert found.kind == MALFORMED


def frames() -> list[bytes]:
    """Bodies, without their lengths."""
    single = pack_publication(ORIGIN, 5, 1, DATA, NOBODY, b"t/1", b"payload")[4:]
    return [
        single,
        pack_publication(ORIGIN, 6, 1, COMMAND, OTHER, b"t/2", b"put")[4:],
        pack_batch(ORIGIN, 9, 1, b"u", [b"a", b"b", b"c"])[4:],
        pack_detour(PEER, 1, 1, 0, single)[4:],
        pack_publication(ORIGIN, 10, 1, LOSS, NOBODY, b"<$>", b"")[4:],
        pack_message(PEER, NOBODY, PING, 1, b"", b"")[4:],
    ]


def test_frames_of_the_mesh_are_told_as_they_are() -> None:
    found = dict(read_mesh(0, "peer", PEER, True, frames(), ALL))
    origin, other = str(UUID(bytes=ORIGIN)), str(UUID(bytes=OTHER))
    assert {each.origin for each in found.values()} == {origin}
    assert {place: summary(each) for place, each in found.items()} == {
        1: (b"t/1", "data", "peer", "", 5, 1, b"payload"),
        2: (b"t/2", "command", "peer", other, 6, 1, b"put"),
        3: (b"u", "data", "peer", "", 7, 3, b"a"),
        4: (b"t/1", "data", "peer", "", 5, 1, b"payload"),
    }
    assert [place for place, _ in read_mesh(0, "peer", PEER, True, frames(), (b"t/2", b"u"))] == [2, 3, 4]


def test_what_an_original_sends_is_told() -> None:
    body = pack_message(PEER, NOBODY, DATA, 16, b"topic", b"payload")[4:]
    ((place, found),) = read_mesh(0, "peer", PEER, False, [body], ALL)
    assert (place, summary(found)) == (1, (b"topic", "data", "peer", "", -1, 1, b"payload"))


def test_garbage_in_the_mesh_is_told_as_that() -> None:
    rng = random.Random(2)
    for _ in range(3_000):
        body = bytearray(rng.choice(frames()))
        for _ in range(rng.randint(1, 4)):
            body[rng.randrange(len(body))] = rng.randrange(256)
        list(read_mesh(0, "peer", PEER, rng.random() < 0.8, [bytes(body[: rng.randint(0, len(body))])], ALL))
    assert [each.kind for _, each in read_mesh(0, "p", PEER, True, [b"", b"x" * 40], ALL)] == [MALFORMED, MALFORMED]
