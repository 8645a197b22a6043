"""States of a map on their way to clients: all entries behind one sequence, held and not copied.

Entries are replaced and never changed, so a view costs a reference for each. Clients that come about the same time
share one. There are few at once; who asks meanwhile waits.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

import msgspec

from chappe.kv.chp.ledger import Ledger, raw_key
from chappe.kv.chp.stream import ENTRY_BYTES, encode_entries
from chappe.kv.chp.stream import Entry as Told
from chappe.kv.engine import Entry
from chappe.limits import MapLimits

_KEPT: Final = 16  # encoded pieces of a view, for others who take them at the same time


class MapView:
    def __init__(self, ledger: Ledger, limits: MapLimits, now: float) -> None:
        self.sequence = ledger.sequence
        self.entries: list[Entry] = ledger.frozen()
        self.made_at = now
        self.takers = 0
        self._ledger = ledger
        self._limits = limits
        self._pieces: OrderedDict[tuple[tuple[bytes, ...], int], tuple[msgspec.Raw, int, int]] = OrderedDict()

    def piece(self, subtrees: tuple[bytes, ...], place: int, now: float) -> tuple[msgspec.Raw, int, int]:
        """Return entries of some subtrees from a place on: encoded, their number, and where the next piece begins."""
        made = self._pieces.get((subtrees, place))
        if made is None:
            found, after = self.take(subtrees, place, now, self._limits.piece_bytes)
            made = self._pieces[subtrees, place] = (encode_entries(found), len(found), after)
            if len(self._pieces) > _KEPT:
                self._pieces.popitem(last=False)
        return made

    def take(self, subtrees: tuple[bytes, ...], place: int, now: float, size_max: int,
             count_max: int | None = None) -> tuple[list[Told], int]:  # fmt: skip
        """Return entries of some subtrees from a place on, up to a size and number, and where the next ones begin."""
        found: list[Told] = []
        size = 0
        ns = self._ledger.ns(now)
        end = min(len(self.entries), place + self._limits.piece_looks)
        everything = b"" in subtrees
        while place < end and size < size_max and (count_max is None or len(found) < count_max):
            entry = self.entries[place]
            if everything or raw_key(entry.key).startswith(subtrees):
                told = self._ledger.told(entry, ns)
                size += len(told[0]) + len(told[1]) + len(told[3]) + ENTRY_BYTES
                if size > size_max and found:  # a large one comes alone: sockets refuse what is much larger
                    break
                found.append(told)
            place += 1
        return found, place


class Views:
    def __init__(self, ledger: Ledger, limits: MapLimits) -> None:
        self._ledger = ledger
        self._limits = limits
        self._views: list[MapView] = []

    def open(self, since: float, now: float) -> MapView | None:
        """Return a view not older than ``since``; None while there are too many. Give it back with ``close``."""
        newest = self._views[-1] if self._views else None
        if newest is not None and (newest.sequence == self._ledger.sequence or newest.made_at >= since):
            newest.takers += 1
            return newest
        if len(self._views) >= self._limits.views_max:
            return None
        made = MapView(self._ledger, self._limits, now)
        made.takers = 1
        self._views.append(made)
        return made

    def close(self, view: MapView) -> None:
        view.takers -= 1
        if not view.takers and view in self._views:
            self._views.remove(view)
