"""Programs with data stores that were written for the original bindings, with only their import line changed."""

from __future__ import annotations

import logging
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.waiting import ask_until
from tests.waiting import until as eventually

from chappe.compat import broker
from chappe.data.binary import decode
from chappe.errors import StorageFull
from chappe.kv.backend import EraseRow, Operation, PutRow
from chappe.storage.kv_backends import SqliteBackend

EVENTS = "<$>/local/data/store-events/"


@pytest.fixture
def endpoint() -> Iterator[Callable[[], broker.Endpoint]]:
    with ExitStack() as stack:

        def make() -> broker.Endpoint:
            options = broker.BrokerOptions()
            options.disable_ssl = True
            return stack.enter_context(broker.Endpoint(broker.Configuration(options)))

        yield make


@pytest.fixture
def alone(endpoint: Callable[[], broker.Endpoint]) -> broker.Endpoint:
    return endpoint()


@pytest.fixture
def master(alone: broker.Endpoint) -> broker.Store:
    return attached(alone.attach_master("s", broker.Backend.Memory))


Trio = tuple[broker.Store, broker.Store, broker.Store]


@pytest.fixture
def trio(endpoint: Callable[[], broker.Endpoint]) -> Trio:
    """A master and two clones, each at an endpoint of its own."""
    first, second, third = endpoint(), endpoint(), endpoint()
    stores = (
        attached(first.attach_master("test", broker.Backend.Memory)),
        attached(second.attach_clone("test")),
        attached(third.attach_clone("test")),
    )
    port = first.listen("127.0.0.1", 0)
    for each in (second, third):
        assert each.peer("127.0.0.1", port)
        assert first.await_peer(each.node_id())
    assert all(each.await_idle() for each in stores)
    return stores


def attached(store: broker.Store | None) -> broker.Store:
    assert store is not None
    return store


def operate(writers: list[broker.Store]) -> None:
    """Every operation, each by the next of the writers, one after the other."""
    turn = 0

    def by_next() -> broker.Store:
        nonlocal turn
        turn += 1
        assert all(each.await_idle() for each in writers)
        return writers[turn % len(writers)]

    by_next().put("e", 5)
    by_next().put("f", 5)
    by_next().put("h", 5, 20)
    by_next().put("str", "b")
    by_next().put("vec", (1, 2))
    by_next().put("set", {1, 2})
    by_next().put("table", {1: "A", "2": "C"})
    by_next().increment("e", 1)
    by_next().decrement("f", 1)
    by_next().append("str", "ar")
    by_next().insert_into("set", 3)
    by_next().remove_from("set", 1)
    by_next().insert_into("table", 3, "D")
    by_next().remove_from("table", 1)
    by_next().push("vec", 3)
    by_next().push("vec", 4)
    by_next().pop("vec")
    by_next().put("gone", 1)
    by_next().erase("gone")


LEFT: dict[str, Any] = {
    "e": 6,
    "f": 4,
    "h": 5,
    "str": "bar",
    "set": {2, 3},
    "table": {3: "D", "2": "C"},
    "vec": (1, 2, 3),
}


def test_a_master_alone(master: broker.Store) -> None:
    assert master.name() == "s"
    assert master.put("key", "value") is None  # type: ignore[func-returns-value]
    assert master.get("key") == "value"
    assert (master.get("X"), master.exists("key"), master.exists("X")) == (None, True, False)
    assert (master.put_unique("key", 1), master.put_unique("unique", 1)) == (False, True)
    assert master.keys() == {"key", "unique"}
    assert master.await_idle()
    master.clear()
    assert master.keys() == set()


@pytest.mark.parametrize("who", ["master", "clone", "clones", "all"])
def test_operations_reach_all(who: str, trio: Trio) -> None:
    master, left, right = trio
    operate({"master": [master], "clone": [left], "clones": [left, right], "all": list(trio)}[who])
    for store in (left, right, master):
        eventually(lambda store=store: store.keys() == set(LEFT))  # type: ignore[misc]
        assert {key: store.get(key) for key in LEFT} == LEFT
    left.clear()
    for store in (left, right, master):
        eventually(lambda store=store: store.keys() == set())  # type: ignore[misc]


def test_one_of_two_clones_puts_first(trio: Trio) -> None:
    master, left, right = trio
    assert [left.put_unique("e", "first"), right.put_unique("e", "second"), left.put_unique("e", "third")] == [
        True,
        False,
        False,
    ]
    assert [each.get("e") for each in (master, left, right)] == ["first"] * 3


