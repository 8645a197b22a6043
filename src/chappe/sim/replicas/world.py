"""One world of a data store: who takes part, what they do, what goes wrong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from chappe.kv.actions import Notify, Resolve, Send
from chappe.kv.clone import KvClone
from chappe.kv.commands import AckClone, Clear, SnapshotOffer, decode_message
from chappe.kv.entity import Entity, chappe_entity
from chappe.kv.master import KvMaster
from chappe.sim.replicas.checkers import Checker, all_checkers
from chappe.sim.replicas.keeping import SimBackend
from chappe.sim.replicas.members import CLONE_TOPIC, MASTER_TOPIC, CloneHost, Host, MasterHost
from chappe.sim.replicas.rogues import any_command, any_message
from chappe.sim.replicas.truth import PENDING, Asked, ReplicaTruth
from chappe.sim.replicas.wire import Wire
from chappe.sim.world import Clock, Violation

NOTICE_S = (0.0, 0.5, 20.0)  # how long until a member hears that another is out of reach


@dataclass(frozen=True)
class StoreCores:
    """What is under test; broken ones are put here to see that the checkers notice."""

    master: type[KvMaster] = KvMaster
    clone: type[KvClone] = KvClone


class ReplicaWorld:
    """Everything that one seed decides."""

    def __init__(
        self, seed: int, *, cores: StoreCores | None = None, tell: Callable[[str], None] | None = None
    ) -> None:
        self.seed = seed
        self.clock = Clock(seed)
        self.rng = self.clock.rng
        self.wire = Wire(self.clock)
        self.cores = cores or StoreCores()
        self.truth = ReplicaTruth()
        self.bounds: dict[str, int] = {}
        self.checkers: list[Checker] = all_checkers(self)
        self.members: dict[str, Host] = {}
        self.working = True
        self.clears = self.rng.random() < 0.2
        self.backend = SimBackend() if self.rng.random() < 0.6 else None
        self.master_lives = 0
        self.second = False  # whether there was a second master
        self.dies_after_commit = 0.0
        self._commit_s = self.rng.choice((0.001, 0.02, 0.3))
        self._serial = 0
        self._tell = tell
        self._names: dict[str, bytes] = {}

    @property
    def now(self) -> float:
        """Virtual seconds since the beginning."""
        return self.clock.now

    @property
    def lasting(self) -> bool:
        """Whether what was confirmed is never lost: the master never lost its memory, and nobody cleared it."""
        return not self.clears and not self.second and (self.backend is not None or self.master_lives <= 1)

    def trace(self, who: Host | None, text: str, *args: object) -> None:
        """Tell what happens, if somebody listens."""
        if self._tell is not None:
            self._tell(f"{self.now:9.4f}  {'' if who is None else who.name:<10} {text % args}")

    def fail(self, checker: str, text: str) -> None:
        """A promise was broken."""
        raise Violation(checker, text)

    def endpoint_of(self, name: str) -> bytes:
        """The endpoint of a member's next life."""
        self._names[name] = self.rng.getrandbits(128).to_bytes(16, "big")
        return self._names[name]

    def commit_s(self) -> float:
        """How long the next commit takes."""
        return self._commit_s * self.rng.expovariate(1.0)

    def next_serial(self) -> int:
        """A fresh number for an operation."""
        self._serial += 1
        return self._serial

    # -- members ------------------------------------------------------------------------------------------------

    def populate(self) -> None:
        """Make the first members; now and then the clones are there before their master."""
        clones = self.rng.choice((1, 2, 3, 5))
        if self.rng.random() < 0.7:
            self.add_master("master")
        else:
            self.clock.after(self.rng.choice((0.5, 15.0)), self.add_master, "master")
        for number in range(clones):
            self.add_clone(f"clone{number}")
        self.clock.after(0.0, self._work)

    def add_master(self, name: str) -> None:
        """A master; the first has the backend, if there is one."""
        if name in self.members and self.members[name].alive:
            return
        self.master_lives += name == "master"
        self.second |= name != "master"
        self._join(MasterHost(self, name, self.backend if name == "master" else None))

    def add_clone(self, name: str) -> None:
        """A clone."""
        if name not in self.members or not self.members[name].alive:
            self._join(CloneHost(self, name))

    def _join(self, host: Host) -> None:
        self.members[host.name] = host
        self.trace(host, "starts as %s", host.entity)
        host.start()

    def kill(self, host: Host) -> None:
        """Crash a member; those who notice do so some time later."""
        self.trace(host, "dies")
        host.die()
        self._gone(host)

    def close(self, host: CloneHost) -> None:
        """Have a clone say that it leaves, whatever is under way, and end."""
        self.trace(host, "is closed")
        host.call(host.core.leave())
        host.die()
        self._gone(host)

    def kill_master(self, host: Host) -> None:
        """Crash a master and start it again some time later."""
        self.kill(host)
        self.clock.after(self.rng.choice((0.1, 1.0, 15.0)), self.add_master, host.name)

    def _gone(self, host: Host) -> None:
        notice_s = self.rng.choice(NOTICE_S)
        for other in self.members.values():
            self.clock.after(notice_s, self._notice, other, host.entity.endpoint)

    def _notice(self, host: Host, endpoint: bytes) -> None:
        if host.alive:
            host.call(host.core.handle_gone(endpoint, self.now))

    def cut(self, a: Host, b: Host, seconds: float) -> None:
        """Nothing passes between two members for some time."""
        self.trace(a, "is cut off from %s for %.1f s", b.name, seconds)
        self.wire.cut(a.name, b.name, self.now + seconds)
        if self.rng.random() < 0.5:
            self.clock.after(0.1, self._notice, a, b.entity.endpoint)
            self.clock.after(0.1, self._notice, b, a.entity.endpoint)

    def end_link(self, a: Host, b: Host) -> None:
        """The link between two members ends for about a second: both hear of it at once."""
        self.trace(a, "has no link to %s for a second", b.name)
        self.wire.cut(a.name, b.name, self.now + self.rng.choice((0.3, 1.0, 1.5)))
        self._notice(a, b.entity.endpoint)
        self._notice(b, a.entity.endpoint)

    def slow(self, host: Host, seconds: float) -> None:
        """A member takes little for some time; what is sent to it waits."""
        self.trace(host, "is slow for %.1f s", seconds)
        self.wire.slow(host.name, self.rng.choice((500.0, 5_000.0)))
        self.clock.after(seconds, self.wire.fast, host.name)

    def say_anything(self, host: Host) -> None:
        """A stranger says something to a member, in its own name, or in one that it has made up."""
        rng = self.rng
        stranger = chappe_entity(b"rogue" + rng.getrandbits(88).to_bytes(11, "big"), rng.getrandbits(32))
        if rng.random() < 0.5:
            stranger = Entity(b"a rogue original", rng.choice((6, 7)))
        for _ in range(rng.choice((1, 5, 50))):
            command = any_command(rng, (stranger, host.entity), ("rogue",), (1, "a", ("b", 2)))
            if isinstance(command, AckClone | SnapshotOffer | Clear):
                continue  # a second master, or one who may write: what they do counts
            payload = any_message(rng, host.entity, stranger, command)
            self.trace(host, "is told %r by a stranger", command)
            host.hear(Send(MASTER_TOPIC if host.kind == "master" else CLONE_TOPIC, host.entity.endpoint, payload))

    def masters(self) -> list[MasterHost]:
        """The masters that run."""
        return [each for each in self.members.values() if each.alive and isinstance(each, MasterHost)]

    def only_master(self) -> MasterHost | None:
        """The master, if there is one."""
        found = self.masters()
        return found[0] if len(found) == 1 else None

    def clones(self) -> list[CloneHost]:
        """The clones that run."""
        return [each for each in self.members.values() if each.alive and isinstance(each, CloneHost)]

    def lives(self, life: str) -> bool:
        """Whether a life of a member goes on."""
        return any(each.alive and str(each.entity) == life for each in self.members.values())

    # -- what happens -------------------------------------------------------------------------------------------

    def _work(self) -> None:
        """Applications do something now and then, sometimes much at once."""
        if not self.working:
            return
        living = [each for each in self.members.values() if each.alive]
        if living:
            host = self.rng.choice(living)
            for _ in range(self.rng.choice((1, 1, 1, 3, 20))):
                if host.alive:
                    host.act()
        self.clock.after(self.rng.expovariate(20.0), self._work)

    def began(self, host: Host, serial: int, what: tuple[str, Any, Any, int]) -> None:
        """An operation is asked for."""
        self.truth.asked[serial] = Asked(str(host.entity), what)
        self.trace(host, "asks %d: %s %r %r", serial, *what[:3])

    def ended(self, serial: int, outcome: object) -> None:
        """Its outcome."""
        self.truth.asked[serial].outcome = outcome
        self.truth.answered += 1

    def resolved(self, host: Host, action: Resolve) -> None:
        """A ticket is resolved."""
        asked = self.truth.asked[action.ticket]
        self.trace(host, "is told of %d: %r", action.ticket, action.outcome)
        if asked.member != str(host.entity) or asked.outcome is not PENDING:
            self.fail("exactly once", f"{host.name} is told twice of {action.ticket}: {action.outcome}")
        asked.outcome = action.outcome
        self.truth.answered += 1

    def notified(self, host: Host, action: Notify) -> None:
        """A member tells its watchers."""
        self.trace(host, "shows %s %r: %r", action.kind, action.key, action.value)
        for checker in self.checkers:
            checker.on_notify(host, action)

    def route(self, host: Host, action: Send) -> None:
        """A member sends a message."""
        for checker in self.checkers:
            checker.on_send(host, action)
        if self._tell is not None:
            message = decode_message(action.payload)
            self.trace(host, "sends %d %s%s", message.seq, message.command, "" if action.receiver else " to all")
        for other in self.members.values():
            if other is host or (action.receiver is not None and action.receiver != other.entity.endpoint):
                continue
            if action.topic == CLONE_TOPIC or isinstance(other, MasterHost):
                self.wire.send(host.name, other.name, other.hear, action, len(action.payload))
