"""Staged rows in memory: the port that a store's home of sinks has for its disk."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from chappe.errors import StagedRowsMissing, StorageFull
from chappe.log.exactly_once.staged import (
    CommitBatch,
    Discard,
    Forget,
    Intent,
    KeptSinks,
    PieceAt,
    Remember,
    SinkState,
    StagedAttempt,
    StagePiece,
    Step,
    check_pieces,
    decide,
    with_batch,
)


@dataclass(slots=True)
class _Rows:
    """The rows that an attempt has staged; the first ``synced`` pieces survive the machine."""

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
        """Simulate a power cut: of each attempt so many pieces are left, and all that were made durable."""
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
