"""What a master has, on its way to clones of chappe: in pieces, each sent when the clone has room for it.

A *view* is all entries as they were behind one event, held and not copied: entries are replaced, never changed. Clones
that come about the same time share it and its encoded pieces; what changes meanwhile reaches them as events, in order.
So a snapshot costs the master a reference for each entry and a few pieces, however large the store and however many the
clones, and never more than a few milliseconds at a time.

Bounds: views, pieces that are kept, takers and offers of one endpoint, pieces sent ahead. Beyond them nothing is
answered: who asks for a snapshot asks again. A taker that is not heard of for ``MASTER_SILENT_S`` is given up.
"""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Final

from chappe.data.binary import encode
from chappe.defaults import (
    CHANNEL_NACK_S,
    MASTER_SILENT_S,
    STORE_OFFERS_PER_S,
    STORE_SNAPSHOT_SHARED_S,
    STORE_TAKERS_MAX,
)
from chappe.kv import commands as cmd
from chappe.kv.engine import Entry
from chappe.kv.entity import Entity
from chappe.limits import KvLimits

_ASK_AGAIN_S: Final = 1.0  # a clone that asks again meanwhile has its snapshot under way


class View:
    """All entries behind the master's event ``offset``."""

    def __init__(self, number: int, offset: int, entries: list[Entry], limits: KvLimits, now: float) -> None:
        self.number = number
        self.offset = offset
        self.entries = entries
        self.made_at = now
        self.takers = 0
        self._limits = limits
        self._pieces: OrderedDict[int, tuple[cmd.SnapshotPiece, int]] = OrderedDict()  # by their first entry
        self._kept_bytes = 0

    def piece(self, first: int) -> tuple[cmd.SnapshotPiece, int]:
        """The piece that begins with an entry, and where the next one begins."""
        found = self._pieces.get(first)
        if found is None:
            found = self._encode(first)
            self._pieces[first] = found
            self._kept_bytes += len(found[0].raw_pairs)
            while self._kept_bytes > self._limits.pieces_kept_bytes and len(self._pieces) > 1:
                _, (oldest, _) = self._pieces.popitem(last=False)
                self._kept_bytes -= len(oldest.raw_pairs)
        return found

    def _encode(self, first: int) -> tuple[cmd.SnapshotPiece, int]:
        pairs: list[bytes] = []
        size = 0
        for place in range(first, len(self.entries)):
            entry = self.entries[place]
            pairs.append(encode(entry.key) + encode(entry.value))
            size += len(pairs[-1])
            if size >= self._limits.piece_bytes:
                break
        return cmd.piece(self.number, first, cmd.encode_pairs(pairs)), first + len(pairs)


class _Taker:
    """How far one clone is."""

    __slots__ = ("asked_at", "heard_at", "next", "opened_at", "under_way", "view")

    def __init__(self, view: View, now: float) -> None:
        self.view = view
        self.next = 0  # the first entry that was not sent
        self.under_way: deque[int] = deque()  # where each piece ends that the clone may not have yet
        self.opened_at = now
        self.heard_at = now
        self.asked_at = -math.inf


class Snapshots:
    """All views of one master and who takes them.

    Args:
        frozen: All entries that are durable, as they are now.
    """

    def __init__(self, frozen: Callable[[], list[Entry]], limits: KvLimits) -> None:
        self._frozen = frozen
        self._limits = limits
        self._views: list[View] = []
        self._takers: dict[Entity, _Taker] = {}
        self._offered: dict[bytes, tuple[float, int]] = {}  # by endpoint: since when, how many
        self._number = 0

    @property
    def takers(self) -> tuple[Entity, ...]:
        """The clones that have not everything yet."""
        return tuple(self._takers)

    def takes(self, clone: Entity) -> bool:
        """Whether a clone has not everything yet."""
        return clone in self._takers

    def open(self, clone: Entity, seq: int, floor: int, now: float) -> View | None:
        """A clone asks for everything: what it is to take, or None if it has to ask again.

        ``seq`` is the master's last event, and those behind ``floor`` can still be had.
        """
        taker = self._takers.get(clone)
        if taker is not None and now < taker.opened_at + _ASK_AGAIN_S:
            return None
        self.close(clone)
        if not self._may_open(clone.endpoint, now):
            return None
        view = self._view(seq, floor, now)
        if view is not None:
            view.takers += 1
            self._takers[clone] = _Taker(view, now)
        return view

    def close(self, clone: Entity) -> None:
        """A clone takes no more, if it did."""
        taker = self._takers.pop(clone, None)
        if taker is not None:
            taker.view.takers -= 1
            if not taker.view.takers:
                self._views.remove(taker.view)

    def taken(self, clone: Entity, command: cmd.SnapshotTaken, now: float) -> list[cmd.SnapshotPiece]:
        """A taker says how far it is: the pieces that follow. With everything it is no taker any more."""
        taker = self._takers[clone]
        if taker.view.number != command.snapshot or command.entries > len(taker.view.entries):
            return []
        taker.heard_at = now
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
        """The pieces that a taker has room for."""
        taker = self._takers[clone]
        found = []
        while len(taker.under_way) < self._limits.pieces_ahead and taker.next < len(taker.view.entries):
            piece, taker.next = taker.view.piece(taker.next)
            taker.under_way.append(taker.next)
            found.append(piece)
        return found

    def silent(self, now: float) -> list[Entity]:
        """The takers that were not heard of for too long."""
        self._offered = {each: since for each, since in self._offered.items() if now < since[0] + 1.0}
        return [clone for clone, taker in self._takers.items() if now >= taker.heard_at + MASTER_SILENT_S]

    def next_timeout(self) -> float:
        """When to look for silent takers."""
        return min([taker.heard_at for taker in self._takers.values()], default=math.inf) + MASTER_SILENT_S

    # -- inside -----------------------------------------------------------------------------------------------------

    def _may_open(self, endpoint: bytes, now: float) -> bool:
        if sum([clone.endpoint == endpoint for clone in self._takers]) >= STORE_TAKERS_MAX:
            return False
        since, count = self._offered.get(endpoint, (now, 0))
        if now >= since + 1.0:
            since, count = now, 0
        if count >= STORE_OFFERS_PER_S:
            return False
        self._offered[endpoint] = (since, count + 1)
        return True

    def _view(self, seq: int, floor: int, now: float) -> View | None:
        newest = self._views[-1] if self._views else None
        if newest is not None:
            behind = seq - newest.offset
            young = now < newest.made_at + STORE_SNAPSHOT_SHARED_S
            if not behind or (young and floor <= newest.offset and behind <= self._limits.snapshot_shared_events):
                return newest
        if len(self._views) >= self._limits.snapshots_max:
            return None
        self._number += 1
        view = View(self._number, seq, self._frozen(), self._limits, now)
        self._views.append(view)
        return view
