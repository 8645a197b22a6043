"""Virtual time: what is to happen, in order; and the one source of chance."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from random import Random
from typing import Any

WALL_START_US = 1_700_000_000_000_000  # the time of day when every world begins


class Clock:
    """A heap of events on virtual time, in seconds since the world began."""

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        self.now = 0.0
        self.events = 0
        self.wall_jump_us = 0  # how far the time of day was set off; monotonic time is not
        self._heap: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._order = 0

    @property
    def wall_us(self) -> int:
        """The time of day in microseconds since 1970 UTC."""
        return WALL_START_US + int(self.now * 1_000_000) + self.wall_jump_us

    def at(self, when: float, call: Callable[..., None], *args: Any) -> None:
        """Have ``call`` happen at ``when``; what is due at the same time happens in the order it was asked for."""
        self._order += 1
        heapq.heappush(self._heap, (max(when, self.now), self._order, call, args))

    def after(self, delay_s: float, call: Callable[..., None], *args: Any) -> None:
        """Have ``call`` happen in ``delay_s`` seconds."""
        self.at(self.now + delay_s, call, *args)

    def run(self, until: float) -> None:
        """Let everything happen that is due up to ``until``."""
        heap = self._heap
        while heap and heap[0][0] <= until:
            self.now, _, call, args = heapq.heappop(heap)
            self.events += 1
            call(*args)
        self.now = until
