"""Stores become topics, and topics stores."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.endpoints import endpoint_of
from tests.waiting import PATIENCE_S, until

from chappe import Consumer, DataStore, DataStoreToTopic, Endpoint, Producer, Record, Store, TopicToDataStore
from chappe.bridges.kv_form import EXPIRES, VERSION, StoreRow, entry_of, fits, is_mark, pack, row_of
from chappe.data.binary import decode, encode
from chappe.data.scalars import Count, Timestamp
from chappe.data.values import Set
from chappe.defaults import RECORD_BYTES_MAX, STORE_CHANGES_MAX
from chappe.errors import IdentityInUse, InvalidData, TimedOut, UsageError
from chappe.log.batch import Batch

KILLED = Path(__file__).with_name("killed_bridge.py")
KILLS = 3


@pytest.fixture
def master() -> Iterator[DataStore]:
    with Endpoint() as endpoint:
        yield endpoint.attach_master("users")


def records(tower: str, topic: str = "users") -> list[Record]:
    """All that is in the topic."""
    found: list[Record] = []
    deadline = time.monotonic() + PATIENCE_S
    with Consumer(topic, tower=tower, reset="earliest") as consumer:
        while not (consumer.at_end() and found):
            assert time.monotonic() < deadline
            found += consumer.poll(0.1) or ()
    return found


def table(found: list[Record]) -> dict[Any, Any]:
    """The latest value of each key."""
    places: dict[bytes, tuple[int, str, int]] = {}
    kept: dict[bytes, bytes | None] = {}
    for each in found:
        assert each.key is not None
        place = (each.timestamp, each.partition, each.offset)
        if place > places.get(each.key, (0, "", -1)):
            places[each.key], kept[each.key] = place, each.value
    return {decode(key): decode(value) for key, value in kept.items() if value is not None}


# -- the form -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", ["ann", 1, Count(1), ("a", None), Set([1, 2]), Timestamp(1), b"\xff"])
def test_an_entry_is_a_record_and_an_entry_again(key: Any) -> None:
    ((count, raw),) = pack([row_of(key, ("a", key), 7, expires_ns=99)], 1_000)
    (record,) = Batch.parse(raw).records("t", "p")
    assert (count, record.timestamp, record.headers) == (1, 1_000, ((VERSION, b"7"), (EXPIRES, b"99")))
    assert record.key is not None
    entry = entry_of(record.key, record.value, record.headers)
    assert (encode(entry.key), encode(entry.value), entry.gone) == (encode(key), encode(("a", key)), False)
    assert (entry.expires_ns, entry.version) == (99, 7)


def test_an_entry_that_is_gone_has_no_value_and_one_that_is_none_has() -> None:
    rows = [row_of("a", None, 1, gone=True, expires_ns=5), row_of("b", None, 2)]
    ((_, raw),) = pack(rows, 0)
    gone, none = Batch.parse(raw).records("t", "p")
    assert (gone.value, gone.headers) == (None, ((VERSION, b"1"),))
    assert entry_of(b"", None, ()).gone
    assert entry_of(gone.key or b"", gone.value, gone.headers).gone
    assert not entry_of(none.key or b"", none.value, none.headers).gone


def test_records_from_elsewhere_are_strings() -> None:
    assert entry_of(b"ann", b'{"score": 1}', ())[:3] == ("ann", '{"score": 1}', False)
    assert entry_of(b"\xff", b"\xfe", (("other", b"x"),))[:3] == (b"\xff", b"\xfe", False)


@pytest.mark.parametrize(
    ("key", "value", "version"), [(b"\xff", encode(1), b"1"), (encode(1), b"\xff", b"1"), (encode(1), encode(1), b"x")]
)
def test_damaged_records_are_told(key: bytes, value: bytes, version: bytes) -> None:
    with pytest.raises(InvalidData):
        entry_of(key, value, ((VERSION, version),))


def test_rows_are_cut_into_batches() -> None:
    rows = [StoreRow(b"k", bytes(size), 1) for size in (10, 300_000, 300_000, 3_000_000, 10)]
    assert [count for count, _ in pack(rows, 0)] == [2, 1, 1, 1]
    assert not fits(StoreRow(b"k", bytes(RECORD_BYTES_MAX), 1))
    assert list(pack([], 0)) == []


# -- a store becomes a topic --------------------------------------------------------------------------------


@pytest.mark.process
def test_every_change_is_a_record_and_the_latest_of_each_key_the_store(
    tower: str, log: Store, master: DataStore, tmp_path: Path
) -> None:
    master.put("old", 1)
    with DataStoreToTopic(master, "users", tower=tower, directory=tmp_path) as feed:
        feed.flush(PATIENCE_S)
        master.put("ann", [1, Count(2)])
        master.put("ann", "x")
        master.put("gone", 1)
        master.erase("gone")
        master.put("soon", 1, expiry_s=0.05)
        until(lambda: not master.exists("soon"))
        feed.flush(PATIENCE_S)
        found = records(tower)
        account = feed.close(PATIENCE_S)
    assert [(decode(each.key or b""), each.value and decode(each.value)) for each in found] == [
        ("old", 1),
        ("ann", (1, Count(2))),
        ("ann", "x"),
        ("gone", 1),
        ("gone", None),
        ("soon", 1),
        ("soon", None),
    ]
    assert [name for name, _ in found[5].headers] == [VERSION, EXPIRES]
    assert table(found) == {"old": 1, "ann": "x"}
    assert (account.records, account.stored, account.left, account.dropped) == (7, 7, 0, 0)


@pytest.mark.process
def test_what_changed_while_nobody_fed_is_written_by_the_next_one_and_nothing_else(
    tower: str, log: Store, master: DataStore, tmp_path: Path
) -> None:
    master.put_many([("same", 1), ("changed", 1), ("erased", 1)])
    DataStoreToTopic(master, "users", tower=tower, directory=tmp_path).close(PATIENCE_S)
    master.put("changed", 2)
    master.erase("erased")
    master.put("new", 1)
    with DataStoreToTopic(master, "users", tower=tower, directory=tmp_path) as feed:
        feed.flush(PATIENCE_S)
        assert feed.progress().records == 3
        found = records(tower)
        assert {each.partition for each in found} == {feed.partition}
    assert table(found) == {"same": 1, "changed": 2, "new": 1}


@pytest.mark.process
def test_a_clone_feeds_what_its_master_has_now(tower: str, log: Store, master: DataStore, tmp_path: Path) -> None:
    port = endpoint_of(master).listen()
    with Endpoint() as endpoint:
        endpoint.peer("127.0.0.1", port, timeout=PATIENCE_S)
        master.put("a", 1)
        clone = endpoint.attach_clone("users")
        with DataStoreToTopic(clone, "users", tower=tower, directory=tmp_path) as feed:
            clone.put("b", 2)
            feed.flush(PATIENCE_S)
            assert table(records(tower)) == {"a": 1, "b": 2}


@pytest.mark.process
def test_a_clone_that_was_without_its_master_goes_on(tower: str, log: Store, tmp_path: Path) -> None:
    with Endpoint() as owner, Endpoint() as endpoint:
        endpoint.peer("127.0.0.1", owner.listen(), timeout=PATIENCE_S)
        first = owner.attach_master("users")
        first.put_many([("a", 1), ("b", 1)])
        clone = endpoint.attach_clone("users", resync_s=0.2, stale_s=0.1)
        with DataStoreToTopic(clone, "users", tower=tower, directory=tmp_path) as feed:
            feed.flush(PATIENCE_S)
            first.close()
            until(lambda: not clone.ready)
            second = owner.attach_master("users")
            second.put("b", 2)
            until(lambda: clone.ready and clone.get("b") == 2)
            feed.flush(PATIENCE_S)
            assert table(records(tower)) == {"b": 2}


@pytest.mark.process
def test_what_is_written_is_later_than_what_is_there(tower: str, log: Store, master: DataStore, tmp_path: Path) -> None:
    """Whatever clock wrote that."""
    with Producer("users", tower=tower) as producer:
        producer.send(encode(1), encode("a"), timestamp=datetime.now(UTC) + timedelta(hours=1))
        producer.flush(PATIENCE_S)
    master.put("a", 2)
    with DataStoreToTopic(master, "users", tower=tower, directory=tmp_path) as feed:
        feed.flush(PATIENCE_S)
        assert table(records(tower)) == {"a": 2}


@pytest.mark.process
def test_when_the_feed_is_too_old_the_difference_is_written(tower: str, master: DataStore, tmp_path: Path) -> None:
    """While no store of the log is there, more changes than the store remembers."""
    master.put("first", 1)
    feed = DataStoreToTopic(master, "users", tower=tower, directory=tmp_path)
    with pytest.raises(TimedOut, match="is a store of the log running"):
        feed.flush(0.3)
    master.put_many((n % 100, n) for n in range(STORE_CHANGES_MAX + 200))
    master.erase("first")
    with Store(tmp_path / "log", tower=tower):
        feed.flush(PATIENCE_S)
        assert feed.close(PATIENCE_S).records < STORE_CHANGES_MAX
        assert table(records(tower)) == dict(master.items())


@pytest.mark.process
def test_compacted_only_the_last_of_what_waits_and_everything_anew(
    tower: str, log: Store, master: DataStore, tmp_path: Path
) -> None:
    master.put_many([("a", 1), ("b", 1)])
    with DataStoreToTopic(master, "users", tower=tower, directory=tmp_path, compact_s=0.05) as feed:
        feed.flush(PATIENCE_S)
        began = feed.progress().records
        until(lambda: feed.progress().records >= began + 6)
    assert table(records(tower)) == {"a": 1, "b": 1}


@pytest.mark.process
def test_two_cannot_feed_one_topic_and_mistakes_are_named(tower: str, master: DataStore, tmp_path: Path) -> None:
    with DataStoreToTopic(master, "users", tower=tower, directory=tmp_path) as feed:
        with pytest.raises(IdentityInUse):
            DataStoreToTopic(master, "users", tower=tower, directory=tmp_path)
        feed.close(0.0)
    for wrong in ({"min_acks": 0}, {"compact_s": 0.0}):
        with pytest.raises(UsageError):
            DataStoreToTopic(master, "users", tower=tower, directory=tmp_path, **wrong)
    with pytest.raises(UsageError, match="one topic"):
        DataStoreToTopic(master, "users*", tower=tower, directory=tmp_path)


def killed(lines: int, *arguments: str) -> None:
    """Run a bridge in a process of its own until it has printed so many lines, and kill it."""
    with subprocess.Popen([sys.executable, str(KILLED), *arguments], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            for _ in range(lines):
                assert process.stdout.readline()
        finally:
            process.kill()


@pytest.mark.process
def test_killed_again_and_again_the_topic_becomes_the_store(tower: str, log: Store, tmp_path: Path) -> None:
    database = tmp_path / "users.db"
    for n in range(KILLS):
        killed(5 + 7 * n, "feed", str(database), str(tmp_path), tower)
    with Endpoint() as endpoint:
        store = endpoint.attach_master("users", "sqlite", path=database)
        with DataStoreToTopic(store, "users", tower=tower, directory=tmp_path) as feed:
            feed.flush(PATIENCE_S)
            found = records(tower)
        assert len(store) > 100
        assert table(found) == dict(store.items())
        assert {each.partition for each in found} == {feed.partition}


# -- a topic becomes a store --------------------------------------------------------------------------------


def visible(store: DataStore) -> dict[Any, Any]:
    return {key: value for key, value in store.items() if not is_mark(key)}


@pytest.mark.process
def test_a_topic_is_kept_as_a_table(tower: str, log: Store, master: DataStore) -> None:
    with Producer("t", tower=tower) as producer, TopicToDataStore(master, "t", tower=tower) as keeper:
        producer.send("1", "a")
        producer.send("2", "a")
        producer.send("1", "b")
        producer.send(None, "b")
        producer.send("no key")
        row = row_of(("typed", 1), Count(5), 1)
        producer.send(row.value, row.key, {VERSION: "1"})
        producer.send(b"\xff", b"damaged", {VERSION: "1"})
        later, earlier = time.time_ns() + 3_600_000_000_000, time.time_ns() - 1
        producer.send(encode(1), encode("later"), {VERSION: "1", EXPIRES: str(later)})
        producer.send(encode(1), encode("gone"), {VERSION: "1", EXPIRES: str(earlier)})
        producer.flush(PATIENCE_S)
        until(lambda: keeper.progress().records == 9)
        keeper.flush(PATIENCE_S)
        assert visible(master) == {"a": "2", ("typed", 1): Count(5), "later": 1}
        (entry,) = [each for each in master.snapshot() if each.key == "later"]
        assert entry.expires_ns is not None
        assert abs(entry.expires_ns - later) < 5_000_000_000
        assert keeper.progress().skipped == 2


@pytest.mark.process
def test_the_latest_counts_in_whatever_order_records_come(tower: str, log: Store, master: DataStore) -> None:
    now = datetime.now(UTC)
    with Producer("t", tower=tower) as one, Producer("t", tower=tower) as other:
        with TopicToDataStore(master, "t", tower=tower) as keeper:
            one.send("new", "a", timestamp=now)
            one.send(None, "b", timestamp=now)
            one.flush(PATIENCE_S)
            until(lambda: keeper.progress().records == 2)
            other.send("old", "a", timestamp=now - timedelta(seconds=1))
            other.send("old", "b", timestamp=now - timedelta(seconds=1))
            other.flush(PATIENCE_S)
            until(lambda: keeper.progress().records == 4)
        assert visible(master) == {"a": "new"}
        with TopicToDataStore(
            master, "t", tower=tower
        ) as keeper:  # and does after a restart, of which nothing is read again
            other.send("older", "a", timestamp=now - timedelta(seconds=2))
            other.send("newer", "c", timestamp=now)
            other.flush(PATIENCE_S)
            until(lambda: keeper.progress().records == 2)
            keeper.flush(PATIENCE_S)
        assert visible(master) == {"a": "new", "c": "newer"}


@pytest.mark.process
def test_a_lasting_store_goes_on_where_it_was(tower: str, log: Store, tmp_path: Path) -> None:
    def kept() -> tuple[dict[Any, Any], int]:
        with Endpoint() as endpoint:
            store = endpoint.attach_master("users", "sqlite", path=tmp_path / "users.db")
            with TopicToDataStore(store, "t", tower=tower) as keeper:
                until(lambda: keeper.progress().ready)
                producer.flush(PATIENCE_S)
                until(lambda: store.get("last") == wanted)
                account = keeper.close()
            return visible(store), account.records

    with Producer("t", tower=tower) as producer:
        producer.send_many([])
        for n in range(1000):
            producer.send(str(n), str(n % 10))
        wanted = "1"
        producer.send(wanted, "last")
        assert kept() == ({**{str(n): str(990 + n) for n in range(10)}, "last": "1"}, 1001)
        producer.send(None, "3")
        wanted = "2"
        producer.send(wanted, "last")
        found, count = kept()
        assert (count, found["last"], len(found), "3" in found) == (2, "2", 10, False)


@pytest.mark.process
def test_killed_again_and_again_the_store_becomes_the_table(tower: str, log: Store, tmp_path: Path) -> None:
    database = tmp_path / "users.db"
    chance = random.Random(1)
    with Producer("users", tower=tower) as producer:
        for _ in range(KILLS):
            for n in range(20_000):
                producer.send(None if chance.random() < 0.2 else str(n), str(chance.randrange(100)))
            producer.flush(PATIENCE_S)
            killed(1, "keep", str(database), str(tmp_path), tower)
        found = records(tower)
    wanted: dict[str, str] = {}
    for each in found:
        assert each.key is not None
        wanted.pop(each.key.decode(), None)
        if each.value is not None:
            wanted[each.key.decode()] = each.value.decode()
    with Endpoint() as endpoint:
        store = endpoint.attach_master("users", "sqlite", path=database)
        with TopicToDataStore(store, "users", tower=tower) as keeper:
            until(lambda: keeper.progress().ready)
            keeper.flush(PATIENCE_S)
            until(lambda: visible(store) == wanted)
        assert len(wanted) > 50


@pytest.mark.process
def test_a_store_goes_through_a_topic_into_another(tower: str, log: Store, master: DataStore, tmp_path: Path) -> None:
    with Endpoint() as endpoint:
        copy = endpoint.attach_master("copy")
        with (
            DataStoreToTopic(master, "users", tower=tower, directory=tmp_path) as feed,
            TopicToDataStore(copy, "users", tower=tower) as keeper,
        ):
            master.put_many((("user", n), {"score": n}) for n in range(500))
            master.put_many((("user", n), None) for n in range(100))
            for n in range(100, 150):
                master.erase(("user", n), wait=False)
            feed.flush(PATIENCE_S)
            until(lambda: keeper.progress().records == feed.progress().records)
            assert visible(copy) == dict(master.items())


@pytest.mark.process
def test_what_is_kept_from_a_topic_is_fed_without_its_place(
    tower: str, log: Store, master: DataStore, tmp_path: Path
) -> None:
    with Producer("t", tower=tower) as producer:
        producer.send("1", "a")
        producer.flush(PATIENCE_S)
        with TopicToDataStore(master, "t", tower=tower) as keeper:
            until(lambda: keeper.progress().records == 1)
        assert len(master) == 2
        with DataStoreToTopic(master, "users", tower=tower, directory=tmp_path) as feed:
            feed.flush(PATIENCE_S)
            assert table(records(tower)) == {"a": "1"}


@pytest.mark.process
def test_only_a_master_is_kept_from_a_topic(tower: str, master: DataStore) -> None:
    port = endpoint_of(master).listen()
    with Endpoint() as endpoint:
        endpoint.peer("127.0.0.1", port, timeout=PATIENCE_S)
        clone = endpoint.attach_clone("users")
        with pytest.raises(UsageError, match="is a clone"):
            TopicToDataStore(clone, "t", tower=tower)
    with pytest.raises(UsageError, match="one topic"):
        TopicToDataStore(master, "t*", tower=tower)
