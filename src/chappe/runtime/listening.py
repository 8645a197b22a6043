"""The listening sockets of one member: they accept connections, and pause while there is no room for more."""

from __future__ import annotations

import errno
import logging
import math
import selectors
import socket
from typing import Any, Final, Protocol

from chappe.errors import AddressInUse, UsageError
from chappe.runtime.turns import Turns
from chappe.system import time
from chappe.system.machine import Machine

logger = logging.getLogger(__name__)

BACKLOG: Final = 128
ACCEPT_MAX: Final = 16  # connections taken from a listening socket before the others get their turn
FULL_S: Final = 1.0  # no room or no descriptor left: listening pauses so long
_EXHAUSTED: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class Listening(Protocol):
    def room_for_more(self) -> bool: ...

    def accepted(self, sock: socket.socket, address: Any) -> None:
        """Take a connection; ``address`` is of its other end."""


class Listeners:
    """The listening sockets; all but ``listening_socket`` is called with the member's lock held."""

    def __init__(self, turns: Turns, member: Listening) -> None:
        self.sockets: list[socket.socket] = []
        self.due = math.inf  # listening pauses until then
        self._turns = turns
        self._member = member

    def add(self, sock: socket.socket) -> None:
        self._watch(sock)
        self.sockets.append(sock)

    def go_on(self) -> None:
        self.due = math.inf
        for each in self.sockets:
            self._watch(each)

    def close(self) -> None:
        """Accept no more; safe to call twice."""
        for each in self.sockets:
            if self.due == math.inf:
                self._turns.unregister(each)
            each.close()
        self.sockets.clear()

    def _watch(self, sock: socket.socket) -> None:
        self._turns.register(sock, selectors.EVENT_READ, lambda mask: self._accept(sock))

    def _accept(self, listener: socket.socket) -> None:
        for _ in range(ACCEPT_MAX):
            if not self._member.room_for_more():
                self._pause()
                return
            try:
                sock, address = listener.accept()
            except (BlockingIOError, ConnectionError, InterruptedError):
                return
            except OSError as error:
                if error.errno in _EXHAUSTED:
                    logger.warning("no connection can be accepted for a while: %s", error.strerror)
                    self._pause()
                return
            sock.setblocking(False)
            self._member.accepted(sock, address)

    def _pause(self) -> None:
        if self.due == math.inf:
            for each in self.sockets:
                self._turns.unregister(each)
        self.due = time.monotonic() + FULL_S


def listening_socket(machine: Machine, host: str, port: int) -> socket.socket:
    """A socket that listens there; ``*`` on all interfaces, port 0 on any that is free. Raises AddressInUse: somebody
    listens there; UsageError: the host is not one of this machine, or the port is not a port.
    """
    try:
        sock = machine.listen(host, port, BACKLOG)
    except OverflowError:
        raise UsageError(f"{port} is not a port: 0 to 65535, 0 for any that is free") from None
    except (TypeError, UnicodeError):  # what the resolver cannot even be asked for
        raise UsageError(f"{host!a} is not a name or address of this machine") from None
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise AddressInUse(
                f"port {port} on {host} is in use: stop the program that listens there, or choose another port"
            ) from None
        raise UsageError(f"cannot listen on {host}:{port}: {error.strerror}") from None
    sock.setblocking(False)
    return sock
