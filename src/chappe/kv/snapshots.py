"""A master's snapshot on its way to clones, in pieces that are sent when a clone of chappe has room.

A *view* is all entries as they were behind one event, held and not copied: entries are replaced, never changed. Clones
that come about the same time share it and its encoded pieces; what changes meanwhile reaches them as events, in order.
So a snapshot costs the master a reference for each entry and a few pieces, however large the store and however many the
clones, and never more than a few milliseconds at a time.

Bounds: views, pieces that are kept, takers and offers of one endpoint, pieces sent ahead. Beyond them nothing is
answered: who asks for a snapshot asks again. A taker that is not heard of for ``MASTER_SILENT_S`` is given up.

Clones of the original get all of it in one message, which has a bound. The encoded store is kept while it does not
change and somebody still takes it. What is on its way at once is bounded in bytes, and a store that is too large is
measured again only after a while: an original asks five times a second. With such clones a master looks at how large
its store grows, and warns before no further one can be served.
"""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from chappe.data.binary import encode
from chappe.deadlines import Deadlines
from chappe.defaults import (
    CHANNEL_NACK_S,
    MASTER_SILENT_S,
    MIB,
    STORE_OFFERS_PER_S,
    STORE_SNAPSHOT_MEASURE_S,
    STORE_SNAPSHOT_PAUSE_S,
    STORE_SNAPSHOT_SHARED_S,
    STORE_TAKERS_MAX,
)
from chappe.kv import commands as cmd
from chappe.kv.engine import Entry
from chappe.kv.entity import Entity
from chappe.limits import KvLimits

_AGAIN_S: Final = 1.0  # a clone that asks again meanwhile has its snapshot under way ...
_AGAIN_BYTES_PER_S: Final = 10 * MIB  # ... and longer if it is large, and for an original


class SnapshotChanges(NamedTuple):
    """Possible changes since a state: the last ``gone`` of the entries are keys that no longer exist.

    Of two at the same event the one with the lower ``base`` contains the other.
    """

    base: int
    entries: list[Entry]
    gone: int


class View:
    """All entries behind the master's event ``offset``, or those that may have ``changed``."""

    def __init__(
        self, number: int, offset: int, entries: list[Entry], limits: KvLimits, now: float,
        changes: SnapshotChanges | None = None,
    ) -> None:  # fmt: skip
        self.number = number
        self.offset = offset
        self.entries = entries
        self.changes = changes
        self.made_at = now
        self.takers = 0
        self._limits = limits
        self._pieces: OrderedDict[int, tuple[cmd.SnapshotPiece, int]] = OrderedDict()  # by their first entry
        self._kept_bytes = 0

    def piece(self, first: int) -> tuple[cmd.SnapshotPiece, int]:
        """Return the piece that begins with an entry, and where the next one begins."""
        found = self._pieces.get(first)
        if found is None:
            found = self._encode(first)
            self._pieces[first] = found
            self._kept_bytes += len(found[0].raw_rows)
            while self._kept_bytes > self._limits.pieces_kept_bytes and len(self._pieces) > 1:
                _, (oldest, _) = self._pieces.popitem(last=False)
                self._kept_bytes -= len(oldest.raw_rows)
        return found

    def _encode(self, first: int) -> tuple[cmd.SnapshotPiece, int]:
        pairs: list[bytes] = []
        size = 0
        for place in range(first, len(self.entries)):
            entry = self.entries[place]
            pairs.append(cmd.encode_row(encode(entry.key) + encode(entry.value), entry.revision, entry.expires_ns))
            size += len(pairs[-1])
            if size >= self._limits.piece_bytes:
                break
        return cmd.piece(self.number, first, cmd.encode_pairs(pairs)), first + len(pairs)


class _Taker:
    __slots__ = ("asked_at", "next", "opened_at", "under_way", "view")

    def __init__(self, view: View, now: float) -> None:
        self.view = view
        self.next = 0  # the first entry that was not sent
        self.under_way: deque[int] = deque()  # where each piece ends that the clone may not have yet
        self.opened_at = now
        self.asked_at = -math.inf


