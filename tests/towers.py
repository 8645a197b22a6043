"""A tower and a store for a test, on ports that the operating system chose."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from chappe.api.log.store import Store
from chappe.api.log.tower import Tower


@pytest.fixture
def tower() -> Iterator[str]:
    with Tower("127.0.0.1:0") as made:
        yield made.address


@pytest.fixture
def store(tower: str, tmp_path: Path) -> Iterator[Store]:
    with Store(tmp_path / "store", tower=tower) as made:
        yield made
