"""A core on sockets of ZeroMQ that are its own, in the process's loop: servers and clients of maps, pairs and chains.

Sockets are read in turn, a core is asked, its actions are carried out, and what came together is flushed together.
"""

from __future__ import annotations

import logging
import math
import selectors
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

import zmq

from chappe.core import Report
from chappe.defaults import MIB
from chappe.errors import ProtocolError
from chappe.permissions.rules import ATTACH_MASTER
from chappe.runtime.turns import Ready, Turns
from chappe.system import time
from chappe.system.forking import own
from chappe.system.limits import need_descriptors
from chappe.transports.dialled import Dialled
from chappe.transports.gate import Gate, address_of, sender_of

logger = logging.getLogger(__name__)

DRAIN_MAX: Final = 256  # messages taken from one socket before the others get their turn ...
DRAIN_BYTES: Final = MIB  # ... or so many bytes
COMPLAIN_S: Final = 10.0  # malformed messages are logged at most this often
GATE_S: Final = 1.0  # how often it is seen whether somebody with keys was refused
_NOBLOCK: Final = int(zmq.NOBLOCK)

Frames = list[bytes]
Judge = Callable[[str, Frames], Sequence[object]]  # of who sent it, and what


class Core(Protocol):
    """What a node runs."""

    def next_timeout(self) -> float:
        """When ``handle_timeout`` is to be called."""

    def handle_timeout(self, now: float) -> Sequence[object]:
        """Do what is due."""

    def flush(self, now: float) -> Sequence[object]:
        """Called after one or several inputs."""


