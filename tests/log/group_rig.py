"""Members of one group and the stores that they ask, as cores, on a clock and with faults drawn from a seed."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

from chappe.core import Ask, Effect, Persist, Reply
from chappe.data.topic import Filter
from chappe.errors import ChappeError
from chappe.log.groups.member import NOWHERE, GroupMember
from chappe.log.groups.table import GroupJob, GroupTables, MemoryGroups
from chappe.log.queries import decode_answer, decode_request, encode_query
from chappe.log.sources import Key

WALL = 1_700_000_000_000_000_000


class GroupStore:
    """A store's part in groups; its disk outlives it."""

    def __init__(self, rig: GroupRig, name: str) -> None:
        self.rig, self.name, self.lives = rig, name, 0
        self.disk = MemoryGroups()
        self.up = False
        self.start()

    def start(self) -> None:
        self.lives += 1
        self.up = True
        self.tables = GroupTables(f"{self.name}-{self.lives}", self.disk.kept(), self.rig.now)

    @property
    def endpoint(self) -> str:
        return f"{self.name}-{self.lives}"

    def do(self, effects: list[Effect], member: MemberRig | None) -> None:
        for effect in effects:
            if isinstance(effect, Reply):
                to = self.rig.by_life[effect.to]
                ticket = int.from_bytes(effect.message.request_id, "big")
                self.rig.send(self, to, partial(to.answered, ticket, encode_query(effect.message.answer)))
            elif isinstance(effect, Persist):
                job, lives = effect.job, self.lives
                assert isinstance(job, GroupJob)
                self.rig.at(self.rig.rng.uniform(0.0, 0.02), partial(self._written, job, lives))
        assert not self.tables.invariants(), self.tables.invariants()

    def _written(self, job: GroupJob, lives: int) -> None:
        if not self.up or lives != self.lives:
            return  # killed with the write under way
        outcome: ChappeError | None = None
        try:
            self.disk.keep(job.changes)
        except ChappeError as error:
            outcome = error
        self.do(self.tables.handle_done(outcome, self.rig.now), None)


class MemberRig:
    """A member and its program, which reads every partition that it has."""

    def __init__(self, rig: GroupRig, number: int, member: str = "", topics: tuple[str, ...] = ("t*",)) -> None:
        self.rig = rig
        self.life = f"life{number}"
        self.up, self.paused_until, self.slow_s = True, 0.0, rig.rng.choice((0.02, 0.1, 0.4))
        self.core = GroupMember("g", member or self.life, self.life, "", [Filter.parse(t) for t in topics], clock=rig)
        self.reading: dict[Key, int] = {}
        self.done: dict[Key, int] = {}
        rig.by_life[self.life.encode()] = self
        rig.members.append(self)
        for store in rig.stores:
            if store.up:
                self.core.store_found(store.name, store.endpoint, rig.now)
        for key in rig.heads:
            self.core.seen(key, rig.now)
        self._wake(self.core.next_timeout())
        rig.at(self.slow_s, self.poll)

    @property
    def runs(self) -> bool:
        return self.up and self.rig.now >= self.paused_until

    def do(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Ask):
                store = next((s for s in self.rig.stores if s.endpoint == effect.to and s.up), None)
                if store is None:
                    continue
                raw, raw_id = encode_query(effect.request), effect.ticket.to_bytes(8, "big")
                self.rig.send(self, store, partial(self._asked, store, raw, raw_id, store.lives))
        assert not self.core.invariants(), self.core.invariants()
        self._wake(self.core.next_timeout())

    def answered(self, ticket: int, raw: bytes) -> None:
        self.do(self.core.handle_answer(ticket, decode_answer(raw), self.rig.now))

    def _asked(self, store: GroupStore, raw: bytes, raw_id: bytes, lives: int) -> None:
        if store.up and store.lives == lives:
            request: Any = decode_request(raw)
            store.do(store.tables.handle_request(self.life.encode(), raw_id, request, self.rig.now), self)

    def _wake(self, at: float) -> None:
        if at < float("inf"):
            self.rig.at(max(at - self.rig.now, 0.0), self._due)

    def _due(self) -> None:
        if self.up and not self.runs:
            self.rig.at(self.paused_until - self.rig.now, self._due)
        elif self.up and self.core.next_timeout() <= self.rig.now:
            self.do(self.core.handle_timeout(self.rig.now))

    def poll(self) -> None:
        """The program is done with what it has, and asks for more."""
        if not self.up:
            return
        self.rig.at(self.slow_s if self.runs else self.paused_until - self.rig.now, self.poll)
        if not self.runs:
            return
        now = self.rig.now
        if self.core.pending:
            change = self.core.change(now)
            for key in change.lost:
                self.reading.pop(key, None)
            positions = {key: self.reading.pop(key) for key in change.revoked if key in self.reading}
            self.core.commit(positions, now)
            self.core.let_go(change.revoked, now)
            for key, offset in change.assigned.items():
                self.reading[key] = 0 if offset == NOWHERE else offset
        if self.core.holds(now):
            self.core.commit({key: at for key, at in self.reading.items() if key in self.core.mine}, now)
            for key, offset in self.reading.items():
                self.rig.read(self, key, offset)
                self.reading[key] = min(offset + 1, self.rig.heads[key])
        self._wake(self.core.next_timeout())

    def leave(self) -> None:
        self.core.commit({key: at for key, at in self.reading.items() if key in self.core.mine}, self.rig.now)
        self.reading.clear()
        self.do(self.core.leave(self.rig.now))
        self.up = False