def test_values_are_looked_into(master: broker.Store) -> None:
    master.put("vector", ["a", 1])
    master.put("set", {"a"})
    master.put("table", {1: "A"})
    master.put("number", 7)
    found = [
        master.get_index_from_value(key, index)
        for key, index in [
            ("vector", 0), ("vector", broker.Count(1)), ("vector", 2), ("vector", -1), ("vector", "x"),
            ("set", "a"), ("set", "b"), ("table", 1), ("table", 2), ("number", 9), ("nothing", 0),
        ]
    ]  # fmt: skip
    assert found == ["a", 1, None, None, None, True, False, "A", None, 7, None]


def test_values_convert_as_messages_do(master: broker.Store) -> None:
    for key in (
        None,
        True,
        1,
        1.0,
        broker.Count(1),
        "x",
        b"\xff",
        timedelta(seconds=1),
        (1, 2),
        broker.Port(80, broker.Port.TCP),
    ):
        master.put(key, {"value": [key]})
        assert master.get(key) == {"value": (key,)}
    master.put({1, 2}, {3})
    assert master.get({1, 2}) == {3}
    with pytest.raises(TypeError, match="unhashable"):
        master.keys()
    master.put("none", None)
    assert (master.get("none"), master.exists("none")) == (None, True)
    with pytest.raises(TypeError, match="unsupported"):
        master.put("x", object())


def test_a_false_value_is_none_for_insert_into(master: broker.Store) -> None:
    master.insert_into("s", 1, 0)
    master.insert_into("t", 1, 2)
    assert (master.get("s"), master.get("t")) == ({1}, {1: 2})


def test_anything_is_added_to_what_is_there(master: broker.Store) -> None:
    master.put("text", "a")
    master.increment("text", "b")
    master.put("vector", [1])
    master.increment("vector", "x", 100)
    master.increment("missing", [1])
    assert {key: master.get(key) for key in master.keys() or ()} == {"text": "ab", "vector": (1, "x")}


def test_what_cannot_be_done_is_logged(master: broker.Store, caplog: pytest.LogCaptureFixture) -> None:
    master.put("k", broker.Count(1))
    with caplog.at_level(logging.WARNING):
        master.increment("k", 1)
        master.increment("missing", "text")
        master.decrement("missing", 1)
        master.push("k", 1)
    assert (master.get("k"), master.keys()) == (broker.Count(1), {"k"})
    assert len([each for each in caplog.records if "was not done" in each.getMessage()]) == 4


def test_entries_expire(trio: Trio) -> None:
    master, left, _ = trio
    master.put("m", 1, 0.2)
    left.put("c", 1, 0.2)
    left.put_unique("u", 1, 0.2)
    left.increment("i", 1, 0.2)
    master.put("kept", 1, 0.2)
    master.put("kept", 2)
    master.put("already", 1, -1)
    eventually(lambda: left.keys() == {"kept"})
    assert master.keys() == {"kept"}
    with pytest.raises(TypeError):
        master.put("x", 1, timedelta(seconds=1))  # type: ignore[arg-type]


def test_a_store_is_there_once_and_as_long_as_its_endpoint(alone: broker.Endpoint) -> None:
    with attached(alone.attach_master("s", broker.Backend.Memory)) as first:
        first.put("k", 1)
        assert attached(alone.attach_master("s", broker.Backend.Memory)).get("k") == 1
    with pytest.raises(RuntimeError, match="reset"):
        first.get("k")
    assert attached(alone.attach_master("s", broker.Backend.Memory)).get("k") == 1
    assert alone.attach_clone("s") is None


def test_a_second_master_is_refused(endpoint: Callable[[], broker.Endpoint]) -> None:
    first, second = endpoint(), endpoint()
    attached(first.attach_master("s", broker.Backend.Memory))
    assert second.peer("127.0.0.1", first.listen("127.0.0.1", 0))
    eventually(lambda: second.attach_master("s", broker.Backend.Memory) is None)


