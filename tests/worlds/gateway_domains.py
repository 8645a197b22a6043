"""Domains of gateways as stand-ins: a bus on which everybody hears of everybody, late, and gets what he wants, late.

What a mesh does inside is played elsewhere. Here matters what gateways see of it: filters that come and go in any order
between endpoints, each gateway seeing them at another time; messages that follow filters as they were a moment ago;
domains that fall into parts.
"""

from __future__ import annotations

from collections.abc import Callable

from chappe.gateway.core import PublishToSide
from chappe.mesh.filters import Filter, matches, minimal
from chappe.mesh.messages import NOBODY, Message
from chappe.sim.world import SimWorld

DELAYS_S = ((0.0005, 0.002), (0.001, 0.02), (0.005, 0.1))  # in a domain: of news and of messages


class Port:
    """The endpoint of a gateway in a domain. ``view`` is what it sees of the others."""

    def __init__(self, domain: Domain, own: bytes, changed: Callable[[], None], got: Callable[[Message], None]) -> None:
        self.domain = domain
        self.own = own
        self.alive = True
        self.view: dict[bytes, Filter] = {}
        self.news_at: dict[bytes, float] = {}
        self.routed_at = 0.0
        self.changed = changed
        self.got = got


class Domain:
    """One domain. ``subscribers`` are its endpoints but for gateways, and what each wants."""

    def __init__(self, world: SimWorld, name: str) -> None:
        self.world = world
        self.name = name
        self.subscribers: dict[bytes, Filter] = {}
        self.ports: dict[bytes, Port] = {}
        self.wanted: dict[bytes, Filter] = {}  # of ports, as they said
        self.routed: dict[bytes, Filter] = {}  # of ports, as publishers know it
        self.parts: dict[bytes, int] = {}  # of those who are not in part 0
        self.frames = 0  # deliveries, each to one endpoint
        self.marked = 0  # of these, from gateway to gateway
        self.delays = world.rng.choice(DELAYS_S)
        self._receivers: dict[bytes, list[bytes]] = {}
        self._arrives_at: dict[tuple[bytes, bytes], float] = {}
        self._numbers: dict[bytes, int] = {}

    def delay(self) -> float:
        """How long the next thing takes."""
        low, high = self.delays
        return low + (high - low) * self.world.rng.random()

    # -- who is there -----------------------------------------------------------------------------------------

    def subscribe(self, endpoint: bytes, wanted: Filter) -> None:
        """A subscriber comes, or wants something else."""
        self.subscribers[endpoint] = minimal(wanted)
        self._receivers.clear()
        self._tell(endpoint)

    def open(self, port: Port) -> None:
        """A gateway comes."""
        self.ports[port.own] = port
        self.wanted[port.own] = ()
        port.view = {each: wanted for each, wanted in self.subscribers.items() if self.together(port.own, each)}
        self.world.clock.after(self.delay(), port.changed)
        for each in self.ports:
            if each != port.own:
                self._tell(each, port)

    def want(self, port: Port, wanted: Filter) -> None:
        """A gateway wants exactly this."""
        if self.ports.get(port.own) is port:
            self.wanted[port.own] = wanted
            self._tell(port.own)
            clock = self.world.clock
            at = port.routed_at = max(clock.now + self.delay(), port.routed_at)
            clock.at(at, self._route, port, wanted)

    def _route(self, port: Port, wanted: Filter) -> None:
        if self.ports.get(port.own) is port:
            self.routed[port.own] = wanted

    def close(self, port: Port) -> None:
        """A gateway is gone."""
        port.alive = False
        del self.ports[port.own]
        del self.wanted[port.own]
        self.routed.pop(port.own, None)
        self.parts.pop(port.own, None)
        self._tell(port.own)

    def cut(self, endpoints: list[bytes], part: int) -> None:
        """Some go into another part, where they see only each other; part 0 is where all others are."""
        for each in endpoints:
            self.parts[each] = part
        for port in self.ports.values():  # of all that a lost link takes away, or brings back, one hears at once
            delay = self.delay()
            for each in (*self.subscribers, *self.ports):
                self._tell(each, port, delay)

    def together(self, one: bytes, two: bytes) -> bool:
        """Whether two endpoints reach each other."""
        return not self.parts or self.parts.get(one, 0) == self.parts.get(two, 0)

    def _tell(self, endpoint: bytes, only: Port | None = None, delay: float | None = None) -> None:
        """All gateways, or one, hear of an endpoint as it is now."""
        clock = self.world.clock
        found = self.subscribers.get(endpoint, self.wanted.get(endpoint))
        for port in self.ports.values() if only is None else (only,):
            if port.own == endpoint:
                continue
            wanted = found if self.together(port.own, endpoint) else None
            at = max(clock.now + (delay or self.delay()), port.news_at.get(endpoint, 0.0))
            port.news_at[endpoint] = at
            clock.at(at, self._see, port, endpoint, wanted)

    def _see(self, port: Port, endpoint: bytes, wanted: Filter | None) -> None:
        if not port.alive or port.view.get(endpoint) == wanted:
            return
        if wanted is None:
            del port.view[endpoint]
        else:
            port.view[endpoint] = wanted
        port.changed()

    # -- messages ---------------------------------------------------------------------------------------------

    def publish(self, origin: bytes, topic: bytes, payload: bytes, receiver: bytes = NOBODY) -> None:
        """Somebody here publishes, to all who want it or to one."""
        number = self._numbers[origin] = self._numbers.get(origin, 0) + 1
        message = Message(topic, payload, sender=origin, receiver=receiver, origin=origin, sequence=number)
        if receiver != NOBODY:
            self.marked += 1
            self._send(message, receiver)
            return
        found = self._receivers.get(topic)
        if found is None:
            found = [each for each, wanted in self.subscribers.items() if matches(wanted, topic)]
            self._receivers[topic] = found
        for each in found:
            if each != origin and self.together(origin, each):
                self.frames += 1
                self.world.see("on_delivered", self, each, message)
        for each, wanted in list(self.routed.items()):
            if each != origin and matches(wanted, topic):
                self._send(message, each)

    def _send(self, message: Message, receiver: bytes) -> None:
        if not self.together(message.origin, receiver):
            return
        self.frames += 1
        way = (message.origin, receiver)
        at = max(self.world.now + self.delay(), self._arrives_at.get(way, 0.0))
        self._arrives_at[way] = at
        self.world.clock.at(at, self._arrive, message, receiver)

    def _arrive(self, message: Message, receiver: bytes) -> None:
        port = self.ports.get(receiver)
        origin = message.origin
        if port is None or not self.together(origin, receiver):
            self.world.failed[PublishToSide] += 1
            return
        if origin in self.subscribers or origin in port.view:  # a mesh takes nothing from where it sees nobody
            port.got(message)
