"""A reader that is slower than what is published, behind kernels that hold much: the publisher is slowed down to it."""

from __future__ import annotations

from math import inf
from typing import Any

import pytest
from tests.sim.chains import BURST, SIZE, TOPIC, Chain
from tests.worlds.mesh.hosts import EndpointHost

from chappe.mesh.endpoint import EndpointCore
from chappe.mesh.events import LostElsewhere, MessagesDropped, PeerLost, PeerRemoved
from chappe.mesh.forwarding.boxes import Policy
from chappe.mesh.forwarding.version2 import Trees
from chappe.mesh.links.heartbeats import Heartbeats
from chappe.mesh.links.link import Link
from chappe.sim import streams

SECONDS = 40.0


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels that take much longer to be read than a peer may be silent."""
    monkeypatch.setattr(streams, "WINDOWS_BYTES", (262_144,))


def slowed(world: Chain, how: str) -> None:
    last = world.hosts["last"]
    if how == "reads":
        last.read_s = 0.25  # 16 kB/s
    else:
        assert isinstance(last, EndpointHost)
        last.sip(float(how))


@pytest.mark.parametrize("how", ["3", "30", "300", "reads"])
@pytest.mark.parametrize("hops", [1, 2, 4])
def test_nothing_is_lost_with_a_slow_reader_over_any_number_of_hops(hops: int, how: str) -> None:
    world = Chain(hops)
    slowed(world, how)
    published, delivered = world.feed(SECONDS)

    assert published == delivered > 150
    for name in world.events:
        assert world.told(name, PeerLost) == world.told(name, MessagesDropped) == []


@pytest.mark.parametrize("hops", [1, 2])
def test_an_original_that_reads_slowly_is_waited_for(hops: int) -> None:
    world = Chain(hops, original=True)
    slowed(world, "reads")
    published, delivered = world.feed(SECONDS)

    assert published == delivered > 150


def test_a_reader_that_has_stopped_is_waited_for_only_a_while() -> None:
    world = Chain(2)
    slowed(world, "0.001")
    world.feed(30.0)

    told = world.told("e0", LostElsewhere)
    dropped = sum(each.count for each in world.told("last", MessagesDropped))
    assert dropped > 0
    assert sum(each.count for each in told) == dropped
    assert {(each.origin, each.place) for each in told} == {(world.hosts["e0"].own_id, world.hosts["last"].own_id)}
    assert world.told("e1", MessagesDropped) == []


def test_what_is_dropped_on_the_way_is_told_to_publisher_and_subscriber() -> None:
    world = Chain(3, Policy.DROP_OLDEST)
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
    world = Chain(1)
    e0, last = world.hosts["e0"], world.hosts["last"]
    assert isinstance(e0, EndpointHost)
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
    world = Chain(1)
    e0, last = world.hosts["e0"], world.hosts["last"]
    assert isinstance(last, EndpointHost)
    for _ in range(10):
        world.publish(e0, TOPIC)
    last.unpeer(next(each.address for each in last.core.peers() if each.peer_id == e0.own_id))
    world.pass_time(world.now + 2.0)
    (gone,) = world.told("e0", PeerLost)
    assert (gone.left, gone.lost, gone.unconfirmed) == (True, 0, 0)
    (removed,) = world.told("last", PeerRemoved)
    assert (removed.lost, removed.unconfirmed) == (0, 0)


def gives_up(world: Chain) -> bool:
    try:
        world.feed(SECONDS)
    except Exception as problem:
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
    world = Chain(1)
    slowed(world, "reads")

    assert gives_up(world) is fault


def test_pinging_an_original_behind_all_that_waits_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Heartbeats, "take", lambda self, link, bytes_max: link.outbox.take(bytes_max))
    monkeypatch.setattr(EndpointCore, "moved", lambda self, conn, now: None)
    world = Chain(1, original=True)
    slowed(world, "reads")

    assert gives_up(world)


def test_a_peer_with_a_shorter_heartbeat_hears_from_one_that_does_not_read() -> None:
    world = Chain(2)
    impatient = world.hosts["e0"]
    assert isinstance(impatient, EndpointHost)
    impatient.core.heartbeats._heartbeat_s = 0.5  # of the others it is 2 s
    slowed(world, "reads")
    world.hosts["last"].freeze(True)
    for _ in range(30):
        for _ in range(BURST):
            world.publish(impatient, TOPIC, SIZE)
        world.pass_time(world.now + 0.1, 0.1)

    assert world.told("e0", PeerLost) == []
