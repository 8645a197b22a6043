"""Whether anything listens where a tower should be."""

from __future__ import annotations

import socket
from typing import Final

from chappe.defaults import TOWER_SUB_PORT
from chappe.errors import UsageError

CONNECT_S: Final = 2.0


def host_and_ports(address: str) -> tuple[str, int, int]:
    """The host and the two ports of a tower's address. Raises UsageError."""
    host, *ports = address.strip().removeprefix("tcp://").split(":")
    numbers = [int(each) if each.isdecimal() and len(each) <= 5 else 65536 for each in ports]
    if len(numbers) > 2 or not host.isprintable() or any(number > 65535 for number in numbers):
        raise UsageError(f"{address!a} is not the address of a tower: HOST:PORT or HOST:PORT:PORT is wanted")
    first = numbers[0] if numbers else TOWER_SUB_PORT
    return host, first, numbers[1] if len(numbers) > 1 else first + 1


def answers(address: str, timeout_s: float = CONNECT_S) -> bool:
    """Whether anything accepts connections at the address of a tower, or of one of several."""
    for each in address.split(","):
        try:
            with socket.create_connection(host_and_ports(each)[:2], timeout_s):
                return True
        except (OSError, OverflowError, UnicodeError):
            continue
    return False
