"""The port for staged rows: what the home of a sink keeps on disk before and while a batch is committed.

How a commit uses it is in ``redo``. Everything but ``kept`` runs on the thread that writes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol, TypeAlias

from chappe.errors import StagedRowsMissing, StorageFull


@dataclass(frozen=True, slots=True)
class StagedAttempt:
    """One attempt of one task."""

    sink: str
    run: str
    batch: int
    task: int
    attempt: int


@dataclass(frozen=True, slots=True)
class SinkState:
    """What a store knows of a sink: all of it is durable.

    ``batch`` is the last committed one, -1 for none; ``ends`` the offset after its last record, by topic. ``age_s``
    is set only where a state was read from disk: how long ago it was last written.
    """

    sink: str
    home: str
    run: str = ""
    fenced: tuple[str, ...] = ()  # oldest first
    batch: int = -1
    lasting: bool = True
    ends: tuple[tuple[str, int], ...] = ()
    age_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Intent:
    """A commit that is decided: which pieces, and at which offsets.

    ``attempts`` are task, attempt and number of pieces, in the order of their records; ``ranges`` are topic,
    partition, first offset and the one after the last.
    """

    sink: str
    run: str
    batch: int
    attempts: tuple[tuple[int, int, int], ...]
    ranges: tuple[tuple[str, str, int, int], ...]


@dataclass(frozen=True, slots=True)
class KeptSinks:
    """What a store found when it opened."""

    sinks: tuple[SinkState, ...] = ()
    attempts: tuple[tuple[StagedAttempt, tuple[str, ...]], ...] = ()  # with their topics
    finished: tuple[Intent, ...] = ()  # commits that a crash had interrupted, now done


@dataclass(frozen=True, slots=True)
class PieceAt:
    """A piece where it is staged."""

    attempt: StagedAttempt
    number: int
    topic: str
    count: int
    size: int


# -- what the core asks for -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Remember:
    """Make the state of a sink durable, but for ``batch`` and ``ends``, which only a commit changes."""

    state: SinkState


@dataclass(frozen=True, slots=True)
class Forget:
    """Remove sinks."""

    sinks: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class StagePiece:
    """Keep a piece; nothing happens if it is there already. It survives the process, not the machine.

    Raises StagedRowsMissing if a piece before it is not there.
    """

    attempt: StagedAttempt
    number: int
    topic: str
    count: int
    body: bytes


@dataclass(frozen=True, slots=True)
class Discard:
    """Remove what attempts have staged; those that have nothing are ignored."""

    attempts: tuple[StagedAttempt, ...]


@dataclass(frozen=True, slots=True)
class CommitBatch:
    """Commit.

    ``attempts`` are task, attempt, pieces and rows in the order of their records; ``bases`` are topic, partition and
    the offset of the first record there.
    """

    sink: str
    run: str
    batch: int
    attempts: tuple[tuple[int, int, int, int], ...]
    bases: tuple[tuple[str, str, int], ...]


Step: TypeAlias = Remember | Forget | StagePiece | Discard
Job: TypeAlias = Step | CommitBatch


@dataclass(frozen=True, slots=True)
class SinkJob:
    """A job of a store's disk for an exactly-once sink; it comes to the intent of a commit, an error, or None.

    A commit that fails before its commit point is reported as failed; after it, it is tried again until it succeeds,
    and nothing else is written meanwhile. Its records are published in one go.
    """

    ticket: int
    job: Job


class StagedStorage(Protocol):
    """See the module's text. Every method raises StorageError, StorageFull where there is no room."""

    def kept(self) -> KeptSinks:
        """Everything there is."""

    def carry_out(self, job: Step) -> None:
        """Do a job that is one step."""

    def prepare(self, commit: CommitBatch) -> Intent:
        """Check the pieces, make them durable, and then the intent.

        Raises StagedRowsMissing if one is not there, or not whole. If this raises, nothing is committed.
        """

    def pending(self) -> list[Intent]:
        """Intents that are not completed."""

    def places(self, intent: Intent) -> Sequence[PieceAt]:
        """The pieces of an intent in the order of their records."""

    def read(self, piece: PieceAt) -> bytes:
        """The batch of a piece, unchecked. Raises Damaged if it is not there."""

    def complete(self, intent: Intent) -> None:
        """Note durably that the batch is committed; the intent is no longer pending."""

    def close(self) -> None:
        """Release everything."""


def check_pieces(commit: CommitBatch, attempt: tuple[int, int, int, int], counts: Sequence[int] | None) -> None:
    """Raise StagedRowsMissing unless ``counts``, the records of each piece there is, are what a commit names."""
    task, number, pieces, rows = attempt
    found = counts or ()
    if len(found) != pieces or sum(found) != rows:
        raise StagedRowsMissing(
            f"of task {task}, attempt {number} of batch {commit.batch} {len(found)} pieces with {sum(found)} rows are "
            f"here, {pieces} with {rows} were to be committed; run the batch again"
        )


