"""Worlds of gateways as users run them: endpoints of the API around a hub in each domain, on hosts that fail."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from math import inf
from typing import Any, ClassVar, Final

from tests.worlds.gateways import CHOSEN, HEARD_S, PREFIXES, QUIET_S, TOPICS, Joint, Tree
from tests.worlds.ground_faults import GroundFaults
from tests.worlds.residents import Life, Place, Resident
from tests.worlds.stage import DisturbedWorld, Stage

from chappe import Endpoint, Gateway, GatewaySide
from chappe.errors import ChappeError
from chappe.gateway.announcement import as_chosen
from chappe.gateway.events import GatewayPasses, OtherName, SameMesh
from chappe.mesh.filters import matches, minimal
from chappe.sim.world import Settings

HOST: Final = "127.0.0.1"
FIRST_PORT: Final = 9_000
HEARTBEAT_S: Final = 0.5
LAST_S: Final = 3.0
REST_MAX_S: Final = 300.0
LOST_S: Final = 6.0  # after a fault somebody may still believe in what is gone, so long at most


class MemberLife(Life):
    """An endpoint of one domain, whose program subscribes and publishes; the first of a domain is its hub."""

    def __init__(self, world: Any, resident: Resident) -> None:
        super().__init__(world, resident)
        self.domain = self.name.partition(" ")[0]
        self.face = Endpoint(id=uuid.UUID(bytes=world.rng.randbytes(16)), heartbeat_s=HEARTBEAT_S)
        self.wanted = minimal(world.rng.sample(PREFIXES, world.rng.choice((0, 1, 2, 4))))
        self.subscriber = self.face.subscribe(*map(bytes.decode, self.wanted))
        if self.name.endswith(" 0"):
            self.face.listen(HOST, world.port_of(self.domain))
        else:
            self.face.peer_nosync(HOST, world.port_of(self.domain), retry_s=HEARTBEAT_S)
        self.soon(world.rng.random(), self._publish_some)

    def _publish_some(self) -> None:
        rng = self.world.rng
        if self.world.publishing:
            for _ in range(60 if rng.random() < 0.05 else 1):
                self.publish(rng.choice(TOPICS))
            self.soon(rng.expovariate(5.0), self._publish_some)

    def publish(self, topic: bytes) -> None:
        """Publish something new, once there is room."""
        world = self.world
        name = b"%d in %b" % (len(world.sent), self.domain.encode())
        if self.face.try_publish(topic, name + bytes(world.padding)) is None:
            self.soon(0.1, self.publish, topic)
        else:
            world.sent[name] = Sent(self, topic, world.now)

    def look(self) -> None:
        """Take what has come."""
        for message in self.subscriber.take_messages(self.subscriber.available or 1, 0.0):
            self.world.received(self, message)


@dataclass(frozen=True, slots=True)
class Sent:
    """A message that was published."""

    source: MemberLife
    topic: bytes
    at: float


class DoorLife(Life):
    """A gateway between two domains."""

    cannot = (ChappeError,)

    def __init__(self, world: Any, resident: Resident) -> None:
        super().__init__(world, resident)
        self.joint: Joint = world.joints[self.name]
        rng = world.rng
        sides = [
            GatewaySide(
                domain, [each.decode("utf-8", "surrogateescape") for each in chosen],
                id=uuid.UUID(bytes=rng.randbytes(16)), peer_messages_max=rng.choice((4, 64, 4_096)),
                heartbeat_s=HEARTBEAT_S,
            )
            for domain, chosen in zip(self.joint.domains, self.joint.chosen, strict=True)
        ]  # fmt: skip
        self.face = Gateway(sides[0], sides[1])
        self.core = self.face._core
        self.statuses = self.face.endpoint(self.joint.domains[0]).statuses()
        for domain in self.joint.domains:
            self.face.endpoint(domain).peer_nosync(HOST, world.port_of(domain), retry_s=HEARTBEAT_S)

    def look(self) -> None:
        """See what it reports, and what it knows to be wrong."""
        self.face.status()  # raises if a defect has stopped it
        for event in self.statuses.poll():
            if isinstance(event, GatewayPasses):
                self.world.changed(HEARD_S)
            if isinstance(event, SameMesh | OtherName):
                self.world.fail("chosen prefixes", f"{self.name} says: {event}")
        for text in self.core.invariants():
            self.world.fail("invariants", f"{self.name}: {text}")


class MemberResident(Resident):
    """An endpoint over all its lives."""

    life = MemberLife


class DoorResident(Resident):
    """A gateway over all its lives."""

    life = DoorLife


class DoorFaults(GroundFaults):
    """The faults of hosts; after each the tree may change."""

    def at(self, when: float, call: Callable[..., None], *arguments: Any) -> None:
        """As every schedule."""

        def disturb() -> None:
            self.world.changed(LOST_S)
            call(*arguments)

        super().at(when, disturb)


class RealGateways(DisturbedWorld):
    """Domains in pairs, chains and circles, joined by gateways of the API."""

    lengths_s: ClassVar[tuple[float, ...]] = (8.0, 15.0)
    settle_max_s: ClassVar[float] = 60.0
    settled_s: ClassVar[float] = QUIET_S
    events_max: ClassVar[int] = 3_000_000

    def __init__(self, seed: int, settings: Settings | None = None, tell: Callable[[str], None] | None = None) -> None:
        super().__init__(seed, settings, tell)
        self.publishing = True
        self.padding = self.rng.choice((0, 0, 20_000))  # bytes of each message, so that sockets are full now and then
        self.sent: dict[bytes, Sent] = {}
        self.got: dict[bytes, Counter[Life]] = {}
        self.joints: dict[str, Joint] = {}
        self._domains: list[str] = []
        self._changed_until = -inf
        self.stage = Stage(self)
        self.watch(Tree(self))  # type: ignore[arg-type]
        self.ground_faults = DoorFaults(self)

    def port_of(self, domain: str) -> int:
        """Where the hub of a domain listens."""
        return FIRST_PORT + self._domains.index(domain)

    def gateways(self) -> list[DoorLife]:
        """Those that live."""
        return self.alive(DoorLife)

    def count(self) -> int:
        """Messages that were published."""
        return len(self.sent)

    def changed(self, for_s: float) -> None:
        """What is published now may come twice, or not."""
        self._changed_until = max(self._changed_until, self.now + for_s)

    def received(self, life: MemberLife, message: Any) -> None:
        """A program gets something: once, and as it was published."""
        name = message.payload.rstrip(b"\0")
        sent = self.sent[name]
        if sent.topic != message.topic:
            self.fail("at most once", f"{life.name} gets {name!r} under {message.topic!r}")
        got = self.got.setdefault(name, Counter())
        got[life] += 1
        if got[life] > 1 and sent.at > self._changed_until:
            self.fail("at most once", f"{life.name} gets {name!r} again")

    def begin(self) -> None:
        """Make domains and gateways."""
        rng = self.rng
        shape = rng.choice(("pair", "pair", "chain", "circle"))
        self._domains = [f"d{number}" for number in range(2 if shape == "pair" else 3)]
        edges = list(pairwise(self._domains)) + ([("d2", "d0")] if shape == "circle" else [])
        chosen = as_chosen(rng.choice(CHOSEN), "any"), as_chosen(rng.choice(CHOSEN), "any")
        for domain in self._domains:
            for number in range(rng.choice((1, 2, 3))):
                self._settle_in(MemberResident, f"{domain} {number}")
        for one, two in edges:
            for number in range(rng.choice((1, 2)) if shape == "pair" else 1):
                name = f"{one}-{two} {number}"
                self.joints[name] = Joint((one, two) if rng.random() < 0.5 else (two, one), chosen)
                self._settle_in(DoorResident, name)

    def _settle_in(self, kind: type[Resident], name: str) -> None:
        self.move_in(kind(self, name, Place(self, name)))

    def heal(self) -> None:
        """End everything that is wrong."""
        super().heal()
        self.changed(LOST_S)

    def finish(self) -> float:
        """Settle; from then on every message goes everywhere that it may."""
        took_s = self.settle()
        since = max(self.now, self._changed_until)
        self.pass_time(since + LAST_S)
        self.publishing = False
        self._come_to_rest()
        for name, sent in self.sent.items():
            reached = self._reached(sent.source.domain, sent.topic) if sent.at > since else ()
            for life in self.alive(MemberLife) if reached else ():
                wanted = life is not sent.source and life.domain in reached and matches(life.wanted, sent.topic)
                if wanted is not (self.got.get(name, Counter())[life] == 1):
                    self.fail("everything arrives", f"{life.name}: {name!r} to {sent.topic!r}, wanted: {wanted}")
        return took_s

    def _come_to_rest(self) -> None:
        """Let time pass until what was published is where it goes: connections are slow, and have much to bring."""
        until = self.now + REST_MAX_S
        endpoints = [life.face for life in self.alive(MemberLife)]
        endpoints += [door.face.endpoint(domain) for door in self.gateways() for domain in door.joint.domains]
        while any(each.buffered for each in endpoints) and self.now < until:
            self.pass_time(self.now + QUIET_S)
        self.pass_time(self.now + QUIET_S)

    def _reached(self, origin: str, topic: bytes) -> set[str]:
        """The domains to which the gateways that pass now bring a message."""
        found, edge = {origin}, [origin]
        while edge:
            at = edge.pop()
            for door in self.gateways():
                for side, name in enumerate(door.joint.domains):
                    other = door.joint.domains[1 - side]
                    opens = name == at and door.core.passing and matches(door.joint.chosen[side], topic)
                    if opens and other not in found:
                        found.add(other)
                        edge.append(other)
        return found
