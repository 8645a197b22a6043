"""Arrow rows become batches that hold the same records; without Spark."""

from __future__ import annotations

import time
from collections.abc import Iterable

import pytest
from tests.fixed_clock import FixedClock

pytest.importorskip("pyspark")

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from chappe.defaults import BATCH_BYTES_MAX, RECORD_BYTES_MAX
from chappe.errors import RecordTooLarge, UsageError
from chappe.log.batch import KEYS, TIMESTAMPS, Batch, Headers
from chappe.log.ordered.gathering import Gathering
from chappe.spark import encode
from chappe.spark.columns import RecordColumns
from chappe.spark.encode import EncodedPiece, RowEncoder, sort_rows

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
TIMES = pa.timestamp("us", tz="Europe/Berlin")
ALL = RecordColumns(value=0, topic=1, key=2, headers=3, timestamp=4)
NAMES = ["value", "topic", "key", "headers", "timestamp"]
Row = tuple[bytes | None, str, bytes | None, Headers, int]


def encoded(parts: Iterable[object], columns: RecordColumns, topic: str | None = None) -> list[EncodedPiece]:
    encoder = RowEncoder(columns, topic)
    return [piece for part in parts for piece in encoder.add(part)] + list(encoder.finish())


def batch_of(rows: list[Row]) -> object:
    return pa.record_batch(
        [
            pa.array([row[0] for row in rows], pa.binary()),
            pa.array([row[1] for row in rows], pa.string()),
            pa.array([row[2] for row in rows], pa.binary()),
            pa.array([[{"key": k, "value": v} for k, v in row[3]] for row in rows], HEADERS),
            pa.array([row[4] for row in rows], TIMES),
        ],
        names=NAMES,
    )


def records(pieces: list[EncodedPiece]) -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = {}
    for piece in pieces:
        batch = Batch.parse(piece.raw)
        assert (batch.base, batch.count) == (0, piece.rows)
        for each in batch.records(piece.topic, "p"):
            found.setdefault(piece.topic, []).append((each.value, each.topic, each.key, each.headers, each.timestamp))
    return found


def by_topic(rows: list[Row]) -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(row[1], []).append(row)
    return found


ROWS = st.lists(
    st.tuples(
        st.none() | st.binary(max_size=20),
        st.sampled_from(["a", "b", "ä"]),
        st.none() | st.binary(max_size=5),
        st.lists(st.tuples(st.text("xyz", max_size=3), st.binary(max_size=3)), max_size=2).map(tuple),
        st.integers(-(10**15), 10**15),
    ),
    min_size=1,
    max_size=40,
)


@given(parts=st.lists(ROWS, min_size=1, max_size=4), skipped=st.integers(0, 9))
@settings(max_examples=150)
def test_every_record_comes_out_as_it_went_in(parts: list[list[Row]], skipped: int) -> None:
    skipped = min(skipped, min(map(len, parts)) - 1)  # a slice: buffers that do not begin with the first row
    pieces = encoded([batch_of(part).slice(skipped) for part in parts], ALL)  # type: ignore[attr-defined]
    assert records(pieces) == by_topic([row for part in parts for row in part[skipped:]])


def test_large_rows_are_cut_into_batches_within_the_bounds() -> None:
    values = [b"v" * size for size in (10, 4_000_000, 5, 8_000_000, 700_000, *[70_000] * 40)]
    part = pa.record_batch([pa.array(values, pa.binary())], names=["value"])
    pieces = encoded([part], RecordColumns(0, None, None, None, None), "t")
    assert [row[0] for row in records(pieces)["t"]] == values
    assert max(len(piece.raw) for piece in pieces) <= BATCH_BYTES_MAX
    assert len(pieces) > 5


def test_the_largest_record_fits_into_a_batch() -> None:
    half = RECORD_BYTES_MAX // 2
    names = ["value", "key"]
    part = pa.record_batch([pa.array([b"v" * half] * 2), pa.array([b"k" * half] * 2)], names=names)
    pieces = encoded([part], RecordColumns(0, None, 1, None, None), "t")
    assert [len(records([piece])["t"]) for piece in pieces] == [1, 1]


def test_very_many_tiny_rows_are_cut_too() -> None:
    part = pa.record_batch([pa.array([b""] * 200_000)], names=["value"])
    pieces = encoded([part], RecordColumns(0, None, None, None, None), "t")
    assert sum(piece.rows for piece in pieces) == 200_000
    assert max(piece.rows for piece in pieces) <= 65_536


def test_little_of_many_topics_waits_for_more(monkeypatch: pytest.MonkeyPatch) -> None:
    rows: list[Row] = [(b"v", f"t{n % 100}", None, (), 0) for n in range(1_000)]
    encoder = RowEncoder(ALL, None)
    assert [piece for _ in range(5) for piece in encoder.add(batch_of(rows))] == []
    assert len(list(encoder.finish())) == 100
    monkeypatch.setattr(encode, "WAITING_BYTES_MAX", 1_000)
    assert len(list(encoder.add(batch_of(rows)))) > 90


