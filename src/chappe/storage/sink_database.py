"""``SinkDatabase``: what a store remembers of sinks, and the commits that it has decided on, in SQLite."""

from __future__ import annotations

import os
import sqlite3
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec

from chappe.data.topic import decode_topic, encode_topic
from chappe.errors import StorageError, StorageFormat, StorageFull
from chappe.log.exactly_once.staged import Intent, SinkState
from chappe.storage.segments.files import FileOps, storage_error
from chappe.system import time
from chappe.system.disk import make_private
from chappe.system.forking import own

DATABASE: Final = "sinks.sqlite"
FORMAT: Final = 1
_SCHEMA: Final = """
CREATE TABLE sinks (sink TEXT PRIMARY KEY, home TEXT, run TEXT, batch INTEGER, lasting INTEGER, touched_us INTEGER);
CREATE TABLE fenced (sink TEXT, place INTEGER, run TEXT, PRIMARY KEY (sink, place));
CREATE TABLE ends (sink TEXT, topic BLOB, next INTEGER, PRIMARY KEY (sink, topic));
CREATE TABLE intents (sink TEXT PRIMARY KEY, plan BLOB);
"""

Statement = tuple[str, Sequence[object]]
_Plan = tuple[str, int, list[tuple[int, int, int]], list[tuple[bytes, str, int, int]]]  # an intent as it is kept


class SinkDatabase:
    """The database in a folder; it is made with the folder when the first sink is remembered.

    Every method that writes is durable when it returns.
    """

    def __init__(self, folder: str, ops: FileOps) -> None:
        own(self, keep=("_database",))
        self._folder = folder
        self._ops = ops
        self._database: sqlite3.Connection | None = None

    def close(self) -> None:
        if self._database is not None:
            self._database.close()
            self._database = None

    def states(self) -> list[SinkState]:
        if self._database is None:
            return []
        now_us = time.time_ns() // 1000
        fenced: defaultdict[str, list[str]] = defaultdict(list)
        ends: defaultdict[str, list[tuple[str, int]]] = defaultdict(list)
        for sink, run in self._query("SELECT sink, run FROM fenced ORDER BY sink, place"):
            fenced[sink].append(run)
        for sink, topic, next_ in self._query("SELECT sink, topic, next FROM ends ORDER BY sink, topic"):
            ends[sink].append((decode_topic(topic), next_))
        return [
            SinkState(sink, home, run, tuple(fenced[sink]), batch, bool(lasting), tuple(ends[sink]), age_us / 1_000_000)
            for sink, home, run, batch, lasting, age_us in self._query(
                "SELECT sink, home, run, batch, lasting, max(0, ? - touched_us) FROM sinks ORDER BY sink", now_us
            )
        ]

    def remember(self, state: SinkState) -> None:
        """Make the state of a sink durable, except its batch and ends."""
        values = (state.sink, state.home, state.run, -1, state.lasting, time.time_ns() // 1000)
        self._execute(
            "remember a sink",
            [
                (
                    "INSERT INTO sinks VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (sink) DO UPDATE SET "
                    "home = excluded.home, run = excluded.run, lasting = excluded.lasting, "
                    "touched_us = excluded.touched_us",
                    values,
                ),
                ("DELETE FROM fenced WHERE sink = ?", (state.sink,)),
                *(
                    ("INSERT INTO fenced VALUES (?, ?, ?)", (state.sink, place, run))
                    for place, run in enumerate(state.fenced)
                ),
            ],
        )

    def forget(self, sinks: Sequence[str]) -> None:
        tables = ("sinks", "fenced", "ends", "intents")
        self._execute(
            "forget sinks", [(f"DELETE FROM {table} WHERE sink = ?", (sink,)) for sink in sinks for table in tables]
        )

    def intend(self, intent: Intent) -> None:
        ranges = [(encode_topic(topic), partition, first, end) for topic, partition, first, end in intent.ranges]
        plan: _Plan = intent.run, intent.batch, list(intent.attempts), ranges
        row = (intent.sink, msgspec.msgpack.encode(plan))
        self._execute("write what is committed", [("INSERT OR REPLACE INTO intents VALUES (?, ?)", row)])

    def take_back(self, sink: str) -> None:
        self._execute("take a commit back", [("DELETE FROM intents WHERE sink = ?", (sink,))])

    def intents(self) -> list[Intent]:
        if self._database is None:
            return []
        found: list[Intent] = []
        for sink, raw in self._query("SELECT sink, plan FROM intents ORDER BY sink"):
            run, batch, attempts, raw_ranges = msgspec.msgpack.decode(raw, type=_Plan)
            ranges = tuple((decode_topic(topic), partition, first, end) for topic, partition, first, end in raw_ranges)
            found.append(Intent(sink, run, batch, tuple(attempts), ranges))
        return found

    def complete(self, intent: Intent) -> None:
        now_us = time.time_ns() // 1000
        self._execute(
            "write what is committed",
            [
                ("UPDATE sinks SET batch = ?, touched_us = ? WHERE sink = ?", (intent.batch, now_us, intent.sink)),
                *(
                    ("INSERT OR REPLACE INTO ends VALUES (?, ?, ?)", (intent.sink, encode_topic(topic), end))
                    for topic, _, _, end in intent.ranges
                ),
                ("DELETE FROM intents WHERE sink = ?", (intent.sink,)),
            ],
        )

    def open(self) -> sqlite3.Connection:
        """Open it, and make it if it is not there, in its existing folder."""
        if self._database is not None:
            return self._database
        path = os.path.join(self._folder, DATABASE)
        try:
            make_private(path)
            database = sqlite3.connect(path, timeout=0.0, isolation_level=None, check_same_thread=False)
            self._database = database
            database.execute("PRAGMA journal_mode = WAL")
            database.execute("PRAGMA synchronous = FULL")
            (format_,) = database.execute("PRAGMA user_version").fetchone()
            if format_ > FORMAT:
                raise StorageFormat(f"{path} has format {format_}, written by a newer chappe; this one knows {FORMAT}")
            if format_ < FORMAT:
                database.executescript(f"BEGIN; {_SCHEMA} PRAGMA user_version = {FORMAT}; COMMIT;")
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
            raise _database_error(error, f"read the sinks in {self._folder}") from error

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
    if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL:
        return StorageFull(f"cannot {doing}: the disk is full; free some space and run again")
    return StorageError(f"cannot {doing}: {error}; check the disk and its permissions")
