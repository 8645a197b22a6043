"""Versions of changes only grow, from one life of a store to the next, whatever the clock does."""

from __future__ import annotations

from pathlib import Path

import pytest

from chappe.log.batch import encode_batch
from chappe.log.storage import AppendRecords
from chappe.storage.segments import SegmentStorage
from chappe.storage.segments import storage as module

DAY_NS = 24 * 3600 * 10**9


class Clock:
    """A time of day that may be set."""

    def __init__(self) -> None:
        self.now = 4_000_000_000 * 10**9  # later than the times of the files

    def time_ns(self) -> int:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(module, "time", made)
    return made


def store(directory: Path, partition: str | None = None) -> SegmentStorage:
    storage = SegmentStorage(directory)
    if partition is not None:
        storage.publish(storage.write([AppendRecords("t", partition, 0, 1, 1, 1, encode_batch(0, [b"x"], 1))]))
    return storage


@pytest.mark.parametrize("clean", [True, False])
def test_a_reader_misses_nothing_after_the_clock_was_set_back(tmp_path: Path, clock: Clock, clean: bool) -> None:
    clock.now += 10 * DAY_NS
    first = store(tmp_path, "P0")
    remembered = first.version
    if clean:
        first.close()
    else:
        first._directory.close()  # as a killed process leaves it
    clock.now -= 10 * DAY_NS
    again = store(tmp_path, "P1")

    assert again.version > remembered
    assert {each.partition for each in again.changed("", remembered, 100)} == {"P0", "P1"}


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b'{"next": 9, "checksum": "00000000"}', b'{"next": null}', b"\xff"]
)
def test_a_file_that_says_nothing_leaves_it_to_the_clock(tmp_path: Path, clock: Clock, content: bytes) -> None:
    store(tmp_path, "P0").close()
    (tmp_path / "versions").write_bytes(content)

    assert store(tmp_path).version >= clock.now // 1000


def test_many_clean_ends_do_not_run_ahead_of_the_clock(tmp_path: Path, clock: Clock) -> None:
    for _ in range(5):
        store(tmp_path, "P0").close()
    clock.now += DAY_NS
    found = store(tmp_path)

    assert found.version < clock.now // 1000 + 100 + 2 * DAY_NS // 1000
