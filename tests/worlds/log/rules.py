"""Worlds of the log with rules that change: members are revoked, refused and allowed again, and rogues are among them.

Everybody has an identity, which is the name of the host. A change of the rules is copied to some hosts, each up to two
seconds later, and handed on to the others by towers or forwarders; who does not know of it yet does what it could. A
rogue goes by permissions of its own: one sends what it may not, also in the name of others, and beacons in their names;
two want everything, one of them with a right to one topic. Originals have no identity, so there are none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any, Final

from tests.worlds.log.identities import KeyedLog
from tests.worlds.log.residents import ConsumerLife, ConsumerResident, LogLife, ProducerLife, StoreLife
from tests.worlds.log.scenario import Forward
from tests.worlds.log.world import TOPICS
from tests.worlds.residents import Place, Resident
from tests.worlds.sealing import BEGINNING, FAR, identity_of, signed_file
from tests.worlds.stage import Replaced

from chappe import Producer
from chappe.data.topic import Filter
from chappe.errors import ChappeError
from chappe.log.batch import encode_batch
from chappe.log.beacon import BEACON, GOODBYE, IDENTITY
from chappe.log.delivery import Records
from chappe.log.events import IdentityClash
from chappe.log.guard import LogRefusal
from chappe.log.messages import BatchMessage, Head, Message, OnDisk, Stored, encode
from chappe.permissions.rules import CONSUME, EVERYTHING, INTRODUCE, PRODUCE, STORE, Permissions, Rule
from chappe.runtime.meeting import TOWER_SAYS, AtTowers
from chappe.security import permissions_file
from chappe.sim.world import Checker
from chappe.storage.key_files import WatchedPermissions
from chappe.system import machine, time
from chappe.transports.refusals import RefusalLog

LEARN_S: Final = 2.0  # within which those to whom a change is copied have it
CUT_S: Final = 1.5  # within which who is revoked is cut off where that is known
CALM_S: Final = 12.0  # after the last change nobody honest is refused any more
KINDS: Final = {"store": STORE, "forwarder": STORE, "producer": PRODUCE, "consumer": CONSUME}
HONEST: Final = tuple(f"{kind}{number}" for kind in KINDS for number in range(12))
TOWERS: Final = ("tower0", "tower1")
FORGER, READER, THIEF = "forger", "reader", "thief"
ROGUES: Final = (FORGER, READER, THIEF)
ALLOWED: Final = "b.x"  # topic of the reader and the forger: enough to be listened to
FORGED_PORT: Final = 9  # nothing listens there
HOST: Final = "127.0.0.1"
EVERYBODY: Final = frozenset("*")
PERMISSIONS: Final = permissions_file(Path()).name


class Rules(KeyedLog):
    """Producers, consumers, stores, rogues, and rules that change."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.rule_rng = Random(f"rules {self.seed}")
        self.refusals: Counter[tuple[str, str]] = Counter()  # by who refuses, and whom
        self.changed_at = 0.0
        self._denied: dict[str, bool] = {}  # who may nothing for now, and whether by a revocation
        self._versions: list[Permissions] = []
        self._versions.append(self._permissions())
        self.watch(Refused(self))

    def _replaced(self, *arguments: Any) -> list[Replaced]:
        return [
            *super()._replaced(*arguments),
            (RefusalLog, "add_refusal", self._refusing(RefusalLog.add_refusal)),
            (AtTowers, "hear", self._hearing(AtTowers.hear)),
        ]

    # -- who may what -----------------------------------------------------------------------------------------

    def _permissions(self) -> Permissions:
        denied = frozenset(self._denied)
        rules = [Rule(False, frozenset([EVERYTHING]), frozenset(), denied, ("*",))] if denied else []
        rules += [Rule(True, frozenset([verb]), frozenset([kind]), frozenset(), ("*",)) for kind, verb in KINDS.items()]
        rules.append(Rule(True, frozenset([INTRODUCE]), frozenset(["tower"]), frozenset(), ("*",)))
        rules.append(Rule(True, frozenset([CONSUME]), frozenset(), frozenset([READER, FORGER]), (ALLOWED,)))
        return self._with(tuple(rules), len(self._versions) + 1)

    def _with(self, rules: tuple[Rule, ...], version: int) -> Permissions:
        names = (*HONEST, *TOWERS, *ROGUES)
        revoked = {name: BEGINNING for name, by_revocation in self._denied.items() if by_revocation}
        identities = {
            name: identity_of(name, role=name.rstrip("0123456789"), revoked=revoked.get(name)) for name in names
        }
        return Permissions(version, BEGINNING, FAR, identities, rules, {})

    def files(self) -> Mapping[str, bytes]:
        return {PERMISSIONS: signed_file(self._versions[-1])}

    def make_rogue(self, name: str, who: frozenset[str]) -> None:
        """Let a host go by permissions of its own, by which these may everything."""
        everything = Rule(True, frozenset([EVERYTHING]), frozenset(), who, ("*",))
        wide = self._with((everything, *self._versions[0].rules), 1)
        self.directories.make(name, {PERMISSIONS: signed_file(wide, name)}, name)

    def _refusing(self, add_refusal: Callable[..., None]) -> Callable[..., None]:
        def watched(log: RefusalLog, refusal: LogRefusal) -> None:
            host: Any = machine.current()
            self.trace(None, "%s refuses: %s", host.name, refusal)
            self.refusals[host.name, refusal.who] += 1
            self.show("on_refused", host.name, refusal)
            add_refusal(log, refusal)

        return watched

    def _hearing(self, hear: Callable[..., Any]) -> Callable[..., Any]:
        def watched(meeting: AtTowers, link: Any, frames: Any) -> Any:
            if link is TOWER_SAYS:
                self.show("on_beacon", meeting, frames)
            return hear(meeting, link, frames)

        return watched

    # -- changes ----------------------------------------------------------------------------------------------

    def plan(self, until: float) -> float:
        """As the log; and members that may nothing for a while."""
        until = super().plan(until)
        rng = self.rule_rng
        for _ in range(rng.choice((1, 3, 8)) if self.settings.disturb else 0):
            self.clock.at(self.now + rng.uniform(0.0, until), self._deny)
        return until

    def _deny(self) -> None:
        honest = [each.name for each in self.places if each.name in HONEST]
        if self.sending and honest:
            name = self.rule_rng.choice(honest)
            self._denied[name] = self.rule_rng.random() < 0.5
            self.trace(None, "%s may nothing" + (" and is revoked" if self._denied[name] else ""), name)
            self._change([name for name in (*honest, *TOWERS) if self.rule_rng.random() < 0.5])
            self.clock.after(self.rule_rng.choice((0.5, 3.0, 8.0)), self._allow, name)

    def _allow(self, name: str) -> None:
        if self._denied.pop(name, None) is not None:
            self.trace(None, "%s may what it could again", name)
            self._change(
                [each.name for each in self.places if each.name in HONEST]
            )  # who believes all are revoked, too

    def _change(self, names: list[str]) -> None:
        self.changed_at = self.now
        self._versions.append(self._permissions())
        for name in names:
            self.clock.after(self.rule_rng.uniform(0.0, LEARN_S), self.directories.copy, name)

    def behind(self) -> Iterator[str]:
        """Return who does not go by the newest permissions yet."""
        gates = [(each.name, each.ports.gate) for each in self.alive(LogLife) if each.name not in ROGUES]
        gates += [(each.name, each.gate) for each in self.towers if each.up]
        return (f"{name} has {gate.version}" for name, gate in gates if gate.version < len(self._versions))

    def unrefused(self) -> str | None:
        """Return where a rogue was not refused so far."""
        if self.towers and not any(self.refusals[each.name, FORGER] for each in self.towers):
            return f"no tower has refused anything to {FORGER}"
        for store in self.alive(StoreLife):
            for rogue in (FORGER, THIEF):
                if not self.refusals[store.name, rogue]:
                    return f"{store.name} has not refused anything to {rogue}"
        return None

    def heal(self) -> None:
        """Everybody may again what it could."""
        super().heal()
        for name in list(self._denied):
            self._allow(name)

    # -- who lives there --------------------------------------------------------------------------------------

    def add_others(self) -> None:
        """Make the rogues; originals and queries have no keys."""
        self.make_rogue(FORGER, EVERYBODY)
        self.move_in(ForgerResident(self, FORGER, Place(self, FORGER)))
        for name, wanted in ((READER, Filter("", prefix=True)), (THIEF, Filter("a"))):
            self.make_rogue(name, frozenset([name]))
            self.move_in(RogueReader(self, name, wanted))
        for _ in range(self.few(self.late_rng.choice((1, 2))) if self.ages else 0):
            self.clock.after(
                self.late_rng.choice((0.0, 0.5, 3.0)), self.add_consumer, self.late_rng.choice((0.3, 1, 5))
            )


