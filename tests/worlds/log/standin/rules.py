"""Worlds of the log with rules that change: members are revoked, refused and allowed again, and rogues are among them.

Everybody has an identity, which is the name of the host. A change of the rules comes to each member at another time, up
to two seconds later; who does not know of it yet does what it could. A rogue knows nothing of rules: one sends what it
may not, also in the name of others, and beacons in their names; one wants everything with a right to one topic.
Originals have no identity, so there are none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any, Final

from tests.worlds.clocked import HostClock
from tests.worlds.log.ends import Ends
from tests.worlds.log.standin.forwarding import StandInForward
from tests.worlds.log.standin.judging import judged_otherwise
from tests.worlds.log.standin.members import ConsumerHost, ProducerHost
from tests.worlds.log.standin.node import NodeHost
from tests.worlds.log.standin.scenario import StandInLog
from tests.worlds.log.standin.stores import StoreHost
from tests.worlds.log.standin.world import HOST
from tests.worlds.log.world import TOPICS

from chappe.core import Report
from chappe.data.topic import Filter
from chappe.log.batch import encode_batch
from chappe.log.beacon import BEACON, GOODBYE, IDENTITY
from chappe.log.delivery import Records
from chappe.log.events import IdentityClash
from chappe.log.guard import GIVERS, PRODUCERS, Guard, LogRefusal
from chappe.log.member import LogProducers, ProducingMember
from chappe.log.messages import BatchMessage, Head, Message, OnDisk, Stored, encode
from chappe.log.producer import LogProducer
from chappe.permissions.rules import CONSUME, EVERYTHING, PRODUCE, STORE, Decisions, Identity, Permissions, Rule
from chappe.sim.host import SimMember
from chappe.sim.world import Checker

NOW: Final = datetime(2026, 1, 1, tzinfo=UTC)
LEARN_S: Final = 2.0  # within which everybody knows of a change
CALM_S: Final = 12.0  # after the last change nobody honest is refused any more
KINDS: Final = {"store": STORE, "forwarder": STORE, "producer": PRODUCE, "consumer": CONSUME}
HONEST: Final = tuple(f"{kind}{number}" for kind in KINDS for number in range(20))
FORGER, READER, THIEF = "forger", "reader", "thief"
ALLOWED: Final = "b.x"  # topic of the reader and the forger: enough to be listened to
FORGED_PORT: Final = 9  # nothing listens there


class Rules(StandInLog):
    """Producers, consumers, stores, two rogues, and rules that change."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.rule_rng = Random(f"rules {self.seed}")
        self.refusals: Counter[tuple[str, str]] = Counter()  # by who refuses, and whom
        self.changed_at = 0.0
        self._denied: dict[str, bool] = {}  # who may nothing for now, and whether by a revocation
        self._versions = [self._decisions()]
        self._known: dict[str, int] = {}  # the version that each member knows; the latest by default
        self._wide = Decisions(
            _permissions((Rule(True, frozenset([EVERYTHING]), frozenset(), frozenset("*"), ("*",)),)), NOW
        )
        self.left: set[tuple[str, str]] = set()  # addresses and endpoints of those who have left
        self._stores: dict[str, str] = {}  # whose query socket an endpoint was
        self.net.judge = self
        # Who is refused while the rules change may take what he is shown for all there is; by then his program is told.
        self.checkers = [each for each in self.checkers if not isinstance(each, Ends)]
        self.watch(Refused(self))

    # -- who may what -----------------------------------------------------------------------------------------

    def _decisions(self) -> Decisions:
        revoked = {name for name, by_revocation in self._denied.items() if by_revocation}
        rules = (
            [Rule(False, frozenset([EVERYTHING]), frozenset(), frozenset(self._denied), ("*",))] if self._denied else []
        )
        rules += [Rule(True, frozenset([verb]), frozenset([kind]), frozenset(), ("*",)) for kind, verb in KINDS.items()]
        rules.append(Rule(True, frozenset([CONSUME]), frozenset(), frozenset([READER, FORGER]), (ALLOWED,)))
        return Decisions(_permissions(tuple(rules), revoked), NOW)

    def decisions_of(self, name: str) -> Decisions:
        """What a member goes by."""
        return self._wide if name == FORGER else self._versions[self._known.get(name, -1)]

    def guard_of(self, host: Any) -> Guard:
        """See ``LogWorld.guard_of``."""
        name = host.name

        def refused(refusal: LogRefusal) -> None:
            self.trace(host, "refuses: %s", refusal)
            self.refusals[name, refusal.who] += 1
            self.see("on_refused", name, refusal)

        return Guard(lambda: self.decisions_of(name), refused, PRODUCERS if isinstance(host, StoreHost) else GIVERS)

    def tower_guard(self) -> Guard:
        """Return a guard that traces and counts refusals."""

        def refused(refusal: LogRefusal) -> None:
            self.trace(None, "a tower refuses: %s", refusal)
            self.refusals["tower", refusal.who] += 1
            self.see("on_refused", "a tower", refusal)

        return Guard(lambda: self.decisions_of("tower"), refused)

    def mark(self, name: str) -> str:
        """Return the identity's suffix of endpoints."""
        return f"#{name}"

    def part(self, host: Any) -> None:
        """Also remember the endpoint of the dead host."""
        super().part(host)
        self.left.add((host.address, host.endpoint))

    def may_send(self, name: str, topic: str) -> bool:
        """See ``LogWorld.may_send``."""
        return self.decisions_of(name).may(name, PRODUCERS, topic)

    def name_at(self, endpoint: str) -> str:
        """See ``LogWorld.name_at``: who is there says so in its endpoint."""
        store = self.net.routers.get(endpoint)
        if store is not None:
            self._stores[endpoint] = store.name
        return self._stores.get(endpoint, "")

    def admits(self, one: str, two: str) -> bool:
        """See ``Judge.admits``."""
        return self._in_force(one, two) and self._in_force(two, one)

    def _in_force(self, by: str, name: str) -> bool:
        return self.decisions_of(by).permissions.identities[name].revoked is None

    def hears(self, subscriber: Any, publisher: Any) -> Callable[[Message], None]:
        """See ``Judge.hears``."""
        guard: Guard = self.hosts[subscriber.name].guard

        def hear(message: Message) -> None:
            allowed = guard.message(publisher.name, message)
            if allowed is not None:
                subscriber.on_message(allowed)

        return hear

    # -- changes ----------------------------------------------------------------------------------------------

    def plan(self, until: float) -> float:
        """See ``Log.plan``; and members that may nothing for a while."""
        until = super().plan(until)
        rng = self.rule_rng
        for _ in range(rng.choice((1, 3, 8)) if self.settings.disturb else 0):
            self.clock.at(self.now + rng.uniform(0.0, until), self._deny)
        return until

    def _deny(self) -> None:
        honest = [each.name for each in self.members if each.name in HONEST]
        if self.sending and honest:
            name = self.rule_rng.choice(honest)
            self._denied[name] = self.rule_rng.random() < 0.5
            self._change("%s may nothing" + (" and is revoked" if self._denied[name] else ""), name)
            self.clock.after(self.rule_rng.choice((0.5, 3.0, 8.0)), self._allow, name)

    def _allow(self, name: str) -> None:
        if self._denied.pop(name, None) is not None:
            self._change("%s may what it could again", name)

    def _change(self, text: str, name: str) -> None:
        self.trace(None, text, name)
        self.changed_at = self.now
        former = len(self._versions) - 1
        self._versions.append(self._decisions())
        for member in self.members:
            if member.name in HONEST:
                self._known.setdefault(member.name, former)
                self.clock.after(self.rule_rng.uniform(0.0, LEARN_S), self._learn, member.name, former + 1)

    def _learn(self, name: str, version: int) -> None:
        """A member has a newer version: connections are judged anew, as the gate and the publishing socket do it."""
        if version <= self._known.get(name, len(self._versions) - 1):
            return
        self._known[name] = version
        host = self.hosts[name]
        if not isinstance(host, NodeHost) or not host.alive or host.guard is None:
            return
        for link in list(host.listeners):
            if not self._in_force(name, link.subscriber.name) or judged_otherwise(host.guard, link):
                link.break_()
        for endpoint, link in list(host.links.items()):
            if link.publisher is not None and not self._in_force(name, link.publisher.name):
                self.trace(host, "listens to %s no more", endpoint)
                link.break_()

    def heal(self) -> None:
        """Everybody may again what it could."""
        super().heal()
        for name in list(self._denied):
            self._allow(name)

    # -- who lives there --------------------------------------------------------------------------------------

    def populate(self) -> None:
        """See ``PopulatedLog.populate``."""
        super().populate()
        self.sealed = False
        SimMember(self, FORGER, lambda: ForgerHost(self))
        SimMember(self, READER, lambda: RogueReader(self, READER, Filter("", prefix=True)))
        SimMember(self, THIEF, lambda: RogueReader(self, THIEF, Filter("a")))

    def homes(self) -> list[ConsumerHost]:
        """Nobody goes to a rogue's."""
        return [each for each in super().homes() if each.name in HONEST]


