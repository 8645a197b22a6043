"""``SchemaDatabase``: the schemas of a registry, in SQLite. One process uses it at a time."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from chappe.errors import StorageLocked
from chappe.storage.segments.files import FileOps, file_ops, trying
from chappe.storage.small_database import SmallDatabase
from chappe.system.disk import FileLock

Row = tuple[Any, ...]


class SchemaDatabase(SmallDatabase):
    """Schemas with their ids, which are never given again, and the versions of subjects.

    Raises:
        StorageLocked: Another process uses the directory.
        StorageFormat: It was written by a newer chappe.
        StorageError: It cannot be read or written.
    """

    NAME = "schemas.sqlite"
    FORMAT = 1
    SCHEMA = """
CREATE TABLE schemas (id INTEGER PRIMARY KEY AUTOINCREMENT, kind TEXT, text TEXT, digest BLOB UNIQUE);
CREATE TABLE versions (subject TEXT, version INTEGER, id INTEGER, deleted INTEGER,
                       PRIMARY KEY (subject, version)) WITHOUT ROWID;
CREATE INDEX uses ON versions (id);
CREATE TABLE levels (subject TEXT PRIMARY KEY, level TEXT) WITHOUT ROWID;
"""

    def __init__(self, directory: str | Path, ops: FileOps | None = None) -> None:
        super().__init__(os.path.abspath(directory), ops or file_ops())
        with trying(f"open the schemas in {self._folder}", self.close):
            self._ops.make_directory(self._folder)
            try:
                self._lock = FileLock(os.path.join(self._folder, "lock"))
            except BlockingIOError:
                raise StorageLocked(
                    f"another process serves the schemas in {self._folder}: ask that one, or name another directory"
                ) from None
            self.open()

    def close(self) -> None:
        super().close()
        if hasattr(self, "_lock"):
            self._lock.close()

    def rows(self, statement: str, *values: object) -> list[Row]:
        return self._query(statement, *values)

    def add(self, subject: str, version: int, kind: str, text: str, digest: bytes) -> None:
        """Add a version, and its schema with the next id if that is new: both or neither."""
        self._execute(
            f"keep a schema of {subject}",
            [
                (
                    "INSERT INTO schemas (kind, text, digest) SELECT ?, ?, ? "
                    "WHERE NOT EXISTS (SELECT 1 FROM schemas WHERE digest = ?)",
                    (kind, text, digest, digest),
                ),
                (
                    "INSERT OR REPLACE INTO versions SELECT ?, ?, id, 0 FROM schemas WHERE digest = ?",
                    (subject, version, digest),
                ),
            ],
        )

    def delete(self, subject: str, versions: list[int], *, permanent: bool) -> None:
        change = "DELETE FROM versions" if permanent else "UPDATE versions SET deleted = 1"
        self._execute(
            f"delete schemas of {subject}",
            [(f"{change} WHERE subject = ? AND version = ?", (subject, each)) for each in versions],
        )

    def set_level(self, subject: str, level: str | None) -> None:
        self._execute(
            f"keep the compatibility of {subject or 'all subjects'}",
            [("DELETE FROM levels WHERE subject = ?", (subject,))]
            if level is None
            else [("INSERT OR REPLACE INTO levels VALUES (?, ?)", (subject, level))],
        )
