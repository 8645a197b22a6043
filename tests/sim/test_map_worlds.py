"""Worlds of pairs of map servers that users' objects play: promises are kept, and what breaks them is found."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from tests.worlds.maps.scenario import Maps

from chappe.core import Effect
from chappe.kv.chp import pair
from chappe.kv.chp.ledger import Ledger
from chappe.kv.chp.recent import Batches
from chappe.kv.chp.server import MapServerCore
from chappe.kv.chp.sessions import SessionValues
from chappe.replication.binary_star.core import BinaryStar
from chappe.replication.binary_star.messages import PairMemory
from chappe.replication.binary_star.witness import WitnessCore
from chappe.runtime.map_ports import MapServerPorts
from chappe.sim.world import Settings

CHUNK = 10
SEEDS = 30  # the command plays more of them
Patch = pytest.MonkeyPatch


@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_every_promise_is_kept(first: int) -> None:
    failed = {seed: found for seed in range(first, first + CHUNK) if (found := Maps(seed).play().failure) is not None}

    assert failed == {}  # replay with: python -m tests.worlds --scenario maps --seed N -v


def test_a_seed_plays_the_same_world_every_time() -> None:
    told: tuple[list[str], list[str]] = ([], [])
    outcomes = [Maps(7, tell=each.append).play() for each in told]
    assert outcomes[0] == outcomes[1]
    assert told[0] == told[1]
    assert len(told[0]) > 20


def test_where_nothing_goes_wrong_nobody_takes_over() -> None:
    world = Maps(1, Settings(disturb=False))
    assert world.play().failure is None
    assert max(each.core.star.term for each in world.running()) == 1


# -- faults of cores ------------------------------------------------------------------------------------------------


def confirms_at_once(patch: Patch) -> None:
    """Writes are confirmed before the partner and the disk have them."""
    patch.setattr(Ledger, "confirm", lambda self, session, position: session.confirm(position))


def grants_everything(patch: Patch) -> None:
    """The witness lets everybody serve."""
    patch.setattr(WitnessCore, "_may", lambda self, claim, held: True)


def takes_over_without_being_in_step(patch: Patch) -> None:
    """Any server may begin alone."""
    patch.setattr(BinaryStar, "_may_begin", lambda self: True)


def stays_active_when_replaced(patch: Patch) -> None:
    """A server that was replaced goes on serving."""
    patch.setattr(MapServerCore, "go_passive", lambda self, now: [])


def keeps_what_it_told_of_a_history_that_is_void(patch: Patch) -> None:
    """Updates that were encoded are told again, though their numbers mean something else now."""
    patch.setattr(Batches, "clear", lambda self: None)


def keeps_no_writers(patch: Patch) -> None:
    """Nothing on disk says which writes are done."""
    patch.setattr(Ledger, "_row_of", lambda self, entity: None)


def keeps_no_term(patch: Patch) -> None:
    """A server that begins again knows no term."""
    patch.setattr(pair, "memory_of", lambda loaded: PairMemory())


def hears_no_client(patch: Patch) -> None:
    """Session values end though their client lives."""
    patch.setattr(SessionValues, "heard", lambda self, name, now: None)


def ends_no_session(patch: Patch) -> None:
    """Session values stay for ever."""
    patch.setattr(Ledger, "end_session", lambda self, name, effects: None)


# -- faults below the cores -------------------------------------------------------------------------------------------


def counts_a_refused_commit(patch: Patch) -> None:
    """A commit that the disk refuses counts as done."""
    done = MapServerPorts.done

    def careless(ports: MapServerPorts, job: Any, outcome: Any, now: float) -> Sequence[Effect]:
        return done(ports, job, None, now)

    patch.setattr(MapServerPorts, "done", careless)


def asks_for_no_more(patch: Patch) -> None:
    """Whoever has taken everything gets nothing further of a copy."""
    patch.setattr(MapServerPorts, "flush", lambda self, effect: None)


FAULTS = (  # and a world that shows each
    (confirms_at_once, 0),
    (grants_everything, 21),
    (stays_active_when_replaced, 0),
    (keeps_no_writers, 3),
    (keeps_no_term, 3),
    (hears_no_client, 5),
    (ends_no_session, 3),
    (asks_for_no_more, 4),
)


@pytest.mark.parametrize(("fault", "seed"), FAULTS)
def test_a_fault_is_found(fault: Callable[[Patch], None], seed: int, monkeypatch: Patch) -> None:
    monkeypatch.setattr(Maps, "settle_max_s", 40.0)
    fault(monkeypatch)
    assert Maps(seed).play().failure is not None


class Planned(Maps):
    """A pair with disks that something certain befalls."""

    def __init__(self, seed: int, *kinds: str, witnessed: bool) -> None:
        super().__init__(seed)
        self.durable = True
        self.parts = False
        self.witnessed = witnessed
        self.kinds = kinds

    def plan(self, until: float) -> float:
        """Plan that, from the fourth second on."""
        for at, kind in enumerate(self.kinds, 4):
            self.ground_faults.at(at, getattr(self.ground_faults, kind))
        return 18.0


RARE = (  # faults that need something certain: what, whether with a witness, and a world that shows each
    (takes_over_without_being_in_step, ("kill_in_turn",), False, 0),
    (keeps_what_it_told_of_a_history_that_is_void, ("void",), True, 10),
    (counts_a_refused_commit, ("fill",) * 6, True, 1),
)


@pytest.mark.parametrize(("fault", "kinds", "witnessed", "seed"), RARE)
def test_a_fault_that_shows_rarely_is_found(
    fault: Callable[[Patch], None], kinds: tuple[str, ...], witnessed: bool, seed: int, monkeypatch: Patch
) -> None:
    monkeypatch.setattr(Maps, "settle_max_s", 40.0)
    assert Planned(seed, *kinds, witnessed=witnessed).play().failure is None
    fault(monkeypatch)
    assert Planned(seed, *kinds, witnessed=witnessed).play().failure is not None
