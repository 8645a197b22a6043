"""A small model of a pair: two servers, a witness or none, one client, and everything that may happen to them.

What is copied is a log of numbers: the active server appends what the client writes, the partner gets the whole log
when it begins to follow and then each write, and says what it has. A state is a value; ``choices`` are what may happen
next.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from random import Random
from typing import Any, Final

from chappe.core import Ask, Deliver, Effect, Persist, Reply, Report, Send
from chappe.replication.binary_star.core import BinaryStar
from chappe.replication.binary_star.messages import (
    BACKUP,
    PRIMARY,
    Confirming,
    FollowingPartner,
    Leading,
    PairMemory,
    PartnerBeat,
    Resting,
)
from chappe.replication.binary_star.witness import Grant, WitnessCore

TICK_S: Final = 0.25
SILENT_TICKS: Final = 3
KEPT: Final = 2  # beats and claims on their way; the newer takes the place of the newest
LINKS: Final = ("ab", "ba", "aw", "bw", "wa", "wb", "AB", "BA")  # AB, BA: the copy, in order and whole
OTHER: Final = {"a": "b", "b": "a"}

Log = tuple[int, ...]


NO_MEMORY: Final = PairMemory()


class Broken(Exception):
    """A promise was broken."""


@dataclass(frozen=True)
class Server:
    """One server: its core, its copy, and what its owner knows."""

    core: BinaryStar
    log: Log = ()
    memory: PairMemory = NO_MEMORY
    follows: FollowingPartner | None = None
    leads: int = 0
    confirmed: int = 0  # of the log, from the beginning
    had: int = -1  # what the partner's life said that it has, in this term
    alive: bool = True


@dataclass(frozen=True)
class State:
    """All there is."""

    a: Server
    b: Server
    witness: tuple[tuple[bytes, Grant], ...] | None
    now: float = 0.0
    links: tuple[tuple[Any, ...], ...] = ((),) * len(LINKS)
    wrote: int = 0
    confirmed: frozenset[int] = frozenset()
    active: tuple[tuple[int, int], ...] = ()  # which life was active in which term, as clients saw it
    known: int = 0  # the client's term
    lives: int = 2

    def key(self) -> tuple[Any, ...]:
        return (
            tuple(vars(self.a.core).values()), tuple(vars(self.b.core).values()), self.a.log, self.b.log,
            self.a.had, self.b.had, self.a.confirmed, self.b.confirmed, self.a.alive, self.b.alive, self.a.follows,
            self.b.follows, self.witness, self.now, self.links, self.wrote, self.confirmed, self.known,
        )  # fmt: skip


class Step:
    """A state being changed."""

    def __init__(self, state: State, durable: bool) -> None:
        self.servers = {"a": state.a, "b": state.b}
        self.links = dict(zip(LINKS, state.links, strict=True))
        self.state = state
        self.durable = durable
        self.now = state.now
        self.witness = state.witness
        self.confirmed = state.confirmed
        self.active = dict(state.active)
        self.known = state.known
        self.wrote = state.wrote
        self.lives = state.lives

    def done(self) -> State:
        return State(
            self.servers["a"], self.servers["b"], self.witness, self.now, tuple(self.links[each] for each in LINKS),
            self.wrote, self.confirmed, tuple(sorted(self.active.items())), self.known, self.lives,
        )  # fmt: skip

    # -- what may happen --------------------------------------------------------------------------------------

    def run(self, name: str) -> None:
        """The timer of a server rings."""
        if self.servers[name].alive:
            self.call(name, lambda core: core.handle_timeout(self.now))

    def request(self, name: str) -> None:
        """The client writes at a server."""
        if not self.servers[name].alive:
            return
        self.call(name, lambda core: core.handle_request(self.known, self.now))
        server = self.servers[name]
        if not server.core.serving or server.core.term < self.known:
            return
        term, life = server.core.term, server.core.life
        former = self.active.get(term, life)
        self.active[term] = life
        if former != life and (self.durable or former in {each.core.life for each in self.servers.values()}):
            raise Broken(f"two active in term {term}")
        self.known = term
        self.wrote += 1
        self.servers[name] = replace(server, log=(*server.log, self.wrote))
        self.send(name.upper(), (term, life, "write", len(server.log), self.wrote))
        self.confirm(name)

    def deliver(self, link: str) -> None:
        """The first of what is on its way arrives, if somebody is there."""
        thing, *rest = self.links[link]
        self.links[link] = tuple(rest)
        target = link[1]
        if target == "w":
            self._claim(link[0], thing)
        elif not self.servers[target.lower()].alive:
            return
        elif link[0] == "w":
            self.call(target, lambda core: core.handle_answer(thing, self.now))
        elif target.islower():
            self.call(target, lambda core: core.handle_message(thing, self.now))
        else:
            self._take(target.lower(), *thing)

    def crash(self, name: str) -> None:
        """A server dies, and its connections with it; what nobody else has and no disk is gone without blame."""
        server = self.servers[name]
        self.servers[name] = replace(server, alive=False, log=server.log if self.durable else ())
        for link in LINKS:
            if link.isupper() or link[0] == name:
                self.links[link] = ()
        kept = {*self.servers["a"].log, *self.servers["b"].log}
        self.confirmed = frozenset(self.confirmed & kept)

    def restart(self, name: str, met: bool = False) -> None:
        """It comes back; without a witness it must meet the other (``met``), or that may be taken to be absent."""
        server = self.servers[name]
        self.lives += 1
        core = new_core(name, self.lives, self.now, self.witness is not None, server.memory if self.durable else None)
        self.servers[name] = Server(core, server.log, server.memory, confirmed=len(server.log))
        self.call(name, lambda core: core.start(self.now))
        if met:
            self.flow()

    def leave(self, name: str) -> None:
        """The active server has its partner catch up anew."""
        server = self.servers[name]
        if server.leads and server.core.confirms == "paired":
            self.servers[name] = replace(server, had=-1)
            self.call(name, lambda core: core.fell_behind(self.now))
            life = server.core._peer.life  # type: ignore[union-attr]
            self.send(name.upper(), (server.leads, server.core.life, "all", server.log, life))

    # -- inside -----------------------------------------------------------------------------------------------

    def call(self, name: str, method: Callable[[BinaryStar], list[Effect]]) -> None:
        core = copy.copy(self.servers[name].core)
        self.servers[name] = replace(self.servers[name], core=core)
        effects = method(core)
        found = core.invariants()
        if found:
            raise Broken(found[0])
        for effect in effects:
            self._do(name, effect)
        self._caught_up(name)
        self.confirm(name)

    def _do(self, name: str, effect: Effect) -> None:
        server = self.servers[name]
        match effect:
            case Persist(memory):
                self.servers[name] = replace(server, memory=memory)
                server.core.handle_done(memory, None, self.now)
            case Send(_, PartnerBeat(_, beat)):
                self.send(name, beat)
            case Ask(_, _, payload):
                if self.witness is not None:
                    self.links[f"{name}w"] = (*self.links[f"{name}w"], payload)[-KEPT:]
            case Deliver(_, Leading(term)):
                self.servers[name] = replace(server, leads=term, follows=None, had=-1, confirmed=len(server.log))
            case Deliver(_, FollowingPartner(term, life) as follows):
                self.servers[name] = replace(server, leads=0, follows=follows)
                self.send(name.upper(), (term, life, "begin", server.core.life, 0))
            case Deliver(_, Resting()):
                self.servers[name] = replace(server, leads=0, follows=None)
            case Deliver(_, Confirming()) | Report():
                pass

    def send(self, name: str, thing: Any) -> None:
        link = name + OTHER[name.lower()] if name.islower() else name + OTHER[name.lower()].upper()
        waiting = self.links[link]
        if name.islower() and len(waiting) >= KEPT:
            waiting = waiting[: KEPT - 1]
        self.links[link] = (*waiting, thing)

    def _take(self, name: str, term: int, life: int, what: str, place: Any, value: Any) -> None:
        """Something of the copy arrives; ``life`` is the active server's."""
        server = self.servers[name]
        if what in ("begin", "have"):
            if server.leads != term or server.core.life != life:
                return
            if what == "begin":
                self.servers[name] = replace(server, had=-1)
                self.call(name, lambda core: core.fell_behind(self.now))
                self.send(name.upper(), (term, life, "all", self.servers[name].log, place))
            elif place == self.servers[name].core._peer.life:  # type: ignore[union-attr]
                self.servers[name] = replace(server, had=value)
                self._caught_up(name)
                self.confirm(name)
            return
        if server.follows != FollowingPartner(term, life):
            return
        if what == "all" and value == server.core.life:
            self.servers[name] = replace(server, log=place)
        elif what == "write" and place == len(server.log):
            self.servers[name] = replace(server, log=(*server.log, value))
        else:
            return
        self.send(name.upper(), (term, life, "have", server.core.life, len(self.servers[name].log)))

    def _caught_up(self, name: str) -> None:
        server = self.servers[name]
        peer = server.core._peer
        if server.leads and server.had >= server.confirmed and server.core.confirms != "paired" and peer is not None:
            core = copy.copy(server.core)
            effects = core.caught_up(peer.life, self.now)
            self.servers[name] = replace(server, core=core)
            for effect in effects:
                self._do(name, effect)

    def confirm(self, name: str) -> None:
        server = self.servers[name]
        confirms = server.core.confirms
        if not server.leads or confirms == "nothing":
            return
        upto = len(server.log) if confirms == "alone" else max(server.confirmed, min(server.had, len(server.log)))
        if upto <= server.confirmed:
            return
        lost = self.confirmed - set(server.log)
        if lost and confirms == "alone":  # what a partner has late, it has all the same
            raise Broken(f"{name} confirms in term {server.leads} without the confirmed writes {sorted(lost)}")
        self.confirmed = self.confirmed | set(server.log[server.confirmed : upto])
        self.servers[name] = replace(server, confirmed=upto)

    def _claim(self, name: str, frame: bytes) -> None:
        assert self.witness is not None
        core = WitnessCore(dict(self.witness))
        for effect in core.handle_request(b"", frame, 0.0):
            if isinstance(effect, Persist):
                self.witness = tuple(sorted(core.records.items()))
            elif isinstance(effect, Reply):
                self.links[f"w{name}"] = (*self.links[f"w{name}"], effect.message)[-KEPT:]

    # -- many at once -----------------------------------------------------------------------------------------

    def flow(self, but: str = "", between: str = "abw") -> None:
        """All that is on its way arrives, and what that brings about; not at ``but``, which stands still."""
        for _ in range(50):
            links = [
                link for link in LINKS
                if self.links[link] and link[1].lower() not in but and set(link.lower()) <= set(between)
            ]  # fmt: skip
            if not links:
                return
            for link in links:
                self.deliver(link)
        raise Broken("messages never end")

    def silence(self, running: str, *, flows: bool = False) -> None:
        """Three heartbeats pass, in which some servers run; nothing arrives, or all that goes to those who run."""
        for _ in range(SILENT_TICKS):
            self.now += TICK_S
            for name in running:
                self.run(name)
            if flows:
                self.flow("".join({"a", "b"} - set(running)))