def _permissions(rules: tuple[Rule, ...], revoked: set[str] = frozenset()) -> Permissions:  # type: ignore[assignment]
    far = NOW + timedelta(days=100)
    identities = {
        name: Identity(name, name.rstrip("0123456789"), name.encode(), None, far, b"", NOW if name in revoked else None)
        for name in (*HONEST, FORGER, READER, THIEF)
    }
    return Permissions(1, NOW - timedelta(days=1), far, identities, rules, {})


class ForgerHost(NodeHost):
    """It publishes what it may not: as itself, and as producers that may."""

    world: Rules

    def __init__(self, world: Rules) -> None:
        self.rng = Random(f"forger {world.seed}")
        self.member = ProducingMember("forger")
        self.member.address = "forger"  # of a member of any kind
        self.part = LogProducers(world.address(), self.member.subscriptions, clock=HostClock(world, FORGER))
        self.core = LogProducer(
            self.rng.choice(TOPICS), self.part.address, clock=self.part.clock, min_acks=1, limits=world.limits,
            subscriptions=self.member.subscriptions, kept=self.part.kept,
        )  # fmt: skip
        super().__init__(world, FORGER, self.member)

    def start(self) -> None:
        """Begin to forge."""
        super().start()
        self.call(self.member.add, self.part, self.world.now)
        self.call(self.member.add_topic, self.part, self.core, self.world.now)
        self.world.clock.after(self.rng.random(), self._work)

    def _work(self) -> None:
        world = self.world
        if not self.alive or not world.sending:
            return
        self.core.append(b"forged")
        self.perform(self.member.carry(self.part, self.core.flush(world.now)))
        self.arm()
        for each in world.alive(ProducerHost)[:1]:
            topic, address = each.key
            at = each.core.next_offset
            body = encode_batch(at, [b"forged"], self.wall_us)
            forged: list[Message] = [BatchMessage(topic, address, topic, body), Head(topic, address, topic, at + 5)]
            forged.append(Stored(address, self.part.address, topic, at))
            forged += [OnDisk(topic, store.disk.store_id, address, 0, at) for store in world.alive(StoreHost)]
            for message in forged:
                frames = encode(message)
                for link in list(self.listeners):
                    link.offer(frames[0], message)
        self._announce()
        world.clock.after(self.rng.uniform(0.1, 1.0), self._work)

    def _announce(self) -> None:
        """Forge beacons: goodbyes, claims, and members that are not there."""
        beacons = []
        for each in self.world.alive(NodeHost):
            if each is not self and each.name in HONEST:
                beacons.append((GOODBYE, each.address, f"{each.port}#{each.name}"))
                beacons.append((BEACON, f"invented by {each.name}", f"{FORGED_PORT}#{each.name}"))
        for each in self.world.alive(ProducerHost):
            for name in (each.name, FORGER):
                beacons.append((BEACON, IDENTITY + each.key[1], f"{FORGED_PORT}#{name}"))
        for kind, address, port in beacons:
            for line in self.lines:
                line.beacon((kind, address.encode(), HOST.encode(), port.encode()))


