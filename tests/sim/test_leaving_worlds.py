"""Worlds whose records only original stores keep, and whose producers leave once these have acknowledged.

What a slow consumer has not read by then is in its sockets, or nowhere but in the stores.
"""

from __future__ import annotations

from functools import partial
from random import Random
from typing import Any

import pytest
from tests.worlds.log import originals, world
from tests.worlds.log.faults import LogFaults
from tests.worlds.log.originals import OriginalProducer, OriginalStore
from tests.worlds.log.residents import ConsumerLife, TowerPlace
from tests.worlds.log.scenario import Log
from tests.worlds.log.world import TOPICS

from chappe.data.topic import Filter
from chappe.log.introducing import Leaving
from chappe.log.sources import Inquiries

SEEDS = range(30)


class Weather(LogFaults):
    """Nobody's disk or journal is at fault."""

    def plan(self, until: float) -> None:
        rng = Random(f"weather {self.world.seed}")
        for _ in range(rng.choice((0, 3, 10))):
            self.at(rng.uniform(0.0, until), rng.choice((self.stall, self.break_link, self.hold_link, self.cut)))
        for _ in range(rng.choice((0, 1, 3))):
            self.at(rng.uniform(0.0, until), self.lose_messages)


class Leavers(Log):
    """Original producers that leave, an original store or two, slow consumers; and now and then one of our stores.

    A store of ours would have the consumers asked for news by the second.
    """

    ours = 0.3

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.stored = 0.0  # stores of the original sync nothing: nothing comes from them to who wants that
        self.lasts = self.ages = self.trims.there = False
        self.ground_faults = Weather(self)

    def begin(self) -> None:
        rng = Random(f"leavers {self.seed}")
        self.towers.append(TowerPlace(self, 0))
        for _ in range(rng.choice((1, 1, 2))):
            self.add_original("cstore", OriginalStore)
        if rng.random() < self.ours:
            self.add_store()
        for _ in range(rng.choice((1, 2, 4))):
            self.add_original("cproducer", partial(OriginalProducer, rng.choice(TOPICS)))
        for _ in range(rng.choice((1, 2))):
            self.add_slow(rng.choice((0.01, 0.3, 1.0)))

    def add_slow(self, slow_s: float) -> None:
        """A consumer whose program takes its time."""
        self.add_consumer()
        self.residents[-1].now.slow_s = slow_s


def failures() -> dict[int, str]:
    return {seed: failure for seed in SEEDS if (failure := Leavers(seed).play().failure) is not None}


@pytest.fixture(autouse=True)
def leaving(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(originals, "LEAVING", 1.0)
    monkeypatch.setattr(Leavers, "settle_max_s", 60.0)
    monkeypatch.setitem(world.CHOICES, "consumer_queue_bytes", (1_000,))


def test_everybody_gets_what_those_who_left_had_acknowledged() -> None:
    assert failures() == {}


def test_who_does_not_ask_when_a_member_goes_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Inquiries, "want", lambda self, now: None)

    found = failures().values()
    assert any("consumer" in each for each in found)
    assert any("store0 has not got" in each for each in found)


class Storeless(Leavers):
    """One original producer, which sends much and goes, and one consumer that is slow; nobody keeps anything."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.net.queue_max, self.net.inbox_max = 1_000, 8

    def begin(self) -> None:
        self.towers.append(TowerPlace(self, 0))
        self.add_original("cproducer", partial(OriginalProducer, TOPICS[0]))
        self.add_slow(Random(f"slow {self.seed}").choice((0.01, 0.3, 1.0)))
        consumer = self.alive(ConsumerLife)[0]
        if not consumer.wants_topic(TOPICS[0]):
            consumer.subscribe(Filter.parse("*"))

    def missed(self) -> int:
        """How many records the consumer has not got long after the producer has gone."""
        self.stage.begin()
        try:
            self.begin()
            self.pass_time(5.0)
            producer, (consumer,) = self.residents[0].now, self.alive(ConsumerLife)
            with self.stage.on(producer.name):
                producer.send(200)
            self.pass_time(self.now + 0.5)
            producer.leave()
            self.pass_time(self.now + 300.0)
            (sent,) = self.truth.parts.values()
            return len(sent.records) - sum(consumer.positions.values())
        finally:
            self.stage.end()


def test_what_is_unread_in_a_socket_outlives_who_sent_it() -> None:
    assert [Storeless(seed).missed() for seed in range(5)] == [0] * 5


def test_who_disconnects_at_once_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    look = Leaving.look
    monkeypatch.setattr(Leaving, "look", lambda self, unread, now: look(self, lambda endpoint: False, now))

    assert any(Storeless(seed).missed() > 50 for seed in range(10))
