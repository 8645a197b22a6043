"""A store reduced to what a sink asks of it, in memory, which fails on demand."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from tests.spark.answering import Answering

from chappe.data.topic import decode_topic
from chappe.log.batch import Batch
from chappe.log.exactly_once.transactions import sink_address
from chappe.log.queries import (
    Answer,
    AttachSink,
    Commit,
    CommitAnswer,
    Drop,
    ErrorAnswer,
    FindSink,
    ReadAnswer,
    ReadRequest,
    Request,
    SinkAnswer,
    Stage,
    StagedAnswer,
)

Attempt = tuple[int, int, int]  # batch, task, attempt


@dataclass
class Kept:
    """What a store knows of one sink. Survives the store, as a directory does."""

    home: str = ""
    run: str = ""
    fenced: set[str] = field(default_factory=set)
    batch: int = -1
    staged: dict[Attempt, dict[int, tuple[str, bytes]]] = field(default_factory=dict)


class FakeSink(Answering):
    """Answers on a thread until closed.

    Args:
        store_id: Its lasting id.
        kept: What an earlier one with this id knew.
        silent_after: So many Stage requests are done and answered; then nothing is, as by a store that is killed.
        refuse: The kind of error that every Commit is answered with.
    """

    def __init__(
        self,
        store_id: str = "A",
        *,
        kept: dict[str, Kept] | None = None,
        values: dict[tuple[str, str], list[bytes | None]] | None = None,
        silent_after: int | None = None,
        refuse: str | None = None,
        endpoint: str = "tcp://127.0.0.1:*",
    ) -> None:
        self.store_id = store_id
        self.kept = {} if kept is None else kept
        self.values = {} if values is None else values
        self.asked: Counter[str] = Counter()
        self.unanswered_max = 0
        self.commits: list[Commit] = []
        self._silent_after = silent_after
        self.refuse = refuse
        super().__init__(endpoint)

    def is_silent(self) -> bool:
        return self._silent_after is not None and self.asked["Stage"] >= self._silent_after

    def sink(self, name: str) -> Kept:
        return self.kept.setdefault(name, Kept())

    def records(self, topic: str) -> list[bytes | None]:
        """All values of a topic."""
        return [value for (name, _), values in self.values.items() if name == topic for value in values]

    def answered(self, request: Request, payload: list[bytes]) -> tuple[Answer, list[bytes]] | None:
        self.asked[type(request).__name__] += 1
        if self._silent_after is not None and self.asked["Stage"] > self._silent_after:
            return None
        return self._answer(request, payload), []

    def _answer(self, request: Request, payload: list[bytes]) -> Answer:
        match request:
            case FindSink():
                return self._known(request.sink)
            case AttachSink():
                return self._attach(request)
            case Stage() | Commit() | Drop():
                kept = self.sink(request.sink)
                if request.run != kept.run:
                    return ErrorAnswer("another run took over", "fenced")
                if isinstance(request, Stage):
                    return self._stage(request, kept, payload[0])
                if isinstance(request, Commit):
                    return self._commit(request, kept)
                for task, attempt in request.attempts:
                    kept.staged.pop((request.batch, task, attempt), None)
                return StagedAnswer(0)
            case ReadRequest():
                key = (decode_topic(request.topic), decode_topic(request.partition))
                return ReadAnswer(
                    request.topic, request.partition, 0, len(self.values.get(key, ())), key in self.values
                )
            case _:
                raise AssertionError(request)

    def _known(self, sink: str) -> SinkAnswer:
        kept = self.kept.get(sink, Kept())
        return SinkAnswer(self.store_id, kept.home, kept.run, kept.batch)

    def _attach(self, request: AttachSink) -> Answer:
        kept = self.sink(request.sink)
        if kept.home not in ("", request.home):
            return ErrorAnswer(f"the home is {kept.home}", "elsewhere")
        if request.run in kept.fenced:
            return ErrorAnswer("another run took over", "fenced")
        if kept.run not in ("", request.run):
            kept.fenced.add(kept.run)
            kept.staged.clear()
        kept.home, kept.run = request.home, request.run
        return self._known(request.sink)

    def _stage(self, request: Stage, kept: Kept, raw: bytes) -> Answer:
        if request.batch > kept.batch:
            pieces = kept.staged.setdefault((request.batch, request.task, request.attempt), {})
            pieces[request.piece] = (decode_topic(request.topic), raw)
        return StagedAnswer(request.piece)

    def _commit(self, request: Commit, kept: Kept) -> Answer:
        self.commits.append(request)
        if self.refuse is not None:
            return ErrorAnswer("as the test wishes", self.refuse)
        if request.batch <= kept.batch:
            return CommitAnswer(kept.batch, True, [])
        for task, attempt, pieces, rows in request.attempts:
            staged = kept.staged.get((request.batch, task, attempt), {})
            assert sorted(staged) == list(range(pieces))
            assert sum(Batch.parse(raw).count for _, raw in staged.values()) == rows
            for number in range(pieces):
                topic, raw = staged[number]
                self.values.setdefault((topic, sink_address(request.sink, topic)), []).extend(Batch.parse(raw).values())
        kept.batch = request.batch
        kept.staged.clear()
        return CommitAnswer(request.batch, False, [])
