"""Makes a failing world smaller while it still breaks the same promise, and keeps it for the tests."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from chappe.sim.world import Outcome, Settings, SimWorld

Make = Callable[[int, Settings | None], SimWorld]
SHORTEST_MINUTES = 0.002


def shrink(make: Make, seed: int, settings: Settings) -> tuple[Settings, Outcome]:
    """The smallest settings that were found, in which the seed still breaks the promise; and how that world went."""
    world = make(seed, settings)
    outcome = world.play()
    promise = _promise(outcome)
    if promise is None:
        return settings, outcome
    again = True
    while again:
        again = False
        for smaller in _smaller(settings, world.faults, outcome):
            candidate = make(seed, smaller)
            found = candidate.play()
            if _promise(found) == promise and found.events <= outcome.events:
                settings, world, outcome, again = smaller, candidate, found, True
                break
    return settings, outcome


def _promise(outcome: Outcome) -> str | None:
    return None if outcome.failure is None else outcome.failure.partition(":")[0]


def _smaller(settings: Settings, faults: int, outcome: Outcome) -> Iterator[Settings]:
    """What to try next, the largest steps first: fewer members, less time, fewer faults."""
    most = 4 if settings.members is None else settings.members
    for members in range(1, most):
        yield replace(settings, members=members)
    minutes = settings.minutes if settings.minutes is not None else outcome.virtual_s / 60
    if minutes / 2 >= SHORTEST_MINUTES:
        yield replace(settings, minutes=minutes / 2)
    left = [number for number in range(faults) if number not in settings.without]
    size = len(left)
    while size:
        for at in range(0, len(left), size):
            yield replace(settings, without=settings.without | set(left[at : at + size]))
        size //= 2


def to_json(settings: Settings) -> dict[str, Any]:
    """What differs from the usual settings."""
    usual = Settings()
    found = {name: value for name, value in vars(settings).items() if value != getattr(usual, name)}
    return found | ({"without": sorted(settings.without)} if settings.without else {})


def from_json(found: dict[str, Any]) -> Settings:
    """The settings of a kept seed. Raises TypeError if they are malformed."""
    return Settings(**found | {"without": frozenset(found.get("without", ()))})


def keep(directory: Path, scenario: str, seed: int, settings: Settings, why: str) -> Path:
    """Have the tests play a world from now on; returns the file that names it."""
    path = directory / f"{scenario}.json"
    cases = json.loads(path.read_text()) if path.exists() else []
    cases.append({"seed": seed, "settings": to_json(settings), "why": why})
    path.write_text("[\n" + ",\n".join("  " + json.dumps(each) for each in cases) + "\n]\n")
    return path