class RogueReader(ConsumerHost):
    """It wants what it may not have."""

    def __init__(self, world: Rules, name: str, wanted: Filter) -> None:
        super().__init__(world, name, [wanted], {})

    def wants_topic(self, topic: str) -> bool:
        """What it is to get."""
        return self.name == READER and topic == ALLOWED


class Refused(Checker[Rules]):
    """Nothing refused is stored or read; who may is refused nothing."""

    name = "rules"

    def on_deliver(self, host: Any, action: Records) -> None:
        """A consumer gets records."""
        if host.name in (READER, THIEF) and not host.wants_topic(action.topic):
            self.fail(f"the {host.name} gets {action.topic}")
        if b"forged" in action.batch.values():
            self.fail(f"{host.name} gets what was forged")

    def on_report(self, host: Any, event: object) -> None:
        """A member tells something."""
        assert not isinstance(event, Report)
        if isinstance(event, IdentityClash):
            self.fail(f"{host.name} gives way to a claim that was forged: {event}")

    def on_beacon(self, host: Any, frames: list[bytes]) -> None:
        """Check that no member hears a forged beacon."""
        if len(frames) == 3 and host.name in HONEST:
            kind, address, endpoint = (each.decode() for each in frames)
            if f":{FORGED_PORT}#" in endpoint:
                self.fail(f"{host.name} hears of what was forged: {address} at {endpoint}")
            if (
                kind == GOODBYE.decode()
                and not address.startswith(IDENTITY)
                and (address, endpoint) not in self.world.left
            ):
                self.fail(f"{host.name} hears a goodbye of {address} at {endpoint}, which is there")

    def on_refused(self, by: str, refusal: LogRefusal) -> None:
        """Somebody is refused: a rogue, or one of whom there was news lately."""
        world = self.world
        if refusal.who in (FORGER, READER, THIEF) or world.now <= world.changed_at + CALM_S:
            return
        if refusal.who.startswith("forwarder") and not refusal.topic:
            return  # two that ask for one consumer: who came first hears the answer
        self.fail(f"{by} refuses, long after everything was allowed: {refusal}")

    def on_tick(self) -> None:
        """Look at the disks."""
        forger = self.world.hosts.get(FORGER)
        if isinstance(forger, ForgerHost):
            key = (forger.core.topic, forger.core.address)
            for disk in self.world.disks:
                if key in disk.parts:
                    self.fail(f"{disk} has what the forger has sent")

    def unsettled(self) -> str | None:
        """Rogues were refused wherever they came; who may have something of what it wants gets that, and no refusal."""
        if self.world.towers and not self.world.refusals["tower", FORGER]:
            return f"no tower has refused anything to {FORGER}"
        for store in self.world.alive(StoreHost):
            for rogue in (FORGER, THIEF):
                if not self.world.refusals[store.name, rogue]:
                    return f"{store.name} has not refused anything to {rogue}"
        return None


class ForwardRules(Rules, StandInForward):
    """The same with two forwarders, and without towers."""
