"""Worlds of a pair of map servers: kills, standing still, cuts in one direction, full disks and queues, clocks that
drift.

Promises: no two servers are active in one term, as clients see it; what was confirmed is in the map in the end, and
what was refused never was; each write is done once; and when all is well both servers and all clients have the same.

What may be lost is what the docs say: without disks what only dead servers had, without a witness what was confirmed on
one side of a cut, or by a server that is not there while the other begins.
"""

from __future__ import annotations

from typing import Any, Final

from tests.worlds.maps.hosts import (
    SERVERS,
    ClientHost,
    GuideHost,
    MapHost,
    ServerHost,
    WitnessHost,
    Written,
)
from tests.worlds.maps.world import MapWorld

from chappe.errors import WriteUnknown
from chappe.kv.chp.messages import SESSION_BYTES
from chappe.replication.binary_star.messages import PASSIVE, WITNESS
from chappe.sim.host import SimMember
from chappe.sim.world import Checker

COUNTERS: Final = 2
VOID_S: Final = 3.0  # a server is cut off so long
VOID_WRITTEN_S: Final = 0.5  # and clients write so long of it
STALLS: Final = 0.3  # of the worlds with disks have one that stalls
ALONE_S: Final = 1.5  # by then a server goes on without the other one
STALLED_S: Final = 3.5
SESSION_S: Final = 8.5  # at least so long they stay, by the world's clock: those of servers drift


class Terms(Checker[MapWorld]):
    """No two servers are active in one term."""

    name = "one active server"

    def __init__(self, world: MapWorld) -> None:
        super().__init__(world)
        self._epochs: dict[int, tuple[bytes, ServerHost]] = {}

    def on_welcome(self, client: ClientHost, server: str, epoch: bytes) -> None:
        """A client is served."""
        host = self.world.hosts[server]
        term = int.from_bytes(epoch[8:])
        known, former = self._epochs.setdefault(term, (epoch, host))
        if known != epoch:
            if self.world.durable or former.alive:
                self.fail(f"{server} and {former.name} are both active in term {term}")
            self._epochs[term] = epoch, host  # both have lost their memories


class Survival(Checker[MapWorld]):
    """What was confirmed is there in the end, what was refused is not."""

    name = "confirmed writes"

    def unsettled(self) -> str | None:
        """Whether a write is lost, or done though it was refused."""
        world = self.world
        servers = [each for each in world.running() if each.core.active]
        if len(servers) != 1:
            return f"{len(servers)} servers are active: {[each.core.star.story() for each in world.running()]}"
        found = {entry.key: entry.value[0] for entry in servers[0].core.engine.items()}
        if any(each.outcome is None and host.alive for host in world.clients() for each in host.written.values()):
            return "writes are under way"
        counters: dict[str, dict[bytes, Written]] = {}
        for each in world.written[self.world.excused :]:
            key = each.key.decode()
            if each.expected is not None:
                counters.setdefault(key, {})[each.value] = each
            elif each.outcome is True and not each.plain and found.get(key) != each.value:
                self.fail(f"{key} was confirmed as {each.value!r}, and is {found.get(key)!r}")
        if not self.world.excused:
            for key, steps in counters.items():
                self._count(key, steps, found.get(key, b""))
        return None

    def _count(self, key: str, steps: dict[bytes, Written], value: bytes) -> None:
        """Go back from the last value: every confirmed step is on the way, and no refused one is."""
        done = set()
        last = value
        while value:
            step = steps[value]
            if step.value in done:
                self.fail(f"{key} went in a circle")
            if step.outcome is not True and step.outcome is not None and not isinstance(step.outcome, WriteUnknown):
                self.fail(f"{key} was set from {step.expected!r} to {value!r}, which was refused: {step.outcome}")
            done.add(value)
            value = step.expected or b""
        for step in steps.values():
            if step.outcome is True and step.value not in done:
                self.fail(f"{key} was confirmed to go from {step.expected!r} to {step.value!r}, and ends as {last!r}")


