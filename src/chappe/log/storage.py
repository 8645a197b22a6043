"""The storage port: what a store needs of a disk.

A store writes in two steps. ``write`` runs on another thread, blocks until the blocks are on disk, and makes
nothing visible; ``publish`` runs with the core, is quick, and makes them readable. So a reader never sees
what a crash could take back, and no lock is needed between the two.

One ``write`` is atomic towards its caller: if it raises, nothing of it is ever visible. After a crash any
prefix of what it had for each topic may have survived, never a part of one batch.

Offsets that a partition already has are not replaced: an append, healing or not, adds what is missing at or
above ``first``. What is left out between two appends is a hole.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from chappe.log.events import ScrubEnded


@dataclass(frozen=True, slots=True)
class AppendRecords:
    """A batch to be written behind the end of its partition, or (``heal``) into a hole of it."""

    topic: str
    partition: str
    base: int
    count: int
    timestamp_min: int
    timestamp_max: int
    body: bytes
    heal: bool = False


@dataclass(frozen=True, slots=True)
class WriteRecords:
    """A job of a store's disk: make these batches durable in one commit."""

    appends: tuple[AppendRecords, ...]


@dataclass(frozen=True, slots=True)
class RunRetention:
    """A job of a store's disk: remove what the retention policies say, those of ``topics`` first."""

    topics: tuple[tuple[str, Retention], ...] = ()


@dataclass(frozen=True, slots=True)
class ScrubPiece:
    """A job of a store's disk: read a further piece of what is kept; it comes to ``ScrubEnded`` once all is read."""


@dataclass(frozen=True, slots=True)
class PartitionInfo:
    """The range of a partition, known without reading it.

    ``first`` <= offsets < ``next``; ``next`` - 1 is the head. ``version`` grows with every change of any
    partition of the store, so "what changed since version v" needs no scan.
    """

    topic: str
    partition: str
    first: int
    next: int
    bytes: int
    timestamp_min: int
    timestamp_max: int
    version: int


@dataclass(frozen=True, slots=True)
class Hole:
    """Offsets ``first``..``last`` of a partition that were lost to damage and can be fetched again."""

    topic: str
    partition: str
    first: int
    last: int
    reason: str = ""


@dataclass(frozen=True, slots=True)
class StorageRead:
    """Answer to a read: whole batches, the first of which contains the wanted offset.

    ``hole`` is set when the wanted offset itself lies in damage; then there are no batches. ``ahead`` is where a read
    of what follows will end, as far as can be told without reading it; 0 if it cannot, or nothing follows.
    """

    batches: tuple[bytes, ...]
    hole: Hole | None = None
    ahead: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class Retention:
    """How much of a topic to keep; None means without limit. Age counts from a record's timestamp."""

    age_s: float | None = None
    bytes: int | None = None
    records: int | None = None


@dataclass(frozen=True, slots=True)
class Scrubbed:
    """The result of one ``scrub``. ``idle``: no round is due. ``news``: give ``detail`` to ``LogStorage.scrubbed``."""

    bytes: int = 0
    idle: bool = False
    news: bool = False
    detail: object = None


class LogStorage(Protocol):
    """The disk of a store. Offsets of a partition start anywhere: a store may join late."""

    store_id: str

    def write(self, appends: Sequence[AppendRecords]) -> object:
        """Make the batches durable; return what ``publish`` needs.

        Raises:
            StorageFull: No room. Nothing of it is visible, now or after a restart.
            StorageError: The disk failed otherwise; the same holds.
        """

    def publish(self, written: object) -> None:
        """Make a finished write readable and advance the heads."""

    def topics(self) -> list[str]: ...

    def partition(self, topic: str, partition: str) -> PartitionInfo | None: ...

    def changed(self, topic_prefix: str, since: int, limit: int) -> list[PartitionInfo]:
        """Return partitions of matching topics changed after version ``since``, oldest change first."""

    @property
    def version(self) -> int: ...

    def read(self, topic: str, partition: str, offset: int, bytes_max: int) -> StorageRead:
        """Return batches from the one containing ``offset`` on: at least one, further ones while they fit.

        Every batch is checked against its checksum; damage found now becomes a hole.
        The answer is empty without a hole if ``offset`` is not within first..next-1.
        """

    def offset_at(self, topic: str, partition: str, timestamp: int) -> int:
        """Return the first offset whose batch ends at or after ``timestamp``; ``next`` if all are older."""

    def holes(self, topic: str | None = None) -> list[Hole]:
        """Return damage that is known and not healed, of one topic or of all."""

    def reset(self, topic: str, partition: str, first: int) -> None:
        """Start a partition at ``first``: its earlier records exist nowhere any more.

        What is then missing up to the first append is a hole. Never lowers the first offset. Quick, and durable only
        after the next ``retain`` or ``close``.
        """

    def retain(self, policies: Sequence[tuple[str, Retention]], now_us: int) -> object:
        """Decide what to remove (first policy whose topic or ``prefix*`` matches); runs like ``write``."""

    def forget(self, retained: object) -> None:
        """Carry out what ``retain`` decided; runs like ``publish``."""

    def scrub(self) -> Scrubbed:
        """Read on, some of everything that is kept, to find damage; runs on a thread of its own, and never raises."""

    def scrubbed(self, found: Scrubbed) -> ScrubEnded | None:
        """Look again at what a scrub found, a bounded part of it; runs like ``publish``. Damage becomes holes.

        Returns what to report if a round has ended. To be called again while ``suspicious``.
        """

    @property
    def suspicious(self) -> bool:
        """True if ``scrubbed`` has something left to look at."""

    @property
    def scrubbed_us(self) -> int:
        """When everything kept was last read and checked, microseconds since 1970; 0 if it never was."""

    def close(self) -> None: ...
