"""Seeded worlds with groups that change; and what seals broken on purpose, which some seed among few must show."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from tests.sources import needs_sources
from tests.worlds.sealed.mesh import SealedMesh
from tests.worlds.sealed.scenario import Sealed
from tests.worlds.sealing import private_of

from chappe.permissions.rules import Group
from chappe.runtime.mesh_rules import KeysWatch
from chappe.sealing.chain import KeyShelf
from chappe.sealing.epochs import GroupAuthority, GroupKeys
from chappe.sealing.in_log import RecordOpening, RecordSealing
from chappe.sealing.in_mesh import MeshSealing
from chappe.sealing.messages import Lives
from chappe.sealing.primitives import public_of
from chappe.sealing.records import Opener, Sealer
from chappe.sealing.ring import HeldGroups, Ring
from chappe.sim.world import Settings
from chappe.storage.sealed_files import SealedGroups

CHUNK = 5
KINDS = (Sealed, SealedMesh)
Kind = type[Sealed] | type[SealedMesh]


@pytest.mark.parametrize(  # the command plays more of them
    ("kind", "first"), [*((Sealed, first) for first in range(0, 10, CHUNK)), (SealedMesh, 0), (SealedMesh, CHUNK)]
)
def test_every_promise_is_kept(kind: Kind, first: int) -> None:
    failed = {seed: found for seed in range(first, first + CHUNK) if (found := kind(seed).play().failure) is not None}

    assert failed == {}  # replay with: python -m tests.worlds --scenario sealed --seed N -v


@pytest.mark.parametrize("kind", KINDS)
def test_a_seed_plays_the_same_world_every_time(kind: Kind) -> None:
    assert kind(7).play() == kind(7).play()


@pytest.mark.parametrize("kind", KINDS)
def test_a_small_world_without_faults_has_what_is_looked_at(kind: Kind) -> None:
    worlds = [kind(seed, Settings(disturb=False, members=2)) for seed in range(8)]

    assert [world.play().failure for world in worlds] == [None] * 8
    assert sum(world.secrets.opened for world in worlds)
    assert sum(world.forgeries.refused for world in worlds)
    assert sum(len(world.nonces) for world in worlds)


def caught(kind: Kind, promise: str, seeds: Iterable[int] = range(12)) -> None:
    needs_sources()
    failures = []
    for seed in seeds:
        failures.append(kind(seed).play().failure or "")
        if failures[-1].startswith(promise):
            return
    pytest.fail(f"no seed shows it: {failures}")


def test_a_number_that_is_used_up_by_what_is_published_alone_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    seal = Sealer.seal

    def numbered(self: Sealer, secret: Any, topic: str, partition: str, span: Any, *rest: Any) -> tuple[bytes, ...]:
        self._number = span.base
        return seal(self, secret, topic, partition, span, *rest)

    monkeypatch.setattr(Sealer, "seal", numbered)
    caught(Sealed, "nonces", [2])


def test_an_epoch_that_is_accepted_for_ever_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Ring, "accepts", lambda self, number, sealed_at, sender: True)
    caught(Sealed, "forgeries", [21])


def test_keys_for_who_has_left_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    rotated = GroupAuthority.rotated

    def generous(self: GroupAuthority, keys: GroupKeys, members: Any, salt: bytes, now: Any) -> Any:
        gone = keys.members() - members.keys() if keys.epochs else set()
        return rotated(self, keys, {**members, **{name: public_of(private_of(name)) for name in gone}}, salt, now)

    monkeypatch.setattr(GroupAuthority, "rotated", generous)
    caught(Sealed, "epochs", [1])


def test_who_seals_for_one_that_has_left_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    refusal = HeldGroups.refusal

    def careless(self: HeldGroups, group: Group) -> str:
        found = refusal(self, group)
        return "" if "is older than the permissions" in found else found

    monkeypatch.setattr(HeldGroups, "refusal", careless)
    caught(Sealed, "secrets", [15])


def test_what_a_new_member_left_out_by_its_old_files_is_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RecordOpening, "_begin", lambda self, key: None)
    caught(Sealed, "secrets", [0])


def test_a_member_that_was_off_for_days_and_is_refused_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    accepts = Ring.accepts
    monkeypatch.setattr(Ring, "accepts", lambda self, number, sealed_at, sender: accepts(self, number, sealed_at, ""))
    caught(Sealed, "secrets", [21])


def test_who_is_back_and_seals_before_it_has_asked_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(KeyShelf, "doubt", lambda self, *of_it: "")
    caught(Sealed, "secrets", [11])


def test_batches_of_another_place_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("records", "senders"):
        monkeypatch.setattr(f"chappe.sealing.{module}.bound_to", lambda place, head: head)
    caught(Sealed, "forgeries", [10])


def test_another_who_writes_on_in_a_partition_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Opener, "_disordered", lambda self, frame, topic, partition: "")
    caught(Sealed, "forgeries", [0])


def test_records_that_are_not_sealed_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RecordSealing, "seal", lambda self, topic, body, now_us, partition="", place=None: body)
    caught(Sealed, "secrets", [0])


IN_THE_MESH: tuple[tuple[type, str, Any, str], ...] = (  # what is broken, and the promise that some world shows it by
    (Lives, "refusal", lambda self, frame: "", "forgeries"),  # messages that come again
    (MeshSealing, "seal", lambda self, topic, payload, *rest: payload, "completeness"),  # what is not sealed
    (KeysWatch, "take", lambda self, group, raw: False, "secrets"),  # keys that are handed on and not taken
    (SealedGroups, "look", lambda self, now: None, "secrets"),  # files that nobody looks at
    (MeshSealing, "_try_again", lambda self: [], "completeness"),  # what waited for keys
)


@pytest.mark.parametrize(("kind", "method", "broken", "promise"), IN_THE_MESH, ids=[each[1] for each in IN_THE_MESH])
def test_what_seals_badly_in_the_mesh_is_caught(
    kind: type, method: str, broken: object, promise: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kind, method, broken)
    caught(SealedMesh, promise, range(3))
