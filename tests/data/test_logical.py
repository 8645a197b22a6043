"""Logical time: how it is ordered, incremented, merged and written."""

from __future__ import annotations

import copy
import json
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chappe.data.logical import NEVER, TIME_MAX, LamportTimestamp, VectorTimestamp
from chappe.errors import InvalidData, UnsupportedValue

VECTORS = st.dictionaries(st.sampled_from("abc"), st.integers(0, 3)).map(VectorTimestamp)


def test_a_lamport_timestamp_rises() -> None:
    time = LamportTimestamp(7)
    assert time < time.incremented() == 8
    assert type(time.incremented()) is LamportTimestamp
    assert time.merged(9) == 9
    assert time.merged(3) is time
    assert (repr(time), str(time), json.dumps(time)) == ("LamportTimestamp(7)", "7", "7")
    for number in (-1, TIME_MAX + 1):
        with pytest.raises(UnsupportedValue, match="a logical time is 0 to"):
            LamportTimestamp(number)
    with pytest.raises(UnsupportedValue):
        LamportTimestamp(TIME_MAX).incremented()


def test_vectors_are_ordered_if_one_has_seen_all_of_the_other() -> None:
    first = VectorTimestamp({"a": 1})
    one, two = first.incremented("a"), first.incremented("b")
    assert first < one
    assert two > first
    assert one.concurrent(two)
    assert not one < two
    assert not one > two
    assert one.merged(two) == VectorTimestamp({"b": 1, "a": 2}) >= one
    assert (one.of("a"), one.of("b"), dict(two)) == (2, NEVER, {"a": 1, "b": 1})


@given(VECTORS, VECTORS, VECTORS)
def test_merging_gives_the_earliest_time_behind_both(
    one: VectorTimestamp, two: VectorTimestamp, other: VectorTimestamp
) -> None:
    merged = one.merged(two)
    assert one <= merged >= two
    assert merged == two.merged(one)
    assert merged.merged(other) == one.merged(two.merged(other))
    assert (merged <= other) is (one <= other and two <= other)
    assert (one == two) is (one <= two and two <= one)


@given(VECTORS)
def test_a_vector_goes_through_json_pickle_and_copy(vector: VectorTimestamp) -> None:
    back = [VectorTimestamp.from_json(json.loads(json.dumps(vector.to_json())))]
    back += [pickle.loads(pickle.dumps(vector)), copy.copy(vector), copy.deepcopy(vector)]
    assert back == [vector] * 4
    assert {hash(each) for each in back} == {hash(vector)}
    assert "c" not in vector or vector["c"] > 0


@pytest.mark.parametrize("found", [None, 3, [1], {1: 2}, {"a": -1}, {"a": 2**64}, {"a": True}, {"a": 1.5}, {"a": "1"}])
def test_what_is_no_vector_is_refused(found: object) -> None:
    with pytest.raises(InvalidData):
        VectorTimestamp.from_json(found)


def test_columns_of_arrow_and_back() -> None:
    pytest.importorskip("pyarrow")
    from chappe.arrow import logical_times

    times = [LamportTimestamp(3), None, LamportTimestamp(TIME_MAX)]
    assert str(logical_times(times).type) == "uint64"
    assert logical_times(times).to_pylist() == times
    vectors = [VectorTimestamp({"b": 1, "a": TIME_MAX}), None, VectorTimestamp()]
    column = logical_times(vectors)
    assert str(column.type) == "map<string, uint64>"
    assert [None if each is None else VectorTimestamp.from_json(each) for each in column.to_pylist()] == vectors
