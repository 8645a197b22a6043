"""How a node learns of others, against the beacons of original nodes and towers, and how it loses them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.log.effects import Left, Listener, gone
from tests.log.guards import guard
from tests.log.vectors import frames_of, load

from chappe.core import Close, Dial, Effect, Report, Send
from chappe.defaults import (
    BEACON_INTERVAL_S,
    BEACON_TIMEOUT_S,
    BEACONS_MAX,
    DIALS_AT_ONCE,
    DIALS_RATE,
    IDENTITY_BEACONS_MAX,
    STORE_SILENT_S,
)
from chappe.errors import ProtocolError
from chappe.log import beacon
from chappe.log.beacon import BEACON, CONSUMING, PRODUCING, TOWER, Discovery, parse_beacon
from chappe.log.events import IdentityClash, TowerFound, TowerLost

OURS = Send(TOWER, (b"B", b"ME", b"127.0.0.1", b"5000"))
ECHO = [b"B", b"ME", b"tcp://127.0.0.1:5000"]
PEER = [b"B", b"PEER", b"tcp://127.0.0.1:6000"]
ONE = "tcp://127.0.0.1:6000"


def discovery(now: float = 0.0) -> Discovery:
    return Discovery(Listener(), "ME", "127.0.0.1", 5000, now=now)


def found(now: float = 0.0) -> Discovery:
    """One that a tower hears."""
    made = discovery(now)
    made.handle_timeout(now)
    made.handle_frames(ECHO, now)
    return made


def captured(link: str) -> list[list[bytes]]:
    """Frames that passed one link of original nodes and towers."""
    groups: dict[str, Any] = load("beacon_tower.json")
    return [
        frames_of(event)
        for name in ("with_address", "without_address")
        for event in groups[name]
        if event["link"] == link and event["kind"] == "message"
    ]


def test_our_beacon_has_the_form_of_the_original() -> None:
    (theirs,) = [each for each in captured("node->tower XSUB") if each[3] == b"49152" and each[2]]

    made = Discovery(Listener(), theirs[1].decode(), "127.0.0.1", 49152, now=0.0)

    assert made.handle_timeout(0.0) == [Send(TOWER, tuple(theirs))]


def test_what_an_original_tower_sends_is_understood() -> None:
    made = discovery()
    connected = []
    for frames in captured("tower XPUB->node"):
        connected += [each for each in made.handle_frames(frames, 0.0) if isinstance(each, Dial)]

    assert connected[0] == Dial("tcp://127.0.0.1:49153", "944B2BFCD9844E4787AF5507036DEF56")
    assert Dial("tcp://10.77.0.1:49152", "7860B7D4151E4AA3B623DF38CECEB25B") in connected
    assert len(connected) == 7


def test_a_beacon_goes_out_at_once_and_then_every_second() -> None:
    made = discovery()

    assert made.next_timeout() == 0.0
    assert made.handle_timeout(0.0) == [OURS]
    assert made.handle_timeout(0.5) == []
    assert made.next_timeout() == BEACON_INTERVAL_S
    assert made.handle_timeout(BEACON_INTERVAL_S) == [OURS]


def test_a_welcome_and_a_tower_that_listens_are_answered_with_a_beacon() -> None:
    made = discovery()

    assert made.handle_frames([b"W"], 0.1) == [OURS]
    assert made.handle_subscription(BEACON, True, 0.2) == [OURS]


@pytest.mark.parametrize(
    ("said", "name"),
    [("chappe tower@web1", "chappe tower@web1"), ("größe", "größe"), ("\x1b[2J", ""), ("x" * 65, ""), ("", "")],
)
def test_a_tower_says_its_name_and_what_is_none_is_passed_over(said: str, name: str) -> None:
    made = discovery()

    assert made.handle_frames([b"T", said.encode()], 0.1) == []
    assert (made.tower_name, made.heard) == (name, 0)
    assert made.handle_frames([b"T", b"\x1b\xff"], 0.2) == []
    assert made.tower_name == ""


def test_a_new_member_is_connected_and_answered_at_once_but_only_the_first_time() -> None:
    made = discovery()

    assert made.handle_frames(PEER, 0.0) == [Dial(ONE, "PEER"), OURS]
    assert made.handle_frames(PEER, 0.5) == []
    assert made.peers == 1


def test_our_own_beacon_tells_that_a_tower_is_there() -> None:
    made = discovery()
    assert not made.tower

    assert made.handle_frames(ECHO, 0.0) == [Report(TowerFound())]
    assert made.handle_frames(ECHO, 1.0) == []
    assert made.tower
    assert made.peers == 0


def run(made: Discovery, start: float, end: float, *, heard: list[list[bytes]]) -> list[Effect]:
    """Let time pass second by second, with these beacons in each; returns everything but beacons."""
    actions: list[Effect] = []
    now = start
    while now <= end:
        actions += made.handle_timeout(now)
        for frames in heard:
            actions += made.handle_frames(frames, now)
        now += BEACON_INTERVAL_S
    return [each for each in actions if not isinstance(each, Send)]


def test_a_silent_member_is_disconnected() -> None:
    made = found()
    made.handle_frames(PEER, 0.0)

    assert run(made, 1.0, BEACON_TIMEOUT_S - 0.5, heard=[ECHO]) == []
    assert run(made, BEACON_TIMEOUT_S, 10.0, heard=[ECHO]) == [Close(ONE), gone("PEER")]
    assert made.peers == 0


def test_members_stay_connected_while_no_tower_is_heard() -> None:
    """The original drops everybody four seconds after its tower."""
    made = found()
    made.handle_frames(PEER, 0.0)

    assert run(made, 1.0, 60.0, heard=[]) == [Report(TowerLost())]
    assert made.peers == 1


def test_when_the_tower_is_back_members_get_time_to_be_heard_again() -> None:
    made = found()
    made.handle_frames(PEER, 0.0)
    run(made, 1.0, 60.0, heard=[])

    assert run(made, 61.0, 63.0, heard=[ECHO]) == [Report(TowerFound())]
    assert run(made, 64.0, 80.0, heard=[ECHO, PEER]) == []
    assert made.peers == 1


def test_a_member_that_died_with_the_tower_goes_once_the_tower_is_back() -> None:
    made = found()
    made.handle_frames(PEER, 0.0)
    run(made, 1.0, 60.0, heard=[])

    assert run(made, 61.0, 70.0, heard=[ECHO]) == [Report(TowerFound()), Close(ONE), gone("PEER")]


def test_a_former_owner_of_our_port_is_not_listened_to() -> None:
    made = discovery()
    assert made.handle_frames([b"B", b"OLD", ECHO[2]], 0.0) == []
    assert made.peers == 0


def test_a_port_taken_over_by_another_member_counts_as_new() -> None:
    """The original keeps such a newcomer waiting for up to a second."""
    made = discovery()
    made.handle_frames(PEER, 0.0)

    assert made.handle_frames([b"B", b"NEW", PEER[2]], 0.1) == [
        gone("PEER"),
        Dial(ONE, "NEW"),
        OURS,
    ]


def test_a_goodbye_disconnects_at_once() -> None:
    made = discovery()
    made.handle_frames(PEER, 0.0)

    assert made.handle_frames([b"G", *PEER[1:]], 0.1) == [Close(ONE), gone("PEER")]
    assert made.handle_frames([b"G", *PEER[1:]], 0.2) == []


def test_a_goodbye_of_the_former_owner_of_a_port_does_not_touch_the_new_one() -> None:
    made = discovery()
    made.handle_frames([b"B", b"NEW", PEER[2]], 0.0)

    assert made.handle_frames([b"G", b"PEER", PEER[2]], 0.1) == []
    assert made.peers == 1


def test_our_goodbye_names_us() -> None:
    assert discovery().goodbye() == [Send(TOWER, (b"G", *OURS.message[1:]))]


CLASH = [b"B", b"identity-P", b"tcp://127.0.0.1:7000"]


def claiming(now: float = 0.0) -> Discovery:
    made = discovery(now)
    assert made.claim("P", now) == [Send(TOWER, (b"B", b"identity-P", *OURS.message[2:]))]
    return made


def test_a_claim_is_repeated_with_the_beacon_until_it_is_taken_back() -> None:
    made = claiming()
    claim = Send(TOWER, (b"B", b"identity-P", *OURS.message[2:]))

    assert made.handle_timeout(0.0) == [OURS, claim]
    assert made.goodbye() == [Send(TOWER, (b"G", *each.message[1:])) for each in (OURS, claim)]
    assert made.disclaim("P") == [Send(TOWER, (b"G", *claim.message[1:]))]
    assert made.handle_timeout(1.0) == [OURS]


def test_one_claim_of_our_former_life_is_no_clash() -> None:
    made = claiming()

    assert made.handle_frames(CLASH, 0.0) == []
    assert made.handle_frames(CLASH, 0.1) == []


def test_whoever_claims_our_identity_is_reported_once() -> None:
    made = claiming()
    made.handle_frames(CLASH, 0.0)

    assert made.handle_frames(CLASH, 1.0) == [Report(IdentityClash("P", "tcp://127.0.0.1:7000"))]
    assert made.handle_frames(CLASH, 2.0) == []


def test_claims_of_others_and_the_echo_of_ours_are_nothing_to_us() -> None:
    made = claiming()
    for now in (0.0, 1.0, 2.0):
        assert made.handle_frames([b"B", b"identity-OTHER", CLASH[2]], now) == []
        assert made.handle_frames([b"B", b"identity-P", ECHO[2]], now) == []
        assert made.handle_frames([b"G", *CLASH[1:]], now) == []
    assert made.peers == 0
    assert not made.tower


def test_the_newcomer_gives_way_in_a_clash() -> None:
    made = claiming(now=100.0)

    assert made.newcomer("P", 101.0)
    assert not made.newcomer("P", 100.0 + 2 * BEACON_TIMEOUT_S)
    assert not made.newcomer("OTHER", 101.0)


@pytest.mark.parametrize("kind", [PRODUCING, CONSUMING])
def test_nodes_that_do_the_same_do_not_connect(kind: str) -> None:
    made = Discovery(Listener(), kind + "ME", "127.0.0.1", 5000, now=0.0)
    same = [b"B", kind.encode() + b"PEER", PEER[2]]

    assert made.handle_frames(same, 0.0) == []
    assert made.peers == 1
    assert made.handle_frames([b"G", *same[1:]], 0.1) == []
    assert made.peers == 0
    other = CONSUMING if kind == PRODUCING else PRODUCING
    for number, address in enumerate((other + "PEER", "PEER")):
        endpoint = f"tcp://127.0.0.1:{6001 + number}"
        assert made.handle_frames([b"B", address.encode(), endpoint.encode()], 0.2)[0] == Dial(endpoint, address)


def test_a_port_taken_over_by_a_node_of_another_kind_is_connected_to_as_that_one() -> None:
    made = Discovery(Listener(), PRODUCING + "ME", "127.0.0.1", 5000, now=0.0)
    same, other = PRODUCING + "A", CONSUMING + "B"

    assert made.handle_frames([b"B", same.encode(), PEER[2]], 0.0) == []
    assert made.handle_frames([b"B", other.encode(), PEER[2]], 0.1)[0] == Dial(ONE, other)
    assert made.handle_frames([b"B", same.encode(), PEER[2]], 0.2) == [Close(ONE), gone(other)]
    assert made.handle_frames([b"B", same.encode() + b"2", PEER[2]], 0.3) == []


def test_members_over_the_bound_are_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(beacon, "BEACONS_MAX", 3)
    made = discovery()
    for port in range(6000, 6010):
        made.handle_frames([b"B", b"P%d" % port, b"tcp://127.0.0.1:%d" % port], 0.0)

    assert made.peers == 3
    assert BEACONS_MAX == 10_000


def named(name: str, address: str, port: int, kind: bytes = b"B") -> list[bytes]:
    return [kind, address.encode(), f"tcp://127.0.0.1:{port}#{name}".encode()]


def with_keys() -> Discovery:
    return Discovery(Listener(), "ME", "127.0.0.1", "5000#hub", now=0.0, guard=guard([]))


def test_only_identities_that_may_do_so_are_met() -> None:
    made = with_keys()

    assert made.handle_frames(PEER, 0.0) == []
    assert made.handle_frames(named("stranger", "STORE", 6000), 0.0) == []
    assert made.handle_frames(named("idle", "STORE", 6000), 0.0) == []
    assert made.handle_frames(named("hub", "STORE", 6000), 0.0)[0] == Dial("tcp://127.0.0.1:6000#hub", "STORE")
    assert made.handle_frames(named("sensor", PRODUCING + "P", 6001), 0.0)[0] == Dial(
        "tcp://127.0.0.1:6001#sensor", PRODUCING + "P"
    )


def test_only_who_may_produce_claims_an_identity() -> None:
    made = with_keys()
    made.claim("P", 0.0)

    for now in (0.0, 1.0, 2.0):
        assert made.handle_frames(named("reader", "identity-P", 7000), now) == []
    assert made.handle_frames(named("sensor", "identity-P", 7000), 3.0) == []
    assert made.handle_frames(named("sensor", "identity-P", 7000), 4.0) == [
        Report(IdentityClash("P", "tcp://127.0.0.1:7000#sensor"))
    ]


def test_members_of_one_identity_are_bounded_and_others_are_met_all_the_same() -> None:
    made = with_keys()
    for port in range(1, IDENTITY_BEACONS_MAX + 100):
        made.handle_frames(named("reader", f"R{port}", port), 0.0)

    assert made.peers == IDENTITY_BEACONS_MAX
    made.handle_frames(named("hub", "STORE", 6000), 0.0)
    assert made.peers == IDENTITY_BEACONS_MAX + 1
    made.handle_frames(named("reader", "R1", 1, b"G"), 0.0)
    made.handle_frames(named("reader", "ANOTHER", 60_000), 0.0)
    assert made.peers == IDENTITY_BEACONS_MAX + 1


def test_an_address_is_gone_when_no_member_has_it_any_more() -> None:
    """Who has another endpoint announce the address of a member cannot have it forgotten."""
    made = with_keys()
    made.handle_frames(named("hub", "STORE", 6000), 0.0)
    made.handle_frames(named("reader", "STORE", 6001), 0.0)

    assert made.handle_frames(named("reader", "STORE", 6001, b"G"), 0.1) == [Close("tcp://127.0.0.1:6001#reader")]
    assert made.handle_frames(named("hub", "STORE", 6000, b"G"), 0.2) == [
        Close("tcp://127.0.0.1:6000#hub"),
        gone("STORE"),
    ]


def test_new_members_are_dialled_and_answered_at_a_bounded_rate() -> None:
    made = found()
    actions: list[Effect] = []
    for port in range(1, DIALS_AT_ONCE + 501):
        actions += made.handle_frames([b"B", b"P%d" % port, b"tcp://127.0.0.2:%d" % port], 0.0)

    assert sum(isinstance(each, Dial) for each in actions) == DIALS_AT_ONCE
    assert sum(isinstance(each, Send) for each in actions) == DIALS_AT_ONCE
    later: list[Effect] = []
    while (now := made.next_timeout()) <= 1.0:
        later += made.handle_timeout(now)
    dialled = [each for each in later if isinstance(each, Dial)]
    assert DIALS_RATE * 0.9 <= len(dialled) <= DIALS_RATE
    assert dialled[0] == Dial(f"tcp://127.0.0.2:{DIALS_AT_ONCE + 1}", f"P{DIALS_AT_ONCE + 1}")
    assert sum(isinstance(each, Send) for each in later) <= 25


def test_a_member_that_was_not_dialled_yet_leaves_without_a_trace() -> None:
    made = found()
    for port in range(1, DIALS_AT_ONCE + 2):
        made.handle_frames([b"B", b"P%d" % port, b"tcp://127.0.0.2:%d" % port], 0.0)
    last = [b"G", b"P%d" % port, b"tcp://127.0.0.2:%d" % port]

    assert made.handle_frames(last, 0.0) == []
    made.handle_timeout(0.0)
    assert [each for each in made.handle_timeout(0.9) if isinstance(each, Dial)] == []


def test_a_waiting_member_whose_port_is_taken_over_is_dialled_as_the_new_one() -> None:
    made = found()
    for port in range(1, DIALS_AT_ONCE + 2):
        made.handle_frames([b"B", b"P%d" % port, b"tcp://127.0.0.2:%d" % port], 0.0)

    assert made.handle_frames([b"B", b"NEW", b"tcp://127.0.0.2:%d" % port], 0.0) == []
    assert [each for each in made.handle_timeout(0.9) if isinstance(each, Dial)] == [
        Dial(f"tcp://127.0.0.2:{port}", "NEW")
    ]


@pytest.mark.parametrize(
    "frames",
    [
        [],
        [b""],
        [b"X"],
        [b"B"],
        [b"W", b"W"],
        [b"B", b"A"],
        [b"B", b"A", b"tcp://h:1", b"more"],
        [b"X", b"A", b"tcp://h:1"],
        [b"B", b"", b"tcp://h:1"],
        [b"B", b"A" * 256, b"tcp://h:1"],
        [b"B", b"A", b""],
        [b"B", b"A", b"tcp://h"],
        [b"B", b"A", b"tcp://:1"],
        [b"B", b"A", b"tcp://h:0"],
        [b"B", b"A", b"tcp://h:70000"],
        [b"B", b"A", b"tcp://h:-1"],
        [b"B", b"A", b"tcp://h:1\xff"],
        [b"B", b"A", b"udp://h:1"],
        [b"B", b"A", b"tcp://" + b"h" * 250 + b":1"],
        [b"B", b"A", b"tcp://h\0h:1"],
        [b"B", b"A", b"tcp://0.0.0.0:1"],
        [b"B", b"A", b"inproc://x"],
        [b"B", b"A", b"ipc:///tmp/x"],
    ],
    ids=str,
)
def test_what_is_no_beacon_is_refused(frames: list[bytes]) -> None:
    with pytest.raises(ProtocolError):
        discovery().handle_frames(frames, 0.0)


@given(st.lists(st.binary(max_size=40), max_size=5))
def test_random_frames_are_a_beacon_or_a_protocol_error(frames: list[bytes]) -> None:
    try:
        discovery().handle_frames(frames, 0.0)
    except ProtocolError:
        pass


@given(st.sampled_from([b"B", b"G"]), st.binary(max_size=20), st.binary(max_size=30))
def test_random_endpoints_are_an_endpoint_or_a_protocol_error(kind: bytes, address: bytes, rest: bytes) -> None:
    for prefix in (b"", b"tcp://", b"tcp://127.0.0.1:"):
        try:
            parse_beacon([kind, address, prefix + rest])
        except ProtocolError:
            pass


def lost(made: Discovery, until: float) -> list[str]:
    """The members that are found gone until then, as far as no connection to them ends."""
    actions: list[Effect] = []
    while made.next_timeout() <= until:
        actions += made.handle_timeout(made.next_timeout())
    return [each.event.address for each in actions if isinstance(each, Report) and isinstance(each.event, Left)]


def test_a_store_that_no_beacon_names_is_gone_once_it_no_longer_says_who_it_is() -> None:
    made = found()
    made.store_heard("STORE", 0.0)
    made.store_heard("STORE", 5.0)
    assert lost(made, 5.0 + STORE_SILENT_S - 0.1) == []
    assert lost(made, 5.0 + STORE_SILENT_S) == ["STORE"]
    assert lost(made, 100.0) == []


def test_of_a_store_that_a_beacon_names_the_beacons_alone_tell_whether_it_is_there() -> None:
    made = found()
    made.store_heard("PEER", 0.0)
    made.handle_frames(PEER, 1.0)
    made.store_heard("PEER", 2.0)
    assert lost(made, 100.0) == []


def test_stores_that_no_beacon_names_are_bounded() -> None:
    made = found()
    for number in range(BEACONS_MAX + 1):
        made.store_heard(f"{number}", 0.0)
    assert len(lost(made, STORE_SILENT_S)) == BEACONS_MAX
