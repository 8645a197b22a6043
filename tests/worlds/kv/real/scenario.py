"""Worlds of a data store as users run it: endpoints of the API with masters and clones, on hosts that fail."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from itertools import count
from random import Random
from typing import Any

from tests.worlds.kv.real.members import (
    EndpointLife,
    EndpointResident,
    FillableBackend,
    MasterFile,
    Role,
    StoreLife,
    StoreResident,
)
from tests.worlds.kv.scenario import RELAYS, Kv
from tests.worlds.kv.world import KvCores
from tests.worlds.residents import Place
from tests.worlds.stage import Stage, StagedWorld, kind_made_by

from chappe.api.kv import attaching
from chappe.kv.clone import KvClone
from chappe.kv.history import KeyHistory
from chappe.kv.master import KvMaster
from chappe.mesh.messages import COMMAND
from chappe.sim.world import Checker, Outcome, Settings

FIRST_PORT = 9_000


class Watches(Checker["RealKv"]):
    """In the end who watches a store was told what it has."""

    name = "watches"

    def unsettled(self) -> str | None:
        """The first difference."""
        for host in self.world.alive(StoreLife):
            if host.shown != host.has():
                return f"who watches {host.name} was told {host.shown}, it has {host.has()}"
        return None


class RealKv(StagedWorld, Kv):
    """A data store as users run it: the API's own objects, sockets' buffers, commits' lanes, a database."""

    net: Any = None

    def __init__(
        self,
        seed: int,
        settings: Settings | None = None,
        tell: Callable[[str], None] | None = None,
        cores: KvCores | None = None,
    ) -> None:
        super().__init__(seed, settings, tell)
        self.cores = cores or KvCores()
        self.attaching: StoreLife  # who attaches a store just now
        self._lives = count(1)
        self._ports: dict[str, int] = {}
        self._places: dict[str, Place] = {}
        bits = Random(f"entities {seed}")
        self.stage = Stage(
            self,
            (
                (secrets, "randbits", bits.getrandbits),
                (attaching, "KvMaster", kind_made_by(KvMaster, self._master)),
                (attaching, "KvClone", kind_made_by(KvClone, self._clone)),
                (attaching, "KeyHistory", lambda size, _, *, kept: KeyHistory(size, self.limits, kept=kept)),
                (attaching, "_BACKENDS", {"sqlite": FillableBackend}),
            ),
        )
        self.net, self.streams = self.stage.net, self.stage.streams
        self.watch(Watches(self))
        if self.backend is not None:
            self.backend = MasterFile(self.stage.scratch / "master" / "store.db")  # type: ignore[assignment]

    def _master(self, *arguments: Any, loaded: Any, **options: Any) -> Any:
        core = self.cores.master(*arguments, loaded=loaded, limits=self.limits, **options | {"notify": True})
        role = self._attached(core)
        self.see("on_loaded", self.attaching, () if loaded is None else loaded.history)
        return role

    def _clone(self, *arguments: Any, **options: Any) -> Any:
        return self._attached(self.cores.clone(*arguments, limits=self.limits, **options | {"notify": True}))

    def _attached(self, core: Any) -> Role:
        host = self.attaching
        role = Role(core, host._answered)
        host.entity, host.role = core.entity, role
        return role

    def play(self) -> Outcome:
        """As every staged world."""
        FillableBackend.world = self
        try:
            return super().play()
        finally:
            FillableBackend.world = None

    # -- members ----------------------------------------------------------------------------------------------

    def next_life(self) -> int:
        """The number of one more life."""
        return next(self._lives)

    def port_of(self, name: str) -> int:
        """Where an endpoint listens."""
        return self._ports.setdefault(name, FIRST_PORT + len(self._ports))

    def make(self, name: str) -> None:
        """Begin the next life of a member."""
        if name not in self._places:
            self._places[name] = place = Place(self, name)
            (EndpointResident if name.startswith(RELAYS) else StoreResident)(self, name, place)
            self.stage.disk(name).slow(self._commit_s)
        self._places[name].restart()

    def kill(self, host: Any) -> None:
        """Kill its host, unless it has left."""
        host.resident.place.kill(power_cut=False)

    def _kill_clone(self) -> None:
        clones = self.clones()
        if clones:
            host = self.rng.choice(clones)
            if self.rng.random() < 0.5:
                host.resident.place.leave()
            else:
                self.kill(host)
            self.clock.after(self.rng.choice((0.1, 2.0)), self.add, host.name)

    def heal(self) -> None:
        """End everything that is wrong."""
        self.stage.mend()
        super().heal()

    def slow(self, host: Any, on: bool) -> None:
        """A member reads slowly."""
        read_s = self.rng.choice((0.02, 0.2)) if on else 0.0
        if host.alive:
            for sock in self.stage.host(host.name).sockets:
                sock.read_s = read_s  # type: ignore[attr-defined]

    def endpoints(self) -> list[Any]:
        """See ``Kv``."""
        return self.alive(EndpointLife)

    def speak(self, endpoint: Any, topic: bytes, payload: bytes, receiver: Any) -> None:
        """See ``Kv``."""
        endpoint._call(endpoint.speak, (topic, payload, COMMAND, receiver.own_id))
