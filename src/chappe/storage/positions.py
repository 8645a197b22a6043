"""The committed positions of a consumer with an identity, in a directory that one consumer at a time has."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec

from chappe.errors import IdentityInUse, StorageError, StorageFormat
from chappe.log.sources import Key
from chappe.storage.segments.files import FileOps, storage_error, trying
from chappe.system.disk import FileLock
from chappe.system.limits import need_descriptors


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
        try:
            self._ops.make_directories(str(self._directory))
            self._lock = FileLock(self._directory / "lock")
        except BlockingIOError:
            raise IdentityInUse(
                f"another consumer uses the identity in {directory}: close it, or choose another identity"
            ) from None
        except OSError as error:
            raise storage_error(error, f"use {directory} for a consumer's positions") from None
        try:
            self.committed = self._load()
        except BaseException:
            self.close()
            raise

    def commit(self, positions: dict[Key, int]) -> None:
        """Keep positions, and those kept before of other partitions; returns when they are on disk.

        Raises StorageFull, StorageError: what was committed before still is.
        """
        following = {**self.committed, **positions}
        rows = [(topic, partition, offset) for (topic, partition), offset in sorted(following.items())]
        with trying(f"commit positions to {self._path}"):
            # The library's own JSON: it keeps topics of original producers that are not UTF-8.
            self._ops.replace_file(str(self._path), [json.dumps(rows).encode()])
        self.committed = following

    def close(self) -> None:
        """Let others have the directory."""
        self._lock.close()

    def _load(self) -> dict[Key, int]:
        try:
            raw = self._path.read_bytes()
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise StorageError(f"cannot read the positions in {self._path}: {error.strerror}") from None
        try:
            rows = msgspec.convert(json.loads(raw), type=list[tuple[str, str, int]])
        except (msgspec.ValidationError, ValueError) as error:
            raise StorageFormat(
                f"{self._path} does not hold a consumer's positions ({error}): remove it to start anew"
            ) from None
        return {(topic, partition): offset for topic, partition, offset in rows}
