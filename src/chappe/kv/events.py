"""Reports of masters and clones (``core.Report``), beside changes of keys."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from chappe.errors import ChappeError, ErrorCode, StoreError
from chappe.kv.entity import Entity


@dataclass(frozen=True, slots=True)
class StoreEvent:
    """Something that happened to the master or clone of a store."""

    _text: ClassVar[str] = ""
    _code: ClassVar[int] = 0

    store: str

    @property
    def code(self) -> int:
        """Broker's number for it (``ErrorCode``) if it is a failure; else 0."""
        return self._code

    def __str__(self) -> str:
        return self._text.format(self)


@dataclass(frozen=True, slots=True)
class CloneAttached(StoreEvent):
    """A master: a clone has taken its snapshot."""

    _text = "clone {0.clone} follows store {0.store!r}"

    clone: Entity


@dataclass(frozen=True, slots=True)
class CloneDropped(StoreEvent):
    """A master: a clone is no longer served; it may come back."""

    _text = "clone {0.clone} of store {0.store!r} is no longer served: {0.reason}"

    clone: Entity
    reason: str
    why: int = ErrorCode.UNSPECIFIED

    @property
    def code(self) -> int:
        return self.why


@dataclass(frozen=True, slots=True)
class StoreNearsBound(StoreEvent):
    """A master that serves clones of the original: they get all of the store in one message, which is nearly full.

    Those that follow go on following; beyond ``bound`` bytes none can begin, or begin anew. Clones of chappe have no
    such bound.
    """

    _text = (
        "store {0.store!r} has {0.size:,} bytes: beyond {0.bound:,} no clone of the original can "
        "take them any more; those of chappe can"
    )

    size: int
    bound: int


@dataclass(frozen=True, slots=True)
class SnapshotGivenUp(StoreEvent):
    """A clone: it began to take what its master has, and has not got all of it. It asks again."""

    _text = "store {0.store!r} did not get all that its master {0.master} has: {0.reason}"

    master: Entity
    reason: str


@dataclass(frozen=True, slots=True)
class CloneResyncs(StoreEvent):
    """A clone: it lacks changes of its master for good, and asks for a snapshot."""

    _text = "store {0.store!r} asks its master for a snapshot: {0.error}"

    error: ChappeError

    @property
    def code(self) -> int:
        return self.error.code


@dataclass(frozen=True, slots=True)
class MasterFound(StoreEvent):
    """A clone: it has all data of this master, and follows it."""

    _text = "store {0.store!r} follows its master {0.master}"

    master: Entity


@dataclass(frozen=True, slots=True)
class MasterLost(StoreEvent):
    """A clone: its master is gone or silent; it reads what it has and keeps writes for a while."""

    _text = "store {0.store!r} has lost its master {0.master}: {0.reason}"

    master: Entity
    reason: str


@dataclass(frozen=True, slots=True)
class CloneStale(StoreEvent):
    """A clone: it was without a master, or without changes, for longer than it may, and refuses to be read."""

    _text = "store {0.store!r} lost its master, or changes, too long ago and cannot be read until it has both"
    _code = ErrorCode.STALE_DATA


@dataclass(frozen=True, slots=True)
class CloneWritesRefused(StoreEvent):
    """A clone: ``count`` writes waited for a master too long and were refused; those already sent may be done."""

    _text = "store {0.store!r} has refused {0.count} writes that waited for a master too long"
    _code = ErrorCode.NO_SUCH_MASTER

    count: int


@dataclass(frozen=True, slots=True)
class WriteFailed(StoreEvent):
    """A clone: a write that nobody waits for was not done, or may not have been (``error.definite``)."""

    _text = "a write to store {0.store!r} failed: {0.error}"

    what: str
    error: StoreError

    @property
    def code(self) -> int:
        return self.error.code


@dataclass(frozen=True, slots=True)
class TwoMasters(StoreEvent):
    """A master or clone sees two masters of one name, whose contents diverge. Close one of them."""

    _text = "store {0.store!r} has two masters, {0.followed} and {0.other}: close one"
    _code = ErrorCode.MASTER_EXISTS

    followed: Entity
    other: Entity


@dataclass(frozen=True, slots=True)
class CommitFailed(StoreEvent):
    """A master: its backend refused a commit; the writes in it were refused, the store is as it was before."""

    _text = "store {0.store!r} has refused {0.writes} writes: {0.reason}"
    _code = ErrorCode.BACKEND_FAILURE

    writes: int
    reason: str


@dataclass(frozen=True, slots=True)
class CommandRefused(StoreEvent):
    """A master or clone: a peer sent what it may not send, or bytes that are not a command."""

    _text = "store {0.store!r} has refused a message: {0.reason}"
    _code = ErrorCode.INVALID_MESSAGE

    reason: str
