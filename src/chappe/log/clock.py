"""Another's time of day, as it is found by asking: how old what it has stamped is, by our own steady clock.

A reading is asked for and comes back; the other has looked at its clock between. So the offset between its time of day
and our steady clock is known to half of that. Our own time of day does not matter: it may be wrong, and may be set.

When a reading does not fit those before, the other's clock was set in between, and from then on counts anew (a run).
What was stamped before belongs to the run before: each stamp tells by itself to which, since it means a moment of that
run. Where two would do, the younger is meant: what is fresh is never called old.

Source: chappe's own; the estimate is that of NTP (RFC 5905), without its filters.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

DRIFT: Final = 0.000_5  # seconds a second: as fast as a clock that is being corrected may run away (adjtime)
SLACK_S: Final = 0.05  # what differs by less was not set; so much older may be what is not called old yet
COARSE_S: Final = 0.01  # a reading that took so much longer than another one, and twice as long, is worse
FRESH_S: Final = 1.0  # a worse reading replaces one that is older than this
RUNS_MAX: Final = 8


@dataclass(slots=True)
class _Run:
    """As long as the clock was not set, by the best of its last readings."""

    begins: float  # by our steady clock: before this it had not begun
    ends: float  # ... and after this it had ended
    offset_us: int  # its time of day is our steady clock and this
    error_s: float
    at: float  # when it was read
    seen: float  # when it was surely so

    def tolerance_s(self, now: float) -> float:
        return self.error_s + DRIFT * max(0.0, now - self.at)


class ClockEstimate:
    """The clock of one other; or, without ``slack_s``, our own."""

    __slots__ = ("_runs", "_slack_s")

    def __init__(self, slack_s: float = SLACK_S) -> None:
        self._slack_s = slack_s
        self._runs: list[_Run] = []

    @property
    def known(self) -> bool:
        """Whether it was ever read."""
        return bool(self._runs)

    @property
    def seen(self) -> float:
        """When it surely went as it is known to go; minus infinity if it was never read."""
        return self._runs[-1].seen if self._runs else -math.inf

    @property
    def runs(self) -> int:
        """How often it was found to have been set, and one."""
        return len(self._runs)

    def read(self, asked: float, came: float, time_us: int, error_s: float = 0.0, ago_s: float = 0.0) -> None:
        """Between ``asked`` and ``came`` it showed ``time_us``.

        Args:
            error_s: Who says so is wrong by at most this.
            ago_s: Who says so has not read it itself just now, but so long before.
        """
        offset_us = time_us - round((asked + came) * 500_000)
        read = _Run(-math.inf, math.inf, offset_us, (came - asked) / 2 + error_s, came, asked - ago_s)
        if not self._runs:
            self._runs.append(read)
            return
        run = self._runs[-1]
        differs_s = abs(offset_us - run.offset_us) / 1e6
        if differs_s <= read.error_s + run.tolerance_s(came) + SLACK_S:
            better = read.error_s <= 2 * run.error_s + COARSE_S
            if read.seen > run.seen and (better or read.seen > run.seen + FRESH_S):
                read.begins = run.begins
                self._runs[-1] = read
        elif read.seen > run.seen:
            read.begins, run.ends = run.seen, came
            self._runs = [*self._runs[1 - RUNS_MAX :], read]

    def now(self, now: float) -> tuple[int, float, float]:
        """What it shows now, how wrong that may be, and how many seconds ago it was read; it is known."""
        run = self._runs[-1]
        return run.offset_us + round(now * 1e6), run.tolerance_s(now), max(0.0, now - run.seen)

    def age_s(self, timestamp: int, now: float) -> float:
        """How long ago it showed this; less than nothing if it has not yet."""
        return self._age(timestamp, now)[0]

    def is_old(self, timestamp: int, max_age_s: float, now: float) -> bool:
        """Whether it surely showed this longer ago."""
        age_s, tolerance_s = self._age(timestamp, now)
        return age_s - tolerance_s > max_age_s

    def olds(self, max_age_s: float, now: float) -> Callable[[int], bool]:
        """As ``is_old``, for many timestamps."""
        if len(self._runs) > 1:
            return lambda timestamp: self.is_old(timestamp, max_age_s, now)
        run = self._runs[-1]
        before_s = now - max_age_s - run.tolerance_s(now) - self._slack_s
        return (run.offset_us + math.floor(before_s * 1e6)).__gt__

    def young_until(self, timestamp: int, max_age_s: float) -> float:
        """Until when it, and all later ones, are surely not too old by our steady clock; minus infinity if unknown."""
        if len(self._runs) > 1:
            return -math.inf
        return (timestamp - self._runs[-1].offset_us) / 1e6 + max_age_s

    def is_ahead(self, timestamp: int, now: float) -> bool:
        """Whether it had surely not shown this yet: it was set since it was read, or somebody gave a future time."""
        age_s, tolerance_s = self._age(timestamp, now)
        return age_s + tolerance_s < 0

    def _age(self, timestamp: int, now: float) -> tuple[float, float]:
        found: list[tuple[float, float]] = []
        for run in self._runs:
            published = (timestamp - run.offset_us) / 1e6
            tolerance_s = run.tolerance_s(now) + self._slack_s
            if run.begins - tolerance_s <= published <= min(run.ends, now) + tolerance_s:
                found.append((now - published, tolerance_s))
        # A time that no run has shown was given by whoever published it.
        return min(found) if found else (now - published, tolerance_s)
