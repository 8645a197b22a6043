"""Worlds of gateways: domains in pairs, circles and any graph, gateways that die, lose a side and come back.

Promises: a subscriber gets a message at most once and as it was published; nothing passes but what was chosen; when all
is quiet the gateways that pass make a tree that joins all domains that can be joined, everybody along it gets
everything, and what nobody wants any more nobody asks for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from math import inf
from random import Random
from typing import Any

from tests.worlds.faults import Schedule
from tests.worlds.gateway_domains import Domain, Port

from chappe.core import Report, Send
from chappe.gateway.announcement import MARKED, as_chosen
from chappe.gateway.core import GatewayCore, PublishToSide, SideOptions, SubscribeAtSide
from chappe.gateway.events import GatewayPasses, OtherName, SameMesh
from chappe.gateway.marks import Marked
from chappe.limits import GATEWAY_LIMITS, GatewayLimits
from chappe.mesh.filters import Filter, matches
from chappe.mesh.messages import Message
from chappe.sim.host import SimHost, SimMember
from chappe.sim.world import Checker, Settings, SimWorld

PREFIXES = (b"", b"/a", b"/a/x", b"/b", b"/c", b"/d/1", b"/d/2", b"/d/3")
TOPICS = (b"/a", b"/a/x/1", b"/b/2", b"/c", b"/d/1/1", b"/d/3", b"other")
CHOSEN = ((b"",), (b"",), (b"/a", b"/b", b"/c", b"/d", b"other"), (b"/a", b"/d"))
ROGUE = 0.05  # so many publications bring a forged one
HEARD_S = 0.5  # gateways have heard of each other by then
QUIET_S = 2.0  # with nothing wrong, until every message must arrive


@dataclass(frozen=True, slots=True)
class Joint:
    """Where a gateway stands, and what it may pass from each side."""

    domains: tuple[str, str]
    chosen: tuple[Filter, Filter]


class GatewayHost(SimHost):
    """A gateway, with an endpoint in each of two domains."""

    world: GatewayWorld

    def __init__(self, world: GatewayWorld, name: str, joint: Joint) -> None:
        super().__init__(world, name)
        self.joint = joint
        ids = [world.rng.randbytes(16) for _ in (0, 1)]
        sides = [SideOptions(joint.domains[side], ids[side], joint.chosen[side]) for side in (0, 1)]
        self.core = world.core((sides[0], sides[1]), world.clock, world.limits)
        domains = [world.domains[each] for each in joint.domains]
        self.ports = [Port(domains[side], ids[side], self._changer(side), self._getter(side)) for side in (0, 1)]
        self._news = [False, False]
        self.table = {Send: self._send, Report: self._report}
        for port in self.ports:
            port.domain.open(port)

    def _changer(self, side: int) -> Callable[[], None]:
        def changed() -> None:
            if not self._news[side]:
                self._news[side] = True
                self.world.clock.after(0.001, self._look, side)

        return changed

    def _getter(self, side: int) -> Callable[[Message], None]:
        def got(message: Message) -> None:
            for each in (0, 1):
                self._look(each)
            self.call(self.core.handle_message, side, [message], self.world.now)

        return got

    def _look(self, side: int) -> None:
        if self._news[side] and self.alive:
            self._news[side] = False
            self.call(self.core.handle_subscription, side, self.ports[side].view, self.world.now)

    def start(self) -> None:
        """Begin to live."""
        self.call(self.core.start, self.world.now)

    def die(self, *, goodbye: bool = False, notice_s: float = 0.0) -> None:
        """Be gone from both domains."""
        self.alive = False
        for port in self.ports:
            port.domain.close(port)

    def due(self) -> float:
        """When the core wants to be called."""
        return self.core.next_timeout()

    def handle_due(self) -> None:
        """Have the core do what is due."""
        self.call(self.core.handle_timeout, self.world.now)

    def _send(self, action: Send) -> None:
        port, message = self.ports[action.to], action.message
        if isinstance(message, SubscribeAtSide):
            port.domain.want(port, message.topics)
            return
        assert isinstance(message, PublishToSide)
        for topic, payload in message.messages:
            self.world.see("on_passed", self, action.to, topic)
            port.domain.publish(port.own, topic, payload)
        for receiver, payload in message.marked:
            if receiver in port.view:
                port.domain.publish(port.own, MARKED, payload, receiver)

    def _report(self, action: Report) -> None:
        self.world.trace(self, "%s", action.event)
        self.world.see("on_report", self, action.event)


class GatewayWorld(SimWorld):
    """Everything that one seed decides."""

    lengths_s = (8.0, 15.0, 30.0)
    settle_max_s = 30.0
    settled_s = QUIET_S
    events_max = 3_000_000

    def __init__(
        self,
        seed: int,
        settings: Settings | None = None,
        tell: Callable[[str], None] | None = None,
        core: type[GatewayCore] = GatewayCore,
    ) -> None:
        super().__init__(seed, settings, tell)
        self.core = core
        self.domains: dict[str, Domain] = {}
        self.limits = GATEWAY_LIMITS
        self.publishing = True
        self.sent: dict[bytes, tuple[str, bytes]] = {}  # payload: domain and topic
        self.sent_at: dict[bytes, float] = {}

    def count(self) -> int:
        """Messages that were published."""
        return len(self.sent)

    def gateways(self) -> list[GatewayHost]:
        """Those that live."""
        return self.alive(GatewayHost)

    def publish(self, domain: Domain, topic: bytes) -> bytes:
        """Some subscriber of a domain publishes; returns what."""
        payload = b"%d in %b" % (len(self.sent), domain.name.encode())
        self.sent[payload] = (domain.name, topic)
        self.sent_at[payload] = self.now
        domain.publish(self.rng.choice(list(domain.subscribers)), topic, payload)
        return payload

    def passes(self, origin: str, topic: bytes) -> set[str]:
        """The domains that a message gets to along the gateways that pass now."""
        found = {origin}
        edge = [origin]
        while edge:
            at = edge.pop()
            for host in self.gateways():
                for side, name in enumerate(host.joint.domains):
                    other = host.joint.domains[1 - side]
                    opens = name == at and host.core.passing and matches(host.joint.chosen[side], topic)
                    if opens and other not in found:
                        found.add(other)
                        edge.append(other)
        return found


class Copies(Checker[GatewayWorld]):
    """At most once, unchanged. Twice may come what is on its way while a gateway begins to pass, or a domain heals."""

    name = "at most once"

    def __init__(self, world: GatewayWorld) -> None:
        super().__init__(world)
        self.got: dict[bytes, Counter[bytes]] = {}
        self.twice = 0
        self.changed_at = -inf  # something that may bring a message twice

    def on_delivered(self, domain: Domain, endpoint: bytes, message: Message) -> None:
        """A subscriber gets something."""
        if message.payload not in self.world.sent:
            self.fail(f"{domain.name} gets {message}, which nobody has published")
        if self.world.sent[message.payload][1] != message.topic:
            self.fail(f"{domain.name} gets {message} under another topic")
        got = self.got.setdefault(message.payload, Counter())
        got[endpoint] += 1
        if got[endpoint] > 1:
            self.twice += 1
            in_circles = got[endpoint] > 1 + len(self.world.members)
            if self.world.sent_at[message.payload] > self.changed_at or in_circles:
                self.fail(f"{endpoint.hex()[:8]} in {domain.name} gets {message.payload!r} again")

    def on_report(self, host: GatewayHost, event: object) -> None:
        """A gateway begins to pass."""
        if isinstance(event, GatewayPasses):
            self.changed_at = self.world.now + HEARD_S

    def on_healed(self, domain: Domain) -> None:
        """The parts of a domain come together: gateways that feed it need a while to hear of each other."""
        self.changed_at = self.world.now + HEARD_S


class Chosen(Checker[GatewayWorld]):
    """Only what was chosen passes, and only what is wanted is asked for."""

    name = "chosen prefixes"

    def on_passed(self, host: GatewayHost, side: int, topic: bytes) -> None:
        """A gateway passes something."""
        if not matches(host.joint.chosen[1 - side], topic):
            self.fail(f"{host.name} passes {topic!r}, which was not chosen")

    def on_tick(self) -> None:
        """Invariants, and bounds of what is asked for."""
        for host in self.world.gateways():
            for text in host.core.invariants():
                self.fail(f"{host.name}: {text}")
            for side, status in enumerate(host.core.sides()):
                if len(status.wanted) > max(self.world.limits.wanted_max, len(host.joint.chosen[side])):
                    self.fail(f"{host.name} asks for {len(status.wanted)} prefixes")

    def on_report(self, host: GatewayHost, event: object) -> None:
        """Nobody is mistaken here."""
        if isinstance(event, SameMesh | OtherName):
            self.fail(f"{host.name} says: {event}")


class Tree(Checker[GatewayWorld]):
    """The gateways that pass make a tree of all domains that can be joined."""

    name = "a tree"

    def unsettled(self) -> str | None:
        """What is not so yet."""
        hosts = self.world.gateways()
        joined: dict[str, str] = {}

        def root(name: str) -> str:
            while joined.get(name, name) != name:
                name = joined[name]
            return name

        for host in hosts:
            if host.core.passing:
                one, two = map(root, host.joint.domains)
                if one == two:
                    return f"{host.name} passes between {host.joint.domains}, and closes a circle"
                joined[one] = two
        for host in hosts:
            one, two = map(root, host.joint.domains)
            if one != two:
                return f"{host.name} is {host.core.state}, and nobody joins {host.joint.domains}"
        return None


class Gateways(GatewayWorld):
    """Gateways between domains."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.copies = Copies(self)
        self.tree = Tree(self)
        self.watch(self.copies, Chosen(self), self.tree)
        self._faults = Schedule(self)
        self._rogue = Random(f"rogue {self.seed}")
        if not self.settings.plain:
            draw = Random(f"limits {self.seed}")
            self.limits = GatewayLimits(
                wanted_max=draw.choice((1, 3, 512)), tell_pause_s=draw.choice((0.0, 0.05, 0.5)),
                seen_max=draw.choice((64, 4_096)), gateways_max=draw.choice((32, 1_024)),
            )  # fmt: skip

    def begin(self) -> None:
        """Make domains and gateways."""
        rng = self.rng
        shape = rng.choice(("pair", "pair", "circle", "star", "any", "chain"))
        names = [f"d{number}" for number in range(2 if shape == "pair" else self.few(rng.choice((3, 4, 6))) or 2)]
        for name in names:
            domain = self.domains[name] = Domain(self, name)
            for _ in range(rng.choice((1, 2, 5))):
                domain.subscribe(rng.randbytes(16), self._wishes())
        edges = list(pairwise(names))
        if shape == "star":
            edges = [(names[0], each) for each in names[1:]]
        elif shape == "circle":
            edges.append((names[-1], names[0]))
        elif shape == "any":
            edges += [(one, two) for one, two in [rng.sample(names, 2) for _ in range(3)]]
        chosen = as_chosen(rng.choice(CHOSEN), "any"), as_chosen(rng.choice(CHOSEN), "any")
        for one, two in edges:
            for _ in range(rng.choice((1, 2, 2, 3) if shape == "pair" else (1, 1, 2))):
                joint = Joint((one, two) if rng.random() < 0.5 else (two, one), chosen)
                self.clock.after(rng.random() * rng.choice((0.0, 0.5, 3.0)), self._join, joint)
        self._publish_some()

    def _join(self, joint: Joint) -> None:
        self.join("g", lambda name: GatewayHost(self, name, joint))

    def _wishes(self) -> Filter:
        return tuple(self.rng.sample(PREFIXES, self.rng.choice((0, 1, 2, 4))))

    def _publish_some(self) -> None:
        if self.publishing:
            self.publish(self.rng.choice(list(self.domains.values())), self.rng.choice(TOPICS))
            if self._rogue.random() < ROGUE:
                self._mislead()
            self.clock.after(self.rng.expovariate(100.0), self._publish_some)

    def _mislead(self) -> None:
        """A member of a domain sends a gateway what is for it alone, or what only gateways send."""
        domain = self._rogue.choice(list(self.domains.values()))
        port = self._rogue.choice(list(domain.ports.values()) or [None])
        if port is not None:
            marked = Marked(self._rogue.randbytes(16), 2**64 - 1, 0, self._rogue.choice(TOPICS), b"rogue").pack()
            topic, payload = self._rogue.choice(((b"/a/x", b"rogue"), (b"", b"rogue"), (MARKED, marked), (MARKED, b"")))
            domain.publish(self._rogue.choice(list(domain.subscribers)), topic, payload, port.own)

    # -- faults -----------------------------------------------------------------------------------------------

    def plan(self, until: float) -> float:
        """Plan the faults."""
        if not self.settings.disturb:
            return until
        rng = self.rng
        at = 2.5
        while at < until:
            fault = rng.choice((self._crash, self._crash, self._lose_side, self._split, self._wish, self._wish))
            self._faults.at(at, fault)
            at += rng.expovariate(0.7)
        return until

    def _crash(self) -> None:
        running = [each for each in self.members if each.alive]
        if running:
            member = self.rng.choice(running)
            self.trace(member.host, "dies")
            member.crash()
            self.clock.after(self.rng.choice((0.001, 0.3, 3.0)), self._restart, member)

    def _restart(self, member: SimMember) -> None:
        self.trace(member.host, "comes back")
        member.restart()

    def _lose_side(self) -> None:
        hosts = self.gateways()
        if hosts:
            host = self.rng.choice(hosts)
            port = self.rng.choice(host.ports)
            self.trace(host, "loses %s", port.domain.name)
            port.domain.cut([port.own], 1 + self.rng.randrange(1_000))
            self.clock.after(self.rng.choice((0.05, 1.0, 4.0)), self._mend, port.domain)

    def _split(self) -> None:
        domain = self.rng.choice(list(self.domains.values()))
        everybody = [*domain.subscribers, *domain.ports]
        part = self.rng.sample(everybody, self.rng.randrange(len(everybody)))
        self.trace(None, "%s falls into parts", domain.name)
        domain.cut(part, 1 + self.rng.randrange(1_000))
        self.see("on_healed", domain)  # some may have been apart before
        self.clock.after(self.rng.choice((0.05, 1.0, 4.0)), self._mend, domain)

    def _mend(self, domain: Domain) -> None:
        self.trace(None, "%s is whole again", domain.name)
        domain.cut(list(domain.parts), 0)
        domain.parts.clear()
        self.see("on_healed", domain)

    def _wish(self) -> None:
        domain = self.rng.choice(list(self.domains.values()))
        domain.subscribe(self.rng.choice(list(domain.subscribers)), self._wishes())

    def heal(self) -> None:
        """End everything that is wrong."""
        self._faults.on = False
        for domain in self.domains.values():
            self._mend(domain)
        for member in self.members:
            member.restart()

    # -- the end ----------------------------------------------------------------------------------------------

    def finish(self) -> float:
        """Settle; then every message goes everywhere that it may, and what nobody wants is not asked for."""
        self.pass_time(self.now + 3.0)  # gateways that join late
        took_s = self.settle()
        self.publishing = False
        sent = {
            self.publish(domain, topic): (domain, topic) for domain in self.domains.values() for topic in TOPICS
        }  # fmt: skip
        self.pass_time(self.now + QUIET_S)
        for payload, (domain, topic) in sent.items():
            self._check_arrived(payload, domain, topic)
        for domain in self.domains.values():
            for endpoint in domain.subscribers:
                domain.subscribe(endpoint, ())
        self.pass_time(self.now + QUIET_S)
        for host in self.gateways():
            for status in host.core.sides():
                if status.wanted:
                    self.fail("what is wanted", f"{host.name} still asks {status.domain} for {status.wanted}")
        return took_s

    def _check_arrived(self, payload: bytes, origin: Domain, topic: bytes) -> None:
        reached = self.passes(origin.name, topic)
        got = self.copies.got.get(payload, Counter())
        for name in sorted(reached):
            for endpoint, wanted in self.domains[name].subscribers.items():
                if matches(wanted, topic) and not got[endpoint] and name != origin.name:
                    self.fail("everything arrives", f"{endpoint.hex()[:8]} in {name} lacks {payload!r} to {topic!r}")
