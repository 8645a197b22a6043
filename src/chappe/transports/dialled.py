"""The connections that one socket dials: with keys one for each endpoint, and a refused one is tried again.

ZeroMQ dials again where nobody answers, but gives up where it was refused: with another key, by permissions that do not
know us yet, by a socket without keys. So refusals are heard from the socket's monitor, told once, and tried again.
"""

from __future__ import annotations

import logging
import math
import struct
from collections.abc import Callable
from typing import Final

import zmq

from chappe.data.topic import identity_of
from chappe.errors import UsageError
from chappe.log.events import ConnectionRefused
from chappe.system import time
from chappe.transports import resolving
from chappe.transports.gate import Gate, monitor_of

logger = logging.getLogger(__name__)

AGAIN_S: Final = 2.0  # after a refusal
TELL_S: Final = 30.0  # the same refusal is told at most so often
_HEARD: Final = (
    zmq.EVENT_HANDSHAKE_FAILED_AUTH | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
)
_EVENT: Final = struct.Struct("=hi")  # zmq_socket_monitor: which event, and a number; pyzmq's parser imports asyncio
_WHY: Final[dict[int, str]] = {
    zmq.EVENT_HANDSHAKE_FAILED_AUTH: "it refused us: its permissions do not have {own}, or it expired or was revoked",
    zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL: "it ended the handshake: it has no keys, or another key than {name} has here",
}
_KEYLESS: Final = (
    "it asks for keys, and this program has none: give it an identity, with --as DIRECTORY/NAME, CHAPPE_IDENTITY or "
    "security=Keys(...)"
)
# A server that has keys reads our greeting first, or we read its: then it hangs up before ZeroMQ tells us why.
_HUNG_UP: Final = f"it ends every handshake, most likely as {_KEYLESS}"
HUNG_UP_MIN: Final = 3  # handshakes that ended so: a server that stops may end one
_KEYED: Final = "it has no keys, and this program has some: give both ends an identity"
_STRANGE: Final = "the handshake failed: does another program listen there?"


class Dialled:
    """The connections of one socket to peers with the right ``verb``; ``report`` is told of refusals."""

    def __init__(
        self, sock: zmq.Socket[bytes], gate: Gate | None, report: Callable[[object], None], verb: str = ""
    ) -> None:
        self._sock = sock
        self._gate = gate
        self._report = report
        self._verb = verb
        self._wanted: dict[str, str] = {}  # endpoint: what is connected to, or nothing
        self._places: dict[str, list[str]] = {}  # connected addresses by endpoint
        self._again_at: dict[str, float] = {}  # what is connected to: when it is dialled again
        self._told_at: dict[tuple[str, str], float] = {}
        self._hung_up: dict[str, int] = {}  # without keys, by address: handshakes in a row that ended without a word
        self._changes = 0 if gate is None else gate.changes
        self._monitor = None if gate is None else monitor_of(sock, _HEARD)

    def connect(self, endpoint: str) -> None:
        """Dial; raises ZMQError for an invalid address. A forbidden peer is dialled as soon as it is allowed."""
        if self._gate is None:
            where, name = identity_of(endpoint)
            if name:
                self._tell(where, f"it has keys: give us an identity as well, as it has {name}")
                return
            self._places[endpoint] = resolving.connect(self._sock, where)
            return
        self._wanted[endpoint] = ""
        self._dial(endpoint)

    def disconnect(self, endpoint: str) -> None:
        """Dial it no more; raises ZMQError if it never was connected."""
        if self._gate is None:
            for each in self._places.pop(endpoint, [identity_of(endpoint)[0]]):
                self._sock.disconnect(each)
            return
        where = self._wanted.pop(endpoint, "")
        if where:
            self._again_at.pop(where, None)
            for each in self._places.pop(where, [where]):
                self._sock.disconnect(each)

    def listen(self) -> zmq.Socket[bytes] | None:
        """Report refusals without keys, too: return the socket to watch, for ``look``. None where there is a gate."""
        if self._gate is not None:
            return None
        self._monitor = monitor_of(self._sock, _HEARD | zmq.EVENT_HANDSHAKE_SUCCEEDED)
        return self._monitor

    def look(self) -> bool:
        """Do the work of each second; return whether anything was refused since the last time."""
        refused = self._hear()
        if self._gate is None:
            return refused
        now = time.monotonic()
        if self._gate.changes != self._changes:
            self._changes = self._gate.changes
            for endpoint, where in list(self._wanted.items()):
                if where:
                    self._end(where)
                self._dial(endpoint)
        for endpoint, where in list(self._wanted.items()):
            if where and self._again_at.get(where, math.inf) <= now:
                self._end(where)
                self._dial(endpoint)
        return refused

    def close(self) -> None:
        if self._monitor is not None:
            self._sock.disable_monitor()
            self._monitor.close()
            self._monitor = None

    def _dial(self, endpoint: str) -> None:
        assert self._gate is not None
        self._wanted[endpoint] = ""
        try:
            where = self._gate.dial(self._sock, endpoint, self._verb)
            for other, at in self._wanted.items():
                if at == where:  # of who was there before, with another key
                    self._end(where)
                    self._wanted[other] = ""
            self._places[where] = resolving.connect(self._sock, where)
        except UsageError as error:
            self._tell(identity_of(endpoint)[0], str(error))
            return
        self._wanted[endpoint] = where

    def _end(self, where: str) -> None:
        self._again_at.pop(where, None)
        for each in self._places.pop(where, [where]):
            try:
                self._sock.disconnect(each)
            except zmq.ZMQError:
                pass  # ZeroMQ gave it up

    def _hear(self) -> bool:
        refused = False
        while self._monitor is not None and self._monitor.poll(0):
            what, endpoint = self._monitor.recv_multipart()
            event, number = _EVENT.unpack(what)
            at = endpoint.decode()
            if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                self._hung_up.pop(at, None)
            if not event & _HEARD:
                continue
            refused = True
            if self._gate is None and event == zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL:
                self._hung_up[at] = self._hung_up.get(at, 0) + 1
                if self._hung_up[at] < HUNG_UP_MIN:
                    continue
            where = next((each for each, places in self._places.items() if at in places), at)
            name = next((identity_of(each)[1] for each, to in self._wanted.items() if to == where), "")
            self._again_at.setdefault(where, time.monotonic() + AGAIN_S)
            self._tell(where, self._why(event, number, name))
        return refused

    def _why(self, event: int, number: int, name: str) -> str:
        if event == zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL:
            if number != zmq.PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH:
                return _STRANGE
            return _KEYLESS if self._gate is None else _KEYED
        if self._gate is None:
            return _HUNG_UP
        return _WHY[event].format(own="" if self._gate is None else self._gate.name, name=name)

    def _tell(self, where: str, why: str) -> None:
        now = time.monotonic()
        if now >= self._told_at.get((where, why), -math.inf):
            if len(self._told_at) >= 1_000:
                self._told_at.clear()
            self._told_at[where, why] = now + TELL_S
            self._report(ConnectionRefused(where, why))
