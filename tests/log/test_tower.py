"""A tower against the beacons of original nodes: the same go in, the same come out, and nonsense does not."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.log.guards import guard
from tests.log.vectors import frames_of, load

from chappe.core import Publish, Subscribe
from chappe.defaults import BEACON_TIMEOUT_S, IDENTITY_BEACONS_MAX
from chappe.errors import ProtocolError
from chappe.log import beacon
from chappe.log.beacon import REPLAY_S, TowerCore
from chappe.log.guard import LogRefusal

ONE = [b"B", b"ONE", b"127.0.0.1", b"6000"]
ONE_OUT = Publish((b"B", b"ONE", b"tcp://127.0.0.1:6000"))


def links(group: str, link: str) -> list[list[bytes]]:
    events = load("beacon_tower.json")[group]
    return [frames_of(event) for event in events if event["link"] == link and event["kind"] == "message"]


@pytest.mark.parametrize("group", ["with_address", "without_address"])
def test_it_sends_what_an_original_tower_sent_for_the_same_beacons(group: str) -> None:
    """Without an address the captured machine's own one, 10.77.0.1, was put in."""
    core = TowerCore("10.77.0.1")
    sent = [
        list(action.message)
        for frames in links(group, "node->tower XSUB")
        for action in core.handle_frames(frames, "127.0.0.1", "", 0.0)
        if isinstance(action, Publish)
    ]

    theirs = [frames for frames in links(group, "tower XPUB->node") if frames != [b"W"]]
    assert sorted(sent) == sorted(theirs)


def test_who_subscribes_to_beacons_is_told_what_people_call_the_tower_if_it_wants_to_know() -> None:
    core = TowerCore("127.0.0.1", name="hill")

    assert core.handle_subscription(b"T", True, 0.0) == []  # nobody else has to hear of it
    assert core.handle_subscription(b"B", True, 0.1) == [Subscribe(b"B"), Publish((b"T", b"hill"))]


def test_every_beacon_of_a_real_session_passes() -> None:
    core = TowerCore("127.0.0.1")
    count = 0
    for connection in load("session.json")["connections"]:
        for event in connection["events"]:
            if event["kind"] == "message" and len(event["frames"]) == 4:
                assert len(core.handle_frames(frames_of(event), "127.0.0.1", "", event["t"])) == 1
                count += 1
    assert count == 77


def test_a_beacon_without_a_host_gets_the_one_that_it_came_from() -> None:
    core = TowerCore("192.0.2.1")
    beacon = [b"B", b"ONE", b"", b"6000"]

    for peer, host in (
        ("192.0.2.7", b"192.0.2.7"),
        ("127.0.0.1", b"192.0.2.1"),
        ("::1", b"192.0.2.1"),
        ("", b"192.0.2.1"),
    ):
        assert core.handle_frames(beacon, peer, "", 0.0) == [Publish((b"B", b"ONE", b"tcp://%b:6000" % host))]


def test_a_node_is_counted_until_it_is_silent_or_leaves() -> None:
    core = TowerCore("127.0.0.1")
    core.handle_frames(ONE, "", "", 0.0)
    core.handle_frames([b"B", b"TWO", b"127.0.0.1", b"6001"], "", "", 1.0)

    assert core.nodes(1.0) == 2
    assert core.nodes(BEACON_TIMEOUT_S) == 1
    assert core.handle_frames([b"G", b"TWO", b"127.0.0.1", b"6001"], "", "", 4.5) == [
        Publish((b"G", b"TWO", b"tcp://127.0.0.1:6001"))
    ]
    assert core.nodes(4.5) == 0


def test_a_newcomer_hears_at_once_of_everybody() -> None:
    """An original tower lets it wait for the next beacon of each."""
    core = TowerCore("127.0.0.1")
    core.handle_frames(ONE, "", "", 0.0)

    assert core.handle_subscription(b"B", True, 0.5) == [Subscribe(b"B"), ONE_OUT]


def test_newcomers_that_come_together_share_one_replay() -> None:
    core = TowerCore("127.0.0.1")
    core.handle_frames(ONE, "", "", 0.0)
    core.handle_subscription(b"B", True, 0.5)

    assert core.handle_subscription(b"B", True, 0.51) == [Subscribe(b"B")]
    assert core.handle_subscription(b"B", True, 0.52) == [Subscribe(b"B")]
    assert core.next_timeout() == 0.5 + REPLAY_S
    assert core.handle_timeout(core.next_timeout()) == [ONE_OUT]
    assert core.next_timeout() == math.inf
    assert core.handle_timeout(9.0) == []


def test_the_silent_are_not_replayed() -> None:
    core = TowerCore("127.0.0.1")
    core.handle_frames(ONE, "", "", 0.0)

    assert core.handle_subscription(b"B", True, 60.0) == [Subscribe(b"B")]


def test_subscriptions_to_beacons_are_relayed_and_those_to_the_welcome_are_not() -> None:
    core = TowerCore("127.0.0.1")

    assert core.handle_subscription(b"G", True, 0.0) == [Subscribe(b"G")]
    assert core.handle_subscription(b"B", False, 0.0) == [Subscribe(b"B", False)]
    for on in (True, False):
        assert core.handle_subscription(b"W", on, 0.0) == []


