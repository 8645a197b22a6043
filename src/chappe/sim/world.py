"""A world: one clock, one source of chance, one trace, and the checkers that watch; scenarios say who lives in it."""

from __future__ import annotations

import heapq
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from random import Random
from typing import Any, ClassVar, Generic, TypeVar

from chappe.sim.host import SimHost, SimMember

H = TypeVar("H", bound=SimHost)
W = TypeVar("W")  # a world

WALL_START_US = 1_700_000_000_000_000  # the time of day when every world begins


class Violation(Exception):
    """A promise was broken; ``checker`` names the one that saw it."""

    def __init__(self, checker: str, text: str) -> None:
        super().__init__(f"{checker}: {text}")
        self.checker = checker


class Excused(Exception):
    """Something went wrong that nothing could prevent: what follows in this world proves nothing."""


@dataclass(frozen=True)
class Settings:
    """How a world departs from what its seed alone decides; a failing world is shrunk to some."""

    minutes: float | None = None  # virtual minutes with faults; some seconds by default
    disturb: bool = True  # whether there are faults at all
    without: frozenset[int] = frozenset()  # planned faults that are left out, by their number
    members: int | None = None  # of each kind there are at most so many at the beginning
    plain: bool = False  # with the usual bounds, and without what was added to a scenario after its first seeds


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a world went; ``failure`` is None if every promise was kept."""

    seed: int
    failure: str | None
    virtual_s: float
    settle_s: float
    events: int
    records: int
    detail: str = ""


class SimClock:
    """A heap of events on virtual time, in seconds since the world began; and the source of chance."""

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        self.now = 0.0
        self.events = 0
        self.wall_jump_us = 0  # how far the time of day was set off; monotonic time is not
        self._heap: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._order = 0

    @property
    def wall_us(self) -> int:
        """The time of day in microseconds since 1970 UTC."""
        return WALL_START_US + int(self.now * 1_000_000) + self.wall_jump_us

    def wall_ns(self) -> int:
        """The time of day as cores ask for it: nanoseconds since 1970 UTC."""
        return self.wall_us * 1000

    @property
    def next(self) -> float:
        return self._heap[0][0] if self._heap else inf

    def at(self, when: float, call: Callable[..., None], *args: Any) -> None:
        """Have ``call`` happen at ``when``; what is due at the same time happens in the order it was asked for."""
        self._order += 1
        heapq.heappush(self._heap, (max(when, self.now), self._order, call, args))

    def after(self, delay_s: float, call: Callable[..., None], *args: Any) -> None:
        self.at(self.now + delay_s, call, *args)

    def run(self, until: float) -> None:
        """Let everything happen that is due up to ``until``."""
        heap = self._heap
        while heap and heap[0][0] <= until:
            self.now, _, call, args = heapq.heappop(heap)
            self.events += 1
            call(*args)
        self.now = max(self.now, until)  # a call may have waited meanwhile


class Checker(Generic[W]):
    """Watches a world. Methods named ``on_...`` are called by ``World.see`` with that name; they may raise."""

    name: ClassVar[str] = ""

    def __init__(self, world: W) -> None:
        self.world = world

    def fail(self, text: str) -> None:
        raise Violation(self.name, text)

    def unsettled(self) -> str | None:
        """Return what still has to change once all faults are over; None if nothing."""
        return None


class SimWorld:
    """Everything that one seed decides. A scenario adds its members, faults and checkers.

    Args:
        seed: Decides everything.
        settings: What departs from that.
        tell: Called with every line of the story.
    """

    lengths_s: ClassVar[tuple[float, ...]] = (2.0, 4.0, 8.0)  # how long there are faults
    tick_s: ClassVar[float] = 0.25  # how often the checkers look
    settle_max_s: ClassVar[float] = 100.0  # everything is settled so long after the last fault
    settled_s: ClassVar[float] = 1.0  # ... and stays so
    events_max: ClassVar[int] = 400_000  # more means that something runs in circles
    whole: SimWorld | None = None  # that it is a part of, whose time and chance it shares; set before ``__init__``

    def __init__(self, seed: int, settings: Settings | None = None, tell: Callable[[str], None] | None = None) -> None:
        self.seed = seed
        self.settings = settings or Settings()
        whole = self.whole
        self.clock: SimClock = SimClock(seed) if whole is None else whole.clock
        self.rng: Random = self.clock.rng
        self.telling = tell is not None
        self.faults = 0  # planned
        # Faults that happened, by name; actions that came to nothing, or to less than all, by class.
        self.played: Counter[str] = Counter() if whole is None else whole.played
        self.failed: Counter[type] = Counter() if whole is None else whole.failed
        self.members: list[SimMember] = []
        self.hosts: dict[str, Any] = {}  # by name, in its present life
        self.tell = tell
        self.checkers: list[Checker[Any]] = []
        self._seeing: dict[str, list[Callable[..., None]]] = {}

    @property
    def now(self) -> float:
        return self.clock.now

    def few(self, count: int) -> int:
        """So many members of a kind, or fewer in a world that was shrunk."""
        return count if self.settings.members is None else min(count, self.settings.members)

    # -- members ----------------------------------------------------------------------------------------------

    def join(self, kind: str, make: Callable[[str], SimHost]) -> SimMember:
        name = f"{kind}{sum(member.name.startswith(kind) for member in self.members)}"
        member = SimMember(self, name, lambda: make(name))
        self.members.append(member)
        return member

    def alive(self, kind: type[H]) -> list[H]:
        return [host for host in self.hosts.values() if isinstance(host, kind) and host.alive]

    # -- the story, and who watches it ------------------------------------------------------------------------

    def trace(self, who: Any, text: str, *args: object) -> None:
        if self.tell is not None:
            self.tell(f"{self.now:9.4f}  {'' if who is None else who.name:<10} {text % args}")

    def fail(self, checker: str, text: str) -> None:
        raise Violation(checker, text)

    def watch(self, *checkers: Checker[Any]) -> None:
        self.checkers += checkers
        self._seeing.clear()

    def see(self, what: str, *details: Any) -> None:
        """Show an event to the checkers that look for it."""
        seeing = self._seeing.get(what)
        if seeing is None:
            found = [getattr(each, what, None) for each in self.checkers]
            seeing = self._seeing[what] = [each for each in found if each is not None]
        for each in seeing:
            each(*details)

    # -- time -------------------------------------------------------------------------------------------------

    def pass_time(self, until: float, tick_s: float | None = None) -> None:
        """Let time pass, and have the checkers look now and then."""
        tick_s = tick_s or self.tick_s
        while self.now < until:
            self.clock.run(min(until, self.now + tick_s))
            self.see("on_tick")
            if self.clock.events > self.events_max:
                self.fail("no spinning", f"{self.clock.events} events within {self.now:.0f} virtual seconds")

    def progress(self) -> int:
        """Rises while something that many wait for goes on, however long it takes."""
        return 0

    def settle(self) -> float:
        """Wait until nothing is unsettled, and see that it stays so; returns the seconds that it took."""
        began = went_on_at = self.now
        progress = self.progress()
        good_since: float | None = None
        while True:
            self.pass_time(self.now + self.tick_s)
            if self.progress() != progress:
                went_on_at, progress = self.now, self.progress()
            found = next(((each, text) for each in self.checkers if (text := each.unsettled()) is not None), None)
            if found is None:
                good_since = self.now if good_since is None else good_since
                if self.now - good_since >= self.settled_s:
                    return good_since - began
                continue
            good_since = None
            if self.now - went_on_at > self.settle_max_s:
                for each in self.checkers:
                    each.unsettled()  # what is lost explains more than who waits for it
                checker, text = found
                self.fail(checker.name, f"not settled {self.settle_max_s:.0f} s after the last fault: {text}")

    # -- what a scenario decides --------------------------------------------------------------------------------

    def begin(self) -> None:
        raise NotImplementedError

    def plan(self, until: float) -> float:
        """Plan the faults up to ``until``; returns when they are to be healed."""
        raise NotImplementedError

    def heal(self) -> None:
        raise NotImplementedError

    def stop(self) -> None: ...

    def finish(self) -> float:
        """Let everything end as it must; return the seconds that it took to settle."""
        self.pass_time(self.now + 1.0)
        self.stop()
        return self.settle()

    def count(self) -> int:
        """Return how much was sent in all: records, messages, writes."""
        raise NotImplementedError

    def play(self) -> Outcome:
        """Run with faults for a while, then without, until everything is as it must be."""
        failure: str | None = None
        detail = ""
        settle_s = 0.0
        try:
            self.begin()
            minutes = self.settings.minutes
            until = self.rng.choice(self.lengths_s) if minutes is None else minutes * 60
            self.pass_time(self.plan(until))
            self.trace(None, "---- all faults end")
            self.heal()
            settle_s = self.finish()
        except Excused as excuse:
            self.trace(None, "the world ends: %s", excuse)
        except Violation as violation:
            failure = str(violation)
        except Exception as error:  # a core that raises is a failure of its seed, not of the simulator
            failure = f"crash: {type(error).__name__}: {error}"
            detail = traceback.format_exc()
        return Outcome(self.seed, failure, self.now, settle_s, self.clock.events, self.count(), detail)
