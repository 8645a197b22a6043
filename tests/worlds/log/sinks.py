"""A streaming query in the simulation: it stages rows at its home, loses attempts, commits, dies, and starts again.

What a batch holds is planned once, as a checkpoint has it; each time that it is run the rows are in another order
and divided among other tasks. A value says which row it is and, behind ``@``, which attempt has staged it: the first
must be there once, and the second must be an attempt that was committed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any

from tests.worlds.log.disks import StoreDisk
from tests.worlds.log.questions import Questions
from tests.worlds.log.residents import StoreLife, StoreResident
from tests.worlds.log.world import Content

from chappe.data.topic import encode_topic
from chappe.log.batch import encode_batch
from chappe.log.exactly_once.staged import Intent, Job, Remember
from chappe.log.queries import (
    ELSEWHERE,
    FENCED,
    MISSING,
    Answer,
    AttachSink,
    Commit,
    CommitAnswer,
    Drop,
    ErrorAnswer,
    FindSink,
    SinkAnswer,
    SinkRequest,
    Stage,
    StagedAnswer,
)
from chappe.log.sources import Key
from chappe.sim.world import Checker

ANSWER_S = 1.0  # what is not answered by then is asked again
TICK_S = 0.3
WINDOW = 4  # requests under way
PIECE_ROWS = 4
BATCHES_MAX = 6
Row = tuple[str, bytes]  # topic, value
Name = tuple[str, int, int, int]  # run, batch, task, attempt


class Query(Checker[Any]):
    """A query and its checkpoint, which outlive its runs.

    Args:
        world: Its world.
        sink: Its name.
        home: The disk of the store that keeps its commits.
        topics: Where its rows go.
    """

    def __init__(self, world: Any, sink: str, home: StoreDisk, topics: Sequence[str]) -> None:
        super().__init__(world)
        self.rng = world.sink_rng
        self.sink = sink
        self.home = home
        self.topics = topics
        self.over = False  # its home is gone for good
        self.moves = False  # a run wanted another home, which happens once
        self._move_rng = Random(f"moves {sink} {world.seed}")
        self._moves_now = False  # the next run wants another home
        self.planned: list[list[Row]] = []
        self.committed = -1  # as its checkpoint has it, which may be behind its home
        self.staged: dict[Name, list[Row]] = {}
        self.named: set[tuple[tuple[int, int, int], ...]] = set()  # attempts that some commit names
        self.intents: dict[int, Intent] = {}
        self.attached: dict[str, list[str]] = {}  # runs that are durably known, by home; each fenced those before it
        self.goal = self.rng.randint(1, BATCHES_MAX)
        self._hurt_until = 0.0
        self._runs = 0
        self._run: Run | None = None

    def start(self, disturbed_until: float | None) -> None:
        """Begin the first run, and plan the deaths of runs."""
        self.world.clock.after(self.rng.random(), self.begin_run)
        if disturbed_until is not None:
            self._hurt_until = disturbed_until
            for _ in range(self.rng.choice((0, 1, 3))):
                self.world.clock.at(self.rng.uniform(0.0, disturbed_until), self.begin_run)

    def finish(self) -> None:
        """No further batch is begun; what is planned is finished."""
        self.goal = min(self.goal, len(self.planned))

    @property
    def done(self) -> bool:
        """Whether everything is committed."""
        return self.over or self.committed + 1 >= self.goal

    def begin_run(self) -> None:
        """A new run. The one before it is dead, or its driver believes so and it goes on."""
        if self.over:
            return
        self._runs += 1
        if self._run is not None and self.rng.random() < 0.5:
            self._run.alive = False
        self._run = Run(self, f"run{self._runs}")
        self._run.begin()

    def lost_run(self, run: Run) -> None:
        """A run was fenced; if it was the newest, what fenced it was the late request of a dead one."""
        if run is self._run:
            self.world.clock.after(1.0, self.begin_run)

    def rows(self, batch: int) -> list[Row]:
        """What a batch holds."""
        if batch == len(self.planned):
            topics = self.rng.sample(self.topics, self.rng.choice((1, 1, 2)))
            count = self.rng.choice((0, 1, 5, 20))
            values = [b"%s:%d:%d" % (self.sink.encode(), batch, n) for n in range(count)]
            self.planned.append([(self.rng.choice(topics), value) for value in values])
        return self.planned[batch]

    def on_decided(self, disk: StoreDisk, intent: Intent) -> None:
        """A store has decided a commit: from now on it must be there once, as the query staged it."""
        world = self.world
        if intent.sink != self.sink:
            return
        if intent.batch in self.intents:
            world.fail("exactly once", f"batch {intent.batch} of {self.sink} is committed a second time")
        current = disk.staged.run_of(self.sink)
        if intent.run != current:
            world.fail("exactly once", f"{intent.run} of {self.sink} commits, {current} has taken over")
        if intent.attempts not in self.named:
            world.fail("exactly once", f"of {self.sink} {intent.attempts} are committed, which no commit names")
        self.intents[intent.batch] = intent
        self._moves_meanwhile()
        found: dict[str, list[Content]] = {}
        for task, attempt, _ in intent.attempts:
            for topic, value in self.staged[intent.run, intent.batch, task, attempt]:
                found.setdefault(topic, []).append((value, None))
        for topic, partition, first, end in intent.ranges:
            records = found.pop(topic, [])
            if len(records) != end - first:
                world.fail("exactly once", f"{self.sink} staged {len(records)} rows, {end - first} are committed")
            world.truth.sent((topic, partition), first, records)
        if found:
            world.fail("exactly once", f"rows of {self.sink} for {sorted(found)} are not committed")
        self.hurt_home(3 * world.usual_disk_s)

    def _moves_meanwhile(self) -> None:
        """Now and then the query is started again with another home while its first commit is under way."""
        if self.committed < 0 and not self.moves and self._move_rng.random() < 0.3:
            self._moves_now = True
            self.world.clock.after(0.0, self.begin_run)

    def new_home(self) -> StoreDisk:
        """The home that the next run wants; once it may be another one, while nothing is done."""
        world = self.world
        homes: list[StoreDisk] = [each.disk for each in world.alive(StoreLife)]
        rng: Random = world.more_rng
        if self._moves_now:
            self._moves_now, self.moves = False, True
            return self._move_rng.choice([each for each in homes if each is not self.home] or [self.home])
        if self.committed < 0 and not self.moves and world.more(0.2):
            self.moves = True
            return rng.choice([self.home, *homes])
        return self.home

    def on_staged(self, disk: StoreDisk, job: Job) -> None:
        """A store has durably done what a run asked for: who was fenced stays so."""
        if isinstance(job, Remember) and job.state.sink == self.sink and job.state.run:
            runs = self.attached.setdefault(disk.store_id, [])
            if job.state.run in runs[:-1]:
                self.world.fail("exactly once", f"{job.state.run} of {self.sink} was fenced by {runs[-1]}, and is back")
            if job.state.run not in runs:
                runs.append(job.state.run)

    def hurt_home(self, within_s: float) -> None:
        """Now and then, while there are faults: kill the home at the worst moment, or fill its disk."""
        world, rng = self.world, self.rng
        if world.now >= self._hurt_until or rng.random() > 0.2:
            return
        if self.world.more(0.3):
            self._refuse(0.5, self.world.more_rng)
            return
        if rng.random() < 0.3:
            self._refuse(1.0, rng)
        place = self._resident().place
        at = world.now + rng.random() * within_s
        world.clock.at(at, partial(place.kill, power_cut=rng.random() < 0.3))
        world.clock.at(at + rng.choice((0.05, 1.0, 3.0)), place.restart)

    def _resident(self) -> StoreResident:
        (found,) = [each for each in self.world.residents if getattr(each, "disk", None) is self.home]
        assert isinstance(found, StoreResident)
        return found

    def _refuse(self, share: float, rng: Random) -> None:
        disk = self.world.stage.disk(self._resident().place.name)
        disk.refuse(share)
        self.world.clock.after(rng.choice((0.5, 3.0)), disk.refuse, 0.0)

    def partitions(self) -> list[Key]:
        """Its partitions."""
        ranges = (each for intent in self.intents.values() for each in intent.ranges)
        return list(dict.fromkeys((topic, partition) for topic, partition, _, _ in ranges))

    def lose_home(self) -> None:
        """Its home is gone for good, with what only that had."""
        self.over = True
        for key in self.partitions():
            self.world.truth.of(key).gone = True


@dataclass(slots=True)
class _Request:
    order: int
    request: SinkRequest
    payload: bytes = b""
    deadline: float = 0.0


class Run:
    """One run of a query.

    It sends groups of requests, of each group several at once, and goes to the next one when all are answered. What
    is not answered in time, and what is refused for now, is asked again together with all that was asked behind it.
    """

    def __init__(self, query: Query, run: str) -> None:
        self.query = query
        self.world = query.world
        self.rng = query.rng
        self.name = f"{query.sink}/{run}"
        self.run = run
        self.alive = True
        self._batch = -1
        self._attempt = 0
        self._last = 0
        self._groups: deque[deque[_Request]] = deque()
        self._asked: dict[int, _Request] = {}
        self._pause_until = 0.0
        self._fenced = False
        self._home = query.home
        self._began: tuple[StoreLife | None, float] = (None, 0.0)  # with which life of its home it runs a batch
        self._dialogue: tuple[str, Questions] | None = None

    def begin(self) -> None:
        """Attach, then run batch after batch."""
        self.world.trace(self, "starts")
        self._attach()
        self._tick()

    def _attach(self) -> None:
        """Attach to its home; now and then without waiting for the answer, or to another one while nothing is done."""
        query, world = self.query, self.world
        wanted = query.new_home()
        pieces: list[tuple[SinkRequest, bytes]] = [(AttachSink(query.sink, self.run, wanted.store_id, True), b"")]
        if wanted is self._home and not query.done and world.more(0.3):
            self._batch = query.committed + 1
            self._stage(0, query.rows(self._batch), pieces)
        self._then(pieces)

    def _move(self, home: str) -> None:
        """Go on at the home that a store tells of."""
        self._home = self.query.home = next((d for d in self.world.disks if d.store_id == home), self._home)
        if self.query._resident().gone:
            self.query.lose_home()
        self._start_anew([(AttachSink(self.query.sink, self.run, self._home.store_id, True), b"")])

    def _start_anew(self, requests: list[tuple[SinkRequest, bytes]]) -> None:
        self._groups.clear()
        self._asked.clear()
        self._then(requests)

    # -- batches ----------------------------------------------------------------------------------------

    def _run_batch(self) -> None:
        """Run the batch behind the last one that the checkpoint has; from its beginning, if it was begun before."""
        query, rng = self.query, self.rng
        self._start_anew([])
        if not self.alive or query.done:
            return
        self._began = (self._store(), self.world.now)
        self._batch = query.committed + 1
        rows = list(query.rows(self._batch))
        rng.shuffle(rows)
        tasks = rng.randint(1, 3)
        pieces: list[tuple[SinkRequest, bytes]] = []
        wanted: list[tuple[int, int, int, int]] = []
        unwanted: list[tuple[int, int]] = []
        for task in range(tasks):
            mine = rows[task::tasks]
            if rng.random() < 0.4:
                part = mine if rng.random() < 0.7 else mine[: len(mine) // 2]
                unwanted.append(self._stage(task, part, pieces)[:2])
            wanted.append(self._stage(task, mine, pieces))
        self._then(pieces)
        if unwanted and rng.random() < 0.5:
            self._then([(Drop(query.sink, self.run, self._batch, unwanted), b"")])
        self._then([(Commit(query.sink, self.run, self._batch, wanted), b"")])
        query.named.add(tuple(each[:3] for each in wanted))
        query.hurt_home(0.5)

    def _stage(self, task: int, rows: list[Row], pieces: list[tuple[SinkRequest, bytes]]) -> tuple[int, int, int, int]:
        """Add the pieces of an attempt; returns what a commit names."""
        self._attempt += 1
        tag = b"@%s.%d" % (self.run.encode(), self._attempt)
        rows = [(topic, value + tag) for topic, value in rows]
        self.query.staged[self.run, self._batch, task, self._attempt] = rows
        groups: list[list[Row]] = []
        for row in rows:
            if not groups or groups[-1][0][0] != row[0] or len(groups[-1]) >= PIECE_ROWS:
                groups.append([])
            groups[-1].append(row)
        for number, group in enumerate(groups):
            place = (self._batch, task, self._attempt, number)
            stage = Stage(self.query.sink, self.run, *place, encode_topic(group[0][0]))
            pieces.append((stage, encode_batch(0, [value for _, value in group], self.world.clock.wall_us)))
        return task, self._attempt, len(groups), len(rows)

    def _committed(self, batch: int) -> None:
        query, world = self.query, self.world
        world.trace(self, "has committed batch %d", batch)
        if batch not in query.intents:
            world.fail("exactly once", f"batch {batch} of {query.sink} counts as committed, and was never decided")
        for topic, partition, _, end in query.intents[batch].ranges:
            sent = world.truth.of((topic, partition))
            sent.acknowledged = max(sent.acknowledged, end)
        if self.rng.random() < 0.15:
            world.trace(self, "dies before its checkpoint has it")
            self.alive = False
            world.clock.after(self.rng.choice((0.1, 2.0)), query.begin_run)
            return
        query.committed = max(query.committed, batch)
        pause = 2.0 if world.more(0.2) else 0.0
        world.clock.after(pause + self.rng.expovariate(1.0) * 0.5, self._go_on)

    def _go_on(self) -> None:
        self._run_batch()
        self._pump()

    # -- requests ---------------------------------------------------------------------------------------

    def _then(self, requests: list[tuple[SinkRequest, bytes]]) -> None:
        group: deque[_Request] = deque()
        for request, payload in requests:
            self._last += 1
            group.append(_Request(self._last, request, payload))
        if group:
            self._groups.append(group)

    def _tick(self) -> None:
        if not self.alive or self.query.done:
            self.alive = False
            return
        if any(each.deadline <= self.world.now for each in self._asked.values()):
            self._put_back(list(self._asked.values()))
        self._pump()
        self.world.clock.after(TICK_S, self._tick)

    def _put_back(self, requests: list[_Request]) -> None:
        """Ask these again: pieces come in their order, so all behind the first of them too."""
        self._asked.clear()
        self._groups[0].extendleft(sorted(requests, key=lambda each: -each.order))

    def _pump(self) -> None:
        while self._groups and not self._groups[0] and not self._asked:
            self._groups.popleft()
        if not self._groups or self.world.now < self._pause_until:
            return
        dialogue = self._dialogue_with_home()
        while dialogue is not None and self.alive and self._groups[0] and len(self._asked) < WINDOW:
            each = self._groups[0].popleft()
            self._last += 1
            each.deadline = self.world.now + ANSWER_S
            self._asked[self._last] = each
            dialogue.ask(self._last, each.request, each.payload)

    def _store(self) -> StoreLife | None:
        return next((each for each in self.world.alive(StoreLife) if each.disk is self._home), None)

    def _dialogue_with_home(self) -> Questions | None:
        """A connection to the home, wherever it is now."""
        store = self._store()
        if store is None:
            return None
        endpoint = store.core.endpoint
        if self._dialogue is None or self._dialogue[0] != endpoint:
            self._dialogue = (endpoint, Questions(self.world, self.query.sink, endpoint, self.on_answer))
        return self._dialogue[1]

    def on_answer(self, number: int, answer: Answer) -> None:
        """The home, or a store that has its port now, answers."""
        asked = self._asked.pop(number, None)
        if asked is None or not self.alive:
            return
        if isinstance(answer, ErrorAnswer):
            self._refused(asked, answer)
        elif isinstance(answer, SinkAnswer):
            if isinstance(asked.request, AttachSink) and answer.home == self._home.store_id:
                self._run_batch()
            else:
                self._move(answer.home)
        elif isinstance(answer, StagedAnswer) and self.run not in self.query.attached[self._home.store_id]:
            self.world.fail("exactly once", f"{self.name} stages rows before its home has saved that it may")
        elif isinstance(answer, CommitAnswer):
            self._committed(answer.batch)
        self._pump()

    def _refused(self, asked: _Request, answer: ErrorAnswer) -> None:
        self.world.trace(self, "is refused (%s): %s", answer.kind, answer.text)
        if answer.kind == FENCED and not self._fenced and self.world.more(0.3):
            self._fenced = True  # it does not believe it
            self._start_anew([(AttachSink(self.query.sink, self.run, self._home.store_id, True), b"")])
        elif answer.kind == FENCED:
            self.alive = False
            self.query.lost_run(self)
        elif answer.kind == ELSEWHERE:
            self._start_anew([(FindSink(self.query.sink), b"")])
        elif answer.kind == MISSING:
            store, began = self._began
            late = self.world.now - began >= self.world.limits.staged_forget_s
            if isinstance(asked.request, Commit) and store is self._store() is not None and not late:
                self.world.fail("exactly once", f"{self.name} has staged its rows, and they are gone: {answer.text}")
            self._run_batch()
        else:
            self._put_back([asked, *self._asked.values()])
            self._pause_until = self.world.now + ANSWER_S
