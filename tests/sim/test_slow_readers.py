"""A reader that is slower than what is published, behind kernels that hold much: the publisher is slowed down to it."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from chappe.mesh.endpoint import EndpointCore, EndpointOptions
from chappe.mesh.events import LostElsewhere, MessagesDropped, PeerLost, PeerRemoved
from chappe.mesh.heartbeats import Heartbeats
from chappe.mesh.links import Link
from chappe.mesh.policy import Policy
from chappe.sim.mesh import network
from chappe.sim.mesh.hosts import EndpointHost
from chappe.sim.mesh.originals import OriginalHost
from chappe.sim.mesh.record import Spans
from chappe.sim.mesh.world import MeshWorld

SECONDS = 40.0
SIZE = 400
BURST = 100  # published at once, if there is room; much more than any of these readers takes
TOPIC = b"/t"


class Chain(MeshWorld):
    """``e0`` publishes all that there is room for; the last host reads slowly."""

    def __init__(self, hops: int, policy: Policy = Policy.BLOCK, original: bool = False) -> None:
        super().__init__(1)
        self.events: dict[str, list[object]] = {}
        for number in range(hops):
            self._add(f"e{number}", policy)
        if original:
            self._remember(OriginalHost(self, "last", "last#1", self.rng.randbytes(16)))
            self.record.originals.add("last#1")
        else:
            self._add("last", policy)
        names = list(self.hosts)
        self.hosts["last"].want([TOPIC])
        for one, two in pairwise(names):
            self.wires.add((one, two))
            self.hosts[one].peer(self.hosts[two].address, 1.0)
        self.settle()

    def _add(self, name: str, policy: Policy) -> None:
        options = EndpointOptions(heartbeat_s=2.0, peer_messages_max=64, peer_policy=policy)
        host = EndpointHost(self, name, f"{name}#1", self.rng.randbytes(16), options, EndpointCore)
        self._remember(host)
        heard = self.events[name] = []
        note = host._note

        def listen(event: object) -> None:
            heard.append(event)
            note(event)

        host._note = listen  # type: ignore[method-assign]

    def _remember(self, host: Any) -> None:
        self.hosts[host.name] = host
        self.record.sound[host.life] = Spans()
        self.record.forwards[host.life] = True

    def play(self, seconds: float) -> tuple[int, int]:
        """Publish for so long, let everything arrive; returns how many were published and how many delivered."""
        until = self.now + seconds
        while self.now < until:
            for _ in range(BURST):
                if self.publish(self.hosts["e0"], TOPIC, SIZE) is None:
                    break
            self.pass_time(self.now + 0.1, 0.1)
        last = self.hosts["last"]
        last.read_s = 0.0
        if isinstance(last, EndpointHost):
            last.sip(0.0)
        self.pass_time(self.now + 20.0)
        assert self.convergence.unsettled() is None
        found = [each.delivered.get(last.life, 0) for each in self.record.publications.values()]
        assert max(found) <= 1
        return len(found), sum(found)

    def told(self, name: str, kind: type) -> list[Any]:
        return [each for each in self.events[name] if isinstance(each, kind)]


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels that take much longer to be read than a peer may be silent."""
    monkeypatch.setattr(network, "WINDOWS_BYTES", (262_144,))


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
    published, delivered = world.play(SECONDS)

    assert published == delivered > 500
    for name in world.events:
        assert world.told(name, PeerLost) == world.told(name, MessagesDropped) == []


@pytest.mark.parametrize("hops", [1, 2])
def test_an_original_that_reads_slowly_is_waited_for(hops: int) -> None:
    world = Chain(hops, original=True)
    slowed(world, "reads")
    published, delivered = world.play(SECONDS)

    assert published == delivered > 500


def test_a_reader_that_has_stopped_is_waited_for_only_a_while() -> None:
    world = Chain(2)
    slowed(world, "0.001")
    world.play(30.0)

    assert world.told("e1", MessagesDropped)
    told = world.told("e0", LostElsewhere)
    dropped = sum(each.count for each in world.told("e1", MessagesDropped))
    assert sum(each.count for each in told) == dropped
    assert {each.origin for each in told} == {world.hosts["e0"].own_id}
    assert {each.place for each in told} == {world.hosts["e1"].own_id}
    assert sum(each.count for each in world.told("last", LostElsewhere)) == dropped


def test_what_is_dropped_on_the_way_is_told_to_publisher_and_subscriber() -> None:
    world = Chain(3, Policy.DROP_OLDEST)
    slowed(world, "30")
    published, delivered = world.play(20.0)
    lost = published - delivered
    here = sum(each.count for each in world.told("e0", MessagesDropped))
    elsewhere = sum(each.count for each in world.told("e0", LostElsewhere))

    assert lost > 0
    assert here + elsewhere == lost
    assert sum(each.count for each in world.told("last", LostElsewhere)) == lost


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
    last.unpeer(("e0", 40_001))
    world.pass_time(world.now + 2.0)
    (gone,) = world.told("e0", PeerLost)
    assert (gone.left, gone.lost, gone.unconfirmed) == (True, 0, 0)
    (removed,) = world.told("last", PeerRemoved)
    assert (removed.lost, removed.unconfirmed) == (0, 0)


def gives_up(world: Chain) -> bool:
    try:
        world.play(SECONDS)
    except Exception as problem:
        return "patience" in str(problem)
    return False


def test_pinging_only_who_is_silent_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    beat = Heartbeats.beat

    def lazy(self: Heartbeats, links: Any, now: float) -> tuple[list[Any], list[Link]]:
        for each in links:
            each.pinged_at = max(each.pinged_at, each.heard_at)
        return beat(self, links, now)

    monkeypatch.setattr(Heartbeats, "beat", lazy)
    monkeypatch.setattr(Heartbeats, "take", lambda self, link, bytes_max: link.outbox.take(bytes_max))
    monkeypatch.setattr(EndpointCore, "handle_moved", lambda self, conn, now: None)
    world = Chain(1)
    slowed(world, "reads")

    assert gives_up(world)


def test_pinging_an_original_behind_all_that_waits_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Heartbeats, "take", lambda self, link, bytes_max: link.outbox.take(bytes_max))
    monkeypatch.setattr(EndpointCore, "handle_moved", lambda self, conn, now: None)
    world = Chain(1, original=True)
    slowed(world, "reads")

    assert gives_up(world)
