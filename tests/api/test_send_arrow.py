"""Tables, frames and readers of Arrow become records, and come out of a topic as they went in."""

from __future__ import annotations

import datetime as dt
import sys
from collections.abc import Iterator
from typing import Any, Literal

import pytest

pytest.importorskip("pyarrow")

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.api.members import PATIENCE_S, read

from chappe import arrow_rows
from chappe.api.log.consumer import Consumer
from chappe.api.log.producer import Producer
from chappe.api.log.store import Store
from chappe.errors import Closed, RecordTooLarge, UsageError
from chappe.log.batch import Batch, Headers
from chappe.reading.topic import read_topic

NOW_US = 1_700_000_000_000_000
UTC_US = pa.timestamp("us", tz="UTC")
Row = tuple[bytes | None, bytes | None, Headers, int | None]

ROWS = st.lists(
    st.tuples(
        st.none() | st.text(max_size=20).map(str.encode),
        st.none() | st.sampled_from([b"k", b"key", b""]),
        st.lists(st.tuples(st.text("xyz", max_size=3), st.text("ab", max_size=3).map(str.encode)), max_size=2).map(
            tuple
        ),
        st.none() | st.integers(-(10**15), 10**15),
    ),
    min_size=1,
    max_size=30,
)
PLAIN = (pa.binary(), pa.string(), pa.large_binary(), pa.large_string(), pa.binary_view(), pa.string_view())
BYTES = st.sampled_from(
    [
        *PLAIN,
        *(pa.dictionary(pa.int8(), each) for each in (pa.string(), pa.string_view())),
        pa.dictionary(pa.int32(), pa.binary()),
    ]
)


def as_array(values: list[bytes | None], kind: Any) -> Any:
    if pa.types.is_dictionary(kind):
        encoded = pa.array(values, pa.binary()).dictionary_encode()
        return pa.DictionaryArray.from_arrays(
            encoded.indices, as_array(encoded.dictionary.to_pylist(), kind.value_type)
        )
    return pa.array(values, pa.binary()).cast(pa.string()).cast(kind)


def as_headers(rows: list[Row], name: Any, value: Any, form: str) -> Any:
    if form == "map":
        return pa.array([each[2] for each in rows], pa.map_(pa.string(), pa.binary())).cast(pa.map_(name, value))
    lists = [[{"key": k, "value": v} for k, v in each[2]] for each in rows]
    of = pa.large_list if form == "large_list" else pa.list_
    whole = pa.array(lists, pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])))
    return whole.cast(of(pa.struct([("key", name), ("value", value)])))


def sent(data: object) -> list[Row]:
    found: list[Row] = []
    base = 7
    for part in arrow_rows.read(data, lambda: NOW_US):
        batch = Batch.parse(part.encode(base))
        assert (batch.base, batch.count) == (base, part.rows)
        assert (batch.timestamp_min, batch.timestamp_max) == (part.first_us, part.last_us)
        found += [(each.value, each.key, each.headers, each.timestamp) for each in batch.records("t", "p")]
        base = batch.next
    return found


def values_only(*values: bytes) -> Any:
    return pa.table({"value": pa.array(values, pa.binary())})


@given(rows=ROWS, data=st.data())
@settings(max_examples=150)
def test_whatever_type_they_have_rows_come_out_as_they_went_in(rows: list[Row], data: st.DataObject) -> None:
    texts = st.sampled_from([pa.string(), pa.large_string(), pa.string_view()])
    form = data.draw(st.sampled_from(["list", "large_list", "map"]))
    names, values = (
        (pa.string(), pa.binary()) if form == "map" else (data.draw(texts), data.draw(st.sampled_from(PLAIN)))
    )
    table = pa.table(
        {
            "partition": ["elsewhere"] * len(rows),
            "value": as_array([row[0] for row in rows], data.draw(BYTES)),
            "key": as_array([row[1] for row in rows], data.draw(BYTES)),
            "headers": as_headers(rows, names, values, form),
            "timestamp": pa.array([row[3] for row in rows], UTC_US),
        }
    )
    skipped = data.draw(st.integers(0, len(rows) - 1))  # buffers that do not begin with the first row
    cut = data.draw(st.integers(0, len(rows) - skipped))
    whole = pa.concat_tables([table.slice(skipped, cut), table.slice(skipped + cut)])
    wanted = [(v, k, h, NOW_US if t is None else t) for v, k, h, t in rows[skipped:]]
    assert sent(whole) == wanted
    assert sent(pa.RecordBatchReader.from_batches(whole.schema, whole.to_batches())) == wanted


