"""A producer's promises: its bounds, its identity, and what it says when something cannot be."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import pytest
from tests.api import killed_producer
from tests.api.members import PATIENCE_S, read, values, wait_until

from chappe.api.log.consumer import Consumer
from chappe.api.log.producer import Producer
from chappe.api.log.store import Store
from chappe.api.log.topic_writers import TopicWriter
from chappe.defaults import RECORD_BYTES_MAX
from chappe.errors import (
    BufferFull,
    Closed,
    IdentityInUse,
    IdentityRolledBack,
    RecordTooLarge,
    StorageError,
    StorageFormat,
    StorageFull,
    TimedOut,
    UsageError,
)
from chappe.log.batch import Batch, encode_batch
from chappe.log.beacon import Discovery
from chappe.log.events import JournalDamaged, TowerFound, WritesRefused, WritesResumed
from chappe.reading.topic import read_topic

KIB = b"x" * 1024


def writer(producer: Producer) -> TopicWriter:
    return producer._writer(None)


def abandon(producer: Producer) -> None:
    """Close without waiting for stores that will never come."""
    with pytest.raises(TimedOut):
        producer.close(0.0)


# -- bounds -----------------------------------------------------------------------------------------------


def test_a_full_buffer_is_an_error_for_who_asked_for_one(tower: str) -> None:
    producer = Producer("hello", tower=tower, buffer_bytes=100_000, on_full="error")
    given: list[int] = []
    with pytest.raises(BufferFull, match="start a store"):
        given.extend(producer.send(KIB) for _ in range(1000))

    sent = producer.next_offset
    assert 60 < sent < 300
    with pytest.raises(BufferFull):
        producer.send(KIB)
    assert producer.next_offset == sent
    abandon(producer)


def test_many_records_over_the_bound_are_sent_up_to_it(tower: str, tmp_path: Path) -> None:
    producer = Producer("hello", tower=tower, buffer_bytes=100_000, on_full="error")
    with pytest.raises(BufferFull):
        producer.send_many([KIB] * 1000)
    sent = producer.next_offset
    assert 60 < sent < 300

    with Store(tmp_path, tower=tower):
        producer.flush(PATIENCE_S)
        assert producer.stored == sent
        producer.close()


def test_a_full_buffer_blocks_until_a_store_makes_room(tower: str, tmp_path: Path) -> None:
    producer = Producer("hello", tower=tower, buffer_bytes=100_000)
    sender = threading.Thread(target=producer.send_many, args=([KIB] * 1000,))
    sender.start()
    wait_until(lambda: producer._core.kept_bytes >= 100_000)
    assert producer.next_offset < 300

    with Store(tmp_path, tower=tower):
        sender.join(PATIENCE_S)
        assert not sender.is_alive()
        producer.close()
    assert producer.stored == 1000


@pytest.mark.parametrize("many", [False, True])
def test_one_thread_may_wait_for_room_while_another_waits_for_stores(tower: str, tmp_path: Path, many: bool) -> None:
    producer = Producer("hello", tower=tower, buffer_bytes=100_000)
    producer.send(KIB)
    waiting: list[Callable[[], object]] = [
        lambda: producer.flush(PATIENCE_S),
        lambda: producer.send_many([KIB] * 500) if many else [producer.send(KIB) for _ in range(500)],
    ]
    threads = [threading.Thread(target=each) for each in waiting]
    for thread in threads:
        thread.start()
    wait_until(lambda: producer._core.kept_bytes >= 100_000)

    with Store(tmp_path, tower=tower):
        for thread in threads:
            thread.join(PATIENCE_S)
        assert not any(thread.is_alive() for thread in threads)
        producer.close()
    assert producer.stored == 501


@pytest.mark.parametrize("many", [False, True])
def test_calls_keep_their_time_outs_while_another_thread_waits_for_room(tower: str, many: bool) -> None:
    producer = Producer("hello", tower=tower, buffer_bytes=100_000)
    ended: list[BaseException] = []

    def send() -> None:
        try:
            producer.send_many([KIB] * 500) if many else [producer.send(KIB) for _ in range(500)]
        except Closed as error:
            ended.append(error)

    sender = threading.Thread(target=send)
    sender.start()
    wait_until(lambda: producer._core.kept_bytes >= 100_000)

    producer.events()  # each of these waited for ever
    with pytest.raises(TimedOut):
        producer.flush(0.05)
    with pytest.raises(TimedOut):
        producer.close(0.05)
    sender.join(PATIENCE_S)
    assert not sender.is_alive()
    assert len(ended) == 1


def test_records_from_several_threads_get_offsets_of_their_own(tower: str, store: Store) -> None:
    found: list[int] = []
    with Producer("hello", tower=tower) as producer:
        threads = [
            threading.Thread(target=lambda: found.extend([producer.send(b"x") for _ in range(500)])) for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(found) == list(range(2000))
    assert producer.stored == 2000


def test_a_record_too_large_is_refused_and_the_next_one_is_not(tower: str, store: Store) -> None:
    with Producer("hello", tower=tower) as producer:
        producer.send(b"before")
        for refused in (
            lambda: producer.send(bytes(RECORD_BYTES_MAX + 1)),
            lambda: producer.send(bytes(RECORD_BYTES_MAX), key=b"k"),
            lambda: producer.send_many([bytes(RECORD_BYTES_MAX + 1)]),
        ):
            with pytest.raises(RecordTooLarge, match="at most"):
                refused()
        assert producer.send(bytes(RECORD_BYTES_MAX)) == 1
        with Consumer("hello", tower=tower, reset="earliest") as consumer:
            assert values(read(consumer, 2)) == [b"before", bytes(RECORD_BYTES_MAX)]


@pytest.mark.parametrize(
    "send",
    [
        lambda producer: producer.send(5),
        lambda producer: producer.send(b"x", key=5),
        lambda producer: producer.send(b"x", timestamp=datetime(2024, 1, 1)),
        lambda producer: producer.send(b"x", timestamp=1.5),
        lambda producer: producer.send(b"x", timestamp=2**63),
        lambda producer: producer.send(b"x", headers={"h" * 70_000: b""}),
        lambda producer: producer.send(b"x", headers=[("h", b"")] * 300),
        lambda producer: producer.send_many([b"x"], timestamp=2**63),
        lambda producer: producer.send_many([b"x"], timestamp="now"),
    ],
)
def test_what_cannot_be_carried_is_refused_and_the_next_record_is_not(
    tower: str, store: Store, send: Callable[[Producer], object]
) -> None:
    with Producer("hello", tower=tower) as producer:
        with pytest.raises(UsageError):
            send(producer)
        assert producer.send(b"good") == 0
        producer.flush(PATIENCE_S)


@pytest.mark.parametrize(
    "options",
    [{"min_acks": -1}, {"min_acks": 0, "identity": "me"}, {"on_full": "drop"}, {"identity": "../me"}, {"identity": ""}],
    ids=str,
)
def test_options_out_of_their_range_are_refused(tower: str, tmp_path: Path, options: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        Producer("hello", tower=tower, directory=tmp_path, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("tower", ["host:port", "h:1:2:3", "h:99999", "a b:1"])
def test_a_tower_that_cannot_be_is_refused(tower: str) -> None:
    with pytest.raises(UsageError, match="address of a tower"):
        Producer("hello", tower=tower)


def test_a_flush_that_ends_early_says_what_is_missing(tower: str) -> None:
    producer = Producer("hello", tower=tower)
    producer.send_many([b"x"] * 3)
    with pytest.raises(TimedOut, match=r"3 records .* is a store running"):
        producer.flush(0.05)
    assert not TimedOut("").definite
    abandon(producer)


def test_an_error_of_the_users_program_is_not_hidden_by_closing(tower: str) -> None:
    def program() -> None:
        with Producer("hello", tower=tower) as producer:
            producer.send(b"x")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        program()


@pytest.mark.parametrize("microsecond", [0, 1, 7, 123_457, 999_999])
def test_a_moment_keeps_its_microseconds(tower: str, store: Store, microsecond: int) -> None:
    moment = datetime(2031, 7, 1, 1, 2, 3, microsecond, tzinfo=UTC)
    with Producer("hello", tower=tower) as producer:
        producer.send(b"x", timestamp=moment)
        producer.send_many([b"y"], timestamp=moment)
    with Consumer("hello", tower=tower, reset="earliest") as consumer:
        assert {record.timestamp % 1_000_000 for record in read(consumer, 2)} == {microsecond}


# -- identity ---------------------------------------------------------------------------------------------


def test_an_identity_goes_on_where_it_ended(tower: str, store: Store, tmp_path: Path) -> None:
    partitions = set()
    for base in range(0, 9, 3):
        with Producer("hello", tower=tower, identity="me", directory=tmp_path) as producer:
            partitions.add(producer.partition)
            assert producer.send_many([b"%d" % n for n in range(base, base + 3)]) == range(base, base + 3)

    assert len(partitions) == 1
    with Consumer("hello", tower=tower, reset="earliest") as consumer:
        assert values(read(consumer, 9)) == [b"%d" % n for n in range(9)]


def test_what_was_not_stored_is_published_by_the_next_life(tower: str, tmp_path: Path) -> None:
    producer = Producer("hello", tower=tower, identity="me", directory=tmp_path)
    producer.send_many([b"a", b"b"])
    abandon(producer)

    with Producer("hello", tower=tower, identity="me", directory=tmp_path) as again:
        assert (again.stored, again.next_offset) == (0, 2)
        with Store(tmp_path / "store", tower=tower):
            assert again.send(b"c") == 2
            again.flush(PATIENCE_S)
            with Consumer("hello", tower=tower, reset="earliest") as consumer:
                assert values(read(consumer, 3)) == [b"a", b"b", b"c"]


def test_damage_in_a_journal_is_told_and_everything_else_is_sent(tower: str, tmp_path: Path) -> None:
    producer = Producer("hello", tower=tower, identity="me", directory=tmp_path)
    for batch in ([b"a", b"b"], [b"c", b"d"], [b"e"]):
        producer.send_many(batch)
    abandon(producer)
    (path,) = (tmp_path / "producers" / "me").glob("*.journal")
    raw = bytearray(path.read_bytes())
    raw[raw.index(b"cd")] ^= 1
    path.write_bytes(raw)

    with Producer("hello", tower=tower, identity="me", directory=tmp_path) as again:
        damage = JournalDamaged("hello", again.partition, 2, 3)
        assert damage in again.events()
        assert "records 2 to 3" in str(damage)
        with Store(tmp_path / "store", tower=tower):
            assert again.send(b"f") == 5
            again.flush(PATIENCE_S)
            lost, rest = {"hello": {again.partition: 2}}, {"hello": {again.partition: 4}}
            tables = read_topic("hello", tower=tower, end=lost), read_topic("hello", tower=tower, start=rest)
            assert [each["value"].to_pylist() for each in tables] == [[b"a", b"b"], [b"e", b"f"]]


@pytest.mark.parametrize("many", [False, True])
def test_what_a_full_journal_refuses_was_not_sent_and_the_rest_goes_on_with_its_offsets(
    tower: str, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, many: bool
) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    def send(value: bytes) -> object:
        writer(producer)._common.sent_at = 0.0  # a record after a silence leaves at once
        return producer.send_many([value]) if many else producer.send(value)

    with (
        Producer("hello", tower=tower, identity="me", directory=tmp_path) as producer,
        Consumer("hello", tower=tower, reset="earliest") as consumer,
    ):
        send(b"a")
        producer.flush(PATIENCE_S)
        with monkeypatch.context() as broken:
            broken.setattr(os, "fdatasync", full)
            for _ in range(2):
                with pytest.raises(StorageFull, match="nothing is sent until it works again"):
                    send(b"refused")
            with pytest.raises(StorageFull):
                producer.send_batch(encode_batch(0, [b"refused"], 0))
            assert producer.next_offset == 1
        send(b"b")
        producer.flush(PATIENCE_S)
        assert [type(each) for each in producer.events() if not isinstance(each, TowerFound)] == [
            WritesRefused,
            WritesResumed,
        ]
        assert values(read(consumer, 2)) == [b"a", b"b"]
    with Producer("hello", tower=tower, identity="me", directory=tmp_path) as producer:
        assert producer.next_offset == 2


@pytest.mark.parametrize("after", [False, True])
def test_ctrl_c_while_the_journal_writes_leaves_a_producer_that_goes_on(
    tower: str, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: bool
) -> None:
    with Producer("hello", tower=tower, identity="me", directory=tmp_path) as producer:
        producer.send(b"a")
        producer.flush(PATIENCE_S)
        journal = writer(producer)._journal
        assert journal is not None
        append = journal.append

        def interrupted(body: bytes, end: int) -> None:
            if after:
                append(body, end)
            raise KeyboardInterrupt

        with monkeypatch.context() as patched, producer._lock:
            patched.setattr(journal, "append", interrupted)
            writer(producer)._common.sent_at = 0.0  # a record after a silence leaves at once
            with pytest.raises(KeyboardInterrupt):
                producer.send(b"b")
        assert producer.send(b"c") == 2
        producer.flush(PATIENCE_S)
        with Consumer("hello", tower=tower) as consumer:
            assert values(read(consumer, 3)) == [b"a", b"b", b"c"]


def test_what_was_gathered_when_the_journal_failed_is_sent_when_it_works_or_by_the_next_life(
    tower: str, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken_disk(*_: object) -> int:
        raise OSError(errno.EIO, "Input/output error")

    producer = Producer("hello", tower=tower, identity="me", directory=tmp_path)
    with producer._lock:  # so that our thread does not send them first
        writer(producer).core.append(b"a")
        writer(producer).core.append(b"b")
        writer(producer)._quiet = False
        with monkeypatch.context() as broken:
            broken.setattr(os, "fdatasync", broken_disk)
            with pytest.raises(StorageError, match="Input/output error"):
                producer.flush(0)
            with pytest.raises(StorageError):
                producer.send(b"c")
    wait_until(lambda: producer.stored == 2)  # without another call

    monkeypatch.setattr(os, "fdatasync", broken_disk)
    with producer._lock:
        common = writer(producer)._common
        common.sent_at, common.silence_s = time.monotonic(), 1e9  # it is gathered
        assert producer.send(b"d") == 2
    with pytest.raises(StorageError, match="1 records of topic 'hello' are not synced to disk, the next producer"):
        producer.close(0)
    monkeypatch.undo()
    with Producer("hello", tower=tower, identity="me", directory=tmp_path) as producer:
        assert producer.next_offset == 3
        producer.flush(PATIENCE_S)
    assert producer.stored == 3


@pytest.mark.process
def test_a_killed_producer_neither_loses_nor_repeats_nor_skips_an_offset(
    tower: str, store: Store, tmp_path: Path
) -> None:
    stored = 0
    partitions = set()
    for _ in range(3):
        child = subprocess.Popen(
            [sys.executable, killed_producer.__file__, tower, str(tmp_path)], stdout=subprocess.PIPE, text=True
        )
        assert child.stdout is not None
        try:
            partition, first = child.stdout.readline().split()
            assert int(first) >= stored  # where the last life ended, or behind what of it was not known to be stored
            for _ in range(20):
                stored = int(child.stdout.readline())
        finally:
            child.kill()
            rest = child.stdout.read()
            child.wait()
            child.stdout.close()
        stored = int([str(stored), *(line for line in rest.splitlines(keepends=True) if line.endswith("\n"))][-1])
        partitions.add(partition)

    with Producer("hello", tower=tower, identity="me", directory=tmp_path) as producer:
        end = producer.next_offset
        assert end >= stored
        producer.flush(PATIENCE_S)
    assert partitions == {producer.partition}
    with Consumer("hello", tower=tower, reset="earliest") as consumer:
        assert values(read(consumer, end)) == [b"%d" % n for n in range(end)]


def test_two_producers_with_one_identity_are_one_too_many(tower: str, store: Store, tmp_path: Path) -> None:
    with (
        Producer("hello", tower=tower, identity="me", directory=tmp_path) as first,
        pytest.raises(IdentityInUse, match="another identity"),
    ):
        Producer("hello", tower=tower, identity="me", directory=tmp_path)
    assert first.stored == 0


def test_a_copied_identity_is_noticed_through_the_tower_and_the_newcomer_gives_way(
    tower: str, store: Store, tmp_path: Path
) -> None:
    first = Producer("hello", tower=tower, identity="me", directory=tmp_path / "a")
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    assert isinstance(first._node.discovery, Discovery)
    first._node.discovery._claims[first.partition].since -= 60.0  # it is no newcomer any more
    second = Producer("hello", tower=tower, identity="me", directory=tmp_path / "b")

    wait_until(lambda: second._error is not None)
    with pytest.raises(IdentityInUse, match="gives way"):
        second.send(b"x")
    second.close()
    assert first.send(b"x") == 0
    first.close()


def test_an_identity_restored_from_a_backup_sends_nothing_and_says_how_to_go_on(
    tower: str, store: Store, tmp_path: Path
) -> None:
    def producer() -> Producer:
        return Producer("hello", tower=tower, identity="me", directory=tmp_path / "state")

    with producer() as first:
        first.send_many([b"%d" % n for n in range(60)])
        first.flush(PATIENCE_S)
        shutil.copytree(tmp_path / "state", tmp_path / "backup")
        first.send_many([b"%d" % n for n in range(60, 100)])
    shutil.rmtree(tmp_path / "state")
    (tmp_path / "backup").rename(tmp_path / "state")

    with producer() as again:
        with suppress(IdentityRolledBack):
            assert again.send(b"new") == 60  # it is taken and held, unless the store has answered already
        with pytest.raises(IdentityRolledBack, match=r"up to offset 99.* go on with a new identity"):
            again.flush(PATIENCE_S)
        for call in (lambda: again.send(b"x"), lambda: again.send_many([b"x"]), lambda: again.flush(0)):
            with pytest.raises(IdentityRolledBack):
                call()
    with Consumer("hello", tower=tower, reset="earliest") as consumer:
        assert values(read(consumer, 100)) == [b"%d" % n for n in range(100)]


def test_closing_says_it_if_no_call_did(tower: str, store: Store, tmp_path: Path) -> None:
    shutil.copytree(_lived(tower, tmp_path / "state"), tmp_path / "backup")
    _lived(tower, tmp_path / "state")

    with (
        pytest.raises(IdentityRolledBack),
        Producer("hello", tower=tower, identity="me", directory=tmp_path / "backup") as again,
    ):
        again.send(b"lost")


def _lived(tower: str, state: Path) -> Path:
    with Producer("hello", tower=tower, identity="me", directory=state) as producer:
        producer.send_many([b"x"] * 10)
    return state


def test_an_identity_belongs_to_one_topic(tower: str, store: Store, tmp_path: Path) -> None:
    Producer("hello", tower=tower, identity="me", directory=tmp_path).close()
    with pytest.raises(StorageFormat, match="'hello'"):
        Producer("other", tower=tower, identity="me", directory=tmp_path)


def test_batches_come_after_what_was_sent_before_and_keep_their_times(tower: str, store: Store) -> None:
    stamp = 1_700_000_000_000_000
    raw = encode_batch(5, [b"b", b"c"], stamp, keys=[b"k", None])
    with Producer("hello", tower=tower) as producer, Consumer("hello", tower=tower, reset="earliest") as consumer:
        producer.send(b"a")
        assert producer.send_batch(raw) == range(1, 3)
        assert producer.send_batch(Batch.parse(raw)) == range(3, 5)
        producer.send(b"d")
        records = read(consumer, 6)
    assert values(records) == [b"a", b"b", b"c", b"b", b"c", b"d"]
    assert [record.offset for record in records] == list(range(6))
    assert [(record.key, record.timestamp) for record in records[1:3]] == [(b"k", stamp), (None, stamp)]


def test_a_batch_over_the_bound_waits_for_room_or_is_refused(tower: str) -> None:
    producer = Producer("hello", tower=tower, buffer_bytes=100_000, on_full="error")
    raw = encode_batch(0, [KIB] * 100, 0)
    given: list[range] = []
    with pytest.raises(BufferFull):
        given.extend(producer.send_batch(raw) for _ in range(100))
    assert producer.next_offset == 100 * len(given) < 10_000
    abandon(producer)
