"""Data stores on endpoints of one process: every method of masters and clones, and how they find each other."""

from __future__ import annotations

import select
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from ipaddress import IPv4Address
from typing import Any

import pytest
from tests.endpoints import PATIENCE_S, Make, deliver, endpoint_of, event, until
from tests.ports import free_ports
from tests.waiting import Clock, ask_until

from chappe import DataStore, DataStoreEvent, Endpoint
from chappe.api.kv.attaching import begin_clone, take_ready
from chappe.data.binary import encode
from chappe.data.scalars import Count, EnumValue, Port
from chappe.defaults import CLONE_BUFFER_S, CLONE_RESYNC_S, CLONE_STALE_S, STORE_ENTRY_BYTES_MAX
from chappe.errors import (
    BufferFull,
    Closed,
    InvalidOperation,
    MasterExists,
    NoMaster,
    NoSuchKey,
    RecordTooLarge,
    StaleData,
    TimedOut,
    TypeClash,
    UnsupportedValue,
    UsageError,
    WriteUnknown,
)
from chappe.kv import commands as cmd
from chappe.kv import following
from chappe.kv.clone import KvClone
from chappe.kv.entity import NOBODY, Entity, clone_topic, master_topic
from chappe.kv.events import (
    CloneStale,
    CloneWritesRefused,
    CommandRefused,
    MasterFound,
    MasterLost,
    TwoMasters,
    WriteFailed,
)
from chappe.mesh.events import MessagesDropped
from chappe.mesh.messages import COMMAND, Message


def joined(make: Make, **options: Any) -> tuple[DataStore, DataStore]:
    """A master, and a clone at another endpoint."""
    one, two = make(), make()
    master = one.attach_master("s")
    two.peer("127.0.0.1", one.listen())
    return master, two.attach_clone("s", **options)


@pytest.fixture(params=["master", "clone"])
def both(request: pytest.FixtureRequest, make: Make) -> tuple[DataStore, DataStore]:
    """The one that writes, and the other one."""
    master, clone = joined(make)
    return (master, clone) if request.param == "master" else (clone, master)


def settled(*stores: DataStore) -> list[tuple[Any, Any]]:
    """What all of them hold, once they are idle."""
    for store in [each for each in stores if each.role == "master"]:
        assert store.await_idle()
    found = [store.items() for store in stores]
    assert all(each == found[0] for each in found)
    return found[0]


def core_of(clone: DataStore) -> KvClone:
    """Its core."""
    assert isinstance(clone.core, KvClone)
    return clone.core


VALUES: list[Any] = [
    None,
    True,
    Count(2**64 - 1),
    -5,
    2.5,
    "text",
    b"\xff",
    IPv4Address("10.0.0.1"),
    Port(53, "udp"),
    datetime(2026, 1, 2, 3, 4, 5, 6, UTC),
    timedelta(microseconds=7),
    EnumValue("Notice::LOG"),
    frozenset({1, 2}),
    {"a": 1, "b": {"c": (1, 2)}},
    (1, "two", (3.0,)),
]


# -- writing and reading ----------------------------------------------------------------------------------


def test_values_of_every_kind_are_keys_and_values(both: tuple[DataStore, DataStore]) -> None:
    writer, other = both
    for value in VALUES:
        writer.put("the value", value)
        assert writer.get("the value") == value
        if not isinstance(value, dict):
            writer.put(value, "x")
            assert writer.get(value) == writer[value] == "x"
            assert value in writer
    settled(*both)
    assert other["the value"] == VALUES[-1]


