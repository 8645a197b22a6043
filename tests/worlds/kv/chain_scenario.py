"""Worlds of a data store whose state is a chain's: all that goes wrong in worlds of chains, and clones that write.

Promises beside those of chains: what was confirmed is in the store in the end, and what was refused never was; each
write is done once; watchers, of servers and clones, are told of each change in its order; what a clone shows of a
master is what that had behind that event, also where it took from it only what it lacked; no server's history of a key
has a gap; and when all is well the head of the chain is master, and all servers and clones have the same.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from random import Random
from typing import Any, Final

from tests.worlds.chain.scenario import CLIENTS, Chains
from tests.worlds.kv.chained import (
    CloneResident,
    Part,
    RememberingStore,
    StoreServerLife,
    StoreServerResident,
    Written,
    any_write,
    role_of,
)
from tests.worlds.kv.promises import Histories, States, Survival, contents_of
from tests.worlds.stage import kind_made_by

from chappe.api.kv import attaching, chained
from chappe.kv.chained.core import ChainedMaster
from chappe.kv.clone import KvClone
from chappe.limits import KV_LIMITS
from chappe.sim.world import Checker, Settings

FIRST_PORT: Final = 9_000


class Head(Checker["KvChain"]):
    """In the end the head is master, and servers, clones and watchers have what it has."""

    name = "one master"

    def unsettled(self) -> str | None:
        """What is not yet as it must be."""
        world = self.world
        servers = world.alive(StoreServerLife)
        active = [each for each in servers if each.role.active is not None]
        if len(active) != 1 or not active[0].core.head:
            return f"{[each.name for each in active]} are masters"
        contents = contents_of(active[0])
        for host in world.alive(Part):
            if not host.role.idle():
                return f"{host.name} is not idle: {host.role.story('') if host in servers else host.role.master}"
            if contents_of(host) != contents:
                return f"{host.name} has something else"
            if host.shown != contents:
                return f"who watches {host.name} was told something else"
            if not host.role.readable:
                return f"{host.name} cannot be read"
        return None


class KvChain(Chains):
    """A chain whose head is the master of a data store, and its clones; servers and clones write."""

    server = StoreServerResident
    client = CloneResident
    settle_max_s = 100.0
    attaching: Part  # who attaches a store just now

    def __init__(self, seed: int, settings: Settings | None = None, tell: Callable[[str], None] | None = None) -> None:
        self.kv_limits, self.part_bytes = KV_LIMITS, 1 << 20
        super().__init__(seed, settings, tell)
        rng = self.rng
        self.history_size = rng.choice((0, 2, 64))  # changes of each key that are kept
        if not self.settings.plain:
            self.part_bytes = rng.choice((50, 1_000, 1 << 20))
            self.kv_limits = replace(
                KV_LIMITS, commit_operations=rng.choice((3, 8_192)), piece_bytes=rng.choice((100, 262_144)),
                outcomes_max=rng.choice((1, 4_096)), recent_keys=rng.choice((2, 20, 65_536)),
                recent_bytes=rng.choice((100, 1 << 23)), history_bytes=rng.choice((2_000, 1 << 26)),
                history_erased=rng.choice((1, 10_000)),
            )  # fmt: skip
        self.written: list[Written] = []
        self.states = States(self)
        names = [*self.servers, *(f"client{number}" for number in range(CLIENTS))]
        self.mesh_ports = {name: FIRST_PORT + place for place, name in enumerate(names)}  # each dials those before it

    def replaced(self) -> list[tuple[Any, str, Any]]:
        """What means something else while this world is played."""
        bits = Random(f"entities {self.seed}")
        return [
            *super().replaced(),
            (secrets, "randbits", bits.getrandbits),
            (chained, "StoreMachine", RememberingStore),
            (attaching, "ChainedMaster", kind_made_by(ChainedMaster, partial(self._role, ChainedMaster))),
            (attaching, "KvClone", kind_made_by(KvClone, partial(self._role, KvClone))),
        ]

    def _role(self, kind: type, *arguments: Any, **options: Any) -> Any:
        more = {"part_bytes": self.part_bytes} if kind is ChainedMaster else {}
        return role_of(self.attaching, kind(*arguments, limits=self.kv_limits, **more, **options | {"notify": True}))

    def noted(self, written: Written) -> Written:
        """Remember what is written."""
        self.written.append(written)
        return written

    def count(self) -> int:
        """Writes."""
        return len(self.written)

    def progress(self) -> int:
        """Writes whose outcome is known: where commits are small, many wait for long."""
        return sum([each.told for each in self.written])

    def begin(self) -> None:
        """Servers, and clones in place of the chain's clients."""
        super().begin()
        self.watch(Survival(self), self.states, Head(self), Histories(self))
        self.clock.after(0.0, self._work)

    def _work(self) -> None:
        if not self.working:
            return
        rng = self.rng
        for life in self.alive(Part):
            if rng.random() < 0.4 and not life.resident.place.paused:
                life.soon(0.0, life.write, *any_write(rng, self.next_operation()))
        self.clock.after(rng.expovariate(1 / self.busy_s), self._work)
