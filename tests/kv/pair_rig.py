"""The two masters of a pair joined directly, and clones: what one sends the others get, unless a test says else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from chappe.core import Report
from chappe.errors import StorageFull
from chappe.kv.actions import Action, Commit, Notify, Resolve, Send
from chappe.kv.clone import KvClone
from chappe.kv.entity import Entity, chappe_entity
from chappe.kv.pair.core import PairedMaster
from chappe.limits import KV_LIMITS, KvLimits
from chappe.replication.binary_star.messages import BACKUP, PRIMARY
from chappe.sim.backends import SimBackend

NS = 1_000_000_000
STEP_S = 0.01


class Pair:
    """Two masters, clones, and one clock; commits take no time unless they are held."""

    def __init__(self, *, durable: bool = False, limits: KvLimits = KV_LIMITS) -> None:
        self.now = 100.0
        self.lives = 0
        self.limits = limits
        self.backends = {"a": SimBackend(), "b": SimBackend()} if durable else {}
        self.roles: dict[str, Any] = {}
        self.paused: set[str] = set()
        self.waiting: dict[str, list[tuple[bytes, bytes]]] = {}
        self.outcomes: dict[int, object] = {}
        self.events: dict[str, list[object]] = {}
        self.shown: dict[str, list[Notify]] = {}
        self.sent: list[tuple[str, Send]] = []
        self.lost: Callable[[str, Send], bool] = lambda sender, action: False
        for name in ("a", "b"):
            self.master(name)

    def entity(self, name: str) -> Entity:
        self.lives += 1
        return chappe_entity(name.encode() * 16, self.lives)

    def times(self) -> dict[str, Any]:
        return {"now": self.now, "wall_ns": int(self.now * NS)}

    def master(self, name: str) -> None:
        backend = self.backends.get(name)
        self.lives += 1
        self.join(
            name,
            PairedMaster(
                "s", self.entity(name), PRIMARY if name == "a" else BACKUP, self.lives, durable=backend is not None,
                loaded=None if backend is None else backend.load(), limits=self.limits, **self.times(),
            ),
        )  # fmt: skip

    def join(self, name: str, role: Any) -> Any:
        self.roles[name] = role
        self.waiting[name] = []
        self.events.setdefault(name, [])
        self.shown.setdefault(name, [])
        self.do(name, role.start(**self.times()))
        return role

    def clone(self, name: str) -> KvClone:
        return self.join(name, KvClone("s", self.entity(name), now=self.now))  # type: ignore[no-any-return]

    def do(self, name: str, actions: list[Action]) -> None:
        role = self.roles[name]
        for action in actions:
            if isinstance(action, Send):
                self.sent.append((name, action))
                if not self.lost(name, action):
                    for other, its in self.roles.items():
                        if other != name and action.receiver in (None, its.entity.endpoint):
                            self.waiting[other].append((action.topic, action.payload))
            elif isinstance(action, Commit):
                try:
                    self.backends[name].commit(action.operations)
                except StorageFull as error:
                    self.do(name, role.handle_commit_failed(action.number, error, self.now))
                else:
                    self.do(name, role.handle_committed(action.number, **self.times()))
            elif isinstance(action, Resolve):
                self.outcomes[action.ticket] = action.outcome
            elif isinstance(action, Notify):
                self.shown[name].append(action)
            elif isinstance(action, Report):
                self.events[name].append(action.event)

    def deliver(self) -> None:
        rounds = 0
        while any(self.waiting[each] for each in self.roles if each not in self.paused):
            rounds += 1
            assert rounds < 1_000, "they answer each other for ever"
            for name in [each for each in self.roles if each not in self.paused]:
                waiting, self.waiting[name] = self.waiting[name], []
                for topic, payload in waiting:
                    hear = self.roles[name].hears.get(topic)
                    if hear is not None and name in self.roles:
                        self.do(name, hear([payload], **self.times()))

    def wait(self, seconds: float) -> None:
        until = self.now + seconds
        while self.now < until:
            self.deliver()
            self.now += STEP_S
            for name, role in list(self.roles.items()):
                if name not in self.paused and self.now >= role.next_timeout(**self.times()):
                    self.do(name, role.handle_timeout(**self.times()))
                assert role.invariants() == []
        self.deliver()

    def write(self, name: str, what: str, *arguments: Any, ticket: int) -> None:
        self.do(name, getattr(self.roles[name], what)(*arguments, ticket=ticket, **self.times()))
        self.deliver()

    def kill(self, name: str) -> None:
        gone = self.roles.pop(name)
        for other, role in self.roles.items():
            self.do(other, role.handle_gone(gone.entity.endpoint, self.now))


def paired(**options: Any) -> Pair:
    pair = Pair(**options)
    pair.wait(1.0)
    assert pair.roles["a"].star.confirms == "paired"
    assert pair.roles["b"].idle()
    return pair
