"""Chains that are longer than a message has hops: what does not arrive is counted and told."""

from __future__ import annotations

from uuid import UUID

import pytest
from tests.sim.chains import TOPIC, Chain

from chappe.defaults import TTL
from chappe.mesh.events import LostElsewhere, MessagesDropped
from chappe.mesh.messages import DATA, NOBODY
from chappe.sim.scenarios.mesh.hosts import EndpointHost

COUNT = 10


def published(world: Chain) -> int:
    for _ in range(COUNT):
        world.publish(world.hosts["e0"], TOPIC)
    world.pass_time(world.now + 5.0)
    return sum(each.delivered.get("last#1", 0) for each in world.record.publications.values())


def test_as_many_hops_as_there_are_arrive() -> None:
    world = Chain(TTL + 1)
    assert published(world) == COUNT
    assert all(not world.told(name, MessagesDropped) for name in world.events)


def test_one_hop_more_is_counted_where_it_ends_and_told_at_both_ends() -> None:
    world = Chain(TTL + 2)
    ids = {name: host.own_id for name, host in world.hosts.items()}
    assert published(world) == 0
    end = f"e{TTL + 1}"
    assert sum(each.count for each in world.told(end, MessagesDropped)) == COUNT
    for name in ("e0", "last"):
        (told,) = world.told(name, LostElsewhere)
        assert (told.place, told.towards, told.origin, told.count) == (ids[end], ids["last"], ids["e0"], COUNT)
        assert f"{UUID(bytes=ids[end])} dropped {COUNT} messages" in str(told)
        assert "too many hops" in str(told)


@pytest.mark.parametrize(("hops", "too_far"), [(TTL + 1, False), (TTL + 2, True)])
def test_who_sends_to_one_endpoint_knows_whether_it_is_too_far(hops: int, too_far: bool) -> None:
    world = Chain(hops)
    first, last = world.hosts["e0"], world.hosts["last"]
    assert isinstance(first, EndpointHost)
    assert first.core.reaches(last.own_id)
    assert first.core.is_too_far(last.own_id) is too_far
    assert not first.core.is_too_far(world.hosts["e1"].own_id)
    assert not first.core.is_too_far(bytes(15) + b"?")


def test_an_original_is_one_hop_behind_who_speaks_with_it() -> None:
    near, far = Chain(TTL + 1, original=True), Chain(TTL + 2, original=True)
    assert [world.hosts["e0"].core.is_too_far(world.hosts["last"].own_id) for world in (near, far)] == [False, True]  # type: ignore[attr-defined]


def test_an_endpoint_is_there_as_soon_as_it_can_be_reached_over_others() -> None:
    world = Chain(3)
    first, last = world.hosts["e0"], world.hosts["last"]
    assert isinstance(first, EndpointHost)
    first.ask(first.core.await_peer, last.own_id, 10.0, 101)
    assert first.resolved[101] is True
    first.ask(first.core.await_peer, b"somebody else...", 1.0, 102)
    late = b"who comes late.."
    first.ask(first.core.await_peer, late, 10.0, 103)
    world.pass_time(world.now + 2.0)
    assert first.resolved[102] is False
    assert 103 not in first.resolved
    world.add("late", late)
    world.wires.add(("late", "last"))
    world.hosts["late"].want([b"/late"])
    world.hosts["late"].peer(last.address, 1.0)
    world.settle()
    assert first.resolved[103] is True
    assert list(first.core.publish(b"/late/x", b"", DATA, NOBODY, world.now))
    assert not list(first.core.publish(b"/nobody", b"", DATA, NOBODY, world.now))
    assert not list(first.core.publish(b"/late/x", b"", DATA, b"somebody else...", world.now))
