"""Seeded worlds of what users run together, and bridges broken on purpose."""

from __future__ import annotations

from typing import Any

import pytest
from tests.worlds import mix
from tests.worlds.mix import POSITION, Mix, Recorder, Table

CHUNK = 4


@pytest.mark.parametrize("first", range(0, 8, CHUNK))
def test_every_promise_is_kept_from_one_end_to_the_other(first: int) -> None:
    played = {seed: Mix(seed).play().failure for seed in range(first, first + CHUNK)}

    assert {seed: failure for seed, failure in played.items() if failure is not None} == {}


def test_a_seed_plays_the_same_world_every_time_and_tells_all_of_it() -> None:
    lines: list[str] = []
    world = Mix(7, tell=lines.append)

    assert Mix(7).play() == world.play()
    text = "\n".join(lines)
    for each in ("records event", "shows row", "shows position", "gets table"):
        assert each in text
    assert world.played


class WritesItsPositionFirst(Table):
    def _write(self, rows: dict[str, Any]) -> None:
        batch = self._batches[0]
        super()._write({POSITION + batch.partition: batch.next} | rows)


class TakesRefusedForWritten(Table):
    def done(self, key: str, value: Any, error: object) -> None:
        super().done(key, value, None)


class ForgetsWhatTheJournalRefused(Recorder):
    def record(self) -> None:
        super().record()
        while self.events:
            self.world.see("on_recorded", self, self.events.popleft())


class RecordsTwice(Recorder):
    def record(self) -> None:
        for each in list(self.events):
            self.events.append(each)
        super().record()


@pytest.mark.parametrize(
    ("name", "broken", "seed"),
    [
        ("Table", WritesItsPositionFirst, 0),
        ("Table", TakesRefusedForWritten, 3),
        ("Recorder", ForgetsWhatTheJournalRefused, 22),
        ("Recorder", RecordsTwice, 0),
    ],
    ids=["position", "refused", "journal", "twice"],
)
def test_a_broken_bridge_is_caught(name: str, broken: type, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mix, name, broken)
    assert (Mix(seed).play().failure or "").startswith("bridges")
