"""Worlds whose consumers begin with the newest record of each key; faults planted there must show in some seed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.worlds.log import scenario
from tests.worlds.log.scenario import Forward, Log

from chappe.log.last_values import LastTopics, LastValues, _LastTopic

SEEDS = range(10)


@pytest.fixture(autouse=True)
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scenario, "LASTS", 1.0)
    monkeypatch.setattr(Log, "settle_max_s", 60.0)


def failures(kind: type[Log]) -> Iterator[tuple[int, str]]:
    """Each as it is found: who looks for one does not play all."""
    for seed in SEEDS:
        failure = kind(seed).play().failure
        if failure is not None:
            yield seed, failure


@pytest.mark.parametrize("kind", [Forward, Log])
def test_the_newest_come_and_then_everything(kind: type[Log]) -> None:
    assert dict(failures(kind)) == {}


def test_who_goes_on_before_what_was_told_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    finish = LastTopics._finish

    def earlier(self: LastTopics, found: _LastTopic) -> None:
        found.cuts = dict.fromkeys(found.cuts, 0)
        finish(self, found)

    monkeypatch.setattr(LastTopics, "_finish", earlier)
    assert any("again" in each for _, each in failures(Forward))


def test_a_store_that_leaves_a_key_out_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LastValues, "_take", lambda self, table, part, batch: setattr(part, "next", batch.next))
    assert any("the newest of" in each for _, each in failures(Forward))
