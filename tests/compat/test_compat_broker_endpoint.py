"""Programs that were written for the original bindings, with only their import line changed."""

from __future__ import annotations

import select
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import timedelta

import pytest
from tests.waiting import PATIENCE_S as LONG_S
from tests.waiting import until

from chappe.compat import broker


@pytest.fixture
def endpoint() -> Iterator[Callable[..., broker.Endpoint]]:
    with ExitStack() as stack:

        def make(plain: bool = True) -> broker.Endpoint:
            options = broker.BrokerOptions()
            options.disable_ssl = plain
            return stack.enter_context(broker.Endpoint(broker.Configuration(options)))

        yield make


def pair(
    endpoint: Callable[..., broker.Endpoint], topic: str
) -> tuple[broker.Endpoint, broker.Endpoint, broker.Subscriber]:
    """Two peers, and a subscriber of the second that the first knows of."""
    first, second = endpoint(), endpoint()
    subscriber = second.make_subscriber(topic)
    port = first.listen("127.0.0.1", 0)
    assert second.peer("127.0.0.1", port)
    assert first.await_peer(second.node_id(), LONG_S)
    return first, second, subscriber


def test_messages_arrive_as_python_objects(endpoint: Callable[..., broker.Endpoint]) -> None:
    first, _, subscriber = pair(endpoint, "/test")
    first.publish("/test/1", ["a", 1, {2}])
    first.publish_batch(("/test/2", {"k": broker.Count(3)}), (broker.Topic("/test/3"), timedelta(seconds=1)))
    assert subscriber.get() == ("/test/1", ("a", 1, {2}))
    assert subscriber.get(2) == [("/test/2", {"k": broker.Count(3)}), ("/test/3", timedelta(seconds=1))]
    assert subscriber.get(0.01) is None
    assert subscriber.get(5, 0.01) == []
    assert subscriber.poll() == []
    assert subscriber.available() == 0


def test_get_refuses_what_the_original_refuses(endpoint: Callable[..., broker.Endpoint]) -> None:
    subscriber = endpoint().make_subscriber("/x")
    with pytest.raises(TypeError):
        subscriber.get("1")  # type: ignore[arg-type]


def test_several_topics_and_changes_of_them(endpoint: Callable[..., broker.Endpoint]) -> None:
    first, second = endpoint(), endpoint()
    subscriber = second.make_subscriber(["/a", broker.Topic("/b")])
    second.peer("127.0.0.1", first.listen("127.0.0.1", 0))
    assert first.await_peer(second.node_id(), LONG_S)
    first.publish("/a", 1)
    first.publish("/b", 2)
    assert subscriber.get(2) == [("/a", 1), ("/b", 2)]
    subscriber.add_topic("/c", True)
    subscriber.remove_topic("/a", True)
    until(lambda: {topic.string() for topic in first.peer_subscriptions()} == {"/b", "/c"})
    first.publish_batch(("/a", 3), ("/c", 4))
    assert subscriber.get(float(LONG_S)) == ("/c", 4)


def test_safe_subscribers_give_hashable_objects(endpoint: Callable[..., broker.Endpoint]) -> None:
    first, second = endpoint(), endpoint()
    with second.make_safe_subscriber("/x") as subscriber:
        second.peer("127.0.0.1", first.listen("127.0.0.1", 0))
        assert first.await_peer(second.node_id(), LONG_S)
        first.publish("/x", [{frozenset({1})}, {1: {2: 3}}])
        _, value = subscriber.get()
        assert isinstance(hash(value), int)
    with pytest.raises(RuntimeError, match="reset"):
        subscriber.get()


def test_zeek_events_pass(endpoint: Callable[..., broker.Endpoint]) -> None:
    first, _, subscriber = pair(endpoint, "/zeek")
    first.publish("/zeek/event", broker.zeek.Event("ping", 1, "x", metadata={1: broker.now()}))
    topic, value = subscriber.get()
    event = broker.zeek.Event(value)
    assert (topic, event.name(), event.args()) == ("/zeek/event", "ping", [1, "x"])


def test_publishers_tell_their_room(endpoint: Callable[..., broker.Endpoint]) -> None:
    first, _, subscriber = pair(endpoint, "/x")
    with first.make_publisher("/x/y") as publisher:
        publisher.publish(1)
        publisher.publish_batch(2, 3)
        assert [value for _, value in subscriber.get(3)] == [1, 2, 3]
        assert publisher.buffered() <= publisher.capacity()
        assert select.select([publisher.fd()], [], [], LONG_S)[0]


def test_the_descriptor_tells_of_messages(endpoint: Callable[..., broker.Endpoint]) -> None:
    first, _, subscriber = pair(endpoint, "/x")
    assert not select.select([subscriber.fd()], [], [], 0)[0]
    first.publish("/x", 1)
    assert select.select([subscriber.fd()], [], [], LONG_S)[0]
    assert subscriber.get() == ("/x", 1)
    assert not select.select([subscriber.fd()], [], [], 0)[0]


