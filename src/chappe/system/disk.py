"""Syncing, private files and locks, with the differences between Linux and macOS.

Files are created private to their user, whatever the umask: directories 0700, files 0600.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import Final

from chappe.system import machine
from chappe.system.forking import own

logger = logging.getLogger(__name__)

PRIVATE_FILE: Final = 0o600
PRIVATE_DIRECTORY: Final = 0o700
LOCKS: Final = "/proc/locks"  # Linux's table of file locks
FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})  # there is no room


def open_private(path: str | Path, flags: int) -> int:
    """Open a file with close-on-exec; a new one is private to its owner. Raises OSError."""
    return os.open(path, flags | os.O_CLOEXEC, PRIVATE_FILE)


def make_private(path: str | Path) -> None:
    """Create an empty private file, or make an existing one private. Raises OSError.

    An existing file is not opened: closing it would release SQLite's locks on it in this process.
    """
    try:
        os.close(open_private(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        keep_private(path)


def keep_private(path: str | Path) -> None:
    """Remove others' access to a file or directory of ours; access of a group alone is kept: a user chose that."""
    with suppress(FileNotFoundError):
        mode = stat.S_IMODE(os.stat(path).st_mode)
        if mode & 0o007:
            try:
                os.chmod(path, mode & PRIVATE_DIRECTORY)
            except OSError as error:
                logger.warning("%s is open to other users, and cannot be closed: %s", path, error.strerror)


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
    """An exclusive lock among processes and within one; the system releases it when the process ends.

    Args:
        path: Made if it is not there, and never removed.
        wait: Block until the holder releases it.

    Raises:
        BlockingIOError: It is held.
        OSError: It cannot be opened, or its file system knows no locks.
    """

    def __init__(self, path: str | Path, *, wait: bool = False) -> None:
        self.fd = open_private(path, os.O_RDWR | os.O_CREAT)
        try:
            if stat.S_IMODE(os.fstat(self.fd).st_mode) & 0o077:  # anyone who can read it could lock it
                with suppress(OSError):
                    os.fchmod(self.fd, PRIVATE_FILE)
            fcntl.flock(self.fd, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BaseException:
            self.close()
            raise
        own(self)

    def forked(self) -> None:
        """Close the child's copy, which would hold the lock beyond the parent's life."""
        self.close()

    def close(self) -> None:
        """Release the lock; safe to call twice."""
        # Closing the last copy releases it. Unlocking would release it for a parent process, too.
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)

    def __enter__(self) -> FileLock:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def held_by(path: str | Path) -> str:
    """Return the holder of a lock: ``process 12``, or ``another process`` if unknown. Where the system does not tell,
    the number in the file counts if that process exists: the present holder need not have written it.
    """
    number = _holder(path) or _written(path)
    return f"process {number}" if number and _is_there(number) else "another process"


def _holder(path: str | Path) -> int:
    with suppress(OSError, ValueError):
        found = os.stat(path)
        where = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}:{found.st_ino}"
        with open(LOCKS, encoding="ascii") as locks:
            for line in locks:
                words = line.split()
                if len(words) > 5 and words[1] == "FLOCK" and words[5] == where:
                    return int(words[4])
    return 0


def _written(path: str | Path) -> int:
    with suppress(OSError, ValueError), open(path, "rb") as file:
        return int(file.read(32))
    return 0


def _is_there(number: int) -> bool:
    try:
        os.kill(number, 0)
    except PermissionError:
        return True  # it exists, as another user's
    except (OSError, OverflowError):
        return False
    return number > 0
