"""What passes from a server of a chain to its endpoint: in order, and bounded."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from tests.waiting import until

from chappe.data.binary import encode as encode_value
from chappe.kv.backend import PutRow
from chappe.kv.chained.fed import ROWS_MAX, Did, Led, WholeBegins, WholeEnds, WholeRows
from chappe.kv.chained.machine import StoreMachine
from chappe.kv.chained.messages import Lead, encode, encode_operation, parts_of
from chappe.kv.entity import chappe_entity
from chappe.runtime import kv_chain
from chappe.runtime.kv_chain import ChainLink

ANN = chappe_entity(b"a" * 16, 1)


def commit(machine: StoreMachine, number: int) -> None:
    row = encode_operation(PutRow(encode_value(f"k{number}"), encode_value("v" * 100), None))
    for each in parts_of(ANN, number, number + 1, [row], 1_000):
        machine.apply_own(each)


def filled(count: int) -> StoreMachine:
    """A machine with so many rows, of the first commit."""
    machine = StoreMachine()
    machine.apply_own(encode(Lead(ANN, 1)))
    rows = [encode_operation(PutRow(encode_value(number), encode_value("v"), None)) for number in range(count)]
    for each in parts_of(ANN, 1, 2, rows, 100_000):
        machine.apply_own(each)
    return machine


@pytest.mark.parametrize("bound", [10_000, 250])
def test_who_does_not_take_what_was_committed_gets_all_of_it_at_once(
    monkeypatch: pytest.MonkeyPatch, bound: int
) -> None:
    monkeypatch.setattr(kv_chain, "NEWS_BYTES_MAX", bound)
    machine = StoreMachine()
    link = ChainLink(machine)
    machine.apply_own(encode(Lead(ANN, 1)))
    for number in range(1, 5):
        commit(machine, number)
    link.reported("an event")
    taken: list[object] = []
    link.begin(lambda function, *arguments: function(*arguments), taken.extend)
    until(lambda: "an event" in taken)
    commit(machine, 5)
    until(lambda: isinstance(taken[-1], Did) and taken[-1].number == 5)
    link.close()
    kinds = [type(each) for each in taken]
    if bound == 10_000:
        assert kinds == [WholeBegins, WholeEnds, Led, Did, Did, Did, Did, str, Did]
    else:  # what was dropped is in the state, and nothing is told twice
        (whole,) = [each for each in taken if isinstance(each, WholeEnds)]
        later = [each.number for each in taken if isinstance(each, Did)]
        assert later == list(range(whole.event, 6))
        rows = [row for each in taken if isinstance(each, WholeRows) for row in each.rows]
        assert len(rows) == whole.event - 1


def test_a_large_state_goes_to_the_endpoint_in_steps_and_what_is_no_commit_passes_it() -> None:
    machine = filled(5_000)
    link = ChainLink(machine)
    taken: list[object] = []
    at_once = 0

    def take(news: Sequence[object]) -> None:
        nonlocal at_once
        at_once = max(at_once, *[len(each.rows) for each in news if isinstance(each, WholeRows)], 0)
        taken.extend(news)
        if len(taken) == 3:
            link.reported("an event")
            commit(machine, 2)

    link.begin(lambda function, *arguments: function(*arguments), take)
    until(lambda: taken and isinstance(taken[-1], Did))
    link.close()
    assert 0 < at_once <= ROWS_MAX
    kinds = [type(each) for each in taken]
    assert kinds.index(str) < kinds.index(WholeEnds) < kinds.index(Did)
    assert sum(len(each.rows) for each in taken if isinstance(each, WholeRows)) == 5_000


def test_an_endpoint_may_take_a_state_for_longer_than_the_bound_of_commits_lasts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kv_chain, "NEWS_BYTES_MAX", 1_000)
    machine = filled(20_000)
    link = ChainLink(machine)
    taken: list[object] = []

    def take(news: Sequence[object]) -> None:
        taken.extend(news)
        if any(isinstance(each, WholeRows) for each in news):
            commit(machine, 2 + sum(isinstance(each, WholeRows) for each in taken[:-1]))

    link.begin(lambda function, *arguments: function(*arguments), take)
    until(lambda: taken and isinstance(taken[-1], Did))
    link.close()
    assert [type(each) for each in taken].count(WholeBegins) == 1
    assert sum(isinstance(each, Did) for each in taken) > 10
