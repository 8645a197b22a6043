"""The latest updates of a map, for those who missed some: within bounds of number and bytes, and without gaps."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import islice

import msgspec

from chappe.kv.chp.stream import ENTRY_BYTES, Entry, encode_entries
from chappe.limits import MapLimits


class RecentUpdates:
    def __init__(self, limits: MapLimits) -> None:
        self._limits = limits
        self._items: list[Entry] = []
        self._blocks: deque[tuple[int, int]] = deque()  # of items that go together: how many, and their bytes
        self._unfinished: set[int] = set()  # sequences of updates whose step goes on with the next one, ...
        self._oldest: deque[int] = deque()  # ... in order
        self._gone = 0  # of the list's beginning, ...
        self._gone_bytes = 0  # ... and their bytes
        self._bytes = 0
        self._next = 0  # the sequence that comes next

    def begin(self, sequence: int) -> None:
        """Note that no update up to ``sequence`` can be had."""
        self._items, self._gone, self._gone_bytes, self._bytes = [], 0, 0, 0
        self._blocks.clear()
        self._unfinished.clear()
        self._oldest.clear()
        self._next = sequence + 1

    def has(self, sequence: int) -> bool:
        return self._first() <= sequence + 1 <= self._next

    def add(self, told: Sequence[Entry], sequence: int) -> None:
        """Add the next updates, of one step; ``sequence`` is that of the last."""
        if len(told) > 1:
            inner = range(sequence - len(told) + 1, sequence)
            self._unfinished.update(inner)
            self._oldest += inner
        self.add_singles(told, sequence)

    def add_singles(self, told: Sequence[Entry], sequence: int) -> None:
        """Add the next updates, each a step of its own."""
        self._next = sequence + 1
        self._items += told
        size = sum([len(entry[0]) + len(entry[1]) + len(entry[3]) for entry in told]) + ENTRY_BYTES * len(told)
        self._blocks.append((len(told), size))
        self._bytes += size
        limits = self._limits
        while self._blocks and (len(self._items) - self._gone > limits.recent_max or self._bytes > limits.recent_bytes):
            count, size = self._blocks.popleft()
            self._gone += count
            self._gone_bytes += size
            self._bytes -= size
        if self._gone > limits.recent_max or self._gone_bytes > limits.recent_bytes // 8:
            del self._items[: self._gone]
            self._gone = self._gone_bytes = 0
        while self._oldest and self._oldest[0] < self._first():
            self._unfinished.remove(self._oldest.popleft())

    def follow(self, told: Sequence[Entry], sequence: int) -> None:
        """Add updates that another server has ordered; some may be missing."""
        if sequence - len(told) + 1 != self._next:
            self.begin(sequence - len(told))
        self.add(told, sequence)

    def after(self, sequence: int, subtrees: tuple[bytes, ...], size_max: int) -> tuple[list[Entry], int]:
        """Return updates of some subtrees behind a sequence that ``has``, up to a size, and the sequence they reach.

        A step is never split, and a large update comes alone: sockets refuse messages that are much larger.
        """
        everything = b"" in subtrees
        place = sequence + 1 - self._first() + self._gone
        if everything and self._fits(len(self._items) - place, size_max):
            return self._items[place:], self._next - 1
        found: list[Entry] = []
        size = 0
        reached = sequence
        unfinished = self._unfinished
        begins = True  # a step
        for entry in islice(self._items, place, None):
            if everything or entry[0].startswith(subtrees):
                size += len(entry[0]) + len(entry[1]) + len(entry[3]) + ENTRY_BYTES
                if size > size_max and begins and found:
                    break
                found.append(entry)
            reached += 1
            begins = not unfinished or reached not in unfinished
            if size >= size_max and begins:
                break
        return found, reached

    def _fits(self, missing: int, size_max: int) -> bool:
        """Return True if so many of the last updates are blocks of this size at most together."""
        for count, size in reversed(self._blocks):
            missing -= count
            size_max -= size
            if missing <= 0 or size_max < 0:
                break
        return not missing and size_max >= 0

    def _first(self) -> int:
        return self._next - (len(self._items) - self._gone)


class Batches:
    """The encoded updates that several clients get alike; the latest are kept."""

    def __init__(self, recent: RecentUpdates, size_max: int) -> None:
        self._recent = recent
        self._size_max = size_max
        self._made: dict[tuple[tuple[bytes, ...], int, int], tuple[msgspec.Raw, int, int]] = {}

    def clear(self) -> None:
        self._made.clear()

    def after(self, sequence: int, subtrees: tuple[bytes, ...], last: int) -> tuple[msgspec.Raw, int, int]:
        """Return the updates after a sequence, encoded, and their number; ``last`` is the sequence of the newest."""
        key = subtrees, sequence, last
        made = self._made.get(key)
        if made is None:
            if len(self._made) >= 16:
                self._made.clear()
            found, reached = self._recent.after(sequence, subtrees, self._size_max)
            made = self._made[key] = (encode_entries(found), reached, len(found))
        return made
