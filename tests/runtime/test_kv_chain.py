"""What passes from a server of a chain to its endpoint: in order, and bounded."""

from __future__ import annotations

import pytest
from tests.waiting import until

from chappe.data.binary import encode as encode_value
from chappe.kv.backend import PutRow
from chappe.kv.chained.fed import Did, Led, Whole
from chappe.kv.chained.machine import StoreMachine
from chappe.kv.chained.messages import Lead, encode, parts_of
from chappe.kv.entity import chappe_entity
from chappe.kv.rows import encode_operation
from chappe.runtime import kv_chain
from chappe.runtime.kv_chain import ChainLink

ANN = chappe_entity(b"a" * 16, 1)


def commit(machine: StoreMachine, number: int) -> None:
    row = encode_operation(PutRow(encode_value(f"k{number}"), encode_value("v" * 100), None))
    for each in parts_of(ANN, number, number + 1, [row], 1_000):
        machine.apply_own(each)


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
        assert kinds == [Whole, Led, Did, Did, Did, Did, str, Did]
    else:  # what was dropped is in the state, and nothing is told twice
        whole = taken[kinds.index(Whole)]
        assert isinstance(whole, Whole)
        later = [each.number for each in taken if isinstance(each, Did)]
        assert later == list(range(whole.event, 6))
        assert whole.rows.count(b"v" * 100) == whole.event - 1
