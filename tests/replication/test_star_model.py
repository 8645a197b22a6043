"""Everything that may happen to a pair in some steps, and long ways drawn by chance."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from tests.replication.star_model import Broken, Budget, State, Step, begun, end_well, explore, paired, parted, wander

from chappe.replication.binary_star.core import BinaryStar
from chappe.replication.binary_star.messages import COPY, Record
from chappe.replication.binary_star.witness import WitnessCore

BUDGET = Budget(writes=2, crashes=1, silences=2, leaves=1)
DEPTH = 6
CALM_EVERY = 50
STEPS = 60
First = Callable[[bool, bool], State]


@pytest.mark.parametrize("durable", [True, False], ids=["durable", "memory"])
@pytest.mark.parametrize(
    ("first", "witness"), [(begun, True), (paired, True), (parted, True), (begun, False), (paired, False)]
)
def test_no_order_of_events_breaks_a_promise(first: First, witness: bool, durable: bool) -> None:
    depth = DEPTH if first is begun else DEPTH - 1
    states = explore(first(durable, witness), BUDGET, depth, durable, not witness, CALM_EVERY)

    assert states > 3_000


@pytest.mark.parametrize("witness", [True, False], ids=["witness", "alone"])
@pytest.mark.parametrize("durable", [True, False], ids=["durable", "memory"])
def test_no_long_way_breaks_a_promise(durable: bool, witness: bool) -> None:
    for seed in range(100):
        wander(begun(durable, witness), Random(seed), STEPS, durable, not witness, Budget(leaves=1))


def test_a_pair_left_alone_becomes_paired() -> None:
    step = Step(begun(False, True), False)

    end_well(step)

    assert step.servers["b"].core.record == Record(step.servers["a"].core.term, COPY)


def test_who_leaves_a_partner_confirms_nothing_before_that_knows() -> None:
    step = Step(paired(True, False), True)
    step.leave("a")
    step.request("a")
    confirmed = step.confirmed
    step.silence("ab", flows=True)

    assert confirmed == {1}
    assert step.confirmed == {1, 2}


def breaks(witness: bool) -> str:
    """What many ways say of servers that are broken on purpose."""
    firsts = [(first(durable, witness), durable) for first in (paired, parted) for durable in (True, False)]
    try:
        for seed in (1164, *range(1_500)):  # the first showed what is rare, when it was looked for
            first, durable = firsts[seed % (4 if witness else 2)]
            wander(first, Random(seed), 14, durable, not witness)
    except Broken as broken:
        return str(broken).partition(";")[0]
    return ""


def test_taking_over_without_being_in_step_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BinaryStar, "_may_begin", lambda self: True)

    assert "without the confirmed writes" in breaks(False)


def takes_over_while_the_other_stands_still() -> Step:
    """The backup takes over from a primary that stands still, confirms a write, and dies before the primary hears."""
    step = Step(paired(True, False), True)
    step.request("a")
    step.silence("b")
    step.request("b")
    step.crash("b")
    step.silence("a")
    step.silence("a")
    return step


def test_who_stood_still_does_not_go_on_alone() -> None:
    step = takes_over_while_the_other_stands_still()

    assert not step.servers["a"].core.serving
    end_well(step)


def test_going_on_alone_after_standing_still_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BinaryStar, "_replaced", property(lambda self: False, lambda self, value: None), raising=False)

    with pytest.raises(Broken, match="without the confirmed writes"):
        takes_over_while_the_other_stands_still()


def test_a_witness_that_grants_everything_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(WitnessCore, "_may", lambda self, claim, held: True)

    assert "without the confirmed writes" in breaks(True)


def test_ignoring_higher_terms_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def learn(self: Any, seen: int, *, fence: int | None = None) -> None:
        self.seen = max(self.seen, seen)

    monkeypatch.setattr(BinaryStar, "_learn", learn)

    assert breaks(True)


def test_terms_that_both_servers_use_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BinaryStar, "_next_term", lambda self: max(self.seen, self._promised, self._fence) + 1)
    monkeypatch.setattr(BinaryStar, "invariants", lambda self: [])
    monkeypatch.setattr(WitnessCore, "_may", lambda self, claim, held: True)

    assert "two active in term" in breaks(True)
