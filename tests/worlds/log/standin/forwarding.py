"""Worlds of the log without towers: everybody knows two forwarders, which know each other, and nobody else."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tests.worlds.log.standin.faults import StandInFaults
from tests.worlds.log.standin.node import NodeHost
from tests.worlds.log.standin.scenario import StandInLog
from tests.worlds.log.standin.stores import StoreHost
from tests.worlds.log.world import TOPICS

from chappe.log.forwarder import LogForwarder
from chappe.log.introducing import Forwarders
from chappe.log.messages import Message, StoreInfo
from chappe.sim.host import SimMember
from chappe.sim.pubsub import SimLink

FORWARDERS = 2
MEMBERS_MAX = 10


class Ear:
    """What a host hears of one forwarder, by a connection that it dialled; as ``runtime.meeting``."""

    def __init__(self, host: NodeHost, place: int, *, all_of_it: bool) -> None:
        self.name = host.name
        self._host = host
        self._place = place
        self._all = all_of_it

    @property
    def alive(self) -> bool:
        """As its host."""
        return self._host.alive

    @property
    def stalled_until(self) -> float:
        """As its host."""
        return self._host.stalled_until

    @property
    def wants(self) -> dict[bytes, int]:
        """What its host wants, and in any case what a forwarder says of itself."""
        return {**(self._host.wants if self._all else {}), b"I": 1}

    def paused(self) -> bool:
        """As its host."""
        return self._host.paused()

    def flush(self) -> None:
        """Delegate to the host."""
        self._host.flush()

    def on_message(self, message: Message) -> None:
        """The forwarder published something."""
        if isinstance(message, StoreInfo):
            known: Any = self._host.discovery
            self._host.call(known.heard, self._place, message.address, self._host.world.now)
        self._host.on_message(message)


class ForwarderHost(StoreHost):
    """A forwarder; it is found where it was in its former lives."""

    def _open(self) -> None:
        super()._open()
        self.net.release(self.port)
        self.endpoint = f"tcp://{self.name}"

    def _role(self, now: float) -> LogForwarder:
        return LogForwarder(self.core, now=now)

    def _close(self) -> None:
        """Its name stays its own."""


class ForwardingFaults(StandInFaults):
    """The same without towers; nobody runs a further forwarder."""

    def kinds(self) -> Sequence[tuple[int, Callable[[], None]]]:
        """What happens, and how often beside the others."""
        without = (self.cut_from_tower, self.tower_crash)
        return [(weight, kind) for weight, kind in super().kinds() if kind not in without]

    def join(self) -> None:
        """Somebody new."""
        if len(self.world.members) < MEMBERS_MAX:
            self.rng.choice((self.world.add_producer, self.world.add_consumer))()


class StandInForward(StandInLog):
    """Producers, consumers and two forwarders."""

    towers_max = 0
    faults_kind = ForwardingFaults

    def populate(self) -> None:
        """Make the first members."""
        rng = self.rng
        if rng.random() < 0.15:
            self.retained = {topic: rng.choice((10, 50)) for topic in rng.sample(TOPICS, rng.choice((1, 3)))}
        for _ in range(FORWARDERS):
            self.add_store()
        for _ in range(self.few(rng.choice((2, 2, 3)))):
            self.add_producer()
        for _ in range(self.few(rng.choice((2, 2, 3)))):
            self.add_consumer()
        self._begin_lodgers()

    def add_store(self) -> SimMember:
        """A forwarder with a disk of its own."""
        return self.keeper("forwarder", ForwarderHost)

    # -- who dials whom -----------------------------------------------------------------------------------

    def discovery(self, host: NodeHost) -> Forwarders:
        """Everybody knows all forwarders; these know the others."""
        return Forwarders(host.role, self._places(host), now=self.now)

    def meet(self, host: NodeHost) -> None:
        """A host dials what it knows; producers and consumers also to be heard."""
        forwards = isinstance(host, ForwarderHost)
        for place, name in enumerate(self._places(host)):
            endpoint = f"tcp://{name}"
            ear = Ear(host, place, all_of_it=not forwards)
            host.ears[endpoint] = SimLink(self.net, ear, endpoint)
            if not forwards:
                host.links[endpoint] = host.ears[endpoint]
        if forwards:
            for other in list(self.net.publishers.values()):
                if isinstance(other, NodeHost) and not isinstance(other, ForwarderHost):
                    host.links[other.endpoint] = SimLink(self.net, host, other.endpoint)
        else:
            for forwarder in self.alive(ForwarderHost):
                forwarder.links[host.endpoint] = SimLink(self.net, forwarder, host.endpoint)

    def part(self, host: NodeHost) -> None:
        """What a host dialled to be heard is over."""
        for forwarder in self.alive(ForwarderHost):
            link = forwarder.links.pop(host.endpoint, None)
            if link is not None:
                link.close()

    def _places(self, host: NodeHost) -> list[str]:
        return [name for n in range(FORWARDERS) if (name := f"forwarder{n}") != host.name]