def test_statuses_and_errors(endpoint: Callable[..., broker.Endpoint]) -> None:
    first, second = endpoint(), endpoint()
    port = first.listen("127.0.0.1", 0)
    with second.make_status_subscriber(True) as statuses:
        second.peer("127.0.0.1", port)
        assert second.unpeer("127.0.0.1", port)
        assert second.unpeer("127.0.0.1", port)
        assert not second.peer("127.0.0.1", 1, 0)
        found = statuses.get(6)
    name = first.node_id()
    assert [repr(each) for each in found] == [
        f'endpoint_discovered({name}, "found a new peer in the network")',
        f'peer_added({name}, 127.0.0.1:{port}, "handshake successful")',
        f'peer_removed({name}, 127.0.0.1:{port}, "removed connection to remote peer")',
        f'endpoint_unreachable({name}, "lost the last path")',
        f"peer_invalid(endpoint_info(00000000-0000-0000-0000-000000000000, *127.0.0.1:{port}), "
        '"cannot unpeer from unknown peer")',
        "peer_unavailable(endpoint_info(00000000-0000-0000-0000-000000000000, *127.0.0.1:1), "
        '"unable to connect to remote peer")',
    ]
    assert [each.code() for each in found[:2]] == [broker.SC.EndpointDiscovered, broker.SC.PeerAdded]
    assert broker.EC.PeerUnavailable == found[5].code()
    assert found[1].context().network.get().port == port
    assert not found[0].context().network.is_set()


def test_only_errors_unless_statuses_are_wanted(endpoint: Callable[..., broker.Endpoint]) -> None:
    first, second = endpoint(), endpoint()
    statuses = second.make_status_subscriber()
    second.peer("127.0.0.1", first.listen("127.0.0.1", 0))
    second.peer("127.0.0.1", 1, 0)
    assert broker.EC.PeerUnavailable == statuses.get().code()
    assert statuses.get(0.01) is None
    assert statuses.poll() == []


def test_peers_are_listed(endpoint: Callable[..., broker.Endpoint]) -> None:
    first, second, _ = pair(endpoint, "/x")
    (peer,) = second.peers()
    assert peer.peer.node_id() == first.node_id()
    assert (peer.flags, peer.status) == (broker.PeerFlags.Remote, broker.PeerStatus.Peered)
    assert peer.peer.network.get().address == "127.0.0.1"


def test_await_peer_takes_ids_only(endpoint: Callable[..., broker.Endpoint]) -> None:
    first, second = endpoint(), endpoint()
    with pytest.raises(ValueError, match="not an endpoint id"):
        first.await_peer("nobody")
    assert not first.await_peer(second.node_id(), 0.01)


def test_a_port_that_cannot_be_is_zero(endpoint: Callable[..., broker.Endpoint]) -> None:
    port = endpoint().listen("127.0.0.1", 0)
    assert endpoint().listen("127.0.0.1", port) == 0
    assert endpoint().listen("192.0.2.1", 0) == 0


def test_the_default_is_anonymous_tls(endpoint: Callable[..., broker.Endpoint]) -> None:
    first, second, plain = endpoint(plain=False), endpoint(plain=False), endpoint()
    port = first.listen("127.0.0.1", 0)
    assert not plain.peer("127.0.0.1", port, 0)
    assert second.peer("127.0.0.1", port)


def test_waiting_lets_other_threads_run(endpoint: Callable[..., broker.Endpoint]) -> None:
    first, _, subscriber = pair(endpoint, "/x")

    def run() -> None:
        for _ in range(20):
            time.sleep(0.001)
        first.publish("/x", 1)

    thread = threading.Thread(target=run)
    thread.start()
    assert subscriber.get(float(LONG_S)) == ("/x", 1)  # with the original nobody could have published it
    thread.join()


def test_missing_files_of_tls_are_named() -> None:
    configuration = broker.Configuration()
    configuration.openssl_certificate = "certificate.pem"
    with pytest.raises(Exception, match="openssl_key"):
        broker.Endpoint(configuration)


@pytest.mark.parametrize("prefix", ["<$>/local/data/", "", "<$>"])
def test_statuses_and_errors_come_as_messages_too(endpoint: Callable[..., broker.Endpoint], prefix: str) -> None:
    first, second = endpoint(), endpoint()
    subscriber = first.make_subscriber(prefix)
    port = second.listen("127.0.0.1", 0)
    assert first.peer("127.0.0.1", port)
    first.unpeer("127.0.0.1", 1)
    network = ("127.0.0.1", broker.Port(port, broker.Port.TCP), broker.Count(0))
    nowhere = (None, "127.0.0.1", broker.Port(1, broker.Port.TCP), broker.Count(0))
    assert subscriber.get(3, LONG_S) == [
        (
            "<$>/local/data/statuses",
            (
                "status",
                broker.Enum("endpoint_discovered"),
                (second.node_id(), None, None, None),
                "found a new peer in the network",
            ),
        ),
        (
            "<$>/local/data/statuses",
            ("status", broker.Enum("peer_added"), (second.node_id(), *network), "handshake successful"),
        ),
        (
            "<$>/local/data/errors",
            ("error", broker.Enum("peer_invalid"), (nowhere, "cannot unpeer from unknown peer")),
        ),
    ]
    subscriber.remove_topic(prefix)
    first.unpeer("127.0.0.1", 1)
    assert subscriber.get(0.0) is None