class ForgerLife(LogLife):
    """It publishes what it may not: as itself, and as producers that may."""

    world: Rules

    def __init__(self, world: Rules, resident: Resident) -> None:
        super().__init__(world, resident)
        self.rng = resident.rng  # type: ignore[attr-defined]
        self.face = Producer(self.rng.choice(TOPICS), **world.where, min_acks=0, security=world.security(FORGER))
        self.ports = self.face._node.node
        self.address = self.face.partition
        self.soon(self.rng.random(), self._work)

    def _work(self) -> None:
        world, ports = self.world, self.ports
        if not world.sending and world.unrefused() is None:
            return
        with suppress(ChappeError):
            self.face.send(b"forged")
        forged: list[Message] = []
        for each in world.alive(ProducerLife)[:1]:
            topic, address = each.key
            at = each.core.next_offset
            body = encode_batch(at, [b"forged"], time.time_ns() // 1000)
            forged += [BatchMessage(topic, address, topic, body), Head(topic, address, topic, at + 5)]
            forged.append(Stored(address, self.address, topic, at))
            forged += [OnDisk(topic, store.disk.store_id, address, 0, at) for store in world.alive(StoreLife)]
        with ports.driver.lock:
            for message in forged:
                ports.publish_frames(encode(message))
            if world.towers:
                self._announce()
        self.soon(self.rng.uniform(0.1, 1.0), self._work)

    def _announce(self) -> None:
        """Forge beacons: goodbyes, claims, and members that are not there."""
        beacons = []
        for each in self.world.alive(LogLife):
            if each.name not in ROGUES:
                port = each.ports.endpoint.rpartition(":")[2]
                beacons.append((GOODBYE, each.ports.address, port))
                beacons.append((BEACON, f"invented by {each.name}", f"{FORGED_PORT}#{each.resident.place.name}"))
        for each in self.world.alive(ProducerLife):
            for name in (each.resident.place.name, FORGER):
                beacons.append((BEACON, IDENTITY + each.key[1], f"{FORGED_PORT}#{name}"))
        for kind, address, port in beacons:
            self.ports.meeting.beacon((kind, address.encode(), HOST.encode(), port.encode()))


class ForgerResident(Resident):
    """The forger over all its lives."""

    life = ForgerLife

    def __init__(self, world: Rules, name: str, place: Place) -> None:
        super().__init__(world, name, place)
        self.rng = Random(f"forger {world.seed}")


class RogueLife(ConsumerLife):
    """It wants what it may not have."""

    def wants_topic(self, topic: str) -> bool:
        """What it is to get."""
        return self.name == READER and topic == ALLOWED


class RogueReader(ConsumerResident):
    """Such a consumer over all its lives, on a host of its own."""

    def __init__(self, world: Rules, name: str, wanted: Filter) -> None:
        super().__init__(world, name, Place(world, name), [wanted], lasting=False, last=False, min_acks=0)
        self.life = RogueLife


class Refused(Checker[Rules]):
    """Nothing refused is stored or read; who may is refused nothing."""

    name = "rules"

    def __init__(self, world: Rules) -> None:
        super().__init__(world)
        self._revoked: dict[int, float] = {}  # connections of whom the listener knows that he is revoked: since when

    def on_deliver(self, host: Any, action: Records) -> None:
        """A consumer gets records."""
        if host.name in (READER, THIEF) and not host.wants_topic(action.topic):
            self.fail(f"the {host.name} gets {action.topic}")
        if b"forged" in action.batch.values():
            self.fail(f"{host.name} gets what was forged")

    def on_report(self, host: Any, event: object) -> None:
        """A member tells something."""
        if isinstance(event, IdentityClash):
            self.fail(f"{host.name} gives way to a claim that was forged: {event}")

    def on_beacon(self, meeting: AtTowers, frames: list[bytes]) -> None:
        """Check that no member hears a forged beacon."""
        if len(frames) != 3 or meeting.gate is None or meeting.gate.name not in HONEST:
            return
        kind, address, endpoint = (each.decode() for each in frames)
        if f":{FORGED_PORT}#" in endpoint:
            self.fail(f"{meeting.gate.name} hears of what was forged: {address} at {endpoint}")
        if kind == GOODBYE.decode() and any(
            each.ports.address == address and each.ports.endpoint.endswith(endpoint)
            for each in self.world.alive(LogLife)
        ):
            self.fail(f"{meeting.gate.name} hears a goodbye of {address} at {endpoint}, which is there")

    def on_refused(self, by: str, refusal: LogRefusal) -> None:
        """Somebody is refused: a rogue, or one of whom there was news lately."""
        world = self.world
        if refusal.who in ROGUES or by in ROGUES:
            return
        self._see_news()
        if world.now <= world.changed_at + CALM_S:
            return
        if refusal.who.startswith("forwarder") and not refusal.topic:
            return  # two that ask for one consumer: who came first hears the answer
        self.fail(f"{by} refuses, long after everything was allowed: {refusal}")

    def _see_news(self) -> None:
        if next(self.world.behind(), None) is not None:
            self.world.changed_at = self.world.now

    def on_tick(self) -> None:
        """Look at the disks, and at connections."""
        self._see_news()
        self._revoked = {each: self._revoked.get(each, self.world.now) for each in self._of_revoked()}
        if any(since < self.world.now - CUT_S for since in self._revoked.values()):
            self.fail(f"connections {self._revoked} of members that are revoked go on")
        for forger in self.world.alive(ForgerLife):
            key = (forger.face.topic, forger.face.partition)
            for disk in self.world.disks:
                if key in disk.parts:
                    self.fail(f"{disk} has what the forger has sent")

    def _of_revoked(self) -> Iterator[int]:
        for descriptor, each in self.world.net.shaken.items():
            found = each.listener.host.once.get(WatchedPermissions, {})
            who = each.properties["User-Id"]
            if not each.listener.host.paused and any(
                watched.permissions.identities[who].revoked for watched in found.values()
            ):
                yield descriptor

    def unsettled(self) -> str | None:
        """Everybody goes by the newest rules; and rogues were refused wherever they came."""
        for name in self.world.behind():
            return f"{name} of {len(self.world._versions)} versions of the permissions"
        return self.world.unrefused()


class ForwardRules(Rules, Forward):
    """The same with two forwarders, and without towers."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.forwarders = {name: f"{name}@{where}" for name, where in self.forwarders.items()}

    def tower_of_originals(self, name: str) -> None:
        """Nowhere: they have no keys."""