def test_attaching_takes_what_the_original_takes(alone: broker.Endpoint, tmp_path: Path) -> None:
    for type_ in (None, 0, "Memory"):
        with pytest.raises(TypeError):
            alone.attach_master("x", type_)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        alone.attach_master("x", broker.Backend.Memory, {5: "a"})  # type: ignore[dict-item]
    assert alone.attach_master("memory", broker.Backend.Memory, {"path": 5}) is not None

    def sqlite(name: str, **options: object) -> broker.Store | None:
        return alone.attach_master(name, broker.Backend.SQLite, options)

    path = str(tmp_path / "folder" / "a.sqlite")
    assert sqlite("a") is None
    assert sqlite("a", path=5) is None
    assert sqlite("a", path=str(tmp_path)) is None
    assert sqlite("a", path=path, synchronous="Broker::SQLITE_SYNCHRONOUS_OFF") is None
    assert sqlite("a", path=path, synchronous=broker.Enum("Broker::SQLITE_SYNCHRONOUS_MUCH")) is None
    assert sqlite("a", path=path, integrity_check=1) is None
    assert sqlite(
        "a",
        path=path,
        synchronous=broker.Enum("Broker::SQLITE_SYNCHRONOUS_OFF"),
        journal_mode=broker.Enum("Broker::SQLITE_JOURNAL_MODE_WAL"),
        failure_mode=broker.Enum("Broker::SQLITE_FAILURE_MODE_DELETE"),
        integrity_check=True,
        nonsense=1,
    )


def test_a_file_keeps_a_master(endpoint: Callable[[], broker.Endpoint], tmp_path: Path) -> None:
    path = tmp_path / "s.sqlite"
    first = endpoint()
    store = attached(first.attach_master("s", broker.Backend.SQLite, {"path": str(path)}))
    for number in range(500):
        store.put(number, {"value": number})
    first.shutdown()
    assert [each.name for each in tmp_path.iterdir()] == ["s.sqlite"]  # one single file, as the original's default
    database = sqlite3.connect(path)
    assert database.execute("select count(*) from store").fetchall() == [(500,)]
    database.close()
    again = attached(endpoint().attach_master("s", broker.Backend.SQLite, {"path": str(path)}))
    assert again.keys() == set(range(500))
    assert again.get(499) == {"value": 499}


