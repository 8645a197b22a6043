"""Stores that are missed, as a function of looks."""

from __future__ import annotations

from chappe.dashboard.sources.log import GONE_S, MISSED_S, Missed

HERE = {"a": "tcp://a", "b": "tcp://b"}


def test_a_store_that_was_killed_does_not_answer_also_when_its_beacon_has_ceased() -> None:
    missed = Missed()
    missed.note(HERE, (), HERE.values(), 0.0)
    assert (missed.silent(), missed.left(0.0)) == ([], [])

    missed.note(HERE, ["tcp://b"], ["tcp://a"], 3.0)
    assert missed.silent() == ["tcp://b"]
    missed.note({"a": "tcp://a"}, (), ["tcp://a"], 4.0 + GONE_S)
    assert (missed.silent(), missed.left(4.0 + GONE_S)) == (["tcp://b"], [])

    missed.note(HERE, (), HERE.values(), 20.0)  # it is back
    assert (missed.silent(), missed.left(20.0)) == ([], [])


def test_a_store_that_is_back_at_another_address_is_missed_no_more() -> None:
    missed = Missed()
    missed.note(HERE, ["tcp://b"], ["tcp://a"], 0.0)
    missed.note({"a": "tcp://a", "b": "tcp://c"}, (), ["tcp://a", "tcp://c"], 20.0)
    assert (missed.silent(), missed.left(20.0)) == ([], [])


def test_a_store_that_was_heard_to_the_end_has_left_and_is_missed_for_a_while() -> None:
    missed = Missed()
    missed.note(HERE, (), HERE.values(), 0.0)
    missed.note({"a": "tcp://a"}, ["tcp://b"], ["tcp://a"], 1.0)  # asked once more behind its back
    missed.note({"a": "tcp://a"}, (), ["tcp://a"], 2.0 + GONE_S)
    assert (missed.silent(), missed.left(2.0 + GONE_S)) == ([], [("b", "tcp://b")])
    missed.note({"a": "tcp://a"}, (), ["tcp://a"], MISSED_S)
    assert missed.left(MISSED_S) == []
