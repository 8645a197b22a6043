"""Endpoints on real sockets of this machine, in one process."""

from __future__ import annotations

import math
import select
import socket
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
from tests.endpoints import PATIENCE_S, Make, until
from tests.ports import free_ports
from tests.waiting import interrupt

from chappe import Endpoint, Received, Subscriber, Tls
from chappe.api.keys import make_authority, make_certificate
from chappe.api.mesh.arguments import encode_value
from chappe.data.scalars import Count, EnumValue, Port
from chappe.data.zeek import Event
from chappe.errors import (
    AddressInUse,
    BufferFull,
    Closed,
    PeerUnavailable,
    TimedOut,
    Unreachable,
    UnsupportedValue,
    UsageError,
)
from chappe.mesh.events import EndpointDiscovered, EndpointUnreachable, PeerAdded, PeerLost, PeerRefused, PeerRemoved
from chappe.mesh.forwarding import congestion
from chappe.runtime import turns
from chappe.transports import gathering


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("keys")
    make_authority(home)
    for name in ("one", "two"):
        make_certificate(home, name)
    make_certificate(home, "named", id=UUID("11111111-1111-5111-8111-111111111111"))
    return home


def joined(make: Make, **options: Any) -> tuple[Endpoint, Subscriber, Endpoint]:
    """An endpoint that wants everything, its subscriber, and one that has dialled it."""
    one = make(**options)
    subscriber = one.subscribe("", on_full="block")
    two = make(**options)
    assert two.peer("localhost", one.listen()) == one.id
    return one, subscriber, two


def taken(subscriber: Subscriber, count: int) -> list[Received]:
    """The next messages, however many calls they come with."""
    found: list[Received] = []
    while len(found) < count:
        more = subscriber.get_many(count - len(found), PATIENCE_S)
        assert more, f"only {len(found)} of {count} messages came"
        found += more
    return found


VALUES: list[Any] = [
    None,
    True,
    Count(2**64 - 1),
    -5,
    2.5,
    "text",
    IPv4Address("10.0.0.1"),
    IPv4Network("10.0.0.0/8"),
    Port(53, "udp"),
    datetime(2026, 1, 2, 3, 4, 5, 6, UTC),
    timedelta(microseconds=7),
    EnumValue("Notice::LOG"),
    frozenset({1, 2}),
    {"a": 1, "b": {"c": (1, 2)}},
    (1, "two", (3.0,)),
]


@pytest.mark.parametrize("kind", ["plain", "anonymous", "tls"])
def test_a_value_of_every_kind_arrives_as_it_was(kind: str, make: Make, keys: Path) -> None:
    _, subscriber, two = joined(make, security=Tls.of(keys, "one") if kind == "tls" else kind)
    for value in VALUES:
        two.publish("/values/one", value)
    found = taken(subscriber, len(VALUES))
    assert [each.value for each in found] == VALUES
    topic, value = found[-1]
    assert (topic, value) == ("/values/one", (1, "two", (3.0,)))
    assert found[0].sender == found[0].origin == two.id
    assert not found[0].unicast


def test_both_ways_and_in_order(make: Make) -> None:
    one, subscriber, two = joined(make)
    back = two.subscribe("/back")
    two.publish_batch(("/there", number) for number in range(5_000))
    assert [each.value for each in taken(subscriber, 5_000)] == list(range(5_000))
    with two.statuses():
        for _ in range(1_000):  # until the subscription is known there
            one.publish("/back", "here")
            if back.get(0.01) is not None:
                return
    raise AssertionError("nothing came back")


def test_zeek_events_travel_as_themselves(make: Make) -> None:
    _, subscriber, two = joined(make)
    two.publish("/zeek/event", Event("ping", "text", Count(1)))
    received = taken(subscriber, 1)[0]
    event = Event.parse(received.payload)
    assert (event.name, event.args) == ("ping", ("text", Count(1)))


def test_what_is_no_value_is_refused_where_it_is_published(make: Make) -> None:
    _, subscriber, two = joined(make)
    with pytest.raises(UnsupportedValue):
        two.publish("/t", object())
    with pytest.raises(UsageError, match="at most 65535 bytes"):
        two.publish("x" * 65_536, 1)
    two.publish("/t", "fine")
    assert taken(subscriber, 1)[0].value == "fine"


