"""The home of exactly-once queries on a chain: who may write, what is staged, and which batch was committed last.

It is a part of the machine of ordered topics, so all of it is at every member, and a query goes on whichever of them
die. A run of a query begins first, and fences all earlier ones. Its tasks stage their rows, as many attempts of a task
as there are; a commit names one attempt for each, and the machine puts exactly their rows where their partitions end,
in one step. A batch that is committed is not committed again, whatever is asked: each command may be repeated.

Staged rows are in the memory of all members, so they are bounded for all queries of a chain together. They go when
their batch or a later one is committed, when another run begins, and when their query was silent for long, by the times
that the head of the chain wrote beside the commands.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from chappe.defaults import KIB, MIB, SINKS_MAX
from chappe.errors import ProtocolError
from chappe.log.batch import Batch
from chappe.log.ordered.commands import (
    Answer,
    BeginRun,
    Begun,
    CommitRows,
    Committed,
    DropRows,
    Fences,
    Full,
    Missing,
    Refused,
    Repeats,
    Staged,
    StageRows,
)

STAGED_BYTES_MAX: Final = 128 * MIB  # staged rows of all queries of a chain, in the memory of each member
PIECE_BYTES: Final = KIB  # what a piece counts beside its rows
STAGED_FORGET_S: Final = 3600.0  # staged rows of a query that was silent for so long go, and a write that need not last
ROOM_FORGET_S: Final = 300.0  # ... of one that was silent for so long go when there is no room for those of another
FENCED_MAX: Final = 100  # earlier runs of a sink that are remembered
ORIGINS_MAX: Final = 2 * SINKS_MAX  # what is remembered of queries that began; the oldest go first

Attempt = tuple[int, int, int]  # batch, task, number


class ChainPiece(msgspec.Struct, frozen=True, array_like=True):
    """Rows of one attempt for one partition, as a batch; they are placed when they are committed."""

    topic: bytes
    partition: int
    rows: int
    body: bytes


class _ChainSink(msgspec.Struct, array_like=True):
    run: str
    fenced: list[str]  # earlier runs, oldest first
    batch: int  # committed
    lasting: bool
    touched_us: int


class Snapshot(msgspec.Struct, frozen=True, array_like=True):
    """The whole state, equal for equal states.

    Args:
        sinks: By name, least recently used first, each with its staged rows.
        origins: By name, oldest first, each with the query that wrote last.
    """

    sinks: list[tuple[str, _ChainSink, list[tuple[Attempt, list[ChainPiece]]]]]
    origins: list[tuple[str, str]]


class Homes:
    """The sinks of a chain. ``now_us`` is the time of the command that is being done.

    Args:
        has: Whether there is such a partition of such a topic.
        staged_bytes_max: The bound of all staged rows.
    """

    def __init__(self, has: Callable[[bytes, int], bool], staged_bytes_max: int = STAGED_BYTES_MAX) -> None:
        self._has = has
        self._bytes_max = staged_bytes_max
        self._sinks: dict[str, _ChainSink] = {}  # least recently used first
        self._staged: dict[str, dict[Attempt, list[ChainPiece]]] = {}  # by sink
        self._origins: dict[str, str] = {}  # the query that wrote last of each, oldest first
        self.bytes = 0  # staged

    def snapshot(self) -> Snapshot:
        sinks = [(name, sink, list(self._staged.get(name, {}).items())) for name, sink in self._sinks.items()]
        return Snapshot(sinks, list(self._origins.items()))

    def restore(self, state: Snapshot) -> None:
        self._sinks, self._origins = {name: sink for name, sink, _ in state.sinks}, dict(state.origins)
        self._staged = {name: dict(staged) for name, _, staged in state.sinks if staged}
        self.bytes = sum(_size(piece) for each in self._staged.values() for pieces in each.values() for piece in pieces)

    def begin(self, command: BeginRun, now_us: int) -> Answer:
        self._sweep(now_us)
        sink = self._sinks.get(command.sink)
        if sink is None:
            self._forget(now_us)
            refusal = self._refusal(command)
            if refusal is not None:
                return refusal
            sink = self._sinks[command.sink] = _ChainSink(command.run, [], -1, command.lasting, now_us)
            for origin in command.origins:
                self._origins.pop(origin, None)
        elif command.run in sink.fenced:
            return Fences(sink.run)
        elif command.run != sink.run:
            sink.fenced = [*sink.fenced, sink.run][-FENCED_MAX:]
            sink.run = command.run
            self._let_go(command.sink)
        sink.lasting = sink.lasting or command.lasting
        for origin in command.origins:
            self._origins.setdefault(origin, command.sink)
        while len(self._origins) > ORIGINS_MAX:
            del self._origins[next(iter(self._origins))]
        self._touch(command.sink, sink, now_us)
        return Begun(sink.batch)

    def stage(self, command: StageRows, now_us: int) -> Answer:
        """Keep a piece, unless it is there or its batch is committed."""
        sink = self._current(command, now_us)
        if isinstance(sink, Fences):
            return sink
        if command.batch <= sink.batch:
            return Staged()
        attempt = (command.batch, command.task, command.attempt)
        pieces = self._staged.get(command.sink, {}).get(attempt, [])
        if command.piece < len(pieces):
            return Staged()
        if command.piece > len(pieces):
            return Missing(f"piece {len(pieces)} of task {command.task} is not here; run the task again")
        if not self._has(command.topic, command.partition):
            return Refused(
                f"there is no partition {command.partition} of topic {command.topic.decode(errors='replace')!r}"
            )
        try:
            batch = Batch.parse(command.body)
        except ProtocolError as error:
            return Refused(f"the rows are damaged: {error}")
        if batch.sealed is not None:
            return Refused("the rows are sealed, and a sealed topic cannot be ordered")
        piece = ChainPiece(command.topic, command.partition, batch.count, command.body)
        if not self._room(command.sink, _size(piece), now_us):
            return Full(
                f"queries have {self.bytes:,} bytes of rows staged at this chain, of {self._bytes_max:,} that are "
                "possible: make batches smaller, or run fewer queries at once"
            )
        self._staged.setdefault(command.sink, {}).setdefault(attempt, []).append(piece)
        self.bytes += _size(piece)
        return Staged()

    def commit(self, command: CommitRows, now_us: int) -> list[ChainPiece] | Answer:
        """Return the pieces of a batch in the order of their rows, to be placed before ``committed``; or why not."""
        sink = self._current(command, now_us)
        if isinstance(sink, Fences):
            return sink
        if command.batch <= sink.batch:
            return Committed(True)
        if len({task for task, *_ in command.attempts}) < len(command.attempts):
            return Refused(f"batch {command.batch} names a task twice")
        staged = self._staged.get(command.sink, {})
        found: list[ChainPiece] = []
        for task, attempt, pieces, rows in sorted(command.attempts):
            here = staged.get((command.batch, task, attempt), [])
            if len(here) != pieces or sum([each.rows for each in here]) != rows:
                return Missing(
                    f"of task {task}, attempt {attempt} of batch {command.batch} {len(here)} pieces are staged, "
                    f"{pieces} with {rows} rows were to be committed; run the batch again"
                )
            found += here
        return found

    def committed(self, command: CommitRows) -> Answer:
        """Note that the rows are placed: nothing of this batch, or of one before it, is needed any more."""
        self._sinks[command.sink].batch = command.batch
        for attempt in [each for each in self._staged.get(command.sink, {}) if each[0] <= command.batch]:
            self._discard(command.sink, attempt)
        return Committed(False)

    def drop(self, command: DropRows, now_us: int) -> Answer:
        sink = self._current(command, now_us)
        if isinstance(sink, Fences):
            return sink
        self._discard(command.sink, (command.batch, command.task, command.attempt))
        return Staged()

    # -- parts ------------------------------------------------------------------------------------------------

    def _refusal(self, command: BeginRun) -> Answer | None:
        if command.batch > 0:
            return Refused(
                f"this chain keeps no commits of this query, which is at batch {command.batch} already: name the "
                "chain or the stores that do, or begin with a new checkpoint"
            )
        for place, origin in enumerate(command.origins):
            query = self._origins.get(origin, "")
            before = self._sinks.get(query)
            if before is not None and before.batch >= 0 and query not in (command.sink, command.again):
                return Repeats(place, query, before.batch + 1)
        if len(self._sinks) >= SINKS_MAX:
            return Refused(f"this chain knows {SINKS_MAX:,} queries, which is the most; choose another one")
        return None

    def _current(self, command: StageRows | CommitRows | DropRows, now_us: int) -> _ChainSink | Fences:
        self._sweep(now_us)
        sink = self._sinks.get(command.sink)
        if sink is None or sink.run != command.run:
            return Fences("" if sink is None else sink.run)
        self._touch(command.sink, sink, now_us)
        return sink

    def _touch(self, name: str, sink: _ChainSink, now_us: int) -> None:
        sink.touched_us = now_us
        self._sinks[name] = self._sinks.pop(name)

    def _discard(self, name: str, attempt: Attempt) -> None:
        staged = self._staged.get(name, {})
        self.bytes -= sum([_size(each) for each in staged.pop(attempt, [])])
        if not staged:
            self._staged.pop(name, None)

    def _let_go(self, name: str) -> None:
        for attempt in list(self._staged.get(name, {})):
            self._discard(name, attempt)

    def _sweep(self, now_us: int) -> None:
        """Drop staged rows of sinks that were silent for long."""
        silent = now_us - int(STAGED_FORGET_S * 1_000_000)
        for name in [each for each in self._staged if self._sinks[each].touched_us <= silent]:
            self._let_go(name)

    def _forget(self, now_us: int) -> None:
        """Forget sinks that need not last, once their rows are gone."""
        silent = now_us - int(STAGED_FORGET_S * 1_000_000)
        for name in [name for name, each in self._sinks.items() if not each.lasting and each.touched_us <= silent]:
            del self._sinks[name]

    def _room(self, name: str, size: int, now_us: int) -> bool:
        """Return True if there is room, or others that were silent for a while could be made to give some."""
        if self.bytes + size <= self._bytes_max:
            return True
        silent = now_us - int(ROOM_FORGET_S * 1_000_000)
        others = [each for each in self._sinks if each != name and each in self._staged]  # least recently used first
        for other in others:
            if self.bytes + size <= self._bytes_max or self._sinks[other].touched_us > silent:
                break
            self._let_go(other)
        return self.bytes + size <= self._bytes_max


def _size(piece: ChainPiece) -> int:
    return PIECE_BYTES + len(piece.body)
