"""Worlds of the mesh with identities, and permissions that change: nobody gets what it may not, and all else arrives.

Each life has a directory of keys of its own, with what it is handed on meanwhile. Some endpoints ask their own
permissions nothing, as altered programs do: their neighbours do. Strangers dial all the time.
"""

from __future__ import annotations

import ssl
from pathlib import Path
from random import Random
from typing import Any, Final
from uuid import UUID

from tests.worlds import keyed
from tests.worlds.certificates import HOST, PlainContext, write_identity
from tests.worlds.mesh.base import MeshHost
from tests.worlds.mesh.charters import Charter
from tests.worlds.mesh.faults import MeshFaults
from tests.worlds.mesh.population import PopulatedMesh
from tests.worlds.mesh.scenario import Mesh
from tests.worlds.mesh.subjects import EndpointSubject
from tests.worlds.sealing import AUTHORITY
from tests.worlds.stage import Replaced

from chappe import Endpoint
from chappe.api.mesh import identity
from chappe.errors import NotPermitted
from chappe.mesh.messages import DATA
from chappe.mesh.rules import MeshRules
from chappe.runtime.mesh_rules import RulesWatch
from chappe.security import Keys, Security, Tls, permissions_file
from chappe.sim.streams import StreamSide
from chappe.sim.world import Checker
from chappe.storage.key_files import put_beside

SIGNED: Final = (".toml", ".keys")  # files that are handed on
DEFIANT: Final = 0.5  # of the endpoints
FORGED, UNKNOWN, PLAIN = "forged", "unknown", "plain"  # certificates that strangers have


class RuledFaults(MeshFaults):
    """As in the mesh, and permissions change."""

    def __init__(self, world: PopulatedMesh) -> None:
        super().__init__(world)
        self._signing = Random(f"signing {world.seed}")

    def plan(self, until: float) -> float:
        for _ in range(self._signing.choice((1, 2, 4))):
            self.at(self._signing.uniform(1.0, until), self._sign)
        return super().plan(until)

    def heal(self) -> None:
        """See ``MeshFaults.heal``; everybody learns of the last version."""
        super().heal()
        self._charter.draw(all_forward=True)
        self.world.clock.after(0.5, self._give_last)

    @property
    def _charter(self) -> Charter:
        assert self.world.charter is not None
        return self.world.charter

    def _sign(self) -> None:
        """One host learns of another version."""
        running = [each for each in self.world.alive(RuledEndpoint) if not each.frozen]
        if running:
            self._signing.choice(running).go_by(self._charter.draw().number)

    def _give_last(self) -> None:
        self._signing.choice(self.world.alive(RuledEndpoint)).go_by(len(self._charter.versions))


class RuledEndpoint(EndpointSubject):
    """An endpoint with an identity."""

    def __init__(self, world: RuledMesh, name: str, *arguments: Any) -> None:
        self._charter, self._defies = world.charter, world.defying.random() < DEFIANT
        super().__init__(world, name, *arguments)
        if self._defies:
            self.face.permitted = None
        # What it has subscribed to while it might, it wants when it may again.
        self.face.require_subscribe = lambda topics: None  # type: ignore[method-assign]

    def go_by(self, number: int) -> None:
        """Another version of the permissions is copied here."""
        self.world.trace(self, "is given version %d", number)
        put_beside(permissions_file(self.world.directory_of(self.life)), self._charter.file(number))

    def _may(self, topic: bytes) -> bool:
        return self._defies or self._charter.versions[self._charter.held[self.name] - 1].publishes(self.name, topic)

    def publish(self, topic: bytes, payload: bytes, kind: int = DATA, receiver: MeshHost | None = None) -> bool:
        try:
            found = super().publish(topic, payload, kind, receiver)
        except NotPermitted as error:
            if self._may(topic):
                self.world.fail("permitted", f"{self.life} may publish {topic!r}, and is told: {error}")
            return False
        if found and not self._may(topic):
            self.world.fail("permitted", f"{self.life} publishes {topic!r}, which it may not")
        return found

    def publish_many(self, topic: bytes, payloads: list[bytes]) -> bool:
        return self._may(topic) and super().publish_many(topic, payloads)


class Stranger:
    """Somebody whose keys are not right, who would like to have everything."""

    def __init__(self, world: RuledMesh, name: str) -> None:
        self.name = self.life = name
        victim, *others = world.defying.sample(list(world.hosts.values()), 2)
        directory, said = world.directory_of(name), victim.name if name == FORGED else name
        authority, ids = ("theirs", (UUID(bytes=victim.own_id),)) if name == FORGED else (AUTHORITY, ())
        write_identity(directory, said, ids, authority)
        with world.stage.on(name):
            self.face = Endpoint(security="plain" if name == PLAIN else Tls.of(directory, said))
            if name == FORGED:  # it believes everybody itself
                node: Any = self.face.node
                node._security.dialling.authority = AUTHORITY
            self.face.subscribe("")
            for host in (victim, *others):
                self.face.peer_nosync(HOST, host.port, retry_s=1.0)
        world.lives.setdefault(UUID(self.face.id).bytes, name)


class Strangers(Checker["RuledMesh"]):
    """Nobody is peered with a stranger; see also ``Convergence``."""

    name = "strangers"

    def on_tick(self) -> None:
        for each in self.world.strangers.values():
            if any(link.peer_id is not None for link in each.face.core.peers()):
                self.fail(f"{each.name} has a peer")


class RuledMesh(Mesh):
    """The mesh with certificates and permissions."""

    ordinary = True
    endpoint: type[Any] = RuledEndpoint
    charter: Charter

    def __init__(self, seed: int, *arguments: Any, **options: Any) -> None:
        self.charter = Charter(seed)
        self.defying = Random(f"defying {seed}")
        self._directories: dict[str, Path] = {}  # by name: that of the last life
        self.strangers: dict[str, Stranger] = {}
        super().__init__(seed, *arguments, **options)
        self._faults = RuledFaults(self)
        self.watch(Strangers(self))

    def begin(self) -> None:
        super().begin()
        self.strangers = {each: Stranger(self, each) for each in (FORGED, UNKNOWN, PLAIN)}

    def host_of(self, side: StreamSide) -> Any:
        return self.strangers.get(side.host.name) or super().host_of(side)

    def replaced(self) -> list[Replaced]:
        took = self._took

        class Watch(RulesWatch):
            def _made(self) -> MeshRules:
                found = super()._made()
                took(self._own, found.permissions.version)
                return found

        return [
            *super().replaced(),
            *keyed.replaced(),
            (ssl, "SSLContext", PlainContext),
            (identity, "RulesWatch", Watch),
        ]

    def _took(self, name: str, number: int) -> None:
        self.trace(self.hosts[name], "goes by version %d", number)
        self.charter.took(name, number, self.now)

    def directory_of(self, life: str) -> Path:
        """Where the keys of a life are."""
        return self.stage.scratch / "keys" / life

    def security(self, host: EndpointSubject) -> Security | Keys:
        named, directory = self.charter.id_of(host.name), self.directory_of(host.life)
        write_identity(directory, host.name, () if named is None else (UUID(bytes=named),))
        for file, raw in self.files(host.name).items():
            (directory / file).write_bytes(raw)
        self._directories[host.name] = directory
        return Keys(directory / host.name)

    def files(self, name: str) -> dict[str, bytes]:
        """What the authority has signed and the next life of a host begins with."""
        former = self._directories.get(name)
        if former is None:
            return {permissions_file(Path()).name: self.charter.file(1)}
        return {each.name: each.read_bytes() for each in sorted(former.iterdir()) if each.suffix in SIGNED}
