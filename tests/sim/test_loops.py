"""Loops of which members are originals: how often one publication comes before its echo is noticed."""

from __future__ import annotations

import pytest
from tests.worlds.mesh.base import MeshHost
from tests.worlds.mesh.hosts import EndpointHost
from tests.worlds.mesh.originals import OriginalHost
from tests.worlds.mesh.record import Spans
from tests.worlds.mesh.scenario import MeshScenario

from chappe.defaults import ECHO_OWN_REPEATS
from chappe.mesh.endpoint import EndpointCore, EndpointOptions

TOPIC = b"/t"


def loop(*wires: str) -> MeshScenario:
    """Hosts that are linked so and want the topic; those whose names begin with o are originals."""
    world = MeshScenario(1)
    world.loops = True
    for name in sorted({each for wire in wires for each in wire.split("-")}):
        own_id = world.rng.randbytes(16)
        host: MeshHost
        if name[0] == "o":
            host = OriginalHost(world, name, name, own_id)
            world.record.originals.add(name)
        else:
            host = EndpointHost(world, name, name, own_id, EndpointOptions(), EndpointCore)
        world.record.sound[name] = Spans()
        world.record.forwards[name] = True
        host.want([TOPIC])
    for wire in wires:
        one, two = wire.split("-")
        world.wires.add((one, two))
        world.hosts[one].peer(world.hosts[two].address, 1.0)
    world.pass_time(6.0)
    return world


@pytest.mark.parametrize(
    ("wires", "copies"),
    [
        ("e0-o0 e0-o1 o0-o1", 1.25),
        ("e0-o0 e1-o1 e0-e1 o0-o1", 2.5),
        ("e0-e1 e1-e2 e0-o0 e2-o1 o0-o1", 2.5),
        ("e0-o0 e0-o1 e0-o2 o0-o1 o1-o2", 5),  # two loops, one cut after the other
    ],
)
def test_what_was_published_here_and_comes_back_is_noticed_soon(wires: str, copies: float) -> None:
    world = loop(*wires.split())
    payload = world.publish(world.hosts["e0"], TOPIC)
    assert payload is not None
    world.pass_time(world.now + 8.0)
    delivered = world.record.publications[payload].delivered

    assert set(world.hosts) - {"e0"} <= set(delivered)
    assert 1 < max(delivered.values()) <= copies * ECHO_OWN_REPEATS
    world.publish(world.hosts["e0"], TOPIC)
    before = world.clock.events
    world.pass_time(world.now + 2.0)
    assert world.clock.events - before < 500  # nothing goes round
