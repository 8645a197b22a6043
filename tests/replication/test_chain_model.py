"""Everything that may happen to a chain of three in some steps, and long ways drawn by chance: the cores themselves."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest
from tests.replication.chain_model import (
    Broken,
    Budget,
    State,
    end_well,
    explore,
    founded,
    under_way,
    wander,
    without_head,
    without_tail,
)

from chappe.replication.chain.core import ChainServerCore
from chappe.replication.chain.serving import ReadingRounds

CALM_EVERY = 100
STEPS = 30
MANY = Budget(commands=6, reads=3, crashes=2, silences=5, losses=3)


@pytest.mark.parametrize(("first", "depth"), [(founded, 3), (under_way, 3), (without_tail, 2), (without_head, 2)])
def test_no_order_of_events_breaks_a_promise(first: Callable[[], State], depth: int) -> None:
    assert explore(first(), Budget(crashes=2), depth, CALM_EVERY) > 100


def test_no_long_way_breaks_a_promise() -> None:
    for seed in range(10):
        wander(founded(), Random(seed), STEPS, MANY)


def test_an_old_tail_shows_nothing() -> None:
    state = without_tail()
    state.do(0, 1)
    state.flow({0, 1})
    state.read(2)
    state.silence({2})

    assert len(state.confirmed) == 2
    assert len(state.reads) == 1  # it waits for somebody to confirm that it is the tail


def test_an_old_head_throws_away_what_nobody_else_has() -> None:
    state = without_head()
    state.do(1, 1)
    state.flow({1, 2})

    end_well(state)

    assert [core.log.end for core in state.cores if core is not None] == [3, 3, 3]
    assert state.confirmed == {b"1/1"}


def test_an_old_tail_that_answers_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    vote = ReadingRounds.vote
    monkeypatch.setattr(ReadingRounds, "vote", lambda self, place, round_, majority: vote(self, place, round_, 1))
    state = without_tail()
    state.do(0, 1)
    state.flow({0, 1})
    with pytest.raises(Broken, match="were confirmed before"):
        state.read(2)


def test_committing_what_others_lack_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ChainServerCore, "_commit", lambda self: self.apply(self.log.end) if self.head else None)
    with pytest.raises(Broken, match="is committed in"):
        under_way()


def test_keeping_a_suffix_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ChainServerCore, "_throw_away", lambda self, base: [])
    state = without_head()
    state.do(1, 1)
    state.flow({1, 2})
    with pytest.raises((Broken, AssertionError)):
        end_well(state)