@pytest.mark.parametrize(
    "frames",
    [
        [],
        [b"B"],
        [b"B", b"A", b"h"],
        [b"B", b"A", b"h", b"1", b"more"],
        [b"X", b"A", b"h", b"1"],
        [b"B", b"", b"h", b"1"],
        [b"B", b"A", b"h", b""],
        [b"B", b"A", b"h", b"0"],
        [b"B", b"A", b"h", b"70000"],
        [b"B", b"A", b"h", b"x"],
        [b"B", b"A", b"h\xff", b"1"],
        [b"B", b"A", b"h" * 300, b"1"],
    ],
    ids=str,
)
def test_nonsense_is_not_passed_on(frames: list[bytes]) -> None:
    """An original tower passes all of these on as endpoints."""
    core = TowerCore("127.0.0.1")
    with pytest.raises(ProtocolError):
        core.handle_frames(frames, "", "", 0.0)
    assert core.nodes(0.0) == 0


@given(st.lists(st.binary(max_size=40), max_size=5))
def test_random_frames_are_a_beacon_or_a_protocol_error(frames: list[bytes]) -> None:
    try:
        TowerCore("127.0.0.1").handle_frames(frames, "", "", 0.0)
    except ProtocolError:
        pass


def test_nodes_over_the_bound_are_not_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """An original tower passes on all that it is sent, so that each member dials what one of them has invented."""
    monkeypatch.setattr(beacon, "BEACONS_MAX", 2)
    core = TowerCore("127.0.0.1")
    passed_on = [core.handle_frames([b"B", b"N%d" % n, b"h", b"%d" % (n + 1)], "", "", 0.0) for n in range(5)]

    assert [bool(each) for each in passed_on] == [True, True, False, False, False]
    assert core.nodes(0.0) == 2
    assert core.handle_frames([b"B", b"N1", b"h", b"2"], "", "", 1.0)  # who is known stays so


HUB = [b"B", b"STORE", b"127.0.0.1", b"6000#hub"]


def test_what_a_beacon_says_of_others_is_refused() -> None:
    refused: list[LogRefusal] = []
    core = TowerCore("127.0.0.1", guard(refused))
    assert core.handle_frames(HUB, "", "hub", 0.0)

    for forged in ([b"G", *HUB[1:]], [b"B", b"INVENTED", b"h", b"1#hub"], [b"B", b"INVENTED", b"h", b"1"], HUB):
        assert core.handle_frames(forged, "", "reader", 0.0) == []
    assert core.nodes(0.0) == 1
    assert [str(each) for each in refused] == [
        "reader may not announce: its beacon names hub",
        "reader may not announce: its beacon names hub",
        "reader may not announce: its beacon names nobody",
        "reader may not announce: its beacon names hub",
    ]


def test_who_may_nothing_in_the_log_announces_nothing_and_only_producers_claim_identities() -> None:
    refused: list[LogRefusal] = []
    core = TowerCore("127.0.0.1", guard(refused))

    assert core.handle_frames([b"B", b"ANY", b"h", b"1#idle"], "", "idle", 0.0) == []
    assert core.handle_frames([b"B", b"identity-P", b"h", b"1#reader"], "", "reader", 0.0) == []
    assert [(each.who, each.verb) for each in refused] == [("idle", "consume"), ("reader", "produce")]
    assert core.handle_frames([b"B", b"identity-P", b"h", b"1#sensor"], "", "sensor", 0.0)
    assert core.handle_frames([b"B", b"consuming-C", b"h", b"1#reader"], "", "reader", 0.0)


def test_the_address_of_another_identity_is_not_taken_over() -> None:
    core = TowerCore("127.0.0.1", guard([]))
    core.handle_frames(HUB, "", "hub", 0.0)
    core.handle_frames([b"B", b"STORE", b"h", b"1#reader"], "", "reader", 0.0)
    core.handle_frames([b"G", b"STORE", b"h", b"1#reader"], "", "reader", 0.0)

    assert Publish((b"B", b"STORE", b"tcp://127.0.0.1:6000#hub")) in core.handle_subscription(b"B", True, 0.1)


def test_nodes_of_one_identity_are_bounded() -> None:
    core = TowerCore("127.0.0.1", guard([]))
    for number in range(IDENTITY_BEACONS_MAX + 50):
        core.handle_frames([b"B", b"R%d" % number, b"h", b"%d#reader" % (number + 1)], "", "reader", 0.0)

    assert core.nodes(0.0) == IDENTITY_BEACONS_MAX
    assert core.handle_frames(HUB, "", "hub", 0.0)
    assert core.nodes(BEACON_TIMEOUT_S) == 0
    assert core.handle_frames([b"B", b"LATER", b"h", b"1#reader"], "", "reader", BEACON_TIMEOUT_S)


def test_whose_port_was_taken_over_is_not_replayed() -> None:
    """Originals are given the lowest free port and say no goodbye: it happens whenever one ends and another starts."""
    core = TowerCore("127.0.0.1")
    core.handle_frames([b"B", b"OLD", b"h", b"49152"], "", "", 0.0)
    core.handle_frames([b"B", b"NEW", b"h", b"49152"], "", "", 0.1)
    assert core.nodes(0.1) == 1

    assert core.handle_subscription(b"B", True, 0.2)[1:] == [Publish((b"B", b"NEW", b"tcp://h:49152"))]


def test_a_claim_of_an_identity_is_passed_on_and_does_not_stand_for_its_node() -> None:
    core = TowerCore("h")
    core.handle_frames(ONE, "", "", 0.0)
    claim = [b"B", b"identity-P", *ONE[2:]]
    out = Publish((b"B", b"identity-P", b"tcp://127.0.0.1:6000"))

    assert core.handle_frames(claim, "", "", 0.1) == [out]
    assert core.handle_frames([b"G", *claim[1:]], "", "", 0.2) == [Publish((b"G", *out.message[1:]))]
    assert core.nodes(0.3) == 1
    assert core.handle_subscription(b"B", True, 0.4) == [Subscribe(b"B"), ONE_OUT]
