"""Seeded worlds: some hundred always, and every seed that once failed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.worlds.__main__ import main
from tests.worlds.log import world as bounds
from tests.worlds.log.scenario import Log
from tests.worlds.registry import SCENARIOS
from tests.worlds.shrink import from_json

from chappe.log.backfill import Unfilled

CHUNK = 15
SEEDS = 90  # the command plays more of them
FAILED_ONCE = [
    pytest.param(path.stem, case, id=f"{path.stem} {case['seed']}")
    for path in sorted((Path(__file__).parent.parent / "seeds").glob("*.json"))
    for case in json.loads(path.read_text())
]


@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_every_promise_is_kept(first: int) -> None:
    failed = {
        seed: failure for seed in range(first, first + CHUNK) if (failure := Log(seed).play().failure) is not None
    }

    assert failed == {}  # replay with: python -m tests.worlds --scenario log --seed N -v


@pytest.mark.parametrize(("name", "case"), FAILED_ONCE)
def test_what_failed_once_does_not_fail_again(name: str, case: dict[str, Any]) -> None:
    outcome = SCENARIOS[name](case["seed"], from_json(case["settings"])).play()

    assert outcome.failure is None, f"seed {case['seed']}, which once showed: {case['why']}"


@pytest.mark.parametrize("seed", range(6))
def test_stores_without_patience_acknowledge_nothing_past_what_they_miss(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They may not converge, as they begin where others could still have told them of more; no record is lost."""
    monkeypatch.setitem(bounds.MORE_CHOICES, "give_up_s", (0,))
    monkeypatch.setattr(Log, "settle_max_s", 40.0)

    failure = Log(seed).play().failure
    assert failure is None or failure.startswith("convergence")


def test_a_store_that_acknowledges_past_what_it_misses_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(bounds.MORE_CHOICES, "give_up_s", (0,))
    monkeypatch.setattr(Unfilled, "limit", lambda self, key, end: end)

    assert any((Log(seed).play().failure or "").startswith("durability") for seed in range(200, 210))


def test_the_command_plays_seeds_and_says_how_it_went(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--scenario", "log", "--seeds", "2-4"]) == 0
    assert capsys.readouterr().out.startswith("3 passed, 0 failed")

    assert main(["--scenario", "log", "--seed", "3", "-v"]) == 0
    told = capsys.readouterr().out
    assert "producer0  starts as" in told
    assert "seed 3 passed" in told.splitlines()[-1]


def test_the_command_refuses_what_is_not_seeds(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--seeds", "many"])
    assert "neither a number of seeds nor FROM-TO" in capsys.readouterr().err
