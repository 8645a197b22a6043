"""Checks that this process may open the descriptors a member needs, before one is made."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from chappe.errors import TooManyOpenFiles

NEEDED: Final = 32  # descriptors of a member, with what the first one in a process takes for ZeroMQ
EXHAUSTED: Final = frozenset({errno.EMFILE, errno.ENFILE})
TEXT: Final = (
    "the system lets this process open no more files and sockets: allow it more (ulimit -n 65536), or close what it "
    "does not need"
)


@contextmanager
def descriptors_refused() -> Iterator[None]:
    """Raise TooManyOpenFiles where the system raises that it has no descriptor left."""
    try:
        yield
    except OSError as error:
        if error.errno in EXHAUSTED:
            raise TooManyOpenFiles(TEXT) from None
        raise


def has_descriptors() -> bool:
    """Return whether the process can open the descriptors of a member, or of as many connections."""
    try:
        need_descriptors()
    except TooManyOpenFiles:
        return False
    return True


def need_descriptors() -> None:
    """Check that a member can be made: ZeroMQ would abort halfway through. Raises TooManyOpenFiles: it cannot."""
    held: list[int] = []
    try:
        with descriptors_refused():
            held.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
            while len(held) < NEEDED:
                held.append(os.dup(held[0]))
    finally:
        for each in held:
            os.close(each)
