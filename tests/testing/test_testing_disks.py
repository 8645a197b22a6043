"""Disks, hosts and links that fail in a test's own world."""

from __future__ import annotations

import errno
import os
import time
from pathlib import Path
from random import Random

import pytest

from chappe import Consumer, Producer
from chappe.api.log.store import Store
from chappe.errors import StorageError, StorageFull, TimedOut
from chappe.storage.journal import Journal
from chappe.storage.segments import SegmentStorage
from chappe.storage.segments.files import file_ops
from chappe.testing import Log, World
from chappe.testing.disk import Disk, DiskOps


def written(ops: DiskOps, path: Path, *parts: bytes, sync: int) -> None:
    """Write parts to a new file, of which the first ``sync`` are synced, with the file's name."""
    fd = ops.open(str(path), os.O_WRONLY | os.O_CREAT)
    at = 0
    for number, part in enumerate(parts):
        if number == sync:
            ops.fsync(fd)
            ops.sync_directory(str(path.parent))
        at = ops.write_all(fd, [part], at)
    ops.close(fd)


def test_a_power_cut_takes_only_what_was_not_synced(tmp_path: Path) -> None:
    seen = set()
    for seed in range(60):
        path = tmp_path / f"{seed}"
        disk = Disk(Random(seed))
        written(DiskOps(disk, lambda: None), path, b"synced ", b"written ", b"later", sync=1)
        disk.cut_power()
        content = path.read_bytes()
        assert content.startswith(b"synced ")
        seen.add(content.rstrip(b"\0"))
    assert {b"synced ", b"synced written ", b"synced written later"} <= seen


def test_a_file_whose_name_was_not_synced_may_be_gone(tmp_path: Path) -> None:
    there = set()
    for seed in range(30):
        path = tmp_path / f"{seed}"
        disk = Disk(Random(seed))
        ops = DiskOps(disk, lambda: None)
        with ops.opened(str(path), os.O_WRONLY | os.O_CREAT) as fd:
            ops.write_all(fd, [b"x"], 0)
            ops.fsync(fd)
        disk.cut_power()
        there.add(path.exists())
        assert not path.exists() or path.read_bytes() == b"x"
    assert there == {True, False}


def test_a_file_that_was_replaced_may_be_the_one_before(tmp_path: Path) -> None:
    found = set()
    for seed in range(30):
        path = tmp_path / f"{seed}"
        disk = Disk(Random(seed))
        ops = DiskOps(disk, lambda: None)
        ops.replace_file(str(path), [b"old"])
        ops.replace_file(str(path), [b"new"], durable=False)
        disk.cut_power()
        found.add(path.read_bytes().rstrip(b"\0"))
    assert found == {b"old", b"new", b""}
    for seed in range(10):
        path = tmp_path / f"durable {seed}"
        disk = Disk(Random(seed))
        ops = DiskOps(disk, lambda: None)
        ops.replace_file(str(path), [b"old"])
        ops.replace_file(str(path), [b"new"])
        disk.cut_power()
        assert path.read_bytes() == b"new"


def test_a_sync_that_fails_loses_what_was_written_for_good(tmp_path: Path) -> None:
    disk = Disk(Random(0))
    ops = DiskOps(disk, lambda: None)
    fd = ops.open(str(tmp_path / "file"), os.O_WRONLY | os.O_CREAT)
    ops.sync_directory(str(tmp_path))
    ops.write_all(fd, [b"lost"], 0)
    disk.refuse(error=errno.EIO)
    with pytest.raises(OSError, match="Input/output"):
        ops.fsync(fd)
    disk.allow()
    assert ops.pread(fd, 4, 0) == b"lost"  # memory has it
    ops.write_all(fd, [b"kept"], 4)
    ops.fsync(fd)
    ops.drop_cache(fd, 0, 8)
    assert ops.pread(fd, 8, 0) == b"\0\0\0\0kept"
    disk.cut_power()
    assert (tmp_path / "file").read_bytes() == b"\0\0\0\0kept"


@pytest.mark.parametrize("seed", range(4))
def test_acknowledged_records_survive_a_power_cut(tmp_path: Path, seed: int) -> None:
    with World(tmp_path / "world", seed, rough=True) as world:
        log = Log(world, tmp_path / "store")
        with Producer("readings") as producer:
            for number in range(5):
                producer.send(str(number))
                producer.flush(60)
                world.kill("store", power_cut=True)
                log.start_store()
        assert [each.value for each in log.read("readings", 60)] == [b"%d" % number for number in range(5)]


