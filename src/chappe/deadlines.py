"""Named timers, earliest first: what a core or a composition of cores is to do, and when.

A name has one timer. Setting, clearing and taking what is due cost O(log n); asking for the earliest one costs O(1).
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from heapq import heappop, heappush
from typing import Final, Generic, TypeVar

Name = TypeVar("Name", bound=Hashable)
STALE_MIN: Final = 16  # entries of the heap that may be stale before it is rebuilt, beside one for each live name


class Deadlines(Generic[Name]):
    """At most one timer for each name. Timers for the same instant are due in the order in which they were set."""

    def __init__(self) -> None:
        self._live: dict[Name, tuple[float, int]] = {}  # instant, and the number of the call that set it
        self._heap: list[tuple[float, int, Name]] = []  # the live ones, the first among them; and stale ones
        self._calls = 0

    def __len__(self) -> int:
        return len(self._live)

    def __contains__(self, name: Name) -> bool:
        return name in self._live

    def set(self, name: Name, at: float) -> None:
        """Let ``name`` be due at ``at``, and no longer at what it was set to before; infinity clears it.

        What is set already for that instant keeps its place.
        """
        known = self._live.get(name)
        if known is not None and known[0] == at:
            return
        if at == math.inf:
            self.clear(name)
            return
        self._calls += 1
        self._live[name] = (at, self._calls)
        heappush(self._heap, (at, self._calls, name))
        if known is not None:
            self._drop_stale()

    def clear(self, name: Name) -> None:
        """Let ``name`` not be due at all; it need not have been set."""
        if self._live.pop(name, None) is not None:
            self._drop_stale()

    def at(self, name: Name) -> float:
        """When ``name`` is due; infinity if it is not set."""
        known = self._live.get(name)
        return math.inf if known is None else known[0]

    @property
    def next(self) -> float:
        """When the first of them is due; infinity if there is none."""
        return self._heap[0][0] if self._heap else math.inf

    def due(self, now: float, most: float = math.inf) -> list[Name]:
        """Take out the names that are due at ``now``, earliest first. Each may be set again while they are handled.

        At most ``most`` are taken, where their handling is not to take too long.
        """
        names: list[Name] = []
        while self._heap and self._heap[0][0] <= now and len(names) < most:
            name = heappop(self._heap)[2]
            del self._live[name]
            names.append(name)
            self._drop_stale()
        return names

    def _drop_stale(self) -> None:
        """Keep a live entry in front, and the heap in proportion to the live names."""
        if len(self._heap) > 2 * len(self._live) + STALE_MIN:
            self._heap = sorted((at, call, name) for name, (at, call) in self._live.items())
            return
        while self._heap:
            known = self._live.get(self._heap[0][2])
            if known is not None and known[1] == self._heap[0][1]:
                return
            heappop(self._heap)