class Convergence(Checker[MapWorld]):
    """In the end one serves, the other has everything, and clients have what they have."""

    name = "convergence"

    def unsettled(self) -> str | None:
        """What is not yet as it must be."""
        world = self.world
        servers = world.running()
        active = [each for each in servers if each.core.active]
        if len(servers) != 2 or len(active) != 1 or active[0].core.star.confirms != "paired":
            return f"not paired: {[each.core.star.story() for each in servers]}"
        passive = next(each for each in servers if each is not active[0])
        if passive.core.star.state != PASSIVE:
            return f"{passive.name} is not passive: {passive.core.star.story()}"
        contents = _contents(active[0])
        if _contents(passive) != contents:
            return f"the passive server has {len(_contents(passive))} keys, the active one {len(contents)}"
        for client in world.clients():
            if client.core.state != "active" or client.core.pending:
                return f"{client.name} is {client.core.state}, {client.core.pending} writes are not confirmed"
            if isinstance(client, GuideHost):
                continue  # what a cut took from it does not come again
            if _contents(client) != contents or client.shown != contents:
                return f"{client.name} has something else"
        return None


class Sessions(Checker[MapWorld]):
    """Values end with the client that wrote them: not before, and soon after."""

    name = "session values"

    def __init__(self, world: MapWorld) -> None:
        super().__init__(world)
        self._ended: set[ClientHost] = set()  # clients that were silent for too long

    def on_session_ended(self, server: ServerHost, client: ClientHost) -> None:
        """A server has removed the values of a client that lives."""
        silent_s = self.world.now - self.world.heard.get(client.name, 0.0)
        if silent_s < SESSION_S:
            self.fail(f"{server.name} took {client.name} for dead, which was heard {silent_s:.1f} s ago")
        self._ended.add(client)

    def unsettled(self) -> str | None:
        """Whether a value has outlived its client, or is gone before it."""
        world = self.world
        server = world.active()
        if server is None:
            return "nobody is active"
        found = {entry.key.encode(): entry.value[1] for entry in server.core.engine.items()}
        sessions = {each.core.session for each in world.clients()}
        for key, uuid in found.items():
            if key.startswith(b"/session/") and uuid[:SESSION_BYTES] not in sessions:
                return f"{key!r} has outlived its client"
        if not world.excused:
            for client in world.clients():
                lost = client.session_keys - found.keys()
                if lost and client not in self._ended:
                    self.fail(f"{client.name} lives, and its values {sorted(lost)} are gone")
        return None


def _contents(host: Any) -> dict[bytes, bytes]:
    return {entry.key.encode(): entry.value[0] for entry in host.core.engine.items()}


