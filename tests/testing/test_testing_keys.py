"""Members of the log with keys, in a test's own world: the files are real, the cryptography of connections is not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from chappe import Consumer, Keys, Producer, Store
from chappe.api import permissions
from chappe.api.log.tower import Tower
from chappe.errors import NotPermitted, TimedOut, UsageError
from chappe.log.events import ConnectionRefused, PermissionsChanged
from chappe.permissions.text import with_line
from chappe.system import time
from chappe.testing import World

AT = "hub@127.0.0.1:5556:5557"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    made = tmp_path / "keys"
    permissions.init(made, "hub", "server")
    for name, role in (("store", "server"), ("writer", "producer"), ("reader", "consumer")):
        permissions.add(made, name, role)
    return made


def begin(world: World, home: Path) -> Tower:
    with world.on("tower"):
        tower = Tower(security=Keys(home / "hub"))
    with world.on("store"):
        Store(home.parent / "store", tower=AT, security=Keys(home / "store"))
    return tower


def change(home: Path, how: Callable[[str], str]) -> None:
    path = home / "permissions.toml"
    path.write_text(how(path.read_text()))
    permissions.sign(path)


def test_who_has_keys_is_let_in_and_may_what_the_permissions_say(chappe_world: World, home: Path) -> None:
    begin(chappe_world, home)
    with Producer("a", tower=AT, security=Keys(home / "writer")) as producer:
        producer.send(b"1")
        producer.flush(10)
    with Consumer("a", tower=AT, security=Keys(home / "reader")) as consumer:
        assert [each.value for each in consumer.to_end()] == [b"1"]
    with pytest.raises(NotPermitted, match="reader may not produce 'a'"):
        Producer("a", tower=AT, security=Keys(home / "reader"))


def test_who_has_no_keys_or_others_is_refused(chappe_world: World, home: Path, tmp_path: Path) -> None:
    tower = begin(chappe_world, home)
    with Producer("a") as producer:
        producer.send(b"1")
        with pytest.raises(TimedOut):
            producer.flush(5)
        chappe_world.wait_until(lambda: tower.refused >= 2)
        with pytest.raises(TimedOut):
            producer.close(0)
    permissions.init(tmp_path / "others", "hub", "server")
    permissions.add(tmp_path / "others", "writer", "producer")
    with Producer("a", tower=AT, security=Keys(tmp_path / "others" / "writer"), min_acks=0) as producer:
        chappe_world.advance(3)
        (refused,) = (each for each in producer.events() if isinstance(each, ConnectionRefused))
        assert "another key than hub has here" in refused.reason


def test_who_is_revoked_is_cut_off_and_told(chappe_world: World, home: Path) -> None:
    begin(chappe_world, home)
    consumer = Consumer("a", tower=AT, security=Keys(home / "reader"))
    consumer.wait_ready(5)
    net = chappe_world._ground.net
    before = len(net.shaken)
    change(home, lambda text: with_line(text, "reader", "revoked", time.utc_now()))
    chappe_world.advance(3)
    assert any(isinstance(each, PermissionsChanged) for each in consumer.events())
    with pytest.raises(UsageError, match="reader was revoked"):
        consumer.poll(0)
    assert len(net.shaken) < before
