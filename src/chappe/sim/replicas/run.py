"""Plays one seed of a store's world: some time with faults, then none, until everything is as it must be."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random
from typing import Final

from chappe.channel import consumer
from chappe.kv import clone_writes, followers, group_commit, receiving, snapshots
from chappe.sim.replicas.members import CloneHost, MasterHost
from chappe.sim.replicas.world import ReplicaWorld, StoreCores
from chappe.sim.world import Outcome, Violation

TICK_S: Final = 0.25
SETTLE_S: Final = 100.0
EVENTS_MAX: Final = 2_000_000
_PLACES: Final = (consumer, clone_writes, group_commit, followers, receiving, snapshots)
_CHOICES: Final[dict[str, tuple[int, ...]]] = {
    "CHANNEL_ACK_EVENTS": (1, 8, 256),
    "CHANNEL_NACK_MAX": (2, 1_024),
    "CLONE_WINDOW": (5, 50, 8_192),
    "CLONE_WRITES_MAX": (30, 65_536),
    "CLONE_STAGED_EVENTS_MAX": (20, 262_144),
    "CHANNEL_EVENTS_MAX": (50, 65_536),
    "STORE_COMMIT_OPERATIONS": (20, 8_192),
    "STORE_PIECE_BYTES": (1, 100, 262_144),
    "STORE_PIECES_AHEAD": (1, 4),
    "STORE_PIECES_KEPT_BYTES": (0, 4_194_304),
    "STORE_SNAPSHOTS_MAX": (1, 4),
    "STORE_SNAPSHOT_SHARED_EVENTS": (0, 1_024),
}


@contextmanager
def small_bounds(rng: Random) -> Iterator[dict[str, int]]:
    """Bounds drawn from ``rng`` in the cores while the context lasts."""
    drawn = {name: rng.choice(choices) for name, choices in _CHOICES.items()}
    places = [(place, name) for place in _PLACES for name in drawn if hasattr(place, name)]
    before = [getattr(place, name) for place, name in places]
    for place, name in places:
        setattr(place, name, drawn[name])
    try:
        yield drawn
    finally:
        for (place, name), value in zip(places, before, strict=True):
            setattr(place, name, value)


def play_store(
    seed: int,
    *,
    minutes: float | None = None,
    cores: StoreCores | None = None,
    tell: Callable[[str], None] | None = None,
    disturb: bool = True,
) -> Outcome:
    """Play one world; the arguments are those of ``chappe.sim.run.play``."""
    world = ReplicaWorld(seed, cores=cores, tell=tell)
    failure: str | None = None
    detail = ""
    settle_s = 0.0
    with small_bounds(world.rng) as bounds:
        world.bounds = bounds
        try:
            if not disturb:
                world.wire.calm()
            world.populate()
            until = world.rng.choice((5.0, 15.0, 40.0)) if minutes is None else minutes * 60
            if disturb:
                _trouble(world, until)
            _pass_time(world, until)
            _heal(world)
            _pass_time(world, world.now + 1.0)
            world.working = False
            settle_s = _settle(world)
        except Violation as violation:
            failure = str(violation)
        except Exception as error:  # a core that raises is a failure of its seed, not of the simulator
            failure = f"crash: {type(error).__name__}: {error}"
            detail = traceback.format_exc()
    return Outcome(seed, failure, world.now, settle_s, world.clock.events, len(world.truth.asked), detail)


def _trouble(world: ReplicaWorld, until: float) -> None:
    """Plan the faults."""
    rng = world.rng
    at = 0.0
    while (at := at + rng.expovariate(0.5)) < until:
        world.clock.at(at, _fault, world)


def _fault(world: ReplicaWorld) -> None:
    rng = world.rng
    masters, clones = world.masters(), world.clones()
    choice = rng.random()
    if choice < 0.25 and masters:
        world.kill_master(rng.choice(masters))
    elif choice < 0.4 and clones:
        host = rng.choice(clones)
        (world.close if rng.random() < 0.5 else world.kill)(host)
        world.clock.after(rng.choice((0.1, 2.0)), world.add_clone, host.name)
    elif choice < 0.6 and masters and clones:
        world.cut(rng.choice(masters), rng.choice(clones), rng.choice((0.3, 3.0, 12.0, 60.0)))
    elif choice < 0.66 and masters and clones:
        world.end_link(rng.choice(masters), rng.choice(clones))
    elif choice < 0.72 and clones:
        world.slow(rng.choice(clones), rng.choice((2.0, 12.0)))
    elif choice < 0.8 and world.backend is not None:
        world.backend.full = True
        world.clock.after(rng.choice((0.1, 1.0)), setattr, world.backend, "full", False)
    elif choice < 0.9:
        world.dies_after_commit = rng.choice((0.0, 0.02))
    elif choice < 0.95 and masters:
        world.add_master("second")
        for clone_host in clones:
            if rng.random() < 0.5:
                world.cut(masters[0], clone_host, rng.choice((2.0, 10.0)))
        if rng.random() < 0.5:
            world.wire.cut("second", "master", world.now + rng.choice((2.0, 10.0)))
    elif masters and clones:
        world.say_anything(rng.choice((*masters, *clones)))


def _heal(world: ReplicaWorld) -> None:
    """The end of all faults: one master, everybody in reach."""
    world.wire.calm()
    world.dies_after_commit = 0.0
    if world.backend is not None:
        world.backend.full = False
    for master in world.masters():
        if master.name == "second":
            world.kill(master)
    world.add_master("master")
    for host in list(world.members.values()):
        if isinstance(host, CloneHost):
            world.add_clone(host.name)
    assert any(isinstance(host, MasterHost) for host in world.members.values())


def _pass_time(world: ReplicaWorld, until: float) -> None:
    while world.now < until:
        world.clock.run(min(until, world.now + TICK_S))
        for checker in world.checkers:
            checker.on_tick()
        if world.clock.events > EVENTS_MAX:
            raise Violation("no spinning", f"{world.clock.events} events within {world.now:.0f} virtual seconds")


def _settle(world: ReplicaWorld) -> float:
    """Until everything is as it must be; what many waited for may take its time, as long as it goes on."""
    began = world.now
    good_since: float | None = None
    went_on_at, answered = world.now, world.truth.answered
    while True:
        _pass_time(world, world.now + TICK_S)
        if world.only_master() is not None and world.only_master().name == "second":  # type: ignore[union-attr]
            world.kill(world.masters()[0])
            world.add_master("master")
        if world.truth.answered != answered:
            went_on_at, answered = world.now, world.truth.answered
        found = next(((checker, text) for checker in world.checkers if (text := checker.unsettled()) is not None), None)
        if found is None:
            good_since = world.now if good_since is None else good_since
            if world.now - good_since >= 1.0:
                return good_since - began
        else:
            good_since = None
            if world.now - went_on_at > SETTLE_S:
                text = f"not settled {SETTLE_S:.0f} s after the last fault and the last answer: {found[1]}"
                raise Violation(found[0].name, text)
