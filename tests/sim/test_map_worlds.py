"""Seeded worlds of a pair of map servers; and servers broken on purpose, whose faults some seed among few must show."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.worlds.maps.scenario import Maps

from chappe.kv.chp import pair
from chappe.kv.chp.ledger import Ledger
from chappe.kv.chp.recent import Batches
from chappe.kv.chp.server import MapServerCore
from chappe.kv.chp.sessions import SessionValues
from chappe.replication.binary_star.core import BinaryStar
from chappe.replication.binary_star.messages import PairMemory
from chappe.replication.binary_star.witness import WitnessCore
from chappe.sim.world import Settings

CHUNK = 10
SEEDS = 30  # the command plays more of them
TRIED = 80  # and of these one finds each fault
SHOWED = (15, 1, 3, 4, 32)  # one of them showed each fault when that was looked for: they are tried first
Break = Callable[[pytest.MonkeyPatch], None]


@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_every_promise_is_kept(first: int) -> None:
    failed = {seed: found for seed in range(first, first + CHUNK) if (found := Maps(seed).play().failure) is not None}

    assert failed == {}  # replay with: python -m tests.worlds --scenario maps --seed N -v


def test_a_seed_plays_the_same_world_every_time() -> None:
    assert Maps(7).play() == Maps(7).play()


def test_where_nothing_goes_wrong_nobody_takes_over() -> None:
    world = Maps(1, Settings(disturb=False))
    assert world.play().failure is None
    assert max(each.core.star.term for each in world.running()) == 1


def confirms_at_once(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Ledger, "confirm", lambda self, session, position: session.confirm(position))


def grants_everything(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(WitnessCore, "_may", lambda self, claim, held: True)


def takes_over_without_being_in_step(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(BinaryStar, "_may_begin", lambda self: True)


def stays_active_when_replaced(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(MapServerCore, "go_passive", lambda self, now: [])


def keeps_what_it_told_of_a_history_that_is_void(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Batches, "clear", lambda self: None)


def keeps_no_writers(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Ledger, "_row_of", lambda self, entity: None)


def keeps_no_term(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(pair, "memory_of", lambda loaded: PairMemory())


def hears_no_client(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SessionValues, "heard", lambda self, name, now: None)


def ends_no_session(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Ledger, "end_session", lambda self, name, effects: None)


@pytest.mark.parametrize(
    "broken",
    [
        confirms_at_once,
        grants_everything,
        takes_over_without_being_in_step,
        stays_active_when_replaced,
        keeps_what_it_told_of_a_history_that_is_void,
        keeps_no_writers,
        keeps_no_term,
        hears_no_client,
        ends_no_session,
    ],
)
def test_a_broken_server_is_caught(broken: Break, monkeypatch: pytest.MonkeyPatch) -> None:
    broken(monkeypatch)

    assert any(Maps(seed).play().failure for seed in (*SHOWED, *range(TRIED)))
