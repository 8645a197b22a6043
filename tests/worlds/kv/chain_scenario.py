"""Worlds of a data store whose state is a chain's: all that goes wrong in worlds of chains, and clones that write.

Promises beside those of chains: what was confirmed is in the store in the end, and what was refused never was; each
write is done once; watchers, of servers and clones, are told of each change in its order; what a clone shows of a
master is what that had behind that event, also where it took from it only what it lacked; no server's history of a key
has a gap; and when all is well the head of the chain is master, and all servers and clones have the same.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from tests.worlds.chain.hosts import ServerHost
from tests.worlds.chain.scenario import ChainCores, Chains
from tests.worlds.kv.chain_hosts import MeshLines, RememberingStore, StoreServer, chain_of
from tests.worlds.kv.parts import CloneHost, Part, Written, any_write
from tests.worlds.kv.promises import Histories, States, Survival, contents_of

from chappe.kv.chained.core import ChainedMaster
from chappe.kv.chained.machine import StoreMachine
from chappe.limits import KV_LIMITS
from chappe.sim.world import Checker, Settings


@dataclass(frozen=True)
class StoreCores(ChainCores):
    """What is under test."""

    machine: type[StoreMachine] = RememberingStore
    master: type[ChainedMaster] = ChainedMaster


class Head(Checker["KvChain"]):
    """In the end the head is master, and servers, clones and watchers have what it has."""

    name = "one master"

    def unsettled(self) -> str | None:
        """What is not yet as it must be."""
        world = self.world
        servers = chain_of(world)
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

    server_host = StoreServer
    client_host = CloneHost  # type: ignore[assignment]
    settle_max_s = 100.0
    cores: StoreCores

    def __init__(
        self,
        seed: int,
        settings: Settings | None = None,
        tell: Callable[[str], None] | None = None,
        cores: StoreCores | None = None,
    ) -> None:
        super().__init__(seed, settings, tell, cores or StoreCores())
        rng = self.rng
        self.loss = rng.choice((0.0, 0.0, 0.02, 0.1))
        self.kv_limits, self.part_bytes = KV_LIMITS, 1 << 20
        more = Random(f"history {seed}")
        self.history_size = more.choice((0, 2, 64))  # changes of each key that are kept
        if not self.settings.plain:
            self.part_bytes = rng.choice((50, 1_000, 1 << 20))
            self.kv_limits = replace(
                KV_LIMITS, commit_operations=rng.choice((3, 8_192)), piece_bytes=rng.choice((100, 262_144)),
                outcomes_max=rng.choice((1, 4_096)), recent_keys=rng.choice((2, 20, 65_536)),
                recent_bytes=rng.choice((100, 1 << 23)), history_bytes=more.choice((2_000, 1 << 26)),
                history_erased=more.choice((1, 10_000)),
            )  # fmt: skip
        self.lines = MeshLines(self)
        self.written: list[Written] = []
        self.excused = 0
        self.states = States(self)

    def machine(self, host: ServerHost) -> Any:
        """What a new life of a server replicates."""
        return self.cores.machine()

    def random(self, size: int) -> bytes:
        """Random bytes."""
        return self.rng.randbytes(size)

    def noted(self, written: Written) -> Written:
        """Remember what is written."""
        self.written.append(written)
        return written

    def count(self) -> int:
        """Writes."""
        return len(self.written)

    def progress(self) -> int:
        """Writes whose outcome is known: where commits are small and threads slow, many wait for long."""
        return sum([each.told for each in self.written])

    def running(self) -> list[StoreServer]:
        """The servers that run."""
        return chain_of(self)

    def begin(self) -> None:
        """Servers, and clones in place of the chain's clients."""
        super().begin()
        self.watch(Survival(self), self.states, Head(self), Histories(self))
        self.clock.after(0.0, self._work)

    def network_changed(self) -> None:
        """Somebody is there that was not."""
        holders = frozenset(each.endpoint for each in self.running())
        for clone in self.alive(CloneHost):
            if not clone.frozen:
                clone.call(clone.role.handle_subscription, holders, lambda endpoint: endpoint in holders, clone.now)

    def heal(self) -> None:
        """Nothing is lost any more, and all hear who is there."""
        self.loss = 0.0
        super().heal()
        self.lines.mend()
        self.network_changed()

    def _work(self) -> None:
        if not self.working:
            return
        rng = self.rng
        for host in self.alive(Part):
            if rng.random() < 0.4:
                host.write(*any_write(rng, len(self.written)))
        self.clock.after(rng.expovariate(1 / self.busy_s), self._work)
