"""Keys of groups travel from neighbour to neighbour: here a file is numbers, and three of them are sent at a time."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.mesh.net_rig import Net
from tests.mesh.rogue_rig import Peer, Rig
from tests.mesh.rules_rig import identity, rules

from chappe.errors import ProtocolError
from chappe.mesh.events import MessagesDropped
from chappe.mesh.forwarding.boxes import Outbox
from chappe.mesh.forwarding.group_keys import (
    OFFERS_MAX,
    SAY_S,
    SEND_S,
    SENT_BYTES_MAX,
    KeysHere,
    pack_lines,
    pack_versions,
    parse_keys,
)
from chappe.mesh.messages import ENVELOPE_BYTES, GROUP_KEYS, PERMISSIONS, RESERVED_TOPIC
from chappe.permissions.text import FILE_BYTES_MAX, GROUPS_MAX

PIECE = 3
PAYLOAD_AT = ENVELOPE_BYTES + len(RESERVED_TOPIC)


class Keys:
    """The files of a rig."""

    def __init__(self, rig: Rig, mine: str = "ward", **versions: int) -> None:
        self.rig = rig
        self.mine = frozenset(mine.split())
        self.versions = versions
        self.say()

    def say(self) -> None:
        rig = self.rig
        rig.do(rig.core.set_keys(KeysHere(dict(self.versions), self.mine, self.after), rig.now))

    def after(self, group: str, version: int) -> bytes:
        end = min(self.versions.get(group, 0), version + PIECE)
        return b"%d-%d" % (version, end) if version < end else b""

    def take(self, group: str, raw: bytes) -> None:
        begin, end = map(int, raw.split(b"-"))
        if begin <= self.versions[group] < end:
            self.versions[group] = end
            self.say()


def with_keys(links: str, *versions: int, leaves: tuple[int, ...] = (), outside: tuple[int, ...] = ()) -> Any:
    """A net, and the keys of each node: those outside do not belong to the group, leaves forward nothing."""
    net = Net(len(versions), leaves=leaves)
    net.names = [f"n{number}" for number in range(len(versions))]
    ruled = rules(*(identity(name, endpoint=net[at].id) for at, name in enumerate(net.names)))
    files = []
    for node, version in zip(net.nodes, versions, strict=True):
        node.do(node.core.set_rules(ruled, node.now))
        keys = Keys(node, "" if node.number in outside else "ward", ward=version)
        node.take_keys = keys.take  # type: ignore[method-assign]
        files.append(keys)
    for one, two in (each.split("-") for each in links.split()):
        net.link(int(one), int(two))
    return net, files


def versions(files: list[Keys]) -> list[int]:
    return [each.versions["ward"] for each in files]


def lines(net: Net) -> list[tuple[int, int]]:
    return [(one, two) for one, two, body in net.of(GROUP_KEYS) if body[PAYLOAD_AT] == 1]


def test_what_one_endpoint_has_all_have_at_once_and_each_gets_it_about_once() -> None:
    net, files = with_keys("0-1 1-2 2-3 3-4 4-5 5-0 1-4", *[1] * 6)
    net.settle()
    files[2].versions["ward"] = 2
    files[2].say()
    net.pass_time(0.0)
    assert versions(files) == [2] * 6
    received = [two for _, two in lines(net)]
    assert sorted(set(received)) == [0, 1, 3, 4, 5]
    assert len(received) <= 8
    net.check()
    net.crossed.clear()
    net.pass_time(SAY_S)
    assert lines(net) == []


@pytest.mark.parametrize("newer", [0, 1])
def test_who_was_away_gets_all_that_it_lacks_in_pieces(newer: int) -> None:
    net, files = with_keys("0-1", *((20, 0) if newer == 0 else (0, 20)))
    net.pump()
    assert versions(files) == [20, 20]
    assert set(lines(net)) == {(newer, 1 - newer)}
    assert len(lines(net)) == 7
    net.check()


def test_forwarders_have_all_groups_and_others_those_to_which_they_belong() -> None:
    net, files = with_keys("0-1 1-2 1-3", 2, 1, 1, 1, leaves=(0, 2, 3), outside=(0, 1, 3))
    net.settle()
    net.pass_time(SAY_S)
    assert versions(files) == [2, 2, 2, 1]
    files[3].versions["ward"] = 4  # it does not say so, and answers who says an older one
    files[3].say()
    net.pass_time(SAY_S)
    assert versions(files) == [2, 4, 4, 4]


def test_what_was_lost_comes_again(monkeypatch: pytest.MonkeyPatch) -> None:
    net, files = with_keys("0-1", 1, 1)
    net.settle()
    monkeypatch.setattr(Outbox, "crowded", True)
    files[0].versions["ward"] = 2
    files[0].say()
    net.pass_time(1.0)
    assert versions(files) == [2, 1]
    monkeypatch.undo()
    for _ in range(6):
        net.pass_time(1.0)
    assert versions(files) == [2, 2]


def met(**versions: int) -> tuple[Rig, Peer, Keys]:
    """A rig with keys, and a peer that has permissions."""
    rig = Rig()
    rig.do(rig.core.set_rules(rules(identity("a")), rig.now))
    keys = Keys(rig, "ward", **versions)
    peer = Peer(rig, b"\x11" * 16, key=b"k" * 16, identity="a")
    peer.take()
    peer.send(peer.plain(PERMISSIONS, payload=(1).to_bytes(8)))
    return rig, peer, keys


def said(peer: Peer) -> list[Any]:
    return [parse_keys(each.payload) for each in peer.messages() if each.kind == GROUP_KEYS]


def test_nothing_is_said_to_who_has_said_nothing_of_permissions_nor_taken_from_it() -> None:
    rig = Rig()
    rig.do(rig.core.set_rules(rules(identity("a")), rig.now))
    Keys(rig, ward=5)
    peer = Peer(rig, b"\x11" * 16, key=b"k" * 16, identity="a")
    peer.send(peer.plain(GROUP_KEYS, payload=pack_versions([("ward", 1)])))
    peer.send(peer.plain(GROUP_KEYS, payload=pack_lines("ward", b"5-6")))
    rig.pass_time(SAY_S)
    assert said(peer) == []
    assert rig.offered_keys == []
    peer.send(peer.plain(PERMISSIONS, payload=(1).to_bytes(8)))
    assert said(peer) == [{"ward": 5}]


def test_who_asks_the_same_often_gets_it_now_and_then() -> None:
    rig, peer, _ = met(ward=9)
    said(peer)
    for version in (3, 3, 3, 6, 6, 3):
        peer.send(peer.plain(GROUP_KEYS, payload=pack_versions([("ward", version)])))
    assert said(peer) == [("ward", b"3-6"), ("ward", b"6-9"), ("ward", b"3-6")]
    rig.pass_time(SEND_S)
    peer.send(peer.plain(GROUP_KEYS, payload=pack_versions([("ward", 3)])))
    assert said(peer) == [("ward", b"3-6")]


def test_what_a_neighbour_is_sent_and_may_bring_in_a_second_is_bounded() -> None:
    rig, peer, keys = met(ward=9)
    said(peer)
    keys.after = lambda group, version: bytes(FILE_BYTES_MAX)  # type: ignore[method-assign]
    keys.say()
    said(peer)
    sent = 0
    for at in range(10 * SENT_BYTES_MAX // FILE_BYTES_MAX):
        peer.send(peer.plain(GROUP_KEYS, payload=pack_versions([("ward", at % 7)])))
        sent += sum(isinstance(each, tuple) for each in said(peer))
    assert sent == SENT_BYTES_MAX // FILE_BYTES_MAX
    forged = [peer.plain(GROUP_KEYS, payload=pack_lines("ward", b"%d-1" % at)) for at in range(2 * OFFERS_MAX)]
    peer.send(*forged)
    assert len(rig.offered_keys) == OFFERS_MAX
    rig.pass_time(1.0)
    peer.send(*forged)
    assert len(rig.offered_keys) == 2 * OFFERS_MAX


def test_groups_that_the_permissions_do_not_have_are_nothing() -> None:
    rig, peer, _ = met(ward=9)
    said(peer)
    peer.send(peer.plain(GROUP_KEYS, payload=pack_lines("yard", b"0-1")))
    peer.send(peer.plain(GROUP_KEYS, payload=pack_versions([("yard", 7), ("y", 0)])))
    assert rig.offered_keys == []
    assert said(peer) == []


WRONG = {
    "empty": b"",
    "unknown": b"\2",
    "version cut off": pack_versions([("ward", 1)])[:5],
    "name cut off": pack_versions([("ward", 1)])[:-1],
    "too many": pack_versions([(f"g{each}", 1) for each in range(GROUPS_MAX + 1)]),
    "no name": b"\1",
    "no lines": pack_lines("ward", b""),
    "too large": pack_lines("ward", bytes(FILE_BYTES_MAX + 1)),
}


@pytest.mark.parametrize("payload", WRONG.values(), ids=WRONG)
def test_what_is_cut_off_or_too_large_is_counted_alone(payload: bytes) -> None:
    rig, peer, _ = met(ward=9)
    peer.send(peer.plain(GROUP_KEYS, payload=payload))
    rig.pass_time(1.0)
    assert rig.offered_keys == []
    assert [each.count for each in rig.events if isinstance(each, MessagesDropped)] == [1]


@given(st.dictionaries(st.text(max_size=60), st.integers(0, 2**64 - 1), max_size=GROUPS_MAX))
def test_versions_come_as_they_were_said(known: dict[str, int]) -> None:
    assert parse_keys(pack_versions(known.items())) == known


@given(st.text(max_size=60), st.binary(min_size=1))
def test_lines_come_as_they_were_sent(group: str, raw: bytes) -> None:
    assert parse_keys(pack_lines(group, raw)) == (group, raw)


@given(st.binary(max_size=200))
def test_anything_else_is_an_error_of_the_protocol(payload: bytes) -> None:
    for each in (payload, b"\0" + payload, b"\1" + payload):
        with suppress(ProtocolError):
            parse_keys(each)
