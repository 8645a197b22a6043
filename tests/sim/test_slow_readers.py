"""A reader that is slower than what is published, behind kernels that hold much: the publisher is slowed down to it."""

from __future__ import annotations

from math import inf
from typing import Any

import pytest
from tests.sim.chains import BURST, SIZE, TOPIC, Chain, chain

from chappe.mesh.endpoint import EndpointCore
from chappe.mesh.events import LostElsewhere, MessagesDropped, PeerLost, PeerRemoved
from chappe.mesh.forwarding.boxes import Policy
from chappe.mesh.forwarding.version2 import Trees
from chappe.mesh.links.heartbeats import Heartbeats
from chappe.mesh.links.link import Link
from chappe.sim.world import Violation

SECONDS = 40.0
WIDE = (262_144,)  # kernels that take much longer to be read than a peer may be silent


def slowed(world: Chain, how: str) -> None:
    if how == "reads":
        world.last.read_s = 0.25  # 16 kB/s
    else:
        world.last.sip(float(how))


@pytest.mark.parametrize("how", ["3", "30", "300", "reads"])
@pytest.mark.parametrize("hops", [1, 2, 4])
def test_nothing_is_lost_with_a_slow_reader_over_any_number_of_hops(hops: int, how: str) -> None:
    with chain(hops, windows=WIDE) as world:
        slowed(world, how)
        published, delivered = world.feed(SECONDS)

        assert published == delivered > 150
        for name in world.events:
            assert world.told(name, PeerLost) == world.told(name, MessagesDropped) == []


@pytest.mark.parametrize("hops", [1, 2])
def test_an_original_that_reads_slowly_is_waited_for(hops: int) -> None:
    with chain(hops, original=True, windows=WIDE) as world:
        slowed(world, "reads")
        published, delivered = world.feed(SECONDS)

    assert published == delivered > 150


def test_a_reader_that_has_stopped_is_waited_for_only_a_while() -> None:
    with chain(2, windows=WIDE) as world:
        slowed(world, "0.001")
        world.feed(30.0)

        told = world.told("e0", LostElsewhere)
        dropped = sum(each.count for each in world.told("last", MessagesDropped))
        assert dropped > 0
        assert sum(each.count for each in told) == dropped
        assert {(each.origin, each.place) for each in told} == {(world.first.own_id, world.last.own_id)}
        assert world.told("e1", MessagesDropped) == []


def test_what_is_dropped_on_the_way_is_told_to_publisher_and_subscriber() -> None:
    with chain(3, Policy.DROP_OLDEST, windows=WIDE) as world:
        slowed(world, "30")
        published, delivered = world.feed(20.0)
        lost = published - delivered
        here = sum(each.count for each in world.told("e0", MessagesDropped))
        elsewhere = sum(each.count for each in world.told("e0", LostElsewhere))

        assert lost > 0
        assert here + elsewhere == lost
        there = sum(each.count for each in world.told("last", MessagesDropped))
        assert there + sum(each.count for each in world.told("last", LostElsewhere)) == lost
        assert there > 0


def test_what_is_lost_with_a_link_is_counted_and_told_when_the_peer_is_back() -> None:
    with chain(1, windows=WIDE) as world:
        e0, last = world.first, world.last
        last.freeze(True)
        world.stopped[last.life] = world.now
        published = 0
        while world.publish(e0, TOPIC, 4 * SIZE) is not None:
            published += 1
        waited = e0.core.buffered()
        world.pass_time(world.now + 8.0)
        (gone,) = world.told("e0", PeerLost)
        assert gone.lost == waited > 0
        assert gone.unconfirmed == published - waited
        assert f"{waited} messages that waited for it are lost" in str(gone)
        assert sum(each.count for each in world.told("e0", MessagesDropped)) == e0.core.dropped == waited
        del world.stopped[last.life]
        world.thawed[last.life] = world.now
        last.freeze(False)
        world.pass_time(world.now + 8.0)
        assert [(each.place, each.count) for each in world.told("last", LostElsewhere)] == [(e0.own_id, waited)]


def test_a_peer_that_left_has_everything() -> None:
    with chain(1, windows=WIDE) as world:
        for _ in range(10):
            world.publish(world.first, TOPIC)
        peer = next(each for each in world.last.core.peers() if each.peer_id == world.first.own_id)
        world.last.unpeer(peer.address)
        world.pass_time(world.now + 2.0)
        (gone,) = world.told("e0", PeerLost)
        assert (gone.left, gone.lost, gone.unconfirmed) == (True, 0, 0)
        (removed,) = world.told("last", PeerRemoved)
        assert (removed.lost, removed.unconfirmed) == (0, 0)


def gives_up(original: bool = False) -> bool:
    with chain(1, original=original, windows=WIDE) as world:
        slowed(world, "reads")
        try:
            world.feed(SECONDS)
        except Violation as problem:
            return "patience" in str(problem)
    return False


@pytest.mark.parametrize("fault", [False, True])
def test_pinging_only_who_is_silent_is_caught(monkeypatch: pytest.MonkeyPatch, fault: bool) -> None:
    beat = Heartbeats.beat

    def confirm(self: Trees) -> None:
        """Confirmations are signs of life, too: here pings are to be enough."""
        self.confirm_at = inf

    def lazy(self: Heartbeats, links: Any, now: float) -> tuple[list[Any], list[Link]]:
        for each in links:
            each.pinged_at = max(each.pinged_at, each.heard_at)
        return beat(self, links, now)

    monkeypatch.setattr(Trees, "confirm", confirm)
    if fault:
        monkeypatch.setattr(Heartbeats, "beat", lazy)
    monkeypatch.setattr(Heartbeats, "take", lambda self, link, bytes_max: link.outbox.take(bytes_max))
    monkeypatch.setattr(EndpointCore, "moved", lambda self, conn, now: None)

    assert gives_up() is fault


def test_pinging_an_original_behind_all_that_waits_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Heartbeats, "take", lambda self, link, bytes_max: link.outbox.take(bytes_max))
    monkeypatch.setattr(EndpointCore, "moved", lambda self, conn, now: None)

    assert gives_up(original=True)


def test_a_peer_with_a_shorter_heartbeat_hears_from_one_that_does_not_read() -> None:
    with chain(2, windows=WIDE) as world:
        impatient: Any = world.first.core.heartbeats
        impatient._heartbeat_s = 0.5  # of the others it is 2 s
        slowed(world, "reads")
        world.last.freeze(True)
        for _ in range(30):
            for _ in range(BURST):
                world.publish(world.first, TOPIC, SIZE)
            world.pass_time(world.now + 0.1, 0.1)
