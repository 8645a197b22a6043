"""Ports of this machine for members that others must know before they listen."""

from __future__ import annotations

import socket
from contextlib import ExitStack

from chappe.defaults import TOWER_HOST


def free_ports(count: int) -> list[int]:
    """Return ports of loopback that are free now. Another program may take one before it is used."""
    with ExitStack() as stack:
        found = []
        for _ in range(count):
            sock = stack.enter_context(socket.socket())
            sock.bind((TOWER_HOST, 0))
            found.append(sock.getsockname()[1])
        return found
