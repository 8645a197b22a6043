"""The frames of version 2: their bytes, round trips, and everything wrong a ProtocolError."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.mesh.test_mesh_messages import body_of

from chappe.defaults import (
    ENDPOINTS_MAX,
    MESH_BATCH_BYTES_MAX,
    MESH_BATCH_MESSAGES_MAX,
    MESH_MESSAGE_BYTES_MAX,
    MESH_TOPIC_BYTES_MAX,
    NUMBER_MAX,
)
from chappe.errors import ProtocolError, UsageError
from chappe.mesh import flows
from chappe.mesh.flows import (
    DETOUR,
    FLOW_BATCH,
    FLOW_BATCH_TIMED,
    FLOW_COMMAND,
    FLOW_DATA,
    FLOW_DATA_TIMED,
    FLOW_LOSS,
    FLOWS,
    HEAD_BYTES,
    KIND_AT,
    PREFIX,
    PUBLICATIONS,
    TIME_BYTES,
    Hop,
    check_publications,
    messages_in,
    pack_batch,
    pack_confirm,
    pack_detour,
    pack_forget,
    pack_hops,
    pack_onward,
    pack_publication,
    pack_tree,
    parse_detour,
    parse_entries,
    parse_forget,
    parse_head,
    parse_publication,
    parse_publications,
    parse_tree,
    peek,
    portion,
    retimed,
    run_of,
    time_of,
    with_time,
    without_time,
)
from chappe.mesh.messages import (
    COMMAND,
    CONFIRM,
    DATA,
    FORGET,
    LOSS,
    NOBODY,
    RESERVED_TOPIC,
    TREE,
    Message,
    parse_message,
)

OWN, SENDER, ORIGIN, RECEIVER = (bytes([number]) * 16 for number in range(1, 5))
ONE, TWO, THREE, FOUR = (bytes([number]) * 16 for number in range(0x11, 0x15))
NODE_BYTES = 19
TREE_HEAD_BYTES = 24
U64_MAX = 2**64 - 1

ids = st.binary(min_size=16, max_size=16)
numbers = st.integers(0, NUMBER_MAX - 1)
labels = st.integers(0, U64_MAX)
kinds = st.sampled_from([DATA, COMMAND, LOSS])
topics = st.binary(max_size=40)
payloads = st.binary(max_size=60)


def refused(parse: Callable[[bytes], object], body: bytes) -> bool:
    try:
        parse(body)
    except ProtocolError:
        return True
    return False


# -- publications -----------------------------------------------------------------------------------


def test_the_bytes_of_a_publication_are_these() -> None:
    body = body_of(pack_publication(ORIGIN, 5, 7, COMMAND, NOBODY, b"/t", b"payload"))
    head = ORIGIN + bytes(7) + b"\x05" + bytes(7) + b"\x07"
    assert body == head + b"\x22" + b"\x00" + b"\x00\x02" + bytes(8) + b"/tpayload"
    placed = body_of(pack_publication(ORIGIN, 5, 7, DATA, NOBODY, b"/t", b"payload", 9))
    assert placed == head + b"\x21" + b"\x00" + b"\x00\x02" + bytes(7) + b"\x09" + b"/tpayload"
    alone = body_of(pack_publication(ORIGIN, 5, 7, DATA, RECEIVER, b"/t", b"payload"))
    assert alone == head + b"\x21" + b"\x01" + b"\x00\x02" + bytes(8) + RECEIVER + b"/tpayload"
    assert (FLOW_DATA, FLOW_COMMAND, FLOW_BATCH, FLOW_LOSS, DETOUR) == (0x21, 0x22, 0x23, 0x28, 0x2D)
    assert (FLOW_DATA_TIMED, FLOW_BATCH_TIMED) == (0x31, 0x33)
    plain = {FLOW_DATA, FLOW_COMMAND, FLOW_BATCH, FLOW_LOSS}
    assert plain | {FLOW_DATA_TIMED, FLOW_BATCH_TIMED} == PUBLICATIONS == FLOWS - {DETOUR}


@given(ids, numbers, labels, kinds, st.just(NOBODY) | ids, topics, payloads)
def test_a_publication_round_trips(
    origin: bytes, number: int, label: int, kind: int, receiver: bytes, topic: bytes, payload: bytes
) -> None:
    body = body_of(pack_publication(origin, number, label, kind, receiver, topic, payload))
    assert parse_head(body) == (origin, number, label, body[KIND_AT])
    assert body[KIND_AT] in PUBLICATIONS
    assert parse_publication(body, SENDER) == Message(topic, payload, kind, SENDER, receiver, 0, origin, number)
    for length in range(len(body) - len(payload)):
        assert refused(lambda cut: parse_publication(cut, SENDER), body[:length])
    for length in range(HEAD_BYTES):
        assert refused(parse_head, body[:length])


@pytest.mark.parametrize("number", [NUMBER_MAX, NUMBER_MAX + 1, U64_MAX])
def test_a_number_beyond_the_bound_is_refused(number: int) -> None:
    body = body_of(pack_publication(ORIGIN, number, 1, DATA, NOBODY, b"/t", b""))
    assert refused(parse_head, body)
    assert refused(lambda body: parse_publication(body, SENDER), body)
    assert not refused(parse_head, body_of(pack_publication(ORIGIN, NUMBER_MAX - 1, 1, DATA, NOBODY, b"/t", b"")))


def test_flags_that_are_unknown_do_nothing() -> None:
    body = bytearray(body_of(pack_publication(ORIGIN, 5, 7, DATA, RECEIVER, b"/t", b"payload")))
    known = parse_publication(bytes(body), SENDER)
    body[KIND_AT + 1] |= 0xFE
    assert parse_publication(bytes(body), SENDER) == known


@given(ids, numbers, labels, labels, kinds, st.just(NOBODY) | ids, topics, payloads)
def test_a_hop_changes_the_label_alone(
    origin: bytes, number: int, label: int, other: int, kind: int, receiver: bytes, topic: bytes, payload: bytes
) -> None:
    body = body_of(pack_publication(origin, number, label, kind, receiver, topic, payload))
    assert pack_onward(body, other) == pack_publication(origin, number, other, kind, receiver, topic, payload)
    around = body_of(pack_detour(SENDER, 9, label, 3, body))
    assert pack_onward(around, other) == pack_detour(SENDER, 9, other, 3, body)


@given(ids, numbers, labels, st.integers(0, 255), kinds, st.just(NOBODY) | ids, topics, payloads)
def test_a_detour_round_trips(
    around: bytes, number: int, label: int, before: int, kind: int, receiver: bytes, topic: bytes, payload: bytes
) -> None:
    inner = body_of(pack_publication(ORIGIN, 5, 7, kind, receiver, topic, payload))
    body = body_of(pack_detour(around, number, label, before, inner))
    assert parse_head(body) == (around, number, label, DETOUR)
    assert parse_detour(body) == (before, inner)
    for length in range(2 * HEAD_BYTES):
        assert refused(parse_detour, body[:length])


@pytest.mark.parametrize("kind", [0, DATA, COMMAND, LOSS, TREE, DETOUR, 0x20, 0x24, 0xFF])
def test_on_a_detour_is_a_publication_and_nothing_else(kind: int) -> None:
    inner = bytearray(body_of(pack_publication(ORIGIN, 5, 7, DATA, NOBODY, b"/t", b"payload")))
    inner[KIND_AT] = kind
    assert refused(parse_detour, body_of(pack_detour(SENDER, 9, 8, 0, bytes(inner))))


def test_what_is_too_large_is_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flows, "MESH_MESSAGE_BYTES_MAX", 100_000)
    for receiver in (NOBODY, RECEIVER):
        room = bytes(100_000 - 3 * HEAD_BYTES)
        frame = pack_publication(ORIGIN, 1, 1, DATA, receiver, b"", room)
        assert len(body_of(pack_detour(ORIGIN, 1, 1, 0, body_of(frame)))) <= 100_000
        with pytest.raises(UsageError, match="message"):
            pack_publication(ORIGIN, 1, 1, DATA, receiver, b"t", room)
    pack_publication(ORIGIN, 1, 1, DATA, NOBODY, bytes(MESH_TOPIC_BYTES_MAX), b"")
    with pytest.raises(UsageError, match="topic"):
        pack_publication(ORIGIN, 1, 1, DATA, NOBODY, bytes(MESH_TOPIC_BYTES_MAX + 1), b"")
    assert MESH_MESSAGE_BYTES_MAX > 100_000


# -- batches ----------------------------------------------------------------------------------------


def test_the_bytes_of_a_batch_are_these() -> None:
    """It has the number and the place of the last of its messages."""
    frame = pack_batch(ORIGIN, 5, 7, b"/t", [b"one", b"", b"three"], 4)
    body = ORIGIN + bytes(7) + b"\x05" + bytes(7) + b"\x07" + b"\x23" + b"\x02" + b"\x00\x02" + bytes(7) + b"\x04/t"
    body += bytes(3) + b"\x03" + bytes(4) + bytes(3) + b"\x05" + b"onethree"
    assert frame == len(body).to_bytes(4, "big") + body
    assert [(each.sequence, each.place, each.payload) for each in parse_publications(body, SENDER)] == [
        (3, 2, b"one"),
        (4, 3, b""),
        (5, 4, b"three"),
    ]


@given(ids, st.integers(MESH_BATCH_MESSAGES_MAX, NUMBER_MAX - 1), labels, topics, st.data())
def test_a_batch_round_trips(origin: bytes, last: int, label: int, topic: bytes, data: st.DataObject) -> None:
    parts = data.draw(st.lists(payloads, min_size=1, max_size=12))
    if data.draw(st.booleans()):
        parts = (parts * MESH_BATCH_MESSAGES_MAX)[:MESH_BATCH_MESSAGES_MAX]
    frame = pack_batch(origin, last, label, topic, parts)
    body = body_of(frame)
    first = last - len(parts) + 1
    assert parse_publications(body, SENDER) == [
        Message(topic, part, DATA, SENDER, NOBODY, 0, origin, number) for number, part in enumerate(parts, first)
    ]
    check_publications(body)
    around = pack_detour(SENDER, 9, 8, 3, body)
    assert parse_detour(body_of(around)) == (3, body)
    assert [messages_in(body), messages_in(frame, PREFIX), messages_in(body_of(around))] == [len(parts)] * 3
    assert messages_in(around, PREFIX) == len(parts)
    assert pack_onward(body, 99) == pack_batch(origin, last, 99, topic, parts)
    for length in {*range(0, len(body), 1 + len(body) // 100), len(body) - 1} - {len(body)}:
        if length > KIND_AT:
            assert refused(lambda cut: parse_publications(cut, SENDER), body[:length])
            assert refused(lambda cut: check_publications(cut), body[:length])


@pytest.mark.parametrize("kind", [DATA, COMMAND, LOSS])
def test_any_other_frame_has_one_message(kind: int) -> None:
    frame = pack_publication(ORIGIN, 5, 7, kind, NOBODY, b"/t", b"payload")
    assert messages_in(body_of(frame)) == messages_in(frame, PREFIX) == 1
    assert messages_in(body_of(pack_detour(ORIGIN, 5, 7, 255, body_of(frame)))) == 1
    assert parse_publications(body_of(frame), SENDER) == [parse_publication(body_of(frame), SENDER)]
    assert [messages_in(bytes([DETOUR]) * size) for size in range(80)] == [1] * 80


@pytest.mark.parametrize("kinds", [[FLOW_BATCH], [DETOUR, FLOW_BATCH]])
def test_a_batch_that_is_cut_off_behind_its_kind_counts_as_one(kinds: list[int]) -> None:
    body = b"".join([bytes(KIND_AT) + bytes([kind]) + bytes(HEAD_BYTES - KIND_AT - 1) for kind in kinds])
    cut_off = body[: (len(kinds) - 1) * HEAD_BYTES + KIND_AT + 1]
    assert messages_in(cut_off) == 1
    assert portion([cut_off] * 3, 2) == 2


@pytest.mark.parametrize("wrong", ["number", "count", "longer", "shorter", "more", "large", "beyond"])
def test_a_batch_that_is_none_is_refused(wrong: str) -> None:
    parts = [bytes(MESH_BATCH_BYTES_MAX // 2)] * 2
    body = bytearray(body_of(pack_batch(ORIGIN, 2, 7, b"/t", parts)))
    check_publications(bytes(body))
    at = HEAD_BYTES + 2  # of the first length
    if wrong == "number":  # its first would have the number 0
        body[16:24] = (1).to_bytes(8, "big")
    elif wrong == "beyond":
        body[16:24] = NUMBER_MAX.to_bytes(8, "big")
    elif wrong == "count":
        body[KIND_AT + 1] = 2
    elif wrong in ("longer", "shorter"):
        body[at : at + 4] = (len(parts[0]) + (1 if wrong == "longer" else -1)).to_bytes(4, "big")
    else:
        body += b"x"
    if wrong == "large":
        body[at : at + 4] = (len(parts[0]) + 1).to_bytes(4, "big")
    assert refused(check_publications, bytes(body))
    assert refused(lambda body: parse_publications(body, SENDER), bytes(body))


@given(
    st.lists(st.integers(0, 3_000).map(bytes), min_size=1, max_size=300), st.integers(0, 300), st.integers(0, 20_000)
)
def test_runs_are_within_their_bounds_and_leave_nothing_out(
    parts: list[bytes], messages_max: int, bytes_max: int
) -> None:
    found: list[bytes] = []
    while len(found) < len(parts):
        run = run_of(parts, len(found), messages_max, bytes_max)
        assert len(run) == 1 or (len(run) <= messages_max and sum(map(len, run)) <= bytes_max)
        found += run
    assert found == parts


def test_runs_are_as_long_as_they_may_be() -> None:
    assert len(run_of([b"x"] * 600, 0, MESH_BATCH_MESSAGES_MAX, MESH_BATCH_BYTES_MAX)) == MESH_BATCH_MESSAGES_MAX
    assert len(run_of([bytes(1_024)] * 600, 500, MESH_BATCH_MESSAGES_MAX, 32 * 1_024)) >= 16


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 20)), max_size=30), st.integers(1, 40), st.integers(0, 30))
def test_portions_have_so_many_messages_and_are_as_large_as_they_may_be(
    counts: list[tuple[bool, int]], messages_max: int, at: int
) -> None:
    bodies = [
        b"short" if count == 20 else body_of(pack_batch(ORIGIN, 99, 7, b"/t", [b"x"] * count)) for _, count in counts
    ]
    bodies = [
        body_of(pack_detour(ORIGIN, 1, 7, 200, body)) if around and len(body) > 9 else body
        for body, (around, _) in zip(bodies, counts, strict=True)
    ]
    at = min(at, len(bodies))
    end = portion(bodies, messages_max, at)
    messages = [messages_in(body) for body in bodies]
    assert at + (at < len(bodies)) <= end <= len(bodies)
    assert end == at + 1 or sum(messages[at:end]) <= messages_max
    assert end == len(bodies) or sum(messages[at : end + 1]) > messages_max


@given(st.data())
def test_a_damaged_batch_parses_or_is_a_protocol_error(data: st.DataObject) -> None:
    body = bytearray(body_of(pack_batch(ORIGIN, 50, 7, b"/topic", [b"some", b"", b"payloads" * 40])))
    for _ in range(data.draw(st.integers(1, 3))):
        body[data.draw(st.integers(KIND_AT + 1, len(body) - 1))] = data.draw(st.integers(0, 255))
    try:
        check_publications(bytes(body))
    except ProtocolError:
        assert refused(lambda body: parse_publications(body, SENDER), bytes(body))
        return
    messages = parse_publications(bytes(body), SENDER)
    size = sum([len(each.payload) for each in messages])
    assert HEAD_BYTES + len(messages[0].topic) + 4 * len(messages) + size == len(body)
    assert [each.sequence for each in messages] == list(range(51 - len(messages), 51))


# -- times ------------------------------------------------------------------------------------------

times = st.integers(-(2**62), 2**62)


def test_the_bytes_of_a_time_are_these() -> None:
    plain = pack_publication(ORIGIN, 5, 7, DATA, RECEIVER, b"/t", b"payload")
    body = body_of(plain)
    timed = body[:KIND_AT] + b"\x31" + body[KIND_AT + 1 :] + bytes(7) + b"\x09"
    assert with_time(plain, 9) == len(timed).to_bytes(4, "big") + timed
    assert parse_publication(timed, SENDER) == Message(b"/t", b"payload", DATA, SENDER, RECEIVER, 0, ORIGIN, 5, 9e-6)
    assert with_time(plain, -1)[-8:] == b"\xff" * 8
    batch = with_time(pack_batch(ORIGIN, 5, 7, b"/t", [b"one", b"two"]), 3_000_000)
    assert batch[PREFIX + KIND_AT] == 0x33
    assert [each.published for each in parse_publications(body_of(batch), SENDER)] == [3.0, 3.0]


@given(ids, numbers, st.just(NOBODY) | ids, topics, st.lists(payloads, min_size=1, max_size=9), times, times)
def test_a_time_round_trips_alone_and_on_a_detour(
    origin: bytes, number: int, receiver: bytes, topic: bytes, parts: list[bytes], time: int, other: int
) -> None:
    last = number % (NUMBER_MAX - MESH_BATCH_MESSAGES_MAX) + MESH_BATCH_MESSAGES_MAX
    for plain in (
        pack_publication(origin, number, 7, DATA, receiver, topic, parts[0]),
        pack_batch(origin, last, 7, topic, parts),
    ):
        frame = with_time(plain, time)
        body = body_of(frame)
        assert peek(body) == peek(body_of(plain))
        assert without_time(body) == without_time(body_of(plain)) == body_of(plain)
        assert messages_in(body) == messages_in(body_of(plain))
        assert portion([body] * 3, messages_in(body)) == 1
        check_publications(body)
        found = parse_publications(body, SENDER)
        assert {each.published for each in found} == {time / 1e6}
        untimed = parse_publications(body_of(plain), SENDER)
        assert [(each.payload, each.topic, each.sequence, each.receiver) for each in found] == [
            (each.payload, each.topic, each.sequence, each.receiver) for each in untimed
        ]
        assert (time_of(body), time_of(body_of(plain))) == (time, None)
        assert retimed(body, other) == body_of(with_time(plain, other))
        around = body_of(pack_detour(SENDER, 9, 8, 3, body))
        assert time_of(around) == time
        assert retimed(around, other) == body_of(pack_detour(SENDER, 9, 8, 3, body_of(with_time(plain, other))))
        for length in {KIND_AT + 1, HEAD_BYTES, HEAD_BYTES + TIME_BYTES - 1, HEAD_BYTES + len(topic) + TIME_BYTES - 1}:
            cut = body[:length]
            assert refused(lambda cut: parse_publications(cut, SENDER), cut)
            assert refused(check_publications, cut)
            assert (time_of(cut) is None) == (length < HEAD_BYTES + TIME_BYTES)


def test_what_has_no_time_is_as_it_was() -> None:
    for kind in (DATA, COMMAND, LOSS):
        body = body_of(pack_publication(ORIGIN, 5, 7, kind, NOBODY, b"/t", b"payload" * 9))
        assert time_of(body) is None
        assert without_time(body) == body
        assert time_of(body_of(pack_detour(SENDER, 9, 8, 3, body))) is None
    for kind in (0x32, 0x38, 0x3D):  # of commands, losses and detours nobody tells times
        other = bytearray(body_of(pack_publication(ORIGIN, 5, 7, DATA, NOBODY, b"/t", b"payload" * 9)))
        other[KIND_AT] = kind
        assert kind not in FLOWS
        assert time_of(bytes(other)) is None
        assert refused(parse_detour, body_of(pack_detour(SENDER, 9, 8, 0, bytes(other))))


@given(st.data())
def test_a_damaged_time_parses_or_is_a_protocol_error(data: st.DataObject) -> None:
    plain = data.draw(
        st.sampled_from(
            [pack_publication(ORIGIN, 5, 7, DATA, RECEIVER, b"/t", b"x"), pack_batch(ORIGIN, 50, 7, b"/t", [b"", b"y"])]
        )
    )
    body = bytearray(body_of(with_time(plain, 5)))
    if data.draw(st.booleans()):
        body = bytearray(body_of(pack_detour(SENDER, 9, 8, 1, bytes(body))))
    for _ in range(data.draw(st.integers(1, 3))):
        body[data.draw(st.integers(KIND_AT + 1, len(body) - 1))] = data.draw(st.integers(0, 255))
    damaged = bytes(body[: data.draw(st.integers(HEAD_BYTES, len(body)))])
    if (time := time_of(damaged)) is not None:
        assert retimed(damaged, time) == damaged
    try:
        inner = parse_detour(damaged)[1] if damaged[KIND_AT] == DETOUR else damaged
        check_publications(inner)
    except ProtocolError:
        return
    found = parse_publications(inner, SENDER)
    assert time == time_of(inner)
    assert found[0].published == (None if time is None else time / 1e6)


# -- trees ------------------------------------------------------------------------------------------


def node(id: bytes, receiver: bool, children: int) -> bytes:
    return id + bytes((receiver,)) + children.to_bytes(2, "big")


HEAD = ORIGIN + (9).to_bytes(8, "big")
#   OWN, a receiver: ONE (a receiver): TWO, THREE (a receiver): FOUR
NODES = node(OWN, True, 2), node(ONE, True, 1), node(TWO, False, 0), node(THREE, True, 1), node(FOUR, False, 0)


def test_the_bytes_of_a_tree_are_these() -> None:
    children = {SENDER: [OWN], OWN: [ONE, THREE], ONE: [TWO], THREE: [FOUR]}
    [hop] = pack_hops(SENDER, frozenset((OWN, ONE, THREE)), children)
    assert hop == Hop(OWN, b"".join(NODES))
    message = parse_message(body_of(pack_tree(SENDER, ORIGIN, 9, hop.subtree)))
    assert (message.kind, message.sender, message.topic) == (TREE, SENDER, RESERVED_TOPIC)
    assert message.payload == HEAD + b"".join(NODES)
    below = [Hop(ONE, NODES[1] + NODES[2]), Hop(THREE, NODES[3] + NODES[4])]
    assert parse_tree(message.payload, OWN) == (ORIGIN, 9, True, False, below)
    assert [each.receivers() for each in below] == [frozenset((ONE,)), frozenset((THREE,))]
    assert hop.receivers() == frozenset((OWN, ONE, THREE))


@given(st.data())
def test_a_tree_round_trips(data: st.DataObject) -> None:
    nodes = data.draw(st.lists(ids.filter(lambda each: each != ORIGIN), min_size=1, max_size=12, unique=True))
    receivers = frozenset(data.draw(st.lists(st.sampled_from(nodes), unique=True)))
    children: dict[bytes, list[bytes]] = {ORIGIN: [nodes[0]]}
    for at, each in enumerate(nodes[1:], 1):
        children.setdefault(nodes[data.draw(st.integers(0, at - 1))], []).append(each)
    [hop] = pack_hops(ORIGIN, receivers, children)
    passed = 0
    waiting = [hop]
    while waiting:  # as hop after hop does
        hop = waiting.pop()
        payload = parse_message(body_of(pack_tree(SENDER, ORIGIN, passed, hop.subtree))).payload
        origin, label, deliver, _, hops = parse_tree(payload, hop.id)
        assert (origin, label, deliver) == (ORIGIN, passed, hop.id in receivers)
        assert [each.id for each in hops] == children.get(hop.id, [])
        for length in range(len(payload)):
            assert refused(lambda cut, own=hop.id: parse_tree(cut, own), payload[:length])  # type: ignore[misc]
        passed += 1
        waiting += hops
    assert passed == len(nodes)


@pytest.mark.parametrize(
    "nodes",
    [
        (),
        (node(ONE, True, 0),),  # for another
        (node(OWN, True, 1),),  # one is missing
        (node(OWN, True, 0), node(ONE, True, 0)),  # one is too many
        (node(OWN, True, 1), node(ONE, True, 0), node(TWO, True, 0)),
        (node(OWN, True, 1), node(ONE, True, 0xFFFF)),
        (node(OWN, True, 0xFFFF),),
        (node(OWN, True, 2), node(ONE, True, 1), node(TWO, True, 0)),  # the second of two is missing
        (node(OWN, True, 1), node(OWN, True, 0)),  # it runs back to this hop
        (node(OWN, True, 1), node(ONE, True, 1), node(OWN, True, 0)),
        (node(OWN, True, 2), node(ONE, True, 0), node(ONE, True, 0)),  # it names one twice
        (node(OWN, True, 2), node(ONE, True, 1), node(TWO, True, 0), node(TWO, True, 0)),
        (node(OWN, True, 1), node(ORIGIN, True, 0)),  # it runs back to where it begins
        (node(ORIGIN, True, 0),),
    ],
)
def test_a_tree_that_is_none_is_refused(nodes: tuple[bytes, ...]) -> None:
    assert refused(lambda payload: parse_tree(payload, OWN), HEAD + b"".join(nodes))


def test_a_tree_has_a_bound() -> None:
    leaves = [node(number.to_bytes(16, "big"), True, 0) for number in range(1 << 40, (1 << 40) + ENDPOINTS_MAX)]
    for count, wrong in ((ENDPOINTS_MAX - 1, False), (ENDPOINTS_MAX, True)):
        payload = HEAD + node(OWN, False, count) + b"".join(leaves[:count])
        assert refused(lambda payload: parse_tree(payload, OWN), payload) is wrong


def test_a_tree_as_deep_as_there_are_endpoints_is_packed_and_parsed() -> None:
    chain = [number.to_bytes(16, "big") for number in range(1 << 40, (1 << 40) + ENDPOINTS_MAX)]
    children = {one: [two] for one, two in zip([ORIGIN, *chain], chain, strict=False)}
    [hop] = pack_hops(ORIGIN, frozenset(chain[-1:]), children)
    payload = parse_message(body_of(pack_tree(ORIGIN, ORIGIN, 1, hop.subtree))).payload
    _, _, deliver, _, [below] = parse_tree(payload, chain[0])
    assert not deliver
    assert below.receivers() == frozenset(chain[-1:])


# -- confirmations and labels -----------------------------------------------------------------------


@given(st.lists(st.tuples(labels, labels), max_size=20))
def test_confirmations_round_trip(entries: list[tuple[int, int]]) -> None:
    message = parse_message(body_of(pack_confirm(SENDER, entries)))
    assert (message.kind, message.sender, message.topic) == (CONFIRM, SENDER, RESERVED_TOPIC)
    assert list(parse_entries(message.payload)) == entries
    for length in range(len(message.payload)):
        assert refused(parse_entries, message.payload[:length]) is bool(length % 16)


@given(st.lists(labels, max_size=20))
def test_labels_that_are_not_used_any_more_round_trip(forgotten: list[int]) -> None:
    message = parse_message(body_of(pack_forget(SENDER, forgotten)))
    assert (message.kind, message.sender, message.topic) == (FORGET, SENDER, RESERVED_TOPIC)
    assert parse_forget(message.payload) == forgotten
    for length in range(len(message.payload)):
        assert refused(parse_forget, message.payload[:length]) is bool(length % 8)


def test_the_bytes_of_confirmations_and_labels_are_these() -> None:
    assert body_of(pack_confirm(SENDER, [(1, 2), (3, 4)])).endswith(
        b"".join([number.to_bytes(8, "big") for number in (1, 2, 3, 4)])
    )
    assert body_of(pack_forget(SENDER, [1, 2])).endswith(bytes(7) + b"\x01" + bytes(7) + b"\x02")
    assert (TREE, CONFIRM, FORGET) == (0x15, 0x16, 0x17)


# -- anything ---------------------------------------------------------------------------------------


@given(st.binary(max_size=200) | st.binary(max_size=80).map(lambda some: HEAD + b"".join(NODES)[: len(some)] + some))
def test_any_bytes_parse_or_are_a_protocol_error(body: bytes) -> None:
    for parse in (
        parse_head,
        parse_detour,
        parse_entries,
        parse_forget,
        lambda body: parse_tree(body, OWN),
        lambda body: (
            parse_publications(body, SENDER) if len(body) > KIND_AT and body[KIND_AT] in PUBLICATIONS else None
        ),
        messages_in,
    ):
        refused(parse, body)


@given(st.data())
def test_a_damaged_tree_parses_or_is_a_protocol_error(data: st.DataObject) -> None:
    payload = bytearray(HEAD + b"".join(NODES))
    for _ in range(data.draw(st.integers(1, 3))):
        payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    try:
        origin, label, deliver, _, hops = parse_tree(bytes(payload), OWN)
    except ProtocolError:
        return
    # What it is taken for has every hop once, and nothing beside that.
    head = origin + label.to_bytes(8, "big") + payload[TREE_HEAD_BYTES : TREE_HEAD_BYTES + NODE_BYTES]
    assert head + b"".join([each.subtree for each in hops]) == payload
    assert deliver == bool(payload[TREE_HEAD_BYTES + 16] & 1)
    named = [payload[at : at + 16] for at in range(TREE_HEAD_BYTES, len(payload), NODE_BYTES)]
    assert len({bytes(each) for each in named}) == len(named) == 5


@given(st.data())
def test_a_damaged_publication_parses_or_is_a_protocol_error(data: st.DataObject) -> None:
    body = bytearray(body_of(pack_publication(ORIGIN, 5, 7, DATA, RECEIVER, b"/topic", b"payload")))
    if data.draw(st.booleans()):
        body = bytearray(body_of(pack_detour(SENDER, 9, 8, 1, bytes(body))))
    for _ in range(data.draw(st.integers(1, 3))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    try:
        found = parse_detour(bytes(body))[1] if body[KIND_AT] == DETOUR else bytes(body)
        if found[KIND_AT] == FLOW_BATCH:
            parse_publications(found, SENDER)
        elif found[KIND_AT] in PUBLICATIONS:
            message = parse_publication(found, SENDER)
            assert len(message.topic) + len(message.payload) in (len(found) - HEAD_BYTES, len(found) - HEAD_BYTES - 16)
    except ProtocolError:
        pass
