"""A store's entries in an SQLite file, with the original's tables: a file written by either opens in the other.

``meta(key, value)`` says which Broker wrote the file; ``store(key, value, expiry)`` has keys and values in the binary
form and the expiry in nanoseconds since 1970, or NULL. chappe adds ``chappe_writers``, which the original ignores:
which writes of which clone are contained. If an original changes the file in between, those rows stay true.

One commit is one transaction. By default it is synced (``synchronous`` FULL, journal WAL), so what is acknowledged
survives a loss of power; the original's own default syncs too, once for each put.

The file is locked while it is open, since two masters of one file would not see each other's changes.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterable, Sequence
from pathlib import Path
from struct import Struct
from typing import Any, Final, Literal

from chappe.data.binary import decode
from chappe.errors import Damaged, InvalidData, StorageError, StorageFormat, StorageFull, StorageLocked, UsageError
from chappe.kv.backend import ClearRows, EraseRow, ForgetWriter, Loaded, Operation, PutRow, WriterRow
from chappe.kv.entity import Entity
from chappe.system.forking import own

Synchronous = Literal["OFF", "NORMAL", "FULL", "EXTRA"]
JournalMode = Literal["DELETE", "WAL"]
FailureMode = Literal["FAIL", "DELETE"]

BROKER_VERSION: Final = "2.8.0"  # whose tables these are
FORMAT: Final = 1  # of chappe's own table
_SCHEMA: Final = (
    "create table if not exists meta(key text primary key, value text)",
    "create table if not exists store(key blob primary key, value blob, expiry integer)",
    "create table if not exists chappe_writers(entity blob primary key, applied integer, outcomes blob, heard integer)",
)
_OUTCOME: Final = Struct(">QB")
ENTITY: Final = Struct(">16sQ")
_FULL: Final = (sqlite3.SQLITE_FULL,)
_LOCKED: Final = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
_CORRUPT: Final = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


class SqliteBackend:
    """See the module.

    Args:
        path: Of the file; its folder is made if it is not there.
        synchronous: How far a commit is synced: OFF and NORMAL may lose the latest commits with the power.
        journal_mode: WAL commits faster; DELETE leaves one single file.
        failure_mode: With DELETE a file that cannot be opened as a database is deleted, and begun anew.
        integrity_check: Read all of the file first, and refuse it if anything is wrong.

    Raises:
        UsageError: An option that does not exist.
        StorageLocked: Another process has the file open.
        StorageFormat: It was written by a newer chappe, or has other tables.
        Damaged: It is no database, or a damaged one.
        StorageError: Anything else that keeps it from being opened.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        synchronous: Synchronous = "FULL",
        journal_mode: JournalMode = "WAL",
        failure_mode: FailureMode = "FAIL",
        integrity_check: bool = False,
    ) -> None:
        own(self, keep=("_database",))
        _choose("synchronous", synchronous, ("OFF", "NORMAL", "FULL", "EXTRA"))
        _choose("journal_mode", journal_mode, ("DELETE", "WAL"))
        _choose("failure_mode", failure_mode, ("FAIL", "DELETE"))
        self.path = Path(path)
        self._pragmas = (f"pragma synchronous={synchronous}", f"pragma journal_mode={journal_mode}")
        self._integrity_check = integrity_check
        self._database: sqlite3.Connection | None = None
        try:
            self._open()
        except Damaged:
            if failure_mode != "DELETE" or not self.path.is_file():
                raise
            self._delete()
            self._open()

    # -- the backend port -----------------------------------------------------------------------------------------

    def load(self) -> Loaded:
        """All of it; raises Damaged for bytes that are no values, StorageError if it cannot be read."""
        entries = []
        for key, value, expiry in self._read("select key, value, expiry from store"):
            try:
                entries.append((decode(key), decode(value), expiry))
            except InvalidData as problem:
                raise Damaged(f"{self.path} has a malformed entry: {problem}; restore it from a copy") from None
        writers = []
        for entity, applied, outcomes, heard in self._read("select * from chappe_writers"):
            row = Entity(*ENTITY.unpack(entity)), applied, decode_outcomes(outcomes), heard
            writers.append(WriterRow(*row))
        return Loaded(tuple(entries), tuple(writers))

    def commit(self, operations: Sequence[Operation]) -> None:
        """Do all in one transaction; raises StorageError, StorageFull for a full disk, and then nothing was done."""
        try:
            with self._connection() as database:  # which commits, or rolls back
                database.execute("begin immediate")
                for statement, rows in _statements(operations):
                    database.executemany(statement, rows)
        except sqlite3.Error as error:
            raise self._problem(error, "write to") from error

    def close(self) -> None:
        """Let go of the file; may be called again."""
        if self._database is not None:
            self._database.close()
            self._database = None

    # -- inside ---------------------------------------------------------------------------------------------------

    def _connection(self) -> sqlite3.Connection:
        if self._database is None:
            raise StorageError(f"{self.path} is closed")
        return self._database

    def _open(self) -> None:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            database = sqlite3.connect(self.path, timeout=0.0, isolation_level=None, check_same_thread=False)
        except (OSError, sqlite3.Error) as error:
            raise self._problem(error, "open") from error
        self._database = database
        try:
            database.execute("pragma locking_mode=exclusive")
            for pragma in self._pragmas:
                database.execute(pragma).fetchall()
            self._check()
            database.execute("begin exclusive")
            for statement in _SCHEMA:
                database.execute(statement)
            database.execute("replace into meta(key, value) values('broker_version', ?)", (BROKER_VERSION,))
            database.execute("replace into meta(key, value) values('chappe_format', ?)", (str(FORMAT),))
            database.execute("commit")
        except sqlite3.Error as error:
            self.close()
            raise self._problem(error, "open") from error
        except StorageError:
            self.close()
            raise

    def _check(self) -> None:
        """Refuse what this version does not know; nothing has been written yet."""
        columns = [row[1] for row in self._read("pragma table_info(store)")]
        if columns and columns != ["key", "value", "expiry"]:
            raise StorageFormat(f"{self.path} has a table 'store' that is not a data store's: {', '.join(columns)}")
        if columns and self._read("select 1 from sqlite_master where name = 'meta'"):
            found = self._read("select value from meta where key = 'chappe_format'")
            if found and int(found[0][0]) > FORMAT:
                raise StorageFormat(
                    f"{self.path} has format {found[0][0]}, written by a newer chappe; this one knows {FORMAT}"
                )
        if self._integrity_check:
            messages = [row[0] for row in self._read("pragma integrity_check")]
            if messages != ["ok"]:
                raise Damaged(f"{self.path} fails its integrity check: {messages[0]}; restore it from a copy")

    def _delete(self) -> None:
        for suffix in ("", "-wal", "-shm", "-journal"):
            Path(f"{self.path}{suffix}").unlink(missing_ok=True)

    def _read(self, statement: str) -> list[tuple[Any, ...]]:
        try:
            return self._connection().execute(statement).fetchall()
        except sqlite3.Error as error:
            raise self._problem(error, "read") from error

    def _problem(self, error: Exception, doing: str) -> StorageError:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        doing = f"{doing} {self.path}"
        return problem(error, doing, full=code in _FULL, locked=code in _LOCKED, corrupt=code in _CORRUPT)


