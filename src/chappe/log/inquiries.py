"""Schedules repeated questions to original stores for the ends of partitions, after a member has gone.

A store of chappe is asked for news once a second. An original store lists all that it has and remembers no question,
so it is asked only for a reason. The member that has gone may be a producer that left once a store had acknowledged
its last records; if some of them were lost on the way here, nothing announces them any more. Answers get lost too,
so the question is repeated.

Source: chappe's own; a consumer of the original asks when it subscribes, and never again.
"""

from __future__ import annotations

import math
from typing import Final

FIRST_S: Final = 0.5  # after the member has gone: pending input is read first
TIMES: Final = 3  # that a question is asked


class Inquiries:
    """The schedule of one member's question, asked at most once in ``pause_s``."""

    def __init__(self, pause_s: float) -> None:
        self._pause_s = pause_s
        self._left = 0
        self._asked_at = -math.inf
        self._ask_at = math.inf

    def want(self, now: float) -> None:
        """Schedule the question."""
        self._left = TIMES
        self._ask_at = min(self._ask_at, max(now + FIRST_S, self._asked_at + self._pause_s))

    def due(self, now: float) -> bool:
        """True if the question is due; it then counts as asked."""
        if now < self._ask_at:
            return False
        self._left -= 1
        self._asked_at = now
        self._ask_at = now + self._pause_s if self._left else math.inf
        return True

    def next_timeout(self) -> float:
        """Return when the question is due."""
        return self._ask_at
