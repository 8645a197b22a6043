"""A master's writes, its own and those of clones, in the one order that everybody sees.

Each is done in memory at once. Without a backend it is told at once; with one it is told when it is durable, or undone
if it cannot be.

As the original: what add and subtract result in is told as a put of the resulting value, a put_unique that inserted as
a put and the answer to the asker. An original waits for that answer; a clone of chappe is told otherwise. What is done
to a string or a container is told as it is where no original listens: n insertions into one set would cost n*n/2
members.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, TypeAlias

import msgspec

from chappe.core import Clock, Effect, Persist, Report, Resolve
from chappe.data.binary import decode
from chappe.data.values import Value
from chappe.defaults import DISK_RETRY_S, STORE_ENTRY_BYTES_MAX
from chappe.errors import (
    BackendFailure,
    InvalidOperation,
    RecordTooLarge,
    StorageError,
    StoreError,
    WriteUnknown,
    WrongRevision,
)
from chappe.kv import commands as cmd
from chappe.kv.backend import Commit, HistoryRow, Operation
from chappe.kv.clone_writes import wrong_revision
from chappe.kv.engine import Change, Engine, Entry, index_of
from chappe.kv.entity import NOBODY, Entity
from chappe.kv.events import CommitFailed
from chappe.kv.followers import NS, CloneWriter, Followers, Writers
from chappe.kv.group_commit import Committing, DoneOperation
from chappe.kv.history import KeyHistory
from chappe.kv.operations import CONTAINERS, entry_fits
from chappe.kv.recent import EventNumbers, Recent
from chappe.kv.role import Notices
from chappe.kv.snapshots import SnapshotChanges
from chappe.limits import KvLimits

# Changes, what is told to the clones, and the result: None, or whether a put_unique inserted.
Executed: TypeAlias = tuple[tuple[Change, ...], tuple[cmd.Told, ...], object]
_GROWING: Final = CONTAINERS | {str, bytes}
_NS_MAX: Final = 2**63 - 1
_TOO_LARGE: Final = f"key and value have more than {STORE_ENTRY_BYTES_MAX:,} bytes"


class Ordering:
    """Does writes, makes them durable, and tells all who are to know.

    Args:
        durable: Whether there is a backend, to be asked by ``Commit``.
        recent: The latest changes, if those are remembered.
        numbers: Of events, where the backend keeps how far they have come.
        history: The latest changes of each key.
    """

    def __init__(
        self, name: str, entity: Entity, engine: Engine, writers: Writers, followers: Followers, notices: Notices,
        limits: KvLimits, *, now: float, clock: Clock, durable: bool, recent: Recent | None,
        numbers: EventNumbers | None, history: KeyHistory,
    ) -> None:  # fmt: skip
        self.notices = notices
        self._clock = clock
        self.durable = durable
        self._name = name
        self._entity = entity
        self._engine = engine
        self.commits: Committing[DoneOperation] = Committing(limits)
        self._writers = writers
        self._followers = followers
        self._recent = recent
        self._numbers = numbers
        self._history = history
        self._adding: list[HistoryRow] = []  # to the history, by the commit that is under way ...
        self._leaving: list[Operation] = []  # ... and what that removes there
        self._planned = followers.output.seq  # the number of the last event, with those that are not told yet
        self._expire_from = now  # not before, since the disk was full
        self.expire_at = -math.inf  # then ``expire`` is due; infinity while no entry expires

    def frozen(self) -> list[Entry]:
        """Return all durable entries, as they are now and stay."""
        return self._engine.frozen(self.commits.changes())

    def since(self, master: Entity, event: int) -> SnapshotChanges | None:
        """Return the durable entries that may differ from a master's state behind its ``event``; None if unknown."""
        found = None if self._recent is None else self._recent.since(master, event)
        if found is None:
            return None
        before = {index_of(change.key): change.before for change in reversed(self.commits.changes())}
        entries: list[Entry] = []
        gone: list[Entry] = []
        for raw in found[1]:
            key = decode(raw)
            index = index_of(key)
            entry = before[index] if index in before else self._engine.entries.get(index)
            if entry is None:
                gone.append(Entry(key, None, None, 0))
            else:
                entries.append(entry)
        return SnapshotChanges(found[0], [*entries, *gone], len(gone))

    @property
    def next_position(self) -> int:
        """The last event of clones behind the commit under way."""
        return self._followers.output.seq + sum([len(done.broadcast) for done in self.commits.under_way])

    # -- writes -----------------------------------------------------------------------------------------------------

    def do(self, command: cmd.Mutation, ticket: int | None, now: float) -> list[Effect]:
        """Do a write of the master's own; raises StoreError or RecordTooLarge, and then nothing was done."""
        if not _fits(command):
            raise RecordTooLarge(_TOO_LARGE)
        actions: list[Effect] = []
        expired = self._due(now)
        try:
            changes, broadcast, result = self._execute(command)
        except StoreError:
            for change in reversed(expired):  # who hears of the error hears of nothing else: it expires a moment later
                self._engine.revert(change)
            raise
        self._expired(expired, now, actions)
        revision = self._planned + 1
        self._finish(
            DoneOperation(command, changes, broadcast, result, ticket, None, 0, revision, self._clock.wall_ns()),
            now,
            actions,
        )
        self.start_commit(actions)
        return actions

    def put_alone(self, key: Value, value: Value, now: float) -> list[Effect]:
        """Do a put of which nobody needs to be told."""
        if not entry_fits(key, value):
            raise RecordTooLarge(_TOO_LARGE)
        actions: list[Effect] = []
        self.expire(now, actions)
        change = self._engine.put(key, value)
        self._planned += 1
        assert change.entry is not None
        change.entry.revision = self._planned
        self._followers.output.pass_over(1)
        return actions

    def do_for(self, writer: CloneWriter, seq: int, command: cmd.Mutation, now: float, actions: list[Effect]) -> None:
        """Do the write ``seq`` of a clone; a failure is an outcome for the clone."""
        self.expire(now, actions)
        revision = self._planned + 1
        writer.taken = seq
        writer.heard_ns = self._clock.wall_ns()
        try:
            if not _fits(command):
                raise InvalidOperation(_TOO_LARGE)
            changes, broadcast, result = self._execute(command)
            done = DoneOperation(
                command, changes, broadcast, result, None, writer.entity, seq, revision, self._clock.wall_ns()
            )
            self._outcome(done, None)
        except StoreError as problem:
            told: tuple[cmd.Mutation, ...] = ()
            if isinstance(command, cmd.PutUnique) and command.who != NOBODY:
                told = (cmd.PutUniqueResult(False, command.who, command.request, self._entity),)
            done = DoneOperation(command, (), told, problem, None, writer.entity, seq)
            self._outcome(done, problem)
        self._finish(done, now, actions)

    def expire(self, now: float, actions: list[Effect]) -> None:
        if self.expire_at == math.inf:
            return
        expired = self._due(now)
        if expired:
            self._expired(expired, now, actions)
            self.start_commit(actions)
        self._plan_expiry(now)

    def _plan_expiry(self, now: float) -> None:
        due_ns = self._engine.next_expiry_ns()
        self.expire_at = math.inf
        if due_ns is not None:
            left_s = max(0.0, (due_ns - self._clock.wall_ns()) / NS)
            self.expire_at = max(now + left_s, self._expire_from)

    # -- commits ----------------------------------------------------------------------------------------------------

    def start_commit(self, actions: list[Effect]) -> None:
        if self.durable and self.commits.count:
            commit = self.commits.start(self._writers.row)
            if commit is not None:
                row = None if self._numbers is None else self._numbers.reserve(self._planned)
                more = [*self._for_history(), *(() if row is None else (row,))]
                job = Commit(commit.number, (*commit.operations, *more)) if more else commit
                actions.append(Persist(job))

    def committed(self, number: int, now: float, actions: list[Effect]) -> None:
        self._history.left(self._leaving)
        self._history.add(self._adding)
        for done in self.commits.committed(number):
            self._release(done, now, actions)
        self.catch_up()
        self.expire(now, actions)

    def failed(self, number: int, error: StorageError, now: float, actions: list[Effect]) -> None:
        """Undo and refuse everything that waits, after a refused commit."""
        undone = self.commits.failed(number, self._engine)
        if self._numbers is not None:
            self._numbers.refused()
        self._planned = self._followers.output.seq
        self._expire_from = now + DISK_RETRY_S
        self._plan_expiry(now)
        actions.append(Report(CommitFailed(self._name, len(undone), str(error))))
        failure = BackendFailure(f"the write is not done: {error}")
        for done in undone:
            self._outcome(done, failure)
            self._release(
                DoneOperation(done.command, (), (), failure, done.ticket, done.writer, done.seq), now, actions
            )
        self.catch_up()

    def drop_waiting(self) -> list[Effect]:
        """Undo operations that no commit has taken yet, as this is the master no more."""
        return self._unknown(self.commits.drop_waiting(self._engine))

    def end(self, kept: bool, now: float) -> list[Effect]:
        """Keep or undo the commit under way. It is unknown whether the next master has it."""
        dones = self.commits.end(self._engine, kept)
        actions = self._unknown(dones)
        if kept:
            for done in dones:
                for change in done.changes:
                    expiry_ns = getattr(done.command, "expiry_ns", None)
                    self.notices.tell(change, expiry_ns, done.command.publisher, actions)
                if done.writer is not None:
                    self._writers.apply(done.writer, done.seq)
        return actions

    def _unknown(self, dones: list[DoneOperation]) -> list[Effect]:
        lost = "another master took over before the write was confirmed; read the key to see whether it was done"
        return [Resolve(done.ticket, WriteUnknown(lost)) for done in dones if done.ticket is not None]

    def catch_up(self) -> None:
        """Note that all writes taken from clones are applied, with nothing on its way to the disk."""
        if not self.commits.count:
            for writer in self._writers.attached.values():
                writer.applied = max(writer.applied, writer.taken)

    # -- inside -----------------------------------------------------------------------------------------------------

    def _execute(self, command: cmd.Mutation) -> Executed:
        """Do it in memory; raises StoreError if it cannot be done, and then nothing was."""
        engine = self._engine
        expiry_ns: int | None = getattr(command, "expiry_ns", None)
        expires_ns = None if expiry_ns is None else min(self._clock.wall_ns() + expiry_ns, _NS_MAX)
        told: list[cmd.Told] = []
        if isinstance(command, cmd.Put):
            told_put = command if expires_ns is None else _told(command, expires_ns)
            return (engine.put(command.key, command.value, expires_ns),), (told_put,), None
        if isinstance(command, cmd.PutIf):
            self._check(command.key, command.revision)
            put = cmd.Put(command.key, command.value, expiry_ns, command.publisher)
            return (engine.put(command.key, command.value, expires_ns),), (_told(put, expires_ns),), None
        if isinstance(command, cmd.EraseIf):
            self._check(command.key, command.revision)
            removed = engine.erase(command.key)
            return () if removed is None else (removed,), (cmd.Erase(command.key, command.publisher),), None
        if isinstance(command, cmd.PutUnique):
            unique = engine.put_unique(command.key, command.value, expires_ns)
            if unique is not None:
                put = cmd.Put(command.key, command.value, expiry_ns, command.publisher)
                told.append(_told(put, expires_ns))
            if command.who != NOBODY:
                told.append(cmd.PutUniqueResult(unique is not None, command.who, command.request, self._entity))
            return () if unique is None else (unique,), tuple(told), unique is not None
        if isinstance(command, cmd.Erase):
            erased = engine.erase(command.key)
            return ((), (), None) if erased is None else ((erased,), (command,), None)
        if isinstance(command, cmd.Clear):
            return tuple(engine.clear()), (command,), None
        if isinstance(command, cmd.Add):
            change = engine.add(command.key, command.value, command.init, expires_ns)
        elif isinstance(command, cmd.Subtract):
            change = engine.subtract(command.key, command.value, expires_ns)
        else:
            raise InvalidOperation("only a master says that a key has expired, or what became of a put_unique")
        assert change.entry is not None
        whole = cmd.Put(change.entry.key, change.entry.value, None, command.publisher)  # as the original sends it
        if type(whole.value) not in _GROWING:
            return (change,), (_told(whole, expires_ns),), None
        part = msgspec.structs.replace(command, expiry_ns=None)
        if expires_ns is None:
            return (change,), (cmd.Changed(part, whole),), None
        return (change,), (cmd.Changed(cmd.Expiring(expires_ns, part), whole),), None

    def _check(self, key: Value, revision: int) -> None:
        """Raise WrongRevision if a key was changed since a revision; 0: if it is there."""
        entry = self._engine.find(key)
        present = None if entry is None else max(entry.revision, self._followers.base)
        if revision != 0 if present is None else present > revision:
            raise WrongRevision(wrong_revision(key, present), present)

    def _due(self, now: float) -> Sequence[Change]:
        """Take entries that are due to expire out of the engine; nobody is told yet."""
        if self.expire_at == math.inf:
            return ()
        due_ns = self._engine.next_expiry_ns()
        if due_ns is None or now < self._expire_from:
            return ()
        wall_ns = self._clock.wall_ns()
        return () if due_ns > wall_ns else self._engine.expire(wall_ns)

    def _expired(self, changes: Sequence[Change], now: float, actions: list[Effect]) -> None:
        for change in changes:
            command = cmd.Expire(change.key, self._entity)
            revision = self._planned + 1
            self._finish(
                DoneOperation(command, (change,), (command,), None, None, None, 0, revision, self._clock.wall_ns()),
                now,
                actions,
            )

    def _for_history(self) -> list[Operation]:
        self._leaving = self._history.leaving()
        self._adding = self._history.rows(self.commits.under_way) if self._history.size else []
        return [*self._leaving, *self._adding]

    def _finish(self, done: DoneOperation, now: float, actions: list[Effect]) -> None:
        """Note an operation that was done in memory; with a backend it is told later.

        Its entry has the number of the event that tells it, the operation's first. If a commit fails, all that
        follows is undone too, so that numbers come as they were planned.
        """
        for change in done.changes:
            if change.entry is not None:
                change.entry.revision = self._planned + 1
                if change.entry.expires_ns is not None:
                    self._plan_expiry(now)
        self._planned += len(done.broadcast)
        if self.durable:
            self.commits.add(done)
            return
        if self._history.size:
            self._history.add(self._history.rows((done,)))
        self._release(done, now, actions)

    def _release(self, done: DoneOperation, now: float, actions: list[Effect]) -> None:
        if self.notices.wanted:
            for change in done.changes:
                expiry_ns = getattr(done.command, "expiry_ns", None)
                self.notices.tell(change, expiry_ns, done.command.publisher, actions)
        self._followers.tell(done.broadcast, now, actions)
        if not self.durable and done.writer is None:  # of a commit, or of a clone, all leaves at the end of the call
            self._followers.pause(now, actions)
        if done.ticket is not None:
            actions.append(Resolve(done.ticket, done.result))
        if done.writer is not None:
            self._writers.apply(done.writer, done.seq)

    def _outcome(self, done: DoneOperation, error: StoreError | None) -> None:
        if done.writer is None or not done.writer.is_chappe:
            return
        writer = self._writers.known.get(done.writer)
        if writer is not None:
            if error is not None:
                writer.outcomes[done.seq] = int(error.code)
            elif done.result is False:
                writer.outcomes[done.seq] = cmd.NOT_INSERTED


def _told(put: cmd.Put, expires_ns: int | None) -> cmd.Told:
    return put if expires_ns is None else cmd.Changed(cmd.Expiring(expires_ns, put), put)


def _fits(command: cmd.Mutation) -> bool:
    return entry_fits(getattr(command, "key", None), getattr(command, "value", None))
