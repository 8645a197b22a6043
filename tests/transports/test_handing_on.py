"""Newer permissions travel over the sockets of the log, whatever is lost on the way."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from tests.api.test_log_rules import leave
from tests.waiting import until

from chappe import Consumer, Forwarder, Keys, Producer, Store, Tower
from chappe.api import permissions
from chappe.security import permissions_file
from chappe.storage.key_files import watched_permissions
from chappe.transports import handing_on
from chappe.transports.gate import gate_of
from chappe.transports.handing_on import PERMISSIONS, VERSION, Member, Middle


class File:
    """A gate, as far as it is needed: permissions are a number."""

    def __init__(self, version: int) -> None:
        self.version = version

    @property
    def raw(self) -> bytes:
        return b"%d" % self.version

    def offer(self, raw: bytes) -> None:
        assert raw, "nothing is handed on"
        self.version = max(self.version, int(raw))


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now


@pytest.mark.parametrize("seed", range(20))
def test_all_have_the_newest_version_in_the_end_and_then_nothing_is_sent_but_its_number(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, rng = Clock(), random.Random(seed)
    monkeypatch.setattr(handing_on, "time", clock)
    files = [File(rng.randint(1, 9)) for _ in range(6)]
    to_members: list[list[bytes]] = []
    to_middle: list[list[bytes]] = []
    middle = Middle(files[0], to_members.append)  # type: ignore[arg-type]
    members = [Member(each, to_middle.append) for each in files[1:]]  # type: ignore[arg-type]
    newest = max(each.version for each in files)

    def second(loss: float) -> int:
        clock.now += 1.0
        middle.look()
        sizes = 0
        while to_members or to_middle:
            down, to_members[:] = to_members[:], []
            up, to_middle[:] = to_middle[:], []
            sizes += sum(each[0] == PERMISSIONS for each in (*down, *up))
            for frames in down:
                for member in members:
                    if rng.random() >= loss:
                        member.hear(frames)
            for frames in up:
                if rng.random() >= loss:
                    middle.hear(frames)
        return sizes

    for _ in range(10):
        second(0.7)
    for _ in range(5):
        second(0.0)
    assert {each.version for each in files} == {newest}
    assert sum(second(0.0) for _ in range(20)) == 0

    rng.choice(files).version = newest + 1  # somebody's file was replaced
    for _ in range(4):
        second(0.0)
    assert {each.version for each in files} == {newest + 1}


def test_what_is_not_two_frames_is_nothing() -> None:
    file = File(3)
    member = Member(file, lambda frames: None)  # type: ignore[arg-type]
    middle = Middle(file, lambda frames: None)  # type: ignore[arg-type]
    for frames in ([PERMISSIONS], [VERSION], [PERMISSIONS, b"7", b"8"], [PERMISSIONS, b""], [VERSION, b""]):
        member.hear(frames)
        middle.hear(frames)
    assert file.version == 3


@pytest.fixture
def home(tmp_path: Path) -> Path:
    made = tmp_path / "keys"
    permissions.init(made, "hub", "server")
    permissions.add(made, "sensor", "producer")
    permissions.add(made, "reader", "consumer")
    permissions.add(made, "gone", "consumer")
    return made


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as made:
        yield made


def machine(home: Path, name: str) -> Keys:
    """The keys of a program on a machine of its own."""
    there = home.parent / f"machine-of-{name}"
    there.mkdir()
    for each in ("authority.pem", "permissions.toml", f"{name}.pem", f"{name}.key"):
        (there / each).write_bytes((home / each).read_bytes())
        (there / each).chmod((home / each).stat().st_mode)
    return Keys(there / name)


def versions(*keys: Keys) -> set[int]:
    return {watched_permissions(each.directory).permissions.version for each in keys}


@pytest.mark.parametrize("where", ["hub", "sensor"])
def test_a_revocation_that_one_machine_has_reaches_all_through_towers(where: str, home: Path, stack: ExitStack) -> None:
    hub, store, sensor, reader, gone = machines = [
        machine(home, name)
        for name in ("hub", "store", "sensor", "reader", "gone")
        if name != "store" or permissions.add(home, "store", "server")
    ]
    at_hand = {"hub": hub, "sensor": sensor}[where]
    permissions_file(hub.directory).write_bytes(permissions_file(store.directory).read_bytes())  # it knows the store
    tower = stack.enter_context(closing(Tower("hub@127.0.0.1:0", security=hub))).address
    tower = f"hub@{tower}"
    stack.enter_context(closing(Store(home.parent / "data", tower=tower, security=store)))
    producer = Producer("orders", tower=tower, security=sensor)
    stack.callback(leave, producer)
    for keys in (reader, gone):
        stack.enter_context(closing(Consumer("orders", tower=tower, security=keys)))
    until(lambda: len(versions(*machines)) == 1, "the version that the store was added by")
    producer.send(b"1")
    producer.flush(60)

    permissions.revoke(home, "gone")
    newest = permissions.read(home).version
    permissions_file(at_hand.directory).write_bytes(permissions_file(home).read_bytes())

    until(lambda: versions(hub, store, sensor, reader) == {newest}, "the new version everywhere")
    until(lambda: permissions.read(store.directory).version == newest, "its file")
    gate = gate_of(store)
    assert gate is not None
    until(lambda: "revoked" in str(gate.decisions().why_not("gone", "consume", "orders")), "that it is in force")


def test_it_travels_through_forwarders_too(home: Path, stack: ExitStack) -> None:
    hub, sensor, reader = machines = [machine(home, name) for name in ("hub", "sensor", "reader")]
    forwarder = stack.enter_context(closing(Forwarder(home.parent / "data", listen="127.0.0.1:0", security=hub)))
    where = forwarder.address
    producer = Producer("orders", forwarders=where, security=sensor)
    stack.callback(leave, producer)
    stack.enter_context(closing(Consumer("orders", forwarders=where, security=reader)))
    producer.send(b"1")
    producer.flush(60)

    for keys in (sensor, hub, reader):
        permissions.renew(home, "gone")
        permissions_file(keys.directory).write_bytes(permissions_file(home).read_bytes())
        newest = permissions.read(home).version
        until(lambda newest=newest: versions(*machines) == {newest}, "the new version everywhere")  # type: ignore[misc]
