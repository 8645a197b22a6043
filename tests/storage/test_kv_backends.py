from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.interpreter import others_go_on

from chappe.data.binary import encode
from chappe.data.scalars import Count, Timespan
from chappe.data.values import Set, Table, Value
from chappe.errors import (
    Damaged,
    StorageError,
    StorageFormat,
    StorageFull,
    StorageLocked,
    UsageError,
)
from chappe.kv.backend import (
    Backend,
    ClearHistory,
    ClearRows,
    EraseRow,
    ForgetHistory,
    ForgetWriter,
    HistoryRow,
    Operation,
    PutRow,
    WriterRow,
)
from chappe.kv.entity import chappe_entity
from chappe.storage.kv_backends import RocksdbBackend, SqliteBackend

Make = Callable[[Path], Backend]
CLONE = chappe_entity(bytes(range(16)), 5)
VALUES: list[Value] = ["text", b"\xff", 1, Count(1), 1.5, True, None, (1, "a"), Set((1,)), Table({1: 2}), Timespan(5)]


def rocksdb(path: Path) -> Backend:
    pytest.importorskip("rocksdict")
    return RocksdbBackend(path)


@pytest.fixture(params=[SqliteBackend, rocksdb], ids=["sqlite", "rocksdb"])
def make(request: pytest.FixtureRequest) -> Make:
    made: Make = request.param
    return made


def put(key: Value, value: Value, expires_ns: int | None = None) -> PutRow:
    return PutRow(encode(key), encode(value), expires_ns)


def entries(backend: Backend) -> dict[str, tuple[Value, int | None]]:
    return {repr(key): (value, expires_ns) for key, value, expires_ns in backend.load().entries}


def test_what_is_committed_is_there_in_the_next_life(make: Make, tmp_path: Path) -> None:
    backend = make(tmp_path / "deep" / "store")
    assert backend.load().entries == ()
    backend.commit([put(value, value, number if number % 2 else None) for number, value in enumerate(VALUES)])
    backend.commit([EraseRow(encode("text")), put(1, "other"), EraseRow(encode("missing"))])
    writer = WriterRow(CLONE, 2**40, ((4, 11), (2**40, 255)), 12_345)
    backend.commit([writer, WriterRow(chappe_entity(CLONE.endpoint, 6), 1, (), 1)])
    backend.commit([ForgetWriter(chappe_entity(CLONE.endpoint, 6))])
    backend.close()
    backend.close()

    again = make(tmp_path / "deep" / "store")
    wanted = {repr(value): (value, number if number % 2 else None) for number, value in enumerate(VALUES)}
    del wanted["'text'"]
    wanted["1"] = ("other", None)
    assert entries(again) == wanted
    assert again.load().writers == (writer,)
    again.close()


def test_operations_are_done_in_their_order(make: Make, tmp_path: Path) -> None:
    backend = make(tmp_path / "store")
    backend.commit([put("a", 1), put("b", 1)])
    backend.commit([put("a", 2), ClearRows(), put("c", 1), put("c", 2), EraseRow(encode("c")), put("d", 3)])

    assert entries(backend) == {"'d'": (3, None)}
    backend.close()


def test_the_history_of_keys_is_kept_beside_them(make: Make, tmp_path: Path) -> None:
    path = tmp_path / "store"
    backend = make(path)
    backend.commit([put("a", 1)])
    assert format_of(backend) == 2
    rows = [HistoryRow(encode("a"), 2**60, b"body"), HistoryRow(encode("a"), 5, b""), HistoryRow(encode("b"), 5, b"x")]
    backend.commit([put("a", 2), *rows])
    backend.commit([ForgetHistory(encode("a"), 5), ForgetHistory(encode("a"), 6), ClearRows(), put("c", 1)])
    assert format_of(backend) == 2
    backend.close()

    again = make(path)
    assert (set(again.load().history), entries(again)) == ({rows[0], rows[2]}, {"'c'": (1, None)})
    again.commit([ClearHistory(), rows[1]])
    assert again.load().history == (rows[1],)
    assert format_of(again) == 2
    again.close()


def format_of(backend: Any) -> int:
    if isinstance(backend, SqliteBackend):
        found = backend._read("select value from meta where key = 'chappe_format'")[0][0]
    else:
        found = backend._opened().get(b"f")
    return int(found)


def test_what_another_holds_open_is_refused(make: Make, tmp_path: Path) -> None:
    backend = make(tmp_path / "store")
    with pytest.raises(StorageLocked):
        make(tmp_path / "store")
    backend.commit([put("a", 1)])
    assert entries(backend) == {"'a'": (1, None)}
    backend.close()
    make(tmp_path / "store").close()


