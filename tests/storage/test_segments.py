"""The segment storage over restarts: clean ones, unclean ones, sealed segments, retention, locks and formats."""

from __future__ import annotations

import fcntl
import json
import os
import resource
import shutil
import subprocess
import sys
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.alone import alone

from chappe.errors import StorageError, StorageFormat, StorageLocked
from chappe.log.batch import Batch, encode_batch
from chappe.log.storage import AppendRecords, PartitionInfo, Retention, StorageRead
from chappe.storage.segments import SegmentStorage
from chappe.storage.segments.directory import folder_name, load_identity
from chappe.storage.segments.files import Buffer, FileOps


def batch(
    base: int, count: int, *, topic: str = "t", partition: str = "p", at: int = 100, heal: bool = False
) -> AppendRecords:
    body = encode_batch(base, [b"record %d of %s" % (n, partition.encode()) for n in range(base, base + count)], at)
    return AppendRecords(topic, partition, base, count, at, at, body, heal)


def keep(storage: SegmentStorage, *batches: AppendRecords) -> None:
    storage.publish(storage.write(batches))


def offsets(read: StorageRead) -> list[int]:
    return [n for raw in read.batches for n in range(Batch.parse(raw).base, Batch.parse(raw).next)]


def everything(storage: SegmentStorage, topic: str = "t", partition: str = "p") -> list[int]:
    """The offsets of all that can be read, hole or not."""
    found = storage.partition(topic, partition)
    if found is None:
        return []
    at, seen = found.first, []
    while at < found.next:
        read = storage.read(topic, partition, at, 1 << 20)
        seen += offsets(read)
        at = read.hole.last + 1 if read.hole else seen[-1] + 1
    return seen


def crashed(path: Path, copy: Path) -> Path:
    """A copy of a store as kill -9 would leave it at this moment."""
    shutil.copytree(path, copy)
    return copy


def without_version(infos: Sequence[PartitionInfo]) -> list[tuple[object, ...]]:
    return [(i.topic, i.partition, i.first, i.next, i.bytes, i.timestamp_min, i.timestamp_max) for i in infos]


def segments(path: Path, kind: str = "seg") -> list[Path]:
    return sorted((path / "topics").glob(f"*/*.{kind}"))


@pytest.mark.parametrize("clean", [True, False])
def test_everything_is_there_after_a_restart(tmp_path: Path, clean: bool) -> None:
    path = tmp_path / "store"
    storage = SegmentStorage(path, segment_bytes=2000)
    for base in range(0, 60, 3):
        keep(storage, batch(base, 3, at=base), batch(base, 3, partition="q", at=base), batch(base, 3, topic="u"))
    before, version = storage.changed("", 0, 100), storage.version
    if clean:
        storage.close()
    else:
        path = crashed(path, tmp_path / "copy")

    again = SegmentStorage(path, segment_bytes=2000)
    assert again.store_id == storage.store_id
    assert sorted(without_version(again.changed("", 0, 100))) == sorted(without_version(before))
    assert again.version > version
    assert [each.version > version for each in again.changed("", version, 100)] == [True] * 3
    assert everything(again) == everything(again, "t", "q") == everything(again, "u") == list(range(60))
    assert [again.offset_at("t", "q", at) for at in (0, 30, 31, 57, 58)] == [0, 30, 33, 57, 60]
    assert again.holes() == []

    keep(again, batch(60, 3))
    assert everything(again) == list(range(63))
    again.close()


def test_a_clean_restart_goes_on_with_the_same_segment(tmp_path: Path) -> None:
    for base in range(5):
        storage = SegmentStorage(tmp_path)
        keep(storage, batch(base, 1))
        storage.close()
    assert len(segments(tmp_path)) == len(segments(tmp_path, "idx")) == 1


def test_a_kill_after_going_on_with_a_segment_loses_nothing(tmp_path: Path) -> None:
    storage = SegmentStorage(tmp_path / "s")
    keep(storage, batch(0, 3))
    storage.close()
    storage = SegmentStorage(tmp_path / "s")
    keep(storage, batch(3, 3))
    assert everything(SegmentStorage(crashed(tmp_path / "s", tmp_path / "copy"))) == list(range(6))


def test_a_restart_without_a_write_changes_no_file(tmp_path: Path) -> None:
    always = ("lock", "versions")  # every start has versions of its own
    storage = SegmentStorage(tmp_path / "s")
    keep(storage, batch(0, 3))
    storage.close()
    before = {each: each.stat().st_mtime_ns for each in (tmp_path / "s").rglob("*") if each.name not in always}
    SegmentStorage(tmp_path / "s").close()
    assert {each: each.stat().st_mtime_ns for each in (tmp_path / "s").rglob("*") if each.name not in always} == before