def new_core(name: str, life: int, now: float, witness: bool, memory: PairMemory | None) -> BinaryStar:
    return BinaryStar(
        PRIMARY if name == "a" else BACKUP, life, now=now, heartbeat_s=TICK_S, memory=memory, witness=witness
    )


def begun(durable: bool, witness: bool) -> State:
    """Both have started, and nothing has arrived."""
    memory = PairMemory() if durable else None
    a, b = (Server(new_core(name, life, 0.0, witness, memory)) for name, life in (("a", 1), ("b", 2)))
    step = Step(State(a, b, () if witness else None), durable)
    for name in "ab":
        step.run(name)
    return step.done()


def paired(durable: bool, witness: bool) -> State:
    """The primary is active, the backup has everything."""
    step = Step(begun(durable, witness), durable)
    step.flow()
    for _ in range(4):
        step.silence("ab", flows=True)
    step.request("a")
    step.flow()
    assert step.servers["a"].core.confirms == "paired", step.servers["a"].core.story()
    assert step.confirmed == {1}
    return step.done()


def parted(durable: bool, witness: bool) -> State:
    """The two no longer hear each other, and a write is under way."""
    step = Step(paired(durable, witness), durable)
    step.request("a")
    step.silence("ab")
    return step.done()


@dataclass(frozen=True)
class Budget:
    """How much of a kind may still happen."""

    writes: int = 3
    crashes: int = 1
    silences: int = 3
    leaves: int = 0


