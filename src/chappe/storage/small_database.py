"""``SmallDatabase``: what a store remembers beside its records, in SQLite; made when it is first written to."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

from chappe.errors import StorageError, StorageFormat, StorageFull
from chappe.storage.segments.files import FileOps, storage_error
from chappe.system.disk import make_private
from chappe.system.forking import own

Statement = tuple[str, Sequence[object]]


class SmallDatabase:
    """The database in a folder, which is made with it. Every method that writes is durable when it returns."""

    NAME: ClassVar[str]
    FORMAT: ClassVar[int]
    SCHEMA: ClassVar[str]

    def __init__(self, folder: str, ops: FileOps) -> None:
        own(self, keep=("_database",))
        self._folder = folder
        self._ops = ops
        self._database: sqlite3.Connection | None = None

    def close(self) -> None:
        if self._database is not None:
            self._database.close()
            self._database = None

    def open(self) -> sqlite3.Connection:
        """Open it, and make it if it is not there; its folder is."""
        if self._database is not None:
            return self._database
        path = os.path.join(self._folder, self.NAME)
        try:
            make_private(path)
            database = sqlite3.connect(path, timeout=0.0, isolation_level=None, check_same_thread=False)
            self._database = database
            database.execute("PRAGMA journal_mode = WAL")
            database.execute("PRAGMA synchronous = FULL")
            (format_,) = database.execute("PRAGMA user_version").fetchone()
            if format_ > self.FORMAT:
                raise StorageFormat(
                    f"{path} has format {format_}, written by a newer chappe; this one knows {self.FORMAT}"
                )
            if format_ < self.FORMAT:
                database.executescript(f"BEGIN; {self.SCHEMA} PRAGMA user_version = {self.FORMAT}; COMMIT;")
                self._ops.sync_directory(self._folder)
        except OSError as error:
            self.close()
            raise storage_error(error, f"open {path}") from error
        except sqlite3.Error as error:
            self.close()
            raise _database_error(error, f"open {path}") from error
        return database

    def _query(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        try:
            return self.open().execute(statement, values).fetchall()
        except sqlite3.Error as error:
            raise _database_error(error, f"read {os.path.join(self._folder, self.NAME)}") from error

    def _execute(self, doing: str, statements: Iterable[Statement]) -> None:
        """Run statements in one transaction, durable when this returns."""
        try:
            self._ops.make_directory(self._folder)
            with self.open() as database:  # which commits, or rolls back
                database.execute("BEGIN IMMEDIATE")
                for statement, values in statements:
                    database.execute(statement, values)
        except OSError as error:
            raise storage_error(error, doing) from error
        except sqlite3.Error as error:
            raise _database_error(error, doing) from error


def _database_error(error: sqlite3.Error, doing: str) -> StorageError:
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF  # the rest says more than is asked here
    if code == sqlite3.SQLITE_FULL:
        return StorageFull(f"cannot {doing}: the disk is full; free some space and run again")
    if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return StorageError(
            f"cannot {doing}: it is damaged ({error}); restore it from a copy, or move it away and lose its content"
        )
    return StorageError(f"cannot {doing}: {error}; check the disk and its permissions")
