"""Worlds in which one thing goes wrong at a time: each message arrives, or its origin is told that it does not."""

from __future__ import annotations

from collections import Counter, defaultdict
from math import inf
from typing import Final

from tests.worlds.mesh.base import MeshHost
from tests.worlds.mesh.checkers import BEFORE_S
from tests.worlds.mesh.faults import MeshFaults
from tests.worlds.mesh.subjects import EndpointSubject
from tests.worlds.mesh.world import TOPICS, MeshWorld

from chappe.mesh.events import LostElsewhere
from chappe.mesh.forwarding.boxes import Policy
from chappe.mesh.messages import Message
from chappe.sim.world import Checker

# A peer is found silent within 6 s, dialled again within 2 s, and what was lost with it is told within 1 s.
CALM_S: Final = 12.0
FIRST_S: Final = 3.0
MUCH_S: Final = 2.0  # so long much is published around each fault
MESSAGES: Final = (1, 10, 40)  # at once, if there is room
BYTES: Final = (0, 400)


class SingleFaults(MeshFaults):
    """One fault after the other, each of which is over before the next one."""

    def plan(self, until: float) -> float:
        """Spread faults; returns when they are to be healed."""
        rng = self.world.single_rng
        at = FIRST_S
        for _ in range(rng.choice((1, 2, 3))):
            self._many(at - MUCH_S * rng.random())
            self.at(at, rng.choice((self._cut, self._cut, self._reset, self._partition, self._crash)))
            at += CALM_S
        return at

    def _many(self, since: float) -> None:
        """Somebody publishes much for a while."""
        rng = self.world.single_rng
        for _ in range(rng.choice((1, 2))):
            host, count, size = rng.choice(sorted(self.world.hosts)), rng.choice(MESSAGES), rng.choice(BYTES)
            self.world.clock.at(since, self._publish_until, host, rng.choice(TOPICS), count, size, since + 2 * MUCH_S)


class Accounted(Checker[MeshWorld]):
    """What does not arrive is told to its publisher, with its topic, and at least as many as there are."""

    name = "accounted"

    def __init__(self, world: MeshWorld) -> None:
        super().__init__(world)
        self._got: defaultdict[bytes, set[bytes]] = defaultdict(set)  # by payload: ids
        self._told: Counter[tuple[str, bytes]] = Counter()  # by life and topic

    def on_delivered(self, host: MeshHost, message: Message) -> None:
        """Note who has it."""
        self._got[message.payload].add(host.own_id)

    def on_quick(self, host: EndpointSubject, message: Message) -> None:
        """The same."""
        self._got[message.payload].add(host.own_id)

    def on_report(self, host: EndpointSubject, event: object) -> None:
        """Add up."""
        if isinstance(event, LostElsewhere) and event.origin == host.own_id:
            self._told[host.life, event.topic] += event.count

    def at_end(self) -> None:
        """Compare."""
        if not self.world.accounts:
            return
        alive = self.world.alive(EndpointSubject)
        publishers = {host.life for host in alive}
        born = {host.own_id: host.born_at for host in alive}
        missing: Counter[tuple[str, bytes]] = Counter()
        for payload, publication in self.world.record.publications.items():
            if publication.publisher in publishers:
                lacking = publication.to - self._got[payload]
                # The next life of an id may not want what others believe of the one before.
                if any(born.get(each, inf) + BEFORE_S < publication.at for each in lacking):
                    missing[publication.publisher, publication.topic] += 1
        # Who drops what it publishes itself is not told of the topics.
        here = {host.life: host.told_dropped for host in alive if host.options.peer_policy is not Policy.BLOCK}
        for (life, topic), count in missing.items():
            told = 0 if self.world.shortcuts else self._told[life, topic] + here.get(life, 0)
            if count > told:
                self.fail(f"{count} messages of {life} to {topic!r} did not arrive, it is told of {told}")