def test_every_operation(both: tuple[DataStore, DataStore]) -> None:
    writer, other = both
    writer.increment("n", 5)
    writer.increment("n")
    writer.decrement("n", 2)
    writer.increment("real", 0.5)
    writer.increment("when", timedelta(seconds=1))
    writer.append("text", "ab")
    writer.append("text", "c")
    writer.insert_into("set", 1)
    writer.insert_into("set", 2)
    writer.remove_from("set", 1)
    writer.insert_into("table", "a", 1)
    writer.insert_into("table", "b", None)
    writer.remove_from("table", "a")
    writer.push("vector", "x")
    writer.push("vector", "y")
    writer.push("vector", "z")
    writer.pop("vector")
    assert writer.put_unique("u", 1) is True
    assert writer.put_unique("u", 2) is False
    writer.put("gone", 1)
    writer.erase("gone")
    writer.erase("never there")
    wanted = {
        "n": 4,
        "real": 0.5,
        "when": datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC),
        "text": "abc",
        "set": frozenset({2}),
        "table": {"b": None},
        "vector": ("x", "y"),
        "u": 1,
    }
    assert dict(settled(writer, other)) == wanted == dict(writer.items())
    assert other.get_index_from_value("vector", 1) == "y"
    assert other.get_index_from_value("vector", 2) is None
    assert other.get_index_from_value("vector", 2, "none") == "none"
    assert other.get_index_from_value("no key", 2, "none") == "none"
    assert other.get_index_from_value("table", "b", "none") is None
    assert (other.get_index_from_value("set", 2), other.get_index_from_value("set", 1)) == (True, False)
    with pytest.raises(TypeClash):
        other.get_index_from_value("vector", "x")
    writer.clear()
    assert settled(writer, other) == []


def test_what_cannot_be_done_is_raised_where_it_was_asked(both: tuple[DataStore, DataStore]) -> None:
    writer, _ = both
    writer.put("text", "a")
    writer.put("big", 2**63 - 1)
    for refused, error in (
        (lambda: writer.increment("text"), TypeClash),
        (lambda: writer.increment("big"), InvalidOperation),
        (lambda: writer.increment("bool", True), TypeClash),
        (lambda: writer.increment("no key", "text"), TypeClash),
        (lambda: writer.push("text", 1), TypeClash),
        (lambda: writer.decrement("no key"), NoSuchKey),
        (lambda: writer.pop("no key"), NoSuchKey),
        (lambda: writer.put("k", object()), UnsupportedValue),
        (lambda: writer.put(object(), 1), UnsupportedValue),
        (lambda: writer.get(object()), UnsupportedValue),
        (lambda: writer.put("k", "x" * (STORE_ENTRY_BYTES_MAX + 1)), RecordTooLarge),
        (lambda: writer.put("k", 1, expiry_s=0), UsageError),
        (lambda: writer.put("k", 1, expiry_s=float("nan")), UsageError),
        (lambda: writer.watch(key=1, prefix="a"), UsageError),
        (lambda: writer.watch(messages_max=0), UsageError),
        (lambda: writer.watch(on_full="never"), UsageError),  # type: ignore[arg-type]
    ):
        with pytest.raises(error):
            refused()
    assert dict(settled(*both)) == {"text": "a", "big": 2**63 - 1}


def test_a_failure_that_nobody_waits_for_is_told_to_statuses(make: Make) -> None:
    master, clone = joined(make)
    statuses = endpoint_of(clone).statuses()
    clone.put("text", "a", wait=False)
    clone.increment("text", wait=False)
    clone.put("after", 1, wait=False)
    found = event(statuses, WriteFailed)
    assert isinstance(found.error, TypeClash)
    assert str(found).startswith("a write to store 's' failed: the master refused Add of 'text'")
    assert settled(master, clone) == [("text", "a"), ("after", 1)]


def test_it_is_a_mapping(both: tuple[DataStore, DataStore]) -> None:
    writer, other = both
    writer["a"] = 1
    writer[2] = "two"
    settled(*both)
    assert (len(other), list(other), other.keys(), "a" in other, 3 in other) == (2, ["a", 2], ["a", 2], True, False)
    assert dict(other) == {"a": 1, 2: "two"}
    assert (other[2], other.get(3), other.get(3, "x")) == ("two", None, "x")
    with pytest.raises(KeyError):
        other[3]
    del writer["a"]
    with pytest.raises(KeyError):
        del writer["a"]
    assert settled(*both) == [(2, "two")]
    assert bool(other)


def test_keys_are_told_apart_by_type(both: tuple[DataStore, DataStore]) -> None:
    writer, other = both
    for key, value in ((1, "int"), (Count(1), "count"), (1.0, "real"), (True, "bool"), ("1", "text")):
        writer[key] = value
    settled(*both)
    assert [other[key] for key in (1, Count(1), 1.0, True, "1")] == ["int", "count", "real", "bool", "text"]


