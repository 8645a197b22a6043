"""Recovery moves damaged parts of a topic's folder to the folder ``aside`` of the store instead of deleting them.

The unfinished end of a write, or a whole segment in which no block is sound. Nothing acknowledged should be there, but
if it is, somebody can look. Bounded: ``ASIDE_BYTES_MAX`` in all, ``ASIDE_S`` for each.
"""

from __future__ import annotations

import logging
import os
import time
from typing import Final

from chappe.defaults import ASIDE_BYTES_MAX, ASIDE_S, MIB
from chappe.storage.segments.files import FileOps, logged

logger: Final = logging.getLogger(__name__)
_PIECE_BYTES: Final = 4 * MIB


class Aside:
    """The folder ``path``; made when something is put there."""

    def __init__(self, ops: FileOps, path: str) -> None:
        self.path = path
        self._ops = ops

    def keep_end(self, segment: str, position: int) -> None:
        """Copy a segment's bytes from ``position`` on, durably; none if all are zeros."""
        with self._ops.opened(segment) as fd:
            size = os.fstat(fd).st_size
            pieces = range(position, size, _PIECE_BYTES)
            if not any(self._ops.read_some(fd, min(_PIECE_BYTES, size - at), at).strip(b"\0") for at in pieces):
                return
            target = self._target(segment, position)
            with self._ops.opened(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC) as out:
                for at in pieces:
                    piece = self._ops.read_some(fd, min(_PIECE_BYTES, size - at), at)
                    self._ops.write_all(out, [piece], at - position)
                self._ops.fsync(out)
            self._ops.sync_directory(self.path)
        logger.warning("%d bytes cut off %s are kept in %s", size - position, segment, target)
        self.prune()

    def take(self, segment: str) -> None:
        target = self._target(segment, 0)
        self._ops.replace(segment, target)
        self._ops.sync_directory(self.path)
        self._ops.sync_directory(os.path.dirname(segment))
        logger.warning("%s has nothing that can be used; it is kept as %s", segment, target)
        self.prune()

    def _target(self, segment: str, position: int) -> str:
        self._ops.make_directory(self.path)
        folder, name = os.path.split(segment)
        topic = os.path.basename(folder)[:100]
        return os.path.join(self.path, f"{time.time_ns() // 1000}-{topic}-{os.path.splitext(name)[0]}-{position}.bin")

    def found(self) -> list[tuple[str, int]]:
        if not os.path.isdir(self.path):
            return []
        paths = sorted(os.path.join(self.path, name) for name in os.listdir(self.path))
        return [(path, os.path.getsize(path)) for path in paths]

    def prune(self) -> None:
        """Remove entries that are too old, and the oldest beyond the bound; never raises."""
        with logged("cannot look after %s", self.path):
            kept = self.found()
            left = sum(size for _, size in kept)
            for path, size in kept[:-1] if left > ASIDE_BYTES_MAX else kept:
                old = time.time() - os.path.getmtime(path) > ASIDE_S
                if old or left > ASIDE_BYTES_MAX:
                    logger.warning("%s, which was kept aside, is removed", path)
                    self._ops.unlink(path)
                    left -= size
