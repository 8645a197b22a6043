"""A tower, a store, and a place where workers write down what they do."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.subscribers.working import PLACE
from tests.waiting import PATIENCE_S, until

from chappe.api.log.producer import Producer
from chappe.api.log.store import Store
from chappe.api.log.tower import Tower


@dataclass
class Place:
    """Where workers are: what they wrote down, what they may do, and a log that they work off."""

    path: Path
    tower: str

    def done(self) -> list[tuple[str, str, int]]:
        """Key, value and process of each record that a worker did, in that order."""
        path = self.path / "done"
        lines = path.read_text().splitlines() if path.exists() else []
        return [(key, value, int(process)) for key, value, process in map(str.split, lines)]

    def of(self, key: str) -> list[str]:
        """The values of one key in the order in which they were done."""
        return [value for each, value, _ in self.done() if each == key]

    def go(self) -> None:
        (self.path / "go").touch()

    def wait_at(self, key: str) -> None:
        """Until a worker is at a record of this key."""
        until((self.path / f"at-{key}").exists, f"a worker at {key}")

    def send(self, *records: tuple[str, str], topic: str = "t") -> str:
        """Send keys and values; returns the partition."""
        with Producer(topic, tower=self.tower) as producer:
            for key, value in records:
                producer.send(value, key=key)
            producer.flush(PATIENCE_S)
            return producer.partition


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    path = tmp_path / "place"
    path.mkdir()
    monkeypatch.setenv(PLACE, str(path))
    with Tower("127.0.0.1:0") as tower, Store(tmp_path / "store", tower=tower.address):
        yield Place(path, tower.address)