def test_many_are_put_at_once(both: tuple[DataStore, DataStore]) -> None:
    writer, other = both
    writer.put_many({f"key {n}": n for n in range(3_000)})
    writer.put_many((f"key {n}", -n) for n in range(10))
    assert len(settled(*both)) == 3_000
    assert (other["key 2999"], other["key 9"]) == (2999, -9)
    with pytest.raises(UnsupportedValue):
        writer.put_many([("x", 1), ("y", object()), ("z", 2)])
    settled(*both)
    assert (other["x"], other["z"], "y" in other) == (1, 2, False)


def test_an_entry_expires_everywhere(both: tuple[DataStore, DataStore]) -> None:
    writer, other = both
    watch = other.watch(key="k")
    writer.put("k", 1, expiry_s=0.05)
    found = [watch.get(PATIENCE_S) for _ in range(2)]
    assert [(each.kind, each.before, each.expiry_s) for each in found if each] == [
        ("insert", None, 0.05),
        ("expire", 1, None),
    ]
    assert settled(*both) == []
    writer.put("stays", 1, expiry_s=0.05)
    writer.put("stays", 2)
    writer.put("other", 1, expiry_s=0.1)
    until(lambda: not writer.exists("other"))
    assert writer["stays"] == 2


def test_an_entry_of_many_mebibytes_reaches_the_clone(both: tuple[DataStore, DataStore]) -> None:
    writer, other = both
    text = "x" * (STORE_ENTRY_BYTES_MAX - 100)
    writer.put("large", text)
    settled(*both)
    assert other["large"] == text


def test_a_snapshot_larger_than_what_may_wait_for_a_peer_is_sent(make: Make) -> None:
    one, two = make(peer_bytes_max=1_000_000), make()
    master = one.attach_master("s")
    master.put_many((n, "x" * 1_000_000) for n in range(5))
    two.peer("127.0.0.1", one.listen())
    clone = two.attach_clone("s")
    assert clone.items() == master.items()


# -- watching ---------------------------------------------------------------------------------------------


def test_watches_tell_what_happened_and_who_did_it(make: Make) -> None:
    master, clone = joined(make)
    for store in (master, clone):
        with store.watch() as everything, store.watch(key="k") as one, store.watch(prefix="p/") as some:
            clone.put("k", 1)
            master.put("k", 2)
            master.put("p/1", 1)
            master.put(5, 1)
            clone.erase("k")
            settled(master, clone)
            found = everything.poll()
            assert [(each.kind, each.key, each.value, each.before) for each in found] == [
                ("insert", "k", 1, None),
                ("update", "k", 2, 1),
                ("insert", "p/1", 1, None),
                ("insert", 5, 1, None),
                ("erase", "k", None, 2),
            ]
            assert [each.publisher for each in found[:2]] == [clone.entity, master.entity]
            assert one.get_many(10, 0) == [found[0], found[1], found[4]]
            assert [each.key for each in some.poll()] == ["p/1"]
            assert some.get(0.01) is None
            versions = [each.version for each in found]
            assert versions == list(range(versions[0], versions[0] + 5))
        with pytest.raises(Closed):
            everything.get(0)
        master.clear()
        settled(master, clone)


def test_a_watch_calls_back_has_a_descriptor_and_drops_by_its_policy(make: Make) -> None:
    with make().attach_master("s") as store:
        heard: list[DataStoreEvent] = []
        statuses = endpoint_of(store).statuses()
        watch = store.watch(callback=heard.append)
        newest, oldest = (
            store.watch(messages_max=2, on_full="drop_newest"),
            store.watch(bytes_max=100, messages_max=2),
        )
        ends = store.watch(messages_max=2, on_full="disconnect")
        assert not select.select([newest.fd()], [], [], 0)[0]
        for number in range(5):
            store.put("k", number)
        assert select.select([newest.fd()], [], [], 0)[0]
        until(lambda: len(heard) == 5)
        assert ([each.value for each in newest.poll()], newest.dropped) == ([0, 1], 3)
        assert ([each.value for each in oldest.poll()], oldest.dropped) == ([3, 4], 3)
        assert not select.select([newest.fd()], [], [], 0)[0]
        assert [each.value for each in ends.get_many(9)] == [0, 1]
        with pytest.raises(BufferFull, match="too slow"):
            ends.get()
        assert event(statuses, MessagesDropped).count >= 1
        watch.close()
        store.put("k", 5)
        assert len(heard) == 5


