"""Having files on the disk, and to oneself: what differs between Linux and macOS is here."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path
from typing import Final

from chappe.system import machine
from chappe.system.forking import own

FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})  # there is no room


def sync_file(fd: int) -> None:
    """Wait until everything about a file, or a directory, is on disk."""
    if not machine.current().syncs:
        return
    full = getattr(fcntl, "F_FULLFSYNC", None)
    if full is not None:  # macOS: fsync ends when the drive has it in its memory
        try:
            fcntl.fcntl(fd, full)
        except OSError as error:
            if error.errno not in (errno.ENOTSUP, errno.EINVAL, errno.ENOTTY):
                raise  # the others are said by file systems that do not know it, such as those of networks
        else:
            return
    os.fsync(fd)


def sync_data(fd: int) -> None:
    """Wait until the bytes of a file and its length are on disk."""
    if not machine.current().syncs:
        return
    if hasattr(os, "fdatasync") and not hasattr(fcntl, "F_FULLFSYNC"):
        os.fdatasync(fd)
    else:
        sync_file(fd)


def sync_directory(path: str | Path) -> None:
    """Make creations, renames and removals in a directory durable."""
    opened = os.open(path, os.O_RDONLY)
    try:
        sync_file(opened)
    finally:
        os.close(opened)


class FileLock:
    """A file that one at a time holds, of all processes and within one; the system lets go of it when the process ends.

    Args:
        path: Made if it is not there, and never removed.
        wait: Until whoever holds it lets go.

    Raises:
        BlockingIOError: Somebody holds it.
        OSError: It cannot be opened, or its file system knows no locks.
    """

    def __init__(self, path: str | Path, *, wait: bool = False) -> None:
        self.fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(self.fd, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BaseException:
            self.close()
            raise
        own(self)

    def forked(self) -> None:
        """We are the child's copy, which would hold the lock for longer than the parent lives."""
        self.close()

    def close(self) -> None:
        """Let go of it; safe to call twice."""
        # Closing lets go when the last copy is closed. Unlocking would take it from a parent process, too.
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)

    def __enter__(self) -> FileLock:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def held_by(path: str | Path) -> str:
    """The process id that a holder wrote into the file of its lock."""
    with open(path, "rb") as file:
        return file.read(32).decode("ascii", "replace").strip() or "unknown"