def test_unicast_reaches_one_endpoint_alone(make: Make) -> None:
    one, subscriber, two = joined(make)
    three = make()
    other = three.subscribe("")
    two.peer("127.0.0.1", three.listen())
    two.publish("/t", "for one", to=one.id)
    two.publish("/t", "for all")
    assert [(each.value, each.unicast) for each in taken(subscriber, 2)] == [("for one", True), ("for all", False)]
    assert [each.value for each in taken(other, 1)] == ["for all"]


def test_who_publishes_hears_whether_anybody_wants_it(make: Make) -> None:
    one, subscriber, two = joined(make)
    subscriber.add("/wanted")
    subscriber.remove("")
    until(lambda: two.publish("/other", 1) == 0)
    assert two.publish("/wanted", 1) == 1
    assert two.publish_batch([("/wanted", 2), ("/other", 2), ("/wanted/x", 3)]) == 2
    with two.publisher("/other") as publisher:
        assert (publisher.publish(1), publisher.publish_batch([1, 2])) == (0, 0)
    assert two.publish("/other", 1, to=one.id) == 1
    with pytest.raises(Unreachable, match="no way to endpoint"):
        two.publish("/wanted", 1, to=uuid4())
    with pytest.raises(Unreachable):
        two.publish("/wanted", 1, to=two.id)
    assert [each.value for each in taken(subscriber, 3)] == [1, 2, 3]


def test_an_endpoint_two_hops_away_is_awaited_and_reached(make: Make) -> None:
    one, middle, three = make(), make(), make()
    subscriber = three.subscribe("/t")
    port = middle.listen()
    answers: list[bool] = []
    one.await_peer(three.id, PATIENCE_S, callback=answers.append)
    one.peer("127.0.0.1", port)
    three.peer("127.0.0.1", port)
    assert one.await_peer(three.id, PATIENCE_S)
    until(lambda: answers == [True])
    assert one.publish("/t", "for all") == one.publish("/t", "for three", to=three.id) == 1
    assert [each.value for each in taken(subscriber, 2)] == ["for all", "for three"]


def test_topics_come_and_go(make: Make) -> None:
    one, two = make(), make()
    subscriber = one.subscribe("/a")
    two.peer("127.0.0.1", one.listen())

    def hears(topic: str) -> bool:
        two.publish(topic, 1)
        two.publish("/marker", 1)
        found: list[Received] = []
        while not found or found[-1].topic != "/marker":
            found += taken(subscriber, 1)
        return any(each.topic == topic for each in found)

    subscriber.add("/marker", "/b")

    def marked() -> bool:
        two.publish("/marker", 0)
        return subscriber.get(0.01) is not None

    until(marked)
    assert (hears("/a/1"), hears("/b/1"), hears("/c")) == (True, True, False)
    assert subscriber.topics == {"/a", "/b", "/marker"}
    subscriber.remove("/b", "/never")
    assert (hears("/a/1"), hears("/b/1")) == (True, False)


def test_statuses_come_in_order_and_stay_readable_after_the_end(make: Make) -> None:
    one, two = make(), make()
    statuses, theirs = one.statuses(), two.statuses()
    port = one.listen()
    two.peer("127.0.0.1", port, retry_s=0)
    one.await_peer(two.id)
    two.unpeer("127.0.0.1", port)
    until(lambda: statuses.available == 4)
    found = statuses.poll()
    assert [type(each) for each in found] == [EndpointDiscovered, PeerAdded, PeerLost, EndpointUnreachable]
    assert (found[2].left, found[2].reason) == (True, "it said goodbye")
    two.close()
    assert [type(each) for each in theirs.poll()] == [EndpointDiscovered, PeerAdded, PeerRemoved, EndpointUnreachable]
    with pytest.raises(Closed):
        theirs.get(1)


def test_dialling_fails_with_one_sentence(make: Make) -> None:
    one = make(security="plain")
    port = free_ports()
    with pytest.raises(PeerUnavailable, match="refused"):
        one.peer("127.0.0.1", port, retry_s=0)
    with pytest.raises(PeerUnavailable, match="is not known"):
        one.peer("no-such-host.invalid", port, retry_s=0)
    with pytest.raises(TimedOut, match="is an endpoint listening there"):
        one.peer("127.0.0.1", port, retry_s=0.05, timeout=0.3)


def test_dialling_ends_after_so_many_attempts(make: Make) -> None:
    one = make(security="plain")
    errors = one.statuses()
    with pytest.raises(PeerUnavailable, match="given up after 3 attempts"):
        one.peer("127.0.0.1", free_ports(), retry_s=0.01, retry_max_s=0.02, attempts=3)
    assert len(errors.poll()) == 3
    assert one.peers() == []