def test_a_watch_that_blocks_stops_the_writers_until_there_is_room(make: Make) -> None:
    master, clone = joined(make)
    watch = master.watch(messages_max=4, on_full="block")
    for number in range(4):
        master.put("k", number)
    with pytest.raises(BufferFull, match="no room"):
        master.put("k", 4, timeout=0.05)
    with pytest.raises(TimedOut):
        clone.put("c", 4, timeout=0.05)
    assert [each.value for each in watch.get_many(2)] == [0, 1]
    rest: list[DataStoreEvent] = []
    while len(rest) < 3:  # the clone's write waited at the master and enters as soon as there is room
        rest += watch.get_many(3, PATIENCE_S)
    assert [(each.key, each.value) for each in rest] == [("k", 2), ("k", 3), ("c", 4)]

    def write() -> None:
        for number in range(100):
            master.put("k", number)

    writer = threading.Thread(target=write)
    writer.start()
    got: list[DataStoreEvent] = []
    while len(got) < 100:
        got += watch.get_many(10, PATIENCE_S)
    writer.join()
    assert [each.value for each in got] == list(range(100))


# -- proxies ----------------------------------------------------------------------------------------------


def test_a_proxy_answers_later(both: tuple[DataStore, DataStore]) -> None:
    writer, _ = both
    writer.put("k", (1, 2))
    with writer.proxy() as proxy:
        asked = [
            proxy.get("k"),
            proxy.get("no key"),
            proxy.exists("k"),
            proxy.keys(),
            proxy.get_index_from_value("k", 1),
            proxy.get_index_from_value("k", 7),
        ]
        assert asked == [1, 2, 3, 4, 5, 6]
        assert proxy.available == 6
        assert select.select([proxy.fd()], [], [], 0)[0]
        answers = [proxy.receive() for _ in asked]
        assert [each.id for each in answers if each] == asked
        assert [each.value for each in answers if each] == [(1, 2), None, True, ["k"], 2, None]
        assert [type(each.error) for each in answers if each and each.error] == [NoSuchKey, NoSuchKey]
        first, second = proxy.put_unique("u", 1), proxy.put_unique("u", 2)
        found = {each.id: each.take() for each in (proxy.receive(PATIENCE_S), proxy.receive(PATIENCE_S)) if each}
        assert found == {first: True, second: False}
        assert proxy.receive(0.01) is None
        proxy.put_unique("u", object())
        failed = proxy.receive(PATIENCE_S)
        assert failed is not None
        with pytest.raises(UnsupportedValue):
            failed.take()
    with pytest.raises(Closed):
        proxy.receive()


# -- for those who carry a store elsewhere ----------------------------------------------------------------


def test_snapshots_and_the_feed_of_changes(make: Make) -> None:
    master, clone = joined(make)
    master.put("a", 1, expiry_s=100)
    begin = master.version
    master.put("b", 2)
    master.erase("a")
    assert [(each.key, each.value, each.expires_ns) for each in master.snapshot()] == [("b", 2, None)]
    changes = master.changes_since(begin)
    assert changes is not None
    assert [(each.kind, each.key, each.version) for each in changes] == [
        ("insert", "b", begin + 1),
        ("erase", "a", begin + 2),
    ]
    assert master.changes_since(master.version) == []
    settled(master, clone)
    assert [(each.key, each.value) for each in clone.snapshot()] == [("b", 2)]
    master.put_many((n, n) for n in range(20_000))
    assert master.changes_since(begin) is None


# -- attaching --------------------------------------------------------------------------------------------


def test_a_second_master_is_refused_and_so_is_another_role(make: Make) -> None:
    master, clone = joined(make)
    for endpoint in (endpoint_of(master), endpoint_of(clone)):
        with pytest.raises(MasterExists):
            endpoint.attach_master("s")
    with pytest.raises(MasterExists, match="use that one"):
        endpoint_of(master).attach_clone("s")
    assert endpoint_of(master).attach_master("other").name == "other"
    master.close()
    with pytest.raises(MasterExists, match="has a clone"):
        endpoint_of(clone).attach_master("s")


