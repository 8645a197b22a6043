"""Hosts that drive the cores of the log, for worlds whose members have keys: no socket of the ground has any."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

from tests.worlds.log.checkers import all_checkers
from tests.worlds.log.ends import Ends
from tests.worlds.log.reach import Shared
from tests.worlds.log.standin.faults import StandInFaults
from tests.worlds.log.standin.population import PopulatedLog
from tests.worlds.log.world import small_limits


class StandInLog(PopulatedLog):
    """Producers, consumers, stores and towers."""

    faults_kind: type[StandInFaults] = StandInFaults

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.watch(Ends(self), *all_checkers(self), Shared(self))
        self._faults: StandInFaults | None = None

    def begin(self) -> None:
        """Make the first members."""
        more = None if self.settings.plain else self.more_rng
        self.limits = small_limits(self.rng, self.sink_rng, Random(f"news {self.seed}"), more)
        if self.deaf:
            self.limits = replace(self.limits, give_up_s=1)
        self.trace(None, "%s, queues %d", self.limits, self.net.queue_max)
        self.populate()
        self._faults = self.faults_kind(self)

    def plan(self, until: float) -> float:
        """Plan the faults."""
        assert self._faults is not None
        if self.settings.disturb:
            if self.deaf:
                until = max(until, 16.0)
            self._faults.plan(until)
        return until

    def heal(self) -> None:
        """End everything that is wrong."""
        assert self._faults is not None
        self._faults.heal()

    def stop(self) -> None:
        """Send no more."""
        self.sending = False
