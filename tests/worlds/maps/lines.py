"""Connections between the hosts of a map: in order, cut in one direction or both, late or lost.

Each class of effects, or of what they carry, is a kind of socket with an order of its own.
"""

from __future__ import annotations

from math import inf
from typing import Final

from tests.worlds.clocked import Deliver

from chappe.core import Reply, Send, Subscribe
from chappe.sim.world import SimWorld

QUEUE_MAX: Final = 100  # messages that a socket keeps for a server that is not there


class Lines:
    """Carries messages from host to host."""

    def __init__(self, world: SimWorld) -> None:
        self._world = world
        self._base_s = world.rng.choice((0.000_2, 0.002, 0.02))
        self._cuts: dict[tuple[str, str], tuple[float, bool]] = {}  # until when, and whether what is sent is lost
        self._last_at: dict[tuple[str, str, type], float] = {}
        self._kept: dict[str, list[tuple[str, type, Deliver]]] = {}  # for who is not there

    def cut(self, source: str, target: str, until: float, *, lost: bool) -> None:
        """Nothing passes from ``source`` to ``target`` before ``until``; it is lost, or comes then."""
        self._cuts[source, target] = until, lost

    def mend(self) -> None:
        """Everybody reaches everybody again."""
        self._cuts = {ends: (min(until, self._world.now), lost) for ends, (until, lost) in self._cuts.items()}

    def send(self, source: str, target: str, kind: type, deliver: Deliver, *, kept: bool = False) -> None:
        """Put a message on its way; ``kept``: it waits for a host that is not there."""
        world = self._world
        at = world.now + self._base_s * (0.5 + world.rng.random())
        until, lost = self._cuts.get((source, target), (-inf, False))
        if until > world.now:
            if lost:
                world.failed[kind] += 1
                if kind is Send:
                    world.hosts[source].reconnect(target)
                elif kind is Reply and target in world.hosts:
                    world.hosts[target].reconnect(source)
                elif kind is Subscribe:  # the next connection says it again
                    world.clock.at(until, self._listen_again, source, target)
                return
            at = until + self._base_s
        at = max(at, self._last_at.get((source, target, kind), 0.0))
        self._last_at[source, target, kind] = at
        world.clock.at(at, self._arrive, source, target, kind, deliver, kept)

    def _listen_again(self, source: str, target: str) -> None:
        host = self._world.hosts[source]
        if host.alive:
            host.listen_again(target)

    def _arrive(self, source: str, target: str, kind: type, deliver: Deliver, kept: bool) -> None:
        host = self._world.hosts.get(target)
        if host is not None and host.alive:
            host.take(deliver)
        elif kept and len(queue := self._kept.setdefault(target, [])) < QUEUE_MAX:
            queue.append((source, kind, deliver))
        else:
            self._world.failed[kind] += 1

    def begun(self, target: str) -> None:
        """A host lives again: what waited for it comes."""
        for source, kind, deliver in self._kept.pop(target, []):
            self.send(source, target, kind, deliver)
