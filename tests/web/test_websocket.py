"""The JSON protocol over real sockets of this machine, with a plain client."""

from __future__ import annotations

import gc
import json
import logging
import os
import socket
import ssl
import struct
import threading
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("uvicorn")

from tests.waiting import PATIENCE_S, until
from websockets.exceptions import ConnectionClosed, InvalidMessage, InvalidStatus
from websockets.frames import Close
from websockets.sync.client import ClientConnection, connect

from chappe import Endpoint, Tls
from chappe.api.keys import make_authority, make_certificate
from chappe.data.scalars import Count
from chappe.defaults import WEBSOCKET_FRAME_BYTES_MAX
from chappe.errors import AddressInUse, UsageError
from chappe.web import server as module
from chappe.web.connections import BriefHttp
from chappe.web.server import WebSocketServer

PATH = "/v1/messages/json"


class Place:
    """An endpoint with a server, a peer of it, and clients; all of it is closed at the end."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self.endpoint = stack.enter_context(Endpoint())
        self.peer = stack.enter_context(Endpoint())

    def serve(self, **options: Any) -> WebSocketServer:
        self.peer.peer("127.0.0.1", self.endpoint.listen())
        self.server = self._stack.enter_context(WebSocketServer(self.endpoint, **options))
        return self.server

    def connect(self, **options: Any) -> ClientConnection:
        url = f"ws://127.0.0.1:{self.server.port}{PATH}"
        made: ClientConnection = self._stack.enter_context(connect(url, proxy=None, **options))
        return made

    def join(self, *topics: str, **options: Any) -> ClientConnection:
        """A client that has subscribed, and whose subscription has reached the peer."""
        client = self.connect(**options)
        client.send(json.dumps(topics))
        ack = receive(client)
        assert (ack["type"], ack["endpoint"]) == ("ack", self.endpoint.id)
        until(lambda: set(map(str.encode, topics)) <= set(self.peer.core.peer_subscriptions()))
        return client


@pytest.fixture
def place() -> Iterator[Place]:
    descriptors = set(os.listdir("/proc/self/fd")) if os.path.exists("/proc/self/fd") else set()
    threads = set(threading.enumerate())
    with ExitStack() as stack:
        yield Place(stack)
    until(lambda: not set(threading.enumerate()) - threads)
    gc.collect()
    if descriptors:
        until(lambda: set(filter(is_open, os.listdir("/proc/self/fd"))) <= descriptors)


def is_open(descriptor: str) -> bool:
    return os.path.exists(f"/proc/self/fd/{descriptor}")


def receive(client: ClientConnection) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(client.recv(PATIENCE_S))
    return found


def end_of(client: ClientConnection) -> Close:
    """Why the server closes the connection, after all that it still sends."""
    with suppress(ConnectionClosed):
        while True:
            client.recv(PATIENCE_S)
    found = client.protocol.close_rcvd
    assert found is not None
    return found


def message(topic: str, kind: str, data: object) -> str:
    return json.dumps({"type": "data-message", "topic": topic, "@data-type": kind, "data": data})


def test_messages_go_both_ways(place: Place) -> None:
    place.serve()
    client = place.join("/to/page")
    place.peer.publish("/to/page/1", Count(5))
    assert receive(client) == {"type": "data-message", "topic": "/to/page/1", "@data-type": "count", "data": 5}
    with place.peer.subscribe("/from") as subscriber:
        until(lambda: b"/from" in place.endpoint.core.peer_subscriptions())
        client.send(message("/from/page", "vector", [{"@data-type": "string", "data": "hello"}]))
        found = subscriber.get(PATIENCE_S)
    assert found is not None
    assert (found.topic, found.value, found.origin) == ("/from/page", ("hello",), place.endpoint.id)


def test_a_client_is_as_a_peer_to_subscribers_here_and_to_other_clients(place: Place) -> None:
    place.serve()
    one, two = place.join("/chat"), place.join("/chat")
    with place.endpoint.subscribe("/chat") as here:
        one.send(message("/chat", "string", "first"))
        two.send(message("/chat", "string", "second"))
        assert {here.get(PATIENCE_S).value for _ in range(2)} == {"first", "second"}  # type: ignore[union-attr]
    assert (receive(two)["data"], receive(one)["data"]) == ("first", "second")  # nobody hears itself


@pytest.mark.parametrize(
    ("frame", "code"),
    [
        ("no JSON", "deserialization_failed"),
        ("[]", "deserialization_failed"),
        (message("", "count", 1), "deserialization_failed"),
        (message("/t", "count", -1), "deserialization_failed"),
        (message("/t", "unheard-of", 1), "deserialization_failed"),
        ('{"type":"other","topic":"/t","@data-type":"count","data":1}', "deserialization_failed"),
        ("[" * 100_000, "deserialization_failed"),
        (b"\x00\x01", "deserialization_failed"),
        (message("<$>/local/data/statuses", "count", 1), "invalid_data"),
    ],
)
def test_what_cannot_be_used_is_answered_and_the_connection_stays(place: Place, frame: str, code: str) -> None:
    place.serve()
    client = place.join("/t")
    client.send(frame)
    answer = receive(client)
    assert (answer["type"], answer["code"]) == ("error", code)
    assert answer["context"]
    place.peer.publish("/t", "still here")
    assert receive(client)["data"] == "still here"


@pytest.mark.parametrize(
    "frame", ['"/t"', '["<$>/local/data/errors"]', "{}", "[1]", "/t", '["\\ud800"]', json.dumps(["x" * 70_000])]
)
def test_a_first_frame_that_is_no_filter_is_answered_and_another_may_follow(place: Place, frame: str) -> None:
    place.serve()
    client = place.connect()
    client.send(frame)
    assert receive(client)["code"] == "deserialization_failed"
    client.send('["/t"]')
    assert receive(client)["type"] == "ack"


def test_what_json_cannot_say_becomes_an_error_and_the_rest_follows(place: Place) -> None:
    place.serve()
    client = place.join("/t")
    for value in (float("nan"), b"\xff", 1.5):
        place.peer.publish("/t", value)
    assert [receive(client).get("code") for _ in range(2)] == ["serialization_failed"] * 2
    assert receive(client)["data"] == 1.5


def test_a_frame_over_the_bound_ends_its_connection_alone(place: Place) -> None:
    place.serve()
    client, other = place.join("/t"), place.join("/t")
    announced = (WEBSOCKET_FRAME_BYTES_MAX + 1).to_bytes(8)
    client.socket.sendall(b"\x81\xff" + announced + bytes(4))  # text, masked; its length is enough to be refused
    assert end_of(client).code == 1009
    place.peer.publish("/t", 1)
    assert receive(other)["data"] == 1


def test_who_left_is_forgotten(place: Place) -> None:
    server = place.serve()
    client = place.join("/t")
    assert server.clients == 1
    client.close()
    until(lambda: server.clients == 0 and b"/t" not in place.peer.core.peer_subscriptions())


@pytest.mark.parametrize(
    ("origin", "named", "works"),
    [
        (None, (), True),
        ("http://localhost:8000", (), True),
        ("https://127.0.0.1", (), True),
        ("http://[::1]:5173", (), True),
        ("https://example.org", (), False),
        ("https://example.org", ("https://example.org",), True),
        ("https://EXAMPLE.org:443", ("https://example.org/",), True),
        ("http://example.org", ("https://example.org",), False),
        ("https://example.org:8443", ("https://example.org",), False),
        ("http://localhost.example.org", (), False),
        ("null", (), False),
        ("file://", (), False),
        ("http://[", (), False),
    ],
)
def test_only_pages_of_this_machine_or_named_ones_may_connect(
    place: Place, origin: str | None, named: tuple[str, ...], works: bool
) -> None:
    place.serve(origins=named)
    if works:
        place.join("/t", origin=origin)
    else:
        with pytest.raises(InvalidStatus) as refused:
            place.connect(origin=origin)
        assert refused.value.response.status_code == 403


@pytest.mark.parametrize(
    ("host", "works"),
    [
        ("localhost:1", True),
        ("127.0.0.2", True),
        ("[::1]:80", True),
        ("example.org:8443", True),
        ("rebound.example.com", False),
        ("localhost.example.com", False),
        ("[", False),
        ("", False),
    ],
)
def test_on_loopback_a_name_of_elsewhere_is_not_served(place: Place, host: str, works: bool) -> None:
    server = place.serve(origins=["https://example.org:8443"])
    with socket.create_connection(("127.0.0.1", server.port), PATIENCE_S) as connection:
        connection.sendall(
            f"GET {PATH} HTTP/1.1\r\nHost: {host}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n\r\n".encode()
        )
        assert connection.recv(12) == (b"HTTP/1.1 101" if works else b"HTTP/1.1 403")


def test_wrong_arguments_are_refused(place: Place) -> None:
    server = place.serve()
    with pytest.raises(UsageError, match="is not an origin"):
        WebSocketServer(place.endpoint, origins=["example.org"])
    with pytest.raises(UsageError, match="may not block"):
        WebSocketServer(place.endpoint, on_full="block")
    with pytest.raises(UsageError, match="is not this machine"):
        WebSocketServer(place.endpoint, "0.0.0.0")
    with pytest.raises(UsageError, match="is not this machine"):
        WebSocketServer(place.endpoint, "*")
    with pytest.raises(AddressInUse):
        WebSocketServer(place.endpoint, port=server.port)
    with Endpoint(security="anonymous") as anonymous, pytest.raises(UsageError, match="no browser knows anonymous"):
        WebSocketServer(anonymous, "0.0.0.0")


def test_a_fast_sender_is_slowed_down_and_nothing_is_lost(place: Place) -> None:
    slow = place.peer.subscribe("/fast", on_full="block", messages_max=50)
    place.serve()
    client = place.join()
    until(lambda: b"/fast" in place.endpoint.core.peer_subscriptions())
    text = "x" * 20_000
    count = 4_000  # 80 MB: more than all queues on the way hold
    sent = 0

    def send() -> None:
        nonlocal sent
        for number in range(count):
            client.send(message("/fast", "string", f"{number} {text}"))
            sent = number + 1

    sender = threading.Thread(target=send)
    sender.start()
    until(lambda: not place.endpoint.room([b"/fast"]))
    while True:  # until nothing moves any more
        before = sent
        threading.Event().wait(0.3)
        if sent == before:
            break
    assert sent < count
    for number in range(count):
        found = slow.get(PATIENCE_S)
        assert found is not None
        assert found.value.partition(" ")[0] == str(number)
    sender.join(PATIENCE_S)
    assert not sender.is_alive()


def test_a_slow_client_is_disconnected_and_nobody_else_notices(place: Place) -> None:
    place.serve(messages_max=100)
    slow, other = place.join("/t", max_queue=1), place.join("/t")
    text = "x" * 50_000
    for number in range(600):
        place.peer.publish("/t", f"{number} {text}")
        assert receive(other)["data"].startswith(f"{number} ")
    end = end_of(slow)
    assert end.code == 1013
    assert "less than you subscribed to" in end.reason


def test_a_slow_client_may_lose_the_oldest_instead(place: Place) -> None:
    place.serve(messages_max=100, on_full="drop_oldest")
    slow, other = place.join("/t", max_queue=1), place.join("/t")
    text = "x" * 50_000
    for number in range(600):
        place.peer.publish("/t", f"{number} {text}")
        receive(other)
    found: list[int] = []
    while not found or found[-1] != 599:
        found.append(int(receive(slow)["data"].partition(" ")[0]))
    assert found == sorted(set(found))
    assert 100 <= len(found) < 600


def test_clients_hear_that_the_endpoint_is_closed(place: Place) -> None:
    place.serve()
    client = place.join("/t")
    place.endpoint.close()
    assert end_of(client).code == 1001


def test_closing_the_server_leaves_the_endpoint_as_it_was(place: Place) -> None:
    server = place.serve()
    client = place.join("/t")
    server.close()
    assert end_of(client).code == 1012
    with place.endpoint.subscribe("/here") as subscriber:
        until(lambda: b"/here" in place.peer.core.peer_subscriptions())
        place.peer.publish("/here", 1)
        found = subscriber.get(PATIENCE_S)
        assert found is not None
        assert found.value == 1


def test_with_certificates_a_client_needs_one_too(tmp_path: Path) -> None:
    make_authority(tmp_path)
    for name in ("node", "page"):
        make_certificate(tmp_path, name)
    make_authority(tmp_path / "others")
    make_certificate(tmp_path / "others", "stranger")

    def client(certificate: Path | None) -> ssl.SSLContext:
        made = ssl.create_default_context(cafile=tmp_path / "authority.pem")
        if certificate is not None:
            made.load_cert_chain(certificate, certificate.with_suffix(".key"))
        return made

    with Endpoint(security=Tls.of(tmp_path, "node")) as endpoint, WebSocketServer(endpoint) as server:
        url = f"wss://localhost:{server.port}{PATH}"
        with connect(url, ssl=client(tmp_path / "page.pem"), proxy=None) as page:
            page.send("[]")
            assert receive(page)["type"] == "ack"
        for wrong in (None, tmp_path / "others" / "stranger.pem"):
            with pytest.raises((ssl.SSLError, ConnectionError, EOFError, InvalidMessage, ConnectionClosed)):
                connect(url, ssl=client(wrong), proxy=None)
        with pytest.raises((ConnectionError, EOFError, InvalidMessage, ConnectionClosed)):
            connect(f"ws://localhost:{server.port}{PATH}", proxy=None)


def test_who_never_begins_with_tls_is_cut_off_soon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chappe.web.connections.HANDSHAKE_TIMEOUT_S", 0.05)
    make_authority(tmp_path)
    make_certificate(tmp_path, "node")
    with (
        Endpoint(security=Tls.of(tmp_path, "node")) as endpoint,
        WebSocketServer(endpoint) as server,
        socket.create_connection(("127.0.0.1", server.port), PATIENCE_S) as connection,
        suppress(ConnectionError),
    ):
        assert connection.recv(1) == b""


def hurried(port: int, context: ssl.SSLContext, how: str) -> None:
    """Connect, and be gone."""
    plain = socket.create_connection(("127.0.0.1", port), PATIENCE_S)
    if how == "before TLS":
        plain.close()
        return
    if how == "garbage":
        with suppress(ConnectionError):
            plain.sendall(b"GET / HTTP/1.1\r\n\r\n")
        plain.close()
        return
    with suppress(OSError):
        client = context.wrap_socket(plain, server_hostname="localhost")
        if how == "within a request":
            client.sendall(b"GET /v1/messages/json HTTP/1.1\r\nHost: lo")
        if how == "with a word":
            client.unwrap()
        if how == "reset":
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.close()


@pytest.mark.parametrize(
    "how", ["before TLS", "garbage", "after the handshake", "with a word", "within a request", "reset"]
)
def test_a_connection_that_ends_early_leaves_nothing_in_the_log(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Also when its time is over that it had to become a client."""
    monkeypatch.setattr(BriefHttp, "patience_s", 0.5)
    make_authority(tmp_path)
    for name in ("node", "page"):
        make_certificate(tmp_path, name)
    context = ssl.create_default_context(cafile=tmp_path / "authority.pem")
    context.load_cert_chain(tmp_path / "page.pem", tmp_path / "page.key")
    with Endpoint(security=Tls.of(tmp_path, "node")) as endpoint, WebSocketServer(endpoint) as server:
        for _ in range(20):
            hurried(server.port, context, how)
        idle = socket.create_connection(("127.0.0.1", server.port), PATIENCE_S)
        waiting = context.wrap_socket(idle, server_hostname="localhost")
        with suppress(OSError):
            while waiting.recv(100):  # cut off when its time is over, and the time of the others was over before
                pass
        waiting.close()
        with connect(f"wss://localhost:{server.port}{PATH}", ssl=context, proxy=None) as page:
            page.send("[]")
            assert receive(page)["type"] == "ack"
    assert [each.getMessage() for each in caplog.records if each.levelno >= logging.WARNING] == []


