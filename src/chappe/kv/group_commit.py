"""Group commit: what a master has done in memory, and how much of it its backend has made durable.

Operations change the engine at once and wait here until they are durable; only then is anybody told. Operations that
come while a commit is under way go into the next one. If a commit fails, it is undone together with all that came
after it, which was built on it.

Of several changes of one key a commit holds the last. A container that grows is encoded when it is committed and not
with every member, so that n insertions into one set cost as many encodings of it as there are commits.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence, Set
from typing import Generic, Protocol, TypeAlias, TypeVar

from chappe.compiled import Frozen
from chappe.data.binary import encode
from chappe.kv.backend import ClearRows, Commit, EraseRow, ForgetWriter, Operation, PutRow, WriterRow
from chappe.kv.commands import Mutation as Command
from chappe.kv.commands import Told
from chappe.kv.engine import Change, Engine, Index, index_of
from chappe.kv.entity import Entity
from chappe.limits import KvLimits


class Undurable(Protocol):
    """An operation as it was done in memory, and its writer."""

    @property
    def changes(self) -> tuple[Change, ...]: ...

    @property
    def writer(self) -> Entity | None: ...

    @property
    def seq(self) -> int: ...

    @property
    def clears(self) -> bool: ...


T = TypeVar("T", bound=Undurable)


class DoneOperation(Frozen, frozen=True):
    """One operation of a master as it was done: what to tell when it is durable."""

    command: Command
    changes: tuple[Change, ...]
    broadcast: tuple[Told, ...]
    result: object  # for the caller: None, True or False, or the exception
    ticket: int | None = None
    writer: Entity | None = None
    seq: int = 0
    revision: int = 0  # the number of its first event
    at_ns: int = 0  # the time of day when it was done

    @property
    def clears(self) -> bool:
        return len(self.changes) > 1 and all(change.kind == "erase" for change in self.changes)


Row: TypeAlias = PutRow | EraseRow | ClearRows | Change  # a change is encoded when it is committed
RowOf: TypeAlias = Callable[[Entity], WriterRow | None]


class Committing(Generic[T]):
    def __init__(self, limits: KvLimits) -> None:
        self._limits = limits
        self._waiting: deque[tuple[T, tuple[Row, ...], int]] = deque()
        self._growing: set[Index] = set()  # containers that are counted since the last commit began
        self._under_way: list[T] = []
        self._number = 0
        self._added = 0
        self._waiting_bytes = 0
        self._forgotten: list[ForgetWriter] = []  # of whom nothing is to be kept any more
        self._leaving: list[ForgetWriter] = []  # of them, those that went with the commit under way

    @property
    def count(self) -> int:
        return len(self._waiting) + len(self._under_way)

    @property
    def added(self) -> int:
        return self._added

    @property
    def settled(self) -> int:
        return self._added - self.count

    @property
    def under_way(self) -> Sequence[T]:
        return self._under_way

    @property
    def full(self) -> bool:
        """True if two commits' worth of operations wait, so that no more should come."""
        limits = self._limits
        return len(self._waiting) >= 2 * limits.commit_operations or self._waiting_bytes >= 2 * limits.commit_bytes

    def beyond(self, count: int, size: int) -> bool:
        return self.count > count or self._waiting_bytes > size

    def changes(self) -> list[Change]:
        """Return all changes that are not durable, in order."""
        dones = [*self._under_way, *(each[0] for each in self._waiting)]
        return [change for done in dones for change in done.changes]

    def add(self, done: T) -> None:
        rows, size = self._rows(done)
        self._waiting.append((done, rows, size))
        self._added += 1
        self._waiting_bytes += size

    def forget(self, entity: Entity) -> None:
        self._forgotten.append(ForgetWriter(entity))

    def remember(self, entities: Set[Entity]) -> None:
        self._forgotten = [each for each in self._forgotten if each.entity not in entities]

    def start(self, row_of: RowOf) -> Commit | None:
        """Return the next commit, unless one is under way or nothing waits. ``row_of`` returns the outcomes of a clone
        that writes, None if it is forgotten: they go with the clone's writes.
        """
        if self._under_way or not self._waiting:
            return None
        self._leaving, self._forgotten = self._forgotten, []
        operations: list[Operation] = list(self._leaving)
        gathered: list[Row] = []
        size = 0
        limits = self._limits
        touched: dict[Entity, int] = {}
        self._growing.clear()
        while self._waiting and len(gathered) < limits.commit_operations and size < limits.commit_bytes:
            done, rows, row_bytes = self._waiting.popleft()
            self._under_way.append(done)
            gathered += rows
            size += row_bytes
            self._waiting_bytes -= row_bytes
            if done.writer is not None:
                touched[done.writer] = done.seq
        operations += _last_of_each(gathered)
        for entity, seq in touched.items():
            row = row_of(entity)
            if row is not None:
                outcomes = tuple(each for each in row.outcomes if each[0] <= seq)
                operations.append(WriterRow(entity, seq, outcomes, row.heard_ns))
        self._number += 1
        return Commit(self._number, tuple(operations))

    def committed(self, number: int) -> list[T]:
        """Note that a commit is durable; return the operations that can be told now."""
        assert number == self._number
        self._leaving = []
        done, self._under_way = self._under_way, []
        return done

    def failed(self, number: int, engine: Engine) -> list[T]:
        """Undo a refused commit and all after it in the engine, and return them."""
        assert number == self._number
        self._forgotten = self._leaving + self._forgotten
        self._leaving = []
        waiting = self.drop_waiting(engine)
        return self.end(engine, kept=False) + waiting

    def drop_waiting(self, engine: Engine) -> list[T]:
        """Undo in the engine the operations that no commit has taken yet, and return them."""
        undone = [each[0] for each in self._waiting]
        _revert(undone, engine)
        self._waiting.clear()
        self._waiting_bytes = 0
        return undone

    def end(self, engine: Engine, kept: bool) -> list[T]:
        """Return the operations of the commit under way, which nothing follows; unless ``kept`` undo them."""
        assert not self._waiting
        ended, self._under_way = self._under_way, []
        if not kept:
            _revert(ended, engine)
        return ended

    def _rows(self, done: T) -> tuple[tuple[Row, ...], int]:
        if done.clears:
            return (ClearRows(),), 0
        rows: list[Row] = []
        size = 0
        for change in done.changes:
            if change.entry is not None and change.entry.weight is not None:
                index = index_of(change.key)
                if index not in self._growing:
                    self._growing.add(index)
                    size += change.entry.weight.size
                rows.append(change)
                continue
            row = _encoded(change)
            rows.append(row)
            size += len(row.key) + (len(row.value) if isinstance(row, PutRow) else 0)
        return tuple(rows), size


def _revert(dones: Sequence[Undurable], engine: Engine) -> None:
    for done in reversed(dones):
        for change in reversed(done.changes):
            engine.revert(change)


def _encoded(change: Change) -> PutRow | EraseRow:
    key = encode(change.key)
    return EraseRow(key) if change.entry is None else PutRow(key, encode(change.entry.value), change.entry.expires_ns)


def _last_of_each(rows: list[Row]) -> list[Operation]:
    """Return the rows without those that a later one makes void."""
    last: dict[bytes, Row] = {}
    cleared = False
    for row in rows:
        if isinstance(row, ClearRows):
            last.clear()
            cleared = True
            continue
        key = encode(row.key) if isinstance(row, Change) else row.key
        last.pop(key, None)
        last[key] = row
    found: list[Operation] = [ClearRows()] if cleared else []
    for row in last.values():
        assert not isinstance(row, ClearRows)
        found.append(_encoded(row) if isinstance(row, Change) else row)
    return found
