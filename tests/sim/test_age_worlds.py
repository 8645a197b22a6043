"""Worlds whose consumers take nothing too old, and whose clocks differ; faults planted there must show in some seed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.worlds.log import scenario
from tests.worlds.log.scenario import Forward, Log

from chappe.log import clocks

SEEDS = range(10)


@pytest.fixture(autouse=True)
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scenario, "AGES", 1.0)


def failures(kind: type[Log]) -> Iterator[tuple[int, str]]:
    """Each as it is found: who looks for one does not play all."""
    for seed in SEEDS:
        failure = kind(seed).play().failure
        if failure is not None:
            yield seed, failure


@pytest.mark.parametrize("kind", [Forward, Log])
def test_what_is_old_is_told_and_what_is_fresh_is_not(kind: type[Log]) -> None:
    assert dict(failures(kind)) == {}


def test_who_believes_its_own_clock_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clocks.Clocks, "clock", lambda self, partition, now: self.own(now))
    assert any("too old, which is" in each for _, each in failures(Log))
