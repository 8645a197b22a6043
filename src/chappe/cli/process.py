"""What a process was started with that commands cannot work with: closed streams, too few files."""

from __future__ import annotations

import errno
import io
import os
import sys
from contextlib import suppress
from typing import Any


class _Closed(io.TextIOBase):
    """A standard stream that was closed when the process started: using it is an error that says so."""

    def __init__(self, name: str) -> None:
        self._problem = OSError(errno.EBADF, f"{name} is closed")

    def fileno(self) -> int:
        raise self._problem

    def write(self, _text: Any) -> int:
        raise self._problem

    def isatty(self) -> bool:
        return False

    @property
    def buffer(self) -> Any:
        raise self._problem


def replace_closed() -> None:
    """Put something in the place of closed streams.

    Python has None for them, which prints nothing and says nothing; and the next file or socket that is opened would
    get their number, and what is written to it.
    """
    if None not in (sys.stdin, sys.stdout, sys.stderr):
        return
    number = 0
    while number <= 2:
        number = os.open(os.devnull, os.O_RDWR)  # the lowest one that is free
    os.close(number)
    if sys.stdin is None:
        sys.stdin = _Closed("standard input")
    if sys.stdout is None:
        sys.stdout = _Closed("standard output")
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115


def allow_files(wanted: int) -> int:
    """How many files this process may open, raised to ``wanted`` if it is less and the machine lets us."""
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return wanted
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return wanted
    with suppress(OSError, ValueError):
        most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]
