"""Topics as Arrow, pandas or Polars, without Spark."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from random import Random
from typing import Any

import polars
import pytest
from tests.spark.fake_store import FakeStore
from tests.spark.silence import ImpatientClient

from chappe import read_batches, read_topic
from chappe.errors import OffsetOutOfRange, TimedOut, UnknownTopic, UsageError
from chappe.log.batch import encode_batch
from chappe.reading import bounds, fetch, view
from chappe.reading.bounds import counts, offsets_at
from chappe.reading.selection import Selection
from chappe.reading.view import StoresView

SECOND = 1_000_000


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeStore]:
    for module in (fetch, view):
        monkeypatch.setattr(module, "StoreClient", ImpatientClient)
    with FakeStore() as made:
        yield made
    for endpoint in list(fetch._clients):
        fetch.forget_client(*endpoint)


def at(second: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=second)


def put(store: FakeStore, seconds: list[int], partition: str = "p", topic: str = "t") -> None:
    """One batch with a record for each second."""
    base = store.next.get((topic, partition), 0)
    values = [str(base + n).encode() for n in range(len(seconds))]
    store.put_raw(topic, partition, encode_batch(base, values, 0, timestamps=[each * SECOND for each in seconds]))


def found(store: FakeStore, **options: Any) -> list[int]:
    offsets: list[int] = read_topic("t", stores=store.endpoint, **options).column("offset").to_pylist()
    return offsets


def test_a_topic_as_arrow_and_pandas(store: FakeStore) -> None:
    put(store, [1, 2, 3])
    table = read_topic("t", stores=store.endpoint)
    assert table.column_names == ["topic", "partition", "offset", "timestamp", "key", "value", "headers"]
    assert table.column("value").to_pylist() == [b"0", b"1", b"2"]
    frame = read_topic("t", stores=[store.endpoint], columns=["value", "offset"], as_="pandas")
    assert list(frame.columns) == ["value", "offset"]
    assert frame["offset"].tolist() == [0, 1, 2]


def test_a_topic_as_polars(store: FakeStore) -> None:
    put(store, [1, 2, 3])
    frame = read_topic("t", stores=store.endpoint, as_="polars")
    assert isinstance(frame, polars.DataFrame)
    assert frame["offset"].to_list() == [0, 1, 2]
    assert frame["value"].to_list() == [b"0", b"1", b"2"]
    assert frame["timestamp"].to_list() == [at(1), at(2), at(3)]
    nothing = read_topic("t", stores=store.endpoint, start="latest", as_="polars")
    assert nothing.schema == frame.schema


def test_a_topic_without_records_has_its_columns(store: FakeStore) -> None:
    put(store, [1])
    assert read_topic("t", stores=store.endpoint, start="latest").num_rows == 0
    assert read_topic("x*", stores=store.endpoint, columns=["key"]).column_names == ["key"]


def test_between_offsets_and_moments(store: FakeStore) -> None:
    put(store, [10, 20, 30])
    put(store, [40, 50, 60])
    assert found(store, start={"t": {"p": 2}}, end={"t": {"p": 5}}) == [2, 3, 4]
    assert found(store, start=at(20)) == [1, 2, 3, 4, 5]
    assert found(store, start=at(21), end=at(50)) == [2, 3]
    assert found(store, start=at(0), end=at(10)) == []
    assert found(store, start=at(61)) == []
    assert found(store, end=at(1000)) == [0, 1, 2, 3, 4, 5]


def test_a_moment_where_clocks_went_back(store: FakeStore) -> None:
    put(store, [100, 200])
    put(store, [50, 60])
    put(store, [300])
    assert found(store, start=at(55)) == [0, 1, 2, 3, 4]  # from the first record that is not older
    assert found(store, start=at(150)) == [1, 2, 3, 4]
    assert found(store, end=at(150)) == [0]


def test_a_moment_is_asked_of_all_stores(store: FakeStore) -> None:
    with FakeStore() as other:
        for each in (store, other):
            put(each, [10, 20])
            put(each, [30, 40])
            put(each, [50, 60])
        store.retire("t", "p", 4)
        stores = [store.endpoint, other.endpoint]
        assert read_topic("t", stores=stores, start=at(30)).column("offset").to_pylist() == [2, 3, 4, 5]


def test_a_store_that_is_silent_about_moments_costs_records_not_sense(store: FakeStore) -> None:
    put(store, [10, 20])
    seen = StoresView(Selection.of_topics(["t"]), [store.endpoint])
    seen.refresh()
    store.close()
    assert offsets_at(seen, 15 * SECOND, [("t", "p")]) == {("t", "p"): 0}
    seen.close()


def test_more_than_memory_comes_in_pieces(store: FakeStore) -> None:
    for _ in range(4):
        store.put("t", "p", [b"v" * 200] * 8000)
    reading = read_batches("t", stores=store.endpoint)
    assert next(reading).num_rows < 32_000
    assert sum(each.num_rows for each in reading) > 0


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"topic": "nowhere"}, UnknownTopic, "no store at .* has a topic named nowhere"),
        ({"start": {"t": {"p": 99}}}, OffsetOutOfRange, "99 in `startingOffsets` is not there yet"),
        ({"start": datetime(2020, 1, 1)}, UsageError, "a time zone"),
        ({"start": "yesterday"}, UsageError, "start is"),
        ({"start": {"t": {"p": -1}}}, UsageError, "start is"),
        ({"end": "earliest"}, UsageError, "nothing would be read"),
        ({"columns": ["values"]}, UsageError, "columns are some of"),
        ({"as_": "numpy"}, UsageError, "as_ is one of"),
        ({"stores": "localhost:1"}, UsageError, "a store is tcp://host:port"),
        ({"stores": "tcp://127.0.0.1:9"}, TimedOut, "no store answers at tcp://127.0.0.1:9"),
        ({"tower": "127.0.0.1:1"}, UsageError, "not both"),
    ],
)
def test_mistakes_are_named(store: FakeStore, arguments: dict[str, Any], error: type[Exception], text: str) -> None:
    put(store, [1])
    with pytest.raises(error, match=text):
        read_topic(**{"topic": "t", "stores": store.endpoint} | arguments)


def test_the_stream_is_read_by_duckdb_as_it_is(store: FakeStore) -> None:
    duckdb = pytest.importorskip("duckdb")
    put(store, [1, 2, 3])
    put(store, [4, 5], partition="q")
    batches = read_batches("t", stores=store.endpoint)
    assert duckdb.sql('SELECT partition, count(*), max("offset") FROM batches GROUP BY 1 ORDER BY 1').fetchall() == [
        ("p", 3, 2),
        ("q", 2, 1),
    ]
    assert next(batches, None) is None  # it was read once


def test_records_are_counted_step_by_step(store: FakeStore) -> None:
    rng = Random(7)
    written: list[int] = []
    for _ in range(20):
        seconds = sorted(rng.sample(range(1000), rng.randint(1, 60)))
        first = written[-1] if written else 0
        seconds = [first + each // 20 for each in seconds]
        put(store, seconds)
        written += seconds
    put(store, [2000], partition="q")
    edges = [each * SECOND for each in range(-50, 1500, 37)]
    with closing(StoresView(Selection.of_topics(["t"]), [store.endpoint])) as seen:
        seen.refresh()
        found = counts(seen, seen.known, edges)
    expected = [sum(low <= each * SECOND < high for each in written) for low, high in pairwise(edges)]
    assert found == {("t", "p"): expected, ("t", "q"): [0] * len(expected)}
    assert sum(expected) > 300


def test_records_whose_batch_cannot_be_read_count_where_it_begins(
    store: FakeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(store, [10, 20, 30])
    with closing(StoresView(Selection.of_topics(["t"]), [store.endpoint])) as seen:
        seen.refresh()
        monkeypatch.setattr(bounds, "batch_at", lambda *_: None)
        assert counts(seen, seen.known, [each * SECOND for each in (10, 25, 40)]) == {("t", "p"): [0, 3]}


def test_spark_is_not_needed() -> None:
    code = "import sys, chappe; chappe.read_topic; chappe.read_batches; sys.exit('pyspark' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
