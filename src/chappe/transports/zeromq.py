"""The ZeroMQ sockets of a node: their bounds, and how they notice that the other side is gone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import zmq

from chappe.defaults import (
    HANDSHAKE_TIMEOUT_S,
    HEARTBEAT_S,
    KIB,
    MESSAGE_BYTES_MAX,
    QUEUE_MESSAGES_MAX,
    RECONNECT_MAX_S,
    RECONNECT_S,
)
from chappe.errors import TooManyOpenFiles
from chappe.system import machine
from chappe.system.limits import EXHAUSTED, TEXT
from chappe.transports.gate import Gate

_HEARTBEAT: Final = ((zmq.HEARTBEAT_IVL, int(HEARTBEAT_S * 1000)), (zmq.HEARTBEAT_TIMEOUT, int(3 * HEARTBEAT_S * 1000)))
# A SUB that is not read for a while does not see the answers to its pings either. It would redial, and libzmq then
# ends the process with "Assertion failed: _input_stopped" (its issue 3937). The kernel's probes know no such wait.
_KEEPALIVE: Final = (
    (zmq.TCP_KEEPALIVE, 1),
    (zmq.TCP_KEEPALIVE_IDLE, int(HEARTBEAT_S)),
    (zmq.TCP_KEEPALIVE_INTVL, int(HEARTBEAT_S)),
    (zmq.TCP_KEEPALIVE_CNT, 3),
)


# How long a closed socket goes on sending. A message of several parts that is given up halfway, while its peer goes,
# would have libzmq end the process with "Resource temporarily unavailable" (its issue 3442). So it is longer than a
# peer can be silent before its connection ends. What is closed in order is sent in milliseconds.
LINGER_MS: Final = 30_000
# What dials keeps its descriptors so long for a peer that is not there, to which it has little to say.
DIALLING_LINGER_MS: Final = 2_000
_LINGER_MS: Final[dict[int, int]] = {zmq.DEALER: DIALLING_LINGER_MS, zmq.SUB: 100}  # what a SUB sends has one part each
SOCKETS_MAX: Final = 16_384  # of this process; what ZeroMQ allows by default is 250 members


def new_socket(kind: int, gate: Gate | None = None) -> zmq.Socket[bytes]:
    """A socket of this kind as ZeroMQ makes it, but that connections which say nothing end sooner.

    Args:
        gate: Of a socket that is to have keys.

    Raises:
        TooManyOpenFiles: There are too many.
    """
    try:
        made = machine.current().zeromq(kind, SOCKETS_MAX) if gate is None else gate.context.socket(kind)
    except zmq.ZMQError as error:
        if error.errno in EXHAUSTED:
            raise TooManyOpenFiles(TEXT) from None
        raise
    made.setsockopt(zmq.HANDSHAKE_IVL, int(HANDSHAKE_TIMEOUT_S * 1000))
    return made


def open_socket(kind: int, gate: Gate | None = None) -> zmq.Socket[bytes]:
    """A socket of this kind, neither bound nor connected; closed, it goes on sending for a while."""
    made = new_socket(kind, gate)
    for option, value in (
        (zmq.LINGER, _LINGER_MS.get(kind, LINGER_MS)),
        # A SUB sends nothing but subscriptions, and would drop those beyond the bound.
        (zmq.SNDHWM, 0 if kind == zmq.SUB else QUEUE_MESSAGES_MAX),
        (zmq.RCVHWM, QUEUE_MESSAGES_MAX),
        (zmq.MAXMSGSIZE, MESSAGE_BYTES_MAX),
        (zmq.RECONNECT_IVL, int(RECONNECT_S * 1000)),
        (zmq.RECONNECT_IVL_MAX, int(RECONNECT_MAX_S * 1000)),
        *(_KEEPALIVE if kind == zmq.SUB else _HEARTBEAT),
    ):
        made.setsockopt(option, value)
    return made


# Copying so much takes longer than looking at it where it came: measured, half as long at 16 KiB, and twice at 32 KiB.
VIEWED_BYTES: Final = 24 * KIB
_NOBLOCK: Final = int(zmq.NOBLOCK)


def take(sock: zmq.Socket[bytes]) -> list[bytes | memoryview]:
    """The parts of the next message; of those behind the first one that are large no copy is made.

    Such a part has its memory to itself, which is given back once nobody holds the view any more, or a view of it.

    Raises:
        zmq.Again: There is none.
    """
    head, *rest = sock.recv_multipart(_NOBLOCK, copy=False)
    return [head.bytes, *(each.bytes if len(each) < VIEWED_BYTES else each.buffer for each in rest)]


def taking(sock: zmq.Socket[bytes], *, views: bool = True) -> Callable[[], list[bytes | memoryview]]:
    """As ``take``, where most messages are small, which are faster copied: so is one that comes behind a small one.

    Without ``views`` all are copied.
    """
    large = False

    def take_next() -> list[bytes | memoryview]:
        nonlocal large
        parts: list[bytes | memoryview] = take(sock) if large else sock.recv_multipart(_NOBLOCK)  # type: ignore[assignment]
        large = views and len(parts[-1]) >= VIEWED_BYTES
        return parts

    return take_next
