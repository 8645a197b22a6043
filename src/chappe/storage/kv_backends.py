"""A data store's entries on disk: in an SQLite file, or in a RocksDB folder.

SQLite: with the original's tables, so a file written by either opens in the other. ``meta(key, value)`` says which
Broker wrote the file; ``store(key, value, expiry)`` has keys and values in the binary form and the expiry in
nanoseconds since 1970, or NULL. chappe adds ``chappe_writers``, which the original ignores: which writes of which clone
are contained; and ``chappe_history``, the changes that are kept for the history of their keys. If an original changes
the file in between, those rows stay true. One commit is one transaction. By default it is synced (``synchronous`` FULL,
journal WAL), so what is acknowledged survives a loss of power; the original's own default syncs too, once for each put.
The file is locked while it is open, since two masters of one file would not see each other's changes.

RocksDB: through the package ``rocksdict`` (the extra ``rocksdb``). Keys have a first byte: ``e`` and the binary form of
the key for an entry, whose value is ``u8`` 0, or 1 and ``i64`` expiry in nanoseconds since 1970, and then the binary
form of the value; ``w`` and the entity for a clone's writes; ``h``, ``u64`` revision and the binary form of the key for
a change in its history; ``f`` for the format. One commit is a synced write batch.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterable, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path
from struct import Struct
from typing import Any, Final, Literal

from chappe.data.binary import decode
from chappe.errors import (
    Damaged,
    InvalidData,
    Sealed,
    StorageError,
    StorageFormat,
    StorageFull,
    StorageLocked,
    UsageError,
)
from chappe.kv.backend import (
    ClearHistory,
    ClearRows,
    EraseRow,
    ForgetHistory,
    ForgetWriter,
    HistoryRow,
    Loaded,
    Operation,
    PutRow,
    WriterRow,
)
from chappe.kv.entity import Entity
from chappe.system.disk import PRIVATE_DIRECTORY, keep_private, make_private
from chappe.system.forking import own

Synchronous = Literal["OFF", "NORMAL", "FULL", "EXTRA"]
JournalMode = Literal["DELETE", "WAL"]
FailureMode = Literal["FAIL", "DELETE"]

BROKER_VERSION: Final = "2.8.0"  # whose tables these are
FORMAT: Final = 2  # of chappe's own tables, and of a folder
_SCHEMA: Final = (
    "create table if not exists meta(key text primary key, value text)",
    "create table if not exists store(key blob primary key, value blob, expiry integer)",
    "create table if not exists chappe_writers(entity blob primary key, applied integer, outcomes blob, heard integer)",
    "create table if not exists chappe_history"
    "(key blob, revision integer, change blob, primary key(key, revision)) without rowid",
)
_OUTCOME: Final = Struct(">QB")
_ENTITY: Final = Struct(">16sQ")
_ENTRY: Final = b"e"
_WRITER: Final = b"w"
_PAST: Final = b"h"
_REVISION: Final = Struct(">Q")
_FORMAT_KEY: Final = b"f"
_EXPIRY: Final = Struct(">Bq")
_WRITER_HEAD: Final = Struct(">Qq")
_PUT: Final = "replace into store(key, value, expiry) values(?, ?, ?)"
# So many rows at once: with every call of SQLite all other threads of the program want a turn before it goes on.
_PUTS_MAX: Final = 64
_PUTS: Final = tuple([_PUT + ", (?, ?, ?)" * (rows - 1) for rows in range(1, _PUTS_MAX + 1)])
_STATEMENTS: Final = 2 * _PUTS_MAX  # that stay prepared
_FULL: Final = (sqlite3.SQLITE_FULL,)
_LOCKED: Final = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
_CORRUPT: Final = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


SEALED_KEY: Final = "chappe_sealed"  # of the entry that says that all others are sealed


def refuse_sealed_rows(loaded: Loaded, name: str) -> None:
    """Raise Sealed if a file is that of a sealed data store, and the store is plain here."""
    if any(key == SEALED_KEY for key, _, _ in loaded.entries):
        raise Sealed(f"the file is of a sealed data store, and {name!r} is not sealed for this program: give it --as")


class _Backend:
    """A database that is open until ``close``."""

    path: Path
    _database: Any = None

    def close(self) -> None:
        if self._database is not None:
            self._database.close()
            self._database = None

    def _opened(self) -> Any:
        if self._database is None:
            raise StorageError(f"{self.path} is closed")
        return self._database

    def _check_format(self, found: int) -> None:
        if found > FORMAT:
            raise StorageFormat(f"{self.path} has format {found}, written by a newer chappe; this one knows {FORMAT}")

    def _say(self, error: Exception, doing: str, *, full: bool, locked: bool, corrupt: bool) -> StorageError:
        if full:
            return StorageFull(f"cannot {doing} {self.path}: the disk is full; free some space")
        if locked:
            return StorageLocked(f"cannot {doing} {self.path}: another process has it open; stop that one first")
        if corrupt:
            return Damaged(f"cannot {doing} {self.path}: {error}; restore it from a copy, or choose another path")
        return StorageError(f"cannot {doing} {self.path}: {error}; check the path and its permissions")


class SqliteBackend(_Backend):
    """Keeps entries in an SQLite file; see the module, and ``Backend`` for its methods.

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
        Damaged: It is not a database, or a damaged one.
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
        try:
            self._open()
        except Damaged:
            if failure_mode != "DELETE" or not self.path.is_file():
                raise
            for suffix in ("", "-wal", "-shm", "-journal"):
                Path(f"{self.path}{suffix}").unlink(missing_ok=True)
            self._open()

    def load(self) -> Loaded:
        entries = []
        for key, value, expiry in self._read("select key, value, expiry from store"):
            try:
                entries.append((decode(key), decode(value), expiry))
            except InvalidData as problem:
                raise Damaged(f"{self.path} has a malformed entry: {problem}; restore it from a copy") from None
        writers = []
        for entity, applied, outcomes, heard in self._read("select * from chappe_writers"):
            row = Entity(*_ENTITY.unpack(entity)), applied, _decode_outcomes(outcomes), heard
            writers.append(WriterRow(*row))
        history = self._read("select key, revision, change from chappe_history")
        return Loaded(tuple(entries), tuple(writers), tuple([HistoryRow(*each) for each in history]))

    def commit(self, operations: Sequence[Operation]) -> None:
        try:
            with self._opened() as database:  # which commits, or rolls back
                if len(operations) <= _PUTS_MAX:
                    puts = [(each.key, each.value, each.expires_ns) for each in operations if isinstance(each, PutRow)]
                    if len(puts) == len(operations):
                        _put(database, puts)  # one statement is a transaction, synced when it returns
                        return
                database.execute("begin immediate")
                for statement, rows in _statements(operations):
                    if statement == _PUT:
                        _put(database, rows)
                    else:
                        database.executemany(statement, rows)
        except sqlite3.Error as error:
            raise self._problem(error, "write to") from error

    def _open(self) -> None:
        try:
            self.path.parent.mkdir(PRIVATE_DIRECTORY, parents=True, exist_ok=True)
            make_private(self.path)
            database = sqlite3.connect(
                self.path, timeout=0.0, isolation_level=None, check_same_thread=False, cached_statements=_STATEMENTS
            )
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
        """Refuse other formats; nothing has been written yet."""
        columns = [row[1] for row in self._read("pragma table_info(store)")]
        if columns and columns != ["key", "value", "expiry"]:
            raise StorageFormat(f"{self.path} has a table 'store' that is not a data store's: {', '.join(columns)}")
        if columns and self._read("select 1 from sqlite_master where name = 'meta'"):
            found = self._read("select value from meta where key = 'chappe_format'")
            self._check_format(int(found[0][0]) if found else 0)
        if self._integrity_check:
            messages = [row[0] for row in self._read("pragma integrity_check")]
            if messages != ["ok"]:
                raise Damaged(f"{self.path} fails its integrity check: {messages[0]}; restore it from a copy")

    def _read(self, statement: str) -> list[tuple[Any, ...]]:
        try:
            return list(self._opened().execute(statement))
        except sqlite3.Error as error:
            raise self._problem(error, "read") from error

    def _problem(self, error: Exception, doing: str) -> StorageError:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        return self._say(error, doing, full=code in _FULL, locked=code in _LOCKED, corrupt=code in _CORRUPT)


