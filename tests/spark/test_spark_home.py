"""Which store becomes the home of a sink, and how it is found again; without Spark."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from tests.spark.fake_sink import FakeSink, Kept
from tests.spark.silence import ImpatientClient
from tests.waiting import PATIENCE_S

from chappe.errors import ChappeError, Fenced, StagedRowsMissing, TimedOut, UsageError
from chappe.log.batch import encode_batch

pytest.importorskip("pyspark")

from chappe.reading import fetch
from chappe.spark import home, sink
from chappe.spark.encode import EncodedPiece
from chappe.spark.home import Home, Sink, SinkStores, found_again, settle
from chappe.spark.sink import UNANSWERED_MAX, StagedOutput, Staging, abort, commit

QUERY = Sink("q", "run-1", True)
Open = Callable[..., FakeSink]


@pytest.fixture(autouse=True)
def _only_the_silent_are_given_up(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for each in (fetch, home):
        monkeypatch.setattr(each, "StoreClient", ImpatientClient)
    monkeypatch.setattr(sink, "StoreClient", ImpatientClient)
    yield
    for endpoint in list(fetch._clients):
        fetch.forget_client(*endpoint)


@pytest.fixture
def open_store() -> Iterator[Open]:
    with ExitStack() as stack:
        yield lambda *args, **kwargs: stack.enter_context(FakeSink(*args, **kwargs))


def stores(*made: FakeSink, patience_s: float = 0.1) -> SinkStores:
    return SinkStores(tuple(each.endpoint for each in made), None, patience_s)


def piece(text: str, topic: str = "t") -> EncodedPiece:
    return EncodedPiece(topic, encode_batch(0, [text.encode()], 1), 1)


def staged_by(staging: Staging, task: int, attempt: int, batch: int = 0, sink: Sink = QUERY) -> StagedOutput:
    return StagedOutput(sink, staging.home, batch, task, attempt, staging.pieces, staging.rows, tuple(staging.topics))


def test_all_stores_learn_who_the_home_is(open_store: Open) -> None:
    made = [open_store(name) for name in "ABC"]
    chosen = settle(stores(*made), QUERY, 0)
    assert {each.sink("q").home for each in made} == {chosen.store_id}
    assert settle(stores(*reversed(made)), QUERY, 0) == chosen


def test_sinks_have_homes_on_different_stores(open_store: Open) -> None:
    made = stores(*[open_store(name) for name in "ABC"])
    assert {settle(made, Sink(f"q{n}", "r", False), 0).store_id for n in range(30)} == {"A", "B", "C"}


def test_a_query_that_starts_again_finds_its_home(open_store: Open) -> None:
    a, b = open_store("A"), open_store("B")
    b.kept["q"] = Kept("B", "run-0", batch=4)
    a.kept["q"] = Kept("B", "run-0")
    assert settle(stores(a, b), QUERY, 5) == Home("B", b.endpoint, 4)
    assert b.sink("q").fenced == {"run-0"}


def test_a_home_that_is_away_is_waited_for_and_not_replaced(open_store: Open) -> None:
    a = open_store("A", kept={"q": Kept("B", "run-0")})
    with pytest.raises(TimedOut, match="the store B, which keeps the commits of this query, is not there; start it"):
        settle(stores(a), QUERY, 5)
    later: list[FakeSink] = []
    with FakeSink("B") as port:
        endpoint = port.endpoint
    timer = threading.Timer(0.3, lambda: later.append(open_store("B", kept={"q": Kept("B")}, endpoint=endpoint)))
    timer.start()
    assert settle(SinkStores((a.endpoint, endpoint), None, PATIENCE_S), QUERY, 5).store_id == "B"
    timer.join()


def test_a_new_query_does_not_begin_while_a_store_is_away(open_store: Open) -> None:
    a = open_store("A")
    with FakeSink("B") as gone:
        pass
    with pytest.raises(TimedOut, match=f"the store at {gone.endpoint} does not answer and may keep the commits"):
        settle(stores(a, gone), QUERY, 0)
    assert settle(stores(a, gone), Sink("w", "r", False), 0).store_id == "A"  # nobody asks again for a single write


def test_commits_that_no_store_knows_are_missed_at_once(open_store: Open) -> None:
    with pytest.raises(UsageError, match="keeps commits of this query, which is at batch 3 already"):
        settle(stores(open_store("A"), patience_s=PATIENCE_S), QUERY, 3)


def test_no_store_at_all() -> None:
    with FakeSink() as gone:
        pass
    with pytest.raises(TimedOut, match=f"no store answers at {gone.endpoint}; start one"):
        settle(stores(gone), QUERY, 0)


def test_an_older_run_cannot_come_back(open_store: Open) -> None:
    made = stores(open_store("A"))
    old = settle(made, QUERY, 0)
    settle(made, Sink("q", "run-2", True), 0)
    with pytest.raises(Fenced):
        settle(made, QUERY, 0)
    staging = Staging(made, old, QUERY, 0, 0, 0)
    staging.put(piece("a"))
    with pytest.raises(Fenced):
        staging.finish()


def test_what_is_staged_is_visible_once_it_is_committed(open_store: Open) -> None:
    store = open_store("A")
    made = stores(store)
    found = settle(made, QUERY, 0)
    messages = []
    for task, attempt in ((0, 5), (1, 6), (0, 7)):
        staging = Staging(made, found, QUERY, 0, task, attempt)
        for number in range(3 * UNANSWERED_MAX):
            staging.put(piece(f"{task}-{attempt}-{number}", f"t{number % 2}"))
        staging.finish()
        messages.append(staged_by(staging, task, attempt))
    assert store.values == {}
    commit(made, messages[1:], 1)
    commit(made, messages[1:], 1)  # again: nothing happens
    wanted = sorted(f"{t}-{a}-{n}".encode() for t, a in ((1, 6), (0, 7)) for n in range(3 * UNANSWERED_MAX))
    assert sorted(filter(None, store.records("t0") + store.records("t1"))) == wanted


def test_rows_are_staged_at_a_home_that_falls_silent_and_comes_back_elsewhere(open_store: Open) -> None:
    killed, other = open_store("A", silent_after=11), open_store("B")
    kept = {"q": Kept("A", "run-1")}
    killed.kept = kept
    staging = Staging(SinkStores((), None, PATIENCE_S), Home("A", killed.endpoint), QUERY, 0, 0, 0)
    for number in range(10):
        staging.put(piece(str(number)))
    back = open_store("A", kept=kept)
    staging._stores = stores(other, back, patience_s=PATIENCE_S)
    for number in range(10, 30):
        staging.put(piece(str(number)))
    staging.finish()
    assert staging.home.endpoint == back.endpoint
    commit(stores(back), [staged_by(staging, 0, 0)], 1)
    assert back.records("t") == [str(number).encode() for number in range(30)]


def test_a_commit_is_repeated_until_the_home_answers(open_store: Open) -> None:
    first = open_store("A", silent_after=0)
    kept = {"q": Kept("A", "run-1")}
    first.kept = kept
    first.asked["Stage"] = 1  # silent from the beginning
    message = StagedOutput(QUERY, Home("A", first.endpoint), 0, 0, 0, 0, 0, ())
    back: list[FakeSink] = []
    timer = threading.Timer(0.5, lambda: back.append(open_store("A", kept=kept, endpoint=endpoint)))
    with FakeSink() as port:
        endpoint = port.endpoint
    timer.start()
    commit(SinkStores((endpoint,), None, PATIENCE_S), [message], 1)
    timer.join()
    assert kept["q"].batch == 0


def test_a_home_that_does_not_come_back_is_named(open_store: Open) -> None:
    with FakeSink("A") as gone:
        pass
    with pytest.raises(TimedOut, match=f"the store A, .* does not answer .it was at {gone.endpoint}"):
        found_again(stores(gone), Home("A", gone.endpoint), "q")


def test_rows_that_the_store_lost_fail_the_batch(open_store: Open) -> None:
    store = open_store("A", refuse="missing")
    found = settle(stores(store), QUERY, 0)
    with pytest.raises(StagedRowsMissing):
        commit(stores(store), [StagedOutput(QUERY, found, 0, 0, 0, 0, 0, ())], 1)


def test_a_commit_waits_for_so_many_stores(open_store: Open) -> None:
    a, b = open_store("A"), open_store("B")
    a.kept["q"] = b.kept["q"] = Kept("A", "run-1")
    made = stores(a, b)
    staging = Staging(made, Home("A", a.endpoint), QUERY, 0, 0, 0)
    staging.put(piece("x"))
    staging.finish()
    with pytest.raises(TimedOut, match="the batch is committed, but only 1 of 2 stores have it"):
        commit(made, [staged_by(staging, 0, 0)], 2)
    b.values.update(a.values)
    commit(made, [staged_by(staging, 0, 0)], 2)


def test_an_abort_drops_what_was_staged_and_never_fails(open_store: Open) -> None:
    store = open_store("A")
    made = stores(store)
    found = settle(made, QUERY, 0)
    staging = Staging(made, found, QUERY, 0, 0, 0)
    staging.put(piece("x"))
    staging.finish()
    assert store.sink("q").staged
    abort([staged_by(staging, 0, 0)])
    assert not store.sink("q").staged
    store.close()
    abort([staged_by(staging, 0, 0)])


def test_tasks_that_disagree_on_the_home_are_refused(open_store: Open) -> None:
    mixed = [StagedOutput(QUERY, Home(name, "tcp://127.0.0.1:1"), 0, 0, 0, 0, 0, ()) for name in "AB"]
    with pytest.raises(ChappeError, match="different stores"):
        commit(stores(), mixed, 1)


def test_without_messages_there_is_nothing_to_commit() -> None:
    commit(stores(), [], 1)


def test_commits_count_more_than_what_another_store_remembers(open_store: Open) -> None:
    home_ = open_store("A", kept={"q": Kept(home="A", batch=3)})
    stale = open_store("B", kept={"q": Kept(home="B")})
    other = open_store("C", kept={"q": Kept(home="B")})
    assert settle(stores(home_, stale, other), QUERY, 4).store_id == "A"


def test_a_home_that_is_away_is_not_replaced_by_one_that_another_store_gave_up(open_store: Open) -> None:
    former = open_store("A", kept={"q": Kept(home="B")})
    other = open_store("C", kept={"q": Kept(home="A")})
    with pytest.raises(TimedOut, match="the store B"):
        settle(stores(former, other), QUERY, 4)
