"""Endpoints that seal and open, as ``api.mesh.hosting`` and ``runtime.mesh_ports`` do it, and the world of them."""

from __future__ import annotations

from math import inf
from random import Random
from typing import Any, Final
from uuid import UUID

from tests.worlds.mesh.base import MeshHost
from tests.worlds.mesh.charters import MANY, NOW, Charter, Version
from tests.worlds.mesh.hosts import ROUNDING_S, EndpointHost
from tests.worlds.mesh.scenario import MeshScenario
from tests.worlds.sealing import MARK, Authority, Machine, Nonces, sign_of

from chappe.core import Persist, Report
from chappe.errors import Sealed
from chappe.mesh.endpoint import EndpointCore, EndpointOptions
from chappe.mesh.forwarding.group_keys import KeysHere, OfferKeys
from chappe.mesh.messages import DATA, NOBODY, Message
from chappe.mesh.rules import MeshRules
from chappe.permissions.rules import EVERYBODY, EVERYTHING, Rule
from chappe.sealing.events import is_sealed, unwrap
from chappe.sealing.in_mesh import MeshSealing
from chappe.sealing.messages import MessageSealer, decode
from chappe.sealing.senders import SALT_BYTES

NAMES: Final = tuple(f"e{number}" for number in range(MANY))
KEEPS: Final = 0.8  # of the machines may write what they are handed
LAB: Final = 0.5  # of the worlds have another group, for other topics
ALL: Final = Rule(True, frozenset([EVERYTHING]), frozenset(), frozenset([EVERYBODY]), ("*",))


class SealedCharter(Charter):
    """Permissions that let everybody do everything, and say who is of which group."""

    def __init__(self, seed: int) -> None:
        self.authority: Authority | None = None
        super().__init__(seed)
        self._named = set(NAMES)

    def draw(self, *, all_forward: bool = False) -> Version:
        """What the authority has made by now."""
        count = 1 if self.authority is None else len(self.authority.versions)
        for number in range(len(self.versions) + 1, count + 1):
            allowed = [(True, verb, name, "*") for name in NAMES for verb in ("publish", "subscribe", "forward")]
            self.versions.append(Version(number, tuple(allowed), frozenset(NAMES)))
        return self.versions[-1]

    def _make(self, version: Version, own: str) -> MeshRules:
        assert self.authority is not None
        return MeshRules(self.authority.versions[version.number - 1], NOW, b"%d" % version.number, own)


class SealedMeshWorld(MeshScenario):
    """Who is of which group, and what was sealed."""

    ordinary = True
    mark = MARK
    per_message = 256

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.endpoint = SealedEndpoint
        self.seal_rng = rng = Random(f"groups {self.seed}")
        self.charter = self.laws = charter = SealedCharter(self.seed)
        groups = {"ward": (("/a*",), {name for name in NAMES if rng.random() < 0.7} | {"e0"})}
        if rng.random() < LAB:
            groups["lab"] = ("/c*",), {name for name in NAMES if rng.random() < 0.7} | {"e1"}

        def endpoint_of(name: str) -> UUID:
            found = charter.id_of(name)
            assert found is not None
            return UUID(bytes=found)

        self.authority = charter.authority = Authority(
            self.seed, NAMES, groups, lambda: self.clock.wall_us, endpoint_of, (ALL,)
        )
        self.nonces = Nonces()
        self.sealed: dict[bytes, tuple[str, int, str]] = {}  # by what was published: group, epoch and who sealed it
        self.outside: dict[tuple[str, str], float] = {}  # life and group: when it last knew that it is not of that
        self._machines: dict[str, Machine] = {}

    def machine(self, name: str) -> Machine:
        """That of an endpoint, which gets all files when it comes for the first time."""
        found = self._machines.get(name)
        if found is None:
            found = self._machines[name] = Machine(self.authority, name, keeps=self.seal_rng.random() < KEEPS)
        self.laws.draw()
        return found

    def lane(self, topic: bytes) -> str:
        """See ``MeshWorld.lane``: what waits for keys comes later than what needs none, or others."""
        group = self.authority.versions[0].group(topic.decode())
        return "" if group is None else group.name

    def reads(self, payload: bytes, life: str) -> bool:
        """See ``MeshWorld.reads``: of whoever knows all the time from then on that it is of the group."""
        found = self.sealed.get(payload)
        if found is None:
            return True
        group, epoch, _ = found
        entitled = epoch in self.authority.entitled[group, life.partition("#")[0]]
        return entitled and self.outside.get((life, group), -inf) < self.record.publications[payload].at

    def sealed_from(self, host: SealedEndpoint, sealed: bytes, payloads: list[bytes]) -> None:
        """An endpoint has sealed something."""
        if not is_sealed(sealed):
            return
        raw = unwrap(sealed)
        frame = decode(raw)
        if MARK in raw:
            self.fail("secrets", f"{host.life} seals nothing of {payloads[0]!r}")
        self.sealed.update(dict.fromkeys(payloads, (frame.group, frame.epoch, host.name)))
        self.see("on_sealed", host, frame)


