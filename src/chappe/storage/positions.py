"""The committed positions of a consumer with an identity, in a directory that one consumer at a time has.

``positions.json`` is a small file (``small_files``) with ``"positions": [[topic, partition, offset]...]``.
"""

from __future__ import annotations

import os
import socket
from pathlib import Path

import msgspec

from chappe.errors import StorageFormat
from chappe.log.sources import Key
from chappe.log.traffic import where_kept
from chappe.storage.segments.files import FileOps, check_format, file_ops, hold_identity, trying
from chappe.storage.small_files import FORMAT, encode_small, load_small
from chappe.system.limits import need_descriptors

Rows = list[tuple[str, str, int]]


class _PositionsContent(msgspec.Struct):
    positions: Rows


def kept_at(directory: Path) -> bytes:
    """Return the digest by which others that use the same directory of an identity recognize it."""
    return where_kept(socket.gethostname(), os.path.realpath(directory))


class Positions:
    """The committed positions; the directory is made if it is not there.

    Raises:
        IdentityInUse: Another consumer, of this process or another, uses the directory.
        StorageFormat: The file in it does not hold positions, or is damaged.
        StorageFull, StorageError: The directory cannot be used.
        TooManyOpenFiles: This process may open no more.
    """

    def __init__(self, directory: Path) -> None:
        need_descriptors()
        self._directory = directory.absolute()
        self._path = self._directory / "positions.json"
        self.kept = kept_at(directory)
        self._ops = file_ops()
        self._lock = hold_identity(self._ops, self._directory, "consumer", "close")
        with trying(f"read the positions in {self._path}", self.close):
            self.committed = load_positions(self._ops, self._path)

    def commit(self, positions: dict[Key, int]) -> None:
        """Keep positions on disk with those of other partitions. Raises StorageFull, StorageError: former ones stay."""
        following = {**self.committed, **positions}
        rows = [(topic, partition, offset) for (topic, partition), offset in sorted(following.items())]
        with trying(f"commit positions to {self._path}"):
            self._ops.replace_file(str(self._path), [encode_small({"positions": rows})])
        self.committed = following

    def close(self) -> None:
        self._lock.close()


def load_positions(ops: FileOps, path: Path) -> dict[Key, int]:
    """The positions in a file; none if it does not exist. Raises StorageFormat, OSError."""
    try:
        found = load_small(ops, path)
        if found is None:
            return {}
        check_format(found.content, FORMAT, path)
        if not found.checked:
            raise ValueError("its checksum is wrong")
        rows = found.fields(_PositionsContent).positions
    except ValueError as error:
        raise StorageFormat(
            f"{path} does not hold a consumer's positions, or is damaged ({error}): restore it from a "
            "backup, or remove it to start anew, where the consumer's reset says"
        ) from None
    return {(topic, partition): offset for topic, partition, offset in rows}