def test_dialling_again_finds_who_comes_later(make: Make) -> None:
    one, two = make(), make()
    port = free_ports()
    two.peer_nosync("127.0.0.1", port, retry_s=0.05)
    one.listen(port=port)
    assert one.await_peer(two.id, PATIENCE_S)
    one.close()
    three = make()
    three.listen(port=port)
    assert three.await_peer(two.id, PATIENCE_S)


def test_addresses_in_use_and_far_ones_are_refused(make: Make) -> None:
    one = make()
    port = one.listen()
    with pytest.raises(AddressInUse, match="is in use"):
        make().listen(port=port)
    for refused in (lambda: one.listen("0.0.0.0"), lambda: one.peer("192.0.2.1", 9999)):
        with pytest.raises(UsageError, match=r"is not this machine: give the endpoint security=Tls"):
            refused()
    with pytest.raises(UsageError, match="cannot listen on 192"):
        make(security="plain").listen("192.0.2.1")


def test_different_security_is_said_in_one_sentence(make: Make, keys: Path) -> None:
    plain, encrypted = make(), make(security=Tls.of(keys, "one"))
    with pytest.raises(PeerUnavailable, match="give both ends the same security"):
        plain.peer("localhost", encrypted.listen(), retry_s=0)
    with pytest.raises(PeerUnavailable, match="give both ends the same security"):
        encrypted.peer("localhost", plain.listen(), retry_s=0)


def test_a_certificate_gives_its_endpoint_its_id(make: Make, keys: Path) -> None:
    one = make(security=Tls.of(keys, "named"))
    assert one.id == "11111111-1111-5111-8111-111111111111"
    with pytest.raises(UsageError, match="names another endpoint id"):
        make(id=uuid4(), security=Tls.of(keys, "named"))


def test_await_peer_by_callback_and_in_vain(make: Make) -> None:
    one, two = make(), make()
    answers: list[bool] = []
    arrived = threading.Event()

    def answer(found: bool) -> None:
        answers.append(found)
        arrived.set()

    one.await_peer(two.id, PATIENCE_S, callback=answer)
    assert one.await_peer(two.id, 0.01) is False
    two.peer("127.0.0.1", one.listen())
    assert arrived.wait(PATIENCE_S)
    assert answers == [True]
    one.await_peer(uuid4(), None, callback=answers.append)
    one.close()
    until(lambda: answers == [True, False])


def test_messages_and_statuses_call_back_in_threads_of_their_own(make: Make) -> None:
    one, two = make(), make()
    values: list[Any] = []
    events: list[Any] = []

    def take(received: Received) -> None:
        values.append(received.value)
        if len(values) == 1:
            raise ValueError("a callback that fails is called again")

    one.subscribe("/t", callback=take)
    one.statuses(callback=events.append)
    two.peer("127.0.0.1", one.listen())
    for number in range(100):
        two.publish("/t", number)
    until(lambda: len(values) == 100)
    assert values == list(range(100))
    until(lambda: PeerAdded in map(type, events))


def test_a_descriptor_is_readable_while_something_is_there(make: Make) -> None:
    _, subscriber, two = joined(make)
    descriptor = subscriber.fd()

    def readable(timeout: float) -> bool:
        return bool(select.select([descriptor], [], [], timeout)[0])

    assert not readable(0)
    two.publish_batch([("/t", 1), ("/t", 2)])
    assert readable(PATIENCE_S)
    taken(subscriber, 1)
    until(lambda: subscriber.available == 1)
    assert readable(0)
    assert subscriber.get(0.0) is not None
    assert not readable(0)


@pytest.mark.parametrize(("policy", "kept"), [("drop_oldest", range(90, 100)), ("drop_newest", range(10))])
def test_a_full_subscriber_drops_by_its_policy_and_counts(policy: Any, kept: range, make: Make) -> None:
    one, two = make(), make()
    slow = one.subscribe("/t", on_full=policy, messages_max=10)
    witness = one.subscribe("/t")
    two.peer("127.0.0.1", one.listen())
    two.publish_batch([("/t", number) for number in range(100)])
    taken(witness, 100)
    assert [each.value for each in slow.poll()] == list(kept)
    assert slow.dropped == 90


