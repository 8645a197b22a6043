"""Everything that may happen to three servers that agree, in some steps; and long ways drawn by chance."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random

import pytest
from tests.replication.agreement_model import (
    Broken,
    Budget,
    begun,
    between,
    explore,
    settle,
    value_of,
    wander,
)

from chappe.replication.agreement.core import Agreement, Decided

X, Y = value_of("x", 1, 2, 3), value_of("y", 1, 2, 3)
Y_LOST = value_of("y", 1, 2, 6)  # the third server has another disk
TWO = Budget(((0, X), (1, Y)), again=1, crashes=1)
FOUNDING = Budget(((0, X), (2, X), (1, Y_LOST)), again=1, crashes=0, losses=1)
LONG = 60
Break = Callable[[pytest.MonkeyPatch], None]


@pytest.mark.parametrize(
    ("budget", "number", "depth"),
    [
        (TWO, 1, 7),
        (replace(TWO, crashes=0, refusals=1), 1, 7),
        (replace(TWO, losses=1, crashes=0), 1, 7),
        (FOUNDING, 0, 7),
    ],
    ids=["crash", "refusal", "loss", "founding"],
)
def test_no_order_of_events_decides_twice(budget: Budget, number: int, depth: int) -> None:
    assert explore(begun(number), budget, depth) > 500


def long_ways(number: int, budget: Budget, ways: int = 150) -> int:
    """How many ways end with something decided."""
    decided = 0
    for seed in range(ways):
        decided += bool(wander(begun(number), budget, Random(seed), LONG).decided)
    return decided


MANY = Budget(((0, X), (1, Y), (2, value_of("z", 1, 2, 3))), again=6, crashes=4, refusals=3, losses=1)


def test_no_long_way_decides_twice() -> None:
    assert long_ways(1, MANY) > 20
    assert long_ways(0, replace(FOUNDING, again=4, crashes=2, proposals=(*FOUNDING.proposals, (0, Y_LOST)))) > 1


def test_in_the_end_something_is_decided_by_all() -> None:
    for seed in range(50):
        state = wander(begun(1), replace(MANY, losses=0), Random(seed), 30)
        for place in range(3):
            state.propose(place, X)
        state = settle(state)
        assert {each.number for each in state.cores} == {max(state.decided)}


def votes_below_its_promise(patch: pytest.MonkeyPatch) -> None:
    vote = Agreement._vote

    def eager(self: Agreement, sender: int, message: object) -> object:
        self.memory = replace(self.memory, promised=(0, 0))
        return vote(self, sender, message)  # type: ignore[arg-type]

    patch.setattr(Agreement, "_vote", eager)
    patch.setattr(Agreement, "invariants", lambda self: [])


def forgets_what_was_voted_for(patch: pytest.MonkeyPatch) -> None:
    promised = Agreement._promised
    patch.setattr(
        Agreement, "_promised",
        lambda self, place, disk, accepted, now: promised(self, place, disk, ((0, 0), b""), now),
    )  # fmt: skip


def keeps_nothing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Agreement, "_keep", lambda self: [])


def counts_everybody(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Agreement, "counts", lambda self, place, disk: True)
    hear = Agreement._hear_vote

    def any_disk(self: Agreement, place: int, ballot: tuple[int, int], disk: int) -> object:
        value = self._value
        return hear(self, place, ballot, self._disks_of(value or X)[place])

    patch.setattr(Agreement, "_hear_vote", any_disk)


def one_is_enough(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Agreement, "majority", property(lambda self: 1))


def two_decide_and_one_of_them_forgets(*, loses: bool) -> None:
    state = begun(1)
    state.propose(0, X)
    between(state, 0, 2, but=Decided)
    assert state.decided == {2: X}
    if loses:
        state.lose_disk(2)
    else:
        state.crash(2)
    state.net = frozenset()
    state.propose(1, Y)
    for turn in range(3):
        between(state, 1, 2)
        state.carry_out(1, state.cores[1].handle_timeout(float(turn)))
    assert state.decided[2] == X


@pytest.mark.parametrize("loses", [True, False])
def test_who_forgets_a_vote_does_not_vote_again(loses: bool) -> None:
    two_decide_and_one_of_them_forgets(loses=loses)


def test_counting_votes_of_a_lost_disk_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    counts_everybody(monkeypatch)
    with pytest.raises(Broken, match="decided twice"):
        two_decide_and_one_of_them_forgets(loses=True)


def test_keeping_nothing_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    keeps_nothing(monkeypatch)
    with pytest.raises(Broken, match="decided twice"):
        two_decide_and_one_of_them_forgets(loses=False)


@pytest.mark.parametrize("fault", [votes_below_its_promise, forgets_what_was_voted_for, one_is_enough])
def test_a_planted_fault_is_seen(fault: Break, monkeypatch: pytest.MonkeyPatch) -> None:
    fault(monkeypatch)
    with pytest.raises(Broken, match="decided twice"):
        long_ways(1, MANY, 2_000)
