"""When a producer's records leave.

``Resuming`` holds new records of a partition until stores have answered where it ends; ``BatchPace`` gathers records
into batches by how fast they come.
"""

from __future__ import annotations

import math
from typing import Final

from chappe.limits import LOG_LIMITS, LogLimits

GATHER_S: Final = 0.000_5  # at most so long after a batch the next one leaves, where records come fast ...
MANY: Final = 2.5  # ... which is when so many are to be expected meanwhile: fewer are not worth a wait
OVER_S: Final = 0.01  # a rate is one over so long: two records at once are none yet, and a pause ends it


class BatchPace:
    """Decides when a gathered batch of one partition leaves, by how fast its records come.

    A batch costs as much for one record as for five: the calls into ZeroMQ, the wake-up of a thread at both ends, and
    the store's own bookkeeping. So where records come by the thousand a second one waits a moment for those behind it,
    and where they come singly none ever waits.

    Args:
        offset: Of the first record that is to leave.

    Attributes:
        left_at: When a batch left last.
    """

    __slots__ = ("_offset", "_rate", "left_at")

    def __init__(self, offset: int) -> None:
        self.left_at = -math.inf
        self._offset = offset
        self._rate = 0.0  # records a second

    def left(self, now: float, offset: int) -> None:
        records, self._offset = offset - self._offset, offset
        passed_s, self.left_at = now - self.left_at, now
        if passed_s >= OVER_S:
            self._rate = records / passed_s
        else:
            self._rate += (records - self._rate * passed_s) / OVER_S

    def leaves(self, now: float, pause_s: float = 0.0) -> bool:
        """Return True if the gathered records need not wait for more; two batches are ``pause_s`` apart at least."""
        if self._rate * GATHER_S >= MANY:
            pause_s = max(pause_s, GATHER_S)
        return now - self.left_at >= pause_s


class Resuming:
    """Finds out whether stores hold more of a partition than its producer's journal, before anything new is published.

    A journal that was restored from a backup, or with a snapshot of its machine, ends before the last published record.
    Records published under offsets that are taken are dropped by the stores as repeats, and acknowledged. So a
    partition that goes on after a restart first announces where its journal ends. Every store of ours answers with the
    end of its copy; one beyond all that we ever told it of is the proof. So is a FETCH of a record that was never
    published: a store does not acknowledge records behind a hole.

    New records, the first with offset ``first``, are held until every store that listens has answered: neither
    published nor journaled, as the next life would take the journal's records for published. Stores of the original
    never answer, and there may be no store at all: then they are published after ``resume_wait_s``. If a store comes
    only after that, they are held once more until it has answered. So the proof is found unless a store comes after
    another one has answered with less, or takes longer than that to answer.
    """

    def __init__(self, first: int, *, resumed: bool, limits: LogLimits = LOG_LIMITS) -> None:
        self._limits = limits
        self.first = first
        self.told = first  # stores may have had everything before it from us
        self.until = -math.inf  # new records are held so long, unless all stores answer before
        self._sure = not resumed
        self._answered: set[str] = set()

    def start(self, now: float) -> None:
        if not self._sure:
            self.until = now + self._limits.resume_wait_s

    def store_came(self, now: float) -> bool:
        """Note a store that listens from now on; return whether it is to be asked."""
        if not self._sure:
            self.until = now + self._limits.resume_wait_s
            self._answered.clear()  # it may be the one that seemed to have answered
        return not self._sure

    def holds(self, now: float) -> bool:
        return not self._sure and now < self.until

    def beyond(self, next_: int, published: int) -> bool:
        """Return True if a store that holds everything before ``next_`` must have it from another life."""
        return next_ > (published if self._sure else self.told)

    def answered(self, store: str, listening: int) -> None:
        """Note a store that holds no more than we know of; so many listen. An earlier life may have asked it."""
        if not listening:
            return
        if len(self._answered) < self._limits.stores_max:
            self._answered.add(store)
        self._sure = self._sure or len(self._answered) >= listening

    def store_left(self) -> None:
        """Note that an unknown store left: it may have answered. All that still listen answer the next HEAD anew."""
        self._answered.clear()
