"""The connections that a member's sockets of ZeroMQ make: with keys, refusals are heard and dialled again."""

from __future__ import annotations

import selectors
from typing import Final

import zmq

from chappe.permissions.rules import ATTACH_MASTER
from chappe.runtime.driver import Driver, Inlet
from chappe.transports.dialled import Dialled
from chappe.transports.gate import Gate

LOOK_S: Final = 1.0  # with keys: how often refusals are looked for, and refused addresses dialled again


class Connections:
    """A task of the driver; all is called with its lock held. ``gate``: none for sockets without keys."""

    def __init__(self, driver: Driver, gate: Gate | None) -> None:
        self._driver = driver
        self._gate = gate
        self._dialled: dict[Inlet, Dialled] = {}
        self._monitors: dict[Inlet, int] = {}  # descriptors of the sockets that tell of refusals

    def connect(self, inlet: Inlet, endpoint: str, *, hear: bool = False) -> None:
        """Connect a socket that is watched to one that is allowed to serve.

        With ``hear`` refusals are reported where we have no keys, too.
        """
        if self._gate is not None and not self._dialled:
            self._driver.call_idle(self, 0.0)
        made = self._dialled[inlet] = Dialled(inlet.sock, self._gate, self._driver.ports.report, ATTACH_MASTER)
        # ZeroMQ gives up an address that refused it, so the monitor is there first.
        if hear and (refusals := made.listen()) is not None:
            descriptor = self._monitors[inlet] = int(refusals.getsockopt(zmq.FD))
            self._driver.turns.register(descriptor, selectors.EVENT_READ, lambda mask: made.look())
        made.connect(endpoint)
        made.look()  # its descriptor tells of what comes after that

    def close(self, inlet: Inlet) -> None:
        """Stop reading a socket, and close it and its connections."""
        if inlet in self._monitors:
            self._driver.turns.unregister(self._monitors.pop(inlet))
        self._dialled.pop(inlet).close()
        self._driver.unwatch(inlet)

    def release(self) -> None:
        """Close the monitors; the driver closes the sockets."""
        for dialled in self._dialled.values():
            dialled.close()
        self._dialled.clear()

    def idle(self) -> float:
        """Dial again where that was refused, or the permissions have changed."""
        for inlet, dialled in self._dialled.items():
            dialled.look()
            self._driver.suspect(inlet)
        return LOOK_S
