"""Whether stores hold more of a partition than its producer's journal knows of, before anything new is published.

A journal that was restored from a backup, or with a snapshot of its machine, ends before what was published. What is
then published under offsets that are taken is dropped by the stores as a repeat, and acknowledged. So a partition that
goes on after a restart first announces where its journal ends. Every store of ours answers with the end of what it
holds; one beyond what we ever told it of is the proof. So is a FETCH of what was never published: a store does not
acknowledge what lies behind a hole.

New records are held until every store that listens has answered: neither published nor journaled, as the next life
would take what is in the journal for published. Stores of the original never do, and there may be no
store at all: then they are published after ``resume_wait_s``. If a store comes only after that, they are held once more
until it has answered. So the proof is found unless a store comes after another one has answered with less, or takes
longer than that to answer.
"""

from __future__ import annotations

import math

from chappe.limits import LOG_LIMITS, LogLimits


class Resuming:
    """What stores were told of one partition, and what they answered; the first new record gets offset ``first``."""

    def __init__(self, first: int, *, resumed: bool, limits: LogLimits = LOG_LIMITS) -> None:
        self._limits = limits
        self.first = first
        self.told = first  # stores may have had everything before it from us
        self.until = -math.inf  # new records are held so long, unless all stores answer before
        self._sure = not resumed
        self._answered: set[str] = set()

    def start(self, now: float) -> None:
        """Begin to hold, where there is something to ask."""
        if not self._sure:
            self.until = now + self._limits.resume_wait_s

    def store_came(self, now: float) -> bool:
        """One listens from now on; returns whether it is to be asked."""
        if not self._sure:
            self.until = now + self._limits.resume_wait_s
            self._answered.clear()  # it may be the one that seemed to have answered
        return not self._sure

    def holds(self, now: float) -> bool:
        """Whether new records are not to be published yet."""
        return not self._sure and now < self.until

    def beyond(self, next_: int, published: int) -> bool:
        """Whether a store that holds everything before ``next_`` can have it from another life only."""
        return next_ > (published if self._sure else self.told)

    def answered(self, store: str, listening: int) -> None:
        """A store holds no more than we know of; so many listen. It may answer what it heard from an earlier life."""
        if not listening:
            return
        if len(self._answered) < self._limits.stores_max:
            self._answered.add(store)
        self._sure = self._sure or len(self._answered) >= listening

    def store_left(self) -> None:
        """Nobody says which: it may be one that had answered. All that still listen answer the next HEAD anew."""
        self._answered.clear()
