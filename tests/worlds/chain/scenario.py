"""Worlds of a chain as users run it: servers with files, and clients. Hosts die, lose power, stand still, are cut off;
their clocks drift, and their disks tear, refuse, are slow or are lost.

Promises: what is committed is the same everywhere and stays; it is in the logs of all members; a member's log is a part
of its predecessor's; states at the same entry are equal byte for byte; a command is done once; what clients saw is what
one copy could have shown; and when all is well all servers are members, and all have the same.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, ClassVar, Final

from tests.worlds.chain import machine
from tests.worlds.chain.checkers import Once, Same
from tests.worlds.chain.faults import ChainFaults
from tests.worlds.chain.members import ClientResident, ServerLife, ServerResident, WatchedPorts
from tests.worlds.linearizable import UNKNOWN, Operation, not_linearizable
from tests.worlds.residents import Place, Resident
from tests.worlds.stage import DisturbedWorld, Stage

from chappe.api.chain import member, server
from chappe.api.chain.configuration import ChainConfiguration
from chappe.limits import CHAIN_LIMITS
from chappe.replication.chain.client import ChainClient
from chappe.replication.chain.core import ChainServerCore
from chappe.sim.world import Settings

FIRST_PORT: Final = 6_000
CLIENTS: Final = 3
LOSS: Final = (0.0, 0.0, 0.02, 0.1, 0.3)  # of messages, as queues that are full lose them
DRIFTS: Final = (0.0, 0.01, 0.1)  # by which part of it steady clocks may differ in speed
USUAL_S: Final = (0.001, 0.01)  # how long disks take


class Chains(DisturbedWorld):
    """A chain of servers and its clients: deaths, pauses, cuts, torn and lost disks; histories are linearizable."""

    lengths_s: ClassVar[tuple[float, ...]] = (5.0, 10.0, 20.0)
    settle_max_s: ClassVar[float] = 60.0
    events_max: ClassVar[int] = 3_000_000
    fixed: ClassVar[bool] = False  # whether servers decide alone
    always_durable: ClassVar[bool] = False
    server: ClassVar[type[Resident]] = ServerResident
    client: ClassVar[type[Resident]] = ClientResident
    faults_of: ClassVar[type[ChainFaults]] = ChainFaults
    step = staticmethod(machine.step)  # the model of one copy
    begins = staticmethod(machine.begin)

    def __init__(self, seed: int, settings: Settings | None = None, tell: Callable[[str], None] | None = None) -> None:
        super().__init__(seed, settings, tell)
        rng = self.rng
        self.servers = tuple("abcde"[: self.few(rng.choice((1, 2, 3, 3, 3, 3, 4, 5)))])
        self.durable = rng.random() < 0.7 or self.always_durable
        self.drift = rng.choice(DRIFTS)
        self.limits = CHAIN_LIMITS
        if not self.settings.plain:
            self.limits = replace(
                CHAIN_LIMITS, append_bytes=rng.choice((100, 1 << 20)), log_bytes=rng.choice((500, 5_000, 1 << 26)),
                window=rng.choice((2, 10, 65_536)), piece_bytes=rng.choice((50, 1 << 18)),
                pieces_ahead=rng.choice((1, 3)), sessions_max=rng.choice((3, 10_000, 10_000)),
                session_s=rng.choice((3.0, 3_600.0)), session_window=rng.choice((1, 3, 1_024)),
                slow_s=rng.choice((1.0, 5.0)), made_bytes=rng.choice((1, 1 << 20)),
            )  # fmt: skip
            if self.limits.session_s < CHAIN_LIMITS.session_s:
                self.limits = replace(self.limits, results_bytes=400)
        self.pieced = rng.random() < 0.8
        self.busy_s = rng.choice((0.02, 0.1, 0.5))
        self.history: list[Operation] = []
        self.expired = 0
        self.working = True
        self._operations = count(1)
        self.stage = Stage(self, self.replaced())
        self.net.query_loss = rng.choice(LOSS)
        self.usual_disk_s = rng.choice(USUAL_S)
        ports = {name: f"127.0.0.1:{FIRST_PORT + place}" for place, name in enumerate(self.servers)}
        self.configuration = ChainConfiguration(ports, durable=self.durable, fixed=self.fixed)
        self.server_places: list[Place] = []
        self.same = Same(self)
        self.watch(self.same, Once(self, self.same))
        self.ground_faults = self.faults_of(self)

    def replaced(self) -> list[tuple[Any, str, Any]]:
        """What means something else while this world is played."""
        drawn = count(1_000)
        return [
            (server, "Core", partial(ChainServerCore, limits=self.limits)),
            (server, "ChainServerPorts", WatchedPorts),
            (server, "_drawn", lambda: next(drawn)),
            (member, "ChainClient", partial(ChainClient, limits=self.limits)),
        ]

    def machine(self, life: ServerLife) -> Any:
        """What a new life of a server replicates."""
        return machine.Keys() if self.pieced else machine.WholeKeys()

    def directory(self, name: str) -> Path:
        """Where a server has its files."""
        return self.stage.scratch / name

    def next_operation(self) -> int:
        """A number that no other operation has."""
        return next(self._operations)

    def pause(self) -> float:
        """Until a client does something again."""
        return self.busy_s * (0.5 + self.rng.random())

    def count(self) -> int:
        """Operations."""
        return len(self.history)

    def running(self) -> list[ServerLife]:
        """The servers that run."""
        return self.alive(ServerLife)

    def newest(self) -> ServerLife:
        """One of the servers that know the newest configuration."""
        return max(self.running(), key=lambda life: int(life.core.number))

    def begin(self) -> None:
        """Servers and clients."""
        for name in self.servers:
            self.server_places.append(self.settle_in(self.server, name))
        for _ in range(self.few(CLIENTS)):
            self.settle_in(self.client, self.new_name("client"))

    def settle_in(self, kind: type[Resident], name: str) -> Place:
        """Have somebody live on a host of its own."""
        place = Place(self, name)
        self.stage.disk(name).slow(self.usual_disk_s)
        self.move_in(kind(self, name, place))
        return place

    def stop(self) -> None:
        """Ask for nothing more."""
        self.working = False

    def finish(self) -> float:
        """All ends, and then what clients saw is explained."""
        took = super().finish()
        known = [each for each in self.history if each.outcome is not UNKNOWN or each.what[0] != "get"]
        wrong = not_linearizable(known, self.step, self.begins)
        if wrong is not None:
            self.fail("linearizable", f"no single copy could have answered so: the operations on {wrong}")
        return took
