"""Worlds of data stores that users' objects play: promises are kept, and what breaks them below the cores is found."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from tests.sim.below_the_cores import forgets_who_is_due
from tests.sources import needs_sources
from tests.worlds.kv.scenario import Kv

from chappe.api.kv.attached import AttachedStore
from chappe.api.mesh.waiting import Asked
from chappe.core import Effect
from chappe.errors import StorageError
from chappe.kv.backend import Loaded
from chappe.member import StoreCommit
from chappe.mesh.forwarding.version2 import Trees
from chappe.mesh.links.heartbeats import Heartbeats
from chappe.runtime import mesh_ports
from chappe.runtime.mesh_ports import MeshPorts
from chappe.runtime.worker import Lane
from chappe.sim.world import Settings
from chappe.storage.kv_backends import SqliteBackend

Patch = pytest.MonkeyPatch


@pytest.mark.parametrize("first", range(0, 20, 4))
def test_users_of_data_stores_get_what_is_promised(first: int) -> None:
    failed = {seed: found for seed in range(first, first + 4) if (found := Kv(seed).play().failure) is not None}
    assert failed == {}  # replay with: python -m tests.worlds --scenario kv --seed N -v


def test_a_seed_plays_the_same_world_every_time() -> None:
    told: tuple[list[str], list[str]] = ([], [])
    outcomes = [Kv(7, Settings(minutes=0.1), tell=each.append).play() for each in told]
    assert outcomes[0] == outcomes[1]
    assert told[0] == told[1]
    assert len(told[0]) > 100


def test_a_world_without_faults_is_settled_at_once() -> None:
    outcome = Kv(3, Settings(disturb=False)).play()
    assert outcome.failure is None
    assert outcome.settle_s < 10.0


# -- faults below the cores ---------------------------------------------------------------------------------------


def loses_a_job(patch: Patch) -> None:
    """A lane forgets the result of a commit that ends while another one waits."""
    run = Lane._run
    count = [0]

    def forgetful(lane: Lane, work: Callable[[], Any], done: Callable[[Any], None] | None) -> None:
        count[0] += 1
        run(lane, work, done if count[0] % 5 else None)

    patch.setattr(Lane, "_run", forgetful)


def counts_a_refused_commit(patch: Patch) -> None:
    """A commit that the disk refuses counts as done."""
    done = MeshPorts.done

    def careless(ports: MeshPorts, job: object, outcome: Any, now: float) -> Sequence[Effect]:
        refused = isinstance(job, StoreCommit) and isinstance(outcome, StorageError)
        return done(ports, job, None if refused else outcome, now)

    patch.setattr(MeshPorts, "done", careless)


def commits_nothing(patch: Patch) -> None:
    """What is to be durable is done in memory alone."""
    patch.setattr(mesh_ports, "commit", lambda backend, operations: None)


def begins_with_less(patch: Patch) -> None:
    """A backend forgets which writes of clones it has done."""
    load = SqliteBackend.load

    def forgetful(backend: SqliteBackend) -> Any:
        found = load(backend)
        return Loaded(found.entries, (), found.history)

    patch.setattr(SqliteBackend, "load", forgetful)


def tells_watchers_half(patch: Patch) -> None:
    """Of changes that come together watchers hear the first."""
    deliver = AttachedStore.deliver
    patch.setattr(AttachedStore, "deliver", lambda store, changes: deliver(store, changes[:1]))


def wakes_nobody(patch: Patch) -> None:
    """An answer is there, and whoever waits for it is not told."""

    def quiet(asked: Asked, outcome: object) -> None:
        asked.forget()
        asked.outcome = outcome

    patch.setattr(Asked, "answer", quiet)


def sends_twice_along_a_tree(patch: Patch) -> None:
    """The mesh beneath sends everything twice."""
    needs_sources()
    send = Trees._send

    def twice(trees: Trees, *anything: Any) -> None:
        send(trees, *anything)
        send(trees, *anything)

    patch.setattr(Trees, "_send", twice)


def sends_no_heartbeats(patch: Patch) -> None:
    """The mesh beneath says nothing where nothing else is to be said."""
    needs_sources()
    beat = Heartbeats.beat
    patch.setattr(Heartbeats, "beat", lambda self, links, now: ([], beat(self, links, now)[1]))


FAULTS = (  # and a world that shows each
    (forgets_who_is_due, 0),
    (loses_a_job, 3),
    (commits_nothing, 3),
    (begins_with_less, 11),
    (tells_watchers_half, 0),
    (wakes_nobody, 0),
    (sends_twice_along_a_tree, 0),
    (sends_no_heartbeats, 0),
)


@pytest.mark.parametrize(("fault", "seed"), FAULTS)
def test_a_fault_below_the_cores_is_found(fault: Callable[[Patch], None], seed: int, monkeypatch: Patch) -> None:
    monkeypatch.setattr(Kv, "settle_max_s", 40.0)
    fault(monkeypatch)
    assert Kv(seed, Settings(minutes=0.1)).play().failure is not None


class Full(Kv):
    """A master whose disk is full now and then."""

    def plan(self, until: float) -> float:
        """Plan that."""
        for at in range(1, 6):
            self._schedule.at(at, self._fill_backend)
        return 6.0


def test_a_refused_commit_that_counts_as_done_is_found(monkeypatch: Patch) -> None:
    assert Full(3).play().failure is None
    counts_a_refused_commit(monkeypatch)
    assert Full(3).play().failure is not None
