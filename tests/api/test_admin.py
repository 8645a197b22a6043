"""Topics that a program looks at and changes, at stores that come and go."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from chappe import Admin, Consumer, Producer, Retention, Store, read_topic
from chappe.api.metrics import MemberNumbers
from chappe.errors import StorageError, StorageFormat, TimedOut, UnknownTopic, UsageError
from chappe.storage.catalogue_database import CatalogueDatabase
from chappe.testing import Log, World


@pytest.fixture
def two(chappe_log: Log, tmp_path: Path) -> list[Store]:
    """Two stores that know each other, of which the second is on a host of its own."""
    return [chappe_log.store, second_store(chappe_log.world, tmp_path)]


def second_store(world: World, tmp_path: Path, name: str = "second") -> Store:
    with world.on(name):
        store = Store(tmp_path / name)
    world.wait_until(lambda: store.status().peers)
    return store


def write(topic: str, *values: str, min_acks: int = 1) -> None:
    with Producer(topic, min_acks=min_acks) as producer:
        for value in values:
            producer.send(value)
        producer.flush(30)


def values(store: Store, topic: str = "orders") -> list[bytes]:
    try:
        return sorted(read_topic(topic, stores=store.endpoint).column("value").to_pylist())
    except UnknownTopic:
        return []


def test_a_topic_is_made_described_kept_trimmed_and_deleted(chappe_log: Log) -> None:
    with Admin() as admin:
        assert admin.topics() == []
        made = admin.create("orders", retention=Retention(age_s=3600.0))
        assert (made.stores, made.away, dict(made.refused)) == ((chappe_log.store.store_id,), (), {})
        with pytest.raises(UsageError, match="there is a topic 'orders' already"):
            admin.create("orders")
        assert admin.topics() == ["orders"]

        with Producer("orders") as producer:
            producer.send("1")
            producer.flush(10)
            found = admin.describe("orders")
            assert (found.records, found.partitions, found.stores) == (1, 1, (chappe_log.store.store_id,))
            assert list(found.producers) == [producer.partition]
        assert found.retention == {chappe_log.store.store_id: Retention(age_s=3600.0)}
        admin.set("orders", retention=None)
        assert admin.describe("orders").retention == {chappe_log.store.store_id: Retention()}

        chappe_log.world.advance(100)
        write("orders", "2")
        newest = admin.describe("orders").newest
        assert newest is not None
        assert (
            admin.trim("orders", before=datetime.fromtimestamp(newest / 1e6, UTC) - timedelta(seconds=1)).records == 1
        )
        assert values(chappe_log.store) == [b"2"]
        assert admin.trim("orders").records == 1
        assert admin.topics() == ["orders"], "it is empty, and not deleted"
        admin.delete("orders")
        assert admin.topics() == []
        with pytest.raises(UnknownTopic, match="no store has a topic 'orders'"):
            admin.delete("orders")
        write("orders", "3")
        assert admin.topics() == ["orders"]
        with pytest.raises(UsageError, match="each above 0"):
            admin.set("orders", retention=Retention(records=0))


def test_nothing_deleted_returns_with_a_store_that_was_away_or_one_that_is_new(
    two: list[Store], chappe_log: Log, tmp_path: Path
) -> None:
    world, (first, second) = chappe_log.world, two
    write("orders", "1", "2", min_acks=2)
    assert values(first) == values(second) == [b"1", b"2"]
    world.kill("second")
    second.close()
    with Admin() as admin:
        deleted = admin.delete("orders")
        assert deleted.stores == (first.store_id,)
    world.advance(3600)

    again = second_store(world, tmp_path)
    assert values(again) == []
    new = second_store(world, tmp_path, "third")
    world.advance(10)
    assert values(again) == values(new) == values(first) == []
    write("orders", "3", min_acks=3)
    assert values(again) == values(new) == values(first) == [b"3"]
    with Consumer("orders") as consumer:
        assert [each.value for each in consumer.to_end(10)] == [b"3"]
    with Admin() as admin:
        assert admin.set("orders", retention=Retention(bytes=1_000_000)).stores == tuple(
            sorted(each.store_id for each in (again, new, first))
        )


def test_a_store_of_which_the_others_are_gone_serves_after_a_while(
    two: list[Store], chappe_log: Log, tmp_path: Path
) -> None:
    world, (first, second) = chappe_log.world, two
    write("orders", "1", min_acks=2)
    world.kill("second")
    second.close()
    first.close()
    again = second_store(world, tmp_path)
    ready = MemberNumbers(again)
    assert "it waits for other stores to tell what was deleted" in ready.unready()[0]
    with pytest.raises(TimedOut, match="no store answers"):
        read_topic("orders", stores=again.endpoint)
    world.advance(5)
    assert ready.unready() == []
    assert values(again) == [b"1"]


def test_a_clock_that_is_wrong_has_no_say(two: list[Store], chappe_log: Log) -> None:
    world, (first, second) = chappe_log.world, two
    write("orders", "1", min_acks=2)
    world.set_clock("second", 86_400.0)
    with Admin(stores=second.endpoint) as admin:
        admin.set("orders", retention=Retention(records=5))
    world.advance(5)
    with Admin(stores=first.endpoint) as admin:
        assert admin.describe("orders").settings == {}
    assert any("stamped ahead of this store's clock" in str(each) for each in first.events())
    with Admin() as admin:
        done = admin.delete("orders")
    assert len(done.stores) + len(done.refused) == 2
    assert first.store_id in done.stores or "correct the clock" in str(done.refused)


def test_deletions_are_kept_for_some_time(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="positive number of seconds"):
        Store(tmp_path, keep_deletions=0)


def test_a_damaged_catalogue_is_told_of(tmp_path: Path) -> None:
    (tmp_path / "catalogue").mkdir()
    database = CatalogueDatabase(tmp_path)
    database._execute("break it", [("INSERT INTO topics VALUES (?, ?)", (b"t", b"garbage"))])
    with pytest.raises(StorageError, match="takes the catalogue of another one"):
        database.kept()
    database._execute("write it with a newer chappe", [("PRAGMA user_version = 9", ())])
    database.close()
    with pytest.raises(StorageFormat, match="written by a newer chappe"):
        CatalogueDatabase(tmp_path)
