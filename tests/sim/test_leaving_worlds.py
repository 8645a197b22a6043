"""Worlds whose records only original stores keep, and whose producers leave once these have acknowledged.

What a slow consumer has not read by then is in its sockets, or nowhere but in the stores.
"""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from chappe.log.inquiries import Inquiries
from chappe.sim.scenarios.log import population
from chappe.sim.scenarios.log.faults import LogFaults
from chappe.sim.scenarios.log.members import ConsumerHost
from chappe.sim.scenarios.log.population import TOPICS
from chappe.sim.scenarios.log.scenario import Log

SEEDS = range(100)


class Sluggish(ConsumerHost):
    """A consumer whose application takes its time, and says goodbye to nobody."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.slow_s = Random(f"{self.world.seed} {self.name}").choice((0.01, 0.3, 1.0))


class Weather(LogFaults):
    """Nobody's disk or journal is at fault."""

    def plan(self, until: float) -> None:
        rng = Random(f"weather {self.world.seed}")
        for _ in range(rng.choice((0, 3, 10))):
            self.at(rng.uniform(0.0, until), rng.choice((self.stall, self.break_link, self.hold_link, self.cut)))
        for _ in range(rng.choice((0, 1, 3))):
            self.at(rng.uniform(0.0, until), self.lose_messages)


class Leavers(Log):
    """Original producers and ours that leave, an original store or two, consumers; and now and then one of our stores.

    A store of ours would have the consumers asked for news by the second.
    """

    consumer = Sluggish
    faults_kind = Weather
    trimming = False
    sinks = 0.0
    ours = 0.3

    def populate(self) -> None:
        rng = Random(f"leavers {self.seed}")
        for _ in range(rng.choice((1, 1, 2))):
            self.add_original_store()
        if rng.random() < self.ours:
            self.add_store()
        for _ in range(rng.choice((1, 2, 4))):
            self.add_original_producer()
        for _ in range(rng.choice((0, 1))):
            self.join("producer", self.producer_of(rng.choice(TOPICS), 1, None))
        for _ in range(rng.choice((1, 2))):
            self.add_consumer()


def failures(seeds: range = SEEDS) -> dict[int, str]:
    return {seed: failure for seed in seeds if (failure := Leavers(seed).play().failure) is not None}


@pytest.fixture(autouse=True)
def leaving(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(population, "LEAVING", 1.0)


def test_everybody_gets_what_those_who_left_had_acknowledged() -> None:
    assert failures() == {}


def test_who_does_not_ask_when_a_member_goes_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Inquiries, "want", lambda self, now: None)

    found = failures().values()
    assert any("consumer" in each for each in found)
    assert any("store0 has not got" in each for each in found)
