"""Worlds of the log: producers, consumers, stores, towers, originals, and queries that write exactly once."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

from tests.worlds.log.aging import Ages, begin_snails
from tests.worlds.log.checkers import all_checkers
from tests.worlds.log.ends import Ends
from tests.worlds.log.exactly_once import ExactlyOnce
from tests.worlds.log.faults import LogFaults
from tests.worlds.log.lasts import Lasts
from tests.worlds.log.population import PopulatedLog
from tests.worlds.log.reach import Originals, Shared
from tests.worlds.log.trims import Trims
from tests.worlds.log.world import LAST_CHOICES, small_limits


class Log(PopulatedLog):
    """The log."""

    faults_kind: type[LogFaults] = LogFaults
    trimming = True  # some of the worlds have topics that are trimmed

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.watch(
            ExactlyOnce(self, self.queries),
            Lasts(self),
            Ends(self),
            Ages(self),
            *all_checkers(self),
            Originals(self),
            Shared(self),
        )
        self.trims = Trims(self)
        if self.trimming:
            self.watch(self.trims)
        self._faults: LogFaults | None = None

    def begin(self) -> None:
        """Make the first members."""
        more = None if self.settings.plain else self.more_rng
        self.limits = small_limits(self.rng, self.sink_rng, Random(f"news {self.seed}"), more)
        if self.deaf:
            self.limits = replace(self.limits, give_up_s=1)
        if self.lasts:
            drawn = {name: self.last_rng.choice(choices) for name, choices in LAST_CHOICES.items()}
            self.limits = replace(self.limits, **drawn)
        self.trace(None, "%s, queues %d", self.limits, self.net.queue_max)
        if self.ages:
            self.limits = replace(self.limits, clock_pause_s=self.age_rng.choice((5.0, 60.0)))
        self.populate()
        if self.ages:
            begin_snails(self)
        self._faults = self.faults_kind(self)

    def plan(self, until: float) -> float:
        """Plan the faults, and begin the queries."""
        assert self._faults is not None
        if self.settings.disturb:
            if self.deaf:
                until = max(until, 16.0)
            if self.alone:
                until = max(until, 34.0)
            self._faults.plan(until)
            for at in self.trims.times(until) if self.trimming else ():
                self._faults.at(at, self.trims.trim)
        for query in self.queries:
            query.start(until if self.settings.disturb else None)
        return until

    def heal(self) -> None:
        """End everything that is wrong."""
        assert self._faults is not None
        self._faults.heal()

    def stop(self) -> None:
        """Send no more, and begin no further batch."""
        self.sending = False
        for query in self.queries:
            query.finish()


class Sink(Log):
    """The same, always with queries that write exactly once."""

    sinks = 1.0
