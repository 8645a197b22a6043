"""Newer permissions travel from neighbour to neighbour."""

from __future__ import annotations

import pytest
from tests.mesh.net_rig import Net
from tests.mesh.rogue_rig import Peer, Rig
from tests.mesh.rules_rig import identity, rules

from chappe.mesh.events import MessagesDropped
from chappe.mesh.forwarding.boxes import Outbox
from chappe.mesh.forwarding.group_keys import SAY_S, SEND_S
from chappe.mesh.messages import PERMISSIONS
from chappe.mesh.rules import MeshRules

VERSION_BYTES, ENVELOPE_BYTES = 8, 40


def made(net: Net, version: int) -> MeshRules:
    return rules(*(identity(name, endpoint=net[at].id) for at, name in enumerate(net.names)), version=version)


def ruled(count: int, links: str, *versions: int) -> Net:
    """Nodes that go by these versions, and take what the authority has signed."""
    net = Net(count)
    net.names = [f"n{number}" for number in range(count)]
    for node, version in zip(net.nodes, versions or [1] * count, strict=True):
        node.signed = {b"version %d" % each: made(net, each) for each in range(5)}
        node.do(node.core.set_rules(made(net, version), node.now))
    for one, two in (each.split("-") for each in links.split()):
        net.link(int(one), int(two))
    return net


def versions(net: Net) -> list[int]:
    found = [node.core.router.rules for node in net.nodes]
    return [each.permissions.version for each in found if each is not None]


def files(net: Net) -> list[tuple[int, int]]:
    return [(one, two) for one, two, body in net.of(PERMISSIONS) if len(body) > ENVELOPE_BYTES + VERSION_BYTES]


def test_what_one_endpoint_knows_all_know_at_once_and_each_gets_the_file_about_once() -> None:
    net = ruled(6, "0-1 1-2 2-3 3-4 4-5 5-0 1-4")
    net.settle()
    net[2].do(net[2].core.set_rules(made(net, 2), net[2].now))
    net.pass_time(0.0)
    assert versions(net) == [2] * 6
    received = [two for _, two in files(net)]
    assert sorted(set(received)) == [0, 1, 3, 4, 5]
    assert len(received) <= 7
    net.check()


@pytest.mark.parametrize("newer", [0, 1])
def test_who_meets_a_newer_one_takes_it(newer: int) -> None:
    net = ruled(2, "0-1", *((3, 1) if newer == 0 else (1, 3)))
    net.pump()
    assert versions(net) == [3, 3]
    assert files(net) == [(newer, 1 - newer)]


def test_what_was_lost_comes_again(monkeypatch: pytest.MonkeyPatch) -> None:
    net = ruled(2, "0-1")
    net.settle()
    monkeypatch.setattr(Outbox, "crowded", True)
    net[0].do(net[0].core.set_rules(made(net, 2), net[0].now))
    net.pass_time(1.0)
    assert versions(net) == [2, 1]
    monkeypatch.undo()
    for _ in range(6):
        net.pass_time(1.0)
    assert versions(net) == [2, 2]


def test_nothing_is_said_without_rules_and_what_is_said_changes_nothing() -> None:
    net = Net(2, [(0, 1)])
    net.pass_time(SAY_S)
    assert net.of(PERMISSIONS) == []
    rig = Rig()
    peer = Peer(rig, b"\x11" * 16)
    peer.take()
    peer.send(peer.plain(PERMISSIONS, payload=bytes(7) + b"\x09"), peer.plain(PERMISSIONS, payload=b"\xff" * 8 + b"x"))
    assert rig.offered == []
    assert peer.take() == []


def test_files_that_the_authority_has_not_signed_are_offered_now_and_then_and_change_nothing() -> None:
    rig = Rig()
    rig.do(rig.core.set_rules(before := rules(identity("a")), rig.now))
    peer = Peer(rig, b"\x11" * 16, key=b"k" * 16, identity="a")
    for number in range(10):
        peer.send(peer.plain(PERMISSIONS, payload=(9).to_bytes(8) + b"forged %d" % number))
    assert rig.offered == [b"forged 0"]
    rig.pass_time(SEND_S)
    peer.send(peer.plain(PERMISSIONS, payload=(1).to_bytes(8) + b"no newer"))
    peer.send(peer.plain(PERMISSIONS, payload=(9).to_bytes(8) + b"forged"))
    assert rig.offered == [b"forged 0", b"forged"]
    assert rig.core.router.rules is before


def test_who_asks_often_gets_the_file_now_and_then() -> None:
    rig = Rig()
    rig.do(rig.core.set_rules(rules(identity("a"), version=7), rig.now))
    peer = Peer(rig, b"\x11" * 16, key=b"k" * 16, identity="a")
    peer.take()
    for _ in range(5):
        peer.send(peer.plain(PERMISSIONS, payload=(3).to_bytes(8)))
    assert [each.payload for each in peer.messages()] == [(7).to_bytes(8) + b"version 7"]


@pytest.mark.parametrize("size", [0, 7, 8 + (1 << 20) + 1])
def test_what_is_cut_off_or_too_large_is_counted(size: int) -> None:
    rig = Rig()
    rig.do(rig.core.set_rules(rules(identity("a")), rig.now))
    peer = Peer(rig, b"\x11" * 16, key=b"k" * 16, identity="a")
    peer.send(peer.plain(PERMISSIONS, payload=b"\xff" * size))
    rig.pass_time(1.0)
    assert rig.offered == []
    assert [each.count for each in rig.events if isinstance(each, MessagesDropped)] == [1]


def test_an_identity_that_was_revoked_is_cut_off_by_all_once_one_knows() -> None:
    net = ruled(4, "0-1 1-2 2-3")
    net.settle()
    names = enumerate(net.names)
    gone = [identity(name, endpoint=net[at].id, revoked=name == "n3") for at, name in names]
    later = rules(*gone, version=2)
    for node in net.nodes:
        node.signed[b"version 2"] = later
    net[0].do(net[0].core.set_rules(later, net[0].now))
    net.pass_time(0.0)
    assert len(net[2].core.router.links) == 1
    assert "n3 was revoked" in "".join(net[2].closed.values())
