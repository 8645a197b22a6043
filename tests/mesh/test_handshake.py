"""Two handshakes joined in every combination, the original's sessions replayed, and every fault answered as it does."""

from __future__ import annotations

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.mesh.handshake_rig import GREATER, SMALLER, Pair, Side
from tests.mesh.test_mesh_messages import body_of
from tests.mesh.vectors import session

from chappe.defaults import HANDSHAKE_FRAME_BYTES_MAX, HANDSHAKE_TIMEOUT_S
from chappe.mesh.links.greetings import (
    Code,
    DropConn,
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
from chappe.mesh.links.handshake import (
    Established,
    Failed,
    HandshakeState,
    PeerHandshake,
    Redundant,
    SendFrame,
    Step,
    Wake,
)
from chappe.mesh.links.peers import HandshakeRole, PeerClaim, PeerStatus, PeerTable
from chappe.mesh.messages import NOBODY

MIDDLE = b"\x77" * 16


def handshake(
    dialled: bool, peers: PeerTable | None = None, conn: int = 1, wanted: tuple[bytes, ...] = (), version_max: int = 2
) -> PeerHandshake:
    """The endpoint MIDDLE, at time 0."""
    return PeerHandshake(conn, MIDDLE, dialled, wanted, peers or PeerTable(), 0.0, version_max)


def say(shaking: PeerHandshake, *greetings: Greeting) -> list[Step]:
    """What happens upon the last of ``greetings``."""
    steps: list[Step] = []
    for greeting in greetings:
        steps = shaking.take(body_of(pack_greeting(greeting)))
    return steps


def sent(steps: list[Step]) -> list[Greeting]:
    return [parse_greeting(body_of(step.frame)) for step in steps if isinstance(step, SendFrame)]


# -- one connection -----------------------------------------------------------------------------------


@pytest.mark.parametrize("dialler", [0, 1])
def test_two_endpoints_of_chappe_meet_whoever_dials(dialler: int) -> None:
    smaller, greater = Side(SMALLER, (b"/s",)), Side(GREATER, (b"/g", b"/g/deep", b"<$>/local/x"))
    pair = Pair(smaller, greater)
    pair.connect(1, dialler)
    pair.run()
    assert smaller.outcomes == {1: Established(GREATER, (b"/g",), HandshakeRole.ORIGINATOR, 2)}
    assert greater.outcomes == {1: Established(SMALLER, (b"/s",), HandshakeRole.RESPONDER, 2)}
    assert smaller.peers.status(GREATER) is greater.peers.status(SMALLER) is PeerStatus.CONNECTED


@pytest.mark.parametrize(("name", "originates"), [("smaller", "c2s"), ("greater", "s2c")])
@pytest.mark.parametrize("ours", ["c2s", "s2c"])
def test_each_side_of_a_session_of_originals_can_be_ours(name: str, originates: str, ours: str) -> None:
    file = "session_hs_client_smaller.json" if name == "smaller" else "session_hs_server_smaller.json"
    frames = [(way, frame) for _, way, frame in session(file) if frame[4] in range(6, 13) and len(frame) < 41]
    greetings = {
        way: [parse_greeting(body_of(frame)) for each, frame in frames if each == way] for way in ("c2s", "s2c")
    }
    own = next(each.sender for each in greetings[ours] if isinstance(each, Hello | VersionSelect))
    wanted = next(each.filter for each in greetings[ours] if isinstance(each, OriginatorSyn | ResponderSynAck))
    shaking = PeerHandshake(1, own, ours == "c2s", wanted, PeerTable(), 0.0)
    steps = shaking.start()
    for way, frame in frames:
        if way != ours:
            steps += shaking.take(body_of(frame))
    # Byte for byte the original's, but for the versions that we offer.
    assert [step.frame for step in steps if isinstance(step, SendFrame)] == [
        pack_greeting(ours_instead_of(each)) for each in greetings[ours]
    ]
    other = "s2c" if ours == "c2s" else "c2s"
    theirs = next(each.filter for each in greetings[other] if isinstance(each, OriginatorSyn | ResponderSynAck))
    role = HandshakeRole.ORIGINATOR if ours == originates else HandshakeRole.RESPONDER
    assert steps[-1] == Established(shaking.peer_id or b"", theirs, role, 1)


def ours_instead_of(greeting: Greeting) -> Greeting:
    match greeting:
        case Hello(sender, _, _):
            return Hello(sender, 1, 2)
    return greeting


def test_the_redundant_connections_of_an_original_end_as_success() -> None:
    frames = session("session_redundant.json")
    hello = next(frame for conn, way, frame in frames if way == "s2c" and frame[4] == 6)
    own = parse_greeting(body_of(hello))
    assert isinstance(own, Hello)
    peers = PeerTable()
    originals = [body_of(frame) for conn, way, frame in frames if way == "c2s" and conn == 0]
    drop = parse_greeting(originals[-1])
    assert isinstance(drop, DropConn)
    assert peers.claim(7, drop.sender, HandshakeRole.RESPONDER) is PeerClaim.PROCEED
    shaking = PeerHandshake(1, own.sender, False, (), peers, 0.0)
    assert [shaking.take(body) for body in originals] == [
        [SendFrame(pack_greeting(Hello(own.sender)))],
        [Redundant(drop.sender)],
    ]


def test_a_probe_is_ignored_until_a_version_is_selected() -> None:
    for dialled in (True, False):
        assert say(handshake(dialled), Probe()) == []
    assert say(handshake(False), Hello(SMALLER), Probe()) == []
    steps = say(handshake(True), VersionSelect(SMALLER), Probe())
    assert isinstance(steps[0], Failed)


@pytest.mark.parametrize("dialled", [True, False])
@pytest.mark.parametrize(
    ("low", "high", "selected"), [(1, 1, 1), (0, 1, 1), (0, 9, 2), (1, 2, 2), (2, 2, 2), (2, 255, 2), (1, 255, 2)]
)
def test_the_highest_version_that_both_offer_is_selected(dialled: bool, low: int, high: int, selected: int) -> None:
    shaking = handshake(dialled)
    assert sent(say(shaking, Hello(GREATER, low, high))) == [VersionSelect(MIDDLE, selected), OriginatorSyn(())]
    assert say(shaking, ResponderSynAck(()))[-1] == Established(GREATER, (), HandshakeRole.ORIGINATOR, selected)


@pytest.mark.parametrize("version", [1, 2])
def test_the_version_that_the_originator_selects_is_spoken(version: int) -> None:
    for shaking, before in ((handshake(True), []), (handshake(False), [Hello(SMALLER)])):
        steps = say(shaking, *before, VersionSelect(SMALLER, version), OriginatorSyn(()), OriginatorAck())
        assert steps == [Established(SMALLER, (), HandshakeRole.RESPONDER, version)]


@pytest.mark.parametrize("maxima", [(1, 1), (1, 2), (2, 1), (2, 2)])
@pytest.mark.parametrize("dialler", [0, 1])
def test_two_that_offer_different_versions_meet_in_the_lower_one(dialler: int, maxima: tuple[int, int]) -> None:
    smaller, greater = Side(SMALLER, version_max=maxima[0]), Side(GREATER, version_max=maxima[1])
    pair = Pair(smaller, greater)
    pair.connect(1, dialler)
    pair.run()
    outcomes = [*smaller.outcomes.values(), *greater.outcomes.values()]
    assert [each.version for each in outcomes if isinstance(each, Established)] == [min(maxima)] * 2


def test_who_speaks_version_1_alone_offers_it_and_refuses_2() -> None:
    assert sent(handshake(True, version_max=1).start()) == [Hello(MIDDLE, 1, 1)]
    assert sent(handshake(True).start()) == [Hello(MIDDLE, 1, 2)]
    assert sent(say(handshake(False, version_max=1), Hello(SMALLER))) == [Hello(MIDDLE, 1, 1)]
    steps = say(handshake(False, version_max=1), Hello(GREATER, 2, 9))
    why = "it offers versions 2 to 9 of the protocol, and we speak 1"
    assert steps[1:] == [Failed(Code.PEER_INCOMPATIBLE, why)]
    steps = say(handshake(True, version_max=1), VersionSelect(SMALLER, 2))
    why = "it chose version 2 of the protocol, and we offered 1"
    assert steps[1:] == [Failed(Code.PEER_INCOMPATIBLE, why)]


def test_a_filter_that_does_not_fit_is_sent_in_part() -> None:
    wanted = tuple(b"/%05d/%s" % (number, b"x" * 200) for number in range(1000))
    shaking = handshake(True, wanted=wanted)
    [_, syn] = [step for step in say(shaking, Hello(GREATER)) if isinstance(step, SendFrame)]
    assert HANDSHAKE_FRAME_BYTES_MAX - 500 < len(syn.frame) <= HANDSHAKE_FRAME_BYTES_MAX
    assert shaking.filter_sent
    assert shaking.filter_sent == wanted[: len(shaking.filter_sent)]
    greeting = parse_greeting(body_of(syn.frame))
    assert greeting == OriginatorSyn(shaking.filter_sent)


@pytest.mark.parametrize("long", [1, 127, 128, 300])
def test_a_filter_of_any_topics_fits_the_frame(long: int) -> None:
    wanted = tuple(number.to_bytes(3, "big") + b"x" * long for number in range(70_000 // long))
    shaking = handshake(True, wanted=wanted)
    [_, syn] = [step for step in say(shaking, Hello(GREATER)) if isinstance(step, SendFrame)]
    assert len(syn.frame) - 4 <= HANDSHAKE_FRAME_BYTES_MAX


def test_what_follows_the_end_is_not_for_the_handshake() -> None:
    shaking = handshake(True)
    steps = say(shaking, VersionSelect(SMALLER), OriginatorSyn((b"/s",)), OriginatorAck())
    assert steps == [Established(SMALLER, (b"/s",), HandshakeRole.RESPONDER, 1)]
    assert say(shaking, OriginatorAck()) == []
    assert shaking.end("gone") == []
    assert shaking.tick(1e9) == []
    assert shaking.due() == inf


# -- faults -------------------------------------------------------------------------------------------

DIALLED_STATES: dict[HandshakeState, list[Greeting]] = {
    HandshakeState.AWAIT_HELLO_OR_VERSION_SELECT: [],
    HandshakeState.AWAIT_ORIGINATOR_SYN: [VersionSelect(SMALLER)],
    HandshakeState.AWAIT_ORIGINATOR_ACK: [VersionSelect(SMALLER), OriginatorSyn(())],
    HandshakeState.AWAIT_RESPONDER_SYN_ACK: [Hello(GREATER)],
}
ACCEPTED_STATES: dict[HandshakeState, list[Greeting]] = {
    HandshakeState.AWAIT_HELLO: [],
    HandshakeState.AWAIT_VERSION_SELECT: [Hello(SMALLER)],
    HandshakeState.AWAIT_ORIGINATOR_SYN: [Hello(SMALLER), VersionSelect(SMALLER)],
    HandshakeState.AWAIT_ORIGINATOR_ACK: [Hello(SMALLER), VersionSelect(SMALLER), OriginatorSyn(())],
    HandshakeState.AWAIT_RESPONDER_SYN_ACK: [Hello(GREATER)],
}
WAYS = [
    *((True, state, way) for state, way in DIALLED_STATES.items()),
    *((False, state, way) for state, way in ACCEPTED_STATES.items()),
]
in_every_state = pytest.mark.parametrize(
    ("dialled", "state", "way"), WAYS, ids=[f"{dialled}-{state.value}" for dialled, state, _ in WAYS]
)


def brought(dialled: bool, state: HandshakeState, way: list[Greeting], peers: PeerTable) -> PeerHandshake:
    shaking = handshake(dialled, peers)
    say(shaking, *way)
    assert shaking.state is state
    return shaking


@in_every_state
@pytest.mark.parametrize(
    ("body", "code", "text"),
    [
        (b"\x06ZEEC" + bytes(18), 38, "wrong magic number"),
        (b"\x07" + bytes(4), 38, "wrong magic number"),
        (b"\x01" + bytes(60), 20, "invalid message type tag"),
        (b"\xff", 20, "invalid message type tag"),
        (b"\x06ZEEK", 20, "failed to parse hello"),
        (b"\x0a\x01", 20, "failed to parse originator_syn"),
        (b"\x0c\x00", 20, "failed to parse originator_ack"),
    ],
)
def test_a_fault_is_answered_by_its_code(
    dialled: bool, state: HandshakeState, way: list[Greeting], body: bytes, code: int, text: str
) -> None:
    peers = PeerTable()
    shaking = brought(dialled, state, way, peers)
    assert shaking.take(body) == [
        SendFrame(pack_greeting(DropConn(MIDDLE, code, text))),
        Failed(code, text),
    ]
    assert (peers.status(SMALLER), peers.status(GREATER)) == (PeerStatus.UNKNOWN, PeerStatus.UNKNOWN)
    assert say(shaking, Hello(GREATER)) == []


@in_every_state
@pytest.mark.parametrize("size", [0, HANDSHAKE_FRAME_BYTES_MAX + 1])
def test_empty_and_oversized_frames_end_silently(
    dialled: bool, state: HandshakeState, way: list[Greeting], size: int
) -> None:
    [failed] = brought(dialled, state, way, PeerTable()).take(b"\x0a" * size)
    assert isinstance(failed, Failed)


@in_every_state
def test_what_does_not_belong_there_ends_silently(dialled: bool, state: HandshakeState, way: list[Greeting]) -> None:
    expected: dict[HandshakeState, tuple[type, ...]] = {
        HandshakeState.AWAIT_HELLO_OR_VERSION_SELECT: (Hello, VersionSelect, Probe),
        HandshakeState.AWAIT_HELLO: (Hello, Probe),
        HandshakeState.AWAIT_VERSION_SELECT: (VersionSelect, Probe),
        HandshakeState.AWAIT_ORIGINATOR_SYN: (OriginatorSyn,),
        HandshakeState.AWAIT_RESPONDER_SYN_ACK: (ResponderSynAck,),
        HandshakeState.AWAIT_ORIGINATOR_ACK: (OriginatorAck,),
    }
    everything: list[Greeting] = [
        Hello(SMALLER),
        Probe(),
        VersionSelect(SMALLER),
        OriginatorSyn(()),
        ResponderSynAck(()),
        OriginatorAck(),
    ]
    unexpected = [each for each in everything if not isinstance(each, expected[state])]
    assert unexpected
    for greeting in unexpected:
        peers = PeerTable()
        [failed] = say(brought(dialled, state, way, peers), greeting)
        assert isinstance(failed, Failed)
        assert failed.code == Code.UNEXPECTED_MESSAGE
        assert peers.status(SMALLER) is peers.status(GREATER) is PeerStatus.UNKNOWN


@in_every_state
def test_drop_conn_is_understood(dialled: bool, state: HandshakeState, way: list[Greeting]) -> None:
    [failed] = say(brought(dialled, state, way, PeerTable()), DropConn(SMALLER, 40, "busy"))
    assert failed == Failed(40, "the peer refused the connection: busy")


@in_every_state
def test_redundant_without_another_connection_is_a_failure(
    dialled: bool, state: HandshakeState, way: list[Greeting]
) -> None:
    for sender in (SMALLER, GREATER):
        [failed] = say(brought(dialled, state, way, PeerTable()), DropConn(sender, 39, "redundant connection"))
        assert isinstance(failed, Failed)


@in_every_state
def test_silence_ends_at_the_time_limit(dialled: bool, state: HandshakeState, way: list[Greeting]) -> None:
    peers = PeerTable()
    shaking = brought(dialled, state, way, peers)
    assert shaking.due() == HANDSHAKE_TIMEOUT_S
    assert shaking.tick(HANDSHAKE_TIMEOUT_S - 0.001) == []
    [failed] = shaking.tick(HANDSHAKE_TIMEOUT_S)
    assert isinstance(failed, Failed)
    assert failed.code == Code.TIMED_OUT
    assert peers.status(SMALLER) is peers.status(GREATER) is PeerStatus.UNKNOWN


@in_every_state
def test_a_closed_connection_fails_with_its_reason(dialled: bool, state: HandshakeState, way: list[Greeting]) -> None:
    peers = PeerTable()
    assert brought(dialled, state, way, peers).end("reset") == [Failed(Code.DISCONNECTED, "reset")]
    assert peers.status(SMALLER) is peers.status(GREATER) is PeerStatus.UNKNOWN


@in_every_state
@given(body=st.binary(min_size=1, max_size=60) | st.builds(bytes.__add__, st.just(b"\x06ZEEK"), st.binary()))
def test_garbage_never_raises(dialled: bool, state: HandshakeState, way: list[Greeting], body: bytes) -> None:
    brought(dialled, state, way, PeerTable()).take(body)


@pytest.mark.parametrize("dialled", [True, False])
@pytest.mark.parametrize(("low", "high"), [(0, 0), (3, 3), (3, 9), (3, 255), (1, 0), (5, 3), (2, 1)])
def test_other_versions_are_refused(dialled: bool, low: int, high: int) -> None:
    refusal = DropConn(MIDDLE, 2, "unsupported versions offered")
    steps = say(handshake(dialled), Hello(GREATER, low, high))
    why = f"it offers versions {low} to {high} of the protocol, and we speak 1 and 2"
    assert steps == [SendFrame(pack_greeting(refusal)), Failed(2, why)]


@pytest.mark.parametrize("version", [0, 3, 255])
def test_another_version_selected_is_refused(version: int) -> None:
    refusal = DropConn(MIDDLE, 2, "unsupported version selected")
    for shaking, before in ((handshake(True), []), (handshake(False), [Hello(SMALLER)])):
        steps = say(shaking, *before, VersionSelect(SMALLER, version))
        why = f"it chose version {version} of the protocol, and we offered 1 and 2"
        assert steps == [SendFrame(pack_greeting(refusal)), Failed(2, why)]


@pytest.mark.parametrize("offers", [(1, 1), (1, 2), (0, 255)])
def test_a_peer_that_chooses_the_highest_version_of_both_peers_with_us(offers: tuple[int, int]) -> None:
    """A later endpoint takes the highest that both offer: what we offer has to be what we speak."""
    shaking = handshake(False)
    [hello] = sent(say(shaking, Hello(SMALLER, *offers)))
    assert isinstance(hello, Hello)
    chosen = min(hello.version_max, offers[1])
    say(shaking, VersionSelect(SMALLER, chosen), OriginatorSyn(()), OriginatorAck())
    assert shaking.state is HandshakeState.ESTABLISHED


@pytest.mark.parametrize("sender", [MIDDLE, NOBODY])
def test_ids_that_cannot_be_are_refused(sender: bytes) -> None:
    for shaking, greeting in (
        (handshake(True), Hello(sender)),
        (handshake(True), VersionSelect(sender)),
        (handshake(False), Hello(sender)),
    ):
        [drop] = sent(say(shaking, greeting))
        assert isinstance(drop, DropConn)
        assert drop.code == Code.PEER_INVALID


def test_an_id_stays_the_same() -> None:
    [drop] = sent(say(handshake(False), Hello(SMALLER), VersionSelect(b"\x12" * 16)))
    assert isinstance(drop, DropConn)
    assert drop.code == Code.PEER_INVALID


def test_the_greater_id_does_not_lead() -> None:
    for greeting in (VersionSelect(GREATER), Hello(SMALLER)):
        [failed] = say(handshake(True), greeting)
        assert isinstance(failed, Failed)
        assert failed.code == Code.UNEXPECTED_MESSAGE


# -- several connections ------------------------------------------------------------------------------


def test_the_originator_lets_a_second_connection_wait_until_the_first_stands() -> None:
    peers = PeerTable()
    first, second = handshake(True, peers, 1), handshake(False, peers, 2)
    say(first, Hello(GREATER))
    assert say(second, Hello(GREATER)) == []
    assert second.state is HandshakeState.PAUSED
    steps = say(first, ResponderSynAck(()))
    assert steps[1:] == [Established(GREATER, (), HandshakeRole.ORIGINATOR, 2), Wake((2,))]
    drop = DropConn(MIDDLE, 39, "redundant connection")
    assert second.wake() == [SendFrame(pack_greeting(drop)), Redundant(GREATER)]


def test_a_paused_connection_goes_on_when_the_first_fails() -> None:
    peers = PeerTable()
    first, second, third = (handshake(True, peers, conn) for conn in (1, 2, 3))
    for each in (first, second, third):
        say(each, Hello(GREATER))
    assert first.end("reset") == [Failed(Code.DISCONNECTED, "reset"), Wake((2, 3))]
    assert sent(second.wake()) == [VersionSelect(MIDDLE, 2), OriginatorSyn(())]
    assert third.wake() == []
    assert say(second, ResponderSynAck(()))[-1] == Wake((3,))


def test_a_paused_connection_that_ends_is_not_woken() -> None:
    peers = PeerTable()
    first, second = handshake(True, peers, 1), handshake(True, peers, 2)
    say(first, Hello(GREATER))
    say(second, Hello(GREATER))
    assert isinstance(second.tick(HANDSHAKE_TIMEOUT_S)[0], Failed)
    assert first.end("reset") == [Failed(Code.DISCONNECTED, "reset")]
    assert second.wake() == []


def test_a_connected_peer_makes_a_new_connection_redundant_at_once() -> None:
    peers = PeerTable()
    assert peers.claim(9, GREATER, HandshakeRole.ORIGINATOR) is PeerClaim.PROCEED
    peers.settle(9, GREATER)
    drop = DropConn(MIDDLE, 39, "redundant connection")
    assert say(handshake(True, peers), Hello(GREATER)) == [SendFrame(pack_greeting(drop)), Redundant(GREATER)]
    assert peers.connection(GREATER) == 9


def test_the_responder_refuses_a_second_connection() -> None:
    peers = PeerTable()
    assert peers.claim(9, SMALLER, HandshakeRole.RESPONDER) is PeerClaim.PROCEED
    drop = DropConn(MIDDLE, 40, "detected redundant connection at the responder")
    steps = say(handshake(True, peers), VersionSelect(SMALLER))
    assert steps == [SendFrame(pack_greeting(drop)), Failed(40, drop.reason)]
    assert peers.connection(SMALLER) == 9


def test_a_lost_peer_is_met_again() -> None:
    peers = PeerTable()
    peers.claim(9, SMALLER, HandshakeRole.RESPONDER)
    peers.settle(9, SMALLER)
    peers.release(9, SMALLER)
    assert say(handshake(True, peers), VersionSelect(SMALLER)) == []
    assert peers.status(SMALLER) is PeerStatus.CONNECTING


@given(st.lists(st.integers(0, 1), min_size=1, max_size=6), st.data())
def test_of_any_connections_at_once_exactly_one_stays_and_all_diallers_have_what_they_wanted(
    diallers: list[int], data: st.DataObject
) -> None:
    pair = Pair(Side(SMALLER), Side(GREATER))
    for conn, dialler in enumerate(diallers):
        pair.connect(conn, dialler)
    pair.run(lambda count: data.draw(st.integers(0, count - 1)))
    established = [
        {conn for conn, outcome in side.outcomes.items() if isinstance(outcome, Established)} for side in pair.sides
    ]
    assert established[0] == established[1]
    assert len(established[0]) == 1
    assert [pair.sides[number].peers.connection(pair.sides[1 - number].own) for number in (0, 1)] == [
        *established[0],
        *established[1],
    ]
    for conn, dialler in enumerate(diallers):
        assert isinstance(pair.sides[dialler].outcomes[conn], Established | Redundant)
        assert conn in pair.sides[1 - dialler].outcomes


@given(st.lists(st.integers(0, 1), min_size=2, max_size=5), st.data())
def test_connections_that_break_leave_nobody_waiting(diallers: list[int], data: st.DataObject) -> None:
    pair = Pair(Side(SMALLER), Side(GREATER))
    for conn, dialler in enumerate(diallers):
        pair.connect(conn, dialler)
    to_break = list(data.draw(st.permutations(range(len(diallers)))))
    while ready := pair.ready():
        if bool(to_break) and data.draw(st.booleans()):
            pair.lose(to_break.pop())
        else:
            pair.step(*ready[data.draw(st.integers(0, len(ready) - 1))])
    for side, other in (pair.sides, pair.sides[::-1]):
        assert set(side.outcomes) == set(side.handshakes)
        established = [number for number, outcome in side.outcomes.items() if isinstance(outcome, Established)]
        holder = side.peers.connection(other.own)
        assert established == ([] if holder is None else [holder])
    assert pair.sides[0].peers.connection(GREATER) == pair.sides[1].peers.connection(SMALLER)