Act = Callable[[Step], None]


def choices(state: State, budget: Budget, careful: bool) -> Iterator[tuple[str, Budget, Act]]:
    """What may happen next; ``careful``: what is sent arrives while time passes, as long as who gets it runs."""
    for link, things in zip(LINKS, state.links, strict=True):
        if things:
            yield f"deliver {link}", budget, partial(Step.deliver, link=link)
    alive = "".join(name for name, server in (("a", state.a), ("b", state.b)) if server.alive)
    if budget.writes:
        less = replace(budget, writes=budget.writes - 1)
        for name in alive:
            yield f"write at {name}", less, partial(Step.request, name=name)
    if budget.silences:
        less = replace(budget, silences=budget.silences - 1)
        for running in dict.fromkeys((alive, *alive)):
            if running:
                yield f"silence, {running} runs", less, partial(Step.silence, running=running, flows=careful)
    for name in alive if budget.leaves else "":
        yield f"{name} leaves", replace(budget, leaves=0), partial(Step.leave, name=name)
    for name in "ab":
        if name in alive and budget.crashes:
            yield f"crash {name}", replace(budget, crashes=budget.crashes - 1), partial(Step.crash, name=name)
        elif name not in alive:
            yield f"restart {name}", budget, partial(Step.restart, name=name, met=careful)


