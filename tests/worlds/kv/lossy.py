"""Worlds of a data store on a wire that loses, repeats and reorders single messages, as no connection does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from tests.worlds.backends import SimBackend
from tests.worlds.kv.hosts import KvHost
from tests.worlds.kv.scenario import KvBase
from tests.worlds.wire import Wire

from chappe.core import Deliver, Persist, Report, Resolve, Send
from chappe.errors import StorageError
from chappe.sim.world import SimWorld

NOTICE_S: Final = (0.0, 0.5, 20.0)  # how long until a member hears that another is out of reach


class WireHost(KvHost):
    """On a wire: every message may be lost, repeated and out of order."""

    world: KvLossy

    def __init__(self, world: KvLossy, name: str, backend: SimBackend | None = None) -> None:
        super().__init__(world, name)
        self.take_part(world.rng.randbytes(16), backend)
        self.table = {Send: self._send, Persist: self._persist, Deliver: _told, Resolve: _told, Report: _told}

    def start(self) -> None:
        """Begin."""
        self.call(self.role.start, self.now)

    def due(self) -> float:
        """When the core wants to be called."""
        due: float = self.role.next_timeout()
        return due

    def handle_due(self) -> None:
        """Have it do what is due."""
        self.call(self.role.handle_timeout, self.now)

    def write(self, method: Callable[..., Any], arguments: list[Any], options: dict[str, Any]) -> None:
        """Make one call that writes."""
        self.call(method, *arguments, now=self.now, **options)

    def ask_role(self, method: Callable[..., Any], *arguments: object) -> None:
        """Make one call that a ``Resolve`` answers."""
        self.call(method, *arguments, now=self.world.now)

    def leave(self) -> None:
        """Say goodbye."""
        self.call(self.role.leave)

    def hear(self, action: Send) -> None:
        """A message has come, if it still lives."""
        self.heard = action
        self.call(self.role.handle_message, action.topic, [action.message], self.now)

    def committed(self, job: Any, error: StorageError | None) -> None:
        """A job is done, or was refused."""
        self.call(self.role.handle_done, job, error, self.now)

    def notice(self, endpoint: bytes) -> None:
        """An endpoint is out of reach."""
        self.call(self.role.handle_gone, endpoint, self.world.now)

    def _send(self, action: Send) -> None:
        for other in self.world.alive(WireHost):
            if other is self or (action.to is not None and action.to != other.entity.endpoint):
                continue
            if action.topic in other.role.topics:
                self.world.wire.send(self.name, other.name, other.hear, action, Send, len(action.message))


def _told(action: object) -> None:
    """The application was told when the core answered."""


class WiredWorld(SimWorld):
    """A world with a wire."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.wire = Wire(self)


class KvLossy(KvBase, WiredWorld):
    """A data store whose messages are lost, repeated and reordered."""

    @property
    def lossy(self) -> bool:  # type: ignore[override]
        """Whether much of what is sent is lost."""
        return self.wire.loss >= 0.2

    def in_reach(self, one: Any, two: Any) -> bool:
        """Whether two members reach each other."""
        return self.wire.reachable(one.name, two.name)

    def begin(self) -> None:
        """Make the first members."""
        if not self.settings.disturb:
            self.wire.calm()
        super().begin()

    def heal(self) -> None:
        """Nothing is lost any more."""
        self.wire.calm()
        super().heal()

    def make(self, name: str) -> None:
        """Begin the next life of a member."""
        WireHost(self, name, self.backend if name == "master" else None).start()

    def kill(self, host: Any) -> None:
        """Crash a member; the others notice some time later."""
        super().kill(host)
        notice_s = self.rng.choice(NOTICE_S)
        for other in self.alive(WireHost):
            self.clock.after(notice_s, other.notice, host.entity.endpoint)

    def separate(self, one: Any, two: Any, seconds: float, noticed: bool) -> None:
        """Nothing passes between two members for some time."""
        self.wire.cut(one.name, two.name, self.now + seconds)
        if noticed:
            one.notice(two.entity.endpoint)
            two.notice(one.entity.endpoint)

    def slow(self, host: Any, on: bool) -> None:
        """A member takes little; what is sent to it waits."""
        if on:
            self.wire.slow(host.name, self.rng.choice((500.0, 5_000.0)))
        else:
            self.wire.fast(host.name)

    def say(self, host: KvHost, action: Send) -> None:
        """A stranger says something to a member."""
        host.hear(action)
