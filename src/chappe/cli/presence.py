"""Whether anything listens where a tower should be."""

from __future__ import annotations

import socket
from typing import Final

from chappe.defaults import TOWER_SUB_PORT

CONNECT_S: Final = 2.0


def host_and_port(address: str) -> tuple[str, int]:
    """The host and first port of a tower's address; a port that is no number becomes the default."""
    host, _, ports = address.removeprefix("tcp://").partition(":")
    first = ports.partition(":")[0]
    return host, int(first) if first.isdecimal() else TOWER_SUB_PORT


def answers(address: str, timeout_s: float = CONNECT_S) -> bool:
    """Whether anything accepts connections at the address of a tower, or of one of several."""
    for each in address.split(","):
        try:
            with socket.create_connection(host_and_port(each), timeout_s):
                return True
        except (OSError, OverflowError, UnicodeError):
            continue
    return False
