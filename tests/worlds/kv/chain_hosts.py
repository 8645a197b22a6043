"""Servers of a chain whose state is a data store, in a world: each a server of the chain and, maybe, the master."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

from tests.worlds.chain.hosts import ServerHost
from tests.worlds.kv.parts import STORE, Part
from tests.worlds.maps.lines import Lines

from chappe.core import Report, Send
from chappe.kv.chained.core import ChainedMaster, Place
from chappe.kv.chained.fed import Did, Fed, WholeState, steps
from chappe.kv.chained.machine import StoreMachine
from chappe.kv.engine import index_of
from chappe.kv.entity import chappe_entity
from chappe.kv.role import CHAIN
from chappe.sim.world import SimWorld

HOPS_S: Final = (0.0, 0.000_1, 0.01, 0.2)  # from the chain's thread to the endpoint's, and back


class ToChain:
    """Commands of a master for its chain, as what can fail."""


class MeshLines(Lines):
    """Links of the mesh: what is cut for the chain is cut for it, too, and what is under way then is lost."""

    def __init__(self, world: Any) -> None:
        super().__init__(world)
        self._chain: Any = world

    def send(self, source: str, target: str, kind: Any, deliver: Callable[[Any], None], *, kept: bool = False) -> None:
        """See ``Lines``."""
        if self._chain.wire.reachable(source, target):
            super().send(source, target, kind, deliver, kept=kept)
        else:
            self._chain.failed[kind] += 1

    def _arrive(self, source: str, target: str, kind: Any, deliver: Callable[[Any], None], kept: bool) -> None:
        host = self._chain.hosts.get(target)
        if isinstance(host, StoreServer):
            host.take(lambda: deliver(host))
        else:
            super()._arrive(source, target, kind, deliver, kept)


class RememberingStore(StoreMachine):
    """Remembers which commits it has done, for the checkers."""

    def __init__(self) -> None:
        self.did: list[tuple[object, int]] = []
        super().__init__()

    def _begin(self) -> None:
        super()._begin()
        self.did = []

    def _tell(self, fed: Fed | WholeState) -> None:
        if isinstance(fed, Did):
            self.did.append((fed.master, fed.number))
        super()._tell(fed)


class StoreServer(Part, ServerHost):
    """One life of a server: of the chain, and of the mesh. News pass between the two later, and in order."""

    def __init__(self, world: Any, name: str) -> None:
        super().__init__(world, name)
        self.takes_part()
        self.hop_s = world.rng.choice(HOPS_S)
        self._place = Place()
        self._told = 0  # the last event that clones were told
        self._news: deque[Callable[[], None]] = deque()  # for the endpoint
        self.role: ChainedMaster = world.cores.master(
            STORE, chappe_entity(self.endpoint, self.life), self.life, now=self.now, clock=self,
            limits=world.kv_limits, part_bytes=world.part_bytes, history=world.history_size,
        )  # fmt: skip
        self.table |= {**self.role_table(), Report: self._report}
        self.machine.hear(self._fed)

    @property
    def own_time(self) -> float:
        """See ``Part``."""
        return self.now

    def wall_ns(self) -> int:
        """The time of day: all have another one."""
        return int(self.world.wall_us(self) * 1000)

    def start(self) -> None:
        """Begin to live."""
        self.begin()
        super().start()

    def due(self) -> float:
        """When one of the cores wants to be called, on the world's clock."""
        at = self.role.next_timeout()
        return min(super().due(), float((max(at, self.now) - self._offset) / self.rate))

    def handle_due(self) -> None:
        """Have them do what is due."""
        super().handle_due()
        if self.alive and self.now >= self.role.next_timeout():
            self.call_role(self.role.handle_timeout, self.now)

    def call_role(self, method: Callable[..., Sequence[Any]], *args: object, **options: object) -> None:
        """Make one call into the master, and look at what it is like then."""
        if not self.alive:
            return
        self.perform(method(*args, **options))
        self.check_role()
        active = self.role.active
        if self.alive and active is not None and active.position != self._told:
            self._told = active.position
            entries = {index_of(entry.key): entry.value for entry in active.frozen()}
            self.world.see("on_state", active.entity, self._told, entries)
        self.arm()

    # -- from one thread to the other -------------------------------------------------------------------------

    def _fed(self, fed: Fed | WholeState) -> None:
        for each in steps(fed) if isinstance(fed, WholeState) else (fed,):
            self._later(partial(self._hand_on, each))

    def _hand_on(self, fed: Fed) -> None:
        self.call_role(self.role.handle_message, CHAIN, [fed], self.now)

    def call(self, method: Callable[..., Sequence[Any]], *args: object, **options: object) -> None:
        """Make one call into the server; if it has another place then, that is news."""
        super().call(method, *args, **options)
        place = Place(self.core.head, self.core.member, self.core.why)
        if self.alive and place != self._place:
            self._place = place
            self._later(lambda: self.call_role(self.role.handle_message, CHAIN, [place], self.now))

    def _later(self, news: Callable[[], None]) -> None:
        self._news.append(news)
        if len(self._news) == 1:
            self.world.clock.after(self.hop_s * self.world.rng.random(), self._arrived)

    def _arrived(self) -> None:
        self.take(self._hand_over)

    def _hand_over(self) -> None:
        while self._news and self.alive:
            self._news.popleft()()

    def _publish(self, action: Send) -> None:
        if action.to == CHAIN:
            self.world.clock.after(self.hop_s / 2, self._proposed, action)
        elif action.topic:
            super()._publish(action)
        else:
            self._tell(action)  # of the chain, to another server

    def _proposed(self, action: Send) -> None:
        if self.alive:
            self.take(lambda: self.call(self._number, action))
        else:
            self.world.failed[ToChain] += 1

    def _number(self, action: Send) -> list[Any]:
        taken = [self.core.propose(each) for each in action.message]
        if not all(taken):
            self.world.failed[ToChain] += 1
        return []


def chain_of(world: SimWorld) -> list[StoreServer]:
    """Its servers that run."""
    return world.alive(StoreServer)
