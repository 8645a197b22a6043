"""Three servers that agree, and everything that may happen to them: what was once sent may arrive ever after."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from chappe.core import Effect, Persist, Send
from chappe.errors import StorageError
from chappe.replication.agreement.core import Agreement, Message, VoteRecord, encode

SERVERS = 3


def disks_of(value: bytes) -> tuple[int, ...]:
    """A value is a letter and the disk of each server, one digit each."""
    return tuple(value[1:])


def value_of(letter: str, *disks: int) -> bytes:
    return letter.encode() + bytes(disks)


class Broken(Exception):
    """A promise was broken."""


Sent = tuple[int, int, Message]


@dataclass(frozen=True)
class Budget:
    """How much of a kind may still happen."""

    proposals: tuple[tuple[int, bytes], ...]
    again: int = 1
    crashes: int = 1
    refusals: int = 0
    losses: int = 0  # of a disk


@dataclass
class State:
    cores: list[Agreement]
    kept: list[VoteRecord]
    net: frozenset[Sent] = frozenset()
    decided: dict[int, bytes] = field(default_factory=dict)
    first: int = 0  # what was decided when it began

    def key(self) -> Any:
        cores = tuple(
            (
                each.memory, each._wish, each._ballot, each._value, tuple(sorted(each._promises.items())), each._votes,
                each._seen, each._kept is None,
            )
            for each in self.cores
        )  # fmt: skip
        return cores, tuple(self.kept), self.net

    def then(self) -> State:
        return State(
            [copy.copy(each) for each in self.cores], list(self.kept), self.net, dict(self.decided), self.first
        )

    def carry_out(self, place: int, effects: list[Effect], *, refuse: bool = False) -> None:
        core = self.cores[place]
        for effect in effects:
            match effect:
                case Persist(VoteRecord() as vote, first=True):
                    outcome = StorageError("no room") if refuse else None
                    if not refuse:
                        self.kept[place] = vote
                    assert core.handle_done(vote, outcome, 0.0) == []
                    if refuse:
                        return
                case Send(server, message):
                    assert server != place
                    self.net = self.net | {(place, server, message)}
                case _:
                    raise AssertionError(effect)
        if core.number > self.first and self.decided.setdefault(core.number, core.value) != core.value:
            raise Broken(f"{core.number} is decided twice: {self.decided[core.number]!r} and {core.value!r}")
        if found := core.invariants():
            raise Broken(found[0])

    def deliver(self, sent: Sent, *, refuse: bool = False) -> None:
        source, target, message = sent
        self.carry_out(target, self.cores[target].handle_message(source, message, 0.0), refuse=refuse)

    def propose(self, place: int, value: bytes) -> None:
        self.carry_out(place, self.cores[place].propose(value, 0.0))

    def again(self, place: int) -> None:
        """It gives its ballot up, as after a refusal, and begins another."""
        core = self.cores[place]
        if core._wish:
            core._rest()
            self.carry_out(place, core._begin(0.0))

    def crash(self, place: int) -> None:
        self.cores[place] = Agreement(place, SERVERS, self.kept[place], disks_of)
        self.carry_out(place, self.cores[place].start())

    def lose_disk(self, place: int) -> None:
        self.kept[place] = VoteRecord(self.kept[place].disk + 3)
        self.crash(place)


def begun(number: int = 1) -> State:
    memories = [VoteRecord(1 + place, number, value_of("o", 1, 2, 3) if number else b"") for place in range(SERVERS)]
    return State(
        [Agreement(place, SERVERS, each, disks_of) for place, each in enumerate(memories)], memories, first=number
    )


def choices(state: State, budget: Budget) -> Iterator[tuple[str, Budget, State]]:
    for sent in sorted(state.net, key=lambda each: (each[0], each[1], encode(each[2]))):
        then = state.then()
        then.deliver(sent)
        yield f"{sent}", budget, then
        if budget.refusals:
            then = state.then()
            then.deliver(sent, refuse=True)
            yield f"{sent} refused by the disk", replace(budget, refusals=budget.refusals - 1), then
    for place, value in budget.proposals:
        then = state.then()
        then.propose(place, value)
        rest = tuple(each for each in budget.proposals if each != (place, value))
        yield f"{place} proposes {value!r}", replace(budget, proposals=rest), then
    for place in range(SERVERS):
        if budget.again and state.cores[place]._wish:
            then = state.then()
            then.again(place)
            yield f"{place} again", replace(budget, again=budget.again - 1), then
        if budget.crashes:
            then = state.then()
            then.crash(place)
            yield f"{place} restarts", replace(budget, crashes=budget.crashes - 1), then
    if budget.losses:
        then = state.then()
        then.lose_disk(SERVERS - 1)
        yield "a disk is lost", replace(budget, losses=budget.losses - 1), then


def explore(first: State, budget: Budget, depth: int) -> int:
    """Play everything that may happen in so many steps; returns the number of states."""
    seen: set[Any] = {(first.key(), budget)}
    edge = [(first, budget)]
    for _ in range(depth):
        following = []
        for state, left in edge:
            for _, rest, then in choices(state, left):
                key = (then.key(), rest)
                if key not in seen:
                    seen.add(key)
                    following.append((then, rest))
        edge = following
    return len(seen)


def wander(first: State, budget: Budget, rng: Random, steps: int) -> State:
    """Play one long way, drawn by chance."""
    state = first
    for _ in range(steps):
        ways = list(choices(state, budget))
        if not ways:
            break
        sends = [each for each in ways if each[1] == budget]
        _, budget, state = rng.choice(sends if sends and rng.random() < 0.8 else ways)
    return state


def settle(state: State) -> State:
    """Everything arrives that is sent from now on, and time passes."""
    state = state.then()
    for step in range(200):
        sent, state.net = state.net, frozenset()
        if step:
            deliver_all(state, sent, step * 0.05)
        for place, core in enumerate(state.cores):
            state.carry_out(place, core.handle_timeout(step * 0.05))
    return state


def deliver_all(state: State, sent: frozenset[Sent], now: float) -> None:
    for source, target, message in sorted(sent, key=lambda each: (each[0], each[1], encode(each[2]))):
        state.carry_out(target, state.cores[target].handle_message(source, message, now))


def between(state: State, *places: int, but: type | tuple[()] = ()) -> None:
    """What these say to each other arrives, and nothing else does, nor what is of the class ``but``."""
    for _ in range(6):
        sent, state.net = state.net, frozenset()
        deliver_all(
            state, frozenset(each for each in sent if {*each[:2]} <= {*places} and not isinstance(each[2], but)), 0.0
        )
