"""Worlds of queries that write exactly once, with a chain as their home: all that goes wrong in ``ordered``, too.

Promises beside those of ordered topics: each row of a committed batch is there once and nothing of other attempts, all
rows of a batch at one entry of the chain's log or none; who was fenced writes nothing and never comes back; rows that
were staged are there until their commit; and each query commits all its batches in the end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from tests.worlds.chain.checkers import Same
from tests.worlds.ordered import model
from tests.worlds.ordered.queries import Driver, DriverResident, Query
from tests.worlds.ordered.scenario import OneOrder, Ordered, Truth

from chappe.log.ordered.commands import (
    Answer,
    Append,
    BeginRun,
    Begun,
    Command,
    CommitRows,
    Committed,
    Staged,
    decode_answer,
    decode_command,
)
from chappe.log.ordered.homes import STAGED_BYTES_MAX
from chappe.log.ordered.homes import Homes as Core
from chappe.log.ordered.keeping import Keeping
from chappe.log.ordered.machine import OrderedLog, Placed
from chappe.sim.world import Settings, SimWorld

DRIVERS = 3
FULL = (9_000, STAGED_BYTES_MAX, STAGED_BYTES_MAX)  # the first is enough for one batch, and not for two


class Watched(OrderedLog):
    """The machine, which tells what it was asked for, what it answered, and what it placed."""

    def __init__(self, truth: QueryTruth) -> None:
        super().__init__(truth)
        self._truth = truth

    def apply(self, command: bytes) -> bytes:
        """Do a command."""
        self._truth.fresh.clear()
        answer = super().apply(command)
        self._truth.applied(decode_command(command), decode_answer(answer))
        return answer


class QueryTruth(Truth):
    """What committed commands make, compared with what queries staged, by rules of its own."""

    def __init__(self, world: Homes) -> None:
        self._world = world
        self.wrong: list[str] = []
        self.fresh: list[int] = []  # records of the command that is being done
        self.batches: dict[str, int] = {}  # committed, by query
        self._runs: dict[str, list[str]] = {}  # by query; each fenced those before it
        super().__init__(world.limits)

    def made(self) -> OrderedLog:
        """The machine."""
        return self._world.bounded(Watched(self))

    def place(self, placed: Placed) -> None:
        """One more batch."""
        super().place(placed)
        self.fresh += model.numbers(placed.batch)

    def _wrong(self, text: str) -> None:
        self.wrong.append(text)  # what is raised while a machine does something is its answer

    def applied(self, command: Command, answer: Answer) -> None:
        """One more command."""
        match command, answer:
            case BeginRun(sink, run), Begun(committed):
                runs = self._runs.setdefault(sink, [])
                if run in runs[:-1]:
                    self._wrong(f"{run} of {sink} was fenced by {runs[-1]}, and is back")
                if run not in runs:
                    runs.append(run)
                if committed != self.batches.get(sink, -1):
                    self._wrong(f"{run} is told that {sink} has committed {committed}, not {self.batches.get(sink)}")
            case CommitRows(sink, run, batch, attempts), Committed(already):
                if run != self._runs[sink][-1]:
                    self._wrong(f"{run} of {sink} commits, {self._runs[sink][-1]} has taken over")
                if already is not (batch <= self.batches.get(sink, -1)):
                    self._wrong(f"batch {batch} of {sink} is committed, already: {already}; {self.batches}")
                if not already:
                    self._rows(self._world.query(sink), run, batch, [each[:2] for each in attempts])
                    self.batches[sink] = batch
                    return
            case Append(), _:
                return
            case ((BeginRun() | CommitRows()), _):
                pass
            case _, Staged() if command.run != self._runs[command.sink][-1]:  # type: ignore[union-attr]
                self._wrong(f"{command} of {self._runs} is taken")
        if self.fresh:
            self._wrong(f"{command} has put {self.fresh} into the topic")

    def _rows(self, query: Query, run: str, batch: int, attempts: list[tuple[int, ...]]) -> None:
        """All rows of the batch are there at once, as the named attempts had them."""
        wanted = Counter(each for task, attempt in attempts for each in query.staged[run, batch, task, attempt])
        found = Counter(self.fresh)
        if found != wanted:
            self._wrong(f"batch {batch} of {query.name}: too many {found - wanted}, too few {wanted - found}")
        rows = sorted(query.rows[number] for number in self.fresh)
        if rows != [(batch, row) for row in range(query.planned[batch])]:
            self._wrong(f"batch {batch} of {query.name} is {rows}, it has {query.planned[batch]} rows")


class ExactlyOnce(OneOrder):
    """See the module."""

    name = "exactly once"
    truth: QueryTruth
    world: Homes

    def begun(self) -> Truth:
        """What there is in the beginning."""
        return QueryTruth(self.world)

    def follow(self, same: Same) -> None:
        """Take in what was committed since."""
        super().follow(same)
        if self.truth.wrong:
            self.fail(self.truth.wrong[0])

    def on_batch(self, driver: Driver, query: Query, batch: int) -> None:
        """A driver was told that its batch is committed."""
        self.follow(self.world.same)
        if self.truth.batches.get(query.name, -1) < batch:
            self.fail(f"{driver.name} was told that batch {batch} of {query.name} is committed, and it is not")
        self.world.batches += 1

    def unsettled(self) -> str | None:
        """All batches are committed; and all stores and consumers have everything."""
        for query in self.world.queries:
            if not query.done:
                return f"{query.name} is at batch {query.checkpoint} of {query.goal}"
        return super().unsettled()


class Homes(Ordered):
    """Queries whose home is a chain of stores: drivers and servers die, rows of a batch are there once, all or none."""

    one_order = ExactlyOnce
    uncommitted_bytes = 25_000  # each driver's commit puts up to eight batches into the topic

    def __init__(self, seed: int, settings: Settings | None = None, tell: Callable[[str], None] | None = None) -> None:
        super().__init__(seed, settings, tell)
        self.staged_most = self.rng.choice(FULL)
        self.queries = [Query(self, number) for number in range(self.rng.choice((1, 2, 2)))]
        self.batches = 0  # that drivers were told of
        self.full = 0  # times that there was no room

    def query(self, name: str) -> Query:
        """By its name."""
        return next(each for each in self.queries if each.name == name)

    def bounded(self, machine: OrderedLog) -> OrderedLog:
        """With little room for staged rows, as the seed wants it."""
        machine.homes = Core(machine._has, self.staged_most)
        return machine

    def log_of(self, keeping: Keeping) -> OrderedLog:
        """What a new life of a member replicates."""
        made = model.Committing(keeping)
        made.did = []
        return self.bounded(made)

    def ahead_us(self) -> int:
        """How far the time of what was committed last is before the world's."""
        last = self.same.committed[-1].at_us if self.same.committed else 0
        return last - self.clock.wall_us

    def begin(self) -> None:
        """Also drivers."""
        super().begin()
        for number in range(max(self.few(DRIVERS), len(self.queries))):
            self.settle_in(DriverResident, f"driver{number}")

    def count(self) -> int:
        """Operations, and batches."""
        return super().count() + self.batches

    def finish(self) -> float:
        """All ends; that appends are linearizable is for worlds in which nobody else writes."""
        return SimWorld.finish(self)
