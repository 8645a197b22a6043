"""Ports for who is told where to listen: for what starts again where it was, and for what cannot choose them itself.

A port that the system chose is handed out again as soon as it is free, to whoever on the machine asks for any or
connects somewhere. So what is to be listened at later is taken from below those that the system hands out. A process
has a block of these to itself: as long as it lives, it holds the first port of it.
"""

from __future__ import annotations

import random
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Final

FIRST, END = 15_000, 30_000  # Linux hands out ports from 32,768 on, most others from 49,152
BLOCK: Final = 500


def _ports() -> Iterator[int]:
    """Those of a block that nobody else has, again and again."""
    blocks = list(range(FIRST, END, BLOCK))
    random.SystemRandom().shuffle(blocks)
    for first in blocks:
        with socket.socket() as held:
            try:
                held.bind(("127.0.0.1", first))
            except OSError:
                continue
            while True:
                yield from range(first + 1, first + BLOCK)
    raise AssertionError(f"all blocks of ports from {FIRST} to {END} are in use")


_next: Final = _ports()
next(_next)  # the block is held from now on, and not from some test on that counts descriptors


def free_ports(count: int = 1) -> int:
    """The first of so many free ports in a row, which this process is not told again until all others were."""
    while True:
        ports = [next(_next) for _ in range(count)]
        if ports[-1] - ports[0] != count - 1:
            continue  # the block begins again within them
        with ExitStack() as stack:
            try:
                for port in ports:
                    stack.enter_context(socket.socket()).bind(("127.0.0.1", port))
            except OSError:
                continue
            return ports[0]


def free_address(count: int = 1) -> str:
    """The same as ``HOST:PORT``."""
    return f"127.0.0.1:{free_ports(count)}"
