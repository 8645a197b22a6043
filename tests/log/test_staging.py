"""What a store gathers while it writes: few, large batches, in order, without anything twice."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from tests.fixed_clock import FixedClock

from chappe.defaults import BATCH_BYTES, BATCH_RECORDS_MAX
from chappe.limits import LOG_LIMITS
from chappe.log.batch import Batch, encode_batch
from chappe.log.gap import GapState, PartitionGap
from chappe.log.storage import AppendRecords
from chappe.log.writing import Stream

KEY = ("hello", "P")


def batch(base: int, *values: bytes, at: int = 1) -> Batch:
    return Batch.parse(encode_batch(base, values, at))


def values(appends: list[AppendRecords]) -> list[tuple[int, bytes | None]]:
    return [(r.offset, r.value) for each in appends for r in Batch.parse(each.body).records("t", "p")]


def test_small_neighbours_are_merged_into_one() -> None:
    stream = Stream(PartitionGap(0))
    for base in range(10):
        stream.stage(batch(base, b"x", at=base))

    (append,) = stream.take(KEY)
    assert (append.base, append.count) == (0, 10)
    assert (append.timestamp_min, append.timestamp_max) == (0, 9)
    assert not list(stream.take(KEY))


def test_large_batches_are_passed_on_as_they_are() -> None:
    stream = Stream(PartitionGap(0))
    large = [batch(base, bytes(LOG_LIMITS.small_batch_bytes)) for base in range(3)]
    for each in large:
        stream.stage(each)

    assert [append.body for append in stream.take(KEY)] == [each.raw for each in large]


def test_merging_stops_at_the_size_of_a_batch() -> None:
    stream = Stream(PartitionGap(0))
    for base in range(100):
        stream.stage(batch(base, bytes(5_000)))

    appends = list(stream.take(KEY))
    assert max(len(each.body) for each in appends) <= BATCH_BYTES * 1.1
    assert len(appends) <= 10
    assert [offset for offset, _ in values(appends)] == list(range(100))


def test_merging_stops_at_the_count_of_a_batch() -> None:
    stream = Stream(PartitionGap(0))
    many = Batch.parse(encode_batch(0, [b""] * (BATCH_RECORDS_MAX - 1), 1))
    stream.stage(many)
    for base in range(many.next, many.next + 3):
        stream.stage(batch(base, b""))

    assert sum(each.count for each in stream.take(KEY)) == BATCH_RECORDS_MAX + 2


def test_single_records_over_the_count_of_a_batch_become_several() -> None:
    stream = Stream(PartitionGap(7))
    for _ in range(BATCH_RECORDS_MAX + 5):
        stream.stage_record(b"", FixedClock(us=1))

    appends = list(stream.take(KEY))
    assert [(each.base, each.count) for each in appends] == [(7, BATCH_RECORDS_MAX), (7 + BATCH_RECORDS_MAX, 5)]


def test_single_records_are_cut_into_batches_by_their_bytes() -> None:
    stream = Stream(PartitionGap(0))
    for _ in range(20):
        stream.stage_record(bytes(BATCH_BYTES // 3 - 10), FixedClock(us=1))

    appends = list(stream.take(KEY))
    assert [each.count for each in appends] == [3] * 6 + [2]
    assert [offset for offset, _ in values(appends)] == list(range(20))


def test_a_single_record_larger_than_a_batch_is_a_batch_of_its_own() -> None:
    stream = Stream(PartitionGap(0))
    for size in (10, 1_000_000, 10):
        stream.stage_record(bytes(size), FixedClock(us=1))

    assert [each.count for each in stream.take(KEY)] == [1, 1, 1]


def test_the_part_that_is_there_already_is_cut_off() -> None:
    stream = Stream(PartitionGap(0))
    stream.stage(batch(0, b"a", b"b"))
    stream.stage(batch(1, b"B", b"c"))

    assert values(list(stream.take(KEY))) == [(0, b"a"), (1, b"b"), (2, b"c")]


pieces = st.lists(st.tuples(st.booleans(), st.integers(0, 3), st.integers(1, 5), st.integers(0, 9000)), max_size=20)


@given(pieces)
def test_whatever_the_mixture_every_offset_comes_out_once_and_in_order(made: list[tuple[bool, int, int, int]]) -> None:
    stream = Stream(PartitionGap(0))
    expected: dict[int, bytes] = {}
    for single, overlap, count, size in made:
        base = stream.gap.next if single else max(0, stream.gap.next - overlap)
        if base + count <= stream.gap.next:
            continue
        contents = [b"%d" % n + bytes(size) for n in range(base, base + (1 if single else count))]
        for offset, content in enumerate(contents, base):
            expected.setdefault(offset, content)
        if single:
            stream.stage_record(contents[0], FixedClock(us=1))
        else:
            stream.stage(batch(base, *contents))

    assert values(list(stream.take(KEY))) == sorted(expected.items())


def test_a_stream_is_idle_when_the_storage_knows_everything() -> None:
    stream = Stream(PartitionGap(5))
    assert stream.idle
    stream.gap.state = GapState.OPEN
    assert not stream.idle
    stream.gap.state = GapState.CLOSED
    stream.stage_record(b"x", FixedClock(us=1))
    assert not stream.idle
    list(stream.take(KEY))
    assert stream.idle
