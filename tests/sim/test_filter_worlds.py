"""Seeded worlds whose endpoints hold back and change what they pass on: others miss that, and nothing else."""

from __future__ import annotations

import pytest
from tests.sources import needs_sources
from tests.worlds.mesh.scenario import Mesh
from tests.worlds.mesh.subjects import EndpointSubject

from chappe.mesh.forwarding.judging import ForwardFilter

SEEDS = (3, 14, 30, 41, 49, 75)  # the command plays more of them
FEW = (3, 14, 49)


class Filtering(Mesh):
    """All worlds of which nothing else is special are of this kind."""

    filtering = 1.0


def test_those_downstream_miss_what_was_held_back_and_nothing_else() -> None:
    worlds = [Filtering(seed) for seed in SEEDS]
    failed = {world.seed: found for world in worlds if (found := world.play().failure) is not None}

    assert failed == {}
    assert all(world.filters for world in worlds)
    assert sum(host.core.router.passing.filtered for world in worlds for host in world.alive(EndpointSubject)) > 100


def test_an_endpoint_that_passes_on_everything_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    needs_sources()
    monkeypatch.setattr(ForwardFilter, "bodies", lambda self, body, sender: None)

    failures = [Filtering(seed).play().failure or "" for seed in FEW]

    assert all(each.startswith("filters: ") and "it was to be" in each for each in failures)


def test_an_endpoint_that_loses_a_message_beside_one_that_was_held_back_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    needs_sources()
    bodies = ForwardFilter.bodies

    def first(self: ForwardFilter, body: bytes, sender: bytes) -> list[bytes] | None:
        found = bodies(self, body, sender)
        return None if found is None else found[:1]

    monkeypatch.setattr(ForwardFilter, "bodies", first)

    failures = [Filtering(seed).play().failure or "" for seed in FEW]

    assert any(each.startswith("completeness: ") for each in failures)