@pytest.mark.parametrize(("unit", "factor"), [("s", 10**6), ("ms", 1000), ("us", 1), ("ns", 0)])
def test_times_may_have_any_unit(unit: str, factor: int) -> None:
    times = pa.array([1_234_567], pa.timestamp(unit, tz="Europe/Paris"))
    ((_, _, _, found),) = sent(pa.table({"value": [b"v"], "timestamp": times}))
    assert found == (1_234_567 * factor if factor else 1_234)


def test_what_lies_behind_a_null_is_no_header() -> None:
    pairs = pa.array([{"key": "a", "value": b"1"}] * 2, arrow_rows._PLAIN_HEADERS.value_type)
    lists = pa.ListArray.from_arrays(pa.array([0, 1, 2], pa.int32()), pairs, mask=pa.array([True, False]))
    found = sent(pa.table({"value": [b"v", b"w"], "headers": lists}))
    assert [row[2] for row in found] == [(), (("a", b"1"),)]


def test_small_batches_of_a_table_leave_together_and_those_of_a_reader_one_by_one() -> None:
    batches = [pa.record_batch({"value": [b"%d" % number]}) for number in range(5)]
    table = pa.Table.from_batches(batches)
    assert [part.rows for part in arrow_rows.read(table, int)] == [5]
    assert [part.rows for part in arrow_rows.read(table.to_reader(), int)] == [1] * 5


def test_a_reader_is_read_as_its_rows_are_sent() -> None:
    read_so_far = 0

    def rows() -> Iterator[Any]:
        nonlocal read_so_far
        for _ in range(3):
            read_so_far += 1
            yield pa.record_batch({"value": [b"v"]})

    reader = pa.RecordBatchReader.from_batches(pa.schema([("value", pa.binary())]), rows())
    parts = arrow_rows.read(reader, int)
    assert (next(parts).rows, read_so_far) == (1, 1)


def test_much_is_taken_some_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrow_rows, "_TAKEN_BYTES", 1000)
    values = [b"v" * size for size in (400, 700, 1, 5000, 0, 300)]
    assert [row[0] for row in sent(pa.table({"value": pa.array(values, pa.large_binary())}))] == values
    many = pa.table({"value": pa.array([b"v", b"w"] * 50_000).dictionary_encode()})
    assert sum(part.rows for part in arrow_rows.read(many, int)) == 100_000


def test_offsets_go_on_and_what_was_read_can_be_sent_again(tower: str, store: Store) -> None:
    with (
        Producer("hello", tower=tower) as producer,
        Consumer("hello", tower=tower, reset="earliest") as consumer,
    ):
        producer.send(b"a")
        assert producer.send_arrow(pa.table({"value": ["b", None], "key": ["k", "l"]})) == range(1, 3)
        assert producer.send_arrow(values_only()) == range(3, 3)
        assert producer.send_arrow(values_only(b"d"), topic="other") == range(1)
        producer.send(b"c")
        records = read(consumer, 4)
        assert [(each.offset, each.value, each.key) for each in records] == [
            (0, b"a", None),
            (1, b"b", b"k"),
            (2, None, b"l"),
            (3, b"c", None),
        ]
        producer.flush(PATIENCE_S)
        with Consumer("hello", tower=tower, reset="earliest") as again:
            seen = again.poll(PATIENCE_S)
            assert seen is not None
            assert len(producer.send_arrow(seen.to_arrow())) == len(seen)
        repeated = read(consumer, len(seen))
    first = list(seen)
    assert [(each.value, each.key, each.timestamp) for each in repeated] == [
        (each.value, each.key, each.timestamp) for each in first
    ]


