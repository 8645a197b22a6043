"""One world of the mesh: hosts, the wires between them, what goes wrong, and how it must end."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from random import Random
from typing import Any

from chappe.mesh.endpoint import EndpointCore, EndpointOptions
from chappe.mesh.messages import Message
from chappe.mesh.policy import Policy
from chappe.sim.mesh.checkers import Checker, Completeness, Convergence, all_checkers
from chappe.sim.mesh.hosts import EndpointHost, Host
from chappe.sim.mesh.network import Network, Side
from chappe.sim.mesh.originals import OriginalHost
from chappe.sim.mesh.record import Publication, Record, Spans
from chappe.sim.mesh.rogues import RogueHost
from chappe.sim.world import Clock, Violation

TOPICS = (b"/a", b"/a/x", b"/b", b"/c/long/topic")
PREFIXES = (b"", b"/a", b"/a/x", b"/b", b"/c")
RETRY_S = (0.3, 1.0)
ROGUES = 0.25  # of the worlds have one
SETTLE_S = 40.0  # silence is noticed, dialling tried again and again, and everybody told
LOOP_COPIES = 100  # of one message at one host, once every loop has been found
EVENTS_MAX = 400_000  # one world; more means that something runs in circles


class MeshWorld:
    """Everything that one seed decides."""

    def __init__(
        self, seed: int, *, core: type[EndpointCore] | None = None, tell: Callable[[str], None] | None = None
    ) -> None:
        self.clock = Clock(seed)
        self.rng = self.clock.rng
        self.rogue_rng = Random(f"rogue {seed}")  # of its own: worlds without a rogue are what they would be anyway
        self.rogues: list[RogueHost] = []
        self.rogue_until = -inf
        self.net = Network(self.clock, self._written)
        self.record = Record()
        self.hosts: dict[str, Host] = {}
        self.wires: set[tuple[str, str]] = set()  # who dials whom
        self.lives: dict[bytes, str] = {}  # by id
        self.stopped: dict[str, float] = {}  # life: frozen since
        self.thawed: dict[str, float] = {}  # life: goes on since
        self.cuts: set[frozenset[str]] = set()  # pairs of lives between which a connection was cut
        self.loops = False  # originals are linked with each other, so that nobody sees the loops
        self.dues = 0  # deliveries that were checked
        self.keep_alive: list[Side] = []
        self.convergence = Convergence(self)
        self.completeness = Completeness(self)
        self.checkers: list[Checker] = all_checkers(self)
        self._core = core or EndpointCore
        self._tell = tell
        self._serial = 0
        self._lives_made = 0
        self._publishing = True
        self._quiet_since: float | None = None
        self.calm = False  # since a while nothing has changed

    @property
    def now(self) -> float:
        """Virtual seconds since the beginning."""
        return self.clock.now

    def trace(self, who: Any, text: str, *args: object) -> None:
        """Tell what happens, if somebody listens."""
        if self._tell is not None:
            self._tell(f"{self.now:9.4f}  {'' if who is None else who.name:<10} {text % args}")

    def fail(self, checker: str, text: str) -> None:
        """A promise was broken."""
        raise Violation(checker, text)

    # -- hosts ------------------------------------------------------------------------------------

    def populate(self) -> None:
        """Make the first hosts, and wires that connect them all, with loops."""
        rng = self.rng
        for number in range(rng.choice((2, 3, 3, 4, 5, 6, 8, 10))):
            self._make(f"e{number}")
        names = list(self.hosts)
        for number, name in enumerate(names[1:], 1):
            self.wires.add((name, rng.choice(names[:number])) if rng.random() < 0.5 else (names[number - 1], name))
        for _ in range(rng.choice((0, 1, 2, 5))):
            one, two = rng.sample(names, 2)
            self.wires.add((one, two))
        if rng.random() < 0.35:
            self._add_originals(names)
        for name in list(self.hosts):
            self.clock.after(rng.random(), self._dial_all, name)
            self.clock.after(rng.random(), self._publish_some, name)

    def _add_originals(self, names: list[str]) -> None:
        rng = self.rng
        for host in self.endpoints():  # originals bring what they know to every part of a network that is cut by these
            if not host.options.forwarding:
                self._make(host.name, forwarding=True)
        for number in range(rng.choice((1, 1, 2, 3))):
            name = f"o{number}"
            self._make(name, original=True)
            for other in rng.sample(names, min(len(names), rng.choice((1, 2, 3)))):
                self.wires.add((name, other) if rng.random() < 0.5 else (other, name))
        if "o1" in self.hosts and rng.random() < 0.25:
            self.loops = True
            self.wires.add(("o0", "o1"))

    def _make(
        self, name: str, *, original: bool = False, forwarding: bool | None = None, own_id: bytes | None = None
    ) -> Host:
        rng = self.rng
        self._lives_made += 1
        life = f"{name}#{self._lives_made}"
        former = self.hosts.get(name)
        if former is not None and former.alive:
            former.die()
        own_id = own_id or rng.randbytes(16)
        self.record.sound.setdefault(life, Spans()).begin(self.now)
        if original:
            self.record.originals.add(life)
            self.record.forwards[life] = True
            host: Host = OriginalHost(self, name, life, own_id)
        else:
            options = EndpointOptions(
                forwarding=rng.random() > 0.15 if forwarding is None else forwarding,
                heartbeat_s=rng.choice((0.5, 1.0, 2.0)),
                peer_messages_max=rng.choice((16, 64, 1024)),
                peer_policy=rng.choice(list(Policy)),
                first_number=1 + int(self.now * 1_000_000),
            )
            self.record.forwards[life] = options.forwarding
            host = EndpointHost(self, name, life, own_id, options, self._core)
            self.trace(host, "begins as %s: %s", own_id.hex(), options)
        self.hosts[name] = host
        host.want(rng.sample(PREFIXES, rng.choice((0, 1, 1, 2, 3))))
        return host

    def restart(self, name: str) -> None:
        """A host that crashed lives again, with its id or another one."""
        host = self.hosts[name]
        if host.alive:
            return
        own_id = host.own_id if self.rng.random() < 0.5 else None
        if isinstance(host, EndpointHost):
            self._make(name, forwarding=host.options.forwarding, own_id=own_id)
        else:
            self._make(name, original=True)
        self._dial_all(name)
        self._publish_some(name)

    def _dial_all(self, name: str) -> None:
        host = self.hosts[name]
        for one, two in sorted(self.wires):
            if one == name and host.alive:
                host.peer(self.hosts[two].address, self.rng.choice(RETRY_S))

    def endpoints(self) -> list[EndpointHost]:
        """Those of chappe that live."""
        return [host for host in self.hosts.values() if isinstance(host, EndpointHost) and host.alive]

    def originals(self) -> list[Host]:
        """Originals that live."""
        return [host for host in self.hosts.values() if host.original and host.alive]

    def wires_of(self, host: Host) -> list[Host]:
        """The hosts that a host is to be peered with."""
        names = {one if two == host.name else two for one, two in self.wires if host.name in (one, two)}
        return [self.hosts[name] for name in sorted(names)]

    def reachable(self, host: Host) -> list[Host]:
        """Who can be reached from a host, if all wires stand: over hosts of chappe that forward."""
        found = {host.name}
        edge = [host]
        while edge:
            at = edge.pop()
            if at is not host and (at.original or not self.record.forwards[at.life]):
                continue
            for other in self.wires_of(at):
                if other.name not in found:
                    found.add(other.name)
                    edge.append(other)
        return [self.hosts[name] for name in sorted(found - {host.name})]

    def ran(self, life: str, since: float) -> bool:
        """Whether a life that goes on was never stopped since then."""
        return life not in self.stopped and self.thawed.get(life, 0.0) < since

    def invite(self) -> None:
        """Perhaps have a rogue among them, until ``expel``; not where loops that nobody sees need all attention."""
        if not self.loops and self.rogue_rng.random() < ROGUES:
            self.rogues.append(RogueHost(self, self.rogue_rng))
            self.clock.after(self.rogue_rng.random(), self.rogues[-1].dial)

    def expel(self) -> None:
        """Have the rogues end."""
        for rogue in self.rogues:
            rogue.die()
            self.rogue_until = self.now

    # -- messages ---------------------------------------------------------------------------------

    def _publish_some(self, name: str) -> None:
        host = self.hosts[name]
        if not self._publishing or not host.alive:
            return
        if not host.frozen:
            for _ in range(self.rng.choice((1, 1, 1, 2, 3, 20))):
                self.publish(host)
        self.clock.after(self.rng.choice((0.05, 0.3, 1.0)), self._publish_some, name)

    def publish(self, host: Host, topic: bytes | None = None, size: int = 0) -> bytes | None:
        """Publish something of at least so many bytes; None if there was no room."""
        self._serial += 1
        payload = (b"%d of %b" % (self._serial, host.life.encode())).ljust(size)
        return payload if host.publish(topic or self.rng.choice(TOPICS), payload) else None

    def copies_max(self, publication: Publication) -> float:
        """How often a host may get it. Where originals close a loop it ends when the loop is found."""
        if self.is_exact(publication):
            return 1
        quiet = self._quiet_since is not None and publication.at >= self._quiet_since
        return LOOP_COPIES if quiet or not self.loops else inf

    def is_exact(self, publication: Publication) -> bool:
        """Whether ids follow a message on all its ways: with originals beside it only while nothing changes."""
        if self.loops:
            return False
        if not any(host.original for host in self.hosts.values()):
            return True
        return self._quiet_since is not None and publication.at >= self._quiet_since

    def delivered(self, host: Host, message: Message, subscriber: int) -> None:
        """A subscriber got a message."""
        for checker in self.checkers:
            checker.on_delivered(host, message)

    def _written(self, side: Side, frames: list[bytes]) -> None:
        for checker in self.checkers:
            checker.on_written(side, frames)

    # -- the end ----------------------------------------------------------------------------------

    def pass_time(self, until: float, tick_s: float = 0.25) -> None:
        """Let time pass, and look."""
        while self.now < until:
            self.clock.run(min(until, self.now + tick_s))
            for checker in self.checkers:
                checker.on_tick()
            if self.clock.events > EVENTS_MAX:
                self.fail("no spinning", f"{self.clock.events} events within {self.now:.0f} virtual seconds")

    def settle(self) -> None:
        """Wait until everybody knows what there is to know; and that it stays so."""
        began = self.now
        good = 0
        while good < 4:
            self.pass_time(self.now + 0.25)
            text = self.convergence.unsettled()
            good = good + 1 if text is None else 0
            if text is not None and self.now - began > SETTLE_S:
                self.fail(self.convergence.name, f"not settled {SETTLE_S:.0f} s after the last fault: {text}")

    def finish(self) -> None:
        """After the last fault: settle, deliver everything exactly once, and let the filters shrink to nothing."""
        self._publishing = False
        self.settle()
        self.pass_time(self.now + 6.0)
        self._quiet_since = self.now
        self.calm = True
        sent = [self.publish(host, topic) for host in self.hosts.values() for topic in TOPICS]
        self.pass_time(self.now + 5.0)
        if not self.loops:
            self.completeness.expect([each for each in sent if each is not None])
        self.calm = False
        for host in self.endpoints():
            host.want(())
        self.settle()
        for checker in self.checkers:
            checker.at_end()