# -- room for everybody -----------------------------------------------------------------------------


def test_clients_that_say_nothing_give_way_to_others(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WEBSOCKET_CLIENTS_MAX", 3)
    place.serve()
    silent = [place.connect() for _ in range(10)]
    client = place.join("/a")
    assert [end_of(each).code for each in silent[:8]] == [1013] * 8
    place.peer.publish("/a", Count(1))
    assert receive(client)["data"] == 1
    assert place.server.clients <= 3


def test_a_client_has_so_long_to_say_what_it_wants(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chappe.web.session.WEBSOCKET_SPEAK_S", 0.05)
    place.serve()
    assert "subscribe" in end_of(place.connect()).reason
    until(lambda: place.server.clients == 0)


def test_a_connection_that_never_becomes_a_client_is_closed(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BriefHttp, "patience_s", 0.05)
    server = place.serve()
    client = place.join("/a")
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.settimeout(PATIENCE_S * 3)
        with suppress(ConnectionError):
            assert connection.recv(1) == b""
    place.peer.publish("/a", Count(1))
    assert receive(client)["data"] == 1  # the time is for those who are no clients yet


def test_of_connections_that_say_nothing_the_oldest_gives_way(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BriefHttp, "waiting_max", 2)
    server = place.serve()
    client = place.join("/a")
    with ExitStack() as connections:
        first, *_ = [
            connections.enter_context(socket.create_connection(("127.0.0.1", server.port), PATIENCE_S * 3))
            for _ in range(3)
        ]
        with suppress(ConnectionError):
            assert first.recv(1) == b""
        place.peer.publish("/a", Count(1))
        assert receive(client)["data"] == 1


def test_a_client_that_has_spoken_stays_when_all_are_of_one_host(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WEBSOCKET_CLIENTS_MAX", 1)
    place.serve()
    place.join("/a")
    with pytest.raises(InvalidStatus) as refused:
        place.connect()
    assert refused.value.response.status_code == 503


class Guest:
    """A client of which it is only known whether it was asked to go."""

    gone = False

    def give_way(self) -> None:
        self.gone = True

    def look(self, now: float) -> None:
        pass


def test_the_host_with_the_most_clients_gives_way_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WEBSOCKET_CLIENTS_MAX", 4)
    guests = [Guest() for _ in range(10)]
    made = module.Room()

    def come(number: int, host: str) -> bool:
        entered = made.enter(guests[number], host)
        made.spoke(guests[number])
        return entered

    assert [come(number, "greedy") for number in range(6)] == [True] * 4 + [False] * 2
    assert [come(number, "other") for number in (6, 7, 8)] == [True, True, False]
    assert [each.gone for each in guests] == [number in (2, 3) for number in range(10)]
    assert len(made) == 4
    made.leave(guests[0])
    made.leave(guests[0])
    assert len(made) == 3
