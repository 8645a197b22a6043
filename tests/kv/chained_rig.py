"""Servers of a data store on a chain that is one list of commands; clones; and one clock."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.fixed_clock import FixedClock

from chappe.core import Deliver, Effect, Report, Resolve, Send
from chappe.errors import ProtocolError
from chappe.kv.chained.core import ChainedMaster, Place
from chappe.kv.chained.fed import Fed, WholeState, steps
from chappe.kv.chained.machine import StoreMachine
from chappe.kv.clone import KvClone
from chappe.kv.entity import Entity, chappe_entity
from chappe.kv.role import CHAIN, KeyChange
from chappe.limits import KV_LIMITS, KvLimits

NS = 1_000_000_000
STEP_S = 0.01
KNOWN_AS = 7  # each server and clone to its driver, which tells watchers by it
MISSED_S = 0.4  # until a chain takes a server for dead


class Chained:
    """Servers ``a``, ``b`` ...; ``head`` is one. Commands wait while ``holds``; who is ``paused`` hears nothing.

    Messages for which ``lost`` holds do not arrive.
    """

    def __init__(self, names: str = "ab", limits: KvLimits = KV_LIMITS, history: int = 0) -> None:
        self.limits = limits
        self.history = history
        self.sent: list[tuple[str, Send]] = []
        self.lost: Callable[[Send], bool] = lambda action: False
        self.now = 100.0
        self.head = names[0]
        self.holds = False
        self.proposed: list[bytes] = []  # and not committed
        self.machines: dict[str, StoreMachine] = {}
        self.fed: dict[str, list[Fed]] = {}
        self.clock = FixedClock(of=lambda: int(self.now * NS))
        self.roles: dict[str, Any] = {}
        self.paused: set[str] = set()
        self.waiting: dict[str, list[tuple[bytes, bytes]]] = {}
        self.outcomes: dict[int, object] = {}
        self.events: dict[str, list[object]] = {}
        self.shown: dict[str, list[KeyChange]] = {}
        self.lives = 0
        for name in names:
            self.server(name)
        self.places()

    def times(self) -> dict[str, Any]:
        return {"now": self.now}

    def entity(self, name: str) -> Entity:
        self.lives += 1
        return chappe_entity(name.encode() * 16, self.lives)

    def server(self, name: str) -> None:
        """One life of a server: what the others have is given to its machine, as when it joins."""
        machine = self.machines[name] = StoreMachine()
        self.fed[name] = []
        entity = self.entity(name)
        options: dict[str, Any] = {"part_bytes": 100, "limits": self.limits, "history": self.history}
        self.join(name, ChainedMaster("s", entity, self.lives, clock=self.clock, **options, **self.times()))
        machine.hear(lambda fed: self.fed[name].extend(steps(fed) if isinstance(fed, WholeState) else (fed,)))
        others = [each for other, each in self.machines.items() if other != name]
        if others:
            machine.restore(others[0].snapshot())

    def clone(self, name: str) -> KvClone:
        return self.join(name, KvClone("s", self.entity(name), now=self.now, clock=self.clock))  # type: ignore[no-any-return]

    def join(self, name: str, role: Any) -> Any:
        self.roles[name] = role
        role.known_as(KNOWN_AS)
        self.waiting[name] = []
        self.events[name], self.shown[name] = [], []
        self.do(name, role.start(**self.times()))
        return role

    def places(self, why: str = "") -> None:
        """Tell the servers where they are."""
        for name in self.machines:
            if name in self.roles:
                self.do(
                    name, self.roles[name].handle_message(CHAIN, [Place(name == self.head, True, why)], **self.times())
                )
        self.deliver()

    def kill(self, name: str) -> None:
        """A server ends, which others see at once, and the next one is the head when the chain has missed it."""
        self.gone(name)
        del self.machines[name]
        self.wait(MISSED_S)
        self.head = next(iter(self.machines))
        self.places()

    def gone(self, name: str) -> None:
        role = self.roles.pop(name)
        for other, each in self.roles.items():
            self.do(other, each.handle_gone(role.entity.endpoint, self.now))

    def do(self, name: str, actions: list[Effect]) -> None:
        for action in actions:
            if isinstance(action, Send) and action.to == CHAIN:
                if name == self.head:
                    self.proposed += action.message
            elif isinstance(action, Send):
                self.sent.append((name, action))
                if self.lost(action):
                    continue
                for other, its in self.roles.items():
                    if other != name and action.to in (None, its.entity.endpoint):
                        self.waiting[other].append((action.topic, action.message))
            elif isinstance(action, Resolve):
                self.outcomes[action.ticket] = action.outcome
            elif isinstance(action, Deliver):
                assert action.to == KNOWN_AS
                self.shown[name] += action.messages
            elif isinstance(action, Report):
                self.events[name].append(action.event)

    def commit(self) -> None:
        """What was proposed is done at all machines."""
        proposed, self.proposed = self.proposed, []
        for command in proposed:
            for machine in self.machines.values():
                try:
                    machine.apply_own(command)
                except ProtocolError as error:
                    raise AssertionError(f"the head gave {command!r}") from error

    def deliver(self) -> None:
        rounds = 0
        while self._step():
            rounds += 1
            assert rounds < 1_000, "they answer each other for ever"

    def _step(self) -> bool:
        worked = False
        if self.proposed and not self.holds:
            self.commit()
        for name in [each for each in self.roles if each not in self.paused]:
            if self.fed.get(name):
                fed = self.fed[name][:]
                self.fed[name].clear()
                self.do(name, self.roles[name].handle_message(CHAIN, fed, **self.times()))
                worked = True
            waiting, self.waiting[name] = self.waiting[name], []
            for topic, payload in waiting:
                worked = True
                if topic in self.roles[name].topics:
                    self.do(name, self.roles[name].handle_message(topic, [payload], **self.times()))
        return worked

    def wait(self, seconds: float) -> None:
        until = self.now + seconds
        while self.now < until:
            self.deliver()
            self.now += STEP_S
            for name, role in list(self.roles.items()):
                if name not in self.paused and self.now >= role.next_timeout():
                    self.do(name, role.handle_timeout(**self.times()))
                assert role.invariants() == []
        self.deliver()

    def write(self, name: str, what: str, *arguments: Any, ticket: int = 0, **options: Any) -> None:
        self.do(name, getattr(self.roles[name], what)(*arguments, ticket=ticket, **options, **self.times()))
        self.deliver()

    def masters(self) -> list[str]:
        return [name for name in self.machines if self.roles[name].active is not None]

    def contents(self, name: str) -> dict[Any, Any]:
        return {entry.key: entry.value for entry in self.roles[name].engine.items()}
