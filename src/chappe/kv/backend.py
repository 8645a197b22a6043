"""The backend port: where a master's entries last. What is in memory is always complete; a backend only keeps it.

``commit`` does all of its operations or none, and is durable when it returns. It runs on a thread of its own while the
core goes on. Keys and values are in their binary form. Rows of writers say which writes of clones are contained, so
that none is done twice when its author repeats it to a restarted master; that of ``NOBODY`` has the numbers of events.
``history`` rows are the latest changes of keys, of a master that keeps them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeAlias

from chappe.compiled import Frozen
from chappe.data.values import Value
from chappe.kv.entity import Entity


class PutRow(Frozen, frozen=True):
    """Set a key; ``expires_ns`` is nanoseconds since 1970, or None."""

    key: bytes
    value: bytes
    expires_ns: int | None


class EraseRow(Frozen, frozen=True):
    """Remove a key, if it is there."""

    key: bytes


class ClearRows(Frozen, frozen=True):
    pass


class WriterRow(Frozen, frozen=True):
    """The writes of ``entity`` up to ``applied`` are contained; ``outcomes``: those that did not go well."""

    entity: Entity
    applied: int
    outcomes: tuple[tuple[int, int], ...]
    heard_ns: int  # nanoseconds since 1970: a clone not heard of for long is forgotten


class ForgetWriter(Frozen, frozen=True):
    """Remove what is known of a clone."""

    entity: Entity


class HistoryRow(Frozen, frozen=True):
    """Keep a change of a key in its history; ``body`` is told by ``kv.history``."""

    key: bytes
    revision: int
    body: bytes


class ForgetHistory(Frozen, frozen=True):
    """Remove a change from the history of a key, if it is there."""

    key: bytes
    revision: int


class ClearHistory(Frozen, frozen=True):
    """Remove the history of all keys."""


Operation: TypeAlias = (
    PutRow | EraseRow | ClearRows | WriterRow | ForgetWriter | HistoryRow | ForgetHistory | ClearHistory
)


class Commit(Frozen, frozen=True):
    """A job for the disk: have a backend do all of these at once, durably.

    A core never has more than one under way: what comes meanwhile goes into the next, so one sync serves many.
    """

    number: int
    operations: tuple[Operation, ...]


class Loaded(Frozen, frozen=True):
    """All that a backend keeps."""

    entries: tuple[tuple[Value, Value, int | None], ...] = ()
    writers: tuple[WriterRow, ...] = ()
    history: tuple[HistoryRow, ...] = ()


class Backend(Protocol):
    """Where a master's entries last."""

    def load(self) -> Loaded:
        """All of it; raises StorageError (Damaged for bytes that are not values)."""

    def commit(self, operations: Sequence[Operation]) -> None:
        """Do all of them durably; raises StorageError, StorageFull for a full disk, and then none is done."""

    def close(self) -> None:
        """Let go of the files; may be called again."""
