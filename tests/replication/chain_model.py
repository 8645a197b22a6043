"""Three servers of a chain and two clients, and all that may happen to them in some steps: the cores themselves.

What is on its way between two servers stays in order, and may be lost from the end. A server that does not run is one
that stands still: it goes on later, with what came meanwhile.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from tests.fixed_clock import FixedClock
from tests.replication.chain_disk import Disk

from chappe.core import Persist, Reply, Report, Send
from chappe.limits import CHAIN_LIMITS
from chappe.replication.agreement.core import VoteRecord
from chappe.replication.chain import configuration as value
from chappe.replication.chain.configuration import Configuration
from chappe.replication.chain.core import ChainServerCore
from chappe.replication.chain.log import LoadedChain, LogChange
from chappe.replication.chain.messages import Beat, Do, Done, Entry, Listen, Read, Says, encode

NAMES = ("a", "b", "c")
SESSIONS = (1, 2)  # of the two clients: opened by the first two entries
TICK_S = CHAIN_LIMITS.beat_s
SILENT_TICKS = 16
WALL_US = 1_000_000
CLOCK = FixedClock(us=WALL_US)
LINKS = tuple((one, other) for one in range(3) for other in range(3) if one != other)


class Broken(Exception):
    """A promise was broken."""


class Count:
    """A machine that remembers what it did."""

    def __init__(self) -> None:
        self.did: list[bytes] = []

    def apply(self, command: bytes) -> bytes:
        self.did.append(command)
        return b"%d" % len(self.did)

    def read(self, query: bytes) -> bytes:
        return b"%d" % len(self.did)

    def snapshot(self) -> bytes:
        return b",".join(self.did)

    def restore(self, state: bytes) -> None:
        self.did = state.split(b",") if state else []


@dataclass
class State:
    cores: list[ChainServerCore | None]
    disks: list[Disk]
    links: dict[tuple[int, int], tuple[Any, ...]] = field(default_factory=lambda: dict.fromkeys(LINKS, ()))
    writing: list[LogChange | None] = field(default_factory=lambda: [None] * 3)
    committed: list[Entry] = field(default_factory=list)
    reads: dict[int, int] = field(default_factory=dict)  # what each has to show at least
    confirmed: set[bytes] = field(default_factory=set)
    seqs: list[int] = field(default_factory=lambda: [0, 0])
    now: float = 0.0
    lives: int = 3
    touched: set[int] = field(default_factory=set)  # copied in this step

    def then(self) -> State:
        """A copy; of servers only what is touched is copied, when it is."""
        return State(
            list(self.cores), list(self.disks), dict(self.links), list(self.writing), list(self.committed),
            dict(self.reads), set(self.confirmed), list(self.seqs), self.now, self.lives,
        )  # fmt: skip

    def key(self) -> Any:
        cores = tuple(
            None if core is None else (
                core.story(), core.life, tuple(core.log.after(core.log.base)), core.aligned, str(core.next),
                str(core.joining.joiner), core.replica.snapshot(), core._upstream, len(core.serving._reads),
            )
            for core in self.cores
        )  # fmt: skip
        links = tuple(tuple(map(encode, self.links[link])) for link in LINKS)
        return cores, links, str(self.writing), tuple(self.seqs), len(self.reads), round(self.now, 3)

    # -- one step ---------------------------------------------------------------------------------------------

    def touch(self, place: int) -> ChainServerCore:
        core = self.cores[place]
        assert core is not None
        if place not in self.touched:
            self.touched.add(place)
            core = self.cores[place] = copy.deepcopy(core)
            self.disks[place] = copy.copy(self.disks[place])
        return core

    def call(self, place: int, name: str, *args: Any) -> None:
        core = self.touch(place)
        actions = getattr(core, name)(*args)
        self.check(place)
        self.carry_out(place, actions)
        actions = core.flush(self.now)
        self.check(place)
        self.carry_out(place, actions)

    def carry_out(self, place: int, actions: list[Any]) -> None:
        for action in actions:
            match action:
                case Persist(VoteRecord() as memory, first=True):
                    self.disks[place].memory = memory
                case Persist(LogChange() as change, first=False):
                    self.writing[place] = change
                case Send(server, message):
                    link = (place, server)
                    waiting = self.links[link]
                    if isinstance(message, Beat):  # only the newest matters
                        waiting = tuple(each for each in waiting if not isinstance(each, Beat))
                    self.links[link] = (*waiting, message)[:8]
                case Reply(_, Done() as done):
                    entry = next(
                        (each for each in self.committed if (each.session, each.seq) == (done.session, done.seq)), None
                    )
                    if entry is None:
                        raise Broken(f"{done} is confirmed, and not committed")
                    self.confirmed.add(entry.command)
                case Reply(_, Says() as says):
                    least = self.reads.pop(says.token, None)
                    if least is not None and int(says.result) < least:
                        raise Broken(f"{NAMES[place]} shows {int(says.result)} commands, {least} were confirmed before")
                case Reply() | Report():
                    pass

    def check(self, place: int) -> None:
        core = self.cores[place]
        assert core is not None
        if found := core.invariants():
            raise Broken(f"{NAMES[place]}: {found[0]}")
        for index in range(core.log.base + 1, core.committed + 1):
            entry = core.log.entry(index)
            if index <= len(self.committed):
                if self.committed[index - 1] != entry:
                    raise Broken(f"{NAMES[place]} commits {entry} as {index}, which is {self.committed[index - 1]}")
                continue
            self.committed.append(entry)
            for member, life in core.configuration.chain:
                other = self.cores[member]
                if other is not None and other.life == life and other.safe < index:
                    raise Broken(f"{index} is committed in {core.number}, {NAMES[member]} has {other.safe}")
        if len(core.replica.machine.did) > len(set(core.replica.machine.did)):  # type: ignore[attr-defined]
            raise Broken("a command is done twice")

    # -- what may happen --------------------------------------------------------------------------------------

    def deliver(self, link: tuple[int, int]) -> None:
        message, *rest = self.links[link]
        self.links[link] = tuple(rest)
        if self.cores[link[1]] is not None:
            self.call(link[1], "handle_message", link[0], message, self.now)

    def lose(self, link: tuple[int, int]) -> None:
        self.links[link] = ()

    def do(self, place: int, client: int, *, again: bool = False) -> None:
        if not again:
            self.seqs[client] += 1
        seq = self.seqs[client]
        command = b"%d/%d" % (client, seq)
        request = Do(SESSIONS[client], seq, max(0, seq - 1), command)
        self.call(place, "handle_request", f"client{client}", request, b"", self.now)

    def read(self, place: int) -> None:
        token = len(self.reads) + 100 * (1 + sum(self.seqs))
        self.reads[token] = len(self.confirmed)
        self.call(place, "handle_request", "reader", Read(token, b""), b"", self.now)

    def written(self, place: int) -> None:
        change = self.writing[place]
        assert change is not None
        self.writing[place] = None
        self.touch(place)
        self.disks[place].write(change)
        self.call(place, "handle_done", change, None, self.now)

    def crash(self, place: int) -> None:
        self.cores[place], self.writing[place] = None, None

    def restart(self, place: int) -> None:
        self.lives += 1
        disk = self.disks[place] = copy.copy(self.disks[place])
        self.touched.add(place)
        self.cores[place] = ChainServerCore(
            place, NAMES, self.lives, disk.memory, Count(), now=self.now, clock=CLOCK, loaded=disk.loaded, durable=True
        )
        self.call(place, "start", self.now)
        self.listen(place)

    def listen(self, place: int) -> None:
        """Both clients listen to every server: whoever is the tail answers."""
        for client, session in enumerate(SESSIONS):
            self.call(place, "handle_request", f"client{client}", Listen(session, b"-"), b"", self.now)

    def flow(self, places: set[int]) -> None:
        """All that these have to do and say to each other is done and arrives."""
        for _ in range(60):
            links = [link for link in LINKS if self.links[link] and set(link) <= places]
            disks = [place for place in places if self.writing[place] is not None]
            if not links and not disks:
                return
            for link in links:
                self.deliver(link)
            for place in disks:
                self.written(place)
        raise Broken("messages never end")

    def silence(self, places: set[int]) -> None:
        """Time passes in which these run, and the others stand still or are cut off."""
        for _ in range(SILENT_TICKS):
            self.now += TICK_S
            for place in sorted(places):
                if self.cores[place] is not None:
                    self.call(place, "handle_timeout", self.now)
            self.flow({place for place in places if self.cores[place] is not None})


def founded() -> State:
    """All three are members, two sessions are open, and nothing is under way."""
    chain = tuple((place, 1 + place) for place in range(3))
    decided = value.encode(Configuration(chain, (11, 12, 13), (False,) * 3, True))
    opens = tuple(Entry(1, WALL_US, 0, 0, 0, b"client%d" % number) for number in range(2))
    disks = []
    for place in range(3):
        disk = Disk(11 + place)
        disk.memory, disk.loaded = VoteRecord(11 + place, 1, decided), LoadedChain(None, opens, 2)
        disks.append(disk)
    state = State([], disks, committed=list(opens))
    state.cores = [
        ChainServerCore(
            place, NAMES, 1 + place, disks[place].memory, Count(), now=0.0, clock=CLOCK, loaded=disks[place].loaded
        )
        for place in range(3)
    ]  # fmt: skip
    for place in range(3):
        core = state.cores[place]
        assert core is not None
        core.number = 0
        state.carry_out(place, core._enter(1, decided, 0.0))
        state.call(place, "start", 0.0)
        state.listen(place)
    state.flow({0, 1, 2})
    state.silence({0, 1, 2})
    assert all(core is not None and core.aligned for core in state.cores)
    return state


def under_way() -> State:
    """A command has come to the head, and to nobody else."""
    state = founded()
    state.do(0, 0)
    return state


def without_tail() -> State:
    """The tail stands still and was taken out; it does not know."""
    state = founded()
    state.do(0, 0)
    state.flow({0, 1, 2})
    state.silence({0, 1})
    return state


def without_head() -> State:
    """The head stands still with a command that nobody else has, and was taken out."""
    state = under_way()
    state.silence({1, 2})
    return state


@dataclass(frozen=True)
class Budget:
    """How much of a kind may still happen."""

    commands: int = 2
    reads: int = 1
    crashes: int = 1
    silences: int = 2
    losses: int = 1


def choices(state: State, budget: Budget) -> Iterator[tuple[str, Budget, Any]]:
    """What may happen next."""
    alive = {place for place, core in enumerate(state.cores) if core is not None}
    for link in LINKS:
        if state.links[link]:
            yield f"deliver {link}", budget, lambda s, link=link: s.deliver(link)
            if budget.losses:
                yield f"lose {link}", replace(budget, losses=budget.losses - 1), lambda s, link=link: s.lose(link)
    for place in sorted(alive):
        core = state.cores[place]
        assert core is not None
        if state.writing[place] is not None:
            yield f"disk {place}", budget, lambda s, place=place: s.written(place)
        if core.head and budget.commands:
            less = replace(budget, commands=budget.commands - 1)
            for client in range(2):
                yield f"client {client} at {place}", less, lambda s, p=place, c=client: s.do(p, c)
                if state.seqs[client]:
                    yield f"again {client} at {place}", less, lambda s, p=place, c=client: s.do(p, c, again=True)
        if core.member and budget.reads:
            yield f"read {place}", replace(budget, reads=budget.reads - 1), lambda s, place=place: s.read(place)
        if budget.crashes:
            yield f"crash {place}", replace(budget, crashes=budget.crashes - 1), lambda s, place=place: s.crash(place)
    for place in {0, 1, 2} - alive:
        yield f"restart {place}", budget, lambda s, place=place: s.restart(place)
    if budget.silences:
        less = replace(budget, silences=budget.silences - 1)
        for places in ({0, 1, 2}, {0, 1}, {0, 2}, {1, 2}):
            if places & alive:
                yield f"silence {places}", less, lambda s, places=places & alive: s.silence(places)


def played(state: State, act: Any, way: tuple[str, ...]) -> State:
    then = state.then()
    try:
        act(then)
    except Broken as broken:
        raise Broken(f"{broken}; way: {way}") from None
    return then


def end_well(state: State) -> None:
    """Everybody comes back: in the end all are members and have the same, with all that was confirmed."""
    for place in range(3):
        if state.cores[place] is None:
            state.restart(place)
    for _ in range(8):
        state.silence({0, 1, 2})
    for core in state.cores:
        assert core is not None
        did = core.replica.machine.did  # type: ignore[attr-defined]
        if not core.member or core.committed != len(state.committed) or not state.confirmed <= set(did):
            raise Broken(
                f"in the end {core.story()}, {len(state.committed)} are committed, confirmed {state.confirmed}"
            )


def explore(first: State, budget: Budget, depth: int, calm_every: int) -> int:
    """Play everything that may happen in so many steps; returns the number of states."""
    seen: set[Any] = set()
    edge: list[tuple[State, Budget, tuple[str, ...]]] = [(first, budget, ())]
    for _ in range(depth):
        following = []
        for state, left, way in edge:
            for text, rest, act in choices(state, left):
                path = (*way, text)
                then = played(state, act, path)
                key = hash((then.key(), rest))
                if key in seen:
                    continue
                seen.add(key)
                if len(seen) % calm_every == 0:
                    played(then, end_well, (*path, "calm"))
                following.append((then, rest, path))
        edge = following
    return len(seen)


def wander(first: State, rng: Random, steps: int, budget: Budget) -> None:
    """Play one long way, drawn by chance, and then have it end well."""
    state, way = first, ()
    for _ in range(steps):
        ways = list(choices(state, budget))
        if not ways:
            break
        often = [each for each in ways if each[1] == budget]
        text, budget, act = rng.choice(often if often and rng.random() < 0.6 else ways)
        way = (*way, text)  # type: ignore[assignment]
        state = played(state, act, way)
    played(state, end_well, (*way, "calm"))
