"""Planning of reads, as functions."""

from __future__ import annotations

import json
import random

import pytest

from chappe.errors import StorageFormat
from chappe.reading import offsets
from chappe.reading.offsets import (
    FROM_LATEST,
    KnownPartition,
    Range,
    at_most,
    check_offsets,
    cut,
    from_moment,
    is_symbolic,
    latest,
    ranges,
    resolve,
    sort_offsets,
    without_retired,
)


def known(first: int, stop: int, size: int = 0) -> KnownPartition:
    return KnownPartition(first, stop, size or (stop - first) * 100, ("s",))


KNOWN = {("t", "b"): known(0, 100), ("t", "a"): known(50, 60), ("s", "c"): known(0, 5)}


def test_offsets_are_sorted_whatever_the_order_they_came_in() -> None:
    assert json.dumps(sort_offsets({"t": {"b": 1, "a": 2}, "s": {}})) == '{"s": {}, "t": {"a": 2, "b": 1}}'


def test_a_start_at_the_latest_becomes_numbers() -> None:
    assert is_symbolic(FROM_LATEST)
    assert resolve(FROM_LATEST, KNOWN) == {"s": {"c": 5}, "t": {"a": 60, "b": 100}}
    assert resolve(FROM_LATEST, {}) == {}


def test_single_partitions_can_start_at_the_latest_the_earliest_or_a_number() -> None:
    start = {"t": {"a": -1, "b": 7}, "s": {"c": -2}}
    assert is_symbolic(start)
    assert resolve(start, KNOWN) == {"t": {"a": 60, "b": 7}}
    assert resolve({"s": {"c": -1}, "t": {"b": 7}}, KNOWN) == {"s": {"c": 5}, "t": {"a": 50, "b": 7}}


def test_the_batch_that_resolves_a_start_is_empty_where_it_was_symbolic() -> None:
    assert ranges(FROM_LATEST, resolve(FROM_LATEST, KNOWN), KNOWN, []) == []
    start = {"t": {"a": -1, "b": 7}}
    assert ranges(start, resolve(start, KNOWN), KNOWN, []) == []


def test_a_batch_reads_to_every_head() -> None:
    assert latest({"t": {"b": 10}}, KNOWN, None) == {"s": {"c": 5}, "t": {"a": 60, "b": 100}}


def test_partitions_that_are_gone_keep_their_place() -> None:
    assert latest({"t": {"gone": 9, "b": 200}}, {("t", "b"): known(0, 100)}, None) == {"t": {"b": 200, "gone": 9}}


def test_the_rows_of_a_batch_are_shared_out_in_proportion() -> None:
    end = latest({}, KNOWN, 23)
    assert end == {"s": {"c": 1}, "t": {"a": 52, "b": 20}}
    assert len([*ranges({}, end, KNOWN, [])]) == 3
    assert sum(map(len, ranges({}, end, KNOWN, []))) == 23


def test_one_row_at_a_time_still_gets_everywhere() -> None:
    start: dict[str, dict[str, int]] = {}
    for _ in range(115):
        start = latest(start, KNOWN, 1)
    assert start == {"s": {"c": 5}, "t": {"a": 60, "b": 100}}
    assert latest(start, KNOWN, 1) == start


def test_the_bytes_of_a_batch_are_shared_out_as_its_rows_are() -> None:
    sizes = {("t", "large"): known(0, 100, 100_000), ("t", "small"): known(0, 100, 10_000)}
    assert latest({}, sizes, None, 11_000) == {"t": {"large": 10, "small": 10}}
    assert latest({}, sizes, 4, 11_000) == {"t": {"large": 2, "small": 2}}
    assert latest({}, sizes, 50, 200_000) == {"t": {"large": 25, "small": 25}}


def test_a_limit_below_one_record_still_reads_one() -> None:
    assert sum(map(len, ranges({}, latest({}, KNOWN, None, 1), KNOWN, []))) == 1


def test_partitions_that_retention_emptied_leave_the_offsets_where_there_are_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kept = {("t", name): KnownPartition(9, 9, 0, ("s",)) for name in ("a", "b", "c")} | {("t", "p"): known(0, 5)}
    end = {"t": {"a": 9, "b": 9, "c": 9, "p": 5, "unknown": 3}}
    assert without_retired(end, kept, kept) == end
    monkeypatch.setattr(offsets, "KEPT_MAX", 3)
    left = without_retired(end, kept, kept)
    assert left == {"t": {"c": 9, "p": 5, "unknown": 3}}
    assert latest(left, kept) == left
    # one that goes on may be one that has left: it begins with the next record
    later = kept | {("t", "a"): known(9, 12)}
    end = latest(left, later)
    assert ranges(left, end, later, [], first=False) == [Range("t", "a", 9, 12, ("s",))]