def _encode_outcomes(row: WriterRow) -> bytes:
    return b"".join([_OUTCOME.pack(*outcome) for outcome in row.outcomes])


def _decode_outcomes(raw: bytes) -> tuple[tuple[int, int], ...]:
    return tuple(_OUTCOME.iter_unpack(raw))


def _past_key(change: HistoryRow | ForgetHistory) -> bytes:
    return _PAST + _REVISION.pack(change.revision) + change.key


def _choose(option: str, value: str, values: tuple[str, ...]) -> None:
    if value not in values:
        raise UsageError(f"{option} is one of {', '.join(values)}, not {value!r}")


def _statements(operations: Iterable[Operation]) -> list[tuple[str, list[tuple[Any, ...]]]]:
    """Return operations as statements, with the rows of neighbours of one kind together."""
    found: list[tuple[str, list[tuple[Any, ...]]]] = []
    row: tuple[Any, ...]
    for each in operations:
        if isinstance(each, PutRow):
            statement = _PUT
            row = (each.key, each.value, each.expires_ns)
        elif isinstance(each, EraseRow):
            statement, row = "delete from store where key = ?", (each.key,)
        elif isinstance(each, ClearRows):
            statement, row = "delete from store", ()
        elif isinstance(each, WriterRow):
            statement = "replace into chappe_writers values(?, ?, ?, ?)"
            row = (_ENTITY.pack(*each.entity), each.applied, _encode_outcomes(each), each.heard_ns)
        elif isinstance(each, HistoryRow):
            statement, row = "replace into chappe_history values(?, ?, ?)", (each.key, each.revision, each.body)
        elif isinstance(each, ForgetHistory):
            statement, row = "delete from chappe_history where key = ? and revision = ?", (each.key, each.revision)
        elif isinstance(each, ClearHistory):
            statement, row = "delete from chappe_history", ()
        else:
            assert isinstance(each, ForgetWriter)
            statement, row = "delete from chappe_writers where entity = ?", (_ENTITY.pack(*each.entity),)
        if not found or found[-1][0] != statement:
            found.append((statement, []))
        found[-1][1].append(row)
    return found


