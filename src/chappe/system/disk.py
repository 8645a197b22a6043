"""Having files on the disk, and to oneself: what differs between Linux and macOS is here.

What programs keep is made for their own user alone, whatever the umask: directories of 0700, files of 0600.
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
LOCKS: Final = "/proc/locks"  # where Linux says who holds which file
FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})  # there is no room


def open_private(path: str | Path, flags: int) -> int:
    """Open a file, closed on exec; one that is made is its owner's alone. Raises OSError."""
    return os.open(path, flags | os.O_CLOEXEC, PRIVATE_FILE)


def make_private(path: str | Path) -> None:
    """Make an empty file that is its owner's alone, or have the one that is there be so. Raises OSError.

    That one is not opened: closing it would let go of locks that SQLite has on it in this process.
    """
    try:
        os.close(open_private(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        keep_private(path)


def keep_private(path: str | Path) -> None:
    """Take away what everybody may with a file or directory of ours, as earlier versions and other programs made it.

    One that only a group was let into stays so: somebody chose that.
    """
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
    """A file that one at a time holds, of all processes and within one; the system lets go of it when the process ends.

    Args:
        path: Made if it is not there, and never removed.
        wait: Until whoever holds it lets go.

    Raises:
        BlockingIOError: Somebody holds it.
        OSError: It cannot be opened, or its file system knows no locks.
    """

    def __init__(self, path: str | Path, *, wait: bool = False) -> None:
        self.fd = open_private(path, os.O_RDWR | os.O_CREAT)
        try:
            if stat.S_IMODE(os.fstat(self.fd).st_mode) & 0o077:  # whoever can read it could hold it
                with suppress(OSError):
                    os.fchmod(self.fd, PRIVATE_FILE)
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
    """Who holds a lock that could not be had: ``process 12``, or ``another process`` where nobody can say.

    The number that a holder wrote into the file counts where the system does not say, and if that process is there:
    whoever holds it now need not have written.
    """
    number = _holder(path) or _written(path)
    return f"process {number}" if number and _is_there(number) else "another process"


def _holder(path: str | Path) -> int:
    """As Linux has it; 0 if it is not known."""
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
        return True  # it is another user's
    except (OSError, OverflowError):
        return False
    return number > 0
