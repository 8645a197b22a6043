"""Connections that carry bytes: what is written on them, as frames.

Before the frames of a connection with certificates there are records in which they are said; see ``certificates``.
"""

from __future__ import annotations

from typing import Any

from tests.worlds.certificates import ALERT, HEAD_BYTES, SAID

from chappe.sim.streams import PREFIX


class Frames:
    """Cuts bytes into frames, with their lengths."""

    def __init__(self) -> None:
        self._rest = b""

    def cut(self, pieces: list[bytes]) -> list[bytes]:
        """Take bytes; return the frames that are complete now."""
        data, at = b"".join([self._rest, *pieces]), 0
        found = []
        while len(data) > at + PREFIX:
            if data.startswith((SAID, ALERT), at):  # no frame is so large
                end = at + HEAD_BYTES + int.from_bytes(data[at + PREFIX - 1 : at + HEAD_BYTES])
            else:
                end = at + PREFIX + int.from_bytes(data[at : at + PREFIX])
            if len(data) < end:
                break
            found += [] if data[at] else [data[at:end]]
            at = end
        self._rest = data[at:]
        return found


class Written:
    """One end of a connection as checkers see it: with the life that had it, and frames."""

    other: Written

    def __init__(self, host: Any) -> None:
        self.host = host
        self.frames = Frames()