def test_frames_are_tables_too() -> None:
    moment = dt.datetime(2026, 1, 2, 3, 4, 5, 6, dt.UTC)
    rows: dict[str, list[Any]] = {"value": ["ä", "b"], "key": [b"k", None], "timestamp": [moment] * 2}
    micros = (moment - dt.datetime(1970, 1, 1, tzinfo=dt.UTC)) // dt.timedelta(microseconds=1)
    for package in ("pandas", "polars"):
        frames = pytest.importorskip(package)
        assert sent(frames.DataFrame(rows)) == [("ä".encode(), b"k", (), micros), (b"b", None, (), micros)]


@pytest.mark.parametrize("package", ["pandas", "polars"])
@pytest.mark.parametrize("rows", [3, 0])
def test_what_was_read_as_a_frame_can_be_sent_again_also_without_keys_or_rows(
    tower: str, store: Store, package: Literal["pandas", "polars"], rows: int
) -> None:
    """In pandas a column in which nothing is has no type but null."""
    pytest.importorskip(package)
    with Producer("hello", tower=tower) as producer:
        producer.send_many([b"a", b"b", b"c"])
    frame = read_topic("hello", tower=tower, as_=package)[:rows]
    with Producer("again", tower=tower) as producer:
        assert producer.send_arrow(frame) == range(rows)
        producer.flush(PATIENCE_S)
    columns = ["timestamp", "key", "value", "headers"]
    before, after = (read_topic("hello", tower=tower, columns=columns)[:rows], [])
    if rows:
        after = read_topic("again", tower=tower, columns=columns).to_pylist()
    assert after == before.to_pylist()


def nulls(kind: Any, count: int = 2) -> Any:
    return pa.nulls(count, kind)


@pytest.mark.parametrize(
    "kind", [pa.null(), pa.dictionary(pa.int8(), pa.null()), pa.dictionary(pa.int8(), pa.string_view())]
)
def test_columns_in_which_nothing_is(kind: Any) -> None:
    none = (None, None, (), NOW_US)
    assert sent(pa.table({"value": nulls(kind), "key": nulls(kind)})) == [none] * 2
    values = pa.array([b"a", b"b"])
    pairs = pa.struct([("key", pa.null()), ("value", pa.null())])
    of_lists = [
        pa.null(),
        *map(pa.list_, (pa.null(), pairs)),
        pa.large_list(pa.null()),
        pa.map_(pa.string(), pa.null()),
    ]
    for headers in of_lists:
        table = pa.table(
            {"value": values, "key": nulls(kind), "headers": nulls(headers), "timestamp": nulls(pa.null())}
        )
        assert sent(table) == [(b"a", None, (), NOW_US), (b"b", None, (), NOW_US)]
    with pytest.raises(UsageError, match="a header whose name or value is null"):
        sent(pa.table({"value": values, "headers": pa.array([[None], []], pa.list_(pa.null()))}))


def test_frames_without_rows_may_have_any_types() -> None:
    for data in (pa.table({"value": nulls(pa.float64(), 0)}), pa.record_batch({"value": nulls(pa.int8(), 0)})):
        assert sent(data) == []
    for package in ("pandas", "polars"):
        frames = pytest.importorskip(package)
        for empty in (frames.DataFrame({"value": []}), frames.DataFrame({"value": [1.5]})[:0]):
            assert sent(empty) == []
        with pytest.raises(UsageError, match="column `value` is double, which cannot be sent"):
            sent(frames.DataFrame({"value": [1.5]}))
    reader = pa.table({"value": nulls(pa.float64(), 0)}).to_reader()
    with pytest.raises(UsageError, match="column `value` is double, which cannot be sent"):
        sent(reader)


