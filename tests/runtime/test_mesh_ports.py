"""A node among strangers that connect and say nothing, and with subscribers that are full."""

from __future__ import annotations

import math
import socket
import time
from contextlib import ExitStack

import pytest
from tests.endpoints import PATIENCE_S, Make

from chappe.core import Deliver
from chappe.data.binary import encode
from chappe.defaults import HANDSHAKE_FRAME_BYTES_MAX
from chappe.mesh.links.greetings import Hello, OriginatorAck, OriginatorSyn, VersionSelect, pack_greeting
from chappe.mesh.messages import DATA, NOBODY, Message, pack_message
from chappe.runtime import mesh_ports


def test_those_who_are_silent_give_way_to_who_comes(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mesh_ports, "HANDSHAKES_MAX", 4)
    monkeypatch.setattr(mesh_ports, "HANDSHAKE_SPARED_S", 0.0)
    hub = make()
    port = hub.listen()
    with ExitStack() as stack:
        for _ in range(20):
            stack.enter_context(socket.create_connection(("127.0.0.1", port)))
        peer = make()
        assert peer.peer("127.0.0.1", port) == hub.id


def test_a_peer_that_begins_a_message_and_goes_silent_is_lost(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chappe.transports.tcp.FRAME_S", 0.01)
    monkeypatch.setattr("chappe.transports.tcp.FRAME_BYTES_S", 1e12)
    hub, peer = make(), make()
    peer.peer("127.0.0.1", hub.listen(), retry_s=0)
    statuses = peer.statuses()
    with peer.node.lock:
        [link] = peer.node._links.values()
        link._sock.sendall((1000).to_bytes(4, "big"))
    while (event := statuses.get(30.0)) is not None and type(event).__name__ != "PeerLost":
        pass
    assert event is not None
    assert hub.peers() == []


def test_a_large_message_right_behind_the_handshake_arrives(make: Make) -> None:
    hub = make()
    subscriber = hub.subscribe("t")
    sender, text = bytes(15) + b"\1", "x" * (2 * HANDSHAKE_FRAME_BYTES_MAX)  # the smaller id originates
    message = pack_message(sender, NOBODY, DATA, 16, b"t", encode(text))
    with socket.create_connection(("127.0.0.1", hub.listen()), timeout=PATIENCE_S) as peer:
        peer.sendall(pack_greeting(Hello(sender, 1, 1)))
        heard = b""
        while not heard.endswith(b"\1\2"):  # its hello, behind a probe
            heard += peer.recv(1000)
        peer.sendall(pack_greeting(VersionSelect(sender, 1)) + pack_greeting(OriginatorSyn(())))
        assert peer.recv(1000)
        peer.sendall(pack_greeting(OriginatorAck()) + message)
        received = subscriber.get(PATIENCE_S)
    assert received is not None
    assert received.value == text


def test_messages_of_a_peer_come_before_the_news_that_writing_to_it_failed(make: Make) -> None:
    hub, peer = make(), make()
    subscriber = hub.subscribe("t", "<$>/local/data/statuses")
    with peer.subscribe("u"):
        peer.peer("127.0.0.1", hub.listen())
        assert hub.await_peer(peer.id, PATIENCE_S)
        while subscriber.get(0) is not None:
            pass
        with hub.node.lock:
            [link] = hub.node._links.values()
            link._sock.shutdown(socket.SHUT_WR)
            flushes = hub.core.publish(b"u", b"", DATA, NOBODY, time.monotonic())
            hub.node.do([*flushes, Deliver(subscriber.number, [Message(b"t", encode(1))])])
        found = [subscriber.get(PATIENCE_S) for _ in range(2)]
    assert [each and each.topic for each in found] == ["t", "<$>/local/data/statuses"]


def test_what_a_full_subscriber_takes_is_told_together(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    endpoint, told = make(), []
    monkeypatch.setattr(endpoint.core, "drained", lambda count, now: told.append(count))
    monkeypatch.setattr(endpoint.node.member, "paused", True)
    for interval, counts in ((0.0, (1, 2)), (math.inf, (3, 4, 5)), (0.0, (6,))):
        monkeypatch.setattr(mesh_ports, "DRAINED_S", interval)
        for count in counts:
            with endpoint.node.lock:
                endpoint.node.drained(1, count)
    assert told == [1, 2, 18]
