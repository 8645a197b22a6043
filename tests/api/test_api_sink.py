"""Rows staged at a store and committed in one step, on real sockets and a real disk."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.api.members import read, values, wait_until
from tests.api.sinks import TestSink

from chappe.api.log.consumer import Consumer
from chappe.api.log.store import Store
from chappe.errors import Fenced, ProtocolError, StagedRowsMissing
from chappe.log.exactly_once.transactions import sink_address
from chappe.log.queries import FindSink, SinkAnswer
from chappe.transports.queries import StoreClient


def found_sink(client: StoreClient) -> SinkAnswer:
    """What the store knows of the sink."""
    answer, _ = client.ask(FindSink("query"))
    assert isinstance(answer, SinkAnswer)
    return answer


@pytest.fixture
def client(store: Store) -> Iterator[StoreClient]:
    made = StoreClient(store.endpoint, 20.0)
    yield made
    made.close()


@pytest.fixture
def sink(store: Store, client: StoreClient) -> TestSink:
    made = TestSink(client, store.store_id)
    made.attach()
    return made


def test_consumers_get_a_committed_batch_in_order_of_its_tasks(tower: str, store: Store, sink: TestSink) -> None:
    with Consumer("hello", tower=tower, reset="earliest") as consumer:
        attempts = [sink.stage(0, task, [("hello", [b"%d.%d" % (task, n) for n in range(3)])]) for task in (1, 0)]
        wasted = sink.stage(0, 0, [("hello", [b"of another attempt"])], attempt=7)
        assert store.status().topics == 0
        answer = sink.commit(0, attempts)

        assert values(read(consumer, 6)) == [b"0.0", b"0.1", b"0.2", b"1.0", b"1.1", b"1.2"]
    assert not answer.repeated
    assert answer.ends == [(b"hello", sink_address("query", "hello").encode(), 0, 6)]
    assert wasted[1] == 7


def test_batches_go_on_behind_each_other_in_each_topic(tower: str, sink: TestSink) -> None:
    sink.commit(0, [sink.stage(0, 0, [("a", [b"1"]), ("b", [b"1", b"2"]), ("a", [b"2"])])])
    answer = sink.commit(1, [sink.stage(1, 0, [("b", [b"3"]), ("a", [b"3"])])])

    assert sorted((topic, first, end) for topic, _, first, end in answer.ends) == [(b"a", 2, 3), (b"b", 2, 3)]
    with Consumer("a", "b", tower=tower, reset="earliest") as consumer:
        records = read(consumer, 6)
    for topic in "ab":
        assert values([each for each in records if each.topic == topic]) == [b"1", b"2", b"3"]


def test_a_second_store_gets_what_was_committed(tower: str, store: Store, sink: TestSink, tmp_path: Path) -> None:
    with Store(tmp_path / "second", tower=tower) as second:
        sink.commit(0, [sink.stage(0, 0, [("hello", [b"x"] * 100)])])
        wait_until(lambda: second.status().written_records == 100)
        store.close()
        with Consumer("hello", tower=tower, reset="earliest") as consumer:
            assert values(read(consumer, 100)) == [b"x"] * 100


def test_what_is_committed_is_not_committed_again(tower: str, sink: TestSink) -> None:
    attempt = sink.stage(0, 0, [("hello", [b"x"])])
    assert not sink.commit(0, [attempt]).repeated
    assert sink.commit(0, [attempt]).repeated
    assert sink.commit(0, [sink.stage(0, 0, [("hello", [b"y"])], attempt=1)]).repeated
    with Consumer("hello", tower=tower, reset="earliest") as consumer:
        assert values(read(consumer, 1)) == [b"x"]
        assert consumer.poll(0.2) is None


def test_a_new_run_fences_the_old_one_for_ever(client: StoreClient, sink: TestSink) -> None:
    attempt = sink.stage(0, 0, [("hello", [b"x"])])
    newer = TestSink(client, sink.home, run="newer")
    assert newer.attach().batch == -1

    for refused in (lambda: sink.commit(0, [attempt]), lambda: sink.stage(0, 1, [("hello", [b"x"])]), sink.attach):
        with pytest.raises(Fenced, match="took over"):
            refused()
    with pytest.raises(StagedRowsMissing):
        newer.commit(0, [attempt])
    assert newer.commit(0, [newer.stage(0, 0, [("hello", [b"x"])])]).batch == 0


def test_sinks_and_staged_rows_survive_the_store(tower: str, tmp_path: Path) -> None:
    with Store(tmp_path / "s", tower=tower) as store:
        sink = TestSink(StoreClient(store.endpoint), store.store_id)
        sink.attach()
        sink.commit(0, [sink.stage(0, 0, [("hello", [b"0"])])])
        attempt = sink.stage(1, 0, [("hello", [b"1", b"2"])])
        sink.client.close()
    with Store(tmp_path / "s", tower=tower) as store, Consumer("hello", tower=tower, reset="earliest") as consumer:
        sink.client = StoreClient(store.endpoint)
        found = found_sink(sink.client)
        assert (found.home, found.run, found.batch) == (store.store_id, "run", 0)
        assert sink.commit(1, [attempt]).ends[0][2:] == (1, 3)
        assert values(read(consumer, 3)) == [b"0", b"1", b"2"]
        wait_until(lambda: not list((tmp_path / "s" / "staged").glob("*.rows")))
        sink.client.close()


def test_another_store_remembers_the_home_and_takes_no_rows(tower: str, sink: TestSink, tmp_path: Path) -> None:
    with Store(tmp_path / "second", tower=tower) as second:
        other = TestSink(StoreClient(second.endpoint), sink.home)
        assert found_sink(other.client).home == ""
        assert other.attach().home == sink.home
        with pytest.raises(ProtocolError, match=sink.home):
            other.stage(0, 0, [("hello", [b"x"])])
        with pytest.raises(ProtocolError, match=sink.home):
            TestSink(other.client, second.store_id).attach()
        other.client.close()
    with Store(tmp_path / "second", tower=tower) as second:
        client = StoreClient(second.endpoint)
        assert found_sink(client).home == sink.home
        client.close()


def test_dropped_rows_are_gone(store: Store, client: StoreClient, sink: TestSink, tmp_path: Path) -> None:
    attempt = sink.stage(0, 0, [("hello", [b"x"])])
    assert list((tmp_path / "store" / "staged").glob("*.rows"))
    client.drop("query", "run", 0, [attempt[:2]])

    assert not list((tmp_path / "store" / "staged").glob("*.rows"))
    with pytest.raises(StagedRowsMissing):
        sink.commit(0, [attempt])
