from __future__ import annotations

import math
from collections.abc import Hashable

from hypothesis import given
from hypothesis import strategies as st

from chappe.deadlines import STALE_MIN, Deadlines


def test_without_timers_nothing_is_ever_due() -> None:
    deadlines: Deadlines[str] = Deadlines()
    assert deadlines.next == math.inf
    assert deadlines.at("beacon") == math.inf
    assert deadlines.due(1e9) == []
    deadlines.clear("beacon")


def test_what_is_due_comes_earliest_first_and_only_once() -> None:
    deadlines: Deadlines[str] = Deadlines()
    for name, at in (("late", 9.0), ("second", 2.0), ("first", 1.0)):
        deadlines.set(name, at)
    assert deadlines.next == 1.0
    assert deadlines.due(0.9) == []
    assert deadlines.due(2.0) == ["first", "second"]
    assert deadlines.due(2.0) == []
    assert (deadlines.next, deadlines.at("first"), deadlines.at("late")) == (9.0, math.inf, 9.0)


def test_timers_for_the_same_instant_come_in_the_order_in_which_they_were_set() -> None:
    deadlines: Deadlines[Hashable] = Deadlines()
    names: list[Hashable] = [object(), "b", 1, ("a", 2), None]  # any two of them, though they cannot be compared
    for name in names:
        deadlines.set(name, 5.0)
    deadlines.set(names[0], 5.0)  # keeps its place
    assert deadlines.due(5.0) == names


def test_the_newest_setting_of_a_name_counts_whether_later_or_earlier() -> None:
    deadlines: Deadlines[str] = Deadlines()
    deadlines.set("a", 1.0)
    deadlines.set("a", 3.0)
    assert (deadlines.next, deadlines.due(2.0)) == (3.0, [])
    deadlines.set("a", 2.0)
    assert (deadlines.next, deadlines.due(2.0), deadlines.due(9.0)) == (2.0, ["a"], [])


def test_infinity_clears_a_timer() -> None:
    deadlines: Deadlines[str] = Deadlines()
    deadlines.set("a", 1.0)
    deadlines.set("a", math.inf)
    assert (deadlines.next, len(deadlines), deadlines.due(9.0)) == (math.inf, 0, [])


def test_a_name_may_be_set_again_while_what_is_due_is_handled() -> None:
    deadlines: Deadlines[str] = Deadlines()
    deadlines.set("a", 1.0)
    for name in deadlines.due(1.0):
        deadlines.set(name, 0.5)  # in the past already: due at once, and not in this round
    assert deadlines.due(1.0) == ["a"]


def test_stale_entries_are_bounded_by_the_live_names() -> None:
    deadlines: Deadlines[int] = Deadlines()
    deadlines.set(-1, 0.0)  # always in front, so that nothing behind it is taken out by and by
    for turn in range(10_000):
        deadlines.set(turn % 10, 1.0 + turn)
    assert len(deadlines._heap) <= 2 * 11 + STALE_MIN + 1
    for name in range(10):
        deadlines.clear(name)
    assert len(deadlines._heap) <= 2 + STALE_MIN + 1
    assert deadlines.due(math.inf) == [-1]


Names = st.integers(0, 5)
Instants = st.one_of(st.integers(0, 10).map(float), st.just(math.inf))
Steps = st.one_of(
    st.tuples(st.just("set"), Names, Instants),
    st.tuples(st.just("clear"), Names, st.just(0.0)),
    st.tuples(st.just("due"), st.just(0), st.integers(0, 10).map(float)),
)


@given(st.lists(Steps, max_size=200))
def test_it_does_what_a_dictionary_sorted_each_time_does(steps: list[tuple[str, int, float]]) -> None:
    deadlines: Deadlines[int] = Deadlines()
    model: dict[int, tuple[float, int]] = {}
    for order, (verb, name, at) in enumerate(steps):
        match verb:
            case "set":
                deadlines.set(name, at)
                if model.get(name, (None, 0))[0] != at:
                    model[name] = (at, order)
                if at == math.inf:
                    del model[name]
            case "clear":
                deadlines.clear(name)
                model.pop(name, None)
            case _:
                expected = sorted((key for key in model if model[key][0] <= at), key=lambda key: model[key])
                assert deadlines.due(at) == expected
                for key in expected:
                    del model[key]
        assert deadlines.next == min((each for each, _ in model.values()), default=math.inf)
        assert {key: deadlines.at(key) for key in range(6)} == {
            key: model.get(key, (math.inf, 0))[0] for key in range(6)
        }
        assert len(deadlines) == len(model)
