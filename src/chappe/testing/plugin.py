"""The fixtures of pytest. Every run of pytest loads this, so it imports nothing before a test wants it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from chappe.testing import Log, World


@pytest.fixture
def chappe_world(tmp_path: Path) -> Iterator[World]:
    """A world for one test: see ``chappe.testing.World``."""
    from chappe.testing.world import World

    with World(tmp_path / "chappe") as world:
        yield world


@pytest.fixture
def chappe_log(chappe_world: World, tmp_path: Path) -> Log:
    """A tower and a store in the world of the test: see ``chappe.testing.Log``."""
    from chappe.testing.world import Log

    return Log(chappe_world, tmp_path / "chappe" / "store")
