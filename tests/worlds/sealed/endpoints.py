"""Endpoints of which topics are sealed, and the world of them."""

from __future__ import annotations

from math import inf
from pathlib import Path
from random import Random
from typing import Any, Final, cast
from uuid import UUID

from tests.worlds.mesh.base import MeshHost
from tests.worlds.mesh.charters import MANY, Charter, Version
from tests.worlds.mesh.rules import RuledEndpoint, RuledMesh
from tests.worlds.sealing import MARK, Authority, Nonces
from tests.worlds.stage import Replaced

from chappe.errors import Sealed
from chappe.mesh.messages import DATA, Message
from chappe.permissions.rules import EVERYBODY, EVERYTHING, Permissions, Rule
from chappe.sealing.events import is_sealed, unwrap
from chappe.sealing.messages import MessageSealer, decode
from chappe.sealing.primitives import Sign
from chappe.sealing.ring import HeldGroups
from chappe.security import permissions_file, sealed_file
from chappe.storage import sealed_files
from chappe.storage.key_files import put_beside

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

    def _permissions(self, version: Version) -> Permissions:
        assert self.authority is not None
        return self.authority.versions[version.number - 1]


class SealedMeshWorld(RuledMesh):
    """Who is of which group, and what was sealed."""

    mark = MARK
    per_message = 256

    def __init__(self, seed: int, *arguments: Any, **options: Any) -> None:
        super().__init__(seed, *arguments, **options)
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
        self._copied: dict[str, dict[str, bytes]] = {}  # by host: what people have put there
        self._keeps: dict[str, bool] = {}  # hosts that may write what they are handed

    def replaced(self) -> list[Replaced]:
        def sealer(name: str, salt: bytes, sign: Sign) -> MessageSealer:
            return MessageSealer(name, salt, sign, self.nonces.cipher)

        return [*super().replaced(), (sealed_files, "MessageSealer", sealer)]

    def copy(self, name: str) -> dict[str, bytes]:
        """Copy all files of the authority to a host."""
        number = self.laws.draw().number
        found = {sealed_file(Path(), group).name: chain.raw() for group, chain in self.authority.chains.items()}
        self._copied[name] = found | {permissions_file(Path()).name: self.laws.file(number)}
        return self._copied[name]

    def files(self, name: str) -> dict[str, bytes]:
        if name not in self._keeps:
            self._keeps[name] = self.seal_rng.random() < KEEPS
            return self.copy(name)
        return super().files(name) if self._keeps[name] else self._copied[name]

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


class SealedEndpoint(RuledEndpoint):
    """An endpoint of which checkers see what it seals, and is about to open."""

    world: SealedMeshWorld

    def __init__(self, world: SealedMeshWorld, *arguments: Any) -> None:
        super().__init__(world, *arguments)
        self.sealing = sealing = cast(Any, self.face.node.sealing)
        self._seal, self._seal_many = sealing.seal, sealing.seal_many
        sealing.seal, sealing.seal_many = self._sealed, self._sealed_many
        self.held: HeldGroups = sealing._held
        self._take_files = self.held.take
        self.held.take = self._look_at_files
        self.core.router.opens = self._open
        self._note_groups()

    @property
    def versions(self) -> dict[str, int]:
        """Of the keys of each group that it has."""
        found: dict[str, int] = self.face.node._rules.keys._groups.versions()  # type: ignore[union-attr]
        return found

    def copy(self) -> None:
        """All files of the authority are copied here."""
        for file, raw in self.world.copy(self.name).items():
            put_beside(self.world.directory_of(self.life) / file, raw)

    def _look_at_files(self, *found: Any) -> None:
        self._note_groups()
        self._take_files(*found)
        self._note_groups()

    def _note_groups(self) -> None:
        for group in self.held.permissions.sealed:
            if not self.held.within(group):
                self.world.outside[self.life, group.name] = self.world.now

    # -- sealing and opening --------------------------------------------------------------------------

    def publish(self, topic: bytes, payload: bytes, kind: int = DATA, receiver: MeshHost | None = None) -> bool:
        """See ``MeshHost.publish``; commands are those of data stores, and seal themselves."""
        try:
            return super().publish(topic, payload, DATA, receiver)
        except Sealed:
            return False

    def publish_many(self, topic: bytes, payloads: list[bytes]) -> bool:
        """See ``MeshHost.publish_many``; what could not be sealed was not published."""
        if not self.sealing.seals(topic):
            return super().publish_many(topic, payloads)
        try:
            with self._here():
                found = self.face.try_publish_many([(topic, each) for each in payloads])
        except Sealed:
            return False
        if found is None:
            self.world.see("on_refused", self, topic, None)
            return False
        for payload in payloads:
            self._published(topic, payload)
        return True

    def _sealed(self, topic: bytes, payload: bytes, *rest: Any) -> bytes:
        found: bytes = self._seal(topic, payload, *rest)
        self.world.sealed_from(self, found, [payload])
        return found

    def _sealed_many(self, topic: bytes, payloads: list[bytes]) -> list[bytes]:
        found: list[bytes] = self._seal_many(topic, payloads)
        for each in found:
            self.world.sealed_from(self, each, payloads)
        return found

    def _open(self, messages: list[Message]) -> list[Message]:
        with self._here():
            self.world.see("on_coming", self, messages)
        found: list[Message] = self.sealing.open(messages)
        return found
