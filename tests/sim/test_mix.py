"""Seeded worlds of what users run together, and bridges broken on purpose."""

from __future__ import annotations

from typing import Any

import pytest
from tests.worlds import mix
from tests.worlds.mix import POSITION, Mix, Recorder, Table

CHUNK = 4


@pytest.mark.parametrize("first", range(0, 16, CHUNK))
def test_every_promise_is_kept_from_one_end_to_the_other(first: int) -> None:
    played = {seed: Mix(seed).play().failure for seed in range(first, first + CHUNK)}

    assert {seed: failure for seed, failure in played.items() if failure is not None} == {}


def test_a_seed_plays_the_same_world_every_time_and_tells_all_of_it() -> None:
    lines: list[str] = []
    world = Mix(7, tell=lines.append)

    assert Mix(7).play() == world.play()
    text = "\n".join(lines)
    for each in ("publishes batch", "peered with", POSITION, "row "):
        assert each in text
    assert world.played


class WritesItsPositionFirst(Table):
    def _write(self, rows: dict[str, Any]) -> None:
        batch = self._batches[0]
        super()._write({POSITION + batch.partition: batch.batch.next} | rows)


class TakesRefusedForWritten(Table):
    def done(self, serial: int, outcome: object) -> None:
        super().done(serial, None)


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
    ("name", "broken"),
    [
        ("Table", WritesItsPositionFirst),
        ("Table", TakesRefusedForWritten),
        ("Recorder", ForgetsWhatTheJournalRefused),
        ("Recorder", RecordsTwice),
    ],
)
def test_a_broken_bridge_is_caught(name: str, broken: type, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mix, name, broken)
    seen = []
    # The first has a journal that refuses, the next two a backend that refuses what a table writes, which is rare.
    for seed in (37, 91, 51, *range(40)):
        failure = Mix(seed).play().failure
        if failure is not None:
            seen.append(failure[:200])
            if failure.startswith("bridges"):
                return
    pytest.fail(f"no seed saw it; seen were {seen[:5]}")