class Maps(MapWorld):
    """A pair of map servers, perhaps a witness, and clients that write."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.watch(Terms(self), Survival(self), Convergence(self), Sessions(self))
        self.parts = self.rng.random() < 0.3
        self._quiet_until = 0.0  # nobody writes until then
        self._began: set[ClientHost] = set()  # that only live, and have written their one value

    def begin(self) -> None:
        """Make everybody."""
        for name in SERVERS:
            self.places[name] = self.join(
                "server", lambda name: ServerHost(self, name, self.backends[name])
            )  # fmt: skip
        if self.witnessed:
            self.places[WITNESS] = SimMember(self, WITNESS, lambda: WitnessHost(self, WITNESS))
        for _ in range(self.few(self.rng.choice((1, 2, 4)))):
            self.join("client", lambda name: ClientHost(self, name))
        if not self.settings.plain and self.rng.random() < 0.3:
            self.join("guide", lambda name: GuideHost(self, name))
        self.clock.after(0.0, self._work)

    def plan(self, until: float) -> float:
        """What happens, and when."""
        if self.settings.disturb and self.durable and not self.settings.plain and self.more_rng.random() < STALLS:
            self.schedule.at(self.more_rng.uniform(3.0, max(3.0, until - STALLED_S)), self.stall)
        kinds = [self.kill, self.kill, self.part_and_kill, self.freeze, self.freeze, self.kill_client]
        return self.plan_pair(until, [*kinds, self.freeze_client, self.stuff], [self.void])

    def heal(self) -> None:
        """Queues and disks take everything, too."""
        self.stuffed.clear()
        self.stalled.clear()
        super().heal()

    def _work(self) -> None:
        if not self.working:
            return
        rng = self.rng
        if self.now < self._quiet_until:
            self.clock.at(self._quiet_until, self._work)
            return
        for client in self.alive(ClientHost):
            if rng.random() < 0.5 or (self.sessions and self._only_lives(client)):
                continue
            number = len(self.written)
            if rng.random() < 0.5:
                client.write(b"/set/%d" % number, b"%d" % number)
            else:
                client.write(b"/counter/%d" % rng.randrange(COUNTERS), b"%d" % number, compare=True)
            if self.sessions and self.session_rng.random() < 0.1 and not isinstance(client, GuideHost):
                client.write_session(b"/session/%b/%d" % (client.name.encode(), self.session_rng.randrange(3)))
        self.clock.after(rng.expovariate(30.0), self._work)

    def _only_lives(self, client: ClientHost) -> bool:
        """Whether a client writes nothing but one value that ends with it: so its heartbeats alone keep that."""
        if isinstance(client, GuideHost) or client.life % 3:
            return False
        if client.core.state == "active" and client not in self._began:
            self._began.add(client)
            client.write_session(b"/session/%b" % client.name.encode())
        return True

    # -- faults ----------------------------------------------------------------------------------------------------

    def cut_witness(self) -> None:
        """A server and the witness do not reach each other; perhaps just when it is asked."""
        seconds = None
        if self.rng.random() < 0.5:
            seconds = 3.0
            self.cut_between(*SERVERS, seconds)
        self.cut_between(WITNESS, self.pick(), seconds)

    def kill_client(self) -> None:
        """A client ends, and another one begins."""
        clients = [member for member in self.members if isinstance(member.host, ClientHost)]
        if clients:
            member = self.rng.choice(clients)
            member.crash()
            self.clock.after(0.5, member.restart)

    def fill(self) -> None:
        """A disk is full for a while; perhaps just when its server should take over."""
        name = self.pick()
        self.fill_one(name, (0.1, 1.0, 3.0))
        if self.rng.random() < 0.5 and (self.witnessed or self.calm()):
            other = self.other(name)
            self.kill_one(other)
            self.restart_after(self.rng.choice((0.1, 1.0, 3.0)), other)

    def stall(self) -> None:
        """The disk of the active server takes nothing while the other one copies its map; then that goes on without it.

        So what the other one copies has no write that waits for the disk.
        """
        active = self.active()
        if active is None or not self.calm():
            return
        self.trace(active, "has a disk that takes nothing")
        other = self.other(active.name)
        self.kill_one(other)
        self.clock.after(ALONE_S, self.stalled.__setitem__, active.name, self.now + STALLED_S)
        self.restart_after(ALONE_S + 0.1, other)
        self.clock.after(STALLED_S, self.kill_one, active.name)
        self.restart_after(STALLED_S + 2.0, active.name)

    def stuff(self) -> None:
        """What a server has for one of those who follow it finds a full queue for a while."""
        server = self.pick()
        follower = self.rng.choice([each for each in self.alive(MapHost) if server in each.servers])
        self.stuffed[server, follower.name] = self.now + self.rng.choice((0.1, 1.0, 4.0))

    def void(self) -> None:
        """The active server goes on where only clients reach it, so what it numbers is void; later it leads again.

        Meanwhile little is written, so that the numbers come again for something else.
        """
        active = self.active()
        clients = self.alive(ClientHost)
        if active is None or not self.calm() or len(clients) < 2:
            return
        self.trace(active, "goes on where only some clients reach it")
        other = self.other(active.name)
        until = self.now + VOID_S
        for one in (other, WITNESS, clients[0].name):
            self.lines.cut(one, active.name, until, lost=True)
            self.lines.cut(active.name, one, until, lost=True)
        self.clock.after(VOID_WRITTEN_S, self._be_quiet)
        self.clock.after(VOID_S + 4.0, self.kill_one, other)
        self.restart_after(VOID_S + 6.0, other)

    def _be_quiet(self) -> None:
        self._quiet_until = self.now + VOID_S + 5.0