def decide(commit: CommitBatch, pieces: Sequence[PieceAt]) -> Intent:
    """The intent of a commit whose pieces are all there."""
    ends = {topic: base for topic, _, base in commit.bases}
    for piece in pieces:
        ends[piece.topic] += piece.count
    ranges = tuple((topic, part, base, ends[topic]) for topic, part, base in commit.bases if ends[topic] > base)
    attempts = tuple((task, attempt, count) for task, attempt, count, _ in commit.attempts)
    return Intent(commit.sink, commit.run, commit.batch, attempts, ranges)


def with_batch(state: SinkState, intent: Intent) -> SinkState:
    """The state of a sink after a commit."""
    ends = dict(state.ends) | {topic: next_ for topic, _, _, next_ in intent.ranges}
    return replace(state, batch=intent.batch, ends=tuple(ends.items()))


@dataclass(slots=True)
class _Rows:
    """What an attempt has staged; the first ``synced`` pieces survive the machine."""

    pieces: list[StagePiece] = field(default_factory=list)
    synced: int = 0


class MemoryStaged:
    """The port in memory, for the simulator and for tests: the object is the disk and outlives a crash.

    Pieces beyond ``capacity_bytes``, which may be changed, are refused.
    """

    def __init__(self, capacity_bytes: int | None = None) -> None:
        self.capacity_bytes = capacity_bytes
        self.full = False  # refuses everything that takes room
        self.sinks: dict[str, SinkState] = {}
        self.rows: dict[StagedAttempt, _Rows] = {}
        self.intents: dict[str, Intent] = {}

    def kept(self) -> KeptSinks:
        attempts = ((key, tuple(dict.fromkeys(each.topic for each in rows.pieces))) for key, rows in self.rows.items())
        return KeptSinks(tuple(self.sinks.values()), tuple(attempts))

    def carry_out(self, job: Step) -> None:
        match job:
            case Remember(state):
                self._need(0)
                known = self.sinks.get(state.sink)
                self.sinks[state.sink] = replace(state, batch=known.batch, ends=known.ends) if known else state
            case Forget(sinks):
                for sink in sinks:
                    self.sinks.pop(sink, None)
            case Discard(attempts):
                for attempt in attempts:
                    self.rows.pop(attempt, None)
            case StagePiece():
                rows = self.rows.get(job.attempt) or _Rows()
                if job.number > len(rows.pieces):
                    raise StagedRowsMissing(f"piece {len(rows.pieces)} is not here; run the task again")
                if job.number == len(rows.pieces):
                    self._need(len(job.body))
                    rows.pieces.append(job)
                    self.rows[job.attempt] = rows

    def prepare(self, commit: CommitBatch) -> Intent:
        chosen: list[_Rows] = []
        for named in commit.attempts:
            key = StagedAttempt(commit.sink, commit.run, commit.batch, named[0], named[1])
            rows = self.rows.get(key)
            check_pieces(commit, named, [each.count for each in rows.pieces] if rows else None)
            chosen += [rows] if rows else []
        self._need(sum(len(piece.body) for rows in chosen for piece in rows.pieces))
        for rows in chosen:
            rows.synced = len(rows.pieces)
        intent = decide(commit, [_place(piece) for rows in chosen for piece in rows.pieces])
        self.intents[commit.sink] = intent
        return intent

    def pending(self) -> list[Intent]:
        return list(self.intents.values())

    def places(self, intent: Intent) -> Sequence[PieceAt]:
        keys = [StagedAttempt(intent.sink, intent.run, intent.batch, task, each) for task, each, _ in intent.attempts]
        return [_place(piece) for key in keys if key in self.rows for piece in self.rows[key].pieces]

    def read(self, piece: PieceAt) -> bytes:
        return self.rows[piece.attempt].pieces[piece.number].body

    def complete(self, intent: Intent) -> None:
        self._need(0)
        self.sinks[intent.sink] = with_batch(self.sinks[intent.sink], intent)
        del self.intents[intent.sink]

    def close(self) -> None:
        """Nothing: the object is the disk."""

    def crash(self, survivors: Mapping[StagedAttempt, int]) -> None:
        """As after a power cut: of each attempt so many pieces are left, but all that were made durable."""
        for key, rows in list(self.rows.items()):
            del rows.pieces[max(rows.synced, survivors.get(key, 0)) :]
            if not rows.pieces:
                del self.rows[key]

    def _need(self, size: int) -> None:
        kept = sum(len(piece.body) for rows in self.rows.values() for piece in rows.pieces)
        if self.full or (self.capacity_bytes is not None and kept + size > self.capacity_bytes):
            raise StorageFull("the memory given to staged rows is full; nothing of this is kept")


def _place(piece: StagePiece) -> PieceAt:
    return PieceAt(piece.attempt, piece.number, piece.topic, piece.count, len(piece.body))
