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
    entity: Entity


class HistoryRow(Frozen, frozen=True):
    """Keep a change of a key in its history; ``kv.history`` has the form of ``body``."""

    key: bytes
    revision: int
    body: bytes


class ForgetHistory(Frozen, frozen=True):
    key: bytes
    revision: int


class ClearHistory(Frozen, frozen=True):
    pass


Operation: TypeAlias = (
    PutRow | EraseRow | ClearRows | WriterRow | ForgetWriter | HistoryRow | ForgetHistory | ClearHistory
)


class Commit(Frozen, frozen=True):
    """A job for the disk: commit all of these at once, durably; one at a time, so one sync serves many operations."""

    number: int
    operations: tuple[Operation, ...]


class Loaded(Frozen, frozen=True):
    entries: tuple[tuple[Value, Value, int | None], ...] = ()
    writers: tuple[WriterRow, ...] = ()
    history: tuple[HistoryRow, ...] = ()


class Backend(Protocol):
    def load(self) -> Loaded: ...

    def commit(self, operations: Sequence[Operation]) -> None:
        """Carry out all of them durably; raises StorageError, StorageFull for a full disk, and then none is done."""

    def close(self) -> None: ...
