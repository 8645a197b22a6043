"""Ports for who is told where to listen: for what starts again where it was, and for what cannot choose them itself.

A port that the system chose is handed out again as soon as it is free, to whoever on the machine asks for any or
connects somewhere. So what is to be listened at later is taken from below those that the system hands out.
"""

from __future__ import annotations

import random
import socket
from contextlib import ExitStack
from itertools import chain
from typing import Final

FIRST, END = 15_000, 30_000  # Linux hands out ports from 32,768 on, most others from 49,152
_start: Final = random.SystemRandom().randrange(FIRST, END)  # other processes begin elsewhere
_next = chain.from_iterable(iter(lambda: chain(range(_start, END), range(FIRST, _start)), None))


def free_ports(count: int = 1) -> int:
    """The first of so many free ports in a row, which this process is not told again until all others were."""
    while True:
        ports = [next(_next) for _ in range(count)]
        with ExitStack() as stack:
            try:
                for port in range(ports[0], ports[0] + count):
                    stack.enter_context(socket.socket()).bind(("127.0.0.1", port))
            except OSError:
                continue
            return ports[0]


def free_address(count: int = 1) -> str:
    """The same as ``HOST:PORT``."""
    return f"127.0.0.1:{free_ports(count)}"
