"""Updates that a passive server hears from clients before or after the active one has passed them on.

Clients of the Guide's model 6 publish each update to both servers. The passive one keeps those that the active has not
passed on, by UUID, and applies them in their order when it takes over. An update without a UUID is known by its
contents.

Departures, each for a fault of the published programs: what the active, heard since, did not pass on within
``pending_s`` is dropped, as it never got it and would undo what came later; what the active passed on first is
remembered as such and never applied here; both are bounded.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TypeAlias

from chappe.kv.chp.stream import Entry
from chappe.limits import MapLimits

_Twin: TypeAlias = bytes | tuple[bytes, bytes, bytes]


class PendingUpdates:
    def __init__(self, limits: MapLimits) -> None:
        self.dropped = 0  # beyond the bounds
        self._limits = limits
        self._waiting: OrderedDict[_Twin, tuple[Entry, float]] = OrderedDict()  # from clients, and since when
        self._bytes = 0
        self._passed: OrderedDict[_Twin, float] = OrderedDict()  # by the active, which was faster

    def __len__(self) -> int:
        return len(self._waiting)

    def from_client(self, entry: Entry, now: float) -> None:
        twin = _twin(entry)
        if self._passed.pop(twin, None) is not None:
            return
        self._forget(twin)
        self._waiting[twin] = (entry, now)
        self._bytes += _size(entry)
        while len(self._waiting) > self._limits.pending_max or self._bytes > self._limits.pending_bytes:
            self._forget(next(iter(self._waiting)))
            self.dropped += 1

    def from_active(self, entries: list[Entry], now: float) -> None:
        passed = self._passed
        if not self._waiting:
            for entry in entries:
                passed[entry[2] or _twin(entry)] = now
        else:
            for entry in entries:
                twin = _twin(entry)
                if not self._forget(twin):
                    passed[twin] = now
        while len(self._passed) > self._limits.pending_max:
            self._passed.popitem(last=False)
        self.heard(now)

    def heard(self, now: float) -> None:
        """Note that the active server lives: updates that it did not pass on for so long never reached it."""
        oldest = now - self._limits.pending_s
        while self._waiting and next(iter(self._waiting.values()))[1] < oldest:
            self._forget(next(iter(self._waiting)))
        while self._passed and next(iter(self._passed.values())) < oldest:
            self._passed.popitem(last=False)

    def take(self) -> list[Entry]:
        """Take all that wait, the oldest first; they are not pending any more."""
        found = [entry for entry, _ in self._waiting.values()]
        self.clear()
        return found

    def clear(self) -> None:
        self._waiting.clear()
        self._passed.clear()
        self._bytes = 0

    def _forget(self, twin: _Twin) -> bool:
        found = self._waiting.pop(twin, None)
        if found is None:
            return False
        self._bytes -= _size(found[0])
        return True


def _twin(entry: Entry) -> _Twin:
    key, body, uuid, properties, _ = entry
    return uuid or (key, properties, body)


def _size(entry: Entry) -> int:
    return len(entry[0]) + len(entry[1]) + len(entry[3]) + 64
