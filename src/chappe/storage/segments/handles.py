"""Files open for reading, and indexes mapped: the ones used last, a bounded number of them."""

from __future__ import annotations

import mmap
import os
from collections import OrderedDict
from typing import Final

from chappe.errors import Damaged
from chappe.storage.segments.directory import index_path, segment_path
from chappe.storage.segments.files import FileOps, descriptors
from chappe.storage.segments.index import Index
from chappe.storage.segments.recovery import load_index

OPEN_MAX: Final = 256  # segments; each needs one descriptor and, if sealed, one mapping


class _Handle:
    __slots__ = ("fd", "index")

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.index: Index | None = None


class Handles:
    """Segments open for reading; belongs to the thread that reads."""

    def __init__(self, ops: FileOps, store_id: str) -> None:
        self._ops = ops
        self._store_id = store_id
        self._open: OrderedDict[tuple[str, int], _Handle] = OrderedDict()
        self._open_max = descriptors(OPEN_MAX)

    def fd(self, folder: str, number: int) -> int:
        """The open file of a segment; raises OSError."""
        return self._handle(folder, number).fd

    def index(self, folder: str, topic: str, number: int) -> Index:
        """The index of a sealed segment; raises OSError or Damaged."""
        handle = self._handle(folder, number)
        if handle.index is None:
            try:
                handle.index = self._map(folder, number)
            except (OSError, Damaged):
                handle.index = load_index(self._ops, folder, topic, self._store_id, number)
        return handle.index

    def forget(self, folder: str, number: int) -> None:
        """Close a segment."""
        handle = self._open.pop((folder, number), None)
        if handle is not None:
            self._ops.close(handle.fd)

    def close(self) -> None:
        """Close all."""
        for folder, number in list(self._open):
            self.forget(folder, number)

    def _handle(self, folder: str, number: int) -> _Handle:
        key = folder, number
        handle = self._open.get(key)
        if handle is None:
            while len(self._open) >= self._open_max:
                self.forget(*next(iter(self._open)))
            handle = self._open[key] = _Handle(self._ops.open(segment_path(folder, number), os.O_RDONLY))
        else:
            self._open.move_to_end(key)
        return handle

    def _map(self, folder: str, number: int) -> Index:
        fd = self._ops.open(index_path(folder, number), os.O_RDONLY)
        try:
            mapped = mmap.mmap(fd, 0, access=mmap.ACCESS_READ)
        except ValueError:  # an empty file
            return Index(b"", number)
        finally:
            self._ops.close(fd)
        return Index(mapped, number, check=False)  # checked when the store was opened, or just written