def test_a_write_not_published_is_there_after_a_restart(tmp_path: Path) -> None:
    storage = SegmentStorage(tmp_path / "s")
    keep(storage, batch(0, 3))
    storage.write([batch(3, 3)])
    assert everything(storage) == [0, 1, 2]
    again = SegmentStorage(crashed(tmp_path / "s", tmp_path / "copy"))
    assert everything(again) == [0, 1, 2, 3, 4, 5]


def test_many_segments_are_read_as_one_log(tmp_path: Path) -> None:
    storage = SegmentStorage(tmp_path, segment_entries=7)
    for base in range(0, 200, 2):
        keep(storage, batch(base, 2), batch(base, 2, partition="q"))
    assert len(segments(tmp_path)) > 20
    assert offsets(storage.read("t", "p", 0, 1 << 20)) == list(range(200))
    assert everything(storage, "t", "q") == list(range(200))


def test_writes_may_seal_segments_before_earlier_ones_are_published(tmp_path: Path) -> None:
    storage = SegmentStorage(tmp_path, segment_entries=1)
    written = [storage.write([batch(base, 2)]) for base in range(0, 20, 2)]
    for each in written:
        storage.publish(each)
        assert everything(storage) == list(range(storage.partition("t", "p").next))  # type: ignore[union-attr]
    assert everything(storage) == list(range(20))


def test_holes_and_heals_survive_a_restart(tmp_path: Path) -> None:
    storage = SegmentStorage(tmp_path, segment_entries=3)
    keep(storage, batch(0, 3), batch(9, 3))
    keep(storage, batch(20, 2))
    keep(storage, batch(5, 2, heal=True))
    keep(storage, batch(12, 8, heal=True))
    storage.close()
    again = SegmentStorage(tmp_path, segment_entries=3)
    assert [(each.first, each.last) for each in again.holes()] == [(3, 4), (7, 8)]
    assert everything(again) == [0, 1, 2, 5, 6, *range(9, 22)]


def test_many_topics_need_few_descriptors(tmp_path: Path) -> None:
    alone(use_many_topics, tmp_path)


