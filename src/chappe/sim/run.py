"""Plays one seed: some time with faults, then none, until everything is as it must be."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import dataclass

from chappe.sim.bounds import small_limits
from chappe.sim.faults import Faults
from chappe.sim.truth import Excused, Violation
from chappe.sim.world import Cores, World

TICK_S = 0.5  # how often the checkers look
SETTLE_S = 200.0  # everything is settled so long after the last fault: a few times the longest wait of a core
EVENTS_MAX = 400_000  # one world; more means that something runs in circles


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


def play(
    seed: int,
    *,
    minutes: float | None = None,
    cores: Cores | None = None,
    tell: Callable[[str], None] | None = None,
    disturb: bool = True,
) -> Outcome:
    """Play one world.

    Args:
        seed: Decides everything.
        minutes: Virtual minutes with faults; some seconds by default.
        cores: What is under test.
        tell: Called with every line of the trace.
        disturb: Whether there are faults at all.
    """
    world = World(seed, cores=cores, tell=tell)
    failure: str | None = None
    detail = ""
    settle_s = 0.0
    world.limits = small_limits(world.rng, world.sink_rng)
    try:
        world.trace(None, "%s, queues %d", world.limits, world.net.queue_max)
        world.populate()
        faults = Faults(world)
        until = world.rng.choice((2.0, 4.0, 8.0)) if minutes is None else minutes * 60
        if disturb:
            faults.plan(until)
        for query in world.queries:
            query.start(until if disturb else None)
        _pass_time(world, until)
        faults.heal()
        _pass_time(world, world.now + 1.0)
        world.sending = False
        for query in world.queries:
            query.finish()
        settle_s = _settle(world)
    except Excused as excuse:
        world.trace(None, "the world ends: %s", excuse)
    except Violation as violation:
        failure = str(violation)
    except Exception as error:  # a core that raises is a failure of its seed, not of the simulator
        failure = f"crash: {type(error).__name__}: {error}"
        detail = traceback.format_exc()
    records = sum(len(sent.records) for sent in world.truth.parts.values())
    return Outcome(seed, failure, world.now, settle_s, world.clock.events, records, detail)


def _pass_time(world: World, until: float) -> None:
    while world.now < until:
        world.clock.run(min(until, world.now + TICK_S))
        for checker in world.checkers:
            checker.on_tick()
        if world.clock.events > EVENTS_MAX:
            raise Violation("no spinning", f"{world.clock.events} events within {world.now:.0f} virtual seconds")


def _settle(world: World) -> float:
    """Wait until nothing is unsettled, and see that it stays so; returns the seconds that it took."""
    began = world.now
    good_since: float | None = None
    while True:
        _pass_time(world, world.now + TICK_S)
        found = next(((checker, text) for checker in world.checkers if (text := checker.unsettled()) is not None), None)
        if found is None:
            good_since = world.now if good_since is None else good_since
            if world.now - good_since >= 1.0:
                return good_since - began
        else:
            good_since = None
            if world.now - began > SETTLE_S:
                checker, text = found
                world.checkers[-1].unsettled()  # what is lost explains more than who waits for it
                raise Violation(checker.name, f"not settled {SETTLE_S:.0f} s after the last fault: {text}")
