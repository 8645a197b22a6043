from __future__ import annotations

import struct
from collections.abc import Callable
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chappe.cli.formats import SPLITTERS, BadInput, JsonLines, LengthPrefixed, Lines, Splitter
from chappe.defaults import RECORD_BYTES_MAX
from chappe.errors import ChappeError, RecordTooLarge


def split(splitter: Splitter, raw: bytes, step: int) -> list[bytes]:
    records = []
    for at in range(0, len(raw), step):
        records += splitter.feed(raw[at : at + step])
    return records + splitter.end()


@pytest.mark.parametrize("step", [1, 2, 3, 1000])
def test_lines_keep_their_bytes_and_lose_their_newlines(step: int) -> None:
    assert split(Lines(), b"one\n\ntwo\r\n\xff\x00three", step) == [b"one", b"", b"two\r", b"\xff\x00three"]
    assert split(Lines(), b"one\n", step) == [b"one"]
    assert split(Lines(), b"", step) == []


@pytest.mark.parametrize("step", [1, 7, 1000])
def test_json_lines_are_kept_as_they_are(step: int) -> None:
    assert split(JsonLines(), b'{"a": 1}\n\n [1,  2]\n"x"', step) == [b'{"a": 1}', b" [1,  2]", b'"x"']


def test_a_line_that_is_no_json_is_named_and_hands_over_those_before_it() -> None:
    with pytest.raises(BadInput, match="line 3 of the input is not JSON") as caught:
        JsonLines().feed(b"1\n2\n{nonsense\n4\n")
    assert caught.value.records == [b"1", b"2"]


@given(st.lists(st.binary(max_size=50)), st.integers(1, 100))
def test_length_prefixed_records_survive_any_chunks(records: list[bytes], step: int) -> None:
    raw = b"".join(struct.pack(">I", len(each)) + each for each in records)
    assert split(LengthPrefixed(), raw, step) == records


def test_a_cut_off_record_is_named() -> None:
    splitter = LengthPrefixed()
    assert splitter.feed(b"\0\0\0\1a\0\0\0\5bc") == [b"a"]
    with pytest.raises(BadInput, match="ends in the middle of record 2"):
        splitter.end()


def test_a_length_that_cannot_be_is_refused_before_it_is_waited_for() -> None:
    with pytest.raises(BadInput, match="record 2 of the input claims 4294967295 bytes") as caught:
        LengthPrefixed().feed(b"\0\0\0\0\xff\xff\xff\xff")
    assert caught.value.records == [b""]


def test_an_endless_line_is_refused_at_the_bound() -> None:
    splitter = Lines()
    splitter.feed(b"first\n" + bytes(RECORD_BYTES_MAX))
    with pytest.raises(RecordTooLarge, match="line 2 is longer than"):
        splitter.feed(b"x")


@pytest.mark.parametrize("make", SPLITTERS.values(), ids=SPLITTERS)
@given(chunks=st.lists(st.binary(max_size=30), max_size=10))
def test_any_bytes_give_records_or_one_clear_error(make: Callable[[], Splitter], chunks: list[bytes]) -> None:
    splitter = make()
    with suppress(ChappeError):
        for chunk in chunks:
            splitter.feed(chunk)
        splitter.end()
