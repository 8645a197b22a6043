"""Dialling: a name becomes addresses, the addresses are tried one after the other. Only ``look_up`` takes time."""

from __future__ import annotations

import errno
import os
import socket
from ipaddress import ip_address
from typing import Final

from chappe.defaults import CONNECT_TIMEOUT_S
from chappe.system.machine import Machine, Target

_UNDER_WAY: Final = (0, errno.EINPROGRESS, errno.EWOULDBLOCK, errno.EINTR)


class Attempt:
    """One attempt to connect to ``host`` and ``port``; ``sock`` is being connected now."""

    __slots__ = ("_machine", "_targets", "host", "number", "port", "reason", "sock", "until")

    def __init__(self, number: int, host: str, port: int, machine: Machine) -> None:
        self._machine = machine
        self.number = number
        self.host = host
        self.port = port
        self.sock: socket.socket | None = None
        self.until = 0.0  # monotonic seconds: then the present address is given up
        self.reason = ""  # why the last address failed
        self._targets: list[Target] = []

    def is_resolved(self) -> bool:
        """Return True if the host is an address, so that no name is to be looked up."""
        try:
            address = ip_address(self.host)
        except ValueError:
            return False
        family = socket.AF_INET if address.version == 4 else socket.AF_INET6
        self._targets = [(family, (self.host, self.port))]
        return True

    def look_up(self) -> None:
        """Find the addresses of the name. The system's look-up may take long and cannot be interrupted."""
        try:
            self._targets = self._machine.look_up(self.host, self.port)
        except (OSError, UnicodeError) as error:
            text = getattr(error, "strerror", None) or str(error)
            self.reason = f"the name {self.host} is not known ({text.lower()})"

    def connect_next(self, now: float) -> bool:
        """Begin with the next address; return False, and set ``reason``, if there is none left."""
        self.abandon()
        while self._targets:
            family, address = self._targets.pop(0)
            try:
                sock = self._machine.stream(family)
            except OSError as error:
                self.reason = error.strerror or str(error)
                continue
            sock.setblocking(False)
            code = sock.connect_ex(address)
            if code in _UNDER_WAY:
                self.sock = sock
                self.until = now + CONNECT_TIMEOUT_S
                return True
            sock.close()
            self.reason = os.strerror(code).lower()
        return False

    def finish(self) -> socket.socket | None:
        """Return the writable socket if it is connected, else None, and set ``reason``."""
        assert self.sock is not None
        code = self.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if not code:
            try:
                # A socket can connect to itself: to a port that the system chose for our own end.
                code = errno.ECONNREFUSED if self.sock.getsockname() == self.sock.getpeername() else 0
            except OSError as error:  # it broke already
                code = error.errno or errno.ENOTCONN
        if code:
            self.reason = os.strerror(code).lower()
            return None
        sock, self.sock = self.sock, None
        return sock

    def abandon(self) -> None:
        if self.sock is not None:
            self.sock.close()
            self.sock = None
