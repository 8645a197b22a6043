"""Where users' objects live in a world: the ground of ``chappe.testing``, played by one thread from a seed alone.

What is drawn at random elsewhere is drawn from the seed here: addresses, ids, salts. Which other names of modules are
replaced while the world is played, the scenario says: the classes of cores, so that broken ones can be played, and
limits that are met within seconds.
"""

from __future__ import annotations

import gc
import os
import shutil
import tempfile
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, Final

from tests.worlds.ground_faults import GroundFaults
from tests.worlds.residents import Life, Place, Resident

from chappe.errors import Closed
from chappe.sim.world import Excused, Outcome, SimWorld, Violation
from chappe.testing.ground import Ground
from chappe.testing.world import World as TestWorld

STEPS_S: Final = 0.02
STEPS_MAX: Final = 10_000  # within that
Replaced = tuple[Any, str, Any]  # a module or class, a name in it, and what the name means in the world


class Stage(TestWorld):
    """The hosts of one world.

    Args:
        world: Has the clock and the source of chance.
        replaced: What else is replaced while the world is played.
    """

    def __init__(self, world: SimWorld, replaced: Sequence[Replaced] = ()) -> None:
        self.scratch = Path(_memory() or tempfile.gettempdir()) / f"chappe-world-{uuid.uuid4().hex}"
        self._begin(self.scratch / "users", Ground(world, rough=True, alone=True))
        self.net = self._ground.net
        self.streams = self._ground.streams
        self._replaced = replaced
        self._rng = Random(f"names {world.seed}")  # of its own: what happens does not depend on how many are drawn
        self._collects = False

    def begin(self) -> None:
        """Put the world in the place of the machine."""
        self.scratch.mkdir(mode=0o700, exist_ok=True)
        for home, name, ours in (
            (os, "urandom", self._rng.randbytes),
            (uuid, "uuid4", lambda: uuid.UUID(bytes=self._rng.randbytes(16), version=4)),
            *self._replaced,
        ):
            self._restore.append(partial(setattr, home, name, getattr(home, name)))
            setattr(home, name, ours)
        self._collects = gc.isenabled()
        gc.disable()  # when it runs depends on what was played before
        self.__enter__()

    def end(self) -> None:
        """Give the machine back, and remove all files."""
        try:
            self.__exit__(None, None, None)
        finally:
            if self._collects:
                gc.enable()
            shutil.rmtree(self.scratch, ignore_errors=True)

    @property
    def steps(self) -> int:
        """How often something was done so far."""
        return self._scheduler.steps

    @contextmanager
    def on(self, name: str) -> Iterator[None]:
        """As every world; a program that is killed while it waits there ends, as its thread would."""
        host = self.host(name)
        try:
            with super().on(name):
                yield
        except Closed:
            if not host.killed:
                raise

    def set_clocks(self, world: SimWorld, ahead_us: int) -> None:
        """Set the time of day of all hosts, and the world's, so far ahead."""
        world.clock.wall_jump_us += ahead_us
        self._scheduler._began_ns += ahead_us * 1000

    # -- what the network does beside cuts ------------------------------------------------------------------

    def links(self, *names: str) -> list[Any]:
        """The connections of publish and subscribe at the hosts of these names."""
        return [
            link
            for publisher in dict.fromkeys(self.net.publishers.values())
            for link in publisher.listeners
            if publisher.name in names or link.subscriber.name in names
        ]


def kind_made_by(kind: type, make: Callable[..., Any]) -> type:
    """A stand-in for a class, of which no other can be made: calls ``make``, and knows the instances of the class."""

    class Kind(type):
        def __call__(cls, *arguments: Any, **options: Any) -> Any:
            return make(*arguments, **options)

        def __instancecheck__(cls, found: object) -> bool:
            return isinstance(found, kind)

    return Kind(kind.__name__, (), {})


def _memory() -> str | None:
    """Where files cost least: nothing of a world outlives it."""
    return "/dev/shm" if os.path.isdir("/dev/shm") else None


class StagedWorld(SimWorld):
    """A world whose members are users' objects on a stage."""

    stage: Stage  # made by the scenario
    cannot: tuple[type[Exception], ...] = ()  # begin, for now, who is refused by others

    def __init__(self, seed: int, settings: Any = None, tell: Callable[[str], None] | None = None) -> None:
        super().__init__(seed, settings, tell)
        self.broken: Violation | Excused | None = None  # seen where a member would take it for a defect of its own
        self.places: list[Place] = []
        self.residents: list[Resident] = []
        self.usual_disk_s = 0.001  # how long disks take

    @property
    def net(self) -> Any:
        """The network of the stage."""
        return self.stage.net

    def new_name(self, kind: str) -> str:
        """Return a name for another resident of a kind."""
        return f"{kind}{sum(each.name.startswith(kind) for each in self.residents)}"

    def move_in(self, resident: Resident) -> None:
        """Have a resident live from now on."""
        self.residents.append(resident)
        resident.begin()

    def show(self, what: str, *details: Any) -> None:
        """Show checkers something in the midst of a member's work, which takes what is raised for its own defect."""
        try:
            self.see(what, *details)
        except Violation as violation:
            self.broken = self.broken or violation

    def pass_time(self, until: float, tick_s: float | None = None) -> None:
        """Let time pass on the stage, and have the checkers look now and then."""
        tick_s = tick_s or self.tick_s
        while self.now < until:
            self.stage.advance(min(until, self.now + tick_s) - self.now)
            if self.broken is not None:
                raise self.broken
            for each in self.alive(Life):
                if not each.resident.place.paused:
                    each.look()
            self.see("on_tick")
            if (steps := max(self.clock.events, self.stage.steps)) > self.events_max:
                self.fail("no spinning", f"{steps} steps within {self.now:.0f} virtual seconds")

    def _see_spinning(self, before: int) -> None:
        """Fail if somebody is due at once again and again: time hardly passes then."""
        steps = self.stage.steps
        if steps - before > STEPS_MAX:
            self.fail("no spinning", f"{steps - before} steps within {STEPS_S} virtual seconds")
        self.clock.after(STEPS_S, self._see_spinning, steps)

    def play(self) -> Outcome:
        """As every world, on a stage of its own."""
        self.stage.begin()
        self._see_spinning(0)
        try:
            return super().play()
        finally:
            self.stage.end()


class DisturbedWorld(StagedWorld):
    """A world with the faults of its ground, and no others."""

    ground_faults: GroundFaults  # made by the scenario

    def plan(self, until: float) -> float:
        """Plan the faults."""
        if self.settings.disturb:
            self.ground_faults.plan(until)
        return until

    def heal(self) -> None:
        """End everything that is wrong."""
        self.ground_faults.heal()
