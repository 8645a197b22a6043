"""Sealed data stores: a master and clones of a group, somebody in the middle, and disks."""

from __future__ import annotations

import shutil
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.api.sealed_net import Net, make_home
from tests.endpoints import PATIENCE_S, Make, event, until
from tests.sources import needs_sources

from chappe import DataStore, Endpoint, Keys, Tls
from chappe.api import permissions
from chappe.data.binary import encode
from chappe.errors import Damaged, NoMaster, Sealed
from chappe.kv.backend import PutRow
from chappe.mesh.events import MessagesRefused
from chappe.mesh.messages import COMMAND
from chappe.security import permissions_file, sealed_file
from chappe.storage.kv_backends import SqliteBackend

STORE = "patients/beds"
PLANTED = ("planted key", "planted value")


@pytest.fixture
def net(make: Make, tmp_path: Path) -> Net:
    return Net(make, make_home(tmp_path / "keys"))


def attach(net: Net, **options: Any) -> tuple[Endpoint, DataStore, Endpoint, DataStore]:
    ann, bob = net.join("ann"), net.join("bob")
    master = ann.attach_master(STORE, **options)
    until(lambda: ann.core.own_id in bob.core.filters(), "the way is known")
    return ann, master, bob, bob.attach_clone(STORE, timeout=PATIENCE_S)


def same(*stores: DataStore) -> None:
    until(lambda: all(each.keys() == stores[0].keys() for each in stores[1:]), lambda: [each.keys() for each in stores])


def test_members_share_a_store_of_which_nobody_else_sees_anything(net: Net) -> None:
    ann, master, bob, clone = attach(net)
    master.put(PLANTED[0], PLANTED[1])
    clone.put_unique("two", PLANTED[1], timeout=PATIENCE_S)
    clone.increment("count", 5, timeout=PATIENCE_S)
    clone.put_many({f"{PLANTED[0]} {each}": PLANTED[1] for each in range(500)}, timeout=PATIENCE_S)
    same(master, clone)
    assert master.get("count") == clone.get("count") == 5
    assert clone.get(PLANTED[0]) == PLANTED[1]
    assert (ann.unopened, bob.unopened) == (0, 0)
    assert any(b"/<$>/data/" in each for each in net.passed)
    assert not [each for each in net.passed for planted in PLANTED if planted.encode() in each]


def test_who_is_not_of_the_group_attaches_nothing(net: Net) -> None:
    eve = net.join("eve")
    for attempt in (eve.attach_master, eve.attach_clone):
        with pytest.raises(
            Sealed, match="data store 'patients/beds' is sealed for ward, and nothing was sent: eve is not of"
        ):
            attempt(STORE)


def test_commands_that_were_not_sealed_or_come_again_are_refused(net: Net) -> None:
    needs_sources()
    ann, master, bob, clone = attach(net)
    seen: list[tuple[bytes, bytes, bytes]] = []
    publish = bob.core.router.publish

    def note(topic: bytes, payload: bytes, kind: int, receiver: bytes, now: float) -> object:
        if kind == COMMAND:
            seen.append((topic, payload, receiver))
        return publish(topic, payload, kind, receiver, now)

    bob.core.router.publish = note  # type: ignore[method-assign, assignment]
    clone.increment("count", 1, timeout=PATIENCE_S)
    net.hub.node.pass_sealed()
    with ann.statuses() as told:
        for topic, payload, receiver in list(seen):
            assert net.hub.try_publish(topic, payload, receiver, kind=COMMAND)
        reason = event(told, MessagesRefused).reason
        assert "came before, or were sealed before others" in reason
        count = ann.unopened
        assert net.hub.try_publish(f"{STORE}/<$>/data/master".encode(), bytes(100), kind=COMMAND)
        until(lambda: ann.unopened > count, "the last one")
    clone.increment("count", 1, timeout=PATIENCE_S)
    assert master.get("count") == 2


