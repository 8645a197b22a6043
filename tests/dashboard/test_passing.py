"""Links of the log, as both of their ends tell of them."""

from __future__ import annotations

import pytest

from chappe.dashboard.sources import passing as module
from chappe.dashboard.sources.passing import NodeIds, Passing
from chappe.log.traffic import Row, TrafficReport

NODES = (NodeIds("P"), NodeIds("C"), NodeIds("S", "store-id", "tcp://s:1"), NodeIds("original"))


def report(
    *came: Row, carries: tuple[str, ...] = (), answered: tuple[tuple[str, int, int, int], ...] = (),
    waiting: int = 0, full: bool = False,
) -> TrafficReport:  # fmt: skip
    return TrafficReport(1, carries, came, answered, waiting, full, (), ())


REPORTS = {
    "P": report(("store-id", 3, 90), carries=("partition",)),
    "S": report(("partition", 10, 5_000), ("reader", 1, 20), ("original", 4, 400), ("gone", 9, 9)),
    "C": report(("partition", 8, 4_000), carries=("reader",), answered=(("tcp://s:1", 6, 600, 7),)),
    "left": report(("partition", 99, 99)),
}


def test_each_way_of_a_link_is_what_the_other_end_took() -> None:
    passing = Passing(NODES, REPORTS, every_s=2.0)

    kept = passing.link(("P", "S"))
    assert (kept.sent, kept.sent_bytes, kept.received, kept.received_bytes) == (10, 5_000, 3, 90)
    read = passing.link(("S", "C"))
    assert (read.sent, read.sent_bytes, read.received, read.received_bytes) == (
        6,
        600,
        8,
        20,
    )  # seven questions, one FETCH
    assert (read.every_s, read.tls, read.note) == (2.0, False, "protocol of chappe")


def test_what_nobody_told_is_not_known_and_what_nothing_went_over_is_nothing() -> None:
    passing = Passing(NODES, REPORTS | {"T": report()}, encrypted=True)

    untold = passing.link(("S", "original"))
    assert (untold.sent, untold.received, untold.note, untold.tls) == (None, 4, "", True)
    assert passing.link(("S", "T")).sent == 0


def test_links_over_which_something_goes_are_there_whoever_has_them_and_each_once() -> None:
    passing = Passing(NODES, REPORTS)

    found = list(passing.further([("P", "S"), ("S", "C")]))

    assert [(each.ends, each.sent, each.received) for each in found] == [
        (("P", "C"), 8, 0),
        (("original", "S"), 4, None),
    ]


def test_who_only_looks_is_linked_with_nobody() -> None:
    passing = Passing(NODES, REPORTS)

    assert [each.ends for each in passing.further([("P", "S")], {"original", "C"})] == []
    assert (passing.told("S"), passing.told("original")) == (True, False)


def test_of_further_links_those_with_the_most_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FURTHER_MAX", 1)

    assert [each.ends for each in Passing(NODES, REPORTS).further([])] == [("P", "S")]


@pytest.mark.parametrize(("full", "waits"), [("", {"C", "S"}), ("C", {"C"}), ("S", {"S"})])
def test_what_waits_does_so_for_who_takes_nothing_or_for_all_where_nobody_says_so(full: str, waits: set[str]) -> None:
    reports = {
        name: TrafficReport(1, each.carries, each.came, each.answered, 500 if name == "P" else 0, name == full, (), ())
        for name, each in REPORTS.items()
    }
    passing = Passing(NODES, reports)

    held = {name: passing.link(("P", name)).waiting for name in ("S", "C")}

    assert {name for name, count in held.items() if count == 500} == waits
    assert set(held.values()) <= {0, 500}
    assert passing.link(("S", "P")).waiting_back == held["S"]