def test_two_masters_that_meet_are_reported_at_all(make: Make) -> None:
    one, two = make(), make()
    heard = [each.statuses() for each in (one, two)]
    one.attach_master("s"), two.attach_master("s")
    two.peer("127.0.0.1", one.listen())
    found = [event(each, TwoMasters) for each in heard]
    assert {each.store for each in found} == {"s"}
    assert found[0].followed == found[1].other


def test_a_clone_of_no_master_is_refused_in_time_and_leaves_nothing(make: Make) -> None:
    endpoint = make()
    with pytest.raises(NoMaster, match="attach one to an endpoint"):
        endpoint.attach_clone("s", timeout=0.1)
    endpoint.attach_master("s").put("k", 1)


def test_a_clone_may_be_there_before_its_master(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "CHANNEL_NACK_S", 10 * PATIENCE_S)  # it looks again when the network says so
    one, two = make(), make()
    two.peer("127.0.0.1", one.listen())
    clone = two.attach_clone("s", timeout=0, resync_s=10 * PATIENCE_S)
    assert not clone.ready
    for read in (lambda: clone.get("k"), clone.keys, lambda: "k" in clone, clone.snapshot, lambda: len(clone)):
        with pytest.raises(StaleData, match="has not found a master yet"):
            read()
    clone.put("early", 1, wait=False)
    with one.attach_master("s") as master:
        until(lambda: clone.ready)
        assert settled(master, clone) == [("early", 1)]


@pytest.mark.parametrize(
    ("backend", "options", "text"),
    [
        ("nothing", {}, "memory, sqlite, rocksdb"),
        ("memory", {"path": "x"}, "takes no options"),
        ("sqlite", {}, "needs a path"),
        ("sqlite", {"path": "x", "sync": 1}, "synchronous, journal_mode, failure_mode, integrity_check, not sync"),
        ("rocksdb", {"path": "x", "synchronous": "OFF"}, "takes path, not synchronous"),
    ],
)
def test_backends_and_options_that_do_not_exist(backend: str, options: Any, text: str, make: Make) -> None:
    with pytest.raises(UsageError, match=text):
        make().attach_master("s", backend, **options)


@pytest.mark.parametrize("name", ["", "<$>x", "x" * 1_025, "\ud800"])
def test_names_that_no_store_can_have(name: str, make: Make) -> None:
    endpoint = make()
    for attach in (endpoint.attach_master, endpoint.attach_clone):
        with pytest.raises(UsageError):
            attach(name)


def test_times_out_of_bounds(make: Make) -> None:
    endpoint = make()
    for options in ({"resync_s": 0.0}, {"mutation_buffer_s": -1.0}, {"stale_s": float("nan")}):
        with pytest.raises(UsageError):
            endpoint.attach_clone("s", **options)


def test_one_name_within_another(make: Make) -> None:
    one, two = make(), make()
    inner, outer = one.attach_master("s"), one.attach_master("s/<$>/data/master")
    inner.put("k", "inner")
    outer.put("k", "outer")
    two.peer("127.0.0.1", one.listen())
    assert two.attach_clone("s")["k"] == "inner"
    assert two.attach_clone("s/<$>/data/master")["k"] == "outer"


# -- idle, and the end ------------------------------------------------------------------------------------


def test_idle_is_waited_for_and_called_back(both: tuple[DataStore, DataStore]) -> None:
    writer, other = both
    for number in range(500):
        writer.put("k", number, wait=False)
    answers: list[bool] = []
    done = threading.Event()

    def heard(answer: bool) -> None:
        answers.append(answer)
        done.set()

    assert writer.await_idle(callback=heard)
    assert done.wait(PATIENCE_S)
    assert answers == [True]
    assert writer.await_idle()
    assert settled(*both) == [("k", 499)]
    endpoint_of(other).close()
    assert writer.await_idle(0.1) is (writer.role == "master")


def test_a_master_does_not_wait_for_a_clone_that_was_closed(make: Make) -> None:
    master, clone = joined(make)
    clone.close()
    again = endpoint_of(clone).attach_clone("s")
    master.put("k", 1)
    assert master.await_idle(PATIENCE_S)
    assert again["k"] == 1


