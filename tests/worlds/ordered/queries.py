"""Streaming queries whose home is a chain: they stage rows, lose attempts, commit, die, are started twice.

What a batch holds is planned once, as a checkpoint has it; each time that it is run the rows are divided otherwise
among other tasks. A record's value is a number that no other attempt to write any row has.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from tests.worlds.chain.members import NOT_COMPARED
from tests.worlds.linearizable import Operation
from tests.worlds.ordered import model
from tests.worlds.ordered.members import WriterLife, WriterResident
from tests.worlds.residents import Resident

from chappe.errors import CommandFailed
from chappe.log.batch import encode_batch
from chappe.log.ordered.commands import (
    BeginRun,
    Begun,
    CommitRows,
    Committed,
    DropRows,
    Fences,
    Full,
    Missing,
    SinkCommand,
    Staged,
    StageRows,
    decode_answer,
    encode,
)
from chappe.system import time

ROWS_MAX = 8  # of a batch
BATCHES_MAX = 8
PIECE_ROWS = 3
LEAPT_US = 5_000_000  # further ahead than that since a batch began: some clock was set, and staged rows grew old
Attempt = tuple[str, int, int, int]  # run, batch, task, number


class Query:
    """A query and its checkpoint, which outlive its drivers."""

    def __init__(self, world: Any, number: int) -> None:
        self.number = number
        self.name = f"query{number}"
        self.goal: int = world.rng.randint(1, BATCHES_MAX)
        self.checkpoint = -1  # the last batch that Spark knows to be committed
        self.planned = [world.rng.randint(0, ROWS_MAX) for _ in range(self.goal)]  # rows of each batch
        self.rows: dict[int, tuple[int, int]] = {}  # batch and row of each record's number
        self.staged: dict[Attempt, list[int]] = {}  # numbers, as a task made them

    @property
    def done(self) -> bool:
        """Whether all is committed, and Spark knows."""
        return self.checkpoint + 1 >= self.goal


class Driver(WriterLife):
    """One life of a driver with its tasks. Two drivers of one query believe that they are the only ones."""

    def __init__(self, world: Any, resident: Resident) -> None:
        super().__init__(world, resident)
        self.query: Query = world.queries[int(self.name.removeprefix("driver")) % len(world.queries)]
        self._life = world.next_operation()
        self._runs = 0
        self._run = ""  # that has begun; empty: it is to begin
        self._steps: deque[list[SinkCommand]] = deque()  # those of one list may be asked at once
        self._attempts = 0
        self._rests_until = 0.0
        self._ahead_us = 0  # how far the chain's time was before the world's when the batch began

    @property
    def works(self) -> bool:
        """Until its query has ended."""
        return not self.query.done

    def operate(self) -> None:
        """The next thing to do."""
        query, world = self.query, self.world
        if not self.ready:
            super().operate()
            return
        if query.done or world.now < self._rests_until or (self.under_way and not (self._steps and self._steps[0])):
            return
        if not self._run:
            self._runs += 1
            self._run = f"{self.name}/{self._life}-{self._runs}"
            self._steps.clear()
            self._do(self._begin())
            return
        while self._steps and not self._steps[0] and not self.under_way:
            self._steps.popleft()
        if not self._steps:
            self._plan()
        self._do(self._steps[0].pop(0))

    def _begin(self) -> SinkCommand:
        return BeginRun(self.query.name, self._run, self.query.checkpoint + 1, True, (), "")

    def _do(self, command: SinkCommand) -> None:
        self.do(0, Operation(NOT_COMPARED, command, self.world.now), encode(command))

    def _plan(self) -> None:
        """Run the batch behind the last one that Spark knows to be committed."""
        query, rng = self.query, self.world.rng
        self._ahead_us = self.world.ahead_us()
        batch = query.checkpoint + 1
        rows = list(range(query.planned[batch]))
        rng.shuffle(rows)
        tasks = rng.randint(1, 3)
        pieces: list[SinkCommand] = []
        wanted: list[tuple[int, int, int, int]] = []
        unwanted: list[SinkCommand] = []
        for task in range(tasks):
            mine = rows[task::tasks]
            if rng.random() < 0.4:
                _, attempt, _, _ = self._stage(batch, task, mine[: rng.randint(0, len(mine))], pieces)
                unwanted.append(DropRows(query.name, self._run, batch, task, attempt))
            wanted.append(self._stage(batch, task, mine, pieces))
        commit = CommitRows(query.name, self._run, batch, tuple(wanted))
        self._steps.extend((pieces, unwanted if rng.random() < 0.5 else [], [commit]))
        while not self._steps[0]:
            self._steps.popleft()

    def _stage(self, batch: int, task: int, rows: list[int], pieces: list[SinkCommand]) -> tuple[int, int, int, int]:
        """Add the pieces of an attempt; returns what a commit names."""
        query, world = self.query, self.world
        self._attempts += 1
        numbers = query.staged[self._run, batch, task, self._attempts] = [world.next_operation() for _ in rows]
        query.rows.update({number: (batch, row) for number, row in zip(numbers, rows, strict=True)})
        count = 0
        while numbers[count * PIECE_ROWS :]:
            some = numbers[count * PIECE_ROWS : (count + 1) * PIECE_ROWS]
            body = encode_batch(0, [b"%d" % number for number in some], time.time_ns() // 1000)
            part = world.rng.randrange(model.PARTITIONS)
            pieces.append(StageRows(query.name, self._run, batch, task, self._attempts, count, model.TOPIC, part, body))
            count += 1
        return task, self._attempts, count, len(numbers)

    # -- answers ----------------------------------------------------------------------------------------------

    def failed(self, operation: Operation, error: CommandFailed) -> None:
        """Its result was too much together with others: it is done, and to do it all again is to do it once."""
        self._steps.clear()

    def lost(self, operation: Operation) -> None:
        """As well."""
        self._steps.clear()

    def told(self, number: int, operation: Operation, result: bytes) -> None:
        """An operation has ended."""
        if operation.what == ("create",):
            super().told(number, operation, result)
            return
        command, answer = operation.what, decode_answer(result)
        if command.run != self._run:
            return  # it has begun another run meanwhile
        match answer:
            case Begun(committed):
                if committed > self.query.checkpoint + 1:
                    self._give_up(3.0)  # another driver is ahead of it
            case Staged():
                pass
            case Committed():
                self._committed(command.batch)
            case Fences():
                if isinstance(command, BeginRun) or self.world.rng.random() < 0.7:
                    self._give_up(3.0)
                else:  # another of its processes does not know yet, and begins
                    self._steps.clear()
                    self._steps.append([self._begin()])
            case Full():
                self.world.full += 1
                self._give_up(1.0)
            case Missing(why):
                if isinstance(command, CommitRows) and self.world.ahead_us() < self._ahead_us + LEAPT_US:
                    self.world.fail("exactly once", f"{self._run} has staged its rows, and they are gone: {why}")
                self._steps.clear()
            case _:
                self.world.fail("exactly once", f"{command} is answered by {answer}")

    def _committed(self, batch: int) -> None:
        query, world = self.query, self.world
        world.trace(self, "has committed batch %d of %s", batch, query.name)
        world.see("on_confirmed", self, model.commit_number(query.name, batch))
        world.see("on_batch", self, query, batch)
        if world.rng.random() < 0.15:
            world.trace(self, "dies before its checkpoint has it")
            self._give_up(0.3)
            return
        query.checkpoint = max(query.checkpoint, batch)

    def _give_up(self, most_s: float) -> None:
        """Begin another run, after a while."""
        self._run = ""
        self._steps.clear()
        self._rests_until = self.world.now + self.world.rng.random() * most_s


class DriverResident(WriterResident):
    """A driver over all its lives."""

    life = Driver
    under_way_bytes = 5_000
