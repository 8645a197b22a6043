"""What masters and clones report of themselves (``core.Report``), besides the changes of keys."""

from __future__ import annotations

from dataclasses import dataclass

from chappe.errors import StoreError
from chappe.stores.entity import Entity


@dataclass(frozen=True, slots=True)
class CloneAttached:
    """A master: a clone has taken its snapshot."""

    store: str
    clone: Entity


@dataclass(frozen=True, slots=True)
class CloneDropped:
    """A master: a clone is no longer served; it may come back."""

    store: str
    clone: Entity
    reason: str


@dataclass(frozen=True, slots=True)
class MasterFound:
    """A clone: it has all data of this master, and follows it."""

    store: str
    master: Entity


@dataclass(frozen=True, slots=True)
class MasterLost:
    """A clone: its master is gone or silent; it reads what it has and keeps writes for a while."""

    store: str
    master: Entity
    reason: str


@dataclass(frozen=True, slots=True)
class CloneStale:
    """A clone: it was without a master for longer than it may, and refuses to be read."""

    store: str


@dataclass(frozen=True, slots=True)
class WritesRefused:
    """A clone: ``count`` writes waited for a master too long and were refused; those already sent may be done."""

    store: str
    count: int


@dataclass(frozen=True, slots=True)
class WriteFailed:
    """A clone: a write that nobody waits for was not done, or may not have been (``error.definite``)."""

    store: str
    what: str
    error: StoreError


@dataclass(frozen=True, slots=True)
class TwoMasters:
    """A master or clone: two masters of one name are in reach. Close one: their contents go apart."""

    store: str
    followed: Entity
    other: Entity


@dataclass(frozen=True, slots=True)
class CommitFailed:
    """A master: its backend refused a commit; the writes in it were refused, the store is as it was before."""

    store: str
    writes: int
    reason: str


@dataclass(frozen=True, slots=True)
class CommandRefused:
    """A master or clone: a peer sent what it may not, or bytes that are no command."""

    store: str
    reason: str
