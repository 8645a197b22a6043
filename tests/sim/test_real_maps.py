"""Worlds of shared maps that users' objects play: promises are kept, and what breaks them is found."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from tests.worlds.maps.real import RealMaps

from chappe.core import Effect
from chappe.kv.chp import pair
from chappe.kv.chp.ledger import Ledger
from chappe.replication.binary_star.messages import PairMemory
from chappe.replication.binary_star.witness import WitnessCore
from chappe.runtime.map_ports import MapServerPorts

Patch = pytest.MonkeyPatch


def test_users_get_what_is_promised() -> None:
    seeds = (*range(20), 193)  # in the last one a disk refuses a snapshot
    failed = {seed: failure for seed in seeds if (failure := RealMaps(seed).play().failure) is not None}
    assert failed == {}  # replay with: python -m tests.worlds --scenario maps-real --seed N -v


def test_a_seed_plays_the_same_world_every_time() -> None:
    told: tuple[list[str], list[str]] = ([], [])
    outcomes = [RealMaps(7, tell=each.append).play() for each in told]
    assert outcomes[0] == outcomes[1]
    assert told[0] == told[1]
    assert len(told[0]) > 20


def confirms_at_once(patch: Patch) -> None:
    """Writes are confirmed before the partner and the disk have them."""
    patch.setattr(Ledger, "confirm", lambda self, session, position: session.confirm(position))


def grants_everything(patch: Patch) -> None:
    """The witness lets everybody serve."""
    patch.setattr(WitnessCore, "_may", lambda self, claim, held: True)


def keeps_no_writers(patch: Patch) -> None:
    """Nothing on disk says which writes are done."""
    patch.setattr(Ledger, "_row_of", lambda self, entity: None)


def keeps_no_term(patch: Patch) -> None:
    """A server that begins again knows no term."""
    patch.setattr(pair, "memory_of", lambda loaded: PairMemory())


def counts_a_refused_commit(patch: Patch) -> None:
    """Below the cores: a commit that the disk refuses counts as done."""
    done = MapServerPorts.done

    def careless(ports: MapServerPorts, job: Any, outcome: Any, now: float) -> Sequence[Effect]:
        return done(ports, job, None, now)

    patch.setattr(MapServerPorts, "done", careless)


FAULTS = (  # and a world that shows each
    (confirms_at_once, 171),
    (grants_everything, 65),
    (keeps_no_writers, 40),
    (keeps_no_term, 7),
    (counts_a_refused_commit, 40),
)


@pytest.mark.parametrize(("fault", "seed"), FAULTS)
def test_a_fault_is_found(fault: Callable[[Patch], None], seed: int, monkeypatch: Patch) -> None:
    assert RealMaps(seed).play().failure is None
    fault(monkeypatch)
    assert RealMaps(seed).play().failure is not None
