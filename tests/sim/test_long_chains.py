"""Long chains: between endpoints of chappe a message goes as far as there is a way."""

from __future__ import annotations

import pytest
from tests.sim.chains import TOPIC, Chain
from tests.worlds.mesh.hosts import EndpointHost

from chappe.mesh.events import LostElsewhere, MessagesDropped
from chappe.mesh.flows import FLOW_DATA, KIND_AT, PREFIX
from chappe.mesh.messages import DATA, NOBODY, TREE
from chappe.sim.streams import StreamSide
from chappe.sim.world import Checker

COUNT = 10
LONG = 100


class Written(Checker[Chain]):
    """Counts what endpoints write."""

    def __init__(self, world: Chain) -> None:
        super().__init__(world)
        self.kinds: dict[tuple[str, int], int] = {}  # by writer and type

    def on_written(self, side: StreamSide, frames: list[bytes]) -> None:
        """Count."""
        for frame in frames:
            if len(frame) > PREFIX + KIND_AT:
                key = (side.host.name, frame[PREFIX + KIND_AT])
                self.kinds[key] = self.kinds.get(key, 0) + 1


def published(world: Chain) -> int:
    for _ in range(COUNT):
        world.publish(world.hosts["e0"], TOPIC)
    world.pass_time(world.now + 5.0)
    return sum(each.delivered.get("last#1", 0) for each in world.record.publications.values())


@pytest.mark.parametrize("original", [False, True])
def test_a_message_crosses_each_link_of_a_long_chain_once(original: bool) -> None:
    world = Chain(LONG, original=original)
    written = Written(world)
    world.watch(written)
    assert published(world) == COUNT
    for name in world.events:
        assert world.told(name, MessagesDropped) == world.told(name, LostElsewhere) == []
    chappe = LONG - 1 if original else LONG  # links between endpoints of chappe
    assert [written.kinds.get((f"e{number}", FLOW_DATA), 0) for number in range(chappe)] == [COUNT] * chappe
    assert [written.kinds.get((f"e{number}", TREE), 0) for number in range(chappe)] == [1] * chappe


def test_one_endpoint_sends_to_another_alone_however_far() -> None:
    world = Chain(LONG)
    first, last = world.hosts["e0"], world.hosts["last"]
    assert isinstance(first, EndpointHost)
    world.publish(first, TOPIC)
    assert first.publish(TOPIC, b"for the last one alone", DATA, last)
    world.pass_time(world.now + 5.0)
    assert world.told("e0", LostElsewhere) == []
    assert isinstance(last, EndpointHost)
    assert last.received == 2


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
