"""Seeded worlds with rules that change; and guards broken on purpose, whose faults some seed among few must show."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.sources import needs_sources
from tests.worlds.log.rules import ForwardRules, Rules

from chappe.log import guard
from chappe.log.guard import Guard
from chappe.log.messages import Message
from chappe.log.queries import Answer, ErrorAnswer, Request
from chappe.sim.world import Settings
from chappe.storage.key_files import WatchedPermissions
from chappe.testing.machine import Host

CHUNK = 5
SEEDS = 10  # the command plays more of them
KINDS = (Rules, ForwardRules)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_every_promise_is_kept(kind: type[Rules], first: int) -> None:
    failed = {seed: found for seed in range(first, first + CHUNK) if (found := kind(seed).play().failure) is not None}

    assert failed == {}  # replay with: python -m tests.worlds --scenario rules --seed N -v


@pytest.mark.parametrize("kind", KINDS)
def test_a_seed_plays_the_same_world_every_time(kind: type[Rules]) -> None:
    assert kind(7).play() == kind(7).play()


def test_rogues_are_refused_and_nobody_else_where_no_rule_changes() -> None:
    world = Rules(1, Settings(disturb=False))

    assert world.play().failure is None
    assert {who for _, who in world.refusals} == {"forger", "thief"}


def test_a_tower_that_believes_all_beacons_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Guard, "announces", lambda self, who, named, verbs: True)

    failures = [Rules(seed).play().failure or "" for seed in range(3)]

    assert any("what was forged" in each or "hears a goodbye" in each for each in failures)


def takes_all_messages(self: Guard, who: str, message: Message) -> Message | None:
    return message


def honours_all(self: Guard, who: str, prefix: bytes) -> list[bytes]:
    return [prefix]


def answers_all(self: Guard, who: str, request: Request) -> ErrorAnswer | None:
    return None


def tells_all(self: Guard, who: str, answer: Answer) -> Answer:
    return answer


@pytest.mark.parametrize(
    "broken",
    [{"message": takes_all_messages}, {"subscribed": honours_all}, {"asks": answers_all, "told": tells_all}],
    ids=["message", "subscribed", "asks"],
)
def test_a_guard_that_lets_through_what_it_should_not_is_caught(
    broken: dict[str, Callable[..., object]], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, function in broken.items():
        monkeypatch.setattr(Guard, name, function)

    assert any((Rules(seed).play().failure or "").startswith("order") for seed in range(3))


def caught(promise: str, *seeds: int, kind: type[Rules] = Rules) -> None:
    failures = [kind(seed).play().failure or "" for seed in seeds]
    assert any(each.startswith(promise) for each in failures), failures


def test_who_is_revoked_and_is_not_cut_off_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Host, "cut", lambda self, ports: None)
    caught("rules", 22)


def test_permissions_that_are_handed_on_and_not_taken_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(WatchedPermissions, "offer", lambda self, raw: False)
    monkeypatch.setattr(Rules, "settle_max_s", 40.0)
    caught("rules", *range(4))


def test_a_list_of_partitions_that_begins_anew_for_ever_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    needs_sources()
    monkeypatch.setattr(guard, "VERSION_BITS", 40)
    caught("order", 2, kind=ForwardRules)
