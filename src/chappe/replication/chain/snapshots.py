"""A state on its way out of a replica, and into one: a bounded piece at a time, so that nobody waits for a large one.

The bytes of a state are ``MARK`` and frames, each a length of 32 bits and so many bytes. The first one has what the
chain keeps itself, the others are the machine's pieces, or what its ``snapshot`` has returned. States of former
versions are one array in msgpack, and are still taken.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from typing import Final, Protocol

from crc32c import crc32c

from chappe.errors import ProtocolError

MARK: Final = b"\xc1"  # no value in msgpack begins so
_LENGTH: Final = Struct(">I")

Buffer = bytes | memoryview


class Making:
    """A state that is being made.

    Args:
        frames: Its contents, each made when it is asked for.
        chunk_bytes: So large are the chunks of which it consists in the end, but the last one.
    """

    def __init__(self, frames: Iterator[bytes], chunk_bytes: int) -> None:
        self.chunks: list[bytes] = []
        self.size = 0
        self.check = 0
        self._frames = frames
        self._chunk_bytes = chunk_bytes
        self._rest = bytearray(MARK)

    def step(self, size: int) -> bool:
        """Make about so many bytes more; returns whether the state is complete."""
        while size > 0:
            frame = next(self._frames, None)
            if frame is None:
                self._cut(1)
                return True
            self._rest += _LENGTH.pack(len(frame))
            self._rest += frame
            size -= len(frame)
            self._cut(self._chunk_bytes)
        return False

    def _cut(self, least: int) -> None:
        """Make chunks of what there is, the last one of ``least`` bytes at least."""
        rest, size = self._rest, self._chunk_bytes
        at = 0
        while len(rest) - at >= least:
            chunk = bytes(rest[at : at + size])
            self.chunks.append(chunk)
            self.check = crc32c(chunk, self.check)
            at += len(chunk)
        self.size += at
        del rest[:at]


class Frames(Protocol):
    """Whoever makes a state of frames."""

    def frame(self, frame: bytes) -> None:
        """One more. Raises ProtocolError."""
        ...

    def old(self, state: bytes) -> None:
        """A state of a former version, all of it. Raises ProtocolError."""
        ...


class Splitter:
    """Cuts chunks of any size into frames again."""

    def __init__(self, frames: Frames) -> None:
        self._frames = frames
        self._rest = bytearray()
        self._begun = False
        self._old = False

    def add(self, chunk: Buffer) -> None:
        """One more. Raises ProtocolError."""
        rest = self._rest
        rest += chunk
        if not self._begun and rest:
            self._begun = True
            self._old = rest[:1] != MARK
            if not self._old:
                del rest[:1]
        at = 0
        while not self._old and len(rest) - at >= _LENGTH.size:
            (size,) = _LENGTH.unpack_from(rest, at)
            if len(rest) - at < _LENGTH.size + size:
                break
            at += _LENGTH.size
            self._frames.frame(bytes(memoryview(rest)[at : at + size]))
            at += size
        del rest[:at]

    def finish(self) -> None:
        """There are no more. Raises ProtocolError."""
        if self._old or not self._begun:
            self._frames.old(bytes(self._rest))
        elif self._rest:
            raise ProtocolError(f"the state of a chain ends within a frame, behind {len(self._rest)} bytes of it")
