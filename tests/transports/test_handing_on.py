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
from chappe.log.handing_on import GROUPS, NEWS, PERMISSIONS, VERSION, WORD_BYTES, Middle, PermissionsMember
from chappe.security import permissions_file, sealed_file
from chappe.storage.key_files import watched_permissions
from chappe.storage.sealed_files import watched_groups
from chappe.transports.gate import gate_of


class Groups:
    """One group, of which keys are a number; three of them are handed on at a time."""

    def __init__(self, version: int) -> None:
        self.version = version
        self.heard: list[tuple[str, int, float]] = []

    def hear(self, group: str, version: int, now: float) -> None:
        self.heard.append((group, version, now))

    def versions(self) -> dict[str, int]:
        return {"ward": self.version}

    def wanted(self, group: str, name: str) -> bool:
        return group == "ward"

    def after(self, group: str, version: int) -> bytes:
        return b"%d-%d" % (version, min(self.version, version + 3)) if version < self.version else b""


class File:
    """A gate, as far as it is needed: permissions are a number."""

    name = "somebody"

    def __init__(self, version: int, keys: int = 0) -> None:
        self.version = version
        self.groups = Groups(keys)

    @property
    def raw(self) -> bytes:
        return b"%d" % self.version

    def offer(self, raw: bytes) -> None:
        assert raw, "nothing is handed on"
        self.version = max(self.version, int(raw))

    def offer_keys(self, group: str, raw: bytes) -> None:
        assert raw, "nothing is handed on"
        begin, end = map(int, raw.split(b"-"))
        if begin <= self.groups.version < end:
            self.groups.version = end


class Clock:
    def __init__(self) -> None:
        self.now = 0.0


@pytest.mark.parametrize("seed", range(20))
def test_all_have_the_newest_version_in_the_end_and_then_nothing_is_sent_but_its_number(
    seed: int,
) -> None:
    clock, rng = Clock(), random.Random(seed)
    files = [File(rng.randint(1, 9), rng.randint(0, 9)) for _ in range(6)]
    to_members: list[list[bytes]] = []
    to_middle: list[list[bytes]] = []
    middle = Middle(files[0], to_members.append)
    members = [PermissionsMember(each, to_middle.append, b"%016d" % place) for place, each in enumerate(files[1:])]
    newest = max(each.version for each in files)
    keys = max(each.groups.version for each in files)

    def second(loss: float) -> int:
        clock.now += 1.0
        middle.look(clock.now)
        sizes = 0
        while to_members or to_middle:
            down, to_members[:] = to_members[:], []
            up, to_middle[:] = to_middle[:], []
            sizes += sum(each[0] != VERSION for each in (*down, *up))
            for frames in down:
                for member in members:
                    if rng.random() >= loss and any(frames[0].startswith(kind) for kind in member.kinds):
                        member.hear(frames, clock.now)
            for frames in up:
                if rng.random() >= loss:
                    middle.hear(frames, clock.now)
        return sizes

    for _ in range(10):
        second(0.7)
    for _ in range(10):
        second(0.0)
    assert {each.version for each in files} == {newest}
    assert {each.groups.version for each in files} == {keys}
    assert sum(second(0.0) for _ in range(20)) == 0

    rng.choice(files).version = newest + 1  # somebody's file was replaced
    for _ in range(4):
        second(0.0)
    assert {each.version for each in files} == {newest + 1}

    rng.choice(files).groups.version += 1
    for _ in range(4):
        second(0.0)
    assert {each.groups.version for each in files} == {keys + 1}


def test_keys_go_before_the_permissions_that_need_them_and_answers_to_who_asked() -> None:
    clock, file, sent = Clock(), File(1, 1), list[list[bytes]]()
    middle = Middle(file, sent.append)
    middle.look(clock.now)
    sent.clear()
    file.version, file.groups.version = 2, 2
    middle.look(clock.now)
    assert [each[0] for each in sent] == [NEWS, PERMISSIONS, VERSION]
    assert sent[0] == [NEWS, b"ward", b"1-2"]

    sent.clear()
    middle.hear([GROUPS, b"ward", (0).to_bytes(8), b"w" * WORD_BYTES], clock.now)
    middle.hear([GROUPS, b"ward", (2).to_bytes(8), b"w" * WORD_BYTES], clock.now)  # which has all
    assert sent == [[GROUPS + b"w" * WORD_BYTES, b"ward", b"0-2"]]


def test_who_joins_is_told_the_versions_soon_and_notes_them() -> None:
    clock, file, sent = Clock(), File(1, 3), list[list[bytes]]()
    middle = Middle(file, sent.append)
    middle.look(clock.now)
    sent.clear()
    clock.now = 0.5
    middle.joined(clock.now)
    assert sent == []
    clock.now = 1.0
    middle.look(clock.now)
    said = [each for each in sent if each[0] == VERSION]
    assert len(said) == 1
    late = File(1, 2)
    PermissionsMember(late, lambda frames: None, b"w" * WORD_BYTES).hear(said[0], 7.0)
    assert late.groups.heard == [("ward", 3, 7.0)]