@pytest.mark.parametrize("order", ["master, clone", "clone, master", "endpoints of master", "endpoints of clone"])
def test_closing_in_any_order_ends_everything(order: str, make: Make) -> None:
    master, clone = joined(make)
    watch, proxy = clone.watch(), clone.proxy()
    ended: list[type] = []

    def wait() -> None:
        try:
            watch.get()
        except Closed:
            ended.append(Closed)

    waiting = threading.Thread(target=wait)
    waiting.start()
    closes: dict[str, list[Callable[[], None]]] = {
        "master, clone": [master.close, clone.close],
        "clone, master": [clone.close, master.close],
        "endpoints of master": [endpoint_of(master).close, endpoint_of(clone).close],
        "endpoints of clone": [endpoint_of(clone).close, endpoint_of(master).close],
    }
    for close in closes[order]:
        close()
        close()
    waiting.join(PATIENCE_S)
    assert ended == [Closed]
    for store in (master, clone):
        for use in (lambda each: each.put("k", 1), lambda each: each.get("k"), DataStore.await_idle, DataStore.watch):
            with pytest.raises(Closed):
                use(store)
    with pytest.raises(Closed):
        proxy.get("k")


def test_what_a_clone_has_written_is_done_before_it_is_closed(make: Make) -> None:
    master, clone = joined(make)
    for number in range(5_000):
        clone.put(number, number, wait=False)
    clone.close()
    assert len(master) == 5_000


# -- masters that go and come -----------------------------------------------------------------------------


def replaced(make: Make, port: int) -> Endpoint:
    """An endpoint that listens where another did."""
    endpoint = make()
    endpoint.listen(port=port)
    return endpoint


def listening(make: Make) -> tuple[Endpoint, int]:
    endpoint = make()
    return endpoint, endpoint.listen(port=free_ports())


def test_a_clone_converges_to_a_master_that_takes_the_place_of_another(make: Make) -> None:
    one, port = listening(make)
    two = make()
    two.peer("127.0.0.1", port, retry_s=0.05)
    first = one.attach_master("s")
    first.put_many({"same": 1, "changed": 1, "gone": 1})
    clone = two.attach_clone("s")
    watch, statuses = clone.watch(), two.statuses()
    one.close()
    event(statuses, MasterLost)
    assert clone["same"] == 1  # it still reads what it has
    endpoint = make()
    second = endpoint.attach_master("s")
    second.put_many({"same": 1, "changed": 2, "new": 2})
    endpoint.listen(port=port)  # so the clone finds it with all that
    event(statuses, MasterFound)
    settled(second, clone)
    found = sorted((each.kind, each.key, each.value, each.before) for each in watch.poll())
    assert [each for each in found if each[1] != "same"] == [
        ("erase", "gone", None, 1),
        ("insert", "new", 2, None),
        ("update", "changed", 2, 1),
    ]


def test_a_master_that_is_attached_anew_at_its_endpoint_is_found_at_once(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "MASTER_SILENT_S", 10 * PATIENCE_S)  # silence alone would tell nothing
    master, clone = joined(make)
    master.put("k", 1)
    master.close()
    again = endpoint_of(master).attach_master("s")
    again.put("k", 2)
    until(lambda: clone.get("k") == 2)
    clone.put("k", 3)
    assert again["k"] == 3


def test_writes_without_a_master_are_done_once_in_order_when_it_is_back(make: Make) -> None:
    one, port = listening(make)
    two = make()
    two.peer("127.0.0.1", port, retry_s=0.05)
    one.attach_master("s")
    clone = two.attach_clone("s")
    statuses = two.statuses()
    clone.increment("n")
    one.close()
    event(statuses, MasterLost)
    with pytest.raises(TimedOut):
        clone.push("list", 0, timeout=0.05)
    for number in range(1, 1_000):
        clone.push("list", number, wait=False)
    second = replaced(make, port).attach_master("s")
    until(lambda: clone.await_idle(0.2))
    assert settled(second, clone) == [("list", tuple(range(1_000)))]