def test_a_master_with_a_file_shows_only_what_is_in_it(
    alone: broker.Endpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit, kept, full = SqliteBackend.commit, dict[object, object](), threading.Event()

    def slowly(backend: SqliteBackend, operations: Sequence[Operation]) -> None:
        time.sleep(0.05)
        if full.is_set():
            raise StorageFull("no space is left")
        commit(backend, operations)
        for each in operations:
            if isinstance(each, PutRow):
                kept[decode(each.key)] = decode(each.value)
            elif isinstance(each, EraseRow):
                kept.pop(decode(each.key), None)

    monkeypatch.setattr(SqliteBackend, "commit", slowly)
    store = attached(alone.attach_master("s", broker.Backend.SQLite, {"path": str(tmp_path / "s.sqlite")}))

    def write() -> None:
        for number in range(200):
            store.put(f"other {number}", 1)

    others = threading.Thread(target=write)
    others.start()
    for number in range(5):
        store.put(number, "a")
        assert store.get(number) == kept.get(number) == "a"
        store.put(number, "b")
        assert store.exists(number) is True
        assert kept[number] == "b"
        found = store.keys()
        assert found is not None
        assert found <= set(kept)
        store.erase(number)
        assert store.get(number) is None
        assert number not in kept
    others.join()
    store.put("k", [1, 2])
    assert store.get_index_from_value("k", 1) == 2
    full.set()
    store.put("k", "never kept")
    assert store.get("k") == (1, 2)
    full.clear()


KILLED = """
import sys, time
from chappe.compat import broker
with broker.Endpoint() as endpoint:
    store = endpoint.attach_master("s", broker.Backend.SQLite, {"path": sys.argv[1]})
    for number in range(200):
        store.put(number, number)
    print(len(store.keys()), flush=True)
    time.sleep(1000)
"""


def test_what_a_master_with_a_file_has_shown_survives_its_process(alone: broker.Endpoint, tmp_path: Path) -> None:
    path = str(tmp_path / "s.sqlite")
    with subprocess.Popen([sys.executable, "-c", KILLED, path], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        shown = int(process.stdout.readline())
        process.kill()
    assert shown == 200
    assert attached(alone.attach_master("s", broker.Backend.SQLite, {"path": path})).keys() == set(range(200))


def test_a_clone_may_be_there_first(endpoint: Callable[[], broker.Endpoint]) -> None:
    first, second = endpoint(), endpoint()
    clone = attached(second.attach_clone("s"))
    assert attached(second.attach_clone("s")).name() == "s"
    clone.put("early", 1)
    assert not clone.await_idle(0.1)
    master = attached(first.attach_master("s", broker.Backend.Memory))
    assert second.peer("127.0.0.1", first.listen("127.0.0.1", 0))
    clone.get("early")  # waits for the master, not for what was written on the way to it
    assert clone.await_idle(30)
    assert clone.get("early") == 1
    assert master.get("early") == 1


def test_a_clone_without_a_master_has_nothing(alone: broker.Endpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chappe.compat.broker.store.GET_S", 0.1)
    monkeypatch.setattr("chappe.compat.broker.store.UNIQUE_S", 0.1)
    clone = attached(alone.attach_clone("nowhere"))
    found = (
        clone.get("k"),
        clone.exists("k"),
        clone.keys(),
        clone.get_index_from_value("k", 1),
        clone.put_unique("k", 1),
    )
    assert found == (None,) * 5


def test_changes_come_to_subscribers(endpoint: Callable[[], broker.Endpoint]) -> None:
    first, second = endpoint(), endpoint()
    heard = first.make_subscriber(EVENTS + "s")
    master = attached(first.attach_master("s", broker.Backend.Memory))
    attached(first.attach_master("another", broker.Backend.Memory)).put("k", 1)
    clone = attached(second.attach_clone("s"))
    late = second.make_subscriber("/other")
    late.add_topic(EVENTS)
    assert second.peer("127.0.0.1", first.listen("127.0.0.1", 0))
    assert clone.await_idle()
    master.put("k", {1: 2}, 100)
    master.put("k", 3)
    master.erase("k")
    assert clone.await_idle()
    clone.put("c", 1, 0.1)
    own, other = first.node_id(), second.node_id()
    events = heard.get(5)
    numbers = {event[-1] for _, event in events}
    assert {topic for topic, _ in events} == {EVENTS + "s"}
    assert all(isinstance(each, broker.Count) for each in numbers)
    assert [event[:-1] for _, event in events] == [
        ("insert", "s", "k", {1: 2}, timedelta(seconds=100), own),
        ("update", "s", "k", {1: 2}, 3, None, own),
        ("erase", "s", "k", own),
        ("insert", "s", "c", 1, timedelta(seconds=0.1), other),
        ("expire", "s", "c", own),
    ]
    assert [event for _, event in late.get(5)] == [event for _, event in events]


def test_messages_of_changes_are_read(master: broker.Store, alone: broker.Endpoint) -> None:
    heard = alone.make_subscriber(EVENTS + "s")
    master.put("k", 1, 100)
    master.put("k", 2)
    master.clear()
    own = alone.node_id()
    found = [broker.StoreEvent.make(event) for _, event in heard.get(3)]
    assert all(each is not None and each.publisher is not None for each in found)
    publisher = found[0].publisher  # type: ignore[union-attr]
    assert publisher is not None
    assert publisher[0] == own
    assert found == [
        broker.StoreEvent("insert", "s", "k", 1, None, timedelta(seconds=100), publisher),
        broker.StoreEvent("update", "s", "k", 2, 1, None, publisher),
        broker.StoreEvent("erase", "s", "k", publisher=publisher),
    ]
    for other in (None, 5, (), ("insert", "s", "k"), ("born", "s", "k", None, None), (1, "s", "k", None, None)):
        assert broker.StoreEvent.make(other) is None


def test_the_end_of_an_endpoint_ends_its_stores(endpoint: Callable[[], broker.Endpoint]) -> None:
    ended = endpoint()
    store = attached(ended.attach_master("s", broker.Backend.Memory))
    ended.shutdown()
    assert (store.get("k"), store.put_unique("k", 1), store.await_idle()) == (None, None, False)
    assert ended.attach_master("t", broker.Backend.Memory) is None


def test_what_was_to_expire_while_others_were_waited_for_is_gone_everywhere(trio: Trio) -> None:
    master, first, second = trio
    first.put("key", 5, 0.05)
    second.put("other", 1)
    assert first.await_idle()
    second.put("other", 2)
    assert second.await_idle()
    assert master.await_idle()
    assert [store.get("key") for store in trio] == [None, None, None]
    assert [store.exists("key") for store in trio] == [False, False, False]
    assert [store.keys() for store in trio] == [{"other"}] * 3


def test_a_clone_that_is_asked_again_and_again_shows_what_anybody_writes(trio: Trio) -> None:
    master, clone, other = trio
    for writer in (master, clone, other) * 5:
        before = clone.get("key") or 0
        writer.increment("key", 1)
        ask_until(lambda: clone.get("key") == before + 1)  # noqa: B023


def test_a_new_clone_answers_as_soon_as_it_has_a_master(
    endpoint: Callable[[], broker.Endpoint], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = endpoint(), endpoint()
    attached(one.attach_master("s", broker.Backend.Memory)).put("key", 1)
    assert two.peer("127.0.0.1", one.listen("127.0.0.1", 0))
    monkeypatch.setattr(broker.Store, "await_idle", None)  # takes a tick at least, which nobody who reads waits for
    assert attached(two.attach_clone("s")).get("key") == 1