def test_what_is_answered_in_a_second_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, file, sent = Clock(), File(1, 1), list[list[bytes]]()
    monkeypatch.setattr("chappe.log.handing_on.ANSWERED_BYTES_MAX", 9)
    middle = Middle(file, sent.append)
    for _ in range(2):
        clock.now += 1.0
        sent.clear()
        for _ in range(100):
            middle.hear([GROUPS, b"ward", (0).to_bytes(8), b"w" * WORD_BYTES], clock.now)
        assert sum(each[0] == GROUPS + b"w" * WORD_BYTES for each in sent) == 3


ODD = (
    [GROUPS],
    [GROUPS, b"ward"],
    [GROUPS, b"ward", b"", b"word"],
    [GROUPS, b"\xff", b"\0" * 8, b"w" * WORD_BYTES],
    [VERSION, b"", b"", b"\0\0", b"\0" * 8 + b"\xff"],
    [NEWS, b"yard", b"lines"],
)


def test_what_has_other_frames_is_nothing() -> None:
    file = File(3)
    member = PermissionsMember(file, lambda frames: None, b"word")
    middle = Middle(file, lambda frames: None)
    for frames in ([PERMISSIONS], [VERSION], [PERMISSIONS, b"7", b"8"], [PERMISSIONS, b""], [VERSION, b""], *ODD):
        member.hear(frames, 0.0)
        middle.hear(frames, 0.0)
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
    groups = [each.name for each in home.glob("sealed-*.keys")]
    for each in ("authority.pem", "permissions.toml", f"{name}.pem", f"{name}.key", *groups):
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


def sealed(home: Path) -> None:
    for name in ("ann", "bob", "eve"):
        permissions.add(home, name, "member")
    permissions.seal(home, "ward", ["patients/*"], roles=["member"])


def exchange(producer: Producer, consumer: Consumer, value: bytes) -> None:
    """Send a record without a refusal, and read it."""
    producer.send(value)
    producer.flush(60)
    found = consumer.to_end(60)
    assert value in [each.value for each in found]


def epoch(keys: Keys) -> int:
    found = watched_groups(keys.directory).keys("ward")
    return 0 if found is None else found.newest.number


def test_a_new_epoch_that_one_machine_has_reaches_all_through_towers(home: Path, stack: ExitStack) -> None:
    permissions.add(home, "store", "server")
    sealed(home)
    hub, store, ann, bob = (machine(home, name) for name in ("hub", "store", "ann", "bob"))
    tower = "hub@" + str(stack.enter_context(closing(Tower("hub@127.0.0.1:0", security=hub))).address)
    stack.enter_context(closing(Store(home.parent / "data", tower=tower, security=store)))
    producer = Producer("patients/1", tower=tower, security=ann)
    stack.callback(leave, producer)
    consumer = stack.enter_context(closing(Consumer("patients/1", tower=tower, security=bob)))
    exchange(producer, consumer, b"early")

    # The authority's directory is that of the tower's machine, say; nobody else is given anything.
    permissions.revoke(home, "eve")
    for path in (permissions_file(hub.directory), sealed_file(hub.directory, "ward")):
        path.write_bytes((home / path.name).read_bytes())
    until(lambda: [epoch(each) for each in (hub, ann, bob)] == [2, 2, 2], "the new epoch everywhere")
    until(lambda: versions(ann, bob) == {permissions.read(home).version}, "the revocation")
    exchange(producer, consumer, b"late")
    assert sealed_file(bob.directory, "ward").read_bytes() == sealed_file(home, "ward").read_bytes()
    assert epoch(store) == 1  # it does not belong to the group

    # Who was away is told of what is new.
    permissions.add(home, "cat", "member")
    latest = machine(home, "cat")
    permissions.rotate(home, "ward")
    sealed_file(hub.directory, "ward").write_bytes(sealed_file(home, "ward").read_bytes())
    permissions_file(hub.directory).write_bytes(permissions_file(home).read_bytes())
    until(lambda: {epoch(each) for each in (hub, ann, bob)} == {4}, "the fourth epoch")
    assert epoch(latest) == 0
    again = stack.enter_context(closing(Consumer("patients/1", tower=tower, security=latest)))
    assert epoch(latest) == 3
    until(lambda: epoch(latest) == 4, "that it was told")
    exchange(producer, again, b"latest")


@pytest.mark.parametrize("where", ["ann", "bob"])
def test_epochs_travel_through_forwarders_too(where: str, home: Path, stack: ExitStack) -> None:
    sealed(home)
    hub, ann, bob = (machine(home, name) for name in ("hub", "ann", "bob"))
    forwarder = stack.enter_context(closing(Forwarder(home.parent / "data", listen="127.0.0.1:0", security=hub)))
    producer = Producer("patients/1", forwarders=forwarder.address, security=ann)
    stack.callback(leave, producer)
    consumer = stack.enter_context(closing(Consumer("patients/1", forwarders=forwarder.address, security=bob)))
    exchange(producer, consumer, b"early")
    permissions.revoke(home, "eve")
    at_hand = {"ann": ann, "bob": bob}[where]
    sealed_file(at_hand.directory, "ward").write_bytes(sealed_file(home, "ward").read_bytes())
    permissions_file(at_hand.directory).write_bytes(permissions_file(home).read_bytes())
    until(lambda: {epoch(each) for each in (hub, ann, bob)} == {2}, "the new epoch everywhere")
    until(lambda: versions(hub, ann, bob) == {permissions.read(home).version}, "the revocation")
    exchange(producer, consumer, b"late")
