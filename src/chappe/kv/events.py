"""What masters and clones report of themselves (``core.Report``), besides the changes of keys."""

from __future__ import annotations

from dataclasses import dataclass

from chappe.errors import StoreError
from chappe.kv.entity import Entity


@dataclass(frozen=True, slots=True)
class CloneAttached:
    """A master: a clone has taken its snapshot."""

    store: str
    clone: Entity

    def __str__(self) -> str:
        return f"clone {self.clone} follows store {self.store!r}"


@dataclass(frozen=True, slots=True)
class CloneDropped:
    """A master: a clone is no longer served; it may come back."""

    store: str
    clone: Entity
    reason: str

    def __str__(self) -> str:
        return f"clone {self.clone} of store {self.store!r} is no longer served: {self.reason}"


@dataclass(frozen=True, slots=True)
class StoreNearsBound:
    """A master that serves clones of the original: they get all of the store in one message, which is nearly full.

    Those that follow go on following; beyond ``bound`` bytes none can begin, or begin anew. Clones of chappe have no
    such bound.
    """

    store: str
    size: int
    bound: int

    def __str__(self) -> str:
        return (
            f"store {self.store!r} has {self.size:,} bytes: beyond {self.bound:,} no clone of the original can take "
            "them any more; those of chappe can"
        )


@dataclass(frozen=True, slots=True)
class SnapshotGivenUp:
    """A clone: it began to take what its master has, and has not got all of it. It asks again."""

    store: str
    master: Entity
    reason: str

    def __str__(self) -> str:
        return f"store {self.store!r} did not get all that its master {self.master} has: {self.reason}"


@dataclass(frozen=True, slots=True)
class MasterFound:
    """A clone: it has all data of this master, and follows it."""

    store: str
    master: Entity

    def __str__(self) -> str:
        return f"store {self.store!r} follows its master {self.master}"


@dataclass(frozen=True, slots=True)
class MasterLost:
    """A clone: its master is gone or silent; it reads what it has and keeps writes for a while."""

    store: str
    master: Entity
    reason: str

    def __str__(self) -> str:
        return f"store {self.store!r} has lost its master {self.master}: {self.reason}"


@dataclass(frozen=True, slots=True)
class CloneStale:
    """A clone: it was without a master, or without changes, for longer than it may, and refuses to be read."""

    store: str

    def __str__(self) -> str:
        return f"store {self.store!r} lost its master, or changes, too long ago and cannot be read until it has both"


@dataclass(frozen=True, slots=True)
class WritesRefused:
    """A clone: ``count`` writes waited for a master too long and were refused; those already sent may be done."""

    store: str
    count: int

    def __str__(self) -> str:
        return f"store {self.store!r} has refused {self.count} writes that waited for a master too long"


@dataclass(frozen=True, slots=True)
class WriteFailed:
    """A clone: a write that nobody waits for was not done, or may not have been (``error.definite``)."""

    store: str
    what: str
    error: StoreError

    def __str__(self) -> str:
        return f"a write to store {self.store!r} failed: {self.error}"


@dataclass(frozen=True, slots=True)
class TwoMasters:
    """A master or clone: two masters of one name are in reach. Close one: their contents go apart."""

    store: str
    followed: Entity
    other: Entity

    def __str__(self) -> str:
        return f"store {self.store!r} has two masters, {self.followed} and {self.other}: close one"


@dataclass(frozen=True, slots=True)
class CommitFailed:
    """A master: its backend refused a commit; the writes in it were refused, the store is as it was before."""

    store: str
    writes: int
    reason: str

    def __str__(self) -> str:
        return f"store {self.store!r} has refused {self.writes} writes: {self.reason}"


@dataclass(frozen=True, slots=True)
class CommandRefused:
    """A master or clone: a peer sent what it may not, or bytes that are no command."""

    store: str
    reason: str

    def __str__(self) -> str:
        return f"store {self.store!r} has refused a message: {self.reason}"