class SocketNode:
    """What servers and clients of all kinds have in common.

    Args:
        on_report: Called with every event, with the lock held: it must be quick and not call back.
        gate: Of sockets with keys; None for plain ones.
    """

    def __init__(self, core: Core, what: str, on_report: Callable[[Any], None], gate: Gate | None = None) -> None:
        own(self)
        need_descriptors()
        self.turns = Turns(self._handle, self._due, self._stopped, what=what, eager=True)
        self.lock = self.turns.lock
        self.halt_event = self.turns.machine.event()
        self.malformed = 0
        self.gate = gate
        self._on_report = on_report
        self._dialled: dict[zmq.Socket[bytes], Dialled] = {}
        self._monitors: dict[zmq.Socket[bytes], int] = {}  # the descriptors of what tells of refusals
        self._gate_at = math.inf if gate is None else time.monotonic() + GATE_S
        self._core = core
        self._complain_at = -math.inf
        self._look_at = math.inf
        self.retrying: list[Callable[[], None]] = []  # each tries again what its sockets did not take
        self._watched: dict[zmq.Socket[bytes], Callable[[], bool]] = {}
        self._suspects: dict[Callable[[], bool], None] = {}  # sockets used since their descriptor was looked at
        self.table: dict[type, Callable[[Any], None]] = {Report: lambda action: on_report(action.event)}

    def start(self) -> None:
        """Begin."""
        self.turns.start()

    def close(self) -> None:
        """Release everything; safe to call twice."""
        with self.lock:
            if self.turns.closed:
                return
            self.turns.closed = True
        self.turns.stop()
        with self.lock:
            self.release()

    def release(self) -> None:
        """Close the sockets, and all that waits for them."""
        for dialled in self._dialled.values():
            dialled.close()
        for each in list(self._watched):
            each.close()
        self.turns.release()

    # -- driving -----------------------------------------------------------------------------------------------------

    def perform(self, actions: Sequence[object]) -> None:
        """Carry out actions in order; the lock is held."""
        table = self.table
        for action in actions:
            table[type(action)](action)

    def do(self, actions: Sequence[object]) -> None:
        """Carry out what a call into the core has answered, and what follows from it; the lock is held."""
        self.perform(actions)
        self.perform(self._core.flush(time.monotonic()))
        self.turns.look_again_at(self._due())

    def _handle(self, ready: Ready) -> bool:
        for key, mask in ready:
            key.data(mask)
        suspects, self._suspects = self._suspects, {}
        for drain in suspects:
            if drain():
                self._suspects[drain] = None
        now = time.monotonic()
        if now >= self._core.next_timeout():
            self.perform(self._core.handle_timeout(now))
        self._retry(now)
        if now >= self._gate_at:
            self._gate_at = now + GATE_S
            self.look()
        self.perform(self._core.flush(now))
        self.turns.news = True
        return bool(self._suspects) or self._look_at <= now

    def look_at(self, at: float) -> None:
        """Look then whether there is something to do; the lock is held."""
        if at < self._look_at:
            self._look_at = at
            self.turns.look_again_at(at)

    def look(self) -> None:
        """Do the work of each second, where there are keys or a server has asked for it."""
        for sock, dialled in self._dialled.items():
            dialled.look()
            self.used(sock)

    def _retry(self, now: float) -> None:
        """Try again what sockets did not take."""
        if now >= self._look_at:
            self._look_at = math.inf
            for retry in self.retrying:
                retry()

    def _due(self) -> float:
        return min(self._core.next_timeout(), self._look_at, self._gate_at)

    def _stopped(self, reason: str) -> None:
        self.halt_event.set()

    # -- sockets -----------------------------------------------------------------------------------------------------

    def watch(
        self,
        sock: zmq.Socket[bytes],
        handle: Callable[[Frames], Sequence[object]],
        held: Callable[[], bool] = lambda: False,
        judge: Judge | None = None,
        *,
        addresses: bool = False,
    ) -> Callable[[], bool]:
        """Have every message of a socket handled; returns what is to be suspected after it was used otherwise.

        While ``held`` says so nothing is read: whoever says that suspects it afterwards. With keys ``judge`` is called
        instead of ``handle``, with the identity that a message came from; with ``addresses`` also without keys, with
        the address.
        """
        judges = judge if self.gate is not None or addresses else None

        def drain() -> bool:
            if held():
                sock.getsockopt(zmq.EVENTS)  # its descriptor says no more that there is something, until more comes
                return False
            return self._drain(sock, handle, judges)

        self._watched[sock] = drain
        self.turns.register(int(sock.getsockopt(zmq.FD)), selectors.EVENT_READ, lambda mask: self._suspect(drain))
        self._suspect(drain)
        return drain

    def dial(self, sock: zmq.Socket[bytes], endpoint: str, *, hear: bool = False) -> None:
        """Connect a socket that is watched to a server, or a witness.

        With ``hear`` refusals are told where we have no keys, too.
        """
        made = Dialled(sock, self.gate, self._on_report, ATTACH_MASTER)
        self._dialled[sock] = made
        # ZeroMQ gives up who refused, so this is before it is dialled.
        if hear and (refusals := made.listen()) is not None:
            fd = self._monitors[sock] = int(refusals.getsockopt(zmq.FD))
            self.turns.register(fd, selectors.EVENT_READ, lambda mask: self._suspect(made.look))
            self._suspect(made.look)
        made.connect(endpoint)

    def unwatch(self, sock: zmq.Socket[bytes]) -> None:
        """Close a socket."""
        if sock in self._monitors:
            self.turns.unregister(self._monitors.pop(sock))
        if sock in self._dialled:
            self._dialled.pop(sock).close()
        self.turns.unregister(int(sock.getsockopt(zmq.FD)))
        del self._watched[sock]
        sock.close()

    def used(self, sock: zmq.Socket[bytes]) -> None:
        """It was sent on, so that its descriptor may not tell what has come."""
        self._suspects[self._watched[sock]] = None

    def _suspect(self, drain: Callable[[], bool]) -> None:
        self._suspects[drain] = None

    def _drain(
        self, sock: zmq.Socket[bytes], handle: Callable[[Frames], Sequence[object]], judge: Judge | None
    ) -> bool:
        size = 0
        for _ in range(DRAIN_MAX):
            if size >= DRAIN_BYTES:
                return True
            try:
                if judge is None:
                    frames, who = sock.recv_multipart(_NOBLOCK), ""
                else:
                    received = sock.recv_multipart(_NOBLOCK, copy=False)
                    frames = [each.bytes for each in received]
                    who = address_of(received) if self.gate is None else sender_of(received)
            except zmq.Again:
                return False
            except zmq.ZMQError:
                if sock.closed:  # by what was just handled
                    return False
                raise
            size += len(frames[-1])
            try:
                self.perform(handle(frames) if judge is None else judge(who, frames))
            except ProtocolError as error:
                self.complain(error)
        return True

    def complain(self, error: ProtocolError) -> None:
        """Count what was malformed, and say so now and then."""
        self.malformed += 1
        now = time.monotonic()
        if now >= self._complain_at:
            self._complain_at = now + COMPLAIN_S
            logger.warning("dropped a malformed message (%s); %d so far", error, self.malformed)