def test_a_full_subscriber_can_slow_down_the_publisher_without_losing_anything(make: Make) -> None:
    one, two = make(), make(peer_messages_max=100)
    slow = one.subscribe("/t", on_full="block", messages_max=100)
    two.peer("127.0.0.1", one.listen())
    total, text = 20_000, "x" * 1_000
    sent = threading.Thread(target=lambda: two.publish_batch(("/t", (number, text)) for number in range(total)))
    sent.start()
    sent.join(0.3)
    assert sent.is_alive()
    assert slow.available < total / 2  # what was on its way
    assert [each.value[0] for each in taken(slow, total)] == list(range(total))
    sent.join(PATIENCE_S)
    assert slow.dropped == 0


def test_a_full_subscriber_can_end_its_subscription(make: Make) -> None:
    one, two = make(), make()
    slow = one.subscribe("/t", on_full="disconnect", messages_max=10)
    witness = one.subscribe("/t")
    two.peer("127.0.0.1", one.listen())
    two.publish_batch([("/t", number) for number in range(100)])
    taken(witness, 100)
    assert [each.value for each in taken(slow, 10)] == list(range(10))
    with pytest.raises(BufferFull, match="subscribe again"):
        slow.get(1)


def test_several_threads_share_a_subscriber_and_each_message_goes_to_one(make: Make) -> None:
    _, subscriber, two = joined(make)
    found: list[list[int]] = [[], [], []]

    def run(mine: list[int]) -> None:
        while (received := subscriber.get(PATIENCE_S)) is not None and received.value >= 0:
            mine.append(received.value)

    threads = [threading.Thread(target=run, args=(each,)) for each in found]
    for thread in threads:
        thread.start()
    for number in range(3_000):
        two.publish("/t", number)
    two.publish_batch([("/t", -1)] * 3)
    for thread in threads:
        thread.join(PATIENCE_S)
    assert sorted(number for mine in found for number in mine) == list(range(3_000))
    assert all(mine == sorted(mine) for mine in found)


def test_threads_that_wait_for_different_things_are_all_woken(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "SLEEP_S", 10 * PATIENCE_S)  # nobody looks by itself
    one, two = make(), make()
    subscribers = [one.subscribe(f"/{number}") for number in range(5)]
    two.peer("127.0.0.1", one.listen())
    got: list[int] = []

    def run(number: int) -> None:
        if subscribers[number].get() is not None:
            got.append(number)

    threads = [threading.Thread(target=run, args=(number,), daemon=True) for number in range(5)]
    for thread in threads:
        thread.start()
    until(lambda: one.node.turns._leading is not None and len(one.node.turns._followers) == 4)
    for number in (3, 0, 4, 1, 2):
        two.publish(f"/{number}", 1)
    until(lambda: len(got) == 5)
    for thread in threads:
        thread.join()


def test_ctrl_c_ends_every_wait(make: Make) -> None:
    one, two = make(), make()
    subscriber = one.subscribe("/t")
    for wait in (
        lambda: subscriber.get(None),
        lambda: one.peer("127.0.0.1", free_ports(), retry_s=5),
        lambda: one.await_peer(uuid4(), None),
        lambda: one.statuses().get(None),
    ):
        interrupt(wait)
    two.peer("127.0.0.1", one.listen())
    two.publish("/t", "still works")
    assert taken(subscriber, 1)[0].value == "still works"


def test_closing_releases_whoever_waits(make: Make) -> None:
    one = make()
    subscriber = one.subscribe("/t")
    ended: list[str] = []

    def run(name: str, wait: Callable[[], object]) -> None:
        try:
            wait()
        except Closed:
            ended.append(name)

    waits = {
        "get": lambda: subscriber.get(None),
        "peer": lambda: one.peer("127.0.0.1", free_ports(), retry_s=5),
        "statuses": lambda: list(one.statuses()),
    }
    threads = [threading.Thread(target=run, args=each) for each in waits.items()]
    for thread in threads:
        thread.start()
    threading.Event().wait(0.1)
    one.close()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert sorted(ended) == sorted(waits)
    with pytest.raises(Closed):
        one.publish("/t", 1)


def test_what_was_published_before_the_end_arrives(make: Make) -> None:
    _, subscriber, two = joined(make)
    two.publish_batch(("/t", (number, "x" * 500)) for number in range(10_000))
    two_closed = threading.Thread(target=two.close)
    two_closed.start()
    assert [each.value[0] for each in taken(subscriber, 10_000)] == list(range(10_000))
    two_closed.join(PATIENCE_S)


