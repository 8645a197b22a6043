"""What programs keep is its owner's alone, whatever the umask, and what earlier versions left open is closed."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.storage.segments_rig import batch, keep

from chappe import Consumer, Producer, Store, Tower
from chappe.errors import StorageLocked
from chappe.kv.backend import PutRow
from chappe.storage.chain_files import ChainFiles
from chappe.storage.kv_backends import RocksdbBackend, SqliteBackend
from chappe.storage.segments import SegmentStorage
from chappe.storage.segments.files import FileOps
from chappe.storage.sink_database import SinkDatabase


@pytest.fixture(autouse=True)
def no_umask() -> Iterator[None]:
    former = os.umask(0)
    yield
    os.umask(former)


def open_to_others(path: Path) -> list[str]:
    """What of a directory somebody else could read, write or enter."""
    found = []
    for each in (path, *path.rglob("*")):
        within = any(stat.S_IMODE(above.stat().st_mode) & 0o077 == 0 for above in each.parents if path in above.parents)
        if stat.S_IMODE(each.stat().st_mode) & 0o077 and not within:
            found.append(f"{each.relative_to(path)} {stat.filemode(each.stat().st_mode)}")
    return found


def test_the_log_keeps_its_files_to_itself(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir(0o755)
    with Tower("127.0.0.1:0") as tower, Store(home / "store", tower=tower.address):
        with Producer("a", tower=tower.address, identity="p", directory=home / "state") as producer:
            producer.send(b"1")
            producer.flush(60)
        with Consumer("a", tower=tower.address, identity="c", directory=home / "state") as consumer:
            next(iter(consumer))
            consumer.commit()
        made = [each for each in home.rglob("*") if each.is_file()]

        assert {"positions.json", "identity.json", "lock"} <= {each.name for each in made}
        assert [each for each in made if each.suffix in (".seg", ".journal")]
        assert all(stat.S_IMODE(each.stat().st_mode) == 0o600 for each in made)
        assert all(stat.S_IMODE(each.stat().st_mode) == 0o700 for each in home.rglob("*") if each.is_dir())


def test_databases_chains_and_sinks_keep_their_files_to_themselves(tmp_path: Path) -> None:
    sqlite = SqliteBackend(tmp_path / "sqlite" / "users")
    rocksdb = RocksdbBackend(tmp_path / "rocksdb" / "users")
    for backend in (sqlite, rocksdb):
        backend.commit([PutRow(b"key", b"value", None)])
    chain = ChainFiles(tmp_path / "chain", 77)
    (tmp_path / "sinks").mkdir(0o755)
    sinks = SinkDatabase(str(tmp_path / "sinks"), FileOps())
    sinks.open()

    assert stat.S_IMODE((tmp_path / "sqlite" / "users").stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "rocksdb" / "users").stat().st_mode) == 0o700
    assert open_to_others(tmp_path / "chain") == []
    assert [each.name for each in (tmp_path / "sinks").iterdir() if each.stat().st_mode & 0o077] == []
    for each in (sqlite, rocksdb, chain, sinks):
        each.close()


def test_what_an_earlier_version_left_open_is_closed_and_what_a_group_was_let_into_stays(tmp_path: Path) -> None:
    for name, before, after in (("old", 0o755, 0o700), ("world", 0o777, 0o700), ("group", 0o750, 0o750)):
        storage = SegmentStorage(tmp_path / name)
        keep(storage, batch(0, 10))
        storage.close()
        (tmp_path / name).chmod(before)
        (tmp_path / name / "lock").chmod(0o644)

        SegmentStorage(tmp_path / name).close()

        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == after
        assert stat.S_IMODE((tmp_path / name / "lock").stat().st_mode) == 0o600
    SqliteBackend(tmp_path / "users").close()
    (tmp_path / "users").chmod(0o644)
    SqliteBackend(tmp_path / "users").close()
    assert stat.S_IMODE((tmp_path / "users").stat().st_mode) == 0o600


def test_the_error_names_who_holds_the_lock_and_not_who_held_it(tmp_path: Path) -> None:
    SegmentStorage(tmp_path / "data").close()
    lock = tmp_path / "data" / "lock"
    lock.write_text("999999\n")  # a process that is gone
    code = (
        "import fcntl, sys, time; file = open(sys.argv[1]); fcntl.flock(file, fcntl.LOCK_SH); print(flush=True);"
        "sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(lock)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        with pytest.raises(StorageLocked) as raised:
            SegmentStorage(tmp_path / "data")
        assert holder.stdin is not None
        holder.stdin.close()

    assert "process 999999" not in str(raised.value)
    if Path("/proc/locks").exists():
        assert f"is used by process {holder.pid};" in str(raised.value)