class SealedEndpoint(EndpointHost):
    """An endpoint with an identity."""

    world: SealedMeshWorld

    def __init__(
        self,
        world: SealedMeshWorld,
        name: str,
        life: str,
        own_id: bytes,
        options: EndpointOptions,
        make: type[EndpointCore],
    ) -> None:
        self.machine = machine = world.machine(name)
        machine.restarted()
        world.laws.held[name] = machine.version
        self.held = machine.held()
        self.sealing = MeshSealing(
            self.held,
            MessageSealer(name, world.seal_rng.randbytes(SALT_BYTES), sign_of(name), world.nonces.cipher),
            lambda now: machine.look(self.held),
            lambda: world.steady(name),
            world.clock,
        )
        self._here: KeysHere | None = None
        super().__init__(world, name, life, own_id, options, make)
        self.core.router.opens = self._open
        self._note_groups()
        self._say_keys()

    # -- files ----------------------------------------------------------------------------------------

    def copy(self) -> None:
        """All files of the authority are copied here."""
        self.machine.copy()
        self.world.laws.draw()
        self.go_by(self.machine.version)
        self._say_keys()

    def go_by(self, number: int) -> None:
        """See ``EndpointHost``."""
        self.machine.offer(b"%d" % number)
        super().go_by(number)

    def _persist(self, action: Persist) -> None:
        if isinstance(action.job, OfferKeys):
            if self.machine.offer_keys(action.job.group, action.job.raw):
                self._say_keys()
        else:
            super()._persist(action)
            self._say_keys()

    def _say_keys(self) -> None:
        """As ``runtime.mesh_rules`` does it."""
        versions = self.machine.versions()
        mine = frozenset(each for each in versions if self.machine.wanted(each, self.name))
        if self._here is None or (self._here.versions, self._here.mine) != (versions, mine):
            self._here = KeysHere(versions, mine, self.machine.after)
            self.ask(self.core.set_keys, self._here)

    def _note_groups(self) -> None:
        for group in self.held.permissions.sealed:
            if not self.held.within(group):
                self.world.outside[self.life, group.name] = self.world.now

    # -- sealing and opening --------------------------------------------------------------------------

    def due(self) -> float:
        """See ``Host.due``."""
        behind_s = self.world.now - self.now
        return min(super().due(), self.sealing.due + behind_s + (ROUNDING_S if behind_s else 0.0))

    def handle_due(self) -> None:
        """See ``Host.handle_due``."""
        super().handle_due()
        if self.alive and self.now >= self.sealing.due:
            self._note_groups()
            self.ask(self.core.deliver_opened, self.sealing.look())
            self._note_groups()
            for each in self.sealing.untold():
                self._report(Report(each))

    def publish(self, topic: bytes, payload: bytes, kind: int = DATA, receiver: MeshHost | None = None) -> bool:
        """See ``MeshHost.publish``; what is no event is not sealed by who publishes it."""
        own_id = NOBODY if receiver is None else receiver.own_id
        if not self.core.room((topic,), own_id):
            self.world.see("on_refused", self, topic, receiver)
            return False
        try:
            sealed = self.sealing.seal(topic, payload, DATA, own_id)
        except Sealed:
            return False
        self.world.sealed_from(self, sealed, [payload])
        self._published(topic, payload, DATA, receiver)
        self.ask(self.core.publish, topic, sealed, DATA, own_id)
        return True

    def publish_many(self, topic: bytes, payloads: list[bytes]) -> bool:
        """See ``MeshHost.publish_many``."""
        if not self.sealing.seals(topic):
            return super().publish_many(topic, payloads)
        if not self.core.room((topic,)):
            self.world.see("on_refused", self, topic, None)
            return False
        try:
            sealed = self.sealing.seal_many(topic, payloads)
        except Sealed:
            return False
        for each in sealed:
            self.world.sealed_from(self, each, payloads)
        for payload in payloads:
            self._published(topic, payload)
        self.ask(lambda now: self.core.publish_many([(topic, each) for each in sealed], now)[0])
        return True

    def _open(self, messages: list[Message]) -> list[Message]:
        self.world.see("on_coming", self, messages)
        return self.sealing.open(messages)
