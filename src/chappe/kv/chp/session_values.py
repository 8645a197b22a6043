"""Values that end with the client that wrote them: which session each belongs to, and when that was heard last.

A session value carries the property ``SESSION``; its UUID names the session. So both servers of a pair, and a server
that is started again, know from the entries alone which values end with whom, and a renewal costs no update. The active
server decides: a session ends when its client says so, or is silent for ``MAP_SESSION_S``. The time begins anew when a
server becomes active, or finds that it stood still: it was the server that could not hear.

An update by another session, or without the property, makes a value an ordinary one. Beyond ``session_values_max`` a
step that adds one fails.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from chappe.deadlines import Deadlines
from chappe.defaults import MAP_SESSION_S
from chappe.kv.chp.messages import writer_of
from chappe.limits import MapLimits

SESSION_NAME: Final = b"chappe-session="
SESSION: Final = SESSION_NAME + b"1\n"  # the first of the properties of a session value
STALL_S: Final = 1.0  # a server looks four times in that; one that did not stood still


def without_session(properties: bytes) -> bytes:
    """Return the properties as the application wrote them."""
    return properties.removeprefix(SESSION)


class SessionValues:
    """See the module."""

    def __init__(self, limits: MapLimits, now: float) -> None:
        self._max = limits.session_values_max
        self._owners: dict[bytes, bytes] = {}  # by key: the session that it ends with
        self._keys: dict[bytes, dict[bytes, None]] = {}  # the same by session
        self._ends: Deadlines[bytes] = Deadlines()  # sessions that have values
        self._looked_at = now

    def __len__(self) -> int:
        return len(self._owners)

    @property
    def next(self) -> float:
        """When the first session ends, unless it is heard."""
        return self._ends.next

    def fits(self, sets: Sequence[tuple[bytes, bytes, int, bytes]]) -> bool:
        """True if there is room for all session values of a step."""
        new = [key for key, _, _, properties in sets if properties.startswith(SESSION) and key not in self._owners]
        return not new or len(self._owners) + len(new) <= self._max

    def note(self, key: bytes, uuid: bytes, properties: bytes, now: float) -> None:
        """Take note of a value that was set."""
        if not properties.startswith(SESSION):
            if self._owners:
                self.drop(key)
            return
        self.drop(key)
        written = writer_of(uuid)
        if written is None or len(self._owners) >= self._max:
            return
        name = written[0]
        self._owners[key] = name
        keys = self._keys.setdefault(name, {})
        if not keys:
            self._ends.set(name, now + MAP_SESSION_S)
        keys[key] = None

    def drop(self, key: bytes) -> None:
        """Take note that a key is gone, or has an ordinary value."""
        name = self._owners.pop(key, None)
        if name is None:
            return
        keys = self._keys[name]
        del keys[key]
        if not keys:
            del self._keys[name]
            self._ends.clear(name)

    def replace(self, entries: Iterable[tuple[bytes, bytes, bytes]], now: float) -> None:
        """Begin anew with these keys, UUIDs and properties."""
        for key in list(self._owners):
            self.drop(key)
        for key, uuid, properties in entries:
            self.note(key, uuid, properties, now)

    def heard(self, name: bytes, now: float) -> None:
        """The client of a session lives."""
        if name in self._keys:
            self._ends.set(name, now + MAP_SESSION_S)

    def has(self, name: bytes) -> bool:
        """True if a session has values."""
        return name in self._keys

    def keys(self, name: bytes) -> list[bytes]:
        """Return the keys of a session."""
        return list(self._keys.get(name, ()))

    def ended(self, now: float) -> list[bytes]:
        """Return the sessions that were silent for too long; an active server calls it several times a second."""
        if now > self._looked_at + STALL_S:
            for name in self._keys:
                self._ends.set(name, now + MAP_SESSION_S)
        self._looked_at = now
        return self._ends.due(now)

    def invariants(self) -> list[str]:
        """What is wrong with its own state, each a part of a sentence; nothing, unless there is a defect."""
        found = []
        if {key: name for name, keys in self._keys.items() for key in keys} != self._owners:
            found.append("session values are noted differently by key and by session")
        if len(self._owners) > self._max:
            found.append(f"{len(self._owners)} session values, at most {self._max} may be")
        if not all(self._keys.values()):
            found.append("a session is known that has no values")
        return found
