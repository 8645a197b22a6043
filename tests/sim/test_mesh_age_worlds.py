"""Worlds of the mesh that ask when messages were published, by clocks that differ; faults planted there must show."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pytest
from tests.worlds.mesh import world
from tests.worlds.mesh.aging import Ages
from tests.worlds.mesh.scenario import Mesh

from chappe.mesh.links.link import NeighbourClock, micros

SEEDS = range(16)


@pytest.fixture(autouse=True)
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(world, "AGES", 1.0)


def failures(seeds: Iterable[int] = SEEDS) -> Iterator[str]:
    """Each as it is found: who looks for one does not play all."""
    return (failure for seed in seeds if (failure := Mesh(seed).play().failure) is not None)


def test_messages_seem_as_old_as_they_are() -> None:
    seen = 0
    for seed in SEEDS:
        played = Mesh(seed)
        assert played.play().failure is None
        seen += sum(each.seen for each in played.checkers if isinstance(each, Ages))
    assert seen > 1_000


def test_who_believes_a_time_as_it_comes_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(NeighbourClock, "ours_us", lambda self, theirs_us, now: theirs_us)
    assert any("seems" in each for each in failures())


def test_who_counts_from_when_it_came_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(NeighbourClock, "ours_us", lambda self, theirs_us, now: micros(now))
    assert any("seems" in each for each in failures())


def test_who_does_not_notice_that_a_clock_stood_still_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    read = NeighbourClock.read
    monkeypatch.setattr(NeighbourClock, "read", lambda self, shown_us, now, asked_at: read(self, shown_us, now))
    assert any("seems" in each for each in failures([148]))