def test_reads_and_writes_are_refused_after_their_times(clock: Clock, make: Make) -> None:
    one, port = listening(make)
    two = make()
    two.peer("127.0.0.1", port, retry_s=0.05)
    master = one.attach_master("s")
    master.put("k", 1)
    clone = two.attach_clone("s", stale_s=600, mutation_buffer_s=600)
    fast = two.attach_clone("s", stale_s=-1, mutation_buffer_s=0)
    statuses = two.statuses()
    one.close()
    event(statuses, MasterLost)
    assert (clone["k"], fast["k"]) == (1, 1)
    until(lambda: not core_of(fast).connected)
    with pytest.raises(NoMaster, match="keeps writes for 0 s"):
        fast.put("k", 2)
    with clone.proxy() as proxy:
        proxy.put_unique("u", 2)
        until(lambda: core_of(clone).unconfirmed == 1)
        clock.forward_s = 600.0
        answer = proxy.receive(PATIENCE_S)
    assert answer is not None
    with pytest.raises(NoMaster, match=r"no master was found within 600 s"):
        answer.take()
    event(statuses, CloneStale)
    with pytest.raises(StaleData, match=r"lost its master more than 600 s ago"):
        clone.get("k")
    assert (clone.ready, fast.ready, fast["k"]) == (False, True, 1)
    with pytest.raises(NoMaster):
        clone.put("k", 3, wait=False)
    again = replaced(make, port).attach_master("s")
    again.put("k", 4)
    until(lambda: clone.ready and clone.get("k") == 4)
    clone.put("k", 5)
    assert again["k"] == 5


def test_writes_that_nobody_waits_for_and_that_are_given_up_are_reported(clock: Clock, make: Make) -> None:
    master, clone = joined(make, mutation_buffer_s=600)
    statuses = endpoint_of(clone).statuses()
    endpoint_of(master).close()
    event(statuses, MasterLost)
    clone.put("k", 1, wait=False)
    clock.forward_s = 600.0
    assert isinstance(event(statuses, WriteFailed).error, NoMaster)
    assert event(statuses, CloneWritesRefused).count == 1
    assert not clone.await_idle(0.05)


def test_whoever_waits_for_a_write_when_the_clone_is_closed_is_told_that_nobody_knows(make: Make) -> None:
    master, clone = joined(make)
    statuses = endpoint_of(clone).statuses()
    endpoint_of(master).close()
    event(statuses, MasterLost)
    told: list[BaseException] = []

    def write() -> None:
        try:
            clone.put("k", 1)
        except WriteUnknown as error:
            told.append(error)

    writer = threading.Thread(target=write)
    writer.start()
    until(lambda: core_of(clone).unconfirmed == 1)
    clone.close()
    writer.join(PATIENCE_S)
    assert len(told) == 1
    assert not told[0].definite  # type: ignore[attr-defined]


def test_of_many_who_put_the_same_key_one_succeeds(make: Make) -> None:
    master, clone = joined(make)
    third = make()
    third.peer("127.0.0.1", endpoint_of(master).listen())
    stores = [master, clone, third.attach_clone("s")]
    for turn in range(20):
        winners: list[str] = []

        def race(store: DataStore, turn: int = turn, winners: list[str] = winners) -> None:
            if store.put_unique(turn, str(store.entity)):
                winners.append(str(store.entity))

        threads = [threading.Thread(target=race, args=(store,)) for store in stores]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE_S)
        assert winners == [master[turn]]
    settled(*stores)


def test_clones_behind_another_endpoint_follow_too(make: Make) -> None:
    one, middle, far = make(), make(), make()
    middle.peer("127.0.0.1", one.listen())
    far.peer("127.0.0.1", middle.listen())
    master = one.attach_master("s")
    clone = far.attach_clone("s")
    clone.put("k", 1)
    assert settled(master, clone) == [("k", 1)]
    statuses = far.statuses()
    one.close()
    event(statuses, MasterLost)


# -- who may not --------------------------------------------------------------------------------------------


def test_what_applications_publish_never_reaches_a_store(make: Make) -> None:
    master, clone = joined(make)
    master.put("k", 1)
    settled(master, clone)
    everything = [endpoint_of(store).subscribe("") for store in (master, clone)]
    statuses = [endpoint_of(store).statuses() for store in (master, clone)]
    for endpoint, other in ((endpoint_of(master), endpoint_of(clone)), (endpoint_of(clone), endpoint_of(master))):
        for topic in ("s/<$>/data/master", "s/<$>/data/clone"):
            endpoint.publish(topic, "forged")
            endpoint.publish(topic, "forged", to=other.id)
        for topic in ("<$>", "<$>/local/data/store-events/s"):
            with pytest.raises(UsageError):
                endpoint.publish(topic, "forged")
    clone.put("k", 2)
    assert settled(master, clone) == [("k", 2)]
    assert all(not each.poll() for each in statuses)
    for subscriber in everything:  # what is for stores is no data, and data on their topics is only data
        assert all(each.payload == encode("forged") for each in subscriber.poll())


