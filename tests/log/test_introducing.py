"""A forwarder as a tower that makes itself known alone: fed the beacons of original nodes, it meets all of them."""

from __future__ import annotations

import pytest
from tests.log.effects import Listener, gone
from tests.log.vectors import frames_of, load

from chappe.core import Close, Dial, Effect, Send
from chappe.defaults import BEACON_INTERVAL_S, BEACON_TIMEOUT_S
from chappe.errors import ProtocolError
from chappe.log.beacon import REPLAY_S, TOWER
from chappe.log.introducing import Forwarders, Introducer

OURS = Send(TOWER, (b"B", b"FORWARDER", b"tcp://127.0.0.1:5561"))
ONE = [b"B", b"ONE", b"127.0.0.1", b"49152"]
AT_ONE = "tcp://127.0.0.1:49152"


@pytest.fixture
def core() -> Introducer:
    return Introducer(Listener(), "FORWARDER", "127.0.0.1", 5561, Forwarders(Listener(), [], now=0.0), now=0.0)


def beacons(actions: list[Effect]) -> int:
    assert all(each == OURS for each in actions if isinstance(each, Send))
    return sum(isinstance(each, Send) for each in actions)


def pass_time(core: Introducer, since: float, until: float, *, hearing: bool = False) -> list[Effect]:
    found: list[Effect] = []
    now = since
    while (now := max(now, core.next_timeout())) <= until:
        if hearing:
            core.handle_frames(ONE, "127.0.0.1", now)
        found += core.handle_timeout(now)
    return found


def test_it_says_who_it_is_once_a_second(core: Introducer) -> None:
    assert beacons(pass_time(core, 0.0, 10.0)) == 11


def test_a_program_that_subscribes_is_told_at_once_and_many_are_told_together(core: Introducer) -> None:
    core.handle_timeout(0.0)
    assert core.handle_subscription(b"W", True, 0.3) == []
    assert core.handle_subscription(b"B", False, 0.3) == []
    assert core.handle_subscription(b"B", True, 0.3) == [OURS]
    assert core.handle_subscription(b"B", True, 0.31) == []
    assert core.next_timeout() == 0.3 + REPLAY_S
    assert core.handle_timeout(0.3 + REPLAY_S) == [OURS]
    assert core.next_timeout() > 0.3 + REPLAY_S


def test_a_program_without_keys_cannot_name_an_identity(core: Introducer) -> None:
    with pytest.raises(ProtocolError, match="without its key"):
        core.handle_frames([b"B", b"ONE", b"127.0.0.1", b"49152#hub"], "127.0.0.1", 0.0)
    assert core.peers == 0


def test_who_beacons_is_listened_to_and_answered_at_once(core: Introducer) -> None:
    core.handle_timeout(0.0)
    assert core.handle_frames(ONE, "127.0.0.1", 0.5) == [Dial(AT_ONE, "ONE"), OURS]
    assert core.handle_frames(ONE, "127.0.0.1", 1.0) == []
    assert core.peers == 1


def test_who_takes_over_an_endpoint_is_somebody_else(core: Introducer) -> None:
    core.handle_frames(ONE, "", 0.5)
    assert core.handle_frames([b"B", b"TWO", *ONE[2:]], "", 1.0)[:2] == [gone("ONE"), Dial(AT_ONE, "TWO")]


def test_who_is_silent_or_says_goodbye_is_let_go(core: Introducer) -> None:
    core.handle_frames(ONE, "", 0.0)
    assert not [each for each in pass_time(core, 0.0, 20.0, hearing=True) if isinstance(each, Close)]
    found = pass_time(core, 20.0, 20.0 + BEACON_TIMEOUT_S + 2 * BEACON_INTERVAL_S)
    assert [each for each in found if not isinstance(each, Send)] == [Close(AT_ONE), gone("ONE")]
    core.handle_frames(ONE, "", 30.0)
    assert core.handle_frames([b"G", *ONE[1:]], "", 31.0) == [Close(AT_ONE), gone("ONE")]
    assert core.peers == 0
    assert core.goodbye() == [Send(TOWER, (b"G", *OURS.message[1:]))]


def test_a_beacon_without_a_host_gets_the_one_that_it_came_from(core: Introducer) -> None:
    for peer, host in (("192.0.2.7", "192.0.2.7"), ("127.0.0.1", "127.0.0.1"), ("", "127.0.0.1")):
        actions = core.handle_frames([b"B", host.encode() + peer.encode(), b"", b"6000"], peer, 1.0)
        assert any(isinstance(each, Dial) and each.link == f"tcp://{host}:6000" for each in actions)


def test_every_beacon_of_a_real_session_is_met(core: Introducer) -> None:
    met = set()
    for connection in load("session.json")["connections"]:
        for event in connection["events"]:
            if event["kind"] == "message" and len(event["frames"]) == 4:
                for each in core.handle_frames(frames_of(event), "127.0.0.1", event["t"]):
                    if isinstance(each, Dial):
                        met.add(each.link)
    assert len(met) == core.peers > 3


@pytest.mark.parametrize("frames", [[], [b"B"], [b"B", b"ONE", b"h"], [b"X", *ONE[1:]], [b"B", b"", *ONE[2:]],
                                    [b"B", b"ONE", b"h", b"99999999"]])  # fmt: skip
def test_what_is_no_beacon_is_refused(core: Introducer, frames: list[bytes]) -> None:
    with pytest.raises(ProtocolError):
        core.handle_frames(frames, "127.0.0.1", 0.0)