def _put(database: sqlite3.Connection, rows: list[tuple[Any, ...]]) -> None:
    for at in range(0, len(rows), _PUTS_MAX):
        part = rows[at : at + _PUTS_MAX]
        database.execute(_PUTS[len(part) - 1], list(chain.from_iterable(part)))


class RocksdbBackend(_Backend):
    """Keeps entries in a RocksDB folder; see the module, and ``Backend`` for its methods.

    Args:
        path: Of the folder; it is made if it is not there.

    Raises:
        UsageError: ``rocksdict`` is not installed.
        StorageLocked: Another process, or this one, has the folder open.
        StorageFormat: It was written by a newer chappe, or is another program's.
        Damaged: Files in it are damaged.
        StorageError: Anything else that keeps it from being opened.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        own(self, keep=("_database",))
        try:
            import rocksdict
        except ImportError:
            raise UsageError("the rocksdb backend needs the package rocksdict: pip install 'chappe[rocksdb]'") from None
        self._rocksdict: Any = rocksdict
        self._failed = False  # the last commit
        self.path = Path(path)
        try:
            self.path.mkdir(PRIVATE_DIRECTORY, parents=True, exist_ok=True)
            keep_private(self.path)
            self._open()
            self._check()
        except StorageError:
            self.close()
            raise
        except Exception as error:
            raise self._problem(error, "open") from error

    def load(self) -> Loaded:
        entries, writers, history = [], [], []
        try:
            for key, value in self._opened().items():
                if key[:1] == _ENTRY:
                    expires_ns = _EXPIRY.unpack_from(value)[1] if value[0] else None
                    entries.append((decode(key[1:]), decode(value[_EXPIRY.size if value[0] else 1 :]), expires_ns))
                elif key[:1] == _WRITER:
                    applied, heard_ns = _WRITER_HEAD.unpack_from(value)
                    outcomes = _decode_outcomes(value[_WRITER_HEAD.size :])
                    writers.append(WriterRow(Entity(*_ENTITY.unpack(key[1:])), applied, outcomes, heard_ns))
                elif key[:1] == _PAST:
                    (revision,) = _REVISION.unpack_from(key, 1)
                    history.append(HistoryRow(key[1 + _REVISION.size :], revision, value))
        except InvalidData as problem:
            raise Damaged(f"{self.path} has a malformed entry: {problem}; restore it from a copy") from None
        except StorageError:
            raise
        except Exception as error:
            raise self._problem(error, "read") from error
        return Loaded(tuple(entries), tuple(writers), tuple(history))

    def commit(self, operations: Sequence[Operation]) -> None:
        self._opened()
        batch = self._rocksdict.WriteBatch(raw_mode=True)
        try:
            if self._failed:  # RocksDB takes nothing more after a write that failed, until it is opened again
                with suppress(Exception):  # it is closed, if it could not be opened again the last time
                    self._database.close()
                self._open()
            for each in operations:
                if isinstance(each, PutRow):
                    head = b"\0" if each.expires_ns is None else _EXPIRY.pack(1, each.expires_ns)
                    batch.put(_ENTRY + each.key, head + each.value)
                elif isinstance(each, EraseRow):
                    batch.delete(_ENTRY + each.key)
                elif isinstance(each, ClearRows):
                    batch.delete_range(_ENTRY, bytes((_ENTRY[0] + 1,)))
                elif isinstance(each, WriterRow):
                    row = _WRITER_HEAD.pack(each.applied, each.heard_ns) + _encode_outcomes(each)
                    batch.put(_WRITER + _ENTITY.pack(*each.entity), row)
                elif isinstance(each, HistoryRow):
                    batch.put(_past_key(each), each.body)
                elif isinstance(each, ForgetHistory):
                    batch.delete(_past_key(each))
                elif isinstance(each, ClearHistory):
                    batch.delete_range(_PAST, bytes((_PAST[0] + 1,)))
                else:
                    assert isinstance(each, ForgetWriter)
                    batch.delete(_WRITER + _ENTITY.pack(*each.entity))
            self._write(batch)
            self._failed = False
        except Exception as error:
            self._failed = True
            raise self._problem(error, "write to") from error

    def _write(self, batch: Any) -> None:
        """Write and sync; not in one call, as ``write`` holds the interpreter until it returns."""
        self._database.write(batch)
        self._database.flush_wal(True)  # lets other threads go on, while the disk works

    def _open(self) -> None:
        self._database = self._rocksdict.Rdict(str(self.path), self._rocksdict.Options(raw_mode=True))

    def _check(self) -> None:
        """Refuse other formats; mark a new database."""
        found = self._database.get(_FORMAT_KEY)
        if found is None and next(iter(self._opened().items()), None) is not None:
            raise StorageFormat(f"{self.path} is a RocksDB folder of another program; choose another path")
        self._check_format(int(found or 0))
        if int(found or 0) < FORMAT:
            batch = self._rocksdict.WriteBatch(raw_mode=True)
            batch.put(_FORMAT_KEY, str(FORMAT).encode())
            self._write(batch)

    def _problem(self, error: Exception, doing: str) -> StorageError:
        text = str(error)
        full, locked = "No space left" in text or "SpaceLimit" in text, "lock" in text.lower()
        return self._say(error, doing, full=full, locked=locked, corrupt="Corruption" in text)