def test_nobody_speaks_in_the_name_of_another_endpoints_clone_or_master(make: Make) -> None:
    master, clone = joined(make)
    rogue = make()
    heard, told = endpoint_of(master).statuses(), endpoint_of(clone).statuses()
    rogue.peer("127.0.0.1", endpoint_of(master).listen())
    master.put("key", 1)
    until(lambda: clone.get("key") == 1)
    names, rules = core_of(clone).entity, master.core.entity
    seq = core_of(clone)._writes.channel.seq

    def say(topic: bytes, sender: Entity, number: int, command: cmd.Command) -> None:
        payload = cmd.encode_message(number, sender, NOBODY, cmd.encode_command(command))
        with rogue.node.lock:
            flushes = rogue.core.publish(topic, payload, COMMAND, now=time.monotonic())
            rogue.node.send_soon(flushes, time.monotonic())

    until(lambda: len(rogue.core.filters()) == 2)
    say(master_topic(b"s"), names, seq + 1, cmd.Put("key", 2, None, names))
    say(master_topic(b"s"), names, 0, cmd.Leave(seq))
    assert "in the name of endpoint" in event(heard, CommandRefused).reason
    say(clone_topic(b"s"), rules, core_of(clone)._following._input.next, cmd.Put("key", 3, None, rules))
    assert "in the name of endpoint" in event(told, CommandRefused).reason
    clone.put("other", 4)
    assert settled(master, clone) == [("key", 1), ("other", 4)]


def test_who_finds_no_master_is_told_of_a_peering_that_was_lost_meanwhile(make: Make) -> None:
    one, two = make(), make()
    two.peer("127.0.0.1", one.listen())
    made = begin_clone(two, "s", CLONE_RESYNC_S, CLONE_STALE_S, CLONE_BUFFER_S)
    one.close()
    until(lambda: made.lost_peer is not None)
    asked = made.begin_await_ready()
    with pytest.raises(NoMaster, match=r"within 0 s.*; meanwhile it has lost the peering"):
        take_ready(made, asked, 0.0)
    made.close()


def test_what_a_master_said_last_is_no_sign_of_life(make: Make) -> None:
    one, two = make(), make()
    master = one.attach_master("s")
    port = one.listen()
    two.peer("127.0.0.1", port)
    clone = two.attach_clone("s")
    told = two.statuses()
    two.unpeer("127.0.0.1", port)
    event(told, MasterLost)
    rules, last = master.core.entity, core_of(clone)._following._input.next - 1
    body = cmd.encode_message(0, rules, NOBODY, cmd.encode_command(cmd.Keepalive(last)))
    own = one.core.own_id
    message = Message(clone_topic(b"s"), body, COMMAND, sender=own, origin=own, sequence=1)
    deliver(clone, min(clone.part.topics), message)  # it was read, and is handed on now
    assert not core_of(clone).connected
    assert not any(isinstance(each, MasterFound) for each in told.poll())


def test_of_all_who_add_at_the_same_time_each_gets_another_number(make: Make) -> None:
    store = make().attach_master("s")
    found: list[list[int]] = [[], [], []]

    def count(numbers: list[int]) -> None:
        numbers += [store.increment("n") for _ in range(300)]

    threads = [threading.Thread(target=count, args=(each,)) for each in found]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(number for numbers in found for number in numbers) == list(range(1, 901))
    assert store.increment("n", wait=False) == 901  # in memory it is done when it returns
    assert store.increment("when", timedelta(seconds=1)) == datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)
    with pytest.raises(NoSuchKey):
        store.decrement("nothing")


def test_a_clone_that_is_asked_again_and_again_shows_its_own_write(make: Make) -> None:
    one, two = make(), make()
    one.attach_master("s")
    two.peer("127.0.0.1", one.listen())
    clone = two.attach_clone("s")
    for number in range(20):
        clone.put("key", number, wait=False)
        ask_until(lambda: clone.get("key") == number)  # noqa: B023
        clone.put(f"key-{number}", number, wait=False)
        ask_until(lambda: clone.exists(f"key-{number}"))  # noqa: B023
