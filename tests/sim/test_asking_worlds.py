"""Seeded worlds of requests and queues."""

from __future__ import annotations

from tests.worlds.asking import Asking


def test_requests_end_and_a_queue_hands_each_message_to_one() -> None:
    failed = {seed: failure for seed in range(4) if (failure := Asking(seed).play().failure) is not None}
    assert failed == {}  # replay with: python -m tests.worlds --scenario asking --seed N -v


def test_a_seed_plays_the_same_requests_every_time() -> None:
    told: tuple[list[str], list[str]] = ([], [])
    outcomes = [Asking(1, tell=each.append).play() for each in told]
    assert outcomes[0] == outcomes[1]
    assert told[0] == told[1]
    assert outcomes[0].records > 50
