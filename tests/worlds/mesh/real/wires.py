"""Connections that carry bytes: what is written on them as frames, and hosts of the simulator at their ends.

Before the frames of a connection with certificates there are records in which they are said; see ``certificates``.
"""

from __future__ import annotations

from typing import Any

from tests.worlds.certificates import ALERT, HEAD_BYTES, SAID
from tests.worlds.mesh.base import WiredHost
from tests.worlds.mesh.originals import OriginalHost
from tests.worlds.mesh.rogues import RogueHost

from chappe.sim.streams import PREFIX, StreamSide


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


class _OnBytes(WiredHost):
    """A host of frames on a connection of bytes."""

    def __init__(self, world: Any, *arguments: Any) -> None:
        self._came: dict[StreamSide, Frames] = {}
        super().__init__(world, *arguments)

    def take(self, conn: int, bytes_max: int) -> list[bytes]:
        """What is to be written."""
        return [bytes(PREFIX) + each for each in super().take(conn, bytes_max)]

    def read(self, side: StreamSide, bodies: list[bytes]) -> None:
        """Bytes came."""
        frames = self._came.setdefault(side, Frames()).cut(bodies)
        super().read(side, [each[PREFIX:] for each in frames])


class RealOriginal(_OnBytes, OriginalHost):
    """An original among users' endpoints."""


class RealRogue(_OnBytes, RogueHost):
    """A rogue among users' endpoints."""