def test_a_member_that_may_only_read_writes_nothing_though_neighbours_cannot_look(net: Net) -> None:
    """Its own endpoint would refuse; so it is one that does not ask itself."""
    path = permissions_file(net.home)
    text = path.read_text()
    rule = '[[rules]]\nallow = ["attach-clone"]\nnames = ["bob"]\ntopics = ["patients/*"]\n\n'
    deny = '[[rules]]\ndeny = ["write", "forward", "attach-master"]\nnames = ["bob"]\ntopics = ["patients/*"]\n\n'
    path.write_text(text.replace("[[rules]]", rule + deny + "[[rules]]", 1))
    permissions.sign(path)
    ann, master, _, clone = attach(net)
    clone.attached.endpoint.permitted = None
    with ann.statuses() as told:
        clone.put("key", 1, wait=False)
        assert event(told, MessagesRefused).reason == "bob may not write there"
    assert list(master.keys()) == []


def test_a_member_cannot_write_in_the_name_of_another(net: Net) -> None:
    ann, master, bob, clone = attach(net)
    sealing = bob.node.sealing
    assert sealing is not None
    topic = f"{STORE}/<$>/data/master".encode()
    command = bytes(8) + net.hub.core.own_id + bytes(100)
    (raw,) = sealing.seal_commands(topic, [command], bytes(16))
    with ann.statuses() as told:
        with bob.node.lock:
            bob.node.do(bob.core.publish(topic, raw, COMMAND, bytes(16), time.monotonic()))
        assert event(told, MessagesRefused).reason == "bob has sealed them in the name of another endpoint"
    clone.put("key", 1, timeout=PATIENCE_S)
    assert master.get("key") == 1


def test_keys_change_while_it_is_used(net: Net) -> None:
    late = net.home.parent / "late"
    shutil.copytree(net.home, late)
    ann, bob = net.join("ann"), net.join("bob", late)
    master = ann.attach_master(STORE)
    clone = bob.attach_clone(STORE, timeout=PATIENCE_S)
    clone.put("one", 1, timeout=PATIENCE_S)
    permissions.rotate(net.home, "ward")
    sealing = ann.node.sealing
    assert sealing is not None

    def changed() -> bool:
        with ann.node.lock:
            sealing.check(STORE.encode())
            found = sealing._checked["ward"]
            return not isinstance(found, str) and found.number == 2

    until(changed, "ann has the new keys")
    master.put("two", 2)
    shutil.copy2(sealed_file(net.home, "ward"), late)
    until(lambda: clone.get("two", None) == 2, "the clone has the new keys")
    clone.put("three", 3, timeout=PATIENCE_S)
    assert master.get("three") == 3


# -- on a disk --------------------------------------------------------------------------------------------------


def backend(kind: str, tmp_path: Path) -> dict[str, Any]:
    if kind == "rocksdb":
        pytest.importorskip("rocksdict")
    return {"backend": kind, "path": tmp_path / "data" / "store"}


def disk(tmp_path: Path) -> list[bytes]:
    return [path.read_bytes() for path in (tmp_path / "data").rglob("*") if path.is_file()]


@pytest.mark.parametrize("kind", ["sqlite", "rocksdb"])
def test_a_disk_has_neither_keys_nor_values(net: Net, tmp_path: Path, kind: str) -> None:
    options = backend(kind, tmp_path)
    ann, master, _, clone = attach(net, **options)
    for each in range(50):
        master.put(f"{PLANTED[0]} {each}", PLANTED[1])
    clone.put(PLANTED[0], PLANTED[1], expiry_s=1e6, timeout=PATIENCE_S)
    clone.put("gone", PLANTED[1], timeout=PATIENCE_S)
    master.erase("gone")
    assert not [raw for raw in disk(tmp_path) for planted in (*PLANTED, "gone") if planted.encode() in raw]
    found = {key: master.get(key) for key in sorted(master.keys())}
    master.close()
    again = ann.attach_master(STORE, **options)
    assert {key: again.get(key) for key in sorted(again.keys())} == found
    assert len(found) == 51
    again.clear()
    again.put("new", 1)
    again.close()
    assert list(ann.attach_master(STORE, **options).keys()) == ["new"]
    assert not [raw for raw in disk(tmp_path) for planted in (*PLANTED, "gone") if planted.encode() in raw]


