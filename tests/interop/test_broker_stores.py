"""Data stores shared by chappe and the original Broker, in every role.

What the original cannot do is asserted as what it is, where a test meets it: nobody tells a writer there that an
operation did not fit.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path

import pytest
from tests.interop.broker_stores import (
    HOST,
    LEFT,
    LONG_S,
    NAME,
    VALUES,
    Pair,
    Scene,
    Star,
    attach_their_clone,
    connect,
    dump,
    entries,
    ours_do,
    scene,
    settles,
    shown,
    theirs_do,
    they_settle,
)
from tests.interop.originals import eventually

from chappe import Endpoint
from chappe.compat import broker
from chappe.data.scalars import Count
from chappe.data.values import Table
from chappe.errors import InvalidOperation, MasterExists, TypeClash

pytestmark = pytest.mark.process
MANY = 100_000
WRITES = 20_000


@pytest.fixture(name="scene")
def made() -> Iterator[Scene]:
    with scene() as found:
        yield found


@pytest.fixture(params=[True, False], ids=["our-master", "their-master"])
def pair(request: pytest.FixtureRequest, scene: Scene) -> Pair:
    return Pair(scene.endpoint(), scene.original(), request.param)


@pytest.fixture(params=[True, False], ids=["our-master", "their-master"])
def star(request: pytest.FixtureRequest, scene: Scene) -> Star:
    return Star(scene, request.param)


def test_keys_and_values_of_every_type_pass_both_ways(pair: Pair) -> None:
    expected = sorted(shown(value) * 2 for value, _ in VALUES)
    for value, _ in VALUES:
        pair.store.put(value, value, wait=False)
    pair.settle(expected)
    pair.store.clear()
    pair.settle([])
    for _, expression in VALUES:
        pair.theirs.do(NAME, "put", expression, expression)
    pair.settle(expected)


def test_our_operations_do_what_the_originals_do(pair: Pair) -> None:
    ours_do(pair.store)
    pair.settle(entries(LEFT))
    pair.store.clear(timeout=LONG_S)
    pair.settle([])
    assert pair.store.await_idle(LONG_S)


def test_the_originals_operations_do_what_ours_do(pair: Pair) -> None:
    theirs_do(pair.theirs)
    pair.settle(entries(LEFT))
    assert pair.theirs.do(NAME, "await_idle", str(LONG_S)) == "True"
    pair.theirs.do(NAME, "clear")
    pair.settle([])


def test_operations_that_do_not_fit_change_nothing(pair: Pair) -> None:
    pair.store.put("count", Count(1), wait=False)
    pair.store.put("table", Table(), wait=False)
    kept = entries({"count": Count(1), "table": Table()})
    pair.settle(kept)
    pair.theirs.do(NAME, "increment", "'count'", "1")
    pair.theirs.do(NAME, "append", "'count'", "'x'")
    pair.theirs.do(NAME, "push", "'table'", "[1, 2, 3]")
    pair.theirs.do(NAME, "decrement", "'not there'", "1")
    for method, arguments in [("increment", ("count", 1)), ("push", ("table", (1, 2, 3)))]:
        # Our master says so; the original's tells nobody, and confirms what it has not done.
        with pytest.raises((TypeClash, InvalidOperation)) if pair.store.role == "master" else nullcontext():
            getattr(pair.store, method)(*arguments)
    pair.store.put("end", 1, wait=False)
    pair.theirs.do(NAME, "put", "'their end'", "1")
    pair.settle(sorted(kept + entries({"end": 1, "their end": 1})))


def test_single_values_are_read_alike(pair: Pair) -> None:
    pair.store.put("vector", (1, "x"), wait=False)
    pair.store.put("table", Table([(1, "one")]), wait=False)
    pair.settle(entries({"vector": (1, "x"), "table": Table([(1, "one")])}))
    for key, index, found in [("vector", 1, "x"), ("vector", 2, None), ("table", 1, "one"), ("table", 2, None)]:
        assert pair.store.get_index_from_value(key, index) == found
        assert pair.theirs.do(NAME, "get_index_from_value", repr(key), repr(index)) == repr(found)
    assert (pair.theirs.do(NAME, "exists", "'table'"), pair.theirs.do(NAME, "exists", "'x'")) == ("True", "False")


def test_of_all_who_put_a_key_first_one_wins(pair: Pair) -> None:
    keys = 60
    with ThreadPoolExecutor(1) as thread:
        theirs = thread.submit(pair.theirs.put_unique_numbers, NAME, keys, "theirs")
        ours = [pair.store.put_unique(number, "ours", timeout=LONG_S) for number in range(keys)]
        won = theirs.result(timeout=4 * LONG_S)
    assert [int(left) + int(right) for left, right in zip(ours, won, strict=True)] == [1] * keys
    pair.settle(entries({number: "ours" if ours[number] else "theirs" for number in range(keys)}))


def test_entries_expire_on_both_sides(pair: Pair) -> None:
    pair.store.put("kept", 1, wait=False)
    pair.store.put("ours", 1, expiry_s=0.3, wait=False)
    pair.theirs.do(NAME, "put", "'theirs'", "1", "0.3")
    pair.store.put("long", 1, expiry_s=LONG_S * 10, wait=False)
    pair.store.put("again", 1, expiry_s=0.3, wait=False)
    pair.store.put("again", 2, wait=False)  # without an expiry the old one is gone
    pair.store.put_unique("ours too", 1, expiry_s=0.3)
    pair.theirs.do(NAME, "put_unique", "'theirs too'", "1", "0.3")
    pair.store.increment("ours three", 1, expiry_s=0.3, wait=False)
    eventually(lambda: pair.store.exists("theirs"), "what they wrote did not come")
    pair.settle(entries({"kept": 1, "long": 1, "again": 2}))


def test_an_originals_clone_follows_a_master_whose_time_is_simulated(scene: Scene) -> None:
    theirs = scene.original()
    options = broker.BrokerOptions(disable_ssl=True, use_real_time=False)
    with broker.Endpoint(broker.Configuration(options)) as ours:
        master = ours.attach_master(NAME, broker.Backend.Memory)
        assert master is not None
        connect(ours._endpoint, theirs)
        attach_their_clone(theirs)
        ours.advance_time(broker.Timestamp(1e9))
        master.put("ours", 1, 3600.0)
        theirs.do(NAME, "put", "'theirs'", "1", "60")
        they_settle(theirs, entries({"ours": 1, "theirs": 1}))
        ours.advance_time(broker.Timestamp(1e9 + 60))
        they_settle(theirs, entries({"ours": 1}))
        ours.advance_time(broker.Timestamp(2e9))  # decades later it is still there
        they_settle(theirs, [])
        theirs.do(NAME, "put", "'again'", "1")
        they_settle(theirs, entries({"again": 1}))
        assert master.keys() == {"again"}


def test_changes_are_told_with_who_made_them(scene: Scene) -> None:
    ours, theirs = scene.endpoint(), scene.original()
    theirs.watch(NAME)
    pair = Pair(ours, theirs, we_are_master=True)
    with pair.store.watch() as watch:
        pair.store.put("k", 1)
        pair.settle(entries({"k": 1}))
        theirs.do(NAME, "put", "'k'", "2", "0.2")
        told = [watch.get(LONG_S) for _ in range(3)]
        assert [each.kind for each in told if each] == ["insert", "update", "expire"]
        writers = [each.publisher.endpoint.hex() for each in told if each and each.publisher]
        own, other = ours.id.replace("-", ""), theirs.id().replace("-", "")
        assert writers == [own, other, own]
    events = theirs.events(NAME, 3, LONG_S)
    number = pair.store.entity.number
    assert events[0] == f"(insert, {NAME}, k, 1, nil, {ours.id}, {number})"
    assert events[1].startswith(f"(update, {NAME}, k, 1, 2, 200000000ns, {theirs.id()}, ")
    assert events[2] == f"(expire, {NAME}, k, {ours.id}, {number})"


def test_clones_of_both_kinds_follow_one_master(star: Star) -> None:
    expected: dict[object, object] = {}
    for turn in range(20):
        for number, store in enumerate(star.ours):
            store.put(f"ours {number} {turn}", turn, wait=False)
            store.increment("sum", 1, wait=False)
            expected[f"ours {number} {turn}"] = turn
        for number, theirs in enumerate(star.theirs):
            theirs.do(NAME, "put", f"'theirs {number} {turn}'", str(turn))
            theirs.do(NAME, "increment", "'sum'", "1")
            expected[f"theirs {number} {turn}"] = turn
    star.settle(entries({**expected, "sum": 80}))
    assert all(store.await_idle(LONG_S) for store in star.ours)


def test_of_clones_of_both_kinds_one_puts_first(star: Star) -> None:
    keys = 40
    with ThreadPoolExecutor(4) as threads:
        theirs = [
            threads.submit(each.put_unique_numbers, NAME, keys, f"theirs {number}")
            for number, each in enumerate(star.theirs)
        ]
        ours = [
            threads.submit(lambda each, who: [each.put_unique(key, who) for key in range(keys)], each, f"ours {number}")
            for number, each in enumerate(star.ours)
        ]
        won = [each.result(4 * LONG_S) for each in (*ours, *theirs)]
    names = ["ours 0", "ours 1", "theirs 0", "theirs 1"]
    winners = [[name for name, results in zip(names, won, strict=True) if results[key]] for key in range(keys)]
    assert [len(each) for each in winners] == [1] * keys
    star.settle(entries({key: name for key, (name,) in enumerate(winners)}))


@pytest.mark.parametrize("relayed", [False, True])
def test_ends_of_chappe_share_a_store_over_an_original_that_forwards_its_topics(relayed: bool, scene: Scene) -> None:
    """The original announces what it wants itself and not what its peers want, so it has to be told to forward."""
    middle = scene.original()
    port = middle.listen()
    middle.forward(f"{NAME}/")
    ours, there = scene.endpoint(), scene.endpoint()
    store = ours.attach_master(NAME)
    beside = scene.endpoint() if relayed else ours
    beside.peer(HOST, port, timeout=LONG_S)
    if relayed:
        ours.peer(HOST, beside.listen(), timeout=LONG_S)
    there.peer(HOST, port, timeout=LONG_S)
    clone = there.attach_clone(NAME, timeout=LONG_S)
    ours_do(clone)
    settles(clone, entries(LEFT))
    assert clone.put_unique("once", 1, timeout=LONG_S)
    assert not clone.put_unique("once", 2, timeout=LONG_S)
    store.put("back", 2)
    settles(clone, entries(LEFT | {"once": 1, "back": 2}))
    settles(store, dump(clone))
    store.close()
    successor = ours.attach_master(NAME)
    successor.put("new", 3)
    settles(clone, entries({"new": 3}))


def test_a_name_has_one_master(scene: Scene) -> None:
    ours, theirs = scene.endpoint(), scene.original()
    connect(ours, theirs)
    ours.attach_master("ours")
    assert theirs.attach_master("theirs")
    eventually(lambda: refuses(ours, "theirs"), "we made a second master")
    eventually(lambda: any(topic.startswith(b"theirs/") for topic in ours.core.peer_subscriptions()), "no filter")
    eventually(lambda: not theirs.attach_master("ours"), "the original made a second master")


def refuses(ours: Endpoint, name: str) -> bool:
    try:
        ours.attach_master(name).close()
    except MasterExists:
        return True
    return False


def test_many_writes_pass_both_ways(pair: Pair) -> None:
    pair.store.put_many([(f"key {number}", number) for number in range(WRITES // 2)])
    eventually(lambda: pair.theirs.size(NAME) == WRITES // 2, "the original has not got all", 60.0)
    pair.theirs.put_numbers(NAME, WRITES)
    eventually(lambda: len(pair.store) == WRITES, lambda: f"{len(pair.store)} of {WRITES}", 60.0)
    assert all(value == int(str(key).removeprefix("key ")) for key, value in pair.store.items())


@pytest.mark.parametrize("we_are_master", [True, False])
def test_a_clone_is_attached_to_a_full_store(we_are_master: bool, scene: Scene) -> None:
    ours, theirs = scene.endpoint(), scene.original()
    connect(ours, theirs)
    if we_are_master:
        store = ours.attach_master(NAME)
        store.put_many([(f"key {number}", number) for number in range(MANY)])
        assert theirs.attach_clone(NAME)
        eventually(lambda: theirs.size(NAME) == MANY, "the original has not got all", 60.0)
        assert theirs.do(NAME, "get", "'key 99999'") == "99999"
    else:
        assert theirs.attach_master(NAME)
        theirs.put_numbers(NAME, MANY)
        store = ours.attach_clone(NAME, timeout=60.0)
        assert len(store) == MANY
        assert theirs.do(NAME, "await_idle", str(LONG_S)) == "True"
        assert all(value == int(str(key).removeprefix("key ")) for key, value in store.items())


@pytest.mark.parametrize("journal_mode", ["DELETE", "WAL"])
def test_the_originals_file_is_opened_and_ours_by_it(journal_mode: str, tmp_path: Path, scene: Scene) -> None:
    path = tmp_path / "store.sqlite"
    options = f"{{'path': {str(path)!r}, 'journal_mode': broker.Enum('Broker::SQLITE_JOURNAL_MODE_{journal_mode}')}}"
    theirs = scene.original()
    assert theirs.attach_master(NAME, "SQLite", options)
    for _, expression in VALUES:
        theirs.do(NAME, "put", expression, expression)
    theirs.do(NAME, "put", "'short'", "1", "0.5")
    theirs.do(NAME, "put", "'long'", "1", "1000")
    theirs_do(theirs)
    wanted = theirs.dump(NAME)
    theirs.end()
    kept = [each for each in wanted if each[1] != b"short".hex()]  # it is there, or expired
    assert len(kept) == len(VALUES) + len(LEFT) + 1
    ours = scene.endpoint()
    with ours.attach_master(NAME, "sqlite", path=path, journal_mode=journal_mode) as store:
        eventually(lambda: dump(store) == kept, lambda: str(dump(store)))
        expiries = {entry.key: entry.expires_ns for entry in store.snapshot() if entry.expires_ns is not None}
        assert 900e9 < expiries["long"] - time.time_ns() < 1000e9
        store.put_many([(("ours", value), value) for value, _ in VALUES if value != b"\xff\x00"])
        store.put("short", 1, expiry_s=0.5)
        store.erase("long")
    again = scene.original()
    assert again.attach_master(NAME, "SQLite", f"{{'path': {str(path)!r}, 'integrity_check': True}}")
    added = [shown(("ours", value)) + shown(value) for value, _ in VALUES if value != b"\xff\x00"]
    final = sorted([each for each in kept if each[1] != b"long".hex()] + added)
    eventually(lambda: again.dump(NAME) == final, lambda: str(again.dump(NAME)))
    again.end()
    with ours.attach_master(NAME, "sqlite", path=path, integrity_check=True) as store:
        assert dump(store) == final
