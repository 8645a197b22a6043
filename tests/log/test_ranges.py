from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from chappe.log.sources import RangeSet

offsets = st.integers(0, 30)
steps = st.lists(st.tuples(st.booleans(), offsets, offsets), max_size=40)


@given(steps)
def test_it_holds_what_a_set_of_single_offsets_holds(made: list[tuple[bool, int, int]]) -> None:
    ranges, model = RangeSet(), set[int]()
    for add, first, end in made:
        if add:
            ranges.add(first, end)
            model |= set(range(first, end))
        else:
            ranges.remove(first, end)
            model -= set(range(first, end))
        found = list(ranges)
        assert {n for low, high in found for n in range(low, high)} == model
        assert all(low < high for low, high in found)
        assert all(one[1] < other[0] for one, other in pairwise(found))
        assert (bool(ranges), len(ranges)) == (bool(model), len(found))
        if found:
            assert ranges.lowest == found[0]
        for offset in range(31):
            end = offset
            while end in model:
                end += 1
            assert ranges.end_of(offset) == end
