"""Plays one seed of the mesh: some time with faults, then none, until everything is as it must be."""

from __future__ import annotations

import traceback
from collections.abc import Callable

from chappe.mesh.endpoint import EndpointCore
from chappe.sim.mesh.faults import Faults
from chappe.sim.mesh.world import MeshWorld
from chappe.sim.world import Outcome, Violation


def play_mesh(
    seed: int,
    *,
    minutes: float | None = None,
    core: type[EndpointCore] | None = None,
    tell: Callable[[str], None] | None = None,
    disturb: bool = True,
) -> Outcome:
    """Play one world of the mesh.

    Args:
        seed: Decides everything.
        minutes: Virtual minutes with faults; some seconds by default.
        core: What is under test.
        tell: Called with every line of the trace.
        disturb: Whether there are faults at all.
    """
    world = MeshWorld(seed, core=core, tell=tell)
    failure: str | None = None
    detail = ""
    healed_at = 0.0
    try:
        world.populate()
        faults = Faults(world)
        until = world.rng.choice((3.0, 6.0, 10.0)) if minutes is None else minutes * 60
        if disturb:
            until = faults.plan(until)
            world.invite()
        world.pass_time(until)
        faults.heal()
        healed_at = world.now
        world.finish()
    except Violation as violation:
        failure = str(violation)
    except Exception as error:  # a core that raises is a failure of its seed, not of the simulator
        failure = f"crash: {type(error).__name__}: {error}"
        detail = traceback.format_exc()
    return Outcome(
        seed, failure, world.now, world.now - healed_at, world.clock.events, len(world.record.publications), detail
    )