def use_many_topics(path: Path) -> None:
    storage = SegmentStorage(path)
    resource.setrlimit(resource.RLIMIT_NOFILE, (512, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    for start in range(0, 600, 100):
        keep(storage, *(batch(0, 1, topic=f"topic {n}") for n in range(start, start + 100)))
    assert all(everything(storage, f"topic {n}") == [0] for n in range(600))
    keep(storage, *(batch(1, 1, topic=f"topic {n}") for n in range(0, 600, 50)))
    storage.close()
    again = SegmentStorage(path)
    assert len(again.topics()) == 600
    again.close()


def test_writing_on_another_thread_while_reading(tmp_path: Path) -> None:
    storage = SegmentStorage(tmp_path, segment_entries=3)
    policies = [("t", Retention(records=50))]
    with ThreadPoolExecutor(1) as writer:
        waiting = deque([writer.submit(storage.write, [batch(0, 2)])])
        for base in range(2, 600, 2):
            waiting.append(writer.submit(storage.write, [batch(base, 2), batch(base, 2, partition="q")]))
            if base % 50 == 0:
                waiting.append(writer.submit(storage.retain, policies, 0))
            while len(waiting) > 3:
                finished = waiting.popleft().result()
                storage.publish(finished) if finished.rows else storage.forget(finished)  # type: ignore[attr-defined]
                found = storage.partition("t", "p")
                assert found is not None
                assert everything(storage) == list(range(found.first, found.next))
        for each in waiting:
            finished = each.result()
            storage.publish(finished) if finished.rows else storage.forget(finished)  # type: ignore[attr-defined]
    assert storage.holes() == []
    assert everything(storage)[-1] == 599
    assert everything(storage, "t", "q")[-1] == 599


class Recorder(FileOps):
    """Notes the calls that decide about durability."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def pwritev(self, fd: int, buffers: Sequence[Buffer], position: int) -> int:
        self.calls.append("write")
        return super().pwritev(fd, buffers, position)

    def fdatasync(self, fd: int) -> None:
        self.calls.append("sync")
        super().fdatasync(fd)

    def fsync(self, fd: int) -> None:
        self.calls.append("sync all")
        super().fsync(fd)


def test_a_commit_is_one_sync_for_each_topic_it_touches(tmp_path: Path) -> None:
    ops = Recorder()
    storage = SegmentStorage(tmp_path, ops=ops)
    first = [batch(0, 1), batch(0, 1, partition="q"), batch(0, 1, topic="u")]
    ops.calls.clear()
    storage.write(first)
    # both files and both folders are new; then the manifest says what may be acknowledged
    assert ops.calls[-5:] == ["sync", "sync all", "sync", "sync all", "write"]
    ops.calls.clear()
    storage.write([batch(1, 1), batch(1, 1, topic="u"), batch(1, 1, partition="q")])
    assert ops.calls == ["write", "write", "sync", "sync", "write"]


# -- retention ---------------------------------------------------------------------------------------------


def filled(path: Path) -> SegmentStorage:
    """Ten segments of two blocks, of ten records each; record n has the time n seconds."""
    storage = SegmentStorage(path, segment_entries=2)
    for base in range(0, 100, 10):
        keep(storage, *(batch(n, 5, at=n * 1_000_000) for n in (base, base + 5)))
    keep(storage, batch(0, 1, partition="q", at=99_000_000))
    return storage


@pytest.mark.parametrize(
    ("policy", "first"),
    [
        (Retention(records=35), 60),
        (Retention(records=1000), 0),
        (Retention(records=0), 100),
        (Retention(bytes=0), 100),
        (Retention(bytes=1 << 30), 0),
        (Retention(age_s=50), 50),
        (Retention(age_s=50, records=1000), 50),
        (Retention(age_s=90, records=21), 80),
    ],
)
def test_whole_segments_go_oldest_first(tmp_path: Path, policy: Retention, first: int) -> None:
    storage = filled(tmp_path)
    storage.forget(storage.retain([("no", Retention(records=0)), ("t*", policy), ("*", Retention())], 100_000_000))
    assert everything(storage) == list(range(first, 100))
    assert everything(storage, "t", "q") == [0]
    assert storage.holes() == []
    found = storage.partition("t", "p")
    assert found is not None
    assert (found.first, found.next) == (first, 100)
    assert all(len(each.name) == 20 for each in segments(tmp_path))
    storage.close()

    again = SegmentStorage(tmp_path, segment_entries=2)
    assert everything(again) == list(range(first, 100))
    assert without_version([again.partition("t", "p") or found]) == without_version([found])
    assert again.holes() == []
    keep(again, batch(100, 5))
    assert everything(again) == list(range(first, 105))


def test_a_slow_topic_ages_too(tmp_path: Path) -> None:
    storage = SegmentStorage(tmp_path)
    policy = [("t", Retention(age_s=10))]
    keep(storage, batch(0, 5, at=1_000_000))
    keep(storage, batch(5, 5, at=9_000_000))
    storage.forget(storage.retain(policy, 12_000_000))
    assert everything(storage) == list(range(10))
    keep(storage, batch(10, 5, at=13_000_000))
    storage.forget(storage.retain(policy, 20_000_000))
    assert everything(storage) == list(range(10, 15))
    assert len(segments(tmp_path)) == 1


def test_a_time_in_the_future_does_not_keep_a_segment_for_ever(tmp_path: Path) -> None:
    storage = SegmentStorage(tmp_path, segment_entries=1)
    now_us = time.time_ns() // 1000
    keep(storage, batch(0, 5, at=now_us + 10**15))
    keep(storage, batch(5, 5, at=now_us))
    storage.forget(storage.retain([("t", Retention(age_s=3600))], now_us + 7200 * 10**6))
    assert everything(storage) in ([], list(range(5, 10)))


def test_a_kill_between_retain_and_forget_loses_only_what_was_to_go(tmp_path: Path) -> None:
    storage = filled(tmp_path / "s")
    storage.retain([("t", Retention(records=35))], 0)
    again = SegmentStorage(crashed(tmp_path / "s", tmp_path / "copy"), segment_entries=2)
    assert everything(again) == list(range(60, 100))
    again.forget(again.retain([("t", Retention(records=35))], 0))
    assert everything(again) == list(range(60, 100))
    assert len(segments(tmp_path / "copy")) <= 6


def test_retention_beside_a_hole_and_an_old_heal(tmp_path: Path) -> None:
    storage = SegmentStorage(tmp_path, segment_entries=1)
    for base in (0, 20, 40):
        keep(storage, batch(base, 10))
    keep(storage, batch(12, 3, heal=True))
    storage.forget(storage.retain([("t", Retention(records=20))], 0))
    assert [(each.first, each.last) for each in storage.holes()] == [(10, 11), (15, 19), (30, 39)]
    storage.forget(storage.retain([("t", Retention(records=10))], 0))
    assert [(each.first, each.last) for each in storage.holes()] == [(30, 39)]
    storage.close()
    again = SegmentStorage(tmp_path, segment_entries=1)
    assert [(each.first, each.last) for each in again.holes()] == [(30, 39)]
    assert everything(again) == list(range(40, 50))


def test_a_reset_survives_a_clean_restart(tmp_path: Path) -> None:
    storage = SegmentStorage(tmp_path)
    keep(storage, batch(0, 3))
    storage.reset("t", "p", 50)
    storage.reset("t", "late", 7)
    storage.reset("never written", "p", 7)
    storage.close()
    again = SegmentStorage(tmp_path)
    found, late = again.partition("t", "p"), again.partition("t", "late")
    assert found is not None
    assert late is not None
    assert (found.first, found.next, late.first, late.next) == (50, 50, 7, 7)
    assert again.topics() == ["t"]


# -- the directory -----------------------------------------------------------------------------------------


def test_one_directory_has_one_user(tmp_path: Path) -> None:
    storage = SegmentStorage(tmp_path)
    with pytest.raises(StorageLocked, match=f"{tmp_path}.*process {os.getpid()}"):
        SegmentStorage(tmp_path)
    storage.close()
    SegmentStorage(tmp_path).close()


def test_another_process_is_told_who_has_it(tmp_path: Path) -> None:
    storage = SegmentStorage(tmp_path)
    code = (
        "import sys; from chappe.storage.segments import SegmentStorage; from chappe.errors import StorageLocked\n"
        "try: SegmentStorage(sys.argv[1])\n"
        "except StorageLocked as error: print(error)"
    )
    told = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True)
    assert f"process {os.getpid()}" in told.stdout
    storage.close()


IDENTITIES = ("chappe-store.json", "chappe-store.copy.json")


def test_a_newer_format_is_refused(tmp_path: Path) -> None:
    SegmentStorage(tmp_path).close()
    for name in IDENTITIES:
        (tmp_path / name).write_text(json.dumps({"format": 3, "store_id": "x"}))
    with pytest.raises(StorageFormat, match="newer chappe"):
        SegmentStorage(tmp_path)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"format": "x", "store_id": 1}', "\0" * 60, None])
@pytest.mark.parametrize("name", IDENTITIES)
def test_a_damaged_identity_is_mended_from_its_other_copy(tmp_path: Path, name: str, text: str | None) -> None:
    storage = SegmentStorage(tmp_path)
    keep(storage, batch(0, 3))
    storage.close()
    if text is None:
        (tmp_path / name).unlink()
    else:
        (tmp_path / name).write_text(text)
    again = SegmentStorage(tmp_path)
    assert again.store_id == storage.store_id
    assert everything(again) == [0, 1, 2]
    assert len({(tmp_path / each).read_bytes() for each in IDENTITIES}) == 1
    again.close()


def test_any_flipped_bit_of_an_identity_is_noticed(tmp_path: Path) -> None:
    storage = SegmentStorage(tmp_path)
    storage.close()
    whole = (tmp_path / IDENTITIES[0]).read_bytes()
    for name in IDENTITIES:
        for bit in range(8 * len(whole)):
            raw = bytearray(whole)
            raw[bit // 8] ^= 1 << bit % 8
            (tmp_path / name).write_bytes(raw)
            assert load_identity(FileOps(), os.fspath(tmp_path)).store_id == storage.store_id


@pytest.mark.parametrize("text", ["", "{", '{"format": 2, "store_id": "x"}', "\0" * 60])
def test_an_unreadable_identity_is_refused(tmp_path: Path, text: str) -> None:
    storage = SegmentStorage(tmp_path)
    keep(storage, batch(0, 3))
    storage.close()
    for name in IDENTITIES:
        (tmp_path / name).write_text(text)
    before = {each: each.read_bytes() for each in tmp_path.rglob("*") if each.is_file()}
    with pytest.raises(StorageFormat, match="restore it"):
        SegmentStorage(tmp_path)
    assert {each: each.read_bytes() for each in tmp_path.rglob("*") if each.is_file()} == before


def test_two_identities_are_not_chosen_from(tmp_path: Path) -> None:
    SegmentStorage(tmp_path / "a").close()
    SegmentStorage(tmp_path / "b").close()
    shutil.copy(tmp_path / "a" / IDENTITIES[0], tmp_path / "b" / IDENTITIES[0])
    with pytest.raises(StorageFormat, match="two stores"):
        SegmentStorage(tmp_path / "b")


def test_a_lost_identity_is_not_made_anew(tmp_path: Path) -> None:
    storage = SegmentStorage(tmp_path)
    keep(storage, batch(0, 1))
    storage.close()
    for name in IDENTITIES:
        (tmp_path / name).unlink()
    with pytest.raises(StorageFormat, match="restore"):
        SegmentStorage(tmp_path)


def test_somebody_elses_directory_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("no copy")
    with pytest.raises(StorageFormat, match="other files"):
        SegmentStorage(tmp_path)
    assert os.listdir(tmp_path) == ["thesis.txt"]


def test_a_file_in_the_way_is_an_error_not_a_traceback(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError):
        SegmentStorage(tmp_path / "file")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write to read-only directories")
def test_a_read_only_directory_is_refused(tmp_path: Path) -> None:
    SegmentStorage(tmp_path).close()
    (tmp_path / "lock").chmod(0o444)
    tmp_path.chmod(0o555)
    try:
        with pytest.raises(StorageError, match="permission"):
            SegmentStorage(tmp_path)
    finally:
        tmp_path.chmod(0o755)


def test_a_stale_lock_file_is_no_lock(tmp_path: Path) -> None:
    SegmentStorage(tmp_path).close()
    (tmp_path / "lock").write_text("1\n")
    storage = SegmentStorage(tmp_path)
    with (tmp_path / "lock").open() as lock, pytest.raises(BlockingIOError):
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    storage.close()


def test_foreign_folders_among_the_topics_are_left_alone(tmp_path: Path) -> None:
    SegmentStorage(tmp_path).close()
    for name in ("%zz", "%%1234", "a b", "%6b"):
        (tmp_path / "topics" / name).mkdir()
    (tmp_path / "topics" / "file").write_text("")
    storage = SegmentStorage(tmp_path)
    assert storage.topics() == []


def test_a_long_topic_whose_name_is_lost_keeps_its_segments(tmp_path: Path) -> None:
    topic = "long " * 50
    storage = SegmentStorage(tmp_path)
    keep(storage, batch(0, 3, topic=topic))
    storage.close()
    name = tmp_path / "topics" / folder_name(topic) / "name"
    name.write_text("another")

    again = SegmentStorage(tmp_path)
    assert again.topics() == [topic]
    assert name.read_text() == topic
    keep(again, batch(3, 3, topic=topic))
    again.close()
    assert everything(SegmentStorage(tmp_path), topic) == list(range(6))


@pytest.mark.process
def test_a_hundred_thousand_partitions_restart_quickly(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    body = encode_batch(0, [b"x" * 100] * 10, 5)
    storage = SegmentStorage(tmp_path)
    for start in range(0, 100_000, 10_000):
        keep(storage, *(AppendRecords("t", f"{n:036d}", 0, 10, 5, 5, body) for n in range(start, start + 10_000)))
    storage.close()
    code = (
        "import sys, time; from chappe.storage.segments import SegmentStorage\n"
        "start = time.monotonic(); storage = SegmentStorage(sys.argv[1])\n"
        "assert len(storage.changed('t', 0, 200_000)) == 100_000\n"
        "peak_kib = int(open('/proc/self/status').read().split('VmHWM:')[1].split()[0])\n"
        "print(f'{time.monotonic() - start:.2f} s, {peak_kib >> 10} MiB')"
    )
    told = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True)
    with capsys.disabled():
        print(f"\n100,000 partitions restart in {told.stdout.strip()}")


@pytest.mark.parametrize("entries", [2, 3, 4])
def test_a_heal_beside_what_it_healed_in_one_sealed_segment(tmp_path: Path, entries: int) -> None:
    storage = SegmentStorage(tmp_path, segment_entries=entries)
    keep(storage, batch(0, 2, at=10), batch(4, 2, at=30))
    keep(storage, batch(2, 2, at=20, heal=True))
    keep(storage, batch(6, 2, at=40))
    assert everything(storage) == list(range(8))
    assert [storage.offset_at("t", "p", at) for at in (10, 11, 21, 31)] == [0, 2, 4, 6]
    times = [10, 10, 20, 20, 30, 30, 40, 40, None]
    assert [storage.time_of("t", "p", at) for at in range(9)] == times
    storage.close()
    again = SegmentStorage(tmp_path, segment_entries=entries)
    assert everything(again) == list(range(8))
    assert [again.offset_at("t", "p", at) for at in (10, 11, 21, 31)] == [0, 2, 4, 6]
    assert [again.time_of("t", "p", at) for at in range(9)] == times
    assert (again.time_of("t", "q", 0), again.time_of("u", "p", 0)) == (None, None)
