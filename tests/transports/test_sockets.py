"""Sockets of ZeroMQ: what strangers may have of them."""

from __future__ import annotations

import socket
from contextlib import suppress

import pytest
import zmq

from chappe.transports.zeromq import VIEWED_BYTES, new_socket, take, taking

PATIENCE_S = 60.0


def test_a_connection_that_says_nothing_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chappe.transports.zeromq.HANDSHAKE_TIMEOUT_S", 0.05)
    with new_socket(zmq.ROUTER) as listener:
        assert listener.getsockopt(zmq.HANDSHAKE_IVL) == 50  # ZeroMQ's own is half a minute
        port = listener.bind_to_random_port("tcp://127.0.0.1")
        with socket.create_connection(("127.0.0.1", port), PATIENCE_S) as stranger, suppress(ConnectionError):
            while stranger.recv(64):  # what libzmq says first
                pass


def test_large_parts_come_as_views_of_the_message_and_small_ones_as_bytes() -> None:
    parts = [b"id" * VIEWED_BYTES, b"a" * (VIEWED_BYTES - 1), b"b" * VIEWED_BYTES, b"", b"c" * 200_000]
    with new_socket(zmq.DEALER) as sender, new_socket(zmq.DEALER) as receiver:
        port = receiver.bind_to_random_port("tcp://127.0.0.1")
        sender.connect(f"tcp://127.0.0.1:{port}")
        for each in (parts, [b"next"]):
            sender.send_multipart(each)
        assert receiver.poll(round(1000 * PATIENCE_S))
        taken = take(receiver)
        assert receiver.poll(round(1000 * PATIENCE_S))
        assert take(receiver) == [b"next"]
    assert taken == parts  # whatever became of the sockets
    assert [type(each) for each in taken] == [bytes, bytes, memoryview, bytes, memoryview]


@pytest.mark.parametrize("views", [True, False])
def test_behind_a_large_message_large_parts_come_as_views_if_they_may(views: bool) -> None:
    small, large = [b"head", b"body"], [b"head", b"x" * VIEWED_BYTES]
    sizes = [small, large, large, small, large]
    with new_socket(zmq.DEALER) as sender, new_socket(zmq.DEALER) as receiver:
        port = receiver.bind_to_random_port("tcp://127.0.0.1")
        sender.connect(f"tcp://127.0.0.1:{port}")
        for each in sizes:
            sender.send_multipart(each)
        take_next = taking(receiver, views=views)
        taken = []
        for _ in sizes:
            assert receiver.poll(round(1000 * PATIENCE_S))
            taken.append(take_next())
    assert taken == sizes
    seen = memoryview if views else bytes
    assert [type(body) for _, body in taken] == [bytes, bytes, seen, bytes, bytes]
    assert {type(head) for head, _ in taken} == {bytes}