def test_categories() -> None:
    polars, pandas = pytest.importorskip("polars"), pytest.importorskip("pandas")
    values, keys = ["a", "b", "a", None], ["x", None, "y", "x"]
    wanted = [
        (each and each.encode(), key and key.encode(), (), NOW_US) for each, key in zip(values, keys, strict=True)
    ]
    for kind in (polars.Categorical, polars.Enum(["a", "b", "x", "y"])):
        frame = polars.DataFrame({"value": polars.Series(values, dtype=kind), "key": polars.Series(keys, dtype=kind)})
        assert sent(frame) == wanted
        assert sent(frame[1:]) == wanted[1:]
    assert sent(pandas.DataFrame({"value": pandas.Categorical(values), "key": pandas.Categorical(keys)})) == wanted


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"bytes", "bytes is not Arrow data: give a table, record batch or reader of pyarrow"),
        (pa.chunked_array([[b"v"]]), "a table is wanted, with a column `value`"),
        (pa.table({"key": [b"k"]}), "there is no column `value` to send: there are key"),
        (pa.table({}), "there is no column `value` to send: there are none"),
        (pa.table({"value": [b"v"], "valeu": [1]}), "column `valeu` has no place in a record"),
        (pa.table([pa.array([b"v"])] * 2, names=["value"] * 2), "there are two columns named `value`; drop one"),
        (pa.table({"value": [1]}), "column `value` is int64, which cannot be sent; make it binary or string"),
        (
            pa.table({"value": [b"v"], "timestamp": pa.array([1], pa.timestamp("us"))}),
            r"column `timestamp` is timestamp\[us\], which cannot be sent; make it timestamp\[us, tz=UTC\]",
        ),
        (
            pa.table({"value": [b"v"], "timestamp": pa.array([1 << 62], pa.timestamp("s", tz="UTC"))}),
            r"column `timestamp`, which is timestamp\[s, tz=UTC\], cannot be sent: .* out of bounds",
        ),
        (pa.table({"value": [b"v"], "timestamp": pa.array([1 << 62], UTC_US)}), "not within the years 1 to 9999"),
        (
            pa.table({"value": [b"v"], "headers": [[1]]}),
            r"column `headers` is list<.*int64>, which cannot be sent; make",
        ),
        (
            pa.table({"value": [b"v"], "headers": pa.array([[("a", None)]], pa.map_(pa.string(), pa.binary()))}),
            "a header whose name or value is null",
        ),
    ],
)
def test_what_cannot_be_sent_is_named_and_nothing_is_sent(tower: str, data: object, text: str) -> None:
    with Producer("hello", tower=tower, min_acks=0) as producer:
        with pytest.raises(UsageError, match=text):
            producer.send_arrow(data)
        assert producer.next_offset == 0


def test_a_row_over_the_bound_is_refused_and_what_came_before_it_was_sent(tower: str) -> None:
    batches = [pa.record_batch({"value": [each]}) for each in (b"small", b"v" * ((8 << 20) + 1))]
    reader = pa.RecordBatchReader.from_batches(batches[0].schema, batches)
    with Producer("hello", tower=tower, min_acks=0) as producer:
        with pytest.raises(RecordTooLarge, match="a row has 8388609 bytes, 8388609 of them in column `value`"):
            producer.send_arrow(reader)
        assert producer.next_offset == 1


def test_a_producer_that_was_closed_reads_nothing(tower: str) -> None:
    producer = Producer("hello", tower=tower, min_acks=0)
    producer.close()
    reader = values_only(b"v").to_reader()
    for data in (reader, values_only()):
        with pytest.raises(Closed):
            producer.send_arrow(data)
    assert reader.read_all().num_rows == 1


@pytest.mark.parametrize("missing", ["pyarrow", "numpy"])
def test_what_it_needs_is_named(tower: str, monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
    table = values_only(b"v")
    monkeypatch.setitem(sys.modules, missing, None)
    monkeypatch.delitem(sys.modules, "chappe.arrow_rows", raising=False)
    with (
        Producer("hello", tower=tower, min_acks=0) as producer,
        pytest.raises(UsageError, match=r"is not installed; run: pip install 'chappe\[arrow\]'"),
    ):
        producer.send_arrow(table)
