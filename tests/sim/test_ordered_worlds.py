"""Seeded worlds of ordered topics; and cores broken on purpose, whose faults some seed among few shows."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from tests.worlds.ordered.scenario import Ordered

from chappe.log.ordered.commands import ANY, Answer, Append
from chappe.log.ordered.keeping import Keeping
from chappe.log.ordered.machine import OrderedLog
from chappe.replication.chain.core import ChainServerCore
from chappe.sim.world import Settings

CHUNK = 3
SEEDS = 9  # the command plays more of them
TRIED = 10  # one of so many finds each fault
SHORT = Settings(minutes=0.1)
Break = Callable[[pytest.MonkeyPatch], None]


@pytest.mark.parametrize("first", range(1, 1 + SEEDS, CHUNK))  # of 0 decision 024 tells
def test_every_record_has_one_place_everywhere(first: int) -> None:
    failed = {
        seed: found for seed in range(first, first + CHUNK) if (found := Ordered(seed).play().failure) is not None
    }

    assert failed == {}  # replay with: python -m tests.worlds --scenario ordered --seed N -v


def test_the_same_seed_plays_the_same_world() -> None:
    told: tuple[list[str], list[str]] = ([], [])
    outcomes = [Ordered(7, SHORT, tell=each.append).play() for each in told]
    assert outcomes[0] == outcomes[1]
    assert told[0] == told[1]


def test_records_are_appended_and_read_where_nothing_goes_wrong() -> None:
    world = Ordered(3, Settings(minutes=0.1, disturb=False))

    assert world.play().failure is None
    assert sum(world.ends) > 20


def forgets_what_the_store_has_not_written(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Keeping, "settled", property(lambda self: self.mark(), lambda self, value: None), raising=False)


def takes_in_who_lacks_records(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Keeping, "complete", property(lambda self: True))


def appends_whatever_was_expected(patch: pytest.MonkeyPatch) -> None:
    append = OrderedLog._append

    def anywhere(self: OrderedLog, command: Append) -> Answer:
        return append(self, Append(command.topic, command.partition, ANY, command.body))

    patch.setattr(OrderedLog, "_append", anywhere)


def shows_what_is_not_committed(patch: pytest.MonkeyPatch) -> None:
    """The head does what it is asked for as soon as it has it, and publishes that."""

    def commit(self: ChainServerCore) -> None:
        if self.head:
            self.apply(self.log.end)

    patch.setattr(ChainServerCore, "_commit", commit)


@pytest.mark.parametrize(
    ("fault", "first", "seen"),
    [
        (forgets_what_the_store_has_not_written, 0, "has forgotten"),
        (takes_in_who_lacks_records, 0, "has forgotten"),
        (appends_whatever_was_expected, 0, "no single copy"),
        (shows_what_is_not_committed, 0, "commits .*, [a-e] has"),
    ],
)
def test_what_is_planted_is_seen(fault: Break, first: int, seen: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fault(monkeypatch)
    failures = (Ordered(seed).play().failure for seed in range(first, first + TRIED))

    assert any(failure is not None and re.search(seen, failure, re.DOTALL) for failure in failures)