def test_strings_are_written_as_utf8_and_what_nobody_has_is_left_out() -> None:
    part = pa.record_batch([pa.array(["ä", None]), pa.array([None, None], pa.string())], names=["value", "key"])
    before = time.time_ns() // 1000
    (piece,) = encoded([part], RecordColumns(0, None, 1, None, None), "t")
    batch = Batch.parse(piece.raw)
    assert batch.values() == ["ä".encode(), None]
    assert not batch.flags & (KEYS | TIMESTAMPS)
    assert before <= batch.timestamp_min == batch.timestamp_max <= time.time_ns() // 1000


def test_a_missing_timestamp_is_the_time_of_writing() -> None:
    stamps = pa.array([5, None], TIMES)
    part = pa.record_batch([pa.array([b"a", b"b"]), stamps], names=["value", "timestamp"])
    before = time.time_ns() // 1000
    (piece,) = encoded([part], RecordColumns(0, None, None, None, 1), "t")
    first, second = Batch.parse(piece.raw).timestamps()
    assert first == 5
    assert before <= second <= time.time_ns() // 1000


def test_headers_from_a_map() -> None:
    maps = pa.array([[("a", "1"), ("b", "2")], None, []], pa.map_(pa.string(), pa.string()))
    part = pa.record_batch([pa.array([b"v"] * 3), maps], names=["value", "headers"])
    (piece,) = encoded([part], RecordColumns(0, None, None, 1, None), "t")
    assert Batch.parse(piece.raw).headers() == [(("a", b"1"), ("b", b"2")), (), ()]


def test_rows_are_sorted_and_equal_ones_keep_their_order() -> None:
    parts = [
        pa.record_batch([pa.array([b"a", b"b", b"c"]), pa.array([2, None, 1])], names=["value", "n"]),
        pa.record_batch([pa.array([b"d", b"e"]), pa.array([1, 2])], names=["value", "n"]),
    ]
    found = [value for part in sort_rows(parts, [1]) for value in part.column(0).to_pylist()]
    assert found == [b"b", b"c", b"d", b"a", b"e"]
    assert list(sort_rows([], [0])) == []


@pytest.mark.parametrize(
    ("values", "columns", "text"),
    [
        ({"topic": pa.array(["t", None])}, {"topic": 1}, "column `topic` is null in a row"),
        ({"topic": pa.array(["t", ""])}, {"topic": 1}, "column `topic`: a topic needs a name"),
        ({"topic": pa.array(["t", "x" * 300])}, {"topic": 1}, "column `topic`: topic is 300 bytes long"),
        (
            {"headers": pa.array([[], [{"key": "a", "value": None}]], HEADERS)},
            {"headers": 1},
            "column `headers` has a header whose name or value is null",
        ),
        (
            {"headers": pa.array([[{"key": "a", "value": b""}] * 300, []], HEADERS)},
            {"headers": 1},
            "column `headers`: the record has 300 headers",
        ),
    ],
)
def test_rows_that_cannot_be_written_are_named(values: dict[str, object], columns: dict[str, int], text: str) -> None:
    part = pa.record_batch([pa.array([b"v", b"w"]), *values.values()], names=["value", *values])
    where = RecordColumns(**{"value": 0, "topic": None, "key": None, "headers": None, "timestamp": None} | columns)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=text):
        encoded([part], where, None if "topic" in columns else "t")


def test_rows_go_to_the_partition_of_their_key_in_their_order_and_those_without_to_one() -> None:
    keys = [b"a", None, b"b", b"c", b"a", None, b"d", b"c"]
    rows = [(b"%d" % number, key) for number, key in enumerate(keys)]
    part = pa.record_batch(
        [pa.array([value for value, _ in rows]), pa.array([key for _, key in rows], pa.binary())],
        names=["value", "key"],
    )
    encoder = RowEncoder(RecordColumns(0, None, 1, None, None), "t", lambda topic: 3, turn=8)

    pieces = [*encoder.add(part), *encoder.finish()]

    found = {piece.partition: Batch.parse(piece.raw) for piece in pieces}
    assert len(found) == len(pieces)
    wanted: dict[int, list[tuple[bytes, bytes | None]]] = {}
    for value, key in rows:
        partition = 8 % 3 if key is None else Gathering(3, FixedClock()).partition_of(key, None)
        wanted.setdefault(partition, []).append((value, key))
    read = {
        place: list(zip(each.values(), each.keys() or [None] * len(each), strict=True)) for place, each in found.items()
    }
    assert read == wanted
    assert len(wanted) > 1


def test_a_record_over_the_bound_is_named() -> None:
    values = pa.array([b"v", b"v" * (RECORD_BYTES_MAX + 1)])
    part = pa.record_batch([values], names=["value"])
    with pytest.raises(RecordTooLarge, match="a row has 8388609 bytes, 8388609 of them in column `value`"):
        encoded([part], RecordColumns(0, None, None, None, None), "t")
