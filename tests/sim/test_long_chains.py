"""Long chains: between endpoints of chappe a message goes as far as there is a way."""

from __future__ import annotations

import pytest
from tests.sim.chains import TOPIC, Chain, chain
from tests.worlds.mesh.base import MeshHost

from chappe.mesh.events import LostElsewhere, MessagesDropped
from chappe.mesh.flows import FLOW_DATA, KIND_AT, PREFIX
from chappe.mesh.messages import DATA, TREE
from chappe.sim.streams import StreamSide
from chappe.sim.world import Checker

COUNT = 10
LONG = 50


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
        world.publish(world.first, TOPIC)
    world.pass_time(world.now + 5.0)
    return sum(each.delivered.get("last#1", 0) for each in world.record.publications.values())


@pytest.mark.parametrize("original", [False, True])
def test_a_message_crosses_each_link_of_a_long_chain_once(original: bool) -> None:
    with chain(LONG, original=original) as world:
        written = Written(world)
        world.watch(written)
        assert published(world) == COUNT
        for name in world.events:
            assert world.told(name, MessagesDropped) == world.told(name, LostElsewhere) == []
    chappe = LONG - 1 if original else LONG  # links between endpoints of chappe
    assert [written.kinds.get((f"e{number}", FLOW_DATA), 0) for number in range(chappe)] == [COUNT] * chappe
    assert [written.kinds.get((f"e{number}", TREE), 0) for number in range(chappe)] == [1] * chappe


def test_one_endpoint_sends_to_another_alone_however_far() -> None:
    with chain(LONG) as world:
        world.publish(world.first, TOPIC)
        assert world.first.publish(TOPIC, b"for the last one alone", DATA, world.last)
        world.pass_time(world.now + 5.0)
        assert world.told("e0", LostElsewhere) == []
        assert world.last.received == 2


def test_an_endpoint_is_there_as_soon_as_it_can_be_reached_over_others() -> None:
    with chain(3) as world:
        first, late = world.first, b"who comes late.."
        for id, timeout_s in ((world.last.own_id, 10.0), (b"somebody else...", 1.0), (late, 10.0)):
            first.await_peer(id, timeout_s)
        there, nobody, later = first.calls
        assert first.resolved[there] is True
        world.pass_time(world.now + 2.0)
        assert first.resolved[nobody] is False
        assert later not in first.resolved
        world.add("late", late)
        world.hosts["late"].want([b"/late"])
        world.link([("late", "last")])
        world.settle()
        assert first.resolved[later] is True
        assert first.face.try_publish(b"/late/x", b"") == 1
        assert first.face.try_publish(b"/nobody", b"") == 0
        assert not first.publish(b"/late/x", b"", DATA, MeshHost(world, "nobody", "nobody", b"somebody else..."))
