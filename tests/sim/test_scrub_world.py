"""Damage that nobody reads is healed in time: the store with the good copies may go."""

from __future__ import annotations

import pytest
from tests.sim.test_checkers_can_fail import NeverScrubs
from tests.worlds.disk import SimDisk
from tests.worlds.log.scenario import Log
from tests.worlds.log.world import Cores, small_limits


def survivors(seed: int, disk: type[SimDisk]) -> tuple[int, int]:
    """Damage every third block of one of two stores, then take the other away; returns what is left of how much."""
    world = Log(seed, cores=Cores(disk=disk))
    world.limits = small_limits(world.rng, world.sink_rng, world.rng)
    damaged, other = world.add_store(), world.add_store()
    world.add_producer()
    world.pass_time(5.0)
    world.sending = False
    world.pass_time(60.0)
    first, second = world.disks
    for part in first.parts.values():
        for block in part.blocks[::3]:
            block.damaged = True
    world.pass_time(260.0)
    other.crash()
    other.gone = True
    second.parts.clear()
    assert damaged.alive
    sent = {key: len(each.records) for key, each in world.truth.parts.items()}
    left = sum(first.holds(key, offset) for key, count in sent.items() for offset in range(count))
    return left, sum(sent.values())


@pytest.mark.parametrize("seed", range(5))
def test_damage_is_healed_while_another_store_has_good_copies(seed: int) -> None:
    left, all_ = survivors(seed, SimDisk)
    assert left == all_ > 0


def test_without_scrubbing_it_would_be_gone() -> None:
    left, all_ = survivors(0, NeverScrubs)
    assert left < all_
