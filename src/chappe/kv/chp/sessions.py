"""Sessions of writers at a map server, with a common bound.

Of each: its last step, and of those whose outcomes it may not have heard yet which ones failed, and when they may be
told. A writer that lives says within a second what it knows; one that is gone may never do.

Session values end with the client that wrote them.

A session value carries the property ``SESSION``; its UUID names the session. So both servers of a pair, and a server
that is started again, know from the entries alone which values end with whom, and a renewal costs no update. The active
server decides: a session ends when its client says so, or is silent for ``MAP_SESSION_S``. The time begins anew when a
server becomes active, or finds that it stood still: it was the server that could not hear.

An update by another session, or without the property, makes a value an ordinary one. Beyond ``session_values_max`` a
step that adds one fails.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import chain
from typing import Final

from chappe.deadlines import Deadlines
from chappe.defaults import MAP_SESSION_S
from chappe.errors import WriteUnknown
from chappe.kv.chp.messages import writer_of
from chappe.limits import MapLimits

SESSION_NAME: Final = b"chappe-session="
SESSION: Final = SESSION_NAME + b"1\n"  # the first of the properties of a session value
STALL_S: Final = 1.0  # a server looks four times in that; one that did not stood still


def without_session(properties: bytes) -> bytes:
    return properties.removeprefix(SESSION)


class SessionValues:
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
        return self._ends.next

    def fits(self, sets: Sequence[tuple[bytes, bytes, int, bytes]]) -> bool:
        """True if there is room for all session values of a step."""
        new = [key for key, _, _, properties in sets if properties.startswith(SESSION) and key not in self._owners]
        return not new or len(self._owners) + len(new) <= self._max

    def note(self, key: bytes, uuid: bytes, properties: bytes, now: float) -> None:
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
        """Note that a key is gone, or has an ordinary value."""
        name = self._owners.pop(key, None)
        if name is None:
            return
        keys = self._keys[name]
        del keys[key]
        if not keys:
            del self._keys[name]
            self._ends.clear(name)

    def replace(self, entries: Iterable[tuple[bytes, bytes, bytes]], now: float) -> None:
        for key in list(self._owners):
            self.drop(key)
        for key, uuid, properties in entries:
            self.note(key, uuid, properties, now)

    def heard(self, name: bytes, now: float) -> None:
        if name in self._keys:
            self._ends.set(name, now + MAP_SESSION_S)

    def has(self, name: bytes) -> bool:
        return name in self._keys

    def keys(self, name: bytes) -> list[bytes]:
        return list(self._keys.get(name, ()))

    def ended(self, now: float) -> list[bytes]:
        """Return the sessions that were silent for too long; an active server calls it several times a second."""
        if now > self._looked_at + STALL_S:
            for name in self._keys:
                self._ends.set(name, now + MAP_SESSION_S)
        self._looked_at = now
        return self._ends.due(now)

    def invariants(self) -> list[str]:
        found = []
        if {key: name for name, keys in self._keys.items() for key in keys} != self._owners:
            found.append("session values are noted differently by key and by session")
        if len(self._owners) > self._max:
            found.append(f"{len(self._owners)} session values, at most {self._max} may be")
        if not all(self._keys.values()):
            found.append("a session is known that has no values")
        return found


UNKNOWN: Final = WriteUnknown.code  # the code of an outcome that stands for those of all steps up to there
FORGOTTEN: Final = "the server has forgotten what became of it: too many writes failed of which nobody said he knew"

Outcome = tuple[int, int, str]  # number of the step, code and text


class Session:
    __slots__ = ("applied", "failed", "heard_ns", "taken", "waiting")

    def __init__(self, applied: int, heard_ns: int) -> None:
        self.taken = applied  # its last step that was done in memory
        self.applied = applied  # its last step that may be told
        self.waiting: deque[tuple[int, int]] = deque()  # steps behind that which are released, and at which sequence
        self.failed: dict[int, tuple[int, str]] = {}  # by number; with ``UNKNOWN`` for all up to that one
        self.heard_ns = heard_ns

    @property
    def size(self) -> int:
        return len(self.failed) + len(self.waiting)

    @property
    def released(self) -> int:
        return self.waiting[-1][0] if self.waiting else self.applied

    def confirm(self, sequence: int) -> int:
        """Confirm everything up to ``sequence``; return the last step."""
        while self.waiting and self.waiting[0][1] <= sequence:
            self.applied = self.waiting.popleft()[0]
        return self.applied

    def forget(self, done: int) -> None:
        for number in [each for each in self.failed if each <= done]:
            del self.failed[number]

    def fail(self, number: int, code: int, text: str) -> None:
        self.do(number)
        self.failed[number] = code, text

    def do(self, number: int) -> None:
        """Note that a step is done, also if it was told as failed: it may have failed at a server that was replaced."""
        former = self.failed.pop(number, None)
        if former is not None and former[0] == UNKNOWN and number > 1:
            self.failed[number - 1] = former  # of those before it nothing is known still

    def failures(self, told: int, applied: int) -> Iterator[Outcome]:
        """Iterate over the steps between these two that failed, or whose outcome is forgotten, in order."""
        unknown = max([number for number, (code, _) in self.failed.items() if code == UNKNOWN], default=0)
        known = sorted([number for number in self.failed if max(told, unknown) < number <= applied])
        forgotten = ((number, UNKNOWN, FORGOTTEN) for number in range(told + 1, min(unknown, applied) + 1))
        return chain(forgotten, ((number, *self.failed[number]) for number in known))

    def copied(self) -> Iterator[tuple[int, int]]:
        """Iterate over numbers and codes of failures among told updates, for another server."""
        released = self.released
        for number, (code, _) in self.failed.items():
            if number <= released:
                yield number, code
            elif code == UNKNOWN and released:
                yield released, code

    def shorten(self) -> int:
        """Forget outcomes so far, and confirm later; return by how much less is remembered."""
        before = self.size
        if self.failed:
            self.failed = {max(self.failed): (UNKNOWN, FORGOTTEN)}
        if self.waiting:
            self.waiting = deque([self.waiting[-1]])
        return before - self.size


def shorten_some(sessions: Collection[Session], outcomes_max: int) -> None:
    """Shorten the largest sessions if all are too large together, of equal ones the first: order by last heard."""
    left = sum([each.size for each in sessions])
    if left <= outcomes_max:
        return
    for session in sorted(sessions, key=lambda each: each.size, reverse=True):
        left -= session.shorten()
        if 4 * left <= 3 * outcomes_max:
            return
