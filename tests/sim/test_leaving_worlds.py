"""Worlds whose records only original stores keep, and whose producers leave once these have acknowledged.

What a slow consumer has not read by then is in its sockets, or nowhere but in the stores.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import pytest
from tests.worlds.log import population
from tests.worlds.log.faults import LogFaults
from tests.worlds.log.members import ConsumerHost
from tests.worlds.log.originals import OriginalHost
from tests.worlds.log.population import TOPICS
from tests.worlds.log.scenario import Log

from chappe.data.topic import Filter
from chappe.log.introducing import Leaving
from chappe.log.sources import Inquiries
from chappe.sim.world import Settings

SEEDS = range(100)
PLAIN = Settings(plain=True)


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
        self.stored = 0.0  # stores of the original sync nothing: nothing comes from them to who wants that
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


class Storeless(Leavers):
    """One original producer, which sends much and goes, and one consumer that is slow; nobody keeps anything."""

    def populate(self) -> None:
        self.net.queue_max = 1_000
        self.limits = replace(self.limits, consumer_queue_bytes=1_000)
        self.add_original_producer()
        self.join("consumer", lambda name: Sluggish(self, name, [Filter("", prefix=True)], {}))

    def missed(self) -> int:
        """How many records the consumer has not got long after the producer has gone."""
        self.begin()
        self.pass_time(5.0)
        (producer,), (consumer,) = self.alive(OriginalHost), self.alive(Sluggish)
        for _ in range(200):
            producer.send()
        self.pass_time(self.now + 0.5)
        producer.die()
        self.pass_time(self.now + 300.0)
        (sent,) = self.truth.parts.values()
        return len(sent.records) - sum(consumer.positions.values())


def test_what_is_unread_in_a_socket_outlives_who_sent_it() -> None:
    assert [Storeless(seed, PLAIN).missed() for seed in range(10)] == [0] * 10


def test_who_disconnects_at_once_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    look = Leaving.look
    monkeypatch.setattr(Leaving, "look", lambda self, unread, now: look(self, lambda endpoint: False, now))

    assert any(Storeless(seed, PLAIN).missed() > 50 for seed in range(10))
