"""Keys that changed lately, and between which states: all that a clone needs that was up to date a moment ago.

A clone names the state that it has by a master and the last event of that one. The servers of a chain remember for the
latest states which keys were changed on the way to each. So the next head can tell any clone what it lacks, though it
has other numbers for its own events.

Keys are remembered, not what was done: what they have now is what a clone is to have, also one that stopped in the
middle of a commit, of which others know only what came out. What a commit has made and removed again is among its keys.

Bounds: ``recent_keys`` keys and states, ``recent_bytes`` bytes of keys. A clone that is further behind, or at a state
that was never here, takes everything. So does one from before everything was removed.

The numbers of a durable order, of a master's events or a map's updates: each is used in one life only.

The backend keeps one number that is above all that were used, in a row beside those of writers; it reserves
many at once. A life begins there, so a clock that was set back does no harm, or at the time of day in microseconds if
that is later, so a file that was restored from a copy does none.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Final, NamedTuple

from chappe.channel import FIRST
from chappe.core import Clock
from chappe.kv.backend import ClearRows, EraseRow, Loaded, Operation, PutRow, WriterRow
from chappe.kv.entity import NOBODY, Entity
from chappe.limits import KvLimits

AHEAD: Final = 1 << 20  # a second of the clock in microseconds
_LEAST: Final = AHEAD // 2  # more than the changes that are not durable yet: two commits at most wait behind one


class EventNumbers:
    """The numbers of one life; its first event has ``base`` + 1. ``loaded``: the content of the backend."""

    def __init__(self, loaded: Loaded, clock: Clock) -> None:
        kept = [row.applied for row in loaded.writers if row.entity == NOBODY]
        self.base = max(FIRST, clock.wall_ns() // 1000, *kept)
        self._kept = 0  # reserved up to here, in the backend or in a commit under way

    def reserve(self, last: int) -> WriterRow | None:
        """Reserve numbers for events behind ``last`` by a row for the backend; None if enough are reserved."""
        if last + _LEAST < self._kept:
            return None
        self._kept = last + AHEAD
        return WriterRow(NOBODY, self._kept, (), 0)

    def refused(self) -> None:
        """Note that a commit failed, perhaps the one with the row."""
        self._kept = 0


class _RecentState(NamedTuple):
    """The state of ``master`` behind its ``event``, and the keys that may differ from the state before."""

    master: Entity
    event: int
    keys: tuple[bytes, ...]


class Recent:
    def __init__(self, limits: KvLimits) -> None:
        self._limits = limits
        self._states: deque[_RecentState] = deque()  # nothing is known of what was before the first: it has no keys
        self._before = 0  # states that were forgotten
        self._keys = 0
        self._bytes = 0

    def begin(self, master: Entity, event: int) -> None:
        """Begin with the state of ``master`` behind its ``event``; its differences from earlier states are unknown."""
        self._before += len(self._states)
        self._states.clear()
        self._keys = self._bytes = 0
        self._states.append(_RecentState(master, event, ()))

    def name(self, master: Entity, event: int) -> None:
        """Give the same state another name; ``master`` goes on from it."""
        self._append(_RecentState(master, event, ()))

    def add(self, master: Entity, event: int, operations: Iterable[Operation]) -> None:
        keys: list[bytes] = []
        for each in operations:
            if isinstance(each, ClearRows):
                self.begin(master, event)
                return
            if isinstance(each, PutRow | EraseRow):
                keys.append(each.key)
        last = self._states[-1] if self._states else None
        if not keys and last is not None and last.master == master and event == last.event:
            return
        self._append(_RecentState(master, event, tuple(keys)))

    def since(self, master: Entity, event: int) -> tuple[int, list[bytes]] | None:
        """Return the keys that may differ from the state of ``master`` behind its ``event``, each once; None if
        unknown. Before it a number: of two answers at a time the one with the lower number contains the other.
        """
        keys: dict[bytes, None] = {}
        later: _RecentState | None = None  # the one behind that which is looked at
        for place in range(len(self._states) - 1, -1, -1):
            state = self._states[place]
            if state.master == master and state.event <= event:
                if state.event < event and (later is None or later.master != master):
                    return None  # it went on without this one
                return self._before + place, list(keys)
            keys.update(dict.fromkeys(state.keys))
            later = state
        return None

    def invariants(self) -> list[str]:
        found: list[str] = []
        limits = self._limits
        if self._keys != sum([len(each.keys) for each in self._states]):
            found.append(f"{self._keys} keys of {len(self._states)} states are counted")
        if self._keys + len(self._states) > limits.recent_keys + 1 or self._bytes > limits.recent_bytes:
            found.append(f"{self._keys} keys of {len(self._states)} states are remembered")
        if self._states and self._states[0].keys:
            found.append("keys of the first state are remembered")
        return found

    def _append(self, state: _RecentState) -> None:
        if not self._states:
            state = state._replace(keys=())
        self._states.append(state)
        self._keys += len(state.keys)
        self._bytes += sum([len(key) for key in state.keys])
        limits = self._limits
        while len(self._states) > 1 and (
            self._keys + len(self._states) > limits.recent_keys or self._bytes > limits.recent_bytes
        ):
            self._states.popleft()
            self._before += 1
            first = self._states[0]
            self._keys -= len(first.keys)
            self._bytes -= sum([len(key) for key in first.keys])
            self._states[0] = first._replace(keys=())
