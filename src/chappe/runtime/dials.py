"""The connections that one member is making: names are looked up, addresses tried, and what stands is handed on."""

from __future__ import annotations

import math
import selectors
import socket
from typing import Protocol

from chappe.runtime.turns import Turns
from chappe.runtime.worker import LOOK_UPS, run_once
from chappe.system import time
from chappe.transports.dialling import Attempt


class Dialler(Protocol):
    def dialled(self, dial: Attempt, sock: socket.socket) -> None: ...

    def not_dialled(self, dial: Attempt) -> None:
        """Take a failed dial; its ``reason`` says why."""


class Dials:
    """The dials of a member; all is called with its lock held."""

    def __init__(self, turns: Turns, dialler: Dialler) -> None:
        self._turns = turns
        self._dialler = dialler
        self.under_way: dict[int, Attempt] = {}  # by number

    def begin(self, number: int, host: str, port: int) -> None:
        dial = Attempt(number, host, port, self._turns.machine)
        self.under_way[number] = dial
        if dial.is_resolved():
            self._connect(dial)
        else:
            run_once(LOOK_UPS, self._turns.run, dial.look_up, lambda _: self._resolved(dial))

    def due(self) -> float:
        return min((each.until for each in self.under_way.values() if each.sock is not None), default=math.inf)

    def handle_timeout(self, now: float) -> None:
        """Go on to the next address where one does not answer."""
        for dial in [each for each in self.under_way.values() if each.sock is not None and now >= each.until]:
            assert dial.sock is not None
            self._turns.unregister(dial.sock)
            dial.reason = "it does not answer"
            self._connect(dial)

    def close(self) -> None:
        for dial in self.under_way.values():
            if dial.sock is not None:
                self._turns.unregister(dial.sock)
            dial.abandon()
        self.under_way.clear()

    def _resolved(self, dial: Attempt) -> None:
        if self.under_way.get(dial.number) is dial:
            self._connect(dial)

    def _connect(self, dial: Attempt) -> None:
        if dial.connect_next(time.monotonic()):
            sock = dial.sock
            assert sock is not None
            self._turns.register(sock, selectors.EVENT_WRITE, lambda mask: self._writable(dial, sock))
            self._turns.look_again()
        else:
            self.under_way.pop(dial.number, None)
            self._dialler.not_dialled(dial)

    def _writable(self, dial: Attempt, sock: socket.socket) -> None:
        if dial.sock is not sock:
            return  # given up by what was handled just before
        self._turns.unregister(sock)
        if dial.finish() is None:
            self._connect(dial)
        else:
            del self.under_way[dial.number]
            self._dialler.dialled(dial, sock)
