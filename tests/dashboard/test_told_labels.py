"""What people call members, as nodes told it, and consumers whose positions are kept elsewhere."""

from __future__ import annotations

import pytest
from tests.cli.test_hostile_names import HOSTILE

from chappe.dashboard.sources import log_readers as module
from chappe.dashboard.sources.log_readers import Labels, beside, committed_elsewhere
from chappe.log.traffic import Reading, TrafficReport

HERE = b"here"


def report(*names: tuple[str, str], carries: tuple[str, ...] = (), readers: tuple[Reading, ...] = ()) -> TrafficReport:
    return TrafficReport(2, carries, (), (), 0, False, names, readers)


def reading(address: str, identity: str, kept: bytes = b"there", left_out: int = 0) -> Reading:
    return Reading(address, identity, kept, left_out, ((b"t", b"p", 4),))


def test_who_is_called_anew_is_told() -> None:
    labels = Labels()

    changed = labels.take({"N": report(("N", "store@a"), ("P", "boiler 3"), carries=("P",))})

    assert changed == {"N", "P"}
    assert [labels.of(each) for each in ("N", "P", "X")] == ["store@a", "boiler 3", ""]
    assert labels.take({"N": report(("P", "boiler 3"), carries=("P",))}) == set()
    assert labels.take({"N": report(("P", "boiler 4"), carries=("P",))}) == {"P"}


def test_who_has_left_keeps_its_name_and_so_many_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LABELS_MAX", 2)
    labels = Labels()
    labels.take({each: report((each, f"name {each}")) for each in "abc"})
    labels.take({})

    assert [labels.of(each) for each in "abc"] == ["", "name b", "name c"]


def test_a_node_of_many_members_is_called_by_some_of_their_names() -> None:
    labels = Labels()
    carries = tuple("abcdef")
    labels.take({"N": report(*((each, f"x{each}") for each in "abcde"), ("f", "xa"), carries=carries)})

    assert labels.of_node("N", carries) == "xa, xb, xc and 2 more"
    assert labels.of_node("N", ("a", "f")) == "xa"
    assert labels.of_node("M", ()) == ""


def test_the_beginning_of_an_address_stands_beside_a_name() -> None:
    assert beside("boiler 3", "53E5D23E43EF4621") == "boiler 3 (53E5D23E)"
    assert beside("", "53E5D23E43EF4621") == "53E5D23E43EF4621"


def test_consumers_elsewhere_have_names_of_their_own_and_those_here_are_left_out() -> None:
    labels = Labels()
    reports = {
        "N": report(
            ("a", "app@web1"), ("b", "app@web1"), carries=("a", "b", "c"),
            readers=(reading("a", "billing"), reading("b", "billing", left_out=2), reading("c", "other", HERE)),
        ),
        "M": report(
            carries=("d",),
            readers=(reading("d", "billing"), reading("d", "../up"), reading("d", HOSTILE)),
        ),
    }  # fmt: skip
    labels.take(reports)

    found = committed_elsewhere(reports, labels, lambda identity: HERE)

    assert [(each.node, each.name, each.left_out) for each in found] == [
        ("M", "billing (d)", 0),
        ("N", "billing (app@web1)", 0),
        ("N", "billing (app@web1) b", 2),
    ]
    assert found[0].positions == {("t", "p"): 4}
