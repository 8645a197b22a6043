"""Sockets of this process that a library has made, looked at by their descriptors."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def doubled(descriptor: int) -> Iterator[socket.socket]:
    """The socket behind a descriptor, which stays as it is.

    Other threads go on meanwhile: it may have ended, and something else, a file that is locked, say, may have its
    number. So nothing of it is kept whatever happens.

    Raises:
        OSError: It has ended, or is no socket.
    """
    found = os.dup(descriptor)
    try:
        sock = socket.socket(fileno=found)
        try:
            yield sock
        finally:
            sock.detach()
    finally:
        os.close(found)
