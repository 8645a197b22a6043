"""Makes the state of a replica, and restores it, in bounded pieces, so that nothing waits for a large one.

A state is ``MARK`` and frames, each a 32-bit length and that many bytes. The first frame has the chain's own
data, the others are the machine's pieces, or the result of its ``snapshot``.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from typing import Final, Protocol

from crc32c import crc32c

from chappe.errors import ProtocolError

MARK: Final = b"\xc1"  # first byte of a state: the version of its form
_LENGTH: Final = Struct(">I")

Buffer = bytes | memoryview


class Making:
    """A snapshot in the making: lazily made ``frames`` become chunks of ``chunk_bytes``, but for the last one."""

    def __init__(self, frames: Iterator[bytes], chunk_bytes: int) -> None:
        self.chunks: list[bytes] = []
        self.size = 0
        self.check = 0
        self._frames = frames
        self._chunk_bytes = chunk_bytes
        self._rest = bytearray(MARK)

    def step(self, size: int) -> bool:
        """Make about ``size`` more bytes; return True once the state is complete."""
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
        """Cut the pending bytes into chunks while at least ``least`` bytes remain."""
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
    def frame(self, frame: bytes) -> None:
        """Take the next frame. Raises ProtocolError."""
        ...


class Splitter:
    """Splits chunks of any size into frames."""

    def __init__(self, frames: Frames) -> None:
        self._frames = frames
        self._rest = bytearray()
        self._begun = False

    def add(self, chunk: Buffer) -> None:
        """Take the next chunk. Raises ProtocolError."""
        rest = self._rest
        rest += chunk
        if not self._begun and rest:
            self._begun = True
            if rest[:1] != MARK:
                raise ProtocolError("the state of a chain has another form, or is damaged")
            del rest[:1]
        at = 0
        while len(rest) - at >= _LENGTH.size:
            (size,) = _LENGTH.unpack_from(rest, at)
            if len(rest) - at < _LENGTH.size + size:
                break
            at += _LENGTH.size
            self._frames.frame(bytes(memoryview(rest)[at : at + size]))
            at += size
        del rest[:at]

    def finish(self) -> None:
        """Check that the last frame was complete. Raises ProtocolError."""
        if self._rest:
            raise ProtocolError(f"the state of a chain ends within a frame, behind {len(self._rest)} bytes of it")
