"""The log that bridges read and write."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from chappe import Store


@pytest.fixture
def log(tower: str, tmp_path: Path) -> Iterator[Store]:
    with Store(tmp_path / "log", tower=tower) as made:
        yield made
