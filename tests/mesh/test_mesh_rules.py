"""Who may take part in a mesh at all, by the permissions in force."""

from __future__ import annotations

from datetime import timedelta

import pytest
from tests.mesh.rogue_rig import Peer, Rig
from tests.mesh.rules_rig import LATER, NOW, identity, permissions, rules

from chappe.mesh.events import PeerAdded, PeerRefused, PeerRemoved, RefusedByPeer
from chappe.mesh.forwarding.judging import Refusal, Refusals
from chappe.mesh.links.greetings import Code, DropConn, Hello, pack_greeting, parse_greeting
from chappe.mesh.rules import MeshRules

SMALLER, GREATER = b"\x11" * 16, b"\xee" * 16  # ids that lead the handshake, or do not
KEY, OTHER = b"k" * 16, b"o" * 16
both_roles = pytest.mark.parametrize("id", [SMALLER, GREATER])


def is_admitted(peer: Peer) -> bool:
    return peer.conn not in peer.rig.closed and any(
        each.established_at is not None for each in peer.rig.core.links.values() if each.conn == peer.conn
    )


def rig_with(made: MeshRules) -> Rig:
    rig = Rig()
    rig.do(rig.core.set_rules(made, rig.now))
    return rig


def told(peer: Peer) -> str:
    drop = parse_greeting(peer.heard[-1])
    assert isinstance(drop, DropConn)
    assert drop.code == Code.PEER_UNAVAILABLE  # it tries again: other permissions may be in force then
    return drop.reason


@both_roles
@pytest.mark.parametrize("chappe", [True, False])
def test_an_identity_in_force_is_admitted(id: bytes, chappe: bool) -> None:
    rig = rig_with(rules(identity("sensor")))
    assert is_admitted(Peer(rig, id, chappe=chappe, key=KEY, identity="sensor"))
    assert rig.core.router.refusals.total == 0


REFUSED = {
    "revoked": ("sensor", "sensor was revoked on 2026-11-24"),
    "expired": ("old", "old expired on 2026-11-24"),
    "unknown": ("nobody", "the permissions know no identity nobody"),
    "nameless": ("", "its certificate names no identity"),
    "elsewhere": (
        "fixed",
        "the endpoint id of fixed is 77777777-7777-7777-7777-777777777777, and its certificate names none",
    ),
}


@both_roles
@pytest.mark.parametrize("chappe", [True, False])
@pytest.mark.parametrize("case", REFUSED)
def test_who_may_not_take_part_is_refused_and_told_why(case: str, id: bytes, chappe: bool) -> None:
    name, why = REFUSED[case]
    known = identity("sensor", revoked=True), identity("old", expires=NOW), identity("fixed", endpoint=b"w" * 16)
    rig = rig_with(rules(*known))

    rogues = [Peer(rig, id, chappe=chappe, key=KEY, identity=name) for _ in range(3)]

    assert not any(map(is_admitted, rogues))
    assert told(rogues[0]) == why
    [refused] = rig.events
    assert isinstance(refused, PeerRefused)
    assert (refused.peer_id, refused.reason) == (id, why)
    assert rig.core.router.refusals.listed() == [Refusal(name, "join", 3)]


def test_a_certificate_that_names_the_endpoint_of_its_identity_is_admitted() -> None:
    rig = rig_with(rules(identity("fixed", endpoint=SMALLER)))
    assert is_admitted(Peer(rig, SMALLER, key=KEY, named=(SMALLER,), identity="fixed"))


def test_nobody_takes_part_by_permissions_that_are_not_in_force() -> None:
    peer = Peer(rig_with(rules(identity("sensor"), at=LATER)), SMALLER, key=KEY, identity="sensor")
    assert not is_admitted(peer)
    assert told(peer) == "the permissions expired on 2027-03-04: sign them again"
    early = rules(identity("sensor"), at=NOW - timedelta(hours=2))
    assert "compare the clocks" in told(Peer(rig_with(early), SMALLER, key=KEY, identity="sensor"))