class Snapshots:
    """All views of one master and who takes them.

    Args:
        frozen: All entries that are durable, as they are now and stay.
        since: What of them may have changed since a master's event, likewise; None if that is not known.
    """

    def __init__(
        self,
        frozen: Callable[[], list[Entry]],
        since: Callable[[Entity, int], SnapshotChanges | None],
        limits: KvLimits,
    ) -> None:
        self._frozen = frozen
        self._since = since
        self._limits = limits
        self._views: list[View] = []
        self.takers: dict[Entity, _Taker] = {}  # the clones that have not everything yet
        self.silences: Deadlines[Entity] = Deadlines()  # when a taker was silent for too long
        self._offered: dict[bytes, tuple[float, int]] = {}  # by endpoint: since when, how many
        self._number = 0

    def open(
        self, clone: Entity, seq: int, floor: int, now: float, state: tuple[Entity, int] | None = None
    ) -> View | None:
        """Return what a clone that asks for everything is to take, or None if it has to ask again.

        ``seq`` is the master's last event, and those behind ``floor`` can still be had. ``state`` is a master and its
        last event, if the clone has its data of then, and lacks only later changes.
        """
        taker = self.takers.get(clone)
        if taker is not None and now < taker.opened_at + _AGAIN_S:
            return None
        self.close(clone)
        if not self._may_open(clone.endpoint, now):
            return None
        view = self._view(seq, floor, None if state is None else self._since(*state), now)
        if view is not None:
            view.takers += 1
            self.takers[clone] = _Taker(view, now)
            self.silences.set(clone, now + MASTER_SILENT_S)
        return view

    def close(self, clone: Entity) -> None:
        """Note that a clone takes no more, if it did."""
        taker = self.takers.pop(clone, None)
        if taker is not None:
            self.silences.clear(clone)
            taker.view.takers -= 1
            if not taker.view.takers:
                self._views.remove(taker.view)

    def taken(self, clone: Entity, command: cmd.SnapshotTaken, now: float) -> list[cmd.SnapshotPiece]:
        """Note how far a taker is; return the pieces that follow. Once it has everything it is no longer a taker."""
        taker = self.takers[clone]
        if taker.view.number != command.snapshot or command.entries > len(taker.view.entries):
            return []
        self.silences.set(clone, now + MASTER_SILENT_S)
        if command.entries == len(taker.view.entries):
            self.close(clone)
            return []
        if command.again:
            if now < taker.asked_at + CHANNEL_NACK_S / 2:
                return []
            taker.asked_at = now
            taker.under_way.clear()
            taker.next = command.entries
        while taker.under_way and taker.under_way[0] <= command.entries:
            taker.under_way.popleft()
        return self.ahead(clone)

    def ahead(self, clone: Entity) -> list[cmd.SnapshotPiece]:
        taker = self.takers[clone]
        found = []
        while len(taker.under_way) < self._limits.pieces_ahead and taker.next < len(taker.view.entries):
            piece, taker.next = taker.view.piece(taker.next)
            taker.under_way.append(taker.next)
            found.append(piece)
        return found

    def silent(self, now: float) -> list[Entity]:
        self._offered = {each: since for each, since in self._offered.items() if now < since[0] + 1.0}
        return self.silences.due(now)

    # -- inside -----------------------------------------------------------------------------------------------------

    def _may_open(self, endpoint: bytes, now: float) -> bool:
        if sum([clone.endpoint == endpoint for clone in self.takers]) >= STORE_TAKERS_MAX:
            return False
        since, count = self._offered.get(endpoint, (now, 0))
        if now >= since + 1.0:
            since, count = now, 0
        if count >= STORE_OFFERS_PER_S:
            return False
        self._offered[endpoint] = (since, count + 1)
        return True

    def _view(self, seq: int, floor: int, changes: SnapshotChanges | None, now: float) -> View | None:
        views = [view for view in self._views if (view.changes is None) is (changes is None)]
        for view in reversed(views):
            behind = seq - view.offset
            if changes is not None and view.changes is not None and (behind or view.changes.base > changes.base):
                continue  # the clone may be further than that, or lack more
            young = now < view.made_at + STORE_SNAPSHOT_SHARED_S
            if not behind or (young and floor <= view.offset and behind <= self._limits.snapshot_shared_events):
                return view
        if len(views) >= self._limits.snapshots_max:
            return None
        self._number += 1
        entries = self._frozen() if changes is None else changes.entries
        view = View(self._number, seq, entries, self._limits, now, changes)
        self._views.append(view)
        return view


# -- for clones of the original ------------------------------------------------------------------------------------


class SnapshotTooLarge(Exception):
    """The store does not fit into one message; ``new`` says whether it was just found out."""

    def __init__(self, new: bool) -> None:
        self.new = new
        super().__init__()


class Wholes:
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
        """Return all entries behind event ``seq``, encoded; None: ask again. Raises SnapshotTooLarge."""
        self._expire(now)
        if clone in self._under_way:
            return None
        if now < self._too_large_until:
            raise SnapshotTooLarge(new=False)
        raw = self._encoded(seq, now)
        waiting = sum([size for _, size in self._under_way.values()])
        if self._under_way and waiting + len(raw) > self._limits.snapshots_bytes_max:
            return None
        self._under_way[clone] = (now + _AGAIN_S + len(raw) / _AGAIN_BYTES_PER_S, len(raw))
        return raw

    def close(self, clone: Entity) -> None:
        self._under_way.pop(clone, None)
        if not self._under_way:
            self._whole = None

    def changed(self, event_bytes: int) -> None:
        """Note a told event of so many bytes: the store has grown by that at most."""
        self._grown_bytes += event_bytes

    def measure(self, now: float) -> int | None:
        """Measure a part of the store that may have grown near the bound; return its size, if it newly is near it."""
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
        if self._measuring is not None:
            return -math.inf
        if self._measured_bytes + self._grown_bytes < self._limits.snapshot_bytes_near:
            return math.inf
        return self._measured_at + STORE_SNAPSHOT_MEASURE_S

    def measured(self, size: int) -> int | None:
        """Note the store's size; return it, if that is near the bound and was not before."""
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
                    raise SnapshotTooLarge(new=True)
            self._whole = (seq, cmd.encode_pairs(pairs))
            self._measured_at = now
            self._grown_bytes = 0
        return self._whole[1]


def _sizes(entries: list[Entry], part_bytes: int) -> Iterator[int]:
    """Yield -1 after each part of the work, and the size of all entries at the end."""
    size = part = 0
    for entry in entries:
        found = len(encode(entry.key)) + len(encode(entry.value))
        size += found
        part += found
        if part >= part_bytes:
            part = 0
            yield -1
    yield size
