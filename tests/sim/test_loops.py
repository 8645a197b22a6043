"""Loops of which members are originals: how often one publication comes before its echo is noticed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from tests.sim.chains import TOPIC, Chain, staged

from chappe.defaults import ECHO_OWN_REPEATS


@contextmanager
def loop(*wires: str) -> Iterator[Chain]:
    """Hosts that are linked so and want the topic; those whose names begin with o are originals."""
    with staged(Chain()) as world:
        world.loops = True
        for name in sorted({each for wire in wires for each in wire.split("-")}):
            world.add(name, original=name[0] == "o")
            world.hosts[name].want([TOPIC])
        world.link(wire.split("-") for wire in wires)
        world.pass_time(6.0)
        yield world


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
    with loop(*wires.split()) as world:
        payload = world.publish(world.first, TOPIC)
        assert payload is not None
        world.pass_time(world.now + 8.0)
        delivered = world.record.publications[payload].delivered

        assert {host.life for host in world.hosts.values()} - {world.first.life} <= set(delivered)
        assert 1 < max(delivered.values()) <= copies * ECHO_OWN_REPEATS
        world.publish(world.first, TOPIC)
        before = world.clock.events
        world.pass_time(world.now + 2.0)
        assert world.clock.events - before < 500  # nothing goes round
