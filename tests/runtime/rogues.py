"""Strangers that speak to members over raw TCP and raw ZeroMQ."""

from __future__ import annotations

import contextlib
import random
import socket
from collections.abc import Iterator

import zmq
from tests.waiting import PATIENCE_S

GREETING = bytes.fromhex("ff00000000000000017f0301") + b"NULL" + bytes(16) + bytes(32)


@contextlib.contextmanager
def rogue(kind: int) -> Iterator[zmq.Socket[bytes]]:
    """A socket of its own context."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    made = context.socket(kind)
    made.setsockopt(zmq.LINGER, 2_000)
    made.setsockopt(zmq.RCVTIMEO, int(PATIENCE_S * 1000))
    try:
        yield made
    finally:
        context.destroy(linger=2_000)  # with whatever else was made in it


def throw(port: int, raw: bytes) -> None:
    """Send bytes to a listening port and wait until the other end closed or took them."""
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) as connection, contextlib.suppress(OSError):
        connection.sendall(raw)
        connection.shutdown(socket.SHUT_WR)
        connection.settimeout(0.3)
        while connection.recv(65536):
            pass


def garbage(seed: int) -> list[bytes]:
    """Bytes that are no ZMTP, or begin as if they were."""
    rng = random.Random(seed)
    ready = b"\x04\x26\x05READY\x0bSocket-Type\x00\x00\x00\x06DEALER\x08Identity\x00\x00\x00\x00"
    oversized = GREETING + ready + b"\x02" + (1 << 40).to_bytes(8, "big") + b"x" * 1000
    return [
        b"",
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        rng.randbytes(5_000),
        b"\xff" * 500,
        GREETING,
        GREETING[:20],
        GREETING + rng.randbytes(2_000),
        GREETING + ready + rng.randbytes(2_000),
        oversized,
    ]


def junk(seed: int) -> list[list[bytes]]:
    """Malformed messages: random frames, cut ones, and ones whose content is evil."""
    rng = random.Random(seed)
    made = [[b""], [b"\0"], [b"\1"], [b"M"], [b"Mhello\0\1"], [b"Rhello\0\1\1A\5hello", b"no batch"]]
    made += [[bytes((id_,)) + b"hello\0\1" + rng.randbytes(rng.randrange(40))] for id_ in b"MDFKHEGWLRSAI" * 3]
    made += [[rng.randbytes(rng.randrange(60)) for _ in range(rng.randrange(1, 5))] for _ in range(30)]
    return made
