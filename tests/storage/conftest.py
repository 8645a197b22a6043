"""What tests of drivers share."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

from chappe.storage.segments import SegmentStorage


@pytest.fixture(autouse=True)
def _disks_are_quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test waits for a disk: no power is cut here, and what a sync that fails does, the faults of the tests say."""
    for name in ("fsync", "fdatasync"):
        monkeypatch.setattr(os, name, os.fstat)  # as much as to say that the file is open


@pytest.fixture(autouse=True)
def _storages_are_closed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Tests abandon storages as a kill would; their files are closed all the same."""
    opened: list[SegmentStorage] = []
    begin = SegmentStorage.__init__

    def remember(self: SegmentStorage, *args: Any, **options: Any) -> None:
        begin(self, *args, **options)
        opened.append(self)

    monkeypatch.setattr(SegmentStorage, "__init__", remember)
    yield
    for each in opened:
        each.close()
