"""When a batch leaves, by how fast its records come.

A batch costs as much for one record as for five: the calls into ZeroMQ, what wakes a thread at both ends, and what its
store keeps of it. So where records come by the thousand a second one waits a moment for those behind it, and where
they come singly none ever waits.
"""

from __future__ import annotations

import math
from typing import Final

GATHER_S: Final = 0.000_5  # at most so long after a batch the next one leaves, where records come fast ...
MANY: Final = 2.5  # ... which is when so many are to be expected meanwhile: fewer are not worth a wait
OVER_S: Final = 0.01  # a rate is one over so long: two records at once are none yet, and a pause ends it


class BatchPace:
    """How fast the records of one partition come, and when what is gathered of them leaves.

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
        """What has left are all records before ``offset``."""
        records, self._offset = offset - self._offset, offset
        passed_s, self.left_at = now - self.left_at, now
        if passed_s >= OVER_S:
            self._rate = records / passed_s
        else:
            self._rate += (records - self._rate * passed_s) / OVER_S

    def leaves(self, now: float, pause_s: float = 0.0) -> bool:
        """Whether what is gathered is not to wait for more, with ``pause_s`` at least between two batches."""
        if self._rate * GATHER_S >= MANY:
            pause_s = max(pause_s, GATHER_S)
        return now - self.left_at >= pause_s
