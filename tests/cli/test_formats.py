from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chappe.api.log.lines import as_json
from chappe.cli.formats import (
    CONSUMED,
    SPLITTERS,
    BadInput,
    FullRecord,
    Item,
    consumed_lines,
    json_lines,
    length_prefixed,
    looks_consumed,
    split_lines,
)
from chappe.defaults import RECORD_BYTES_MAX
from chappe.errors import ChappeError, RecordTooLarge
from chappe.log.batch import Record

Splitter = Callable[[Iterable[bytes]], Iterator[Sequence[Item]]]


def split(splitter: Splitter, raw: bytes, step: int) -> list[Item]:
    chunks = (raw[at : at + step] for at in range(0, len(raw), step))
    return [record for records in splitter(chunks) for record in records]


@pytest.mark.parametrize("step", [1, 2, 3, 1000])
def test_lines_keep_their_bytes_and_lose_their_newlines(step: int) -> None:
    assert split(split_lines, b"one\n\ntwo\r\n\xff\x00three", step) == [b"one", b"", b"two\r", b"\xff\x00three"]
    assert split(split_lines, b"one\n", step) == [b"one"]
    assert split(split_lines, b"", step) == []


@pytest.mark.parametrize("step", [1, 7, 1000])
def test_json_lines_are_kept_as_they_are(step: int) -> None:
    assert split(json_lines, b'{"a": 1}\n\n [1,  2]\n"x"', step) == [b'{"a": 1}', b" [1,  2]", b'"x"']


def test_a_line_that_is_no_json_is_named_and_hands_over_those_before_it() -> None:
    with pytest.raises(BadInput, match="line 3 of the input is not JSON") as caught:
        list(json_lines([b"1\n2\n{nonsense\n4\n"]))
    assert caught.value.records == [b"1", b"2"]


@given(st.lists(st.binary(max_size=50)), st.integers(1, 100))
def test_length_prefixed_records_survive_any_chunks(records: list[bytes], step: int) -> None:
    raw = b"".join(struct.pack(">I", len(each)) + each for each in records)
    assert split(length_prefixed, raw, step) == records


def test_a_cut_off_record_is_named() -> None:
    records = length_prefixed([b"\0\0\0\1a\0\0\0\5bc"])
    assert next(records) == [b"a"]
    with pytest.raises(BadInput, match="ends in the middle of record 2"):
        next(records)


def test_a_length_that_cannot_be_is_refused_before_it_is_waited_for() -> None:
    with pytest.raises(BadInput, match="record 2 of the input claims 4294967295 bytes") as caught:
        list(length_prefixed([b"\0\0\0\0\xff\xff\xff\xff"]))
    assert caught.value.records == [b""]


def test_an_endless_line_is_refused_at_the_bound() -> None:
    found = split_lines([b"first\n" + bytes(RECORD_BYTES_MAX), b"x"])
    assert [next(found), next(found)] == [[b"first"], []]
    with pytest.raises(RecordTooLarge, match="line 2 is longer than"):
        next(found)


@pytest.mark.parametrize("splitter", SPLITTERS.values(), ids=SPLITTERS)
@given(chunks=st.lists(st.binary(max_size=30), max_size=10))
def test_any_bytes_give_records_or_one_clear_error(splitter: Splitter, chunks: list[bytes]) -> None:
    with suppress(ChappeError):
        list(splitter(chunks))


def record(value: bytes | None, key: bytes | None, headers: tuple[tuple[str, bytes], ...], stamp: int) -> Record:
    return Record("t", "p", 7, stamp, key, value, headers)


@given(
    st.none() | st.binary(max_size=30),
    st.none() | st.binary(max_size=30),
    st.lists(st.tuples(st.text(max_size=5), st.binary(max_size=10)), max_size=3).map(tuple),
    st.integers(-(1 << 63), (1 << 63) - 1) | st.integers(0, 1 << 52),
    st.integers(1, 50),
)
def test_what_consume_prints_becomes_the_same_record(
    value: bytes | None, key: bytes | None, headers: tuple[tuple[str, bytes], ...], stamp: int, step: int
) -> None:
    printed = as_json(record(value, key, headers, stamp))
    assert split(consumed_lines, printed, step) == [FullRecord(value, key, True, headers, stamp)]
    assert tuple(msgspec.json.decode(printed)) == CONSUMED


def test_a_line_may_say_only_its_value() -> None:
    assert split(consumed_lines, b'{"value":"v"}\n\n{"value":null,"key":null}\n', 7) == [
        FullRecord(b"v"), FullRecord(None, None, True)
    ]  # fmt: skip
    (found,) = split(consumed_lines, b'{"value":"","headers":null,"timestamp":5}', 100)
    assert found == FullRecord(b"", headers=(), timestamp=5)


@pytest.mark.parametrize(
    "line",
    [
        *(b"1", b"{}", b'{"valeu":"x"}', b'{"value":5}', b'{"value":{"base64":"?"}}', b'{"value":{"base46":""}}', b"{"),
        *(b'{"value":"","headers":[["a"]]}', b'{"value":"","headers":[[null,"a"]]}', b'{"value":"\xff"}'),
        *(
            b'{"value":"","timestamp":"soon"}',
            b'{"value":"","timestamp":"2026-01-31"}',
            b'{"value":"","timestamp":1.5}',
        ),
        *(b'{"value":"","timestamp":1.5}', b'{"value":"","timestamp":9223372036854775808}'),
        b'{"value":"","timestamp":"' + b"9" * 5000 + b'"}',
    ],
)
def test_a_line_that_is_no_record_is_named(line: bytes) -> None:
    with pytest.raises(BadInput, match="line 2 of the input is not a record") as caught:
        list(consumed_lines([b'{"value":"a"}\n' + line + b"\n"]))
    assert caught.value.records == [FullRecord(b"a")]
    assert "\n" not in str(caught.value)


@given(st.binary(max_size=60))
def test_random_lines_are_records_or_refused(raw: bytes) -> None:
    with suppress(ChappeError):
        split(consumed_lines, raw, 10)


@pytest.mark.parametrize(
    "line", [b'{"a":1e999}', b"-1e999", b"9" * 5000, b'{"a":1.10,"a":0.1234567890123456789012345}']
)
def test_json_is_kept_as_it_is_whatever_its_numbers(line: bytes) -> None:
    (records,) = json_lines([line + b"\n" + line + b"\n"])
    assert records == [line, line]
    assert not looks_consumed(records[0])


@pytest.mark.parametrize("before", [0, 1, 5])
def test_a_line_that_is_not_utf8_is_no_json_wherever_it_stands(before: int) -> None:
    lines = b'{"a":1}\n' * before + b'{"a":"\xff"}\n{"b":2}\n'
    with pytest.raises(BadInput, match=f"line {before + 1} of the input is not JSON: not UTF-8 at byte 7") as caught:
        list(json_lines([lines]))
    assert caught.value.records == [b'{"a":1}'] * before
