"""A failing world is made smaller while it breaks the same promise, and kept with its settings."""

from __future__ import annotations

import json
from pathlib import Path

from tests.sim.test_checkers_can_fail import SkipsGaps
from tests.worlds.log.scenario import Log
from tests.worlds.log.world import Cores
from tests.worlds.shrink import from_json, keep, shrink, to_json

from chappe.sim.world import Settings


def broken(seed: int, settings: Settings | None = None) -> Log:
    return Log(seed, settings, cores=Cores(consumer=SkipsGaps))


def test_a_failing_world_is_shrunk() -> None:
    failing = ((seed, found) for seed in range(40) if (found := broken(seed).play()).failure is not None)
    seed, before = next(failing)
    settings, after = shrink(broken, seed, Settings())
    assert (after.failure or "").partition(":")[0] == (before.failure or "").partition(":")[0]
    assert after.events <= before.events
    assert broken(seed, settings).play() == after
    assert settings != Settings()


def test_a_world_that_fails_not_is_left_as_it_is() -> None:
    assert shrink(Log, 3, Settings())[0] == Settings()


def test_a_kept_seed_names_its_settings(tmp_path: Path) -> None:
    settings = Settings(minutes=0.01, without=frozenset((3, 1)), members=2)
    keep(tmp_path, "log", 7, settings, "why")
    path = keep(tmp_path, "log", 8, Settings(), "because")

    first, second = json.loads(path.read_text())
    assert first == {"seed": 7, "settings": to_json(settings), "why": "why"}
    assert from_json(first["settings"]) == settings
    assert from_json(second["settings"]) == Settings()