class GroupRig:
    """The clock, the network, and what was read."""

    def __init__(self, seed: int, stores: int = 1, partitions: int = 7, records: int = 40) -> None:
        self.rng = Random(seed)
        self.now = 0.0
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._calls = 0
        self.by_life: dict[bytes, MemberRig] = {}
        self.members: list[MemberRig] = []
        self.lossy = 0.0
        self.cuts: set[tuple[str, str]] = set()
        self.late_s: dict[tuple[str, str], float] = {}  # how much longer messages between two take
        self.heads: dict[Key, int] = {(f"t{n % 3}", f"P{n}"): records for n in range(partitions)}
        self.seen: dict[Key, set[int]] = {key: set() for key in self.heads}
        self.repeats = 0
        self.two_readers: list[str] = []
        self.stores = [GroupStore(self, f"S{n}") for n in range(stores)]

    def wall_ns(self) -> int:
        return WALL + int(self.now * 1e9)

    def at(self, after_s: float, call: Callable[[], None]) -> None:
        self._calls += 1
        heapq.heappush(self._queue, (self.now + max(after_s, 0.0), self._calls, call))

    def send(self, sender: Any, to: Any, call: Callable[[], None]) -> None:
        names = {getattr(each, "name", getattr(each, "life", "")) for each in (sender, to)}
        if any(set(cut) == names for cut in self.cuts) or self.rng.random() < self.lossy:
            return

        def arrive() -> None:
            if isinstance(to, MemberRig) and not to.runs:
                if to.up:
                    self.at(to.paused_until - self.now, arrive)
                return
            call()

        late_s = next((each for pair, each in self.late_s.items() if set(pair) == names), 0.0)
        self.at(late_s + self.rng.uniform(0.0005, 0.02), arrive)

    def run(self, seconds: float) -> None:
        end = self.now + seconds
        while self._queue and self._queue[0][0] <= end:
            self.now, _, call = heapq.heappop(self._queue)
            call()
        self.now = end

    def read(self, member: MemberRig, key: Key, offset: int) -> None:
        if offset < self.heads[key]:
            self.repeats += offset in self.seen[key]
            self.seen[key].add(offset)
        for other in self.members:
            if (
                other is not member
                and other.up
                and key in other.reading
                and other.core.holds(self.now)
                and key in other.core.mine
            ):
                self.two_readers.append(f"{self.now:.3f}: {member.life} and {other.life} read {key}")

    def restart(self, store: GroupStore, away_s: float) -> None:
        store.up = False
        for each in self.members:
            each.core.store_gone(store.name)

        def back() -> None:
            store.start()
            for each in self.members:
                if each.up:
                    each.core.store_found(store.name, store.endpoint, self.now)
                    each._wake(each.core.next_timeout())

        self.at(away_s, back)

    # -- what must hold ---------------------------------------------------------------------------------------

    def shares(self) -> dict[str, int]:
        return {each.life: len(each.reading) for each in self.members if each.up}

    def check_settled(self) -> None:
        alive = [each for each in self.members if each.up]
        readers = sorted(key for each in alive for key in each.reading)
        assert readers == sorted(self.heads), (readers, self.shares())
        loads = [len(each.reading) for each in alive]
        assert max(loads) - min(loads) <= 1, loads
        assert all(each.core.settled for each in alive)

    def check_read(self) -> None:
        for key, head in self.heads.items():
            assert self.seen[key] == set(range(head)), (key, sorted(set(range(head)) - self.seen[key]))
