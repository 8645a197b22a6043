"""Endpoints of chappe and of the original Broker with each other, in every role and with every security."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from tests.interop.broker_original import VARIABLE, Original, find_bindings
from tests.interop.originals import eventually
from tests.waiting import PATIENCE_S

from chappe import Endpoint, Forwarded, Keys, Received, Subscriber
from chappe.api import permissions
from chappe.api.keys import make_authority, make_certificate
from chappe.data.scalars import Address, Count, EnumValue, Port, Subnet, Timespan, Timestamp
from chappe.data.text import to_text
from chappe.data.values import Set, Table
from chappe.mesh.events import EndpointDiscovered, PeerAdded, PeerLost, PeerRemoved
from chappe.security import Security, Tls

LONG_S = PATIENCE_S

pytestmark = pytest.mark.process
HOST = "127.0.0.1"
# The same values in our types and as the original's Python makes them.
VALUES: list[tuple[object, str]] = [
    (None, "None"),
    (True, "True"),
    (Count(2**64 - 1), "broker.Count(2**64-1)"),
    (-(2**63), "-2**63"),
    (1.5, "1.5"),
    ("grüße", "'grüße'"),
    (Address("1.2.3.4"), "ipaddress.ip_address('1.2.3.4')"),
    (Address("2001:db8::1"), "ipaddress.ip_address('2001:db8::1')"),
    (Subnet("10.0.0.0", 8), "ipaddress.ip_network('10.0.0.0/8')"),
    (Port(53, "udp"), "broker.Port(53, broker.Port.UDP)"),
    (Timestamp(1_234_567_890_123_456_789), "broker.Timestamp(broker.Timespan(1234567890123456789))"),
    (Timespan(-5), "broker.Timespan(-5)"),
    (EnumValue("Conn::LOG"), "broker.Enum('Conn::LOG')"),
    (Set([1, "a", None]), "{1, 'a', None}"),
    (Table([("k", (1, 2)), (Count(3), Set())]), "{'k': [1, 2], broker.Count(3): set()}"),
    (((1, ()), "x"), "[[1, []], 'x']"),
]


@pytest.fixture(scope="module")
def bindings() -> Path:
    found = find_bindings()
    if found is None:
        pytest.skip(f"the original Broker is not here: set {VARIABLE} to the directory of its Python bindings")
    return found


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as ending:
        yield ending


@pytest.fixture
def original(bindings: Path, stack: ExitStack) -> Callable[..., Original]:
    def make(**options: Any) -> Original:
        return stack.enter_context(Original(bindings, {"plain": True, **options}))

    return make


@pytest.fixture
def endpoint(stack: ExitStack) -> Callable[..., Endpoint]:
    def make(security: Security | Keys = None, **options: Any) -> Endpoint:
        return stack.enter_context(Endpoint(security=security, **options))

    return make


def both_know(ours: Endpoint, theirs: Original) -> None:
    """Wait until both sides are peers."""
    assert ours.await_peer(theirs.id(), LONG_S)
    assert theirs.await_peer(ours.id, LONG_S)


def wanted(ours: Endpoint, topic: str) -> None:
    """Wait until a peer wants a topic."""
    eventually(
        lambda: any(topic.encode().startswith(each) for each in ours.core.peer_subscriptions()), f"nobody wants {topic}"
    )


def through(publish: Callable[[], object], came: Callable[[], bool]) -> None:
    """Publish again and again until something comes: an original does not tell when it has heard of a filter."""

    def once() -> bool:
        publish()
        return came()

    eventually(once, "nothing came through")


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    make_authority(tmp_path)
    make_certificate(tmp_path, "ours", hosts=[HOST])
    make_certificate(tmp_path, "theirs", hosts=[HOST])
    return tmp_path


@pytest.mark.parametrize("security", ["plain", "anonymous", "certificates"])
@pytest.mark.parametrize("we_dial", [True, False])
def test_events_of_every_type_pass_both_ways(
    security: str,
    we_dial: bool,
    original: Callable[..., Original],
    endpoint: Callable[..., Endpoint],
    keys: Path,
) -> None:
    if security == "certificates":
        tls = {
            "openssl_cafile": str(keys / "authority.pem"),
            "openssl_certificate": str(keys / "theirs.pem"),
            "openssl_key": str(keys / "theirs.key"),
        }
        theirs, ours = original(plain=False, tls=tls), endpoint(Tls.of(keys, "ours", check="authority"))
    else:
        theirs = original(plain=security == "plain")
        ours = endpoint("plain" if security == "plain" else "anonymous")
    subscriber = ours.subscribe("/ours")
    theirs.subscribe("/theirs")
    if we_dial:
        assert ours.peer(HOST, theirs.listen(), retry_s=0, timeout=LONG_S) == theirs.id()
    else:
        assert theirs.peer(ours.listen(HOST)) is True
    both_know(ours, theirs)
    for value, expression in VALUES:
        ours.publish("/theirs/x", value)
        theirs.publish("/ours/x", expression)
    got = theirs.get("/theirs", len(VALUES), LONG_S)
    assert [(topic, text) for topic, _, text in got] == [("/theirs/x", to_text(value)) for value, _ in VALUES]
    for value, _ in VALUES:
        received = subscriber.get(LONG_S)
        assert received is not None
        assert (received.topic, type(received.data), received.data) == ("/ours/x", type(value), value)


def test_an_original_takes_part_by_the_identity_that_its_certificate_names(
    original: Callable[..., Original], endpoint: Callable[..., Endpoint], tmp_path: Path
) -> None:
    home = tmp_path / "of_identities"
    permissions.init(home, "ours", "member")
    permissions.add(home, "theirs", "member", endpoint=None)
    files = {"openssl_cafile": "authority.pem", "openssl_certificate": "theirs.pem", "openssl_key": "theirs.key"}
    theirs = original(plain=False, tls={option: str(home / file) for option, file in files.items()})
    ours = endpoint(Keys(home / "ours"))
    statuses = ours.statuses()
    subscriber = ours.subscribe("/ours")
    theirs.peer_nosync(ours.listen(HOST), 1)
    both_know(ours, theirs)
    through(lambda: theirs.publish("/ours/x", "1"), lambda: subscriber.get(0.1) is not None)

    permissions.revoke(home, "theirs")

    removed = next(each for each in iter(partial(statuses.get, LONG_S), None) if isinstance(each, PeerRemoved))
    assert removed.reason.startswith("theirs was revoked on")
    eventually(lambda: ours.refused > 2, "the original was not refused again")  # it goes on dialling
    assert {(each.identity, each.verb) for each in ours.refusals()} == {("theirs", "join")}
    assert ours.peers() == []


def test_statuses_come_in_order_and_a_goodbye_is_answered(
    original: Callable[..., Original], endpoint: Callable[..., Endpoint]
) -> None:
    theirs, ours = original(), endpoint()
    statuses = ours.statuses()
    port = theirs.listen()
    ours.peer(HOST, port, timeout=LONG_S)
    both_know(ours, theirs)
    ours.unpeer(HOST, port, timeout=LONG_S)
    assert [type(statuses.get(LONG_S)) for _ in range(3)] == [EndpointDiscovered, PeerAdded, PeerRemoved]
    eventually(lambda: theirs.peers() == [], "the original still has a peer")
    assert any(each.startswith("peer_lost") for each in theirs.statuses())


def test_the_original_says_goodbye(original: Callable[..., Original], endpoint: Callable[..., Endpoint]) -> None:
    theirs, ours = original(), endpoint()
    statuses = ours.statuses()
    port = ours.listen(HOST)
    assert theirs.peer(port)
    both_know(ours, theirs)
    assert theirs.unpeer(port)
    assert [type(statuses.get(LONG_S)) for _ in range(3)] == [EndpointDiscovered, PeerAdded, PeerLost]


def test_filters_change_while_they_are_peers(
    original: Callable[..., Original], endpoint: Callable[..., Endpoint]
) -> None:
    theirs, ours = original(), endpoint()
    ours.peer(HOST, theirs.listen(), timeout=LONG_S)
    both_know(ours, theirs)
    theirs.subscribe("/late")
    wanted(ours, "/late")
    ours.publish("/late", 1)
    assert [text for *_, text in theirs.get("/late", 1, LONG_S)] == ["1"]
    subscriber = ours.subscribe("/a")
    subscriber.add("/b")
    # the original hears of it some time later: publish until something comes
    through(lambda: theirs.publish("/b", "2"), lambda: subscriber.get(0.05) is not None)


def test_a_peer_that_restarts_is_dialled_again(
    original: Callable[..., Original], endpoint: Callable[..., Endpoint]
) -> None:
    ours, theirs = endpoint(), original()
    port = ours.listen(HOST)
    theirs.peer_nosync(port, 1)
    both_know(ours, theirs)
    ours.close()
    eventually(lambda: theirs.peers() == [], "the original did not notice")
    again = endpoint()
    again.listen(HOST, port)
    both_know(again, theirs)


def test_we_dial_an_original_that_restarts(
    original: Callable[..., Original], endpoint: Callable[..., Endpoint]
) -> None:
    ours, first = endpoint(), original()
    statuses = ours.statuses()
    ours.peer(HOST, first.listen(), retry_s=0.2, timeout=LONG_S)
    first.kill()
    seen: list[type] = []
    while PeerLost not in seen:
        event = statuses.get(LONG_S)
        assert event is not None, seen
        seen.append(type(event))


def test_messages_pass_through_either(original: Callable[..., Original], endpoint: Callable[..., Endpoint]) -> None:
    left, right, ours = original(), original(), endpoint()
    port = ours.listen(HOST)
    right.subscribe("/through/us")
    assert left.peer(port)
    assert right.peer(port)
    wanted(ours, "/through/us")
    through(lambda: left.publish("/through/us", "1"), lambda: bool(right.get("/through/us", 1, 0.1)))
    end, middle, far = endpoint(), original(), endpoint()
    subscriber = far.subscribe("/through/them")
    port = middle.listen()
    middle.forward("/through/them")
    end.peer(HOST, port, timeout=LONG_S)
    far.peer(HOST, port, timeout=LONG_S)
    both_know(end, middle)
    both_know(far, middle)
    wanted(end, "/through/them")
    through(partial(end.publish, "/through/them", 1), lambda: subscriber.get(0.1) is not None)


def test_what_passes_between_originals_is_changed_or_held_back_and_who_comes_is_greeted(
    original: Callable[..., Original], endpoint: Callable[..., Endpoint]
) -> None:
    def redact(message: Forwarded) -> Forwarded | None:
        return None if message.value == "secret" else message.with_value(f"seen: {message.value}")

    def greet(event: PeerAdded) -> None:
        ours.publish("/greetings", event.id)

    left, right = original(), original()
    ours = endpoint(on_forward=redact, on_connected=greet)
    left.subscribe("/greetings")
    right.subscribe("/through/us")
    port = ours.listen(HOST)
    assert right.peer(port)
    assert left.peer(port)
    [greeting] = left.get("/greetings", 1, LONG_S)
    assert left.id() in str(greeting)
    wanted(ours, "/through/us")
    found: list[str] = []

    def came() -> bool:
        found.extend(text for *_, text in right.get("/through/us", 1, 0.1))
        return bool(found)

    through(lambda: left.publish("/through/us", "'x'"), came)
    left.publish("/through/us", "'secret'")
    left.publish("/through/us", "'last'")
    while not any("last" in each for each in found):
        found += [text for *_, text in right.get("/through/us", 1, LONG_S)]
    assert {each.strip("'") for each in found} == {"seen: x", "seen: last"}


@pytest.mark.parametrize("security", ["plain", "anonymous"])
def test_a_chain_of_ours_is_a_way_between_originals(
    security: Security, original: Callable[..., Original], endpoint: Callable[..., Endpoint]
) -> None:
    left = original(plain=security == "plain")
    ours = [endpoint(security) for _ in range(3)]
    for one, two in pairwise(ours):
        one.peer(HOST, two.listen(HOST), timeout=LONG_S)
    ours[0].peer(HOST, left.listen(), timeout=LONG_S)
    port = ours[-1].listen(HOST)
    for _ in range(2):  # the first one dies
        right = original(plain=security == "plain")
        right.subscribe("/far")
        assert right.peer(port)
        wanted(ours[0], "/far")
        through(partial(left.publish, "/far", "-1"), partial(right.get, "/far", 1, 0.1))
        left.publish_numbers("/far", 1_000)
        numbers: list[int] = []
        while not numbers or numbers[-1] != 999:
            found = right.get("/far", 1_000, LONG_S)
            assert found, f"the rest is missing: {numbers[-10:]}"
            numbers += [int(text) for *_, text in found]
        assert [each for each in numbers if each >= 0] == list(range(1_000))
        right.kill()


def test_a_triangle_with_an_original_gets_everything_once(
    original: Callable[..., Original], endpoint: Callable[..., Endpoint]
) -> None:
    ours, beside, theirs = endpoint(), endpoint(), original()
    subscribers = [each.subscribe("/t") for each in (ours, beside)]
    theirs.subscribe("/t")
    port = theirs.listen()
    ours.peer(HOST, port, timeout=LONG_S)
    beside.peer(HOST, port, timeout=LONG_S)
    ours.peer(HOST, beside.listen(HOST), timeout=LONG_S)
    both_know(ours, theirs)
    both_know(beside, theirs)
    eventually(lambda: [len(each.core.peers()) for each in (ours, beside)] == [2, 2], "the triangle does not close")
    # until all filters have settled some of these get lost; what arrives arrives once
    through(partial(ours.publish, "/t", -1), lambda: bool(theirs.get("/t", 1, 0.1)))
    through(partial(theirs.publish, "/t", "-2"), lambda: all(each.available for each in subscribers))
    through(partial(beside.publish, "/t", -3), lambda: bool(theirs.get("/t", 1, 0.1)))
    for number in range(100):
        ours.publish("/t", number)
    for number in range(100, 200):
        theirs.publish("/t", str(number))
    for number in range(200, 300):
        beside.publish("/t", number)
    texts = [text for *_, text in theirs.get("/t", 300, 2.0)]
    numbers = [int(text) for text in texts if int(text) >= 0]
    assert sorted(numbers) == [*range(100), *range(200, 300)]
    for subscriber, own in zip(subscribers, (range(100), range(200, 300)), strict=True):
        found = [each.value for each in collected(subscriber, 2.0) if each.value >= 0]
        assert sorted(found) == sorted(set(range(300)) - set(own))


def collected(subscriber: Subscriber, seconds: float) -> list[Received]:
    """All messages until there is silence for this long."""
    found: list[Received] = []
    while (each := subscriber.get(seconds)) is not None:
        found.append(each)
    return found


def test_a_loop_of_originals_does_not_make_a_storm(
    original: Callable[..., Original], endpoint: Callable[..., Endpoint]
) -> None:
    ours, left, right = endpoint(), original(), original()
    subscriber = ours.subscribe("/s")
    left.subscribe("/s")
    right.subscribe("/s")
    ours.peer(HOST, left.listen(), timeout=LONG_S)
    assert right.peer(ours.listen(HOST))
    both_know(ours, left)
    both_know(ours, right)
    wanted(ours, "/s")
    assert right.peer(left.listen())
    for _ in range(5):
        ours.publish("/s", "once")
    found = collected(subscriber, 2.0)  # would never end in a storm
    assert len(found) < 1_000
