"""Batches become Arrow record batches with exactly the records they hold."""

from __future__ import annotations

import struct

import pyarrow as pa
import pytest

from chappe.arrow import concat, run_to_arrow, schema, to_arrow
from chappe.errors import ProtocolError
from chappe.log.batch import Batch, Headers, encode_batch


def batch(base: int = 10, **more: object) -> Batch:
    values = [b"one", None, b"", b"four" * 10]
    return Batch.parse(encode_batch(base, values, 1_000_000, **more))  # type: ignore[arg-type]


def test_a_plain_batch() -> None:
    found = to_arrow(batch(), "t", "p", 10, 14)
    assert found.schema == schema()
    found.validate(full=True)
    rows = found.to_pylist()
    assert [row["offset"] for row in rows] == [10, 11, 12, 13]
    assert [row["value"] for row in rows] == [b"one", None, b"", b"four" * 10]
    assert {(row["topic"], row["partition"], row["key"], row["timestamp"].timestamp()) for row in rows} == {
        ("t", "p", None, 1.0)
    }
    assert all(row["headers"] == [] for row in rows)


def test_every_column_and_a_part_of_the_records() -> None:
    headers: list[Headers] = [(("a", b"1"),), (), (("b", b"2"), ("b", b"")), ()]
    whole = batch(timestamps=[1, 2, 3, 4], keys=[b"k", None, b"", b"kk"], headers=headers)
    rows = to_arrow(whole, "t", "p", 11, 13).to_pylist()
    assert [row["offset"] for row in rows] == [11, 12]
    assert [row["key"] for row in rows] == [None, b""]
    assert [row["timestamp"].microsecond for row in rows] == [2, 3]
    assert rows[0]["headers"] == []
    assert rows[1]["headers"] == [{"key": "b", "value": b"2"}, {"key": "b", "value": b""}]


@pytest.mark.parametrize("topic", ["t", "é" * 40, "long" * 50])
@pytest.mark.parametrize("count", [1, 4096, 4097, 20_000])
def test_the_topic_is_the_same_in_every_row(topic: str, count: int) -> None:
    whole = Batch.parse(encode_batch(0, [b""] * count, 0))
    found = run_to_arrow([whole], topic, "p", 0, count, ("topic", "partition"))
    found.validate(full=True)
    assert found.column(0).unique().to_pylist() == [topic]
    assert len(found.column(1)) == count


def test_texts_that_rows_share_are_made_once() -> None:
    whole = Batch.parse(encode_batch(0, [b""] * 20_000, 0))
    first, second = (run_to_arrow([whole], "t", "p", 0, 20_000, ("topic",)) for _ in range(2))
    assert first.column(0).buffers()[2].address == second.column(0).buffers()[2].address


def test_a_run_of_batches_is_the_same_as_its_records() -> None:
    run = [batch(10), batch(14, keys=[b"k"] * 4), batch(18, timestamps=[5, 6, 7, 8])]
    found = run_to_arrow(run, "t", "p", 12, 21)
    found.validate(full=True)
    records = [r for each in run for r in each.records("t", "p") if 12 <= r.offset < 21]
    assert [(r["offset"], r["key"], r["value"]) for r in found.to_pylist()] == [
        (r.offset, r.key, r.value) for r in records
    ]


def test_more_records_than_one_batch_can_hold() -> None:
    one = encode_batch(0, [b""] * 65_536, 0)
    two = encode_batch(65_536, [b""] * 10, 0)
    found = run_to_arrow([Batch.parse(one), Batch.parse(two)], "t", "p", 1, 65_546)
    assert found.column("offset").to_pylist() == list(range(1, 65_546))


@pytest.mark.parametrize("shift", range(8))
def test_bytes_at_any_address(shift: int) -> None:
    raw = bytes(batch(timestamps=[1, 2, 3, 4]).raw)
    moved = memoryview(b"x" * shift + raw)[shift:]
    found = to_arrow(Batch.parse(moved), "t", "p", 10, 14)
    found.validate(full=True)
    assert found.column("value").to_pylist()[0] == b"one"


def test_the_value_bytes_are_not_copied() -> None:
    raw = encode_batch(0, [b"v" * 100] * 100, 0)
    whole = Batch.parse(raw)
    data = to_arrow(whole, "t", "p", 0, 100).column("value").buffers()[2]
    view = whole.column("values")
    assert data is not None
    assert view is not None
    assert data.address == pa.py_buffer(view.data).address


def test_positions_that_point_elsewhere_are_refused() -> None:
    raw = bytearray(encode_batch(0, [b"aa", b"bb", b"cc"], 0))
    at = len(raw) - 8 - 16  # before the data: four positions of four bytes
    assert struct.unpack_from("<4i", raw, at) == (0, 2, 4, 6)
    struct.pack_into("<i", raw, at + 4, 1_000_000)
    with pytest.raises(ProtocolError, match=r"records 0 to 2 of topic .t., partition p, are wrong"):
        to_arrow(Batch.parse(bytes(raw), check=False), "t", "p", 0, 3)


def test_names_that_are_not_utf8_are_shown_with_replacements() -> None:
    found = to_arrow(batch(), "t\udcff", "p\udcfe", 10, 11)
    assert found.column("topic").to_pylist() == ["t�"]


def test_record_batches_are_joined() -> None:
    parts = [to_arrow(batch(), "t", name, 10, 14) for name in "pqr"]
    assert concat(parts).num_rows == 12
    assert concat(parts[:1]) is parts[0]