def test_a_partition_that_is_new_after_the_first_start_begins_at_0() -> None:
    start = {"t": {"b": 100}}
    late = KNOWN | {("t", "gone"): KnownPartition(7, 7, 0, ("s",))}
    end = latest(start, late)
    assert end == {"s": {"c": 5}, "t": {"a": 60, "b": 100, "gone": 7}}
    found = {each.partition: (each.start, each.end) for each in ranges(start, end, late, [], first=False)}
    assert found == {"a": (0, 60), "c": (0, 5), "gone": (0, 7)}
    assert {each.partition for each in ranges(start, end, late, [])} == {"a", "c"}


def test_what_the_first_batch_has_no_room_for_keeps_its_beginning() -> None:
    end = latest({}, KNOWN, 1)
    assert end == {"t": {"a": 50, "b": 1}}
    assert sum(map(len, ranges(end, latest(end, KNOWN), KNOWN, [], first=False))) == 10 + 99 + 5


def test_a_start_at_a_moment_becomes_numbers() -> None:
    start = from_moment(5)
    assert is_symbolic(start)
    end = resolve(start, KNOWN, {("t", "b"): 7, ("t", "a"): 50})
    assert end == {"t": {"a": 50, "b": 7}}
    assert ranges(start, end, KNOWN, []) == []


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"": {"format": 2}}, "a newer chappe"),
        ({"t": 5}, "does not hold offsets"),
        ([1], "does not hold offsets"),
        (None, "does not hold offsets"),
        ({"t": {"p": "7"}}, '"7" stands for partition p of topic t; restore'),
        ({"t": {"p": None}}, "null stands for"),
        ({"t": {"p": True}}, "true stands for"),
        ({"t": {"p": 1.5}}, "1.5 stands for"),
        ({"t": {"p": -3}}, "-3 stands for"),
        ({"t": {"p": 1 << 63}}, "9223372036854775808 stands for"),
        ({"t": {"p": {"q": 1}}}, "stands for"),
        ({"": {"": "x"}}, "stands for"),
        ({"": {"time": []}}, "stands for"),
    ],
)
def test_offsets_of_something_else_are_refused(given: object, text: str) -> None:
    with pytest.raises(StorageFormat, match=text):
        check_offsets(given)


def test_offsets_of_before_are_read() -> None:
    for each in (FROM_LATEST, {}, {"t": {"p": 5, "q": -1}}, from_moment(3)):
        check_offsets(each)


def test_a_partition_missing_in_the_start_is_read_from_its_first_record() -> None:
    assert ranges({}, {"t": {"a": 60}}, KNOWN, []) == [Range("t", "a", 50, 60, ("s",))]


def test_a_partition_nobody_tells_of_is_asked_of_everyone() -> None:
    assert ranges({"t": {"x": 3}}, {"t": {"x": 5}}, {}, ["e", "f"]) == [Range("t", "x", 3, 5, ("e", "f"))]


@pytest.mark.parametrize("seed", range(50))
def test_cutting_loses_and_doubles_nothing(seed: int) -> None:
    rng = random.Random(seed)
    found = []
    for n in range(rng.randint(1, 40)):
        start = rng.randint(0, 1000)
        found.append(Range("t", str(n), start, start + rng.randint(1, 5000), ("s",), rng.randint(1, 300)))
    tasks = rng.randint(1, 9)
    shared = cut(found, tasks, bytes_min=1)
    assert 1 <= len(shared) <= tasks
    whole = [(r.partition, n) for r in found for n in range(r.start, r.end)]
    assert [(r.partition, n) for task in shared for r in task for n in range(r.start, r.end)] == whole
    sizes = [sum(len(r) * r.record_bytes for r in task) for task in shared]
    assert max(sizes) <= -(-sum(len(r) * r.record_bytes for r in found) // tasks) + 300


def test_tasks_have_at_most_so_many_records() -> None:
    whole = [Range("t", "p", 0, 25), Range("t", "q", 5, 12), Range("t", "r", 0, 3)]
    shared = at_most(cut(whole, 2, bytes_min=1), 10)
    assert max(sum(map(len, task)) for task in shared) == 10
    told = [(each.partition, n) for task in shared for each in task for n in range(each.start, each.end)]
    assert told == [(each.partition, n) for each in whole for n in range(each.start, each.end)]


def test_little_work_is_one_task() -> None:
    assert len(cut([Range("t", str(n), 0, 100) for n in range(50)], 8)) == 1


def test_large_work_is_as_many_tasks_as_wanted() -> None:
    assert len(cut([Range("t", "p", 0, 10_000_000)], 8)) == 8


def test_no_work_is_no_task() -> None:
    assert cut([], 8) == []