def test_after_somebody_has_left_a_file_has_another_key(net: Net, tmp_path: Path) -> None:
    options = backend("sqlite", tmp_path)
    permissions.add(net.home, "cat", "member")
    ann = net.join("ann")
    master = ann.attach_master(STORE, history=2, **options)
    master.put("key", "before")
    master.close()
    before = dict(_rows(options))
    permissions.revoke(net.home, "cat")
    sealing = ann.node.sealing
    assert sealing is not None
    until(lambda: sealing._held.ring("ward").keys.newest.number == 3, "ann has the new keys")  # type: ignore[union-attr]
    again = ann.attach_master(STORE, history=2, **options)
    assert again.get("key") == "before"
    again.put("key", "after")
    again.close()
    after = dict(_rows(options))
    again = ann.attach_master(STORE, history=2, **options)
    assert [each.value for each in again.history("key")] == ["before", "after"]
    again.close()
    with closing(sqlite3.connect(options["path"])) as database:
        changes = [change for (change,) in database.execute("select change from chappe_history")]
    assert len(changes) == 2
    assert not any(b"before" in each or b"after" in each for each in changes)
    assert not before.keys() & after.keys() - {"chappe_sealed"}
    cat = net.make(security="plain")
    with pytest.raises(Sealed, match="the file is of a sealed data store"):
        cat.attach_master(STORE, **options)


def _rows(options: dict[str, Any]) -> Iterator[tuple[Any, Any]]:
    opened = SqliteBackend(options["path"])
    try:
        for key, value, _ in opened.load().entries:
            yield key, value
    finally:
        opened.close()


def test_a_file_whose_key_was_not_given_to_us_is_not_opened(net: Net, tmp_path: Path) -> None:
    options = backend("sqlite", tmp_path)
    ann = net.join("ann")
    ann.attach_master(STORE, **options).close()
    permissions.add(net.home, "cat", "member")
    other = net.home.parent / "other"
    shutil.copytree(net.home, other)
    cat = net.make(security=Keys(other / "cat"))
    with pytest.raises(Sealed, match="is sealed in epoch 1 of ward, without us"):
        cat.attach_master(STORE, **options)


def test_a_plain_file_is_no_sealed_store(net: Net, tmp_path: Path) -> None:
    options = backend("sqlite", tmp_path)
    plain = SqliteBackend(options["path"])
    plain.commit([PutRow(encode("key"), encode("value"), None)])
    plain.close()
    with pytest.raises(Sealed, match="is sealed, and the file has plain entries"):
        net.join("ann").attach_master(STORE, **options)


@pytest.mark.parametrize("what", ["key", "value", "expiry", "other value"])
def test_an_entry_that_somebody_changed_is_damage(net: Net, tmp_path: Path, what: str) -> None:
    options = backend("sqlite", tmp_path)
    ann = net.join("ann")
    master = ann.attach_master(STORE, **options)
    master.put("one", 1)
    master.put("two", 2)
    master.close()
    opened = SqliteBackend(options["path"])
    database = opened._opened()
    rows = [
        row for row in database.execute("select key, value from store").fetchall() if row[0] != encode("chappe_sealed")
    ]
    (key, value), (_, other) = rows
    changes = {
        "key": ("update store set key = ? where key = ?", (key[:-1] + bytes([key[-1] ^ 1]), key)),
        "value": ("update store set value = ? where key = ?", (value[:-1] + bytes([value[-1] ^ 1]), key)),
        "expiry": ("update store set expiry = ? where key = ?", (2**62, key)),
        "other value": ("update store set value = ? where key = ?", (other, key)),
    }
    database.execute(*changes[what])
    opened.close()
    with pytest.raises(Damaged, match="not as it was sealed"):
        ann.attach_master(STORE, **options)


def test_an_endpoint_without_an_identity_finds_no_master(net: Net) -> None:
    attach(net)
    eve = net.make(security=Tls.of(net.home, "eve"))
    eve.peer("127.0.0.1", net.port)
    with pytest.raises(NoMaster):
        eve.attach_clone(STORE, timeout=0.5)
