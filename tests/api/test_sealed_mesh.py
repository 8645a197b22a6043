"""Sealed topics over endpoints: real sockets with TLS, and somebody in the middle who is not of the group."""

from __future__ import annotations

import shutil
import threading
from contextlib import closing
from pathlib import Path

import pytest
from tests.api.sealed_net import Net, make_home
from tests.endpoints import PATIENCE_S, Make, event, until
from tests.sources import needs_sources

from chappe import Endpoint, Gateway, GatewaySide, Keys, Subscriber, Tls
from chappe.api import permissions
from chappe.errors import Sealed
from chappe.mesh.events import MessagesRefused
from chappe.mesh.messages import NOBODY
from chappe.permissions.rules import Group
from chappe.sealing import in_mesh
from chappe.sealing.ring import HeldGroups
from chappe.security import permissions_file, sealed_file
from chappe.storage.sealed_files import WatchedGroups

TOPIC = "patients/1"
PLANTED = "planted value"


@pytest.fixture
def net(make: Make, tmp_path: Path) -> Net:
    return Net(make, make_home(tmp_path / "keys"))


@pytest.fixture
def copied_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys do not travel: they come when somebody copies them."""
    monkeypatch.setattr(WatchedGroups, "offer", lambda groups, group, raw: False)


def values(subscriber: Subscriber, count: int) -> list[object]:
    found: list[object] = []
    while len(found) < count:
        more = subscriber.get_many(count - len(found), PATIENCE_S)
        assert more, found
        found += [each.value for each in more]
    return found


def test_members_read_what_members_publish_and_know_who_did(net: Net) -> None:
    ann, bob, got = net.pair()
    assert ann.publish(TOPIC, {"pulse": 60}) == 1
    received = got.get(PATIENCE_S)
    assert received is not None
    assert (received.topic, received.value, received.sealed_by) == (TOPIC, {"pulse": 60}, "ann")
    assert (received.origin, received.unicast) == (ann.id, False)
    assert ann.publish(TOPIC, "for you", to=bob.id) == 1
    received = got.get(PATIENCE_S)
    assert received is not None
    assert (received.value, received.sealed_by, received.unicast) == ("for you", "ann", True)
    ann.publish("plain", 1)
    received = got.get(PATIENCE_S)
    assert received is not None
    assert (received.value, received.sealed_by) == (1, None)
    assert bob.unopened == 0


def test_many_at_once_are_sealed_together_and_come_in_their_order(net: Net) -> None:
    ann, bob, got = net.pair()
    count = 3_000
    wanted = ann.publish_batch([(TOPIC, each) if each % 1_000 else ("plain", each) for each in range(count)])
    assert wanted == count
    assert values(got, count) == list(range(count))
    assert len(net.passed) < 100
    assert ann.publish_batch([(TOPIC, 1), (TOPIC, 2)]) == 2
    assert values(got, 2) == [1, 2]
    assert bob.unopened == 0


def test_who_carries_them_sees_nothing_of_them(net: Net) -> None:
    ann, bob, got = net.pair()
    with net.hub.statuses() as here, net.hub.subscribe("patients/") as mine:
        net.know(ann, net.hub)
        ann.publish(TOPIC, PLANTED)
        ann.publish(TOPIC, PLANTED, to=bob.id)
        ann.publish_batch([(TOPIC, PLANTED)] * 10)
        assert values(got, 12) == [PLANTED] * 12
        refused = event(here, MessagesRefused)
        assert (refused.topic, refused.reason) == (b"patients/1", "hub is not of the group ward")
        assert "'patients/1': hub is not of the group ward" in str(refused)
        until(lambda: net.hub.unopened == 2, "what came to the hub")  # one, and ten of them in one
        assert mine.poll() == []
    assert net.passed
    assert not [each for each in net.passed if PLANTED.encode() in each]
    ann.publish("plain", PLANTED)
    assert values(got, 1) == [PLANTED]
    assert [each for each in net.passed if PLANTED.encode() in each]  # one has looked where it would be


def test_an_endpoint_without_an_identity_is_told_when_it_looks(net: Net) -> None:
    ann = net.join("ann")
    eve = net.make(security=Tls.of(net.home, "eve"))
    eve.peer("127.0.0.1", net.port)
    with eve.subscribe("patients/") as got:
        net.know(ann, eve)
        ann.publish(TOPIC, 1)
        received = got.get(PATIENCE_S)
        assert received is not None
        with pytest.raises(
            Sealed, match="topic 'patients/1' is sealed, and cannot be read: this endpoint has no ident"
        ):
            _ = received.value
        assert b"chappe_sealed" in received.payload


def test_who_is_not_of_the_group_publishes_nothing(net: Net) -> None:
    _, bob, got = net.pair()
    eve = net.join("eve")
    net.know(eve, bob)
    said = "sealed for ward, and nothing was sent: eve is not of the group ward"
    with pytest.raises(Sealed, match=said):
        eve.publish(TOPIC, 1)
    with pytest.raises(Sealed, match=said):
        eve.publish_batch([("plain", 1), (TOPIC, 1)])
    assert eve.publish("plain", 2) == 1
    assert values(got, 1) == [2]  # nothing of the batch has gone
    assert bob.unopened == 0


def refused(bob: Endpoint, count: int) -> None:
    until(lambda: bob.unopened == count, lambda: bob.unopened)


def test_what_a_forwarder_makes_of_it_is_refused(net: Net) -> None:
    needs_sources()
    ann, bob, got = net.pair()
    stolen: list[bytes] = []
    publish = ann.core.publish

    def note(topic: bytes, payload: bytes, *rest: object) -> object:
        stolen.append(payload)
        return publish(topic, payload, *rest)  # type: ignore[arg-type]

    ann.core.publish = note  # type: ignore[method-assign, assignment]
    ann.publish(TOPIC, 1)
    ann.publish(TOPIC, 2)
    assert values(got, 2) == [1, 2]
    send = net.rogue(bob)
    with bob.statuses() as told:
        count = 0

        def tried(topic: str, payload: bytes, said: str, receiver: bytes = NOBODY) -> None:
            nonlocal count
            send(topic, payload, receiver)
            count += 1
            refused(bob, count)
            assert said in event(told, MessagesRefused).reason

        tried(TOPIC, stolen[0], "came before, or were sealed before others")
        tried(TOPIC, stolen[1], "came before, or were sealed before others")
        tried("patients/2", stolen[1], "not as ann has signed them, for this topic")
        tried(TOPIC, stolen[1], "not as ann has signed them, for this topic and this receiver", bob.core.own_id)
        tried(TOPIC, b"\x00", "they are not sealed for ward, as the topic is")
        tried(TOPIC, stolen[1][:-1], "cut off")
        assert net.hub.try_publish(b"plain", stolen[1])
        until(lambda: bob.node.sealing is not None and len(bob.node.sealing._kept) == 1, "it waits")  # rules may come
    ann.publish(TOPIC, 3)
    assert values(got, 1) == [3]


def test_what_comes_back_to_its_publisher_is_refused(net: Net) -> None:
    ann, _, got = net.pair()
    mine = ann.subscribe(TOPIC)
    ann.publish(TOPIC, 1)
    assert values(got, 1) == [1]
    sealing = ann.node.sealing
    assert sealing is not None
    payload = sealing.seal(TOPIC.encode(), b"\x00")
    net.rogue(ann)(TOPIC, payload)
    refused(ann, 1)
    assert mine.poll() == []


def test_those_who_publish_through_an_endpoint_are_heard_by_others_there(net: Net) -> None:
    ann, _, got = net.pair()
    one, other = ann.subscribe(TOPIC), ann.subscribe(TOPIC)
    assert ann.try_publish(TOPIC.encode(), b"\x00", source=one.number)
    assert values(got, 1) == [None]
    assert values(other, 1) == [None]
    assert one.poll() == []


# -- keys change ------------------------------------------------------------------------------------------------


def copy_of(home: Path) -> Path:
    made = home.parent / "elsewhere"
    shutil.copytree(home, made)
    return made


def epoch(endpoint: Endpoint) -> int:
    """In which it seals by now."""
    with endpoint.node.lock:
        sealing = endpoint.node.sealing
        assert sealing is not None
        try:
            sealing.seal(TOPIC.encode(), b"\x00")
        except Sealed:  # the permissions come before the keys
            return 0
        found = sealing._checked["ward"]
        assert not isinstance(found, str)
        return found.number


@pytest.mark.usefixtures("copied_alone")
def test_who_has_old_keys_gets_it_when_the_new_ones_are_there(net: Net) -> None:
    old = copy_of(net.home)
    ann, bob = net.join("ann"), net.join("bob", old)
    got = bob.subscribe("")
    net.know(ann, bob)
    permissions.rotate(net.home, "ward")
    until(lambda: epoch(ann) == 2, "ann has the new keys")
    ann.publish(TOPIC, 1)
    ann.publish("plain", 2)
    ann.publish(TOPIC, 3)
    assert values(got, 1) == [2]
    assert bob.publish(TOPIC, 4) == 0  # with the keys that it has
    shutil.copy2(sealed_file(net.home, "ward"), old)
    assert values(got, 2) == [1, 3]
    assert bob.unopened == 0


@pytest.mark.usefixtures("copied_alone")
def test_what_waits_for_keys_is_refused_in_the_end(net: Net, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(in_mesh, "KEYS_WAIT_S", 0.0)
    old = copy_of(net.home)
    ann, bob = net.join("ann"), net.join("bob", old)
    got = bob.subscribe("")
    net.know(ann, bob)
    permissions.rotate(net.home, "ward")
    until(lambda: epoch(ann) == 2, "ann has the new keys")
    with bob.statuses() as told:
        ann.publish(TOPIC, 1)
        reason = event(told, MessagesRefused).reason
    assert "sealed in epoch 2, and the keys here end with 1: no newer" in reason
    assert (got.poll(), bob.unopened) == ([], 1)


@pytest.mark.usefixtures("copied_alone")
def test_no_more_waits_for_keys_than_there_is_room_for(net: Net, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(in_mesh, "KEPT_MAX", 2)
    old = copy_of(net.home)
    ann, bob = net.join("ann"), net.join("bob", old)
    got = bob.subscribe("")
    net.know(ann, bob)
    permissions.rotate(net.home, "ward")
    until(lambda: epoch(ann) == 2, "ann has the new keys")
    for each in range(5):
        ann.publish(TOPIC, each)
    refused(bob, 3)
    shutil.copy2(sealed_file(net.home, "ward"), old)
    assert values(got, 2) == [0, 1]


@pytest.mark.usefixtures("copied_alone")
def test_former_keys_are_accepted_while_it_changes(net: Net) -> None:
    old = copy_of(net.home)
    ann, bob = net.join("ann", old), net.join("bob")
    got = bob.subscribe("")
    net.know(ann, bob)
    permissions.rotate(net.home, "ward")
    until(lambda: epoch(bob) == 2, "bob has the new keys")
    ann.publish(TOPIC, 1)
    assert values(got, 1) == [1]


def test_who_was_revoked_reads_nothing_more_and_nothing_of_it_is_read(net: Net) -> None:
    permissions.add(net.home, "cat", "member")
    away = copy_of(net.home)
    ann, bob, cat = net.join("ann"), net.join("bob"), net.join("cat", away)
    got, hers = bob.subscribe(""), cat.subscribe("")
    net.know(ann, bob)
    net.know(ann, cat)
    net.know(cat, bob)
    ann.publish(TOPIC, 1)
    assert values(got, 1) == values(hers, 1) == [1]
    sealing = cat.node.sealing
    assert sealing is not None
    permissions.revoke(net.home, "cat")
    until(lambda: epoch(ann) == 3 and epoch(bob) == 3, "they have new keys")
    late = sealing.seal(TOPIC.encode(), b"\x00")
    ann.publish(TOPIC, 2)
    assert values(got, 1) == [2]
    assert not [each for each in hers.poll() if each.value == 2]
    net.rogue(bob)(TOPIC, late)  # who was revoked is cut off; but somebody may carry what it seals
    refused(bob, 1)


@pytest.mark.usefixtures("copied_alone")
def test_a_publisher_with_keys_from_before_a_revocation_publishes_nothing(
    net: Net, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chappe.api.mesh.waiting.KEYS_COME_S", 0.0)
    late = copy_of(net.home)
    ann = net.join("ann", late)
    permissions.revoke(net.home, "bob")
    shutil.copy2(permissions_file(net.home), late)

    def said() -> str:
        try:
            ann.publish(TOPIC, 1)
        except Sealed as error:
            return str(error)
        return ""

    until(said, "it has the permissions")
    assert "which do not have bob in the group" in said()
    shutil.copy2(sealed_file(net.home, "ward"), late)
    until(lambda: not said(), said)


@pytest.mark.parametrize("together", [False, True])
@pytest.mark.usefixtures("copied_alone")
def test_a_publisher_waits_for_keys_that_come_after_the_permissions(
    together: bool, net: Net, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chappe.api.mesh.waiting.KEYS_COME_S", PATIENCE_S)
    permissions.add(net.home, "cat", "member")
    late = copy_of(net.home)
    ann, cat = net.join("ann", late), net.join("cat")
    got = cat.subscribe("")
    net.know(ann, cat)
    permissions.revoke(net.home, "bob")
    shutil.copy2(permissions_file(net.home), late)
    until(lambda: epoch(ann) == 0, "it has the permissions")

    def publish() -> None:
        if together:
            ann.publish_batch([("plain", 1), (TOPIC, 2)])
        else:
            ann.publish(TOPIC, 2)

    asked, wants = threading.Event(), HeldGroups.within

    def within(held: HeldGroups, group: Group) -> bool:
        asked.set()
        return wants(held, group)

    monkeypatch.setattr(HeldGroups, "within", within)
    publishing = threading.Thread(target=publish)
    publishing.start()
    assert asked.wait(PATIENCE_S)
    assert publishing.is_alive()
    shutil.copy2(sealed_file(net.home, "ward"), late)
    publishing.join(PATIENCE_S)
    assert values(got, 1 + together) == [1, 2][not together :]


def test_who_does_not_wait_is_told_at_once_that_keys_may_come(net: Net) -> None:
    late = copy_of(net.home)
    sealed_file(late, "ward").unlink()
    with closing(Endpoint(security=Keys(late / "ann"), on_full="drop_oldest")) as ann:
        with pytest.raises(Sealed, match="is not there, or not usable") as refused:
            ann.publish(TOPIC, 1)
        assert refused.value.passing


def apart(net: Net, name: str) -> Path:
    """A machine of its own: nobody signs there, and what changes elsewhere is not seen."""
    there = net.home.parent / f"machine-of-{name}"
    shutil.copytree(net.home, there, ignore=shutil.ignore_patterns("authority.key"))
    return there


def test_a_new_epoch_that_one_machine_has_reaches_all_and_who_was_revoked_reads_nothing_later(
    make: Make, tmp_path: Path
) -> None:
    signed = make_home(tmp_path / "keys")
    permissions.add(signed, "cat", "member")
    net = Net(make, signed)
    homes = {name: apart(net, name) for name in ("hub", "ann", "bob", "cat", "eve")}
    net = Net(make, homes["hub"])
    ann, bob, cat, _ = (net.join(name, homes[name]) for name in ("ann", "bob", "cat", "eve"))
    got, hers = bob.subscribe(""), cat.subscribe("")
    for each in (bob, cat):
        net.know(ann, each)
    ann.publish(TOPIC, 1)
    assert values(got, 1) == values(hers, 1) == [1]

    permissions.revoke(signed, "cat")
    for name in (permissions_file(signed).name, sealed_file(signed, "ward").name):
        shutil.copy2(signed / name, homes["ann"])
    until(lambda: epoch(ann) == 3 and epoch(bob) == 3, "the new epoch at both")
    ann.publish(TOPIC, 2)
    assert values(got, 1) == [2]
    assert not [each for each in hers.poll() if each.value == 2]
    new = sealed_file(signed, "ward").read_bytes()
    for name in ("hub", "bob", "eve"):  # who forwards has them for others
        until(lambda name=name: sealed_file(homes[name], "ward").read_bytes() == new, name)  # type: ignore[misc]


def test_a_gateway_passes_on_what_it_cannot_read(net: Net) -> None:
    for name in ("one", "two"):
        permissions.add(net.home, name, "server")
    one, two = (Keys(net.home / name) for name in ("one", "two"))
    here, there = net.make(security=Keys(net.home / "ann")), net.make(security=Keys(net.home / "bob"))
    with Gateway(GatewaySide("west", ["patients/"], security=one), GatewaySide("east", security=two)) as gateway:
        for endpoint, domain in ((here, "west"), (there, "east")):
            endpoint.peer("127.0.0.1", gateway.endpoint(domain).listen())
        got = there.subscribe(TOPIC)
        until(lambda: here.publish(TOPIC, PLANTED) > 0, lambda: gateway.status())
        received = got.get(PATIENCE_S)
        assert received is not None
        assert (received.value, received.sealed_by) == (PLANTED, "ann")
        assert received.origin == gateway.endpoint("east").id
