"""The port for staged rows: what the home of a sink keeps on disk before and while a batch is committed.

A commit is a redo log. ``StagedStorage.prepare`` looks at the named pieces, makes them durable, and writes an intent:
that is the commit point. ``Finishing`` then appends the pieces to the log storage, at the offsets that the intent
names, and completes the intent. After a crash ``recover`` does the rest before the store answers anything: pieces that
were appended already are left out, so the batch is there exactly once.

Everything but ``kept`` runs on the thread that writes.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Protocol, TypeAlias

from chappe.errors import Damaged, ProtocolError, StagedRowsMissing
from chappe.limits import LOG_LIMITS, LogLimits
from chappe.log.batch import Batch, rebase
from chappe.log.storage import AppendRecords, LogStorage


@dataclass(frozen=True, slots=True)
class StagedAttempt:
    sink: str
    run: str
    batch: int
    task: int
    attempt: int


@dataclass(frozen=True, slots=True)
class SinkState:
    """A sink as its store knows it: all of it is durable.

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
    """A commit that is decided: which pieces, and at which offsets. ``attempts`` are task, attempt and number of
    pieces, in the order of their records; ``ranges`` are topic, partition, first offset and the one after the last.
    """

    sink: str
    run: str
    batch: int
    attempts: tuple[tuple[int, int, int], ...]
    ranges: tuple[tuple[str, str, int, int], ...]


@dataclass(frozen=True, slots=True)
class KeptSinks:
    """The sinks, intents and rows that a store found when it opened."""

    sinks: tuple[SinkState, ...] = ()
    attempts: tuple[tuple[StagedAttempt, tuple[str, ...]], ...] = ()  # with their topics
    finished: tuple[Intent, ...] = ()  # commits that a crash had interrupted, now done


@dataclass(frozen=True, slots=True)
class PieceAt:
    attempt: StagedAttempt
    number: int
    topic: str
    count: int
    size: int


# -- what the core asks for -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Remember:
    """Make the state of a sink durable, except ``batch`` and ``ends``, which only a commit changes."""

    state: SinkState


@dataclass(frozen=True, slots=True)
class Forget:
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
    """``attempts``: task, attempt, pieces, rows, in order of records; ``bases``: topic, partition, first offset."""

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
    """The disk of a sink's home. Every method raises StorageError, StorageFull where there is no room."""

    def kept(self) -> KeptSinks: ...

    def carry_out(self, job: Step) -> None: ...

    def prepare(self, commit: CommitBatch) -> Intent:
        """Make the pieces durable, then the intent; if this raises nothing is committed. Raises StagedRowsMissing."""

    def pending(self) -> list[Intent]:
        """Intents that are not completed."""

    def places(self, intent: Intent) -> Sequence[PieceAt]:
        """The pieces of an intent in the order of their records."""

    def read(self, piece: PieceAt) -> bytes:
        """The batch of a piece, unchecked. Raises Damaged if it is not there."""

    def complete(self, intent: Intent) -> None:
        """Note durably that the batch is committed; the intent is no longer pending."""

    def close(self) -> None: ...


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
    """Return the intent of a commit whose pieces are all there."""
    ends = {topic: base for topic, _, base in commit.bases}
    for piece in pieces:
        ends[piece.topic] += piece.count
    ranges = tuple((topic, part, base, ends[topic]) for topic, part, base in commit.bases if ends[topic] > base)
    attempts = tuple((task, attempt, count) for task, attempt, count, _ in commit.attempts)
    return Intent(commit.sink, commit.run, commit.batch, attempts, ranges)


def with_batch(state: SinkState, intent: Intent) -> SinkState:
    ends = dict(state.ends) | {topic: next_ for topic, _, _, next_ in intent.ranges}
    return replace(state, batch=intent.batch, ends=tuple(ends.items()))


logger: Final = logging.getLogger(__name__)


class Finishing:
    """The work that is left for an intent after the commit point, step by step.

    ``have``: the offset after the last record that the log has of each topic's partition; earlier records are left out.
    """

    def __init__(
        self,
        staged: StagedStorage,
        storage: LogStorage,
        intent: Intent,
        have: Mapping[str, int] | None = None,
        limits: LogLimits = LOG_LIMITS,
    ) -> None:
        self._chunk_bytes = limits.commit_chunk_bytes
        self.intent = intent
        self.written: list[object] = []  # to be published in this order, in one go
        self.done = False
        self._staged = staged
        self._storage = storage
        self._have = have or {}
        self._places = staged.places(intent)
        self._at = 0
        self._offsets = {topic: first for topic, _, first, _ in intent.ranges}
        self._partitions = {topic: partition for topic, partition, _, _ in intent.ranges}
        self._chunk: list[AppendRecords] = []

    def step(self) -> None:
        """Append the next chunk or, behind the last, complete the intent. Raises StorageError: to be tried again."""
        chunk = self.next_chunk()
        if chunk:
            self.written.append(self._storage.write(chunk))
            self._chunk = []
            return
        self._staged.complete(self.intent)
        self.done = True

    def next_chunk(self) -> Sequence[AppendRecords]:
        """Return what the next step appends; nothing if all is appended."""
        if self._chunk:
            return self._chunk  # it was refused
        size = 0
        while self._at < len(self._places):
            piece = self._places[self._at]
            base = self._offsets[piece.topic]
            if base + piece.count > self._have.get(piece.topic, 0):
                if self._chunk and size + piece.size > self._chunk_bytes:
                    break
                self._add(piece, base)
                size += piece.size
            self._offsets[piece.topic] = base + piece.count
            self._at += 1
        return self._chunk

    def _add(self, piece: PieceAt, base: int) -> None:
        try:
            body = rebase(self._staged.read(piece), base)
        except (Damaged, ProtocolError) as error:
            # Decided is decided: what comes behind keeps its offsets, and the hole is found as any other damage is.
            logger.error("offsets %d to %d of topic %r are lost: %s", base, base + piece.count - 1, piece.topic, error)
            return
        batch = Batch.parse(body, check=False)
        partition = self._partitions[piece.topic]
        self._chunk.append(
            AppendRecords(piece.topic, partition, base, batch.count, batch.timestamp_min, batch.timestamp_max, body)
        )


def recover(staged: StagedStorage, storage: LogStorage, limits: LogLimits = LOG_LIMITS) -> KeptSinks:
    """Finish what a crash interrupted, before the store answers; return what is kept. Raises StorageError: repeat."""
    finished: list[Intent] = []
    for intent in staged.pending():
        have: dict[str, int] = {}
        for topic, partition, _, _ in intent.ranges:
            info = storage.partition(topic, partition)
            have[topic] = 0 if info is None else info.next
        finishing = Finishing(staged, storage, intent, have, limits)
        try:
            while not finishing.done:
                finishing.step()
        finally:
            for written in finishing.written:
                storage.publish(written)
        finished.append(intent)
    return replace(staged.kept(), finished=tuple(finished))
