"""Consumers that take nothing too old, while clocks differ and are set: what is fresh is not called old, the old is.

Only the world knows when a record was made. What nobody could know is left out: records of producers that go on with
an identity, whose stamps are of another life, and those with a stamp of their own; what was made before its clock was
set, for those who came later; and the time from when a clock was set until somebody has read it.
"""

from __future__ import annotations

from typing import Any

from tests.worlds.log.subjects import ConsumerSubject, ProducerSubject
from tests.worlds.log.world import WatchedLog

from chappe.api.log.aged import Aged
from chappe.api.log.consumed_batch import ConsumedBatch
from chappe.log.clocks import SLACK_S, ClockEstimate
from chappe.log.delivery import Records
from chappe.log.sources import Key
from chappe.sim.world import Checker

EXACT_S = 0.1  # what a clock that is known may be wrong by, apart from the way of a question


class WatchedAged(Aged):
    """Judges records, and says so."""

    life: Any = None

    def drop(self, batch: ConsumedBatch, clock: ClockEstimate) -> tuple[ConsumedBatch | None, ConsumedBatch | None]:
        """As of every consumer."""
        life, key, old = self.life, (batch.topic, batch.partition), self.olds(batch, clock)
        found = super().drop(batch, clock)
        left = {offset for each in found if each is not None for offset in range(each.first, each.next)}
        known = clock if life.core.clocks.knows(batch.partition) else None
        records = Records(*key, batch.batch, batch.first)
        life.world.show("on_judged", life, records, batch.arrived, known, old)
        old_ones = [offset for offset in range(batch.first, batch.next) if offset not in left]
        life.left_out.update((key, offset) for offset in old_ones)
        if old_ones and min(left, default=batch.next) > old_ones[0]:
            life.world.show("on_left_out", life, key, old_ones[0])
        return found


class Ages(Checker[WatchedLog]):
    """What a consumer calls too old is, and what it takes is not."""

    name = "ages"

    def __init__(self, world: WatchedLog) -> None:
        super().__init__(world)
        self._made: dict[tuple[Key, int], tuple[float, int]] = {}  # when, and what its producer's clock showed
        self._host: dict[Key, str] = {}  # where
        self._set: list[tuple[float, str | None]] = []  # when which clock was set; None: all

    def on_clock_set(self, name: str | None) -> None:
        """A clock shows something else from now on."""
        self._set.append((self.world.now, name))

    def on_made(self, host: ProducerSubject, first: int, count: int, timestamp: int) -> None:
        """A producer has made records."""
        self._host[host.key] = host.resident.place.name
        for offset in range(first, first + count):
            self._made[host.key, offset] = self.world.now, timestamp

    def on_judged(
        self, host: ConsumerSubject, action: Records, arrived: float, clock: ClockEstimate | None, old: Any
    ) -> None:
        """A consumer has made up its mind."""
        assert host.max_age_s is not None
        key, now = (action.topic, action.partition), self.world.now
        sets = [0.0, *(at for at, name in self._set if name in (None, self._host.get(key)))]
        for offset, timestamp in enumerate(action.batch.timestamps(), action.batch.base):
            made, stamp = self._made.get((key, offset), (0.0, -1))
            if stamp != timestamp or offset < action.start:  # it came by an original, which has no times
                continue
            is_old, age_s = bool(old(timestamp)), now - made
            if clock is None or (sets[-1] >= clock.seen and clock.seen < arrived):
                continue
            if is_old and now - arrived <= host.max_age_s and age_s <= host.max_age_s:
                if sum(at > made for at in sets) < clock.runs:
                    self.fail(f"{host.name} calls {key} {offset} too old, which is {age_s:.3f} s old")
            elif not is_old and sets[-1] < min(made, clock.seen):
                error_s = clock.now(now)[1] + EXACT_S + SLACK_S
                if age_s > host.max_age_s + 2 * error_s:
                    self.fail(f"{host.name} takes {key} {offset}, which is {age_s:.3f} s old, wrong by {error_s:.3f} s")
