"""What a master has, on its way to clones of the original: all of it in one message, which has a bound.

The encoded store is kept while it does not change and somebody still takes it. What is on its way at once is bounded in
bytes, and a store that is too large is measured again only after a while: an original asks five times a second.

With clones of the original a master looks at how large its store grows, and warns before no further one can be served.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Final

from chappe.data.binary import encode
from chappe.defaults import (
    MIB,
    STORE_SNAPSHOT_MEASURE_S,
    STORE_SNAPSHOT_PAUSE_S,
)
from chappe.kv import commands as cmd
from chappe.kv.engine import Entry
from chappe.kv.entity import Entity
from chappe.limits import KvLimits

_AGAIN_S: Final = 1.0  # a clone that asks again meanwhile has its snapshot under way ...
_AGAIN_BYTES_PER_S: Final = 10 * MIB  # ... and longer if it is large


class TooLarge(Exception):
    """The store does not fit into one message; ``new`` says whether it was just found out."""

    def __init__(self, new: bool) -> None:
        self.new = new
        super().__init__()


class Wholes:
    """Whole snapshots, and how large the store is.

    Args:
        frozen: All entries that are durable, as they are now.
    """

    def __init__(self, frozen: Callable[[], list[Entry]], limits: KvLimits) -> None:
        self._frozen = frozen
        self._limits = limits
        self._warned = False  # of the store's size, until it is smaller again
        self._whole: tuple[int, bytes] | None = None  # behind which event, and the bytes
        self._under_way: dict[Entity, tuple[float, int]] = {}  # until when, how many bytes
        self._too_large_until = -math.inf
        self._measured_bytes = 0  # when it was measured last
        self._grown_bytes = 0  # at most, since
        self._measured_at = -math.inf
        self._measuring: Iterator[int] | None = None

    def open(self, clone: Entity, seq: int, now: float) -> bytes | None:
        """All entries behind the master's event ``seq``, encoded; None if the clone has to ask again.

        Raises:
            TooLarge: They do not fit.
        """
        self._expire(now)
        if clone in self._under_way:
            return None
        if now < self._too_large_until:
            raise TooLarge(new=False)
        raw = self._encoded(seq, now)
        waiting = sum([size for _, size in self._under_way.values()])
        if self._under_way and waiting + len(raw) > self._limits.snapshots_bytes_max:
            return None
        self._under_way[clone] = (now + _AGAIN_S + len(raw) / _AGAIN_BYTES_PER_S, len(raw))
        return raw

    def close(self, clone: Entity) -> None:
        """A clone has it, or is gone."""
        self._under_way.pop(clone, None)
        if not self._under_way:
            self._whole = None

    def changed(self, event_bytes: int) -> None:
        """An event was told, of so many bytes: the store has grown by that at most."""
        self._grown_bytes += event_bytes

    def measure(self, now: float) -> int | None:
        """Look at a part of what may have grown near the bound; the size, if it is near and was not before."""
        self._expire(now)
        if self._measuring is None:
            if self._measured_bytes + self._grown_bytes < self._limits.snapshot_bytes_near:
                return None
            if now < self._measured_at + STORE_SNAPSHOT_MEASURE_S:
                return None
            self._measured_at = now
            self._grown_bytes = 0
            self._measuring = _sizes(self._frozen(), self._limits.piece_bytes)
        size = next(self._measuring)
        if size < 0:
            return None
        self._measuring = None
        return self.measured(size)

    def next_timeout(self) -> float:
        """When to call ``measure``."""
        if self._measuring is not None:
            return -math.inf
        if self._measured_bytes + self._grown_bytes < self._limits.snapshot_bytes_near:
            return math.inf
        return self._measured_at + STORE_SNAPSHOT_MEASURE_S

    def measured(self, size: int) -> int | None:
        """The store has that size: it, if that is near the bound and was not before."""
        self._measured_bytes = size
        was, self._warned = self._warned, size >= self._limits.snapshot_bytes_near
        return size if self._warned and not was else None

    # -- inside -----------------------------------------------------------------------------------------------------

    def _expire(self, now: float) -> None:
        for clone in [clone for clone, (until, _) in self._under_way.items() if now >= until]:
            self.close(clone)

    def _encoded(self, seq: int, now: float) -> bytes:
        if self._whole is None or self._whole[0] != seq:
            pairs: list[bytes] = []
            size = 0
            for entry in self._frozen():
                pairs.append(encode(entry.key) + encode(entry.value))
                size += len(pairs[-1])
                if size > self._limits.snapshot_bytes_max:
                    self._whole = None
                    self._too_large_until = now + STORE_SNAPSHOT_PAUSE_S
                    raise TooLarge(new=True)
            self._whole = (seq, cmd.encode_pairs(pairs))
            self._measured_at = now
            self._grown_bytes = 0
        return self._whole[1]


def _sizes(entries: list[Entry], part_bytes: int) -> Iterator[int]:
    """The size of all entries, at the end; -1 after each part of the work before."""
    size = part = 0
    for entry in entries:
        found = len(encode(entry.key)) + len(encode(entry.value))
        size += found
        part += found
        if part >= part_bytes:
            part = 0
            yield -1
    yield size
