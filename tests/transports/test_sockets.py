"""Sockets of ZeroMQ: what strangers may have of them."""

from __future__ import annotations

import socket
from contextlib import suppress

import pytest
import zmq

from chappe.transports.zeromq import new_socket

PATIENCE_S = 60.0


def test_a_connection_that_says_nothing_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chappe.transports.zeromq.HANDSHAKE_TIMEOUT_S", 0.05)
    with new_socket(zmq.ROUTER) as listener:
        assert listener.getsockopt(zmq.HANDSHAKE_IVL) == 50  # ZeroMQ's own is half a minute
        port = listener.bind_to_random_port("tcp://127.0.0.1")
        with socket.create_connection(("127.0.0.1", port), PATIENCE_S) as stranger, suppress(ConnectionError):
            while stranger.recv(64):  # what libzmq says first
                pass
