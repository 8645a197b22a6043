"""Newer permissions travel: towers and forwarders say which version they have, and members bring or fetch newer ones.

Who is in the middle says his version every two seconds (``V``), and the file itself (``P``) when it changes or somebody
wants it. A member that has a newer one sends it there, one that has an older one asks for it with an empty ``P``. So
whatever is lost comes again, nobody has to be believed, and a file goes to each member once. Nothing of this is sent
where there are no keys.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from typing import Final

from chappe.permissions.text import FILE_BYTES_MAX
from chappe.system import time
from chappe.transports.gate import Gate

VERSION: Final = b"V"
PERMISSIONS: Final = b"P"
KINDS: Final = (VERSION, PERMISSIONS)
SAY_S: Final = 2.0  # between two words on the version
SEND_S: Final = 0.9  # between two of the same file, at least
FRAME_BYTES_MAX: Final = FILE_BYTES_MAX + 1_024
_NUMBER: Final = struct.Struct(">Q")

Send = Callable[[list[bytes]], None]


class Member:
    """One that hears towers or forwarders, and sends to them."""

    def __init__(self, gate: Gate, send: Send) -> None:
        self._gate = gate
        self._send = send
        self._sent_at = -math.inf

    def hear(self, frames: list[bytes]) -> None:
        """They said something of these kinds."""
        if len(frames) != 2:
            return
        if frames[0] == PERMISSIONS:
            if frames[1]:  # a forwarder hears what others ask its peers
                self._gate.offer(frames[1])
            return
        version, now = _version(frames[1]), time.monotonic()
        if version != self._gate.version and now >= self._sent_at + SEND_S:
            self._sent_at = now
            self._send([PERMISSIONS, self._gate.raw if version < self._gate.version else b""])


class Middle:
    """A tower or forwarder: what members bring it hands on to all of them."""

    def __init__(self, gate: Gate, send: Send) -> None:
        self._gate = gate
        self._send = send
        self._wanted = True
        self._sent = -1  # the version that was sent last
        self._sent_at = -math.inf
        self._say_at = -math.inf

    def hear(self, frames: list[bytes]) -> None:
        """A member brings permissions, or asks for them."""
        if len(frames) == 2 and frames[0] == PERMISSIONS:
            if frames[1]:
                self._gate.offer(frames[1])
            else:
                self._wanted = True
            self.look()

    def joined(self) -> None:
        """A member is new."""
        self._wanted = True
        self.look()

    def look(self) -> None:
        """Say what is due; to be called every second."""
        now = time.monotonic()
        news = self._gate.version != self._sent
        if news or (self._wanted and now >= self._sent_at + SEND_S):
            self._wanted, self._sent, self._sent_at = False, self._gate.version, now
            self._send([PERMISSIONS, self._gate.raw])
        if news or now >= self._say_at:
            self._say_at = now + SAY_S
            self._send([VERSION, _NUMBER.pack(self._gate.version)])


def _version(raw: bytes) -> int:
    return int.from_bytes(raw[: _NUMBER.size])
