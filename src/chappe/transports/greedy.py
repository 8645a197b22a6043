"""Connections that subscribe to more than anybody needs: how much each of them takes, and an end to those that do.

libzmq keeps every prefix of every peer, some fifty bytes for each byte of it, before the program is asked. A publishing
socket does not say whose subscription it is, but the message knows the descriptor of its connection. A connection that
is shut down takes its subscriptions along.
"""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from typing import Any, Final

import zmq

from chappe.defaults import SUBSCRIBED_BYTES_MAX, SUBSCRIBED_PEER_BYTES_MAX
from chappe.errors import ProtocolError

PREFIX_BYTES: Final = 64  # each counts so much more than its length


@dataclass(slots=True)
class _Connection:
    peer: Any  # its address: a descriptor may be another connection's by now
    bytes: int = 0


class Greedy:
    """The connections of one publishing socket, by their descriptors."""

    def __init__(self) -> None:
        self._connections: dict[int, _Connection] = {}  # as many as there may be descriptors
        self._bytes = 0  # of all of them together

    def count(self, frame: zmq.Frame, size: int, on: bool) -> None:
        """One more subscription of ``size`` bytes, or one less.

        Raises:
            ProtocolError: A connection had too many, and was cut off.
        """
        descriptor = _descriptor(frame)
        if descriptor < 0:
            return  # a connection ended: its subscriptions end one by one
        connection = self._connections.get(descriptor)
        if connection is None:
            connection = self._connections[descriptor] = _Connection(_peer(descriptor))
        size += PREFIX_BYTES
        change = size if on else -min(size, connection.bytes)
        connection.bytes += change
        self._bytes += change
        if on and connection.bytes > SUBSCRIBED_PEER_BYTES_MAX:
            self._cut(descriptor)
        elif on and self._bytes > SUBSCRIBED_BYTES_MAX:
            self._forget_ended()
            if self._bytes > SUBSCRIBED_BYTES_MAX:
                self._cut(max(self._connections, key=lambda each: self._connections[each].bytes))

    def _forget_ended(self) -> None:
        """What ended is not told of, so it is looked for when it matters."""
        for descriptor, connection in list(self._connections.items()):
            if connection.peer is None or _peer(descriptor) != connection.peer:
                self._forget(descriptor)

    def _forget(self, descriptor: int) -> _Connection:
        connection = self._connections.pop(descriptor)
        self._bytes -= connection.bytes
        return connection

    def _cut(self, descriptor: int) -> None:
        connection = self._forget(descriptor)
        peer = _peer(descriptor)
        if peer is None or peer != connection.peer:
            return  # that one has ended; another one has its descriptor, and is counted anew
        try:
            with socket.socket(fileno=os.dup(descriptor)) as doubled:
                doubled.shutdown(socket.SHUT_RDWR)
        except OSError:
            return  # it has just ended by itself
        raise ProtocolError(f"the member at {peer[0]}:{peer[1]} subscribed to more than anybody needs, and was cut off")


def _descriptor(frame: zmq.Frame) -> int:
    try:
        return int(frame.get(zmq.SRCFD))
    except zmq.ZMQError:
        return -1


def _peer(descriptor: int) -> Any:
    """The address at the other end; None if there is none any more."""
    try:
        with socket.socket(fileno=os.dup(descriptor)) as doubled:
            return doubled.getpeername()
    except OSError:
        return None