@pytest.mark.parametrize("policy", ["block", "drop_oldest", "drop_newest", "disconnect"])
def test_a_peer_that_never_reads_holds_up_nobody_else_for_ever(policy: Any, make: Make) -> None:
    hub = make(on_full=policy, peer_messages_max=200)
    quick, stuck = make(), make()
    want = quick.subscribe("/t")
    stuck.subscribe("/t", on_full="block", messages_max=10)
    port = hub.listen()
    quick.peer("127.0.0.1", port)
    stuck.peer("127.0.0.1", port)
    assert hub.await_peer(quick.id)
    assert hub.await_peer(stuck.id)
    text = "x" * 10_000
    done = threading.Event()

    def publish() -> None:
        try:
            for number in range(3_000):
                hub.publish("/t", (number, text))
        except Closed:
            pass
        done.set()

    sender = threading.Thread(target=publish)
    sender.start()
    if policy == "block":
        assert not done.wait(0.5)
        stuck.close()  # its connection ends, and with it the wait
    assert done.wait(2 * PATIENCE_S)
    sender.join()
    values = [each.value[0] for each in taken(want, 1)]
    assert values == sorted(values)
    assert hub.buffered <= 401


def test_who_publishes_while_the_endpoint_says_goodbye_is_told(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    one = make()
    close = one.node.close
    told: list[bool] = []

    def late(*arguments: float) -> None:
        with pytest.raises(Closed):
            one.publish("/t", 1)
        told.append(True)
        close(*arguments)

    monkeypatch.setattr(one.node, "close", late)
    one.close()
    assert told


def test_a_closed_endpoint_ends_whatever_its_peers_do(make: Make) -> None:
    one = make()
    port = one.listen()
    with socket.create_connection(("127.0.0.1", port)) as silent:
        silent.sendall(b"\0")
        until(lambda: bool(one.node._links))
        one.close()


def test_many_endpoints_in_one_process(make: Make) -> None:
    hub = make()
    port = hub.listen()
    others = [make() for _ in range(30)]
    wants = [each.subscribe("/t") for each in others]
    for each in others:
        each.peer("127.0.0.1", port)
        assert hub.await_peer(each.id)
    hub.publish("/t", "all")
    assert [taken(each, 1)[0].value for each in wants] == ["all"] * 30


def test_a_publisher_tells_how_much_room_there_is(make: Make) -> None:
    one, two = make(heartbeat_s=1_000.0), make(peer_messages_max=50, heartbeat_s=1_000.0)
    slow = one.subscribe("/t", on_full="block", messages_max=10)
    with two.publisher("/t") as publisher:
        two.peer("127.0.0.1", one.listen())
        assert (publisher.capacity, publisher.buffered) == (50, 0)
        descriptor = publisher.fd()
        assert select.select([descriptor], [], [], 0)[0]
        payload = encode_value("x")

        def full() -> bool:
            while two.try_publish(b"/t", payload) is not None:
                pass
            return bool(two.core.router.holds.waits)  # not only the peer, for a moment

        until(lambda: full() and not select.select([descriptor], [], [], 0)[0])
        until(lambda: slow.poll() is not None and len(select.select([descriptor], [], [], 0)[0]) > 0)


def test_room_is_asked_with_the_lock(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer makes the routes of topics that were not published yet."""
    endpoint, owned = make(), []
    lock: Any = endpoint.node.lock
    monkeypatch.setattr(endpoint.core, "room", lambda *_: owned.append(lock._is_owned()))
    endpoint.room((b"/t",))
    assert owned == [True]


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"security": "open"}, "security is None"),
        ({"on_full": "explode"}, "on_full is"),
        ({"peer_messages_max": 0}, "at least 1"),
        ({"heartbeat_s": math.nan}, "heartbeat_s"),
        ({"paths": 3}, "paths is 1 or 2, not 3"),
        ({"id": "nobody"}, "is not an endpoint id"),
        ({"id": UUID(int=0)}, "not all zero"),
    ],
)
def test_wrong_arguments_are_refused_in_one_sentence(wrong: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        Endpoint(**wrong)


def test_the_last_of_messages_that_follow_each_other_leaves_though_nothing_more_is_published(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gathering, "GAP_S", 1_000.0)  # however slow this machine is, they follow each other
    _, subscriber, source = joined(make)
    until(lambda: b"" in source.core.peer_subscriptions())
    with monkeypatch.context() as patience, source.node.lock:  # nobody else drives meanwhile
        patience.setattr(gathering, "LONGEST_S", 2.0)
        for number in range(5):
            source.publish("/t", number)
        assert source.core.buffered() == 4  # the first one came after silence
    assert [each.value for each in taken(subscriber, 5)] == [*range(5)]
    for number in range(200):
        source.publish("/t", number)
    source.publish_batch([("/t", "a batch")])
    assert [each.value for each in taken(subscriber, 201)] == [*range(200), "a batch"]


def test_nothing_is_lost_on_the_way_to_a_subscriber_that_is_slower_than_the_publisher(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(congestion, "PASS_ON_WAIT_S", PATIENCE_S)  # it is slow, but it always reads on
    count = 20_000
    with Endpoint() as source, Endpoint(peer_messages_max=1000) as middle, Endpoint() as there:
        subscriber = there.subscribe("/t", on_full="block", messages_max=100)
        port = middle.listen()
        there.peer("127.0.0.1", port)
        source.peer("127.0.0.1", port)
        assert source.node.turns.wait(lambda: b"/t" in source.core.peer_subscriptions(), PATIENCE_S)
        numbers = ((f"/t/{number}", "x" * 500) for number in range(count))
        publishing = threading.Thread(target=source.publish_batch, args=(numbers,))
        publishing.start()
        for number in range(count):
            found = subscriber.get(PATIENCE_S)
            assert found is not None
            assert found.topic == f"/t/{number}"
        publishing.join(PATIENCE_S)
        assert middle.core.dropped == 0


def test_nobody_gets_into_a_mesh_with_the_id_of_another_that_is_elsewhere_in_it(make: Make, tmp_path: Path) -> None:
    make_authority(tmp_path)
    for name in ("sensor", "hub", "edge", "rogue"):
        make_certificate(tmp_path, name)
    sensor, hub, edge = (make(security=Tls.of(tmp_path, name)) for name in ("sensor", "hub", "edge"))
    subscriber = edge.subscribe("/t")
    hub.peer("127.0.0.1", sensor.listen())
    hub.peer("127.0.0.1", port := edge.listen())
    assert edge.await_peer(sensor.id, PATIENCE_S)
    assert sensor.await_peer(edge.id, PATIENCE_S)
    rogue = make(security=Tls.of(tmp_path, "rogue"), id=sensor.id)

    with edge.statuses() as statuses:
        for _ in range(2):
            with pytest.raises(PeerUnavailable) as failed:
                rogue.peer("127.0.0.1", port, retry_s=0)
            assert str(failed.value) == (
                f"cannot peer with 127.0.0.1:{port}: the peer refused the connection: the endpoint id {sensor.id} is in"
                " the mesh with another key"
            )
        told = statuses.get(PATIENCE_S)
        assert isinstance(told, PeerRefused)
        assert str(told).startswith(f"refused to peer with {sensor.id} at 127.0.0.1:")
        assert statuses.get(0) is None

    assert [each.id for each in edge.peers()] == [hub.id]
    sensor.publish("/t", "true")
    found = subscriber.get(PATIENCE_S)
    assert found is not None
    assert found.value == "true"
    sensor.close()
    until(lambda: sensor.id not in {each.id for each in edge.topology().endpoints})
    assert rogue.peer("127.0.0.1", port, retry_s=0) == edge.id  # it is nobody's now, as no certificate names it


def test_an_id_that_a_certificate_names_cannot_be_taken_by_another(make: Make, tmp_path: Path) -> None:
    """Not before its owner comes, who then takes its place; nor afterwards."""
    make_authority(tmp_path)
    owned = UUID(int=7)
    make_certificate(tmp_path, "hub", id=UUID(int=1))
    make_certificate(tmp_path, "owner", id=owned)
    make_certificate(tmp_path, "thief")
    hub = make(security=Tls.of(tmp_path, "hub"))
    port = hub.listen()
    thief = make(security=Tls.of(tmp_path, "thief"), id=owned)
    thief.peer("127.0.0.1", port, retry_s=0)

    with thief.statuses() as statuses:
        owner = make(security=Tls.of(tmp_path, "owner"))
        assert owner.peer("127.0.0.1", port, retry_s=0) == hub.id
        while not isinstance(statuses.get(PATIENCE_S), PeerLost):
            pass
    with pytest.raises(PeerUnavailable):
        thief.peer("127.0.0.1", port, retry_s=0)
    assert [each.id for each in hub.peers()] == [owner.id]
