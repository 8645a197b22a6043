"""Sinks at their home: who may write, what is committed and when it is answered. The disk does as the test says."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import pytest
from tests.log.memory_storage import MemoryLogStorage
from tests.worlds.staged import MemoryStaged

from chappe.core import Effect, Persist, Publish, Reply
from chappe.data.topic import encode_topic
from chappe.defaults import (
    HEAD_INTERVAL_S,
    RUNS_MAX,
    SINK_FORGET_S,
    SINK_HEADS_S,
    STAGED_FORGET_S,
)
from chappe.errors import ChappeError, StagedRowsMissing, StorageFull
from chappe.limits import LOG_LIMITS
from chappe.log.batch import Batch, encode_batch
from chappe.log.exactly_once.staged import CommitBatch, Finishing, Forget, SinkJob, recover
from chappe.log.exactly_once.transactions import Transactions, sink_address
from chappe.log.messages import Head
from chappe.log.ordered.machine import is_ordered
from chappe.log.queries import (
    ELSEWHERE,
    FENCED,
    FULL,
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

WALL = 1_700_000_000_000_000
Named = tuple[int, int, int, int]


class Rig:
    """The core, its disk, and a clock. Jobs are done when the test says so."""

    def __init__(self, store_id: str = "home") -> None:
        self.storage = MemoryLogStorage(store_id)
        self.staged = MemoryStaged()
        self.now = 1000.0
        self.jobs: list[SinkJob] = []
        self.replies: list[tuple[bytes, Answer]] = []
        self.heads: list[Head] = []
        self._asked = 0
        self.restart()

    def restart(self) -> None:
        """A new life on the same disk."""
        kept = recover(self.staged, self.storage)
        self.jobs.clear()
        self.core = Transactions(self.storage.store_id, kept, self._next, now=self.now)
        self.wait(0.0)

    def _next(self, topic: str, partition: str) -> int:
        info = self.storage.partition(topic, partition)
        return 0 if info is None else info.next

    def ask(self, request: SinkRequest, payload: bytes = b"") -> bytes:
        """Send a request; returns its id."""
        self._asked += 1
        raw_id = b"%08d" % self._asked
        self._perform(self.core.handle_request(b"client", raw_id, request, payload, self.now))
        return raw_id

    def _perform(self, actions: Sequence[Effect]) -> None:
        for action in actions:
            if isinstance(action, Persist):
                self.jobs.append(action.job)
            elif isinstance(action, Reply):
                self.replies.append((action.message.request_id, action.message.answer))
            else:
                assert isinstance(action, Publish)
                assert isinstance(action.message, Head)
                self.heads.append(action.message)

    def do(self, failure: ChappeError | None = None) -> None:
        """Do the first job, or have it fail."""
        work = self.jobs.pop(0)
        if failure is not None:
            self._perform(self.core.handle_done(work, failure, self.now))
            return
        try:
            if not isinstance(work.job, CommitBatch):
                self.staged.carry_out(work.job)
                self._perform(self.core.handle_done(work, None, self.now))
                return
            finishing = Finishing(self.staged, self.storage, self.staged.prepare(work.job))
        except ChappeError as error:
            self._perform(self.core.handle_done(work, error, self.now))
            return
        while not finishing.done:
            finishing.step()
        for written in finishing.written:
            self.storage.publish(written)
        self._perform(self.core.handle_done(work, finishing.intent, self.now))

    def get(self, request: SinkRequest, payload: bytes = b"") -> Answer:
        """Send a request, do all jobs, and return the answer."""
        raw_id = self.ask(request, payload)
        while self.jobs:
            self.do()
        return self.answer_to(raw_id)

    def answer_to(self, raw_id: bytes) -> Answer:
        (found,) = [answer for each, answer in self.replies if each == raw_id]
        return found

    def answered(self, raw_id: bytes) -> bool:
        return any(each == raw_id for each, _ in self.replies)

    def wait(self, seconds: float) -> None:
        """Let time pass, timeout by timeout."""
        end = self.now + seconds
        for _ in range(100_000):
            due = self.core.next_timeout()
            if due > end:
                self.now = end
                return
            self.now = max(self.now, due)
            self._perform(self.core.handle_timeout(self.now))
            while self.jobs:
                self.do()
        raise AssertionError("it wants to be called again and again without time passing")

    # -- a sink ---

    def attach(self, run: str = "one", *, home: str = "home", lasting: bool = True, sink: str = "q") -> Answer:
        return self.get(AttachSink(sink, run, home, lasting))

    def stage(
        self, batch: int, task: int, *values: bytes, run: str = "one", attempt: int = 0, piece: int = 0
    ) -> Answer:
        return self.get(self.piece(batch, task, run=run, attempt=attempt, piece=piece), encode_batch(0, values, WALL))

    @staticmethod
    def piece(batch: int, task: int, *, run: str = "one", attempt: int = 0, piece: int = 0, topic: str = "t") -> Stage:
        return Stage("q", run, batch, task, attempt, piece, encode_topic(topic))

    def commit(self, batch: int, *attempts: Named, run: str = "one") -> Answer:
        return self.get(Commit("q", run, batch, list(attempts)))

    def values(self, topic: str = "t") -> list[bytes | None]:
        found: list[bytes | None] = []
        partition = sink_address("q", topic)
        while (at := len(found)) < self._next(topic, partition):
            for raw in self.storage.read(topic, partition, at, 1 << 20).batches:
                batch = Batch.parse(raw)
                assert batch.base == len(found)
                found += batch.values()
        return found


@pytest.fixture
def rig() -> Rig:
    made = Rig()
    assert made.attach() == SinkAnswer("home", "home", "one", -1)
    return made


def kind(answer: Answer) -> str:
    assert isinstance(answer, ErrorAnswer), answer
    return answer.kind


def test_a_partition_is_named_by_its_sink_and_topic() -> None:
    assert sink_address("r", "t") == hashlib.sha256(b"r\0t").hexdigest()[:32].upper()
    assert sink_address("q", "t") == "8D8135152D5443200419F40628FB59FF"  # which the checksum has as 5
    assert not any(is_ordered(sink_address(f"q{n}", "t")) for n in range(500))
    assert len({sink_address(*names) for names in (("q", "t"), ("q", "u"), ("r", "t"), ("qt", ""), ("", "qt"))}) == 5


# -- who may write -----------------------------------------------------------------------------------------


def test_a_store_says_that_it_never_heard_of_a_sink(rig: Rig) -> None:
    assert rig.get(FindSink("other")) == SinkAnswer("home", "", "", -1)
    assert kind(rig.get(Commit("other", "one", 0, []))) == ELSEWHERE


def test_attaching_is_answered_when_it_is_on_disk() -> None:
    rig = Rig()
    asked = rig.ask(AttachSink("q", "one", "home", True))
    assert not rig.answered(asked)
    rig.do()
    assert rig.answer_to(asked) == SinkAnswer("home", "home", "one", -1)
    rig.restart()
    assert rig.get(FindSink("q")) == SinkAnswer("home", "home", "one", -1)


def test_a_run_whose_attachment_failed_may_not_write() -> None:
    rig = Rig()
    asked = rig.ask(AttachSink("q", "one", "home", True))
    rig.do(StorageFull("full"))
    assert kind(rig.answer_to(asked)) == FULL
    assert "not attached" in str(rig.stage(0, 0, b"x"))
    assert rig.attach() == SinkAnswer("home", "home", "one", -1)
    assert rig.stage(0, 0, b"x") == StagedAnswer(0)


def test_a_newer_run_fences_all_others_also_after_a_restart(rig: Rig) -> None:
    rig.stage(0, 0, b"x")
    assert rig.attach("two") == SinkAnswer("home", "home", "two", -1)
    for _ in range(2):
        assert kind(rig.stage(0, 0, b"x")) == FENCED
        assert kind(rig.commit(0)) == FENCED
        assert kind(rig.get(Drop("q", "one", 0, [(0, 0)]))) == FENCED
        assert kind(rig.attach("one")) == FENCED
        rig.restart()
    assert rig.staged.rows == {}


def test_the_newest_fenced_runs_are_remembered(rig: Rig) -> None:
    for number in range(RUNS_MAX + 2):
        rig.attach(f"run {number}")
    assert kind(rig.attach("run 5")) == FENCED
    assert isinstance(rig.attach("one"), SinkAnswer)


def test_another_store_only_remembers_the_home() -> None:
    rig = Rig("other")
    assert rig.attach() == SinkAnswer("other", "home", "", -1)
    assert kind(rig.stage(0, 0, b"x")) == ELSEWHERE
    assert kind(rig.attach(home="other")) == ELSEWHERE
    rig.restart()
    assert rig.get(FindSink("q")) == SinkAnswer("other", "home", "", -1)


def test_nobody_is_sent_to_another_home_before_that_is_on_disk(rig: Rig) -> None:
    """After a crash this store would be the home again, beside the other one."""
    rig.ask(AttachSink("q", "two", "another", True))
    for request in (FindSink("q"), AttachSink("q", "three", "home", True), Commit("q", "one", 0, [])):
        assert kind(rig.answer_to(rig.ask(request))) == ""
    rig.restart()
    assert rig.get(FindSink("q")) == SinkAnswer("home", "home", "one", -1)

    rig.ask(AttachSink("q", "two", "another", True))
    rig.do(StorageFull("full"))
    assert kind(rig.get(FindSink("q"))) == "", "who wanted it may be gone: it is saved for whoever asks"
    assert rig.get(FindSink("q")) == SinkAnswer("home", "another", "", -1)
    assert kind(rig.attach("three")) == ELSEWHERE


def test_a_home_gives_way_only_while_nothing_is_committed(rig: Rig) -> None:
    rig.stage(0, 0, b"x")
    assert rig.attach(home="another") == SinkAnswer("home", "another", "", -1)
    assert rig.staged.rows == {}

    rig = Rig()
    rig.attach()
    committing = rig.ask(Commit("q", "one", 0, []))
    assert kind(rig.attach(home="another")) == ELSEWHERE, "what is under way may be decided already"
    assert isinstance(rig.answer_to(committing), CommitAnswer)
    assert kind(rig.attach(home="another")) == ELSEWHERE


# -- commits -----------------------------------------------------------------------------------------------


def test_a_commit_shows_exactly_the_attempts_that_it_names(rig: Rig) -> None:
    rig.stage(0, 1, b"c", b"d")
    rig.stage(0, 0, b"a", attempt=4)
    rig.stage(0, 0, b"a again", attempt=5)
    rig.stage(0, 0, b"b", attempt=4, piece=1)
    assert rig.values() == []

    answer = rig.commit(0, (1, 0, 1, 2), (0, 4, 2, 2))

    assert answer == CommitAnswer(0, False, [(b"t", sink_address("q", "t").encode(), 0, 4)])
    assert rig.values() == [b"a", b"b", b"c", b"d"]
    assert rig.staged.rows == {}, "what other attempts have staged is removed"


def test_a_commit_is_answered_only_when_it_is_done(rig: Rig) -> None:
    rig.stage(0, 0, b"a")
    first = rig.ask(Commit("q", "one", 0, [(0, 0, 1, 1)]))
    again = rig.ask(Commit("q", "one", 0, [(0, 0, 1, 1)]))
    assert len(rig.jobs) == 1
    assert not rig.answered(first)
    rig.do()
    assert not getattr(rig.answer_to(first), "repeated", True)
    assert rig.answer_to(again) == CommitAnswer(0, True, [])
    assert rig.values() == [b"a"]


def test_what_is_committed_is_not_committed_again(rig: Rig) -> None:
    rig.commit(5)
    assert rig.stage(5, 0, b"x") == StagedAnswer(0)
    assert rig.staged.rows == {}
    for batch in (5, 4):
        assert rig.commit(batch, (0, 0, 1, 1)) == CommitAnswer(batch, True, [])
    rig.restart()
    assert rig.commit(5, (0, 0, 1, 1)) == CommitAnswer(5, True, [])


@pytest.mark.parametrize("named", [(0, 1, 1, 1), (0, 0, 2, 1), (0, 0, 1, 2), (1, 0, 1, 1)])
def test_a_commit_of_what_is_not_there_does_nothing(rig: Rig, named: Named) -> None:
    rig.stage(0, 0, b"a")
    assert kind(rig.commit(0, named)) == MISSING
    assert rig.values() == []
    assert isinstance(rig.commit(0, (0, 0, 1, 1)), CommitAnswer)


def test_a_commit_names_each_task_once(rig: Rig) -> None:
    rig.stage(0, 0, b"a")
    rig.stage(0, 0, b"a", attempt=1)
    assert "twice" in str(rig.commit(0, (0, 0, 1, 1), (0, 1, 1, 1)))


def test_a_full_disk_is_said_and_nothing_is_committed(rig: Rig) -> None:
    rig.stage(0, 0, b"a")
    rig.staged.full = True
    assert kind(rig.commit(0, (0, 0, 1, 1))) == FULL
    assert kind(rig.stage(0, 1, b"b")) == FULL
    rig.staged.full = False
    assert isinstance(rig.commit(0, (0, 0, 1, 1)), CommitAnswer)
    assert rig.values() == [b"a"]


def test_a_run_that_takes_over_during_a_commit_hears_of_it(rig: Rig) -> None:
    rig.stage(0, 0, b"a")
    old = rig.ask(Commit("q", "one", 0, [(0, 0, 1, 1)]))
    waiting = rig.ask(Commit("q", "one", 0, [(0, 0, 1, 1)]))
    new = rig.ask(AttachSink("q", "two", "home", True))
    while rig.jobs:
        rig.do()
    assert isinstance(rig.answer_to(old), CommitAnswer)
    assert kind(rig.answer_to(waiting)) == FENCED
    assert rig.answer_to(new) == SinkAnswer("home", "home", "two", 0)
    rig.restart()
    assert rig.get(FindSink("q")) == SinkAnswer("home", "home", "two", 0)


def test_a_batch_goes_on_behind_what_the_disk_has_lost(rig: Rig) -> None:
    rig.stage(0, 0, b"a", b"b")
    rig.commit(0, (0, 0, 1, 2))
    rig.storage = MemoryLogStorage("home")
    rig.restart()
    rig.stage(1, 0, b"c")
    answer = rig.commit(1, (0, 0, 1, 1))
    assert isinstance(answer, CommitAnswer)
    assert answer.ends[0][2:] == (2, 3)


def test_an_interrupted_commit_is_finished_by_the_next_start(rig: Rig) -> None:
    rig.stage(0, 0, b"a")
    rig.ask(Commit("q", "one", 0, [(0, 0, 1, 1)]))
    job = rig.jobs[0].job
    assert isinstance(job, CommitBatch)
    rig.staged.prepare(job)
    rig.restart()
    assert rig.values() == [b"a"]
    assert rig.commit(0, (0, 0, 1, 1)) == CommitAnswer(0, True, [])
    assert [head.sequence for head in rig.heads] == [0]
    assert rig.staged.rows == {}


def test_heads_are_told_and_repeated_for_some_seconds(rig: Rig) -> None:
    rig.stage(0, 0, b"a", b"b")
    rig.commit(0, (0, 0, 1, 2))
    partition = sink_address("q", "t")
    assert rig.heads == [Head("t", partition, "t", 1)]
    rig.wait(60.0)
    assert len(rig.heads) == 1 + SINK_HEADS_S / HEAD_INTERVAL_S
    assert set(rig.heads) == {Head("t", partition, "t", 1)}


# -- what nobody needs ----------------------------------------------------------------------------------------


def test_dropped_rows_are_gone(rig: Rig) -> None:
    rig.stage(0, 0, b"a")
    assert rig.get(Drop("q", "one", 0, [(0, 0), (7, 7)])) == StagedAnswer(-1)
    assert rig.staged.rows == {}
    assert kind(rig.commit(0, (0, 0, 1, 1))) == MISSING


def test_rows_that_nobody_commits_are_removed_after_a_day(rig: Rig) -> None:
    rig.stage(0, 0, b"a")
    rig.wait(STAGED_FORGET_S - 60.0)
    assert rig.staged.rows
    rig.wait(120.0)
    assert rig.staged.rows == {}


def test_rows_of_a_sink_that_is_used_are_kept_however_long_it_takes(rig: Rig) -> None:
    for piece in range(3):
        rig.wait(STAGED_FORGET_S - 60.0)
        assert rig.stage(0, 0, b"%d" % piece, piece=piece) == StagedAnswer(piece)
    rig.wait(STAGED_FORGET_S - 60.0)
    assert isinstance(rig.commit(0, (0, 0, 3, 3)), CommitAnswer)
    assert rig.values() == [b"0", b"1", b"2"]


def test_a_sink_that_need_not_last_is_forgotten(rig: Rig) -> None:
    rig.attach(sink="once", lasting=False)
    rig.wait(SINK_FORGET_S - 60.0)
    assert set(rig.staged.sinks) == {"q", "once"}
    rig.wait(120.0)
    assert set(rig.staged.sinks) == {"q"}
    assert rig.get(FindSink("once")) == SinkAnswer("home", "", "", -1)


def test_it_asks_for_no_more_while_much_waits_for_the_disk(rig: Rig) -> None:
    payload = encode_batch(0, [bytes(8 << 20)], WALL)
    for piece in range(LOG_LIMITS.staged_bytes_max // len(payload) + 1):
        assert not rig.core.paused
        rig.ask(rig.piece(0, 0, piece=piece), payload)
    assert rig.core.paused
    rig.do()
    assert not rig.core.paused

    rig.attach("two")  # removes what was staged, which nobody waits for
    assert rig.core.invariants() == []


def test_what_is_asked_again_while_it_is_done_is_done_once(rig: Rig) -> None:
    payload = encode_batch(0, [b"x"], WALL)
    pieces = [rig.ask(rig.piece(0, 0), payload) for _ in range(3)]
    runs = [rig.ask(AttachSink("q", "two", "home", True)) for _ in range(3)]
    assert len(rig.jobs) == 3, "one piece, one run, and the removal of what the old run has staged"
    while rig.jobs:
        rig.do()
    assert [rig.answer_to(each) for each in pieces] == [StagedAnswer(0)] * 3
    assert [rig.answer_to(each) for each in runs] == [SinkAnswer("home", "home", "two", -1)] * 3
    assert rig.stage(0, 0, b"x", run="two") == StagedAnswer(0)


def test_a_drop_that_is_asked_again_while_it_is_done_is_done_once(rig: Rig) -> None:
    """What nobody staged too: an attempt without rows has no pieces."""
    rig.stage(0, 0, b"x")
    drops = [rig.ask(Drop("q", "one", 0, [(0, 0), (1, 3)])) for _ in range(50)]
    other = rig.ask(Drop("q", "one", 0, [(2, 0)]))
    assert len(rig.jobs) == 2, "a busy disk is not made busier by who waits for it"
    rig.do()
    assert all(rig.answer_to(each) == StagedAnswer(-1) for each in drops)
    assert not rig.answered(other)
    rig.do()
    assert rig.answer_to(other) == StagedAnswer(-1)
    assert rig.staged.rows == {}
    assert rig.get(Drop("q", "one", 0, [(0, 0), (1, 3)])) == StagedAnswer(-1)


def test_what_is_staged_behind_a_drop_under_way_is_dropped_by_a_further_one(rig: Rig) -> None:
    payload = encode_batch(0, [b"x"], WALL)
    drop = Drop("q", "one", 0, [(0, 0)])
    drops = [rig.ask(drop)]
    rig.ask(rig.piece(0, 0), payload)
    drops += [rig.ask(drop), rig.ask(drop)]
    assert len(rig.jobs) == 3
    rig.do()
    assert [rig.answered(each) for each in drops] == [True, False, False]
    drops.append(rig.ask(drop))
    while rig.jobs:
        rig.do()
    assert rig.staged.rows == {}
    assert all(rig.answer_to(each) == StagedAnswer(-1) for each in drops)


def test_a_commit_that_is_asked_again_while_it_fails_is_tried_once(rig: Rig) -> None:
    rig.stage(0, 0, b"x")
    rig.stage(0, 1, b"y")
    commits = [rig.ask(Commit("q", "one", 0, [(0, 0, 1, 1)])) for _ in range(50)]
    other = rig.ask(Commit("q", "one", 0, [(0, 0, 1, 1), (1, 0, 1, 1)]))
    rig.do(StorageFull("no room"))
    assert [kind(rig.answer_to(each)) for each in commits] == [FULL] * 50
    rig.do()
    assert not rig.jobs[1:], "what is left is the removal of staged rows"
    assert isinstance(rig.answer_to(other), CommitAnswer)
    assert sorted(value or b"" for value in rig.values()) == [b"x", b"y"]


def test_a_piece_without_the_one_before_it_is_refused(rig: Rig) -> None:
    rig.stage(0, 0, b"a")
    assert kind(rig.stage(0, 0, b"c", piece=2)) == MISSING
    assert rig.stage(0, 0, b"a", piece=0) == StagedAnswer(0)
    assert rig.stage(0, 0, b"b", piece=1) == StagedAnswer(1)
    rig.commit(0, (0, 0, 2, 2))
    assert rig.values() == [b"a", b"b"]


def test_a_piece_that_is_no_batch_is_refused(rig: Rig) -> None:
    assert "batch of 8 bytes" in str(rig.get(rig.piece(0, 0), b"no batch"))


@pytest.mark.parametrize("topic", [b"", b"a\0b"])
def test_rows_need_a_topic(rig: Rig, topic: bytes) -> None:
    assert kind(rig.get(Stage("q", "one", 0, 0, 0, 0, topic), encode_batch(0, [b"x"], WALL))) == ""


def test_forgetting_is_a_job_like_any_other(rig: Rig) -> None:
    rig.attach(sink="once", lasting=False)
    rig.staged.carry_out(Forget(("once",)))
    assert set(rig.staged.sinks) == {"q"}


def test_missing_rows_have_an_error_of_their_own() -> None:
    staged = MemoryStaged()
    with pytest.raises(StagedRowsMissing):
        staged.prepare(CommitBatch("q", "one", 0, ((0, 0, 1, 1),), ()))
