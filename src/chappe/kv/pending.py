"""The writes of a clone whose outcome it does not know yet."""

from __future__ import annotations

from collections import deque
from typing import Final

import msgspec

from chappe.core import Report
from chappe.errors import BackendFailure, InvalidOperation, NoMaster, NoSuchKey, StoreError, TypeClash
from chappe.kv.actions import Action, Resolve
from chappe.kv.commands import DONE, NOT_INSERTED
from chappe.kv.events import WriteFailed

_STATES_MAX: Final = 64  # confirmations that wait for the master's events; a further one takes the last one's place
_REASONS: Final[dict[int, tuple[type[StoreError], str]]] = {
    kind.code: (kind, reason)
    for kind, reason in (
        (NoSuchKey, "nothing is stored under the key"),
        (TypeClash, "the operation does not fit the type of the stored value"),
        (InvalidOperation, "the operation's value is not what it needs, or the result would be out of bounds"),
        (BackendFailure, "its backend could not write; look at the master's disk"),
        (NoMaster, "it remembers too many clones already"),
    )
}


class Pending(msgspec.Struct, frozen=True):
    """One write; ``request`` is set for a put_unique, whose answer an original sends apart."""

    ticket: int | None
    what: str
    request: int | None = None


class State(msgspec.Struct, frozen=True):
    """A confirmation that holds once the master's event ``output`` has come."""

    applied: int
    output: int
    outcomes: dict[int, int]


class PendingWrites:
    """In the order of their numbers."""

    def __init__(self, store: str) -> None:
        self._store = store
        self._writes: dict[int, Pending] = {}
        self._states: deque[State] = deque()

    def __len__(self) -> int:
        return len(self._writes)

    def add(self, seq: int, write: Pending) -> None:
        """A write was made."""
        self._writes[seq] = write

    def confirm(self, state: State) -> None:
        """The master has confirmed writes; ``settle`` makes it known when it may be."""
        if len(self._states) == _STATES_MAX:
            last = self._states.pop()
            state = State(state.applied, state.output, last.outcomes | state.outcomes)
        self._states.append(state)

    def settle(self, next_event: int | None) -> tuple[int, list[Action]]:
        """Resolve what holds before the master's event ``next_event``; None for all that is confirmed.

        Returns the number up to which failures are now known, 0 if there were none, and the actions.
        """
        known = 0
        actions: list[Action] = []
        while self._states and (next_event is None or self._states[0].output < next_event):
            state = self._states.popleft()
            known = max(known, max(state.outcomes, default=0))
            while self._writes:
                seq = next(iter(self._writes))
                if seq > state.applied:
                    break
                actions += self._resolve(self._writes.pop(seq), state.outcomes.get(seq, DONE))
        return known, actions

    def acknowledged(self, applied: int) -> list[Action]:
        """An original has acknowledged writes; what became of a put_unique it says apart."""
        found = [seq for seq, write in self._writes.items() if seq <= applied and write.request is None]
        return [action for seq in found for action in self._resolve(self._writes.pop(seq), DONE)]

    def answered(self, request: int, inserted: bool) -> list[Action]:
        """An original has answered a put_unique."""
        for seq, write in self._writes.items():
            if write.request == request:
                return self._resolve(self._writes.pop(seq), DONE if inserted else NOT_INSERTED)
        return []

    def fail(self, up_to: int, kind: type[StoreError], reason: str) -> list[Action]:
        """Those up to a number are given up."""
        found = [seq for seq in self._writes if seq <= up_to]
        actions: list[Action] = []
        for seq in found:
            write = self._writes.pop(seq)
            actions += self._failed(write, kind(f"{write.what}: {reason}"))
        return actions

    def _resolve(self, write: Pending, code: int) -> list[Action]:
        if write.request is not None and code in (DONE, NOT_INSERTED):
            return [] if write.ticket is None else [Resolve(write.ticket, code == DONE)]
        if code == DONE:
            return [] if write.ticket is None else [Resolve(write.ticket, None)]
        kind, reason = _REASONS.get(code, (StoreError, f"error {code}"))
        return self._failed(write, kind(f"the master refused {write.what}: {reason}"))

    def _failed(self, write: Pending, error: StoreError) -> list[Action]:
        if write.ticket is None:
            return [Report(WriteFailed(self._store, write.what, error))]
        return [Resolve(write.ticket, error)]
