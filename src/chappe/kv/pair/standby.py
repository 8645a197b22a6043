"""A copy that follows the master of its partner, to become a master itself.

It asks the partner for a stream, gathers all entries beside what it has, becomes them in one step, and then does every
commit as it was done there. With a backend, that has it first; so at any time the backend, and what is shown here, are
whole states of the master, one behind the other. What the partner is told to be here is kept here.

A stream that ends, is silent or cannot be kept is followed by another one, with all entries. What of them is here
already changes nothing, and watchers are told of the difference.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, TypeAlias

from chappe.data.binary import encode as encode_value
from chappe.defaults import DISK_RETRY_S, STAR_HEARTBEAT_S
from chappe.errors import ProtocolError, StorageError
from chappe.kv.actions import Commit, Notify
from chappe.kv.backend import ClearRows, EraseRow, ForgetWriter, Operation, PutRow, WriterRow
from chappe.kv.engine import Change, Engine, Staged
from chappe.kv.entity import Entity
from chappe.kv.pair.messages import COMMIT, END, Gone, Have, Join, Last, Part, Row, Said, Unit, decode_unit
from chappe.kv.pair.stream import Intake
from chappe.kv.recent import Recent
from chappe.kv.role import Notices
from chappe.limits import KvLimits

_LIFE_BITS: Final = 32
_UNNUMBERED: Final = 0
Answer: TypeAlias = list[Said | Commit | Notify]
Writers: TypeAlias = dict[Entity, WriterRow]


class _Unit:
    """What is to be done here when the backend has it: all that was gathered, or a commit."""

    def __init__(self, stream: int, number: int, staged: Staged | None, writers: Writers, unit: Unit) -> None:
        self.stream = stream
        self.number = number
        self.staged = staged
        self.writers = writers
        self.rows = unit.rows
        self.event = unit.event
        self.master = unit.master


class Standby:
    """See the module. A ``Commit`` that it asks for is answered by ``handle_kept``; there is one at a time.

    Args:
        engine: What is here; nobody else changes it while this follows.
        rows: What is known of writers, likewise.
        recent: What has changed lately, likewise.
        life: Of this one of the pair.
        durable: Whether there is a backend.
    """

    def __init__(
        self, engine: Engine, rows: Sequence[WriterRow], recent: Recent, notices: Notices, life: int, limits: KvLimits,
        *, durable: bool,
    ) -> None:  # fmt: skip
        self.rows = {row.entity: row for row in rows}
        self.leader = 0  # the life of the partner that is followed, 0 while nobody is
        self.master: Entity | None = None  # who it is to clones
        self.copied = False  # all that was there when the stream began is here
        self.whole = False  # what is here is a whole state of a master
        self.busy = False  # something is on its way to the backend
        self._engine = engine
        self._recent = recent
        self._notices = notices
        self._life = life
        self._limits = limits
        self._durable = durable
        self._intake: Intake | None = None
        self._streams = 0
        self._joined_at = -math.inf
        self._join_at = math.inf
        self._told = 0  # the last ``Have``
        self._staged: Staged | None = None
        self._staged_rows: Writers = {}
        self._new: list[PutRow] = []  # what of it is not here yet
        self._keeping: _Unit | None = None  # that is on its way to the backend, or was last

    # -- what is to be done ------------------------------------------------------------------------------------------

    def follow(self, leader: int, now: float) -> Answer:
        """Take everything from the partner in this life."""
        self.leader = leader
        return self._join(now)

    def rest(self) -> None:
        """Follow nobody."""
        self.leader = 0
        self.copied = False
        self._intake = self._staged = None
        self._join_at = math.inf

    # -- what the partner says, the backend, and time ----------------------------------------------------------------

    def handle(self, said: Part | Last | Gone, now: float) -> Answer:
        """The active one says something."""
        intake = self._intake
        if intake is None or said.stream != intake.stream:
            return []
        if isinstance(said, Gone):
            return self._drop(now) if intake.began else []
        self._join_at = math.inf
        answer: Answer = []
        try:
            if isinstance(said, Part):
                answer += intake.handle_part(said, now)
            else:
                answer += intake.handle_last(said.number, now)
                self._told = 0  # in case it was lost
            answer += self._go_on()
        except ProtocolError:
            answer += self._end(now)
        return answer + self._have()

    def handle_kept(self, error: StorageError | None, now: float) -> Answer:
        """The backend has kept what it was given, or has refused it."""
        assert self._keeping is not None
        self.busy = False
        answer: Answer = []
        ours = self._intake is not None and self._intake.stream == self._keeping.stream
        if error is None:
            answer += self._become(self._keeping, ours)
        elif ours:
            return self._end(now)
        try:
            answer += self._go_on()
        except ProtocolError:
            answer += self._end(now)
        return answer + self._have()

    def next_timeout(self) -> float:
        """When ``handle_timeout`` is due."""
        return self._join_at if self._intake is None else min(self._join_at, self._intake.next_timeout())

    def handle_timeout(self, now: float) -> Answer:
        """Ask for a stream, or for what is missing of it."""
        intake = self._intake
        if now >= self._join_at:
            return self._join(now) if intake is None else self._ask(intake, now)
        if intake is None:
            return []
        return self._join(now) if intake.silent(now) else [*intake.handle_timeout(now)]

    def invariants(self) -> list[str]:
        """What is wrong with its own state, each a part of a sentence; nothing, unless there is a defect."""
        found = (
            self._recent.invariants()
            if self._intake is None
            else [*self._recent.invariants(), *self._intake.invariants()]
        )
        if self.leader and self._intake is None and self._join_at == math.inf:
            found.append("it follows, and asks for nothing")
        if not self.leader and self._intake is not None:
            found.append("it takes a stream of nobody")
        return found

    # -- inside: the stream ------------------------------------------------------------------------------------------

    def _join(self, now: float) -> Answer:
        """Begin anew."""
        self._joined_at = now
        self._streams += 1
        stream = (self._life & 0xFFFFFFFF) << _LIFE_BITS | self._streams & 0xFFFFFFFF
        self._intake = Intake(stream, self._limits, now)
        self._staged = None
        self._told = 0
        self.copied = False
        return self._ask(self._intake, now)

    def _drop(self, now: float) -> Answer:
        """The stream has ended: begin anew, but not at once again and again."""
        if now >= self._joined_at + STAR_HEARTBEAT_S:
            return self._join(now)
        self._intake = self._staged = None
        self.copied = False
        self._join_at = self._joined_at + STAR_HEARTBEAT_S
        return []

    def _ask(self, intake: Intake, now: float) -> Answer:
        self._join_at = now + STAR_HEARTBEAT_S
        return [Join(intake.stream, self._life, self.leader)]

    def _end(self, now: float) -> Answer:
        """It cannot go on with this stream; after a pause it asks for another one."""
        assert self._intake is not None
        stream = self._intake.stream
        self._intake = self._staged = None
        self._join_at = now + DISK_RETRY_S
        self.copied = False
        return [Gone(stream)]

    def _have(self) -> Answer:
        intake = self._intake
        if intake is None or intake.have == self._told:
            return []
        self._told = intake.have
        return [Have(intake.stream, intake.have)]

    def _go_on(self) -> Answer:
        """Take the units that are whole, one after the other, as far as the backend lets it. Raises ProtocolError."""
        answer: Answer = []
        intake = self._intake  # what was kept last may be of one before
        while intake is not None and intake.units and not self.busy:
            number, raw = intake.units[0]
            unit = decode_unit(raw)
            if unit.kind == COMMIT:
                if not self.copied:
                    raise ProtocolError("a commit has come before all that there was")
                operations = [row for row, _, _ in unit.rows]
            elif self.copied:
                raise ProtocolError("entries have come behind the last")
            else:
                self._stage(unit.rows)
                if unit.kind != END:
                    self._taken(number)
                    continue
                operations = self._difference()
            self._keeping = _Unit(intake.stream, number, self._staged, self._staged_rows, unit)
            self._staged = None
            if self._durable and operations:
                self.busy = True
                answer.append(Commit(_UNNUMBERED, tuple(operations)))
            else:
                answer += self._become(self._keeping, True)
        return answer

    def _taken(self, number: int) -> None:
        assert self._intake is not None
        self._intake.units.popleft()
        self._intake.kept = number

    # -- inside: the data --------------------------------------------------------------------------------------------

    def _stage(self, rows: Sequence[Row]) -> None:
        """Gather some of all that there is. Raises ProtocolError."""
        if self._staged is None:
            self._staged = Staged(self._engine)
            self._staged_rows = {}
            self._new = []
        for row, key, value in rows:
            if isinstance(row, PutRow):
                before = self._staged.version
                self._staged.add(key, value, row.expires_ns)
                if self._durable and self._staged.version > before:
                    self._new.append(row)
            elif isinstance(row, WriterRow):
                self._staged_rows[row.entity] = row
            else:
                raise ProtocolError("what there is cannot be removed")

    def _difference(self) -> list[Operation]:
        """What a backend has to do to have what was gathered."""
        staged, rows = self._staged, self._staged_rows
        assert staged is not None
        if not self._durable:
            return []
        found: list[Operation] = [
            EraseRow(encode_value(entry.key)) for index, entry in self._engine.entries.items()
            if index not in staged.entries
        ]  # fmt: skip
        found += self._new
        self._new = []
        found += [ForgetWriter(entity) for entity in self.rows if entity not in rows]
        found += [row for entity, row in rows.items() if self.rows.get(entity) != row]
        return found

    def _become(self, unit: _Unit, ours: bool) -> Answer:
        """Have here what was kept; ``ours``: it is of the stream that is followed."""
        if ours:
            self._taken(unit.number)
        answer: Answer = []
        if unit.staged is not None:
            self.rows = unit.writers
            self.master = unit.master
            self._recent.begin(unit.master, unit.event)
            for each in self._engine.replace(unit.staged, tell=self._notices.wanted):
                self._tell(each, answer)
            self.copied = ours
            self.whole = True
            return answer
        if self.master is not None:  # as it is since all that there was has come
            self._recent.add(self.master, unit.event, [row for row, _, _ in unit.rows])
        for row, key, value in unit.rows:
            if isinstance(row, PutRow):
                self._tell(self._engine.put(key, value, row.expires_ns), answer)
            elif isinstance(row, EraseRow):
                self._tell(self._engine.erase(key), answer)
            elif isinstance(row, ClearRows):
                for change in self._engine.clear():
                    self._tell(change, answer)
            elif isinstance(row, WriterRow):
                self.rows[row.entity] = row
            else:
                self.rows.pop(row.entity, None)
        return answer

    def _tell(self, change: Change | None, answer: Answer) -> None:
        if change is not None:
            self._notices.tell(change, None, None, answer)  # type: ignore[arg-type]