def problem(error: Exception, doing: str, *, full: bool, locked: bool, corrupt: bool) -> StorageError:
    """What a user is told of an error; ``doing`` completes the words "cannot ..."."""
    if full:
        return StorageFull(f"cannot {doing}: the disk is full; free some space")
    if locked:
        return StorageLocked(f"cannot {doing}: another process has it open; stop that one first")
    if corrupt:
        return Damaged(f"cannot {doing}: {error}; restore it from a copy, or choose another path")
    return StorageError(f"cannot {doing}: {error}; check the path and its permissions")


def encode_outcomes(row: WriterRow) -> bytes:
    """What became of a clone's writes."""
    return b"".join([_OUTCOME.pack(*outcome) for outcome in row.outcomes])


def decode_outcomes(raw: bytes) -> tuple[tuple[int, int], ...]:
    """The same again."""
    return tuple(_OUTCOME.iter_unpack(raw))


def _choose(option: str, value: str, values: tuple[str, ...]) -> None:
    if value not in values:
        raise UsageError(f"{option} is one of {', '.join(values)}, not {value!r}")


def _statements(operations: Iterable[Operation]) -> list[tuple[str, list[tuple[Any, ...]]]]:
    """Operations as statements with the rows of neighbours of one kind together."""
    found: list[tuple[str, list[tuple[Any, ...]]]] = []
    row: tuple[Any, ...]
    for each in operations:
        if isinstance(each, PutRow):
            statement = "replace into store(key, value, expiry) values(?, ?, ?)"
            row = (each.key, each.value, each.expires_ns)
        elif isinstance(each, EraseRow):
            statement, row = "delete from store where key = ?", (each.key,)
        elif isinstance(each, ClearRows):
            statement, row = "delete from store", ()
        elif isinstance(each, WriterRow):
            statement = "replace into chappe_writers values(?, ?, ?, ?)"
            row = (ENTITY.pack(*each.entity), each.applied, encode_outcomes(each), each.heard_ns)
        else:
            assert isinstance(each, ForgetWriter)
            statement, row = "delete from chappe_writers where entity = ?", (ENTITY.pack(*each.entity),)
        if not found or found[-1][0] != statement:
            found.append((statement, []))
        found[-1][1].append(row)
    return found
