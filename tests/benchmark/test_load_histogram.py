"""Histograms of load tests: percentiles within three percent, in bounded memory, and merged without loss."""

from __future__ import annotations

import json
import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chappe.benchmark.load.histogram import LONGEST_NS, PRECISION, SIZE, Histogram, _bucket, _end

DURATIONS = st.lists(st.integers(0, LONGEST_NS) | st.integers(0, 10**9), min_size=1, max_size=200)


def of(durations: list[int]) -> Histogram:
    made = Histogram()
    for each in durations:
        made.add(each)
    return made


@given(DURATIONS, st.floats(0.1, 100))
def test_a_percentile_is_never_too_small_and_at_most_three_percent_too_large(
    durations: list[int], percent: float
) -> None:
    found = of(durations).percentile_ns(percent)
    exact = sorted(durations)[max(0, math.ceil(len(durations) * percent / 100 - 1e-6) - 1)]
    assert exact <= found <= exact + exact / (1 << PRECISION)


@given(DURATIONS, DURATIONS)
def test_histograms_of_several_processes_add_up(one: list[int], other: list[int]) -> None:
    merged = of(one)
    merged.merge(Histogram.unpack(json.loads(json.dumps(of(other).packed()))))
    assert merged.packed() == of(one + other).packed()
    assert merged.count == sum(count for _, _, count in merged.buckets()) == len(one) + len(other)


@given(DURATIONS)
def test_every_duration_lies_in_a_bucket_and_in_an_octave(durations: list[int]) -> None:
    found = of(durations)
    octaves = found.octaves()
    assert sum(count for _, _, count in octaves) == len(durations)
    assert all(before[1] == after[0] for before, after in pairwise(octaves))
    for each in durations:
        assert any(low <= each < high for low, high, _ in found.buckets())
        assert any(low <= each < high for low, high, _ in octaves)


def test_buckets_follow_each_other_up_to_the_longest_duration() -> None:
    assert _bucket(LONGEST_NS) == SIZE - 1
    assert _end(-1) == 0
    assert all(_bucket(_end(each) - 1) == each == _bucket(_end(each - 1)) for each in range(SIZE))


@pytest.mark.parametrize(("given", "counted"), [(-5, 0), (1 << 80, LONGEST_NS)])
def test_a_duration_that_cannot_be_counts_as_the_nearest_one(given: int, counted: int) -> None:
    found = Histogram()
    found.add(given, 3)
    assert (found.count, found.least_ns, found.most_ns, found.percentile_ns(50)) == (3, counted, counted, counted)


def test_without_durations_there_is_nothing_to_draw() -> None:
    assert Histogram().octaves() == []
