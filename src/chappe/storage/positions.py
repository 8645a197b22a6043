"""The committed positions of a consumer with an identity, in a directory that one consumer at a time has.

``positions.json`` is ``{"format": 1, "positions": [[topic, partition, offset]...]}``; the list alone is read, too.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

import msgspec

from chappe.errors import StorageFormat
from chappe.log.sources import Key
from chappe.storage.segments.files import FileOps, check_format, hold_identity, trying
from chappe.system.limits import need_descriptors

FORMAT: Final = 1


class Positions:
    """What is committed; the directory is made if it is not there.

    Raises:
        IdentityInUse: Another consumer, of this process or another, uses the directory.
        StorageFormat: The file in it does not hold positions.
        StorageFull, StorageError: The directory cannot be used.
        TooManyOpenFiles: This process may open no more.
    """

    def __init__(self, directory: Path) -> None:
        need_descriptors()
        self._directory = directory.absolute()
        self._path = self._directory / "positions.json"
        self._ops = FileOps()
        self._lock = hold_identity(self._ops, self._directory, "consumer", "close")
        with trying(f"read the positions in {self._path}", self.close):
            self.committed = self._load()

    def commit(self, positions: dict[Key, int]) -> None:
        """Keep positions, and those kept before of other partitions; returns when they are on disk.

        Raises StorageFull, StorageError: what was committed before still is.
        """
        following = {**self.committed, **positions}
        rows = [(topic, partition, offset) for (topic, partition), offset in sorted(following.items())]
        with trying(f"commit positions to {self._path}"):
            # The library's own JSON: it keeps topics of original producers that are not UTF-8.
            content = {"format": FORMAT, "positions": rows}
            self._ops.replace_file(str(self._path), [json.dumps(content).encode()])
        self.committed = following

    def close(self) -> None:
        """Let others have the directory."""
        self._lock.close()

    def _load(self) -> dict[Key, int]:
        try:
            raw = self._path.read_bytes()
        except FileNotFoundError:
            return {}
        try:
            found = json.loads(raw)
            if isinstance(found, dict):
                check_format(found, FORMAT, self._path)
                found = found.get("positions")
            rows = msgspec.convert(found, type=list[tuple[str, str, int]])
        except (msgspec.ValidationError, ValueError) as error:
            raise StorageFormat(
                f"{self._path} does not hold a consumer's positions ({error}): remove it to start anew"
            ) from None
        return {(topic, partition): offset for topic, partition, offset in rows}