def end_well(step: Step) -> None:
    """Everybody comes back and everything arrives: in the end one is active, with all that was confirmed."""
    for name in "ab":
        if not step.servers[name].alive:
            step.restart(name)
    for _ in range(12):
        step.silence("ab", flows=True)
        for name in "ab":
            step.request(name)
            step.flow()
    active = [name for name in "ab" if step.servers[name].core.serving]
    stories = [step.servers[name].core.story() for name in "ab"]
    if len(active) != 1:
        raise Broken(f"active in the end: {active}: {stories}")
    server = step.servers[active[0]]
    if server.core.confirms != "paired" or not step.confirmed <= set(server.log):
        raise Broken(f"in the end: {stories}, {sorted(step.confirmed - set(server.log))} are lost")
    if not {step.wrote} <= step.confirmed:
        raise Broken(f"what was written last is not confirmed: {stories}")


def played(state: State, act: Act, durable: bool, way: tuple[str, ...]) -> State:
    step = Step(state, durable)
    try:
        act(step)
    except Broken as broken:
        raise Broken(f"{broken}; way: {way}") from None
    return step.done()


def explore(first: State, budget: Budget, depth: int, durable: bool, careful: bool, calm_every: int) -> int:
    """Play everything that may happen in so many steps; returns the number of states."""
    seen: set[tuple[Any, ...]] = set()
    edge: list[tuple[State, Budget, tuple[str, ...]]] = [(first, budget, ())]
    for _ in range(depth):
        following = []
        for state, left, way in edge:
            for text, rest, act in choices(state, left, careful):
                path = (*way, text)
                then = played(state, act, durable, path)
                key = (then.key(), rest)
                if key in seen:
                    continue
                seen.add(key)
                if len(seen) % calm_every == 0:
                    played(then, end_well, durable, (*path, "calm"))
                following.append((then, rest, path))
        edge = following
    return len(seen)


def wander(first: State, rng: Random, steps: int, durable: bool, careful: bool, budget: Budget = Budget()) -> None:
    """Play one long way, drawn by chance, and then have it end well."""
    state, way = first, ()
    for _ in range(steps):
        ways = list(choices(state, budget, careful))
        ways += [(f"flow {each}", budget, partial(Step.flow, between=each)) for each in ("abw", "aw", "bw", "ab")]
        text, _, act = rng.choice(ways)
        way = (*way, text)  # type: ignore[assignment]
        state = played(state, act, durable, way)
    played(state, end_well, durable, (*way, "calm"))
