"""A relay of TCP between real processes that can be cut, as a network is: nothing passes, and nothing is said of it."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from typing import Final

from tests.ports import free_address

HOST: Final = "127.0.0.1"
CHUNK: Final = 65_536


class Relay:
    """Listens on as many ports in a row as the address that it leads to has, and passes bytes both ways.

    While it is cut, bytes wait, as in a network that is mended before TCP gives up.
    """

    def __init__(self, target: str, ports: int) -> None:
        self.address = free_address(ports)
        self._mended = threading.Event()
        self._mended.set()
        self._closed = False
        self._sockets: list[socket.socket] = []
        first, leads_to = (int(each.rpartition(":")[2]) for each in (self.address, target))
        for place in range(ports):
            listening = socket.create_server((HOST, first + place))
            self._sockets.append(listening)
            self._begin(self._accept, listening, leads_to + place)

    def cut(self) -> None:
        """Pass nothing more."""
        self._mended.clear()

    def mend(self) -> None:
        """Pass everything, also what waited."""
        self._mended.set()

    def close(self) -> None:
        """End all connections."""
        self._closed = True
        self._mended.set()
        for each in list(self._sockets):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def _begin(self, work: object, *arguments: object) -> None:
        threading.Thread(target=work, args=arguments, daemon=True).start()  # type: ignore[arg-type]

    def _accept(self, listening: socket.socket, port: int) -> None:
        with suppress(OSError):
            while not self._closed:
                near, _ = listening.accept()
                self._sockets.append(near)
                self._begin(self._join, near, port)

    def _join(self, near: socket.socket, port: int) -> None:
        self._mended.wait()
        try:
            far = socket.create_connection((HOST, port))
        except OSError:  # nobody is there: who dialled is to see that
            near.close()
            return
        self._sockets.append(far)
        self._begin(self._pass, near, far)
        self._pass(far, near)

    def _pass(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(CHUNK):
                self._mended.wait()
                target.sendall(data)
        for each in (source, target):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
