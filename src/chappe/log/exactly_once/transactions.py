"""The exactly-once sink at its home: who may write, what is staged, and what is committed.

A sink (a query, or one batch write) has one home, a store that stages rows and commits batches; other stores only
remember which one that is. A new run of the sink attaches first, and fences all earlier ones. Tasks then stage their
rows, as many attempts of a task as there are; a commit names one attempt for each and makes exactly these visible.
A batch that is committed already is not committed again, whatever is asked.

Rows go to one partition of each topic, ``sink_address``; for everybody else that is a partition like any other, whose
heads this store announces.

What must be durable is a job for the thread that writes (``SinkJob``); it does them in their order, one by one, and
whoever asked is answered when his is done.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, TypeAlias

from chappe.core import Effect, Persist, Publish, Reply
from chappe.data.topic import decode_topic, encode_topic
from chappe.deadlines import Deadlines
from chappe.defaults import (
    ATTEMPTS_MAX,
    HEAD_INTERVAL_S,
    RUNS_MAX,
    SINK_FORGET_S,
    SINK_HEADS_S,
    SINKS_MAX,
)
from chappe.errors import ChappeError, Fenced, ProtocolError, StagedRowsMissing, StorageFull
from chappe.limits import LOG_LIMITS, LogLimits
from chappe.log.batch import Batch
from chappe.log.exactly_once.staged import (
    CommitBatch,
    Discard,
    Forget,
    Intent,
    Job,
    KeptSinks,
    Remember,
    SinkJob,
    SinkState,
    StagedAttempt,
    StagePiece,
    with_batch,
)
from chappe.log.messages import Head
from chappe.log.queries import (
    ELSEWHERE,
    FENCED,
    FULL,
    MISSING,
    AttachSink,
    Commit,
    CommitAnswer,
    Drop,
    ErrorAnswer,
    FindSink,
    QueryReply,
    SinkAnswer,
    SinkReply,
    SinkRequest,
    Stage,
    StagedAnswer,
)

WAITING_MAX: Final = 100  # commits of one sink that wait for the one under way
ASKED_MAX: Final = 100  # of those who asked for the same, the last ones are answered
REQUEST_BYTES: Final = 1024  # what a request counts besides its rows
_KINDS: Final[dict[type[ChappeError], str]] = {Fenced: FENCED, StagedRowsMissing: MISSING, StorageFull: FULL}

NextOffset: TypeAlias = Callable[[str, str], int]
Repeatable: TypeAlias = AttachSink | Stage | Discard  # by what a repetition is known: of a Drop it is the job


def sink_address(sink: str, topic: str) -> str:
    """Return the partition that a sink writes in a topic: 32 upper-case hexadecimal digits."""
    digest = hashlib.sha256(sink.encode() + b"\0" + encode_topic(topic)).hexdigest()[:32].upper()
    # A 5 there says that a chain writes the partition (``ordered.machine.is_ordered``); others are not heard then.
    return f"{digest[:12]}4{digest[13:]}" if digest[12] == "5" else digest


class _Refused(ChappeError):
    """A request of a sink that is refused; ``kind`` as in ErrorAnswer."""

    def __init__(self, text: str, kind: str = "") -> None:
        super().__init__(text)
        self.kind = kind


@dataclass(frozen=True, slots=True)
class _Asker:
    client: bytes
    request_id: bytes
    request: SinkRequest

    def reply(self, answer: SinkReply) -> Effect:
        return Reply(self.client, QueryReply(self.request_id, answer))


@dataclass(slots=True)
class _Job:
    job: Job
    asked: list[_Asker]
    repeatable: Repeatable | None


@dataclass(slots=True)
class _SinkAtHome:
    """A sink; ``state`` is what it will be when the jobs under way are done."""

    state: SinkState
    saved_run: str  # the newest one that is on disk
    saved_home: str  # the same of the home
    touched_at: float
    staged: dict[StagedAttempt, dict[str, None]] = field(default_factory=dict)  # topics of each attempt
    committing: bool = False
    waiting: list[_Asker] = field(default_factory=list)


class Transactions:
    """The sinks of one store, with what it ``kept`` on its disk.

    ``next_offset`` tells the next offset of a partition, counting what is on its way to the disk.
    """

    def __init__(
        self, store_id: str, kept: KeptSinks, next_offset: NextOffset, limits: LogLimits = LOG_LIMITS, *, now: float
    ) -> None:
        self._limits = limits
        self._store_id = store_id
        self._next_offset = next_offset
        self._sinks = {
            state.sink: _SinkAtHome(replace(state, age_s=0.0), state.run, state.home, now - state.age_s)
            for state in kept.sinks
        }
        self._jobs: dict[int, _Job] = {}
        self._repeatable: dict[Repeatable, int] = {}  # what was asked for and is under way: its newest job
        self._last_ticket = 0
        self._bytes = 0
        self._heads: dict[tuple[str, str], tuple[int, float]] = {}  # next offset, and until when it is told
        self._timers: Deadlines[str] = Deadlines()  # ``heads`` are told again; ``sweep`` removes what nobody needs
        if kept.sinks or kept.attempts:
            self._timers.set("sweep", now)  # what a crash left is removed at once
        self._stray: list[StagedAttempt] = []
        for attempt, topics in kept.attempts:
            sink = self._sinks.get(attempt.sink)
            if sink is None or attempt.run != sink.state.run or attempt.batch <= sink.state.batch:
                self._stray.append(attempt)
            else:
                sink.staged[attempt] = dict.fromkeys(topics)
        for intent in kept.finished:
            self._announce(intent, now)

    @property
    def paused(self) -> bool:
        """True if so much waits for the disk that no further request should be taken."""
        return self._bytes >= self._limits.staged_bytes_max

    def handle_request(
        self, client: bytes, request_id: bytes, request: SinkRequest, payload: bytes, now: float
    ) -> list[Effect]:
        """Take a request on the query socket; ``payload`` is the batch of a Stage request."""
        asked = _Asker(client, request_id, request)
        sink = self._sinks.get(request.sink)
        if sink is not None and self._moves(sink, request):
            refusal = _Refused(f"sink {request.sink} is being given another home; ask again")
            return [asked.reply(_refusal(refusal)), *self._remember(sink)]
        try:
            match request:
                case FindSink():
                    return [asked.reply(self._answer(request.sink))]
                case AttachSink():
                    return self._attach(asked, request, now)
                case Stage():
                    return self._stage(asked, request, payload, now)
                case Commit():
                    return self._commit(asked, request, now)
                case Drop():
                    return self._drop(asked, request, now)
        except ChappeError as error:
            return [asked.reply(_refusal(error))]

    def handle_done(self, done: SinkJob, outcome: Intent | ChappeError | None, now: float) -> list[Effect]:
        """End a job; ``outcome`` is the intent of a commit, whose records are readable by now, or an error."""
        found = self._jobs.pop(done.ticket)
        job = found.job
        if found.asked:
            self._bytes -= _size(job)
        if found.repeatable is not None and self._repeatable.get(found.repeatable) == done.ticket:
            del self._repeatable[found.repeatable]
        if isinstance(job, CommitBatch):
            return self._committed(job, found.asked, outcome, now)
        if isinstance(job, Remember) and outcome is None and job.state.sink in self._sinks:
            saved = self._sinks[job.state.sink]
            saved.saved_run, saved.saved_home = job.state.run, job.state.home
        return [
            asked.reply(_refusal(outcome) if isinstance(outcome, ChappeError) else self._done(asked))
            for asked in found.asked
        ]

    def handle_timeout(self, now: float) -> list[Effect]:
        """Repeat heads, and remove what nobody needs."""
        actions: list[Effect] = []
        for timer in self._timers.due(now):
            if timer == "sweep":
                actions += self._sweep(now)
                continue
            self._heads = {key: found for key, found in self._heads.items() if now <= found[1]}
            if self._heads:
                self._timers.set("heads", now + HEAD_INTERVAL_S)
            actions += [Publish(Head(topic, part, topic, end - 1)) for (topic, part), (end, _) in self._heads.items()]
        return actions

    def next_timeout(self) -> float:
        return self._timers.next

    def batches(self) -> dict[str, int]:
        """Return the last committed batch of each sink whose home this store is; -1 for none."""
        return {name: each.state.batch for name, each in self._sinks.items() if each.state.home == self._store_id}

    def invariants(self) -> list[str]:
        waiting = sum(_size(each.job) for each in self._jobs.values() if each.asked)
        return [] if self._bytes == waiting else [f"{self._bytes} bytes of requests are counted, {waiting} wait"]

    def _answer(self, name: str) -> SinkAnswer:
        sink = self._sinks.get(name)
        if sink is None:
            return SinkAnswer(self._store_id, "", "", -1)
        return SinkAnswer(self._store_id, sink.state.home, sink.state.run, sink.state.batch)

    def _attach(self, asked: _Asker, request: AttachSink, now: float) -> list[Effect]:
        if not request.sink or not request.run or not request.home:
            raise _Refused("a sink, its run and its home need names")
        sink = self._sinks.get(request.sink)
        if sink is None:
            if len(self._sinks) >= SINKS_MAX:
                raise _Refused(f"this store knows {SINKS_MAX} sinks, which is the most; choose another store")
            state = SinkState(request.sink, request.home, lasting=request.lasting)
            sink = self._sinks[request.sink] = _SinkAtHome(state, "", "", now)
            if "sweep" not in self._timers:
                self._timers.set("sweep", now + self._limits.maintain_s)
        actions: list[Effect] = []
        if request.home == self._store_id:
            actions += self._make_current(sink, request.run)
        elif sink.state.home == self._store_id:
            if sink.state.batch >= 0 or sink.committing:
                # this store is the home, and what it has committed must be known to whoever commits
                raise self._elsewhere(sink)
            actions += self._discard(sink, list(sink.staged))
            sink.state = SinkState(request.sink, request.home, lasting=request.lasting)
        else:
            sink.state = replace(sink.state, home=request.home)
        sink.state = replace(sink.state, lasting=sink.state.lasting or request.lasting)
        sink.touched_at = now
        return [*actions, *self._job(Remember(sink.state), asked)]

    def _make_current(self, sink: _SinkAtHome, run: str) -> list[Effect]:
        state = sink.state
        if state.home != self._store_id:
            raise self._elsewhere(sink)
        if run in state.fenced:
            raise self._fenced(sink, run)
        if run == state.run:
            return []
        fenced = (*state.fenced, state.run)[-RUNS_MAX:] if state.run else ()
        sink.state = replace(state, run=run, fenced=fenced)
        return self._discard(sink, [each for each in sink.staged if each.run != run])

    def _moves(self, sink: _SinkAtHome, request: SinkRequest) -> bool:
        """Return True if another store is the home now, and the disk does not know it: nobody is sent there before."""
        if isinstance(request, AttachSink) and request.home != self._store_id:
            return False  # answered when it is on disk
        return sink.state.home not in (self._store_id, sink.saved_home)

    def _remember(self, sink: _SinkAtHome) -> list[Effect]:
        """Save the state, unless that is under way: the one who wanted it may be gone."""
        job = Remember(sink.state)
        return [] if any(each.job == job for each in self._jobs.values()) else self._job(job)

    def _elsewhere(self, sink: _SinkAtHome) -> _Refused:
        return _Refused(f"the home of sink {sink.state.sink} is the store {sink.state.home}; ask that one", ELSEWHERE)

    def _fenced(self, sink: _SinkAtHome, run: str) -> Fenced:
        return Fenced(f"run {run} of sink {sink.state.sink} is over, run {sink.state.run} took over; stop this one")

    def _current(self, name: str, run: str, now: float) -> _SinkAtHome:
        """Return the sink, if ``run`` may write to it here."""
        sink = self._sinks.get(name)
        if sink is None:
            raise _Refused(f"this store does not know sink {name}; attach it first", ELSEWHERE)
        if sink.state.home != self._store_id:
            raise self._elsewhere(sink)
        if run != sink.state.run:
            raise self._fenced(sink, run)
        if run != sink.saved_run:
            raise _Refused(f"run {run} of sink {name} is not attached yet; wait for the answer")
        sink.touched_at = now
        return sink

    def _stage(self, asked: _Asker, request: Stage, payload: bytes, now: float) -> list[Effect]:
        batch = Batch.parse(payload)
        if not request.topic or b"\0" in request.topic:
            raise ProtocolError("rows for a topic without a name, or with NUL in it")
        sink = self._current(request.sink, request.run, now)
        if request.batch <= sink.state.batch:
            return [asked.reply(StagedAnswer(request.piece))]
        attempt = StagedAttempt(request.sink, request.run, request.batch, request.task, request.attempt)
        topics = sink.staged.get(attempt)
        if topics is None:
            if len(sink.staged) >= ATTEMPTS_MAX:
                raise _Refused(f"{ATTEMPTS_MAX} attempts of sink {request.sink} are staged, which is the most")
            topics = sink.staged[attempt] = {}
        topic = decode_topic(request.topic)
        topics[topic] = None
        return self._job(StagePiece(attempt, request.piece, topic, batch.count, payload), asked)

    def _drop(self, asked: _Asker, request: Drop, now: float) -> list[Effect]:
        sink = self._current(request.sink, request.run, now)
        attempts = [
            StagedAttempt(request.sink, request.run, request.batch, task, attempt) for task, attempt in request.attempts
        ]
        job = Discard(tuple(attempts))
        staged = [attempt for attempt in attempts if sink.staged.pop(attempt, None) is not None]
        if staged:
            self._repeatable.pop(job, None)  # the one under way comes before what was staged since
        return self._job(job, asked)

    def _discard(self, sink: _SinkAtHome, attempts: Sequence[StagedAttempt]) -> list[Effect]:
        for attempt in attempts:
            del sink.staged[attempt]
        return self._job(Discard(tuple(attempts))) if attempts else []

    def _commit(self, asked: _Asker, request: Commit, now: float) -> list[Effect]:
        sink = self._current(request.sink, request.run, now)
        if request.batch <= sink.state.batch:
            return [asked.reply(CommitAnswer(request.batch, True, []))]
        if sink.committing:
            sink.waiting.append(asked)
            del sink.waiting[:-WAITING_MAX]
            return []
        job = self._commit_job(sink, request)
        sink.committing = True
        return self._job(job, asked)

    def _commit_job(self, sink: _SinkAtHome, request: Commit) -> CommitBatch:
        attempts = sorted(request.attempts)
        if len({task for task, *_ in attempts}) < len(attempts):
            raise _Refused(f"batch {request.batch} names a task twice")
        topics: dict[str, None] = {}
        for task, attempt, pieces, rows in attempts:
            found = sink.staged.get(StagedAttempt(request.sink, request.run, request.batch, task, attempt))
            if found is None and (pieces or rows):
                raise StagedRowsMissing(
                    f"task {task}, attempt {attempt} of batch {request.batch} is not staged here; run the batch again"
                )
            topics |= found or {}
        ends = dict(sink.state.ends)
        bases = []
        for topic in topics:
            partition = sink_address(request.sink, topic)
            bases.append((topic, partition, max(self._next_offset(topic, partition), ends.get(topic, 0))))
        return CommitBatch(request.sink, request.run, request.batch, tuple(attempts), tuple(bases))

    def _committed(
        self, job: CommitBatch, asked: Sequence[_Asker], outcome: Intent | ChappeError | None, now: float
    ) -> list[Effect]:
        sink = self._sinks[job.sink]
        sink.committing = False
        sink.touched_at = now
        actions: list[Effect] = []
        if isinstance(outcome, Intent):
            # the run may be another one by now: what it decided stays
            sink.state = with_batch(sink.state, outcome)
            self._announce(outcome, now)
            actions += self.handle_timeout(now)
            ends = [(encode_topic(topic), part.encode(), first, end) for topic, part, first, end in outcome.ranges]
            answer: SinkReply = CommitAnswer(job.batch, False, ends)
        else:
            answer = _refusal(outcome or ChappeError("the commit was not carried out"))
        actions = [*(each.reply(answer) for each in asked), *actions]
        waiting, sink.waiting = sink.waiting, []
        for each in waiting:
            assert isinstance(each.request, Commit)
            if isinstance(answer, ErrorAnswer) and any(each.request == one.request for one in asked):
                actions.append(each.reply(answer))  # asked again meanwhile: as every job, it is not done once for each
                continue
            actions += self.handle_request(each.client, each.request_id, each.request, b"", now)
        return actions + self._discard(sink, [each for each in sink.staged if each.batch <= sink.state.batch])

    def _announce(self, intent: Intent, now: float) -> None:
        for topic, partition, _, end in intent.ranges:
            self._heads[topic, partition] = (end, now + SINK_HEADS_S)
            self._timers.set("heads", now)

    def _done(self, asked: _Asker) -> SinkReply:
        request = asked.request
        if isinstance(request, AttachSink):
            return self._answer(request.sink)
        return StagedAnswer(request.piece if isinstance(request, Stage) else -1)

    def _job(self, job: Job, asked: _Asker | None = None) -> list[Effect]:
        """Begin a job, and answer ``asked`` when it is done.

        A client that was not answered in time asks again. Each time a further job of the same kind would only make a
        busy disk busier, until nobody is answered in time any more: a job under way is not begun twice.
        """
        repeatable = None if asked is None else _repeatable(asked.request, job)
        if asked is not None and repeatable in self._repeatable:
            waiting = self._jobs[self._repeatable[repeatable]].asked
            waiting.append(asked)
            del waiting[1:-ASKED_MAX]
            return []
        self._last_ticket += 1
        self._jobs[self._last_ticket] = _Job(job, [] if asked is None else [asked], repeatable)
        if repeatable is not None:
            self._repeatable[repeatable] = self._last_ticket
        if asked is not None:
            self._bytes += _size(job)
        return [Persist(SinkJob(self._last_ticket, job))]

    def _sweep(self, now: float) -> list[Effect]:
        """Remove what a crash left, rows that wait for a commit for too long, and sinks that need not last."""
        actions: list[Effect] = []
        stray, self._stray = self._stray, []
        if stray:
            actions += self._job(Discard(tuple(stray)))
        forgotten: list[str] = []
        for name, sink in self._sinks.items():
            if sink.committing:
                continue
            if sink.staged and now - sink.touched_at >= self._limits.staged_forget_s:
                actions += self._discard(sink, list(sink.staged))
            if not sink.state.lasting and now - sink.touched_at >= SINK_FORGET_S:
                forgotten.append(name)
        for name in forgotten:
            del self._sinks[name]
        if self._sinks:
            self._timers.set("sweep", now + self._limits.maintain_s)
        return [*actions, *(self._job(Forget(tuple(forgotten))) if forgotten else [])]


def _repeatable(request: SinkRequest, job: Job) -> Repeatable | None:
    if isinstance(job, Discard):
        return job
    return request if isinstance(request, Stage | AttachSink) else None


def _size(job: Job) -> int:
    return REQUEST_BYTES + (len(job.body) if isinstance(job, StagePiece) else 0)


def _refusal(error: ChappeError) -> ErrorAnswer:
    kind = error.kind if isinstance(error, _Refused) else _KINDS.get(type(error), "")
    return ErrorAnswer(str(error), kind)