@both_roles
def test_other_rules_cut_the_links_of_who_may_not_take_part_by_them(id: bytes) -> None:
    rig = rig_with(rules(identity("sensor"), identity("hub")))
    peer, hub = Peer(rig, id, key=KEY, identity="sensor"), Peer(rig, b"\x99" * 16, key=OTHER, identity="hub")

    rig.do(rig.core.set_rules(rules(identity("sensor", revoked=True), identity("hub")), rig.now))

    assert rig.closed[peer.conn] == "sensor was revoked on 2026-11-24"
    assert is_admitted(hub)
    ended = [each for each in rig.events if isinstance(each, PeerRemoved)]
    assert [(each.peer_id, each.reason) for each in ended] == [(id, "sensor was revoked on 2026-11-24")]
    assert told(Peer(rig, id, key=KEY, identity="sensor")) == "sensor was revoked on 2026-11-24"
    assert rig.core.router.refusals.listed() == [Refusal("sensor", "join", 2)]
    assert rig.core.invariants() == []


def test_a_connection_whose_handshake_is_not_complete_is_refused_at_its_end() -> None:
    rig = rig_with(rules(identity("sensor")))
    conn = rig.open()
    rig.core.secured(conn, KEY, (), "sensor")
    rig.do(rig.core.handle_frames(conn, [pack_greeting(Hello(GREATER, 1, 2))[4:]], rig.now))
    rig.do(rig.core.set_rules(rules(identity("sensor", revoked=True)), rig.now))
    assert conn not in rig.closed

    rig.do(rig.core.handle_frames(conn, [b"\x0b\x00"], rig.now))

    assert "revoked" in rig.closed[conn]


def test_who_was_refused_is_admitted_once_the_rules_say_so_and_refused_again_is_told_again() -> None:
    rig = rig_with(rules(identity("sensor", revoked=True)))
    Peer(rig, SMALLER, key=KEY, identity="sensor")
    rig.do(rig.core.set_rules(rules(identity("sensor")), rig.now))
    assert is_admitted(Peer(rig, SMALLER, key=KEY, identity="sensor"))
    rig.do(rig.core.set_rules(rules(identity("sensor", revoked=True)), rig.now))
    Peer(rig, SMALLER, key=KEY, identity="sensor")
    assert [type(each) for each in rig.events if isinstance(each, PeerRefused | PeerAdded)] == [
        PeerRefused,
        PeerAdded,
        PeerRefused,
    ]


def test_without_rules_nobody_is_asked_who_he_is() -> None:
    rig = Rig()
    assert is_admitted(Peer(rig, SMALLER, key=KEY))
    rig.do(rig.core.set_rules(None, rig.now))
    assert is_admitted(Peer(rig, GREATER, key=OTHER))


def test_who_is_dialled_by_one_that_refuses_it_is_told_so_once() -> None:
    rig = Rig()
    for _ in range(3):
        conn = rig.open()
        drop = DropConn(GREATER, Code.PEER_UNAVAILABLE, "sensor was revoked")
        frames = [pack_greeting(each)[4:] for each in (Hello(GREATER, 1, 2), drop)]
        rig.do(rig.core.handle_frames(conn, frames, rig.now))
    [event] = rig.events
    assert isinstance(event, RefusedByPeer)
    assert str(event).startswith("was refused by eeeeeeee-eeee-eeee-eeee-eeeeeeeeeeee at 127.0.0.1:1: the peer refused")


def test_counts_have_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chappe.mesh.forwarding.judging.REFUSALS_MAX", 2)
    made = Refusals()
    for name in ("a", "b", "c", "d", "a"):
        made.add(name, "join")
    assert made.listed() == [Refusal("", "join", 2), Refusal("a", "join", 2), Refusal("b", "join", 1)]
    assert made.total == 5


def test_the_moment_decides() -> None:
    assert MeshRules(permissions(identity("a", expires=LATER)), NOW).refusal("a") == ""
    assert MeshRules(permissions(identity("a", expires=NOW)), NOW).refusal("a") == "a expired on 2026-11-24"
