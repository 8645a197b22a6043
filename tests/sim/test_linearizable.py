"""Histories that one copy could have shown, and such that it could not."""

from __future__ import annotations

from itertools import pairwise
from random import Random
from typing import Any

import pytest
from tests.worlds.chain import machine
from tests.worlds.linearizable import Operation, not_linearizable


def op(
    what: tuple[Any, ...], began: float, ended: float | None = None, outcome: Any = None, key: str = "r"
) -> Operation:
    return Operation(key, what, began) if ended is None else Operation(key, what, began, ended, outcome)


def wrong(*history: Operation) -> str | None:
    return not_linearizable(history, machine.step, machine.begin)


def test_what_overlaps_may_be_in_any_order() -> None:
    assert wrong(op(("put", 1), 0, 10), op(("get",), 1, 2, 1), op(("get",), 3, 4, 1)) is None
    assert wrong(op(("put", 1), 0, 10), op(("get",), 1, 2, 0), op(("get",), 3, 4, 1)) is None
    assert wrong(op(("put", 1), 0, 10), op(("get",), 1, 2, 1), op(("get",), 3, 4, 0)) == "r"


def test_a_stale_read_is_seen() -> None:
    assert wrong(op(("put", 1), 0, 1), op(("put", 2), 2, 3), op(("get",), 4, 5, 1)) == "r"


def test_what_was_done_twice_is_seen() -> None:
    assert wrong(op(("add", 1), 0, 1, 1, "c"), op(("add", 1), 2, 3, 3, "c")) == "c"
    assert wrong(op(("append", 7), 0, 1, 1, "l"), op(("get",), 2, 3, [7, 7], "l")) == "l"


def test_a_lost_suffix_is_seen() -> None:
    assert wrong(op(("append", 7), 0, 1, 1, "l"), op(("append", 8), 2, 3, 2, "l"), op(("get",), 4, 5, [7], "l")) == "l"


def test_two_heads_are_seen() -> None:
    assert wrong(op(("cas", 0, 1), 0, 5, True), op(("cas", 0, 2), 1, 4, True)) == "r"
    assert wrong(op(("append", 1), 0, 5, 1, "l"), op(("append", 2), 1, 4, 1, "l")) == "l"


def test_what_has_no_outcome_may_have_happened_or_not_or_later() -> None:
    unknown = op(("put", 1), 0)
    assert wrong(unknown, op(("get",), 1, 2, 0)) is None
    assert wrong(unknown, op(("get",), 1, 2, 1)) is None
    assert wrong(unknown, op(("get",), 1, 2, 0), op(("get",), 3, 4, 1)) is None
    assert wrong(unknown, op(("get",), 1, 2, 1), op(("get",), 3, 4, 0)) == "r"
    assert wrong(op(("get",), 1, 2, 1), op(("put", 1), 3)) == "r"


def test_keys_have_nothing_to_do_with_each_other() -> None:
    good, bad = op(("get",), 2, 3, 0, "a"), op(("get",), 2, 3, 1, "b")
    assert wrong(good, op(("put", 1), 0, 1, None, "c")) is None
    assert wrong(good, bad) == "b"


def honest(rng: Random, kind: str) -> list[Operation]:
    """A history of one copy: each operation is done at an instant between its beginning and its end."""
    state: Any = machine.begin(kind)
    history = []
    for at in range(40):
        value = rng.randrange(3)
        what: tuple[Any, ...] = ("get",)
        if rng.random() < 0.7:
            writes = {"l": ("append", value), "c": ("add", 1), "r": ("cas", value, rng.randrange(3))}
            what = writes[kind]
        state, outcome = machine.step(state, what)
        ended = None if rng.random() < 0.1 else at + rng.random() * 3
        history.append(op(what, at - rng.random() * 3, ended, outcome, kind))
    return history


@pytest.mark.parametrize("kind", ["r", "c", "l"])
def test_honest_histories_pass_and_altered_ones_mostly_do_not(kind: str) -> None:
    seen = 0
    for seed in range(60):
        rng = Random(seed)
        history = honest(rng, kind)
        assert wrong(*history) is None
        told = [each for each in history if each.what == ("get",) and each.ended < 100]
        for one, other in pairwise(told):
            if one.ended < other.began and one.outcome != other.outcome:
                one.outcome, other.outcome = other.outcome, one.outcome
                seen += wrong(*history) is not None
                break
    assert seen > 5
