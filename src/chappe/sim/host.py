"""One life of a member: carries out what its cores ask for, and has them called when they want it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf
from typing import Any, ClassVar

from chappe.errors import ProtocolError, StorageError

TICK_S = 0.001  # a timer is never earlier, and never sooner again
SPINS_MAX = 600  # timeouts of one host in one second; a chain's server under load has 500, one that spins 1,000


class SimHost:
    """The base of all hosts: a name, a life, a timer, and the world's treatment of each action. ``table`` has the
    method that carries out each class of actions. A restarted member is another host of the same name.
    """

    tick_s: ClassVar[float] = TICK_S

    def __init__(self, world: Any, name: str) -> None:
        self.world: Any = world
        self.name = name
        world.hosts[name] = self
        self.alive = True
        self.stalled_until = 0.0  # it stands still so long: infinity until somebody lets it go on
        self.table: dict[type, Callable[[Any], None]] = {}
        self._timer_at = inf
        self._spins = 0
        self._second = 0

    @property
    def frozen(self) -> bool:
        return bool(self.stalled_until > self.world.now)

    def start(self) -> None: ...

    def die(self, *, goodbye: bool = False, notice_s: float = 0.0) -> None:
        self.alive = False

    def due(self) -> float:
        raise NotImplementedError

    def handle_due(self) -> None:
        raise NotImplementedError

    def call(self, method: Callable[..., Sequence[Any]], *args: object, **options: object) -> None:
        """Make one call into a core and carry out its answer."""
        if not self.alive:
            return
        try:
            self.perform(method(*args, **options))
        except ProtocolError as error:
            self.world.fail("honest members", f"{self.name} was sent something malformed: {error}")
        self.arm()

    def perform(self, actions: Sequence[Any]) -> None:
        """Carry out actions in order, until the host dies."""
        table = self.table
        for action in actions:
            if not self.alive:
                return
            table[type(action)](action)

    def arm(self) -> None:
        due = self.due()
        if due < self._timer_at and self.alive:
            self._timer_at = max(due, self.world.now + self.tick_s)
            self.world.clock.at(self._timer_at, self._ring, self._timer_at)

    def _ring(self, at: float) -> None:
        if not self.alive or at != self._timer_at:
            return
        self._timer_at = inf
        if self.frozen:
            if self.stalled_until < inf:
                self._timer_at = self.stalled_until
                self.world.clock.at(self._timer_at, self._ring, self._timer_at)
            return
        self.wake()

    def wake(self) -> None:
        """Do what is due now, and schedule the next call."""
        now = self.world.now
        if now >= self.due():
            if int(now) != self._second:
                self._second, self._spins = int(now), 0
            self._spins += 1
            if self._spins > SPINS_MAX:
                self.world.fail("no spinning", f"{self.name} had {self._spins} timeouts within one second")
            self.handle_due()
        if self.alive:
            self.arm()


class SimMember:
    """A name under which one host lives after the other."""

    def __init__(self, world: Any, name: str, make: Callable[[], SimHost]) -> None:
        self.world = world
        self.name = name
        self.make = make
        self.host = make()
        self.gone = False  # for good
        self.host.start()

    @property
    def alive(self) -> bool:
        return self.host.alive

    def crash(self, *, goodbye: bool = False, notice_s: float = 0.0) -> None:
        if self.host.alive:
            self.host.die(goodbye=goodbye, notice_s=notice_s)

    def restart(self) -> None:
        """Run it again, if it does not run and may."""
        if self.host.alive or self.gone:
            return
        try:
            self.host = self.make()
        except StorageError as error:  # a commit is decided, and its disk has no room for it
            self.world.trace(self.host, "cannot start: %s", error)
            self.world.clock.after(1.0, self.restart)
        else:
            self.host.start()
