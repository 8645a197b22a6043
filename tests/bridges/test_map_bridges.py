"""Shared maps become topics and topics shared maps, through the bridges that data stores have."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.ports import free_address
from tests.waiting import PATIENCE_S, until

from chappe import DataStoreToTopic, MapServer, Producer, SharedMap, Store, TopicToDataStore, read_topic
from chappe.api.kv.map_store import MARKS, MapStore
from chappe.bridges.kv_form import POSITION, QUERY, entry_of, is_mark
from chappe.data.scalars import Count
from chappe.defaults import STORE_CHANGES_MAX
from chappe.errors import InvalidData, StaleData, UsageError


class Price(msgspec.Struct):
    euro: float


@pytest.fixture
def server() -> Iterator[MapServer]:
    with MapServer("127.0.0.1:0") as made:
        yield made


@pytest.fixture
def shared(server: MapServer) -> Iterator[SharedMap[str]]:
    with SharedMap(server.address, values=str) as held:
        yield held


def changes(tower: str) -> list[tuple[Any, Any, bool]]:
    """Key, value, and whether it is gone, of all records of the topic."""
    table = read_topic("prices", tower=tower, columns=["key", "value", "headers"])
    found = []
    for row in table.to_pylist():
        headers = [(each["key"], each["value"]) for each in row["headers"]]
        found.append(entry_of(row["key"], row["value"], headers)[:3])
    return found


# -- a map with the face of a store -------------------------------------------------------------------------


def test_keys_and_values_are_strings(shared: SharedMap[str]) -> None:
    shared["/a"] = "1"
    with SharedMap(shared.server or "") as raw:
        raw["/raw"] = b"\xff"
    shared.wait_for("/raw", timeout=PATIENCE_S)
    store = MapStore(shared)
    assert store.items() == [("/a", "1"), ("/raw", b"\xff")]
    store.put("/b", "x")
    store.put_many([("/c", 5), (("/d", 1), Count(5))])
    assert [shared[key] for key in ("/b", "/c", '["/d", 1]')] == ["x", "5", '{"@data-type": "count", "data": 5}']
    store.erase("/b")
    assert "/b" not in shared
    assert [each.version for each in store.snapshot()] == sorted(each.version for each in store.snapshot())


def test_values_are_what_the_json_is(server: MapServer) -> None:
    with SharedMap(server.address, values="json") as shared, SharedMap(server.address) as raw:
        store = MapStore(shared)
        store.put("/a", {"b": [1, None]})
        assert shared["/a"] == {"b": [1, None]}
        raw["/no"] = b"no JSON"
        until(lambda: "/no" in shared)
        assert [store.get(key) for key in ("/a", "/no", "/away")][1:] == ["no JSON", None]
        assert list(dict(store.items())["/a"].pairs()) == [("b", (1, None))]


def test_a_map_of_a_type_takes_nothing_else(server: MapServer) -> None:
    with SharedMap(server.address, values=Price) as shared:
        store = MapStore(shared)
        store.put("/a", {"euro": 1.5})
        assert shared["/a"] == Price(1.5)
        wrong: list[tuple[str, Any]] = [("/b", 5), ("/b", "x"), ("HUGZ", {"euro": 1.0}), ("/b", {"euro": "x"})]
        for key, value in wrong:
            with pytest.raises(InvalidData):
                store.fits(key, value, gone=False)
        store.fits("/b", None, gone=True)


def test_an_empty_string_is_no_value(shared: SharedMap[str]) -> None:
    with pytest.raises(InvalidData, match="deleted"):
        MapStore(shared).fits("/a", "", gone=False)


def test_marks_are_keys_beside_the_others(server: MapServer) -> None:
    marks: list[tuple[Any, int]] = [((POSITION, "a/[b", "p"), 7), ((QUERY, "q"), 8)]
    for values in (bytes, "json", Price):
        with SharedMap(server.address, values=values) as shared:
            store = MapStore(shared)
            store.put_many(marks)
            assert all(is_mark(key) for key, _ in marks)
            assert [(key, value) for key, value in store.items() if is_mark(key)] == marks
            assert store.get((QUERY, "q"), -1) == 8
            assert all(key.startswith(MARKS) for key in shared)
    with SharedMap(server.address, subtree="/a/") as part, pytest.raises(UsageError, match="with that subtree"):
        MapStore(part).keep_marks()
    with SharedMap(server.address, subtree=("/a/", MARKS)) as both:
        MapStore(both).keep_marks()


def test_what_only_looks_like_a_mark_is_a_key_like_any_other(shared: SharedMap[str]) -> None:
    key = f'{POSITION}/["t","p"]'
    store = MapStore(shared)
    store.follow()
    begin = store.version
    shared[key] = "no JSON"
    assert store.items() == [(key, "no JSON")]
    assert [each.key for each in store.changes_since(begin) or ()] == [key]
    assert len(store.snapshot()) == 1


def test_changes_are_remembered_as_many_as_an_engine_does(shared: SharedMap[str]) -> None:
    store = MapStore(shared)
    shared["/a"] = "0"
    store.follow()
    begin = store.version
    shared["/a"] = "1"
    shared["/b"] = "2"
    del shared["/a"]
    found = store.changes_since(begin)
    assert found is not None
    assert [(each.key, each.version - begin, each.typed.entry and each.typed.entry.value) for each in found] == [
        ("/a", 1, "1"),
        ("/b", 2, "2"),
        ("/a", 3, None),
    ]
    assert [each.key for each in store.changes_since(begin + 2) or ()] == ["/a"]
    assert store.changes_since(begin) is None  # once taken it is not asked for again
    shared.set_many((f"/n/{n}", "x") for n in range(STORE_CHANGES_MAX + 1))
    assert store.changes_since(begin + 3) is None
    shared["/last"] = "x"
    assert len(store.changes_since(store.version - 1) or ()) == 1
    store.leave()
    version = store.version
    shared["/a"] = "2"
    assert store.version == version


def test_a_map_without_a_server_yet_says_nothing_of_what_it_has() -> None:
    with SharedMap("127.0.0.1:1", timeout=0) as lonely, pytest.raises(StaleData):
        MapStore(lonely).snapshot()


# -- through the bridges ------------------------------------------------------------------------------------


@pytest.mark.process
def test_every_change_is_a_record_and_what_was_missed_is_found(
    tower: str, log: Store, shared: SharedMap[str], tmp_path: Path
) -> None:
    shared["/old"] = "1"
    shared["/stays"] = "1"
    with DataStoreToTopic(shared, "prices", tower=tower, directory=tmp_path) as feed:
        feed.flush(PATIENCE_S)
        shared["/a"] = "1"
        shared["/a"] = "2"
        del shared["/old"]
        feed.flush(PATIENCE_S)
    assert sorted(changes(tower)[:2]) == [("/old", "1", False), ("/stays", "1", False)]
    assert changes(tower)[2:] == [("/a", "1", False), ("/a", "2", False), ("/old", None, True)]
    shared["/a"] = "3"
    del shared["/stays"]
    with DataStoreToTopic(shared, "prices", tower=tower, directory=tmp_path) as feed:
        feed.flush(PATIENCE_S)
        assert feed.close(PATIENCE_S).records == 2
    assert changes(tower)[5:] == [("/a", "3", False), ("/stays", None, True)]


@pytest.mark.process
def test_a_topic_is_not_emptied_before_there_is_a_server(
    tower: str, log: Store, shared: SharedMap[str], tmp_path: Path
) -> None:
    shared["/a"] = "1"
    with DataStoreToTopic(shared, "prices", tower=tower, directory=tmp_path, identity="prices") as feed:
        feed.flush(PATIENCE_S)
    address = free_address(3)
    with (
        SharedMap(address, values=str, timeout=0) as lonely,
        DataStoreToTopic(lonely, "prices", tower=tower, directory=tmp_path, identity="prices") as feed,
    ):
        until(lambda: feed.progress().ready)
        assert changes(tower) == [("/a", "1", False)]
        with MapServer(address) as back, SharedMap(back.address, values=str) as other:
            other["/b"] = "2"
            lonely.wait_for("/b", timeout=PATIENCE_S)
            feed.flush(PATIENCE_S)
            assert sorted(changes(tower)[1:]) == [("/a", None, True), ("/b", "2", False)]


@pytest.mark.process
def test_a_topic_is_kept_in_a_map_and_goes_on_where_it_was(tower: str, log: Store, shared: SharedMap[str]) -> None:
    with Producer("prices", tower=tower) as producer, TopicToDataStore(shared, "prices", tower=tower) as kept:
        producer.send(b"1.08", key=b"/fx/eur")
        producer.send(b"0.1", key=b"/fx/dm")
        producer.send(None, key=b"/fx/dm")
        producer.send(b"", key=b"/fx/none")  # cannot be in a map
        producer.flush(PATIENCE_S)
        assert shared.wait_for("/fx/eur", "1.08", timeout=PATIENCE_S) == "1.08"
        until(lambda: kept.progress().records == 4)
        assert "/fx/dm" not in shared
        assert kept.close().skipped == 1
        producer.send(b"1.09", key=b"/fx/eur")
        producer.flush(PATIENCE_S)
        with TopicToDataStore(shared, "prices", tower=tower) as again:
            assert shared.wait_for("/fx/eur", "1.09", timeout=PATIENCE_S) == "1.09"
            until(lambda: again.progress().records == 1)
    assert {key for key in shared if not key.startswith(MARKS)} == {"/fx/eur"}


@pytest.mark.process
def test_marks_that_are_no_places_are_passed_over(tower: str, log: Store, shared: SharedMap[str]) -> None:
    for key, value in (('["t"]', "1"), ('["t","p",1]', "1"), ('["t","p"]', '"x"'), ('["t","q"]', "\udcff")):
        shared[f"{POSITION}/{key}"] = value
    with Producer("t", tower=tower) as producer, TopicToDataStore(shared, "t", tower=tower):
        producer.send(b"1", key=b"/a")
        producer.flush(PATIENCE_S)
        assert shared.wait_for("/a", timeout=PATIENCE_S) == "1"


@pytest.mark.process
def test_a_topic_is_left_while_the_map_has_no_server(tower: str, log: Store) -> None:
    address = free_address(3)
    with (
        MapServer(address) as server,
        SharedMap(address, values=str, timeout=PATIENCE_S) as shared,
        Producer("prices", tower=tower) as producer,
    ):
        kept = TopicToDataStore(shared, "prices", tower=tower)
        producer.send(b"1.08", key=b"/fx/eur")
        producer.flush(PATIENCE_S)
        shared.wait_for("/fx/eur", "1.08", timeout=PATIENCE_S)
        server.close()
        producer.send(b"1.09", key=b"/fx/eur")
        producer.flush(PATIENCE_S)
        until(lambda: shared.pending)
        leaving = threading.Thread(target=kept.close, daemon=True)
        leaving.start()
        leaving.join(PATIENCE_S)
        assert not leaving.is_alive()
        with MapServer(address), TopicToDataStore(shared, "prices", tower=tower):
            assert shared.wait_for("/fx/eur", "1.09", timeout=PATIENCE_S) == "1.09"