def test_a_store_without_syncs_is_found_out_by_a_power_cut(chappe_log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk that the test above relies on can take something."""
    monkeypatch.setattr(DiskOps, "fdatasync", lambda *_: None)
    monkeypatch.setattr(DiskOps, "fsync", lambda *_: None)
    lost = 0
    for number in range(10):
        chappe_log.write("readings", f"{number}")
        chappe_log.world.kill("store", power_cut=True)
        try:
            chappe_log.start_store()
            lost += len(chappe_log.read("readings", 60)) <= number
        except (StorageError, TimedOut):
            lost += 1
        if lost:
            break
    assert lost


def test_a_full_disk_holds_up_acknowledgements_until_there_is_room(chappe_log: Log) -> None:
    world = chappe_log.world
    with Producer("readings") as producer:
        world.disk("store").refuse()
        producer.send("1")
        with pytest.raises(TimedOut):
            producer.flush(30)
        assert chappe_log.store.status().refusing
        world.disk("store").allow()
        producer.flush(30)
    assert [each.value for each in chappe_log.read("readings")] == [b"1"]


def test_a_full_disk_refuses_the_journal_of_an_identity(chappe_log: Log) -> None:
    world = chappe_log.world
    with Producer("readings", identity="sensor") as producer:
        producer.send("1")
        producer.flush(10)
        world.disk().refuse()
        with pytest.raises(StorageFull):
            producer.send_many(["2"])
        world.disk().allow()
        producer.send("3")
        producer.flush(10)
    values = [each.value for each in chappe_log.read("readings")]
    assert values in ([b"1", b"3"], [b"1", b"2", b"3"])


def test_a_slow_disk_takes_time_and_holds_up_nobody_else(chappe_log: Log) -> None:
    chappe_log.world.disk("store").slow(5.0)
    with Consumer("readings") as consumer, Producer("readings") as producer:
        consumer.wait_ready()
        producer.wait_ready()
        began = time.monotonic()
        producer.send("1")
        assert consumer.poll(10) is not None
        assert time.monotonic() - began < 0.1
        producer.flush(120)
        assert time.monotonic() - began > 0.2


def test_a_host_that_is_paused_goes_on_where_it_was(chappe_log: Log) -> None:
    world = chappe_log.world
    with Producer("readings") as producer:
        producer.send("1")
        producer.flush(10)
        world.pause("store")
        producer.send("2")
        with pytest.raises(TimedOut):
            producer.flush(20)
        world.resume("store")
        producer.flush(5)
    assert len(chappe_log.read("readings")) == 2


def test_a_paused_program_does_nothing(chappe_world: World) -> None:
    done: list[float] = []

    def work() -> None:
        while True:
            time.sleep(1)
            done.append(chappe_world.now)

    chappe_world.start(work, host="worker")
    chappe_world.advance(3.5)
    before = len(done)
    chappe_world.pause("worker")
    chappe_world.advance(60)
    assert len(done) == before == 3
    chappe_world.resume("worker")
    chappe_world.advance(3)
    assert len(done) > before


def test_what_one_host_sends_another_can_be_lost_alone(chappe_log: Log) -> None:
    world = chappe_log.world
    with Producer("readings") as producer:
        producer.send("1")
        producer.flush(10)
        world.cut("store", "test", one_way=True)
        producer.send("2")
        with pytest.raises(TimedOut):
            producer.flush(5)
        assert chappe_log.store.status().written_records == 2  # what the producer sent has come
        world.mend()
        producer.flush(30)


def test_a_clock_drifts_beside_the_worlds(chappe_world: World) -> None:
    def now() -> float:
        return time.time()

    chappe_world.set_clock("late", -60.0, drift=0.5)
    began = time.time()
    assert chappe_world.start(now, host="late").result() == pytest.approx(began - 60.0, abs=0.1)
    chappe_world.advance(10)
    assert chappe_world.start(now, host="late").result() == pytest.approx(began + 10 - 60 + 5, abs=0.1)


def test_members_keep_their_files_on_the_disk_of_their_host(chappe_world: World, tmp_path: Path) -> None:
    with chappe_world.on("keeper"):
        assert isinstance(file_ops(), DiskOps)
        chappe_world.disk("keeper").refuse()
        with pytest.raises(StorageError):
            SegmentStorage(tmp_path / "store")
        with pytest.raises(StorageError):
            Journal(tmp_path / "journal", "a", "B")
        chappe_world.disk("keeper").allow()
        Store(tmp_path / "store").close()
