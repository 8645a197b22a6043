"""Durable masters: what they confirmed is there after any end, and a disk that refuses is told to who wrote."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.api.store_process import Process
from tests.endpoints import PATIENCE_S, Make, event, until
from tests.ports import free_ports

from chappe import DataStore
from chappe.api.kv import attaching
from chappe.data.binary import encode as encode_value
from chappe.errors import BackendFailure, Damaged, StorageFull, StorageLocked, TimedOut
from chappe.kv.backend import Operation, PutRow
from chappe.kv.chp.pair import row_of
from chappe.kv.events import CommitFailed, MasterLost, WriteFailed
from chappe.replication.binary_star.messages import LEADER, PairMemory, Record
from chappe.storage.kv_backends import RocksdbBackend, SqliteBackend


@pytest.fixture(params=["sqlite", "rocksdb"])
def backend(request: pytest.FixtureRequest) -> str:
    if request.param == "rocksdb":
        pytest.importorskip("rocksdict")
    return str(request.param)


def test_the_file_of_one_of_a_former_pair_of_masters_is_opened(backend: str, make: Make, tmp_path: Path) -> None:
    kept = {"sqlite": SqliteBackend, "rocksdb": RocksdbBackend}[backend](path=tmp_path / "s")
    kept.commit([PutRow(encode_value("k"), encode_value(1), None), row_of(PairMemory(3, Record(3, LEADER)))])
    kept.close()
    with make().attach_master("s", backend, path=tmp_path / "s") as store:
        assert store.items() == [("k", 1)]
        store.put("k", 2)
    with make().attach_master("s", backend, path=tmp_path / "s") as store:
        assert store["k"] == 2


def test_what_was_written_is_there_after_a_restart(backend: str, make: Make, tmp_path: Path) -> None:
    endpoint = make()
    with endpoint.attach_master("s", backend, path=tmp_path / "s") as store:
        store.put("k", {"a": (1, 2.5)})
        store.put("temporary", 1, expiry_s=0.05)
        store.put("later", 1, expiry_s=3600)
        store.put_many((n, n) for n in range(1_000))
        store.erase(7)
        store.increment("n", 3)
        assert store.put_unique("k", 2) is False
        assert store.await_idle()
        until(lambda: not store.exists("temporary"))
        assert store.await_idle()
        before = store.items()
        expires = {each.key: each.expires_ns for each in store.snapshot()}
    with make().attach_master("s", backend, path=tmp_path / "s") as again:
        assert sorted(again.items(), key=str) == sorted(before, key=str)
        assert {each.key: each.expires_ns for each in again.snapshot()} == expires
        assert again.increment("n") == 4
        assert again.increment("n", wait=False) is None  # it is not on the disk yet, and may be refused
        assert again.decrement("n", 2) == 3
        assert again["n"] == 3


def test_what_was_written_without_waiting_is_done_before_the_store_is_closed(
    backend: str, make: Make, tmp_path: Path
) -> None:
    with make().attach_master("s", backend, path=tmp_path / "s") as store:
        for number in range(2_000):
            store.put(number, number, wait=False)
    with make().attach_master("s", backend, path=tmp_path / "s") as again:
        assert len(again) == 2_000


def test_many_threads_share_commits(backend: str, make: Make, tmp_path: Path) -> None:
    store = make().attach_master("s", backend, path=tmp_path / "s")
    threads = [threading.Thread(target=lambda: [store.increment("n") for _ in range(50)]) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert store["n"] == 400


def test_a_clone_is_told_of_a_durable_master_and_repeats_nothing_after_its_restart(make: Make, tmp_path: Path) -> None:
    one, two = make(), make()
    port = one.listen(port=free_ports())
    two.peer("127.0.0.1", port, retry_s=0.05)
    one.attach_master("s", "sqlite", path=tmp_path / "s")
    clone = two.attach_clone("s")
    for _ in range(20):
        clone.increment("n")
    statuses = two.statuses()
    one.close()
    event(statuses, MasterLost)
    clone.increment("n", wait=False)
    three = make()
    three.listen(port=port)
    again = three.attach_master("s", "sqlite", path=tmp_path / "s")
    until(lambda: clone.await_idle(0.2))
    assert (clone["n"], again["n"]) == (21, 21)


def test_a_file_that_is_open_elsewhere_or_damaged_is_refused(make: Make, tmp_path: Path) -> None:
    make().attach_master("s", "sqlite", path=tmp_path / "s")
    with pytest.raises(StorageLocked):
        make().attach_master("other", "sqlite", path=tmp_path / "s")
    (tmp_path / "damaged").write_bytes(b"no database at all" * 1_000)
    endpoint = make()
    with pytest.raises(Damaged):
        endpoint.attach_master("s", "sqlite", path=tmp_path / "damaged")
    endpoint.attach_master("s", "sqlite", path=tmp_path / "damaged", failure_mode="DELETE").put("k", 1)


class Faulty(SqliteBackend):
    """A backend whose disk is full, slow or broken when the test says so."""

    full = False
    defect = False
    gate = threading.Event()

    def commit(self, operations: Sequence[Operation]) -> None:
        assert self.gate.wait(PATIENCE_S)
        if self.full:
            raise StorageFull("the disk is full; free some space")
        if self.defect:
            raise ZeroDivisionError
        super().commit(operations)


@pytest.fixture
def faulty(monkeypatch: pytest.MonkeyPatch) -> type[Faulty]:
    monkeypatch.setitem(attaching._BACKENDS, "faulty", Faulty)
    Faulty.full = Faulty.defect = False
    Faulty.gate.set()
    return Faulty


def test_a_full_disk_is_told_to_who_wrote_and_the_store_is_as_it_was(
    faulty: type[Faulty], make: Make, tmp_path: Path
) -> None:
    one, two = make(), make()
    master = one.attach_master("s", "faulty", path=tmp_path / "s")
    two.peer("127.0.0.1", one.listen())
    clone = two.attach_clone("s")
    statuses, theirs = one.statuses(), two.statuses()
    master.put("k", 1)
    faulty.full = True
    for store in (master, clone):
        with pytest.raises(BackendFailure):
            store.put("k", 2)
        with pytest.raises(BackendFailure):
            store.put_unique("new", 2)
    assert event(statuses, CommitFailed).writes >= 1
    clone.put("k", 3, wait=False)
    assert isinstance(event(theirs, WriteFailed).error, BackendFailure)
    assert (master.items(), clone.items()) == ([("k", 1)], [("k", 1)])
    faulty.full, faulty.defect = False, True
    with pytest.raises(BackendFailure, match="ZeroDivisionError"):
        master.put("k", 2)
    faulty.defect = False
    clone.put("k", 4)
    assert master.await_idle()
    assert (master["k"], clone["k"]) == (4, 4)
    master.close()
    with make().attach_master("other", "sqlite", path=tmp_path / "s") as again:
        assert again.items() == [("k", 4)]


def test_a_write_is_not_confirmed_before_it_is_durable(faulty: type[Faulty], make: Make, tmp_path: Path) -> None:
    one, two = make(), make()
    master = one.attach_master("s", "faulty", path=tmp_path / "s")
    two.peer("127.0.0.1", one.listen())
    clone = two.attach_clone("s")
    faulty.gate.clear()
    for store in (master, clone):
        with pytest.raises(TimedOut, match="may still be done"):
            store.put("k", store.role, timeout=0.05)
    assert not clone.exists("k")
    assert not master.await_idle(0.05)
    faulty.gate.set()
    assert master.await_idle()
    assert clone["k"] == "clone"


# -- with real processes ----------------------------------------------------------------------------------


def counted(clone: DataStore, done: list[int], stop: threading.Event, number: int) -> None:
    """Count in a key of its own until told to stop; ``done`` are the counts that returned."""
    while not stop.is_set():
        clone.increment(f"n {number}", timeout=None)
        done[number] += 1


@pytest.mark.process
def test_a_master_that_is_killed_while_clones_write_loses_and_repeats_nothing(make: Make, tmp_path: Path) -> None:
    master = Process(tmp_path / "s")
    try:
        two = make()
        two.peer("127.0.0.1", master.port, retry_s=0.05)
        clone = two.attach_clone("s")
        done, stop = [0] * 8, threading.Event()
        writers = [threading.Thread(target=counted, args=(clone, done, stop, number)) for number in range(8)]
        for writer in writers:
            writer.start()
        for _ in range(3):
            begin = sum(done)
            until(lambda begin=begin: sum(done) > begin + 50)  # type: ignore[misc]
            master.kill()
            master = Process(tmp_path / "s", master.port)
        begin = sum(done)
        until(lambda: sum(done) > begin + 50)
        stop.set()
        for writer in writers:
            writer.join(PATIENCE_S)
        assert clone.await_idle()
        assert [clone[f"n {number}"] for number in range(8)] == done
        clone.close()
        master.kill()
        with make().attach_master("s", "sqlite", path=tmp_path / "s") as store:
            assert [store[f"n {number}"] for number in range(8)] == done
    finally:
        master.kill()


def written(clone: DataStore) -> int:
    """Put until the master's disk is full; how many it has taken."""
    for number in range(1_000):
        try:
            clone.put(number, "x" * 20_000)
        except BackendFailure:
            return number
    raise AssertionError("the disk was never full")


@pytest.mark.process
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs limits of a process")
def test_a_disk_that_is_full_in_the_middle_of_a_commit_loses_nothing_that_was_confirmed(
    make: Make, tmp_path: Path
) -> None:
    master = Process(tmp_path / "s", file_bytes_max=1_000_000)
    try:
        two = make()
        two.peer("127.0.0.1", master.port, retry_s=0.05)
        clone = two.attach_clone("s")
        done = written(clone)
        assert done > 10
        assert clone.keys() == list(range(done))
        statuses = two.statuses()
        clone.put("after", "x" * 20_000, wait=False)
        assert isinstance(event(statuses, WriteFailed).error, BackendFailure)
    finally:
        master.kill()
    with make().attach_master("s", "sqlite", path=tmp_path / "s") as store:
        assert store.keys() == list(range(done))
        assert all(len(store[key]) == 20_000 for key in range(done))
