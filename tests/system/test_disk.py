"""Syncing and locking, on Linux and as macOS does it."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

import pytest

from chappe.system.disk import FileLock, sync_data, sync_directory, sync_file

FULLFSYNC = 51


@pytest.fixture
def full_syncs(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A system without fdatasync, whose fsync does not reach the disk."""
    done: list[int] = []
    monkeypatch.delattr(os, "fdatasync")
    monkeypatch.setattr(fcntl, "F_FULLFSYNC", FULLFSYNC, raising=False)
    monkeypatch.setattr(fcntl, "fcntl", lambda fd, command: done.append(fd) if command == FULLFSYNC else None)
    return done


def test_macos_is_asked_to_bring_it_to_the_disk(tmp_path: Path, full_syncs: list[int]) -> None:
    with open(tmp_path / "file", "wb") as file:
        sync_file(file.fileno())
        sync_data(file.fileno())
        assert full_syncs == [file.fileno()] * 2
    sync_directory(tmp_path)
    assert len(full_syncs) == 3


def test_a_file_system_that_does_not_know_how_is_synced_as_far_as_it_can(
    tmp_path: Path, full_syncs: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", synced.append)

    def refuse(code: int) -> None:
        def fail(fd: int, command: int) -> None:
            raise OSError(code, os.strerror(code))

        monkeypatch.setattr(fcntl, "fcntl", fail)

    refuse(errno.ENOTSUP)
    sync_data(7)
    assert synced == [7]
    refuse(errno.EIO)
    with pytest.raises(OSError, match="Input/output"):
        sync_data(7)
    assert synced == [7]


def test_a_system_without_fdatasync_syncs_everything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    monkeypatch.delattr(os, "fdatasync")
    monkeypatch.setattr(os, "fsync", synced.append)
    sync_data(7)
    assert synced == [7]


def test_a_lock_is_held_by_one_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with FileLock(path) as lock:
        with pytest.raises(BlockingIOError):
            FileLock(path)
        lock.close()
        FileLock(path).close()
    lock.close()
