"""The columnar batch: nothing is lost in it, nothing damaged is believed, and no bytes make it fall over."""

from __future__ import annotations

import struct
import tracemalloc
from collections.abc import Callable
from itertools import accumulate, pairwise
from typing import Any

import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from chappe.arrow import to_arrow
from chappe.defaults import BATCH_BYTES_MAX, BATCH_RECORDS_MAX, HEADERS_MAX
from chappe.errors import ProtocolError, UsageError
from chappe.log.batch import (
    CRC_AT,
    HEADER,
    HEADERS,
    KEY_NULLS,
    KEYS,
    TIMESTAMPS,
    VALUE_NULLS,
    Batch,
    Headers,
    Record,
    as_headers,
    bare,
    decode_headers,
    encode_batch,
    encode_headers,
    encode_record,
    merge,
    rebase,
)

blobs = st.binary(max_size=20)
stamps = st.integers(-(2**63), 2**63 - 1)
headers_of_one = st.lists(st.tuples(st.text(max_size=5), blobs), max_size=3).map(tuple)


@st.composite
def columns(draw: st.DrawFn) -> dict[str, Any]:
    """The arguments of ``encode_batch``."""
    count = draw(st.integers(1, 20))

    def exactly(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[list[Any]]:
        return st.lists(strategy, min_size=count, max_size=count)

    return {
        "base": draw(st.integers(0, 2**63 - 1 - 30)),
        "values": draw(exactly(st.none() | blobs)),
        "timestamp": draw(stamps),
        "timestamps": draw(st.none() | exactly(stamps)),
        "keys": draw(st.none() | exactly(st.none() | blobs)),
        "headers": draw(st.none() | exactly(headers_of_one)),
    }


def expected(made: dict[str, Any]) -> list[Record]:
    count = len(made["values"])
    return [
        Record(
            "t",
            "p",
            made["base"] + index,
            made["timestamps"][index] if made["timestamps"] else made["timestamp"],
            made["keys"][index] if made["keys"] else None,
            made["values"][index],
            made["headers"][index] if made["headers"] else (),
        )
        for index in range(count)
    ]


def records(raw: bytes) -> list[Record]:
    return list(Batch.parse(raw).records("t", "p"))


@settings(max_examples=40)
@given(columns())
def test_what_goes_in_comes_out(made: dict[str, Any]) -> None:
    batch = Batch.parse(encode_batch(**made))

    assert list(batch.records("t", "p")) == expected(made)
    assert batch.values() == made["values"]
    assert (batch.base, batch.count, batch.next) == (made["base"], len(batch), made["base"] + len(made["values"]))
    wanted = made["timestamps"] or [made["timestamp"]]
    assert (batch.timestamp_min, batch.timestamp_max) == (min(wanted), max(wanted))


@settings(max_examples=40)
@given(columns(), st.data())
def test_records_start_wherever_they_are_wanted(made: dict[str, Any], data: st.DataObject) -> None:
    batch = Batch.parse(encode_batch(**made))
    start = data.draw(st.integers(batch.base, batch.next))

    assert list(batch.records("t", "p", start)) == expected(made)[start - batch.base :]


@settings(max_examples=40)
@given(columns(), st.data())
def test_a_slice_holds_the_records_between_its_ends(made: dict[str, Any], data: st.DataObject) -> None:
    batch = Batch.parse(encode_batch(**made))
    start = data.draw(st.integers(batch.base, batch.next - 1))
    end = data.draw(st.integers(start + 1, batch.next))

    assert records(batch.slice(start, end)) == expected(made)[start - batch.base : end - batch.base]
    assert records(batch.slice(start)) == expected(made)[start - batch.base :]


def test_a_slice_makes_no_values_of_other_records() -> None:
    many = 20_000
    raw = encode_batch(0, [b"v" * 50] * many, 0, keys=[b"k" * 50] * many, headers=[(("h", b"h"),)] * many)
    batch = Batch.parse(raw)
    tracemalloc.start()
    try:
        batch.slice(many // 2, many // 2 + 1)
        assert tracemalloc.get_traced_memory()[1] < many
    finally:
        tracemalloc.stop()


@settings(max_examples=40)
@given(columns(), st.data())
def test_a_batch_cut_into_pieces_and_merged_is_the_same_batch(made: dict[str, Any], data: st.DataObject) -> None:
    batch = Batch.parse(encode_batch(**made))
    inner = data.draw(st.sets(st.integers(batch.base + 1, batch.next - 1))) if len(batch) > 1 else set()
    cuts = [batch.base, *sorted(inner), batch.next]

    pieces = [Batch.parse(batch.slice(a, b)) for a, b in pairwise(cuts)]

    assert records(merge(pieces)) == expected(made)


@settings(max_examples=40)
@given(columns(), columns())
def test_merging_keeps_each_record_with_its_own_time_key_and_headers(one: dict[str, Any], two: dict[str, Any]) -> None:
    one["base"] = min(one["base"], 1 << 62)  # two batches need room
    two["base"] = one["base"] + len(one["values"])
    merged = merge([Batch.parse(encode_batch(**one)), Batch.parse(encode_batch(**two))])

    assert records(merged) == expected(one) + expected(two)


@settings(max_examples=40)
@given(columns(), st.data())
def test_arrow_has_the_same_records(made: dict[str, Any], data: st.DataObject) -> None:
    batch = Batch.parse(encode_batch(**made))
    start = data.draw(st.integers(batch.base, batch.next - 1))
    end = data.draw(st.integers(start + 1, batch.next))

    table = to_arrow(batch, "t", "p", start, end)

    wanted = expected(made)[start - batch.base : end - batch.base]
    assert table.column("value").to_pylist() == [record.value for record in wanted]
    assert table.column("key").to_pylist() == [record.key for record in wanted]
    assert table.column("offset").to_pylist() == list(range(start, end))
    assert table.column("timestamp").cast("int64").to_pylist() == [record.timestamp for record in wanted]
    assert [
        tuple((header["key"], header["value"]) for header in each) for each in table.column("headers").to_pylist()
    ] == [record.headers for record in wanted]


def test_a_batch_in_a_memoryview_is_as_good() -> None:
    raw = encode_batch(3, [b"a", None], 7, keys=[b"k", None])

    assert list(Batch.parse(memoryview(raw)).records("t", "p")) == records(raw)
    assert Batch.parse(memoryview(raw)).slice(4) == Batch.parse(raw).slice(4)


# -- damage ---------------------------------------------------------------------------------------------

SMALL = encode_batch(
    5, [b"one", None, b"three"], 9, timestamps=[1, 2, 3], keys=[b"k", None, b""], headers=[(("h", b"x"),), (), ()]
)


def test_every_flipped_bit_is_noticed() -> None:
    for at in range(len(SMALL)):
        for bit in range(8):
            wrong = bytearray(SMALL)
            wrong[at] ^= 1 << bit
            with pytest.raises(ProtocolError):
                Batch.parse(bytes(wrong))


def test_every_wrong_byte_is_noticed() -> None:
    for at in range(len(SMALL)):
        for value in {0, 1, 0x7F, 0x80, 0xFF, SMALL[at] ^ 0xFF} - {SMALL[at]}:
            with pytest.raises(ProtocolError):
                Batch.parse(SMALL[:at] + bytes((value,)) + SMALL[at + 1 :])


def test_every_cut_is_noticed() -> None:
    for size in range(len(SMALL)):
        with pytest.raises(ProtocolError):
            Batch.parse(SMALL[:size])
        with pytest.raises(ProtocolError):
            Batch.parse(SMALL[size + 1 :])


def test_more_than_the_batch_is_not_the_batch() -> None:
    for more in (b"\0", bytes(8), SMALL):
        with pytest.raises(ProtocolError):
            Batch.parse(SMALL + more)


@given(st.binary(max_size=300))
def test_random_bytes_are_no_batch(raw: bytes) -> None:
    with pytest.raises(ProtocolError):
        Batch.parse(raw)


# -- a valid checksum over evil bytes -------------------------------------------------------------------


def signed(raw: bytes | bytearray) -> bytes:
    """The same with the size and checksum that a peer meaning harm would put in."""
    made = bytearray(raw)
    struct.pack_into("<I", made, 20, len(made))
    struct.pack_into("<I", made, 4, crc32c(bytes(made[CRC_AT:])))
    return bytes(made)


def use_everything(raw: bytes) -> None:
    """Whatever is asked of a batch, the worst answer is ProtocolError."""
    try:
        batch = Batch.parse(raw)
    except ProtocolError:
        return
    uses: list[Callable[[], object]] = [
        batch.values,
        batch.keys,
        batch.headers,
        batch.timestamps,
        lambda: list(batch.records("t", "p", batch.base)),
        lambda: to_arrow(batch, "t", "p", batch.base, batch.next).validate(full=True),
    ]
    for use in uses:
        try:
            use()
        except ProtocolError:
            pass
    # What a store does with a batch cannot fail: it would be stuck with it.
    if len(batch) > 1:
        assert Batch.parse(batch.slice(batch.base + 1)).next == batch.next
    if batch.next < 1 << 62:
        behind = Batch.parse(encode_batch(batch.next, [b"x"], 1))
        assert Batch.parse(merge([batch, behind])).next == behind.next


@settings(max_examples=200)
@given(st.integers(CRC_AT, len(SMALL) - 1), st.integers(0, 255))
def test_one_evil_byte_with_a_right_checksum_does_no_harm(at: int, value: int) -> None:
    wrong = bytearray(SMALL)
    wrong[at] = value

    use_everything(signed(wrong))


@settings(max_examples=200)
@given(st.integers(0, 31), st.integers(1, 40), st.binary(max_size=400))
def test_random_columns_with_a_right_checksum_do_no_harm(flags: int, count: int, body: bytes) -> None:
    use_everything(signed(HEADER.pack(b"CB\x01", flags, 0, 7, count, 0, 1, 2) + body))


def evil(flags: int, count: int, *columns: tuple[list[int], bytes]) -> bytes:
    """A batch whose binary columns have any positions."""
    body = b""
    for positions, data in columns:
        raw = struct.pack(f"<{len(positions)}i", *positions)
        body += raw + bytes(-len(raw) % 8) + data + bytes(-len(data) % 8)
    return signed(HEADER.pack(b"CB\x01", flags, 0, 7, count, 0, 1, 2) + body)


@pytest.mark.parametrize(
    "positions",
    [[0, 100, 3], [0, -1, 3], [0, -(2**31), 3], [0, 2**31 - 1, 3], [0, 3, 3], [0, 4, 3]],
    ids=str,
)
def test_positions_that_point_anywhere_reach_no_other_bytes(positions: list[int]) -> None:
    use_everything(evil(0, 2, (positions, b"abc")))
    use_everything(evil(KEYS, 2, (positions, b"abc"), ([0, 1, 2], b"xy")))
    use_everything(evil(HEADERS, 2, (positions, b"\1\0\1"), ([0, 1, 2], b"xy")))


OVERLAPPING = [[0, 100, 3], [0, -1, 3], [0, -(2**31), 3], [0, 2**31 - 1, 3], [0, 4, 3]]


@pytest.mark.parametrize("positions", OVERLAPPING, ids=str)
@pytest.mark.parametrize("flags", [0, KEYS, HEADERS], ids=["values", "keys", "headers"])
def test_values_that_overlap_are_refused_before_they_are_made(positions: list[int], flags: int) -> None:
    others = [([0, 1, 2], b"xy")] if flags else []
    raw = evil(flags, 2, (positions, b"abc"), *others)
    with pytest.raises(ProtocolError, match="overlap"):
        Batch.parse(raw)
    batch = Batch.parse(raw, check=False)
    with pytest.raises(ProtocolError, match="overlap"):
        batch.slice(8)
    with pytest.raises(ProtocolError, match="overlap"):
        list(batch.records("t", "p"))


def test_a_small_batch_does_not_become_a_large_one() -> None:
    data = bytes(10_000)
    with pytest.raises(ProtocolError, match="overlap"):
        Batch.parse(evil(0, 200, ([0, len(data)] * 100 + [len(data)], data)))


@given(st.lists(st.integers(-5, 5), min_size=1, max_size=20))
def test_positions_may_stay_and_never_decrease(steps: list[int]) -> None:
    positions = [0, *accumulate(steps)]
    raw = evil(0, len(steps), (positions, bytes(max(positions[-1], 0))))
    if min(steps) < 0:
        with pytest.raises(ProtocolError):
            Batch.parse(raw)
    else:
        assert [len(value or b"") for value in Batch.parse(raw).values()] == steps


@pytest.mark.parametrize("positions", [[1, 2, 3], [-1, 2, 3], [0, 1, -1], [0, 1, 2**31 - 1], [0, 1, 9]], ids=str)
def test_a_column_that_leaves_the_batch_is_refused(positions: list[int]) -> None:
    with pytest.raises(ProtocolError):
        Batch.parse(evil(0, 2, (positions, b"abc")))


def test_a_batch_claiming_more_records_than_it_holds_is_refused() -> None:
    for flags in (0, TIMESTAMPS, KEYS | KEY_NULLS, HEADERS, VALUE_NULLS):
        with pytest.raises(ProtocolError):
            Batch.parse(evil(flags, BATCH_RECORDS_MAX, ([0, 1], b"a")))


def test_a_batch_of_none_or_too_many_records_is_refused() -> None:
    for count in (0, BATCH_RECORDS_MAX + 1, 2**32 - 1):
        with pytest.raises(ProtocolError, match="header"):
            Batch.parse(evil(0, count, ([0] * (min(count, 70_000) + 1), b"")))


def test_offsets_end_before_two_to_the_63() -> None:
    last = (1 << 63) - 2
    assert Batch.parse(encode_batch(last, [b"x"], 0)).next == last + 1
    with pytest.raises(ProtocolError, match="header"):
        Batch.parse(encode_batch(last, [b"x", b"y"], 0))


def test_flags_of_a_newer_version_are_refused_with_that_word() -> None:
    with pytest.raises(ProtocolError, match="newer version"):
        Batch.parse(evil(64, 2, ([0, 1, 2], b"xy")))


def test_the_largest_batches_fit_and_larger_are_refused() -> None:
    most = encode_batch(0, [b""] * BATCH_RECORDS_MAX, 0)
    assert len(Batch.parse(most)) == BATCH_RECORDS_MAX
    with pytest.raises(ProtocolError, match="batch of"):
        Batch.parse(bytes(BATCH_BYTES_MAX + 1))


# -- headers --------------------------------------------------------------------------------------------


@given(headers_of_one)
def test_headers_survive(headers: Headers) -> None:
    assert decode_headers(encode_headers(headers)) == headers


@given(st.binary(max_size=60))
def test_random_bytes_are_headers_or_a_protocol_error(raw: bytes) -> None:
    try:
        decode_headers(raw)
    except ProtocolError:
        pass


def test_every_cut_of_headers_is_refused() -> None:
    raw = encode_headers((("name", b"value"), ("é", b""), ("", b"x")))
    for size in range(1, len(raw)):
        with pytest.raises(ProtocolError):
            decode_headers(raw[:size])


def test_headers_that_are_none_are_named_and_stop_nobody_who_does_not_want_them() -> None:
    good = encode_headers((("name", b"value"),))
    batch = Batch.parse(encode_batch(5, [b"a", b"b", b"c"], 1, keys=[b"k", None, None], headers=[good, b"\xff", b""]))

    with pytest.raises(ProtocolError, match=r"at offset 6: .*, in topic 't', partition P"):
        batch.records("t", "P")

    plain = list(batch.records("t", "P", with_headers=False))
    assert [(each.offset, each.key, each.value, each.headers) for each in plain] == [
        (5, b"k", b"a", ()), (6, None, b"b", ()), (7, None, b"c", ())
    ]  # fmt: skip
    assert (batch.headers_at(5), batch.headers_at(7)) == ((("name", b"value"),), ())
    with pytest.raises(ProtocolError, match="headers of the record at offset 6"):
        batch.headers_at(6)
    assert Batch.parse(encode_batch(5, [b"a"], 1)).headers_at(5) == ()


def test_a_count_of_headers_over_the_bound_is_refused() -> None:
    with pytest.raises(ProtocolError):
        decode_headers(struct.pack("<H", HEADERS_MAX + 1) + bytes(6 * (HEADERS_MAX + 1)))


def test_a_user_with_too_many_headers_or_too_long_a_name_is_told_so() -> None:
    assert encode_headers((("h", b""),) * HEADERS_MAX)
    with pytest.raises(UsageError, match="257 headers, at most 256"):
        encode_headers((("h", b""),) * (HEADERS_MAX + 1))
    with pytest.raises(UsageError, match="65536 bytes"):
        encode_headers((("h" * 65_536, b""),))


def test_headers_are_given_as_a_mapping_or_pairs_of_text_or_bytes() -> None:
    mixed: dict[str, bytes | str] = {"a": "é", "b": b"\0"}
    assert as_headers(mixed) == (("a", "é".encode()), ("b", b"\0"))
    assert as_headers([("a", "1"), ("a", "2")]) == (("a", b"1"), ("a", b"2"))
    assert as_headers(None) == as_headers({}) == ()


@given(st.lists(st.one_of(st.none(), st.binary(max_size=20)), min_size=1, max_size=5), st.integers(0, 2**63 - 10))
def test_a_batch_can_be_moved_to_another_offset(values: list[bytes | None], base: int) -> None:
    raw = encode_batch(3, values, 7, keys=[b"k"] * len(values))

    assert rebase(raw, base) == encode_batch(base, values, 7, keys=[b"k"] * len(values))


def test_a_damaged_batch_is_not_made_to_look_sound() -> None:
    raw = bytearray(encode_batch(0, [b"value"], 7))
    raw[-3] ^= 1

    with pytest.raises(ProtocolError, match="checksum"):
        rebase(bytes(raw), 5)


@given(st.integers(1, 9), st.booleans(), st.booleans())
def test_a_bare_batch_has_offsets_and_times_alone(count: int, timed: bool, keyed: bool) -> None:
    values = [None, *[b"value" * 100] * (count - 1)]
    stamps = range(7, 7 + count) if timed else None
    raw = encode_batch(3, values, 7, timestamps=stamps, keys=[b"k"] * count if keyed else None)
    whole, found = Batch.parse(raw), Batch.parse(bare(raw))

    assert (found.base, found.count, found.timestamp_min) == (3, count, 7)
    assert found.timestamp_max == whole.timestamp_max
    assert found.timestamps() == whole.timestamps()
    assert (found.keys(), found.values()) == (None, [b""] * count)
    assert len(found.raw) <= HEADER.size + 12 * count + 8


def test_a_batch_cannot_be_moved_behind_the_last_offset() -> None:
    with pytest.raises(ProtocolError):
        rebase(encode_batch(0, [b"x", b"y"], 7), (1 << 63) - 2)


@pytest.mark.parametrize("size", range(17))
def test_one_plain_record_is_encoded_as_any_batch(size: int) -> None:
    assert encode_record(3, b"x" * size, 99) == encode_batch(3, [b"x" * size], 99)
