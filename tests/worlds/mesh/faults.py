"""What goes wrong in a world of the mesh."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from tests.worlds.faults import Schedule
from tests.worlds.mesh.base import MeshHost
from tests.worlds.mesh.population import PREFIXES, PopulatedMesh
from tests.worlds.mesh.subjects import EndpointSubject
from tests.worlds.mesh.world import TOPICS

from chappe.sim.streams import StreamSide

SLOW_S = (0.01, 0.1, 0.5)  # for each read
FLOOD_MESSAGES = 40  # published at once, if there is room ...
FLOOD_BYTES = 400  # ... of about this size ...
FLOOD_PAUSE_S = 0.1  # ... so often
FLOOD_S = 12.0  # enough that what waits in kernels takes longer than a peer may be silent
FLOODED_READ_S = (0.05, 0.1)
FLOODED_SIPS = (10.0, 100.0)  # messages per second
LAST_MESSAGES = 60  # what somebody publishes before it leaves ...
LAST_BYTES = 2_000  # ... each of about this size
TRICKLE_READ_S = 0.4
TRICKLE_WINDOWS_BYTES = (32_768,)  # longer on their way than a peer may be silent, and opening often enough


class MeshFaults(Schedule):
    """Plans faults, and heals them all."""

    last_messages = LAST_MESSAGES

    def __init__(self, world: PopulatedMesh) -> None:
        super().__init__(world)
        self.world = world
        self.rng = world.rng
        self._flooding = False
        self._reader = ""  # who takes little
        self._more = world.flood_rng
        self._last = Random(f"last {world.seed}")

    def plan(self, until: float) -> float:
        """Spread faults over the time until then; returns when they are to be healed."""
        kinds: tuple[Callable[[], None], ...] = (
            self._reset, self._cut, self._partition, self._crash, self._freeze, self._slow,
            self._resubscribe, self._resubscribe, self._cross_dial, self._unpeer,
        )  # fmt: skip
        if not self.world.settings.plain and not self.world.only_floods:
            for _ in range(self._more.choice((0, 0, 1, 3))):
                self.at(self._more.uniform(1.0, until), self._cut_early)
        floods = self.rng.random() < 0.2 or self.world.only_floods
        if floods:
            begins = self.rng.uniform(1.0, 3.0)
            self.at(begins, self._flood)
            if self.rng.random() < 0.5 or self.world.only_floods:
                return begins + FLOOD_S  # nothing else goes wrong
        chosen = self.rng.sample(kinds, self.rng.choice((1, 3, len(kinds))))
        for _ in range(int(until * self.rng.choice((0.3, 1.0, 3.0)))):
            self.at(self.rng.uniform(1.0, until), self.rng.choice(chosen))
        return max(until, begins + FLOOD_S) if floods else until

    def heal(self) -> None:
        """End all faults; nothing new goes wrong."""
        self.on = False
        self.world.net.mend()
        self.world.streams.early.clear()
        self.world.expel()
        self._ease()
        for name, host in list(self.world.hosts.items()):
            self._go_on(host)
            self._read_at_once(host)
            self.world.restart(name)

    # -- kinds ------------------------------------------------------------------------------------

    def _host(self) -> MeshHost:
        return self.rng.choice(list(self.world.hosts.values()))

    def _wire(self) -> tuple[str, str]:
        found = self.rng.choice(sorted(self.world.wires))
        near = [each for each in sorted(self.world.wires) if self._reader in each]
        return self._more.choice(near) if near and self._more.random() < 0.7 else found

    def _reset(self) -> None:
        self._break(*self._wire())

    def _break(self, one: str, two: str) -> None:
        self.world.trace(None, "reset %s %s", one, two)
        self._unlink(one, two)
        for side in self.world.streams.between(one, two):
            side.reset("connection reset by peer")

    def _cut(self) -> None:
        one, two = self._wire()
        if self.world.hosts[one].original and self.world.hosts[two].original:
            return  # between themselves they notice nothing, ever
        self.world.trace(None, "cut %s %s", one, two)
        self.world.cuts.add(frozenset((self.world.hosts[one].life, self.world.hosts[two].life)))
        self._unlink(one, two)
        for side in self.world.streams.between(one, two):
            side.cut = True
            if self.world.host_of(side).original:  # the same: let its system notice, much later than ours does
                self.world.clock.after(8.0, side.reset, "timed out")

    def _cut_early(self) -> None:
        """A connection breaks, and the next one is cut in its handshake."""
        one, two = self._more.choice(sorted(self.world.wires))
        if any(self.world.hosts[each].original for each in (one, two)):
            return  # they wait for ever
        self.world.streams.early[frozenset((one, two))] = self._cut_one
        self._break(one, two)

    def _cut_one(self, side: StreamSide) -> None:
        one, two = self.world.host_of(side), self.world.host_of(side.other)
        assert isinstance(one, MeshHost)
        assert isinstance(two, MeshHost)
        self.world.trace(one, "greets %s in vain", two.name)
        self.world.cuts.add(frozenset((one.life, two.life)))
        side.cut = side.other.cut = True
        if {one.life, two.life} == {self.world.hosts[each.name].life for each in (one, two)}:
            self._unlink(one.name, two.name)

    def _partition(self) -> None:
        one, two = self._wire()
        self.world.net.cut(one, two)
        self._unlink(one, two)
        for side in self.world.streams.between(one, two):
            side.reset("no route to host")
        self.world.net.cut(one, two, self.world.now + self.rng.choice((1.0, 5.0)))

    def _unlink(self, one: str, two: str) -> None:
        record, now = self.world.record, self.world.now
        lives = self.world.hosts[one].life, self.world.hosts[two].life
        record.link(*lives).end(now)
        record.link(*reversed(lives)).end(now)
        for host, other in (
            (self.world.hosts[one], self.world.hosts[two]),
            (self.world.hosts[two], self.world.hosts[one]),
        ):
            if isinstance(host, EndpointSubject) and host.alive and not host.frozen and not self.world.settings.plain:
                host.ping(other.own_id)  # that may not be answered any more

    def _crash(self) -> None:
        host = self._host()
        if host.alive and not host.frozen:
            self.world.trace(host, "crash")
            host.die()
            self.world.clock.after(self.rng.choice((0.1, 1.0, 5.0)), self.world.restart, host.name)

    def _freeze(self) -> None:
        host = self._host()
        if host.alive and not host.frozen and not host.original:
            self.world.trace(host, "freeze")
            self.world.record.sound[host.life].end(self.world.now)
            self.world.stopped[host.life] = self.world.now
            host.freeze(True)
            if self.world.ages and self.world.age_rng.random() < 0.5:
                self.world.suspend(host, True)
            self.world.clock.after(self.rng.choice((0.3, 2.0, 9.0)), self._go_on, host)

    def _go_on(self, host: MeshHost) -> None:
        if host.frozen and host.alive:
            self.world.trace(host, "goes on")
            self.world.record.sound[host.life].begin(self.world.now)
            del self.world.stopped[host.life]
            self.world.thawed[host.life] = self.world.now
            self.world.suspend(host, False)
            host.freeze(False)

    def _slow(self) -> None:
        host = self._host()
        if host.alive and not host.frozen and not host.read_s:
            host.read_s = self.rng.choice(SLOW_S)
            self.world.trace(host, "slow: %g s", host.read_s)
            self.world.record.sound[host.life].end(self.world.now)
            self.world.clock.after(self.rng.choice((1.0, 4.0)), self._read_at_once, host)

    def _flood(self) -> None:
        """Somebody publishes all that there is room for, and somebody who wants it reads slowly, all the time."""
        reader = self._host()
        if not self.world.settings.plain:
            originals = [each for each in self.world.hosts.values() if each.original]
            reader = self._more.choice(originals) if originals and self._more.random() < 0.5 else reader
            self._reader = reader.name
            if not self.world.only_floods:
                self.at(self.world.now + self._more.uniform(2.0, 8.0), self._unpeer)
        publishers = [each for each in self.world.alive(EndpointSubject) if each is not reader]
        if not publishers or self.world.loops:
            return
        publisher = self.rng.choice(publishers)
        reader.want((b"",))
        publisher.want(())
        self._flooding = True
        self.world.record.eased.end(self.world.now)
        if isinstance(reader, EndpointSubject) and self.rng.random() < 0.5:
            reader.sip(self.rng.choice(FLOODED_SIPS))
        else:
            self._read_at_once(reader)
            reader.read_s = self.rng.choice(FLOODED_READ_S)
            if reader.original and not self.world.settings.plain:
                self._trickle(reader)
            self.world.record.sound[reader.life].end(self.world.now)
        self.world.trace(reader, "takes little of what %s publishes", publisher.name)
        for each in dict.fromkeys((publisher, self.rng.choice(publishers))):
            self._publish_much(each, self.rng.choice(TOPICS))

    def _trickle(self, reader: MeshHost) -> None:
        """An original answers no ping for long, while its connections take something now and then."""
        reader.read_s = TRICKLE_READ_S
        self.world.streams.windows = TRICKLE_WINDOWS_BYTES
        for side in self.world.streams.of(reader.name):
            side.other.window_bytes = side.window_bytes = TRICKLE_WINDOWS_BYTES[0]

    def _publish_much(self, host: MeshHost, topic: bytes) -> None:
        if not self._flooding or not host.alive:
            return
        if not host.frozen and self.world.batches and self.world.batch_rng.random() < 0.5:
            self.world.publish_many(host, topic, FLOOD_MESSAGES, FLOOD_BYTES)
        elif not host.frozen:
            for _ in range(FLOOD_MESSAGES):
                if self.world.publish(host, topic, FLOOD_BYTES) is None:
                    break
        self.world.clock.after(FLOOD_PAUSE_S, self._publish_much, host, topic)

    def _publish_until(self, name: str, topic: bytes, count: int, size: int, until: float) -> None:
        """Somebody publishes so many at once, as far as there is room."""
        host = self.world.hosts[name]
        if not self.on or self.world.now >= until or not host.alive:
            return
        for _ in range(count):
            if self.world.publish(host, topic, size) is None:
                break
        self.world.clock.after(FLOOD_PAUSE_S, self._publish_until, name, topic, count, size, until)

    def _ease(self) -> None:
        """End a flood."""
        self._flooding = False
        self.world.record.eased.begin(self.world.now)
        for host in self.world.hosts.values():
            if isinstance(host, EndpointSubject):
                host.sip(0.0)

    def _read_at_once(self, host: MeshHost) -> None:
        if host.read_s:
            host.read_s = 0.0
            if host.alive and not host.frozen:
                self.world.record.sound[host.life].begin(self.world.now)

    def _resubscribe(self) -> None:
        host = self._host()
        if host.alive and not host.frozen:
            topics = self.rng.sample(PREFIXES, self.rng.choice((0, 1, 2)))
            self.world.trace(host, "wants %s", topics)
            host.want(topics)

    def _cross_dial(self) -> None:
        one, two = self._wire()
        self.world.wires.add((two, one))
        host = self.world.hosts[two]
        if host.alive and not host.frozen:
            host.peer(self.world.hosts[one].address, 0.5)

    def _unpeer(self) -> None:
        one, two = self._wire()
        host = self.world.hosts[one]
        if isinstance(host, EndpointSubject) and host.alive and not host.frozen:
            self.world.trace(host, "unpeers %s", two)
            self._unlink(one, two)
            self._say_more(host)
            host.unpeer((two, self.world.hosts[two].address[1]))
            self.world.clock.after(self.rng.choice((0.001, 0.1, 4.0)), self._peer_again, one)

    def _say_more(self, host: EndpointSubject) -> None:
        """Somebody who is about to leave publishes more than a connection takes at once, as far as there is room."""
        if self.world.settings.plain or self._last.random() < 0.5:
            return
        topic = self._last.choice(TOPICS)
        for _ in range(self.last_messages):
            if self.world.publish(host, topic, LAST_BYTES) is None:
                break

    def _peer_again(self, name: str) -> None:
        host = self.world.hosts[name]
        if host.alive:
            for one, two in sorted(self.world.wires):
                if one == name:
                    host.peer(self.world.hosts[two].address, 0.5)