def test_an_entry_that_is_no_value_is_named(make: Make, tmp_path: Path) -> None:
    backend = make(tmp_path / "store")
    backend.commit([PutRow(encode("a"), b"\x77", None)])
    with pytest.raises(Damaged):
        backend.load()
    backend.close()


def test_a_closed_backend_says_so(make: Make, tmp_path: Path) -> None:
    backend = make(tmp_path / "store")
    backend.close()
    for use in (backend.load, lambda: backend.commit([put("a", 1)])):
        with pytest.raises(StorageError):
            use()


def test_a_path_that_cannot_be_made_is_refused(make: Make, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(StorageError):
        make(tmp_path / "file" / "store")


# -- SQLite alone -----------------------------------------------------------------------------------------------------


def test_the_tables_are_the_originals(tmp_path: Path) -> None:
    backend = SqliteBackend(tmp_path / "a.db", journal_mode="DELETE")
    backend.commit([put("key", Count(5), 17)])
    backend.close()

    database = sqlite3.connect(tmp_path / "a.db")
    assert database.execute("select * from store").fetchall() == [(encode("key"), encode(Count(5)), 17)]
    assert dict(database.execute("select key, value from meta").fetchall())["broker_version"] == "2.8.0"
    columns = [(row[1], row[2], row[5]) for row in database.execute("pragma table_info(store)")]
    assert [(name, kind.lower(), primary) for name, kind, primary in columns] == [
        ("key", "blob", 1), ("value", "blob", 0), ("expiry", "integer", 0)
    ]  # fmt: skip
    database.close()


def test_a_full_disk_refuses_all_of_a_commit(tmp_path: Path) -> None:
    backend = SqliteBackend(tmp_path / "a.db")
    backend.commit([put("a", 1)])
    assert backend._database is not None
    (pages,) = backend._database.execute("pragma page_count").fetchone()
    backend._database.execute(f"pragma max_page_count={pages + 2}")

    too_much: list[Operation] = [put("a", 2), *(put(number, "x" * 1000) for number in range(100))]
    with pytest.raises(StorageFull):
        backend.commit(too_much)
    assert entries(backend) == {"'a'": (1, None)}
    backend.commit([put("a", 3)])
    assert entries(backend) == {"'a'": (3, None)}
    backend.close()


@pytest.mark.parametrize("count", [1, 2, 63, 64, 65, 129])
def test_however_many_puts_a_commit_has_they_are_in_the_file_when_it_returns(count: int, tmp_path: Path) -> None:
    backend = SqliteBackend(tmp_path / "file")
    backend.commit([put(1, "old"), put("kept", "as it was")])
    backend.commit([put(number, number, number or None) for number in range(count)])
    for suffix in ("", "-wal"):  # as they would be found behind a kill
        shutil.copy(f"{tmp_path / 'file'}{suffix}", f"{tmp_path / 'copy'}{suffix}")
    backend.close()

    found = entries(SqliteBackend(tmp_path / "copy"))
    expected = {repr(number): (number, number or None) for number in range(count)}
    assert found == {repr(1): ("old", None)} | expected | {repr("kept"): ("as it was", None)}


def test_a_commit_of_some_puts_is_one_statement(tmp_path: Path) -> None:
    backend = SqliteBackend(tmp_path / "file")
    said: list[str] = []
    backend._database.set_trace_callback(said.append)
    backend.commit([put(number, number) for number in range(40)])

    assert len(said) == 1  # with every call of SQLite all other threads of the program may come between
    said.clear()
    backend.commit([put(number, number) for number in range(640)])
    assert len(said) == 12  # it begins and commits
    backend.close()


def test_a_full_disk_refuses_all_of_one_statement(tmp_path: Path) -> None:
    backend = SqliteBackend(tmp_path / "file")
    backend.commit([put(1, "old")])
    pages = backend._database.execute("pragma page_count").fetchone()[0]
    backend._database.execute(f"pragma max_page_count={pages + 2}")
    with pytest.raises(StorageFull):
        backend.commit([put(number, b"\xff" * 1_000) for number in range(60)])
    assert entries(backend) == {"1": ("old", None)}

    backend._database.execute("pragma max_page_count=100000")
    backend.commit([put(number, number) for number in range(60)])
    assert len(entries(backend)) == 60
    backend.close()


def test_what_is_no_database_is_refused_or_deleted_if_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    path.write_bytes(b"this is no database at all" * 100)
    with pytest.raises(Damaged):
        SqliteBackend(path)
    assert path.read_bytes().startswith(b"this is no database")

    SqliteBackend(path, failure_mode="DELETE").close()
    assert path.read_bytes().startswith(b"SQLite format 3")


def test_a_damaged_database_fails_its_integrity_check(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    backend = SqliteBackend(path, journal_mode="DELETE")
    backend.commit([put(number, "x" * 500) for number in range(200)])
    backend.close()
    raw = bytearray(path.read_bytes())
    raw[8192:12288] = bytes(4096)
    path.write_bytes(raw)

    with pytest.raises(Damaged):
        SqliteBackend(path, integrity_check=True)


def test_another_programs_or_a_newer_format_is_refused_and_not_touched(tmp_path: Path) -> None:
    other, newer = tmp_path / "other.db", tmp_path / "newer.db"
    database = sqlite3.connect(other)
    database.execute("create table store(id integer, title text)")
    database.commit()
    database.close()
    SqliteBackend(newer).close()
    database = sqlite3.connect(newer)
    database.execute("update meta set value = '3' where key = 'chappe_format'")
    database.commit()
    database.close()

    for path in (other, newer):
        shutil.copy(path, tmp_path / "copy")
        with pytest.raises(StorageFormat):
            SqliteBackend(path, journal_mode="DELETE" if path == other else "WAL")
        assert path.read_bytes() == (tmp_path / "copy").read_bytes()


@pytest.mark.parametrize("option", ["synchronous", "journal_mode", "failure_mode"])
def test_an_option_that_does_not_exist_is_refused(option: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=option):
        SqliteBackend(tmp_path / "a.db", **{option: "MAYBE"})  # type: ignore[arg-type]
    assert not (tmp_path / "a.db").exists()


def test_the_originals_files_without_our_table_are_taken(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    database = sqlite3.connect(path)
    database.execute("create table meta(key text primary key, value text)")
    database.execute("create table store(key blob primary key, value blob, expiry integer)")
    database.execute("insert into meta values('broker_version', '2.7.0')")
    database.execute("insert into store values(?, ?, null)", (encode("a"), encode(1)))
    database.commit()
    database.close()

    backend = SqliteBackend(path)
    assert entries(backend) == {"'a'": (1, None)}
    backend.close()


# -- RocksDB alone ----------------------------------------------------------------------------------------------------


def test_a_rocksdb_folder_of_another_program_or_a_newer_format_is_refused(tmp_path: Path) -> None:
    rocksdict = pytest.importorskip("rocksdict")
    other = rocksdict.Rdict(str(tmp_path / "other"), rocksdict.Options(raw_mode=True))
    other[b"key"] = b"value"
    other.close()
    newer = rocksdict.Rdict(str(tmp_path / "newer"), rocksdict.Options(raw_mode=True))
    newer[b"f"] = b"3"
    newer.close()

    for name in ("other", "newer"):
        with pytest.raises(StorageFormat):
            RocksdbBackend(tmp_path / name)


def test_a_rocksdb_folder_with_damaged_files_is_refused(tmp_path: Path) -> None:
    backend = rocksdb(tmp_path / "store")
    backend.commit([put("a", 1)])
    backend.close()
    (manifest,) = (tmp_path / "store").glob("MANIFEST-*")
    manifest.write_bytes(b"nonsense" * 20)

    with pytest.raises(Damaged):
        rocksdb(tmp_path / "store")


class _Spied:
    """RocksDB, and what it was asked to do to the disk."""

    def __init__(self, database: Any) -> None:
        self.database = database
        self.asked: list[str] = []

    def write(self, *args: object) -> None:
        self.asked.append("write")
        self.database.write(*args)

    def flush_wal(self, sync: bool) -> None:
        self.asked.append(f"flush, sync {sync}")
        self.database.flush_wal(sync)

    def close(self) -> None:
        self.database.close()


def test_rocksdb_has_synced_what_is_committed(tmp_path: Path) -> None:
    pytest.importorskip("rocksdict")
    backend = RocksdbBackend(tmp_path / "store")
    backend._database = spied = _Spied(backend._database)
    backend.commit([put("a", 1), put("b", 2)])
    assert spied.asked == ["write", "flush, sync True"]
    backend.close()


def test_other_threads_go_on_while_rocksdb_syncs(tmp_path: Path) -> None:
    backend = rocksdb(tmp_path / "store")
    with others_go_on() as count:

        def go_on() -> bool:
            began = count()
            backend.commit([put("a", 1)])
            return count() > began + 1

        assert any(go_on() for _ in range(1000))
    backend.close()
