"""Who lives on the hosts of a staged world: objects of the API, in one life after the other.

A ``Resident`` lasts; each of its lives is a subject of the checkers. A ``Place`` is a host with its residents, which
die, leave and stand still together.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from chappe.errors import StorageError, TimedOut
from chappe.sim.host import SimHost
from chappe.sim.world import Violation

RETRY_S: Final = 1.0


class Life(SimHost):
    """One life of a resident."""

    face: Any
    cannot: tuple[type[Exception], ...] = (StorageError, TimedOut)  # begin, for now
    address = ""  # if it has one
    closes = False  # it is about to, which may take time

    def __init__(self, world: Any, resident: Resident) -> None:
        super().__init__(world, resident.name)
        self.resident: Any = resident

    def soon(self, delay_s: float, call: Callable[..., None], *arguments: Any) -> None:
        """Call something later in this life, on its host; not while that stands still."""
        self.world.clock.after(delay_s, self._call, call, arguments)

    def _call(self, call: Callable[..., None], arguments: tuple[Any, ...]) -> None:
        if not self.alive:
            return
        place = self.resident.place
        if place.paused:
            place.waiting.append((self, call, arguments))
            return
        try:
            with self.world.stage.on(place.name):
                call(*arguments)
        except Violation as violation:
            self.world.broken = self.world.broken or violation

    def look(self) -> None:
        """See what it reports."""

    def leave(self) -> None:
        """Close it as a user does."""
        self.alive, self.closes = False, True
        try:
            self.face.close()
        finally:
            self.closes = False


class Resident:
    """Somebody who lives in one place, in one life after the other."""

    life: type[Life]
    now: Any = None

    def __init__(self, world: Any, name: str, place: Place) -> None:
        self.world = world
        self.name = name
        self.place = place
        self.gone = False
        place.residents.append(self)

    def begin(self) -> None:
        """Live; where a disk refuses, later."""
        if self.gone or (self.now is not None and self.now.alive) or not self.place.up:
            return
        if self.now is not None and self.now.closes:
            self.world.clock.after(RETRY_S, self.begin)
            return
        try:
            with self.world.stage.on(self.place.name):
                self.now = self.life(self.world, self)
        except (*self.life.cannot, *self.world.cannot) as error:
            if self.now is None or not self.now.alive:  # else it was killed, and begun again, while it waited
                self.world.hosts.pop(self.name, None)
            self.world.trace(None, "%s cannot start: %s", self.name, error)
            self.world.clock.after(RETRY_S, self.begin)
        else:
            self.world.trace(self.now, "starts as %s", self.now.address[:6])

    def ended(self, life: Any, *, power_cut: bool, killed: bool) -> None:
        """Note that a life is over, or None of one who could not begin; the next one may have begun while it closed."""


class Place:
    """A host, and who lives there."""

    def __init__(self, world: Any, name: str) -> None:
        self.world = world
        self.name = name
        self.up = True
        self.paused = False
        self.residents: list[Resident] = []
        self.waiting: list[tuple[Life, Callable[..., None], tuple[Any, ...]]] = []
        world.places.append(self)

    def lives(self) -> list[Life]:
        """Who lives there now."""
        return [each.now for each in self.residents if each.now is not None and each.now.alive]

    def kill(self, *, power_cut: bool) -> None:
        """End everything there."""
        if not self.up:
            return
        self.world.trace(None, "%s is killed%s", self.name, ", its machine too" if power_cut else "")
        self.up = False
        self.resume()
        for each in self.lives():
            each.alive = False
        self.world.stage.kill(self.name, power_cut=power_cut)
        for resident in self.residents:
            resident.ended(resident.now, power_cut=power_cut, killed=True)

    def leave(self) -> None:
        """Close everything there."""
        if not self.up or self.paused:
            return
        self.world.trace(None, "%s leaves", self.name)
        self.up = False
        for each in self.lives():
            self._close(each)

    def leave_one(self, resident: Resident) -> None:
        """Close one of those that share a node, and begin it again."""
        if self.up and not self.paused and resident.now is not None and resident.now.alive:
            self.world.trace(resident.now, "leaves the others")
            self._close(resident.now)
            self.world.clock.after(RETRY_S, resident.begin)

    def _close(self, life: Life) -> None:
        if life.alive:  # it may be killed while another one closes
            with self.world.stage.on(self.name):
                life.leave()
            life.resident.ended(life, power_cut=False, killed=False)

    def restart(self) -> None:
        """Let everybody live there again."""
        self.up = True
        for each in self.residents:
            each.begin()

    def pause(self) -> None:
        """Stand still."""
        self.world.trace(None, "%s stands still", self.name)
        self.paused = True
        self.world.stage.pause(self.name)

    def resume(self) -> None:
        """Go on."""
        if self.paused:
            self.paused = False
            self.world.stage.resume(self.name)
            waiting, self.waiting = self.waiting, []
            for life, call, arguments in waiting:
                life.soon(0.0, call, *arguments)
