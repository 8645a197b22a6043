"""Limits that chappe is held against: ZeroMQ without anything around it, and a plain file."""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from collections.abc import Callable
from typing import Any

import zmq

from benchmarks.link import (
    RECORD_BYTES,
    Meter,
    age_ns,
    orders,
    pace,
    quantiles,
    say,
    singles,
    stamped,
    tether,
)

FRAME_BYTES = 64 * 1024
FRAMES_QUEUED = 1_000  # as chappe's own
SINGLES_QUEUED = 100_000
SILENCE_MS = 30_000
Options = dict[str, Any]


def _messages(count: int, single: bool) -> int:
    return count if single else -(-count * RECORD_BYTES // FRAME_BYTES)


def _publisher(options: Options) -> zmq.Socket[bytes]:
    """A publisher that waits at its bound, as chappe's does; returns once somebody subscribed."""
    sock: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.XPUB)
    sock.set_hwm(SINGLES_QUEUED if options["single"] else FRAMES_QUEUED)
    sock.setsockopt(zmq.XPUB_NODROP, 1)
    sock.setsockopt(zmq.LINGER, 0)
    if options.get("curve"):
        (sock.curve_publickey, sock.curve_secretkey), _ = _keys(options)
        sock.curve_server = True
    port = sock.bind_to_random_port("tcp://127.0.0.1")
    say(endpoint=f"tcp://127.0.0.1:{port}")
    if not sock.poll(SILENCE_MS):
        sys.exit("nobody subscribed")
    sock.recv()
    say(ready=True)
    return sock


def _keys(options: Options) -> list[tuple[bytes, bytes]]:
    """The publisher's pair of keys and the subscriber's."""
    return [(public.encode(), secret.encode()) for public, secret in options["curve"]]


def _subscriber(options: Options) -> zmq.Socket[bytes]:
    sock: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.SUB)
    sock.set_hwm(SINGLES_QUEUED if options["single"] else FRAMES_QUEUED)
    sock.setsockopt(zmq.RCVTIMEO, SILENCE_MS)
    sock.setsockopt(zmq.SUBSCRIBE, b"")
    if options.get("curve"):
        (sock.curve_serverkey, _), (sock.curve_publickey, sock.curve_secretkey) = _keys(options)
    sock.connect(options["endpoint"])
    say(ready=True)
    return sock


def publisher(options: Options) -> None:
    """Order ``count``: send the bytes of so many records, as single messages or in frames."""
    sock = _publisher(options)
    frame = os.urandom(FRAME_BYTES)
    for order in orders():
        meter = Meter()
        send = sock.send
        if options["single"]:
            for value in singles(order["count"]):
                send(value)
        else:
            for _ in range(_messages(order["count"], False)):
                send(frame)
        say(**meter.facts())


def proxy(options: Options) -> None:
    """ZeroMQ's own forwarder between a publisher and those who subscribe here; it keeps nothing."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context.instance()
    taking, passing = context.socket(zmq.XSUB), context.socket(zmq.XPUB)
    for each in (taking, passing):
        each.set_hwm(SINGLES_QUEUED if options["single"] else FRAMES_QUEUED)
    passing.setsockopt(zmq.XPUB_NODROP, 1)
    taking.connect(options["endpoint"])
    port = passing.bind_to_random_port("tcp://127.0.0.1")
    say(endpoint=f"tcp://127.0.0.1:{port}")
    zmq.proxy(taking, passing)


def subscriber(options: Options) -> None:
    """Order ``count``: take what ``publisher`` sends for the same order."""
    sock = _subscriber(options)
    for order in orders():
        meter = Meter()
        recv = sock.recv
        size = 0
        for _ in range(_messages(order["count"], options["single"])):
            size += len(recv())
        say(bytes=size, **meter.facts())


def paced_publisher(options: Options) -> None:
    """Order ``count`` and ``rate``: send stamped records at that rate."""
    sock = _publisher(options)
    for order in orders():
        meter = Meter()
        for due in pace(order["count"], order["rate"]):
            sock.send(stamped(due))
        say(**meter.facts())


def timing_subscriber(options: Options) -> None:
    """Order ``count``: take so many stamped records and say how old they were."""
    sock = _subscriber(options)
    for order in orders():
        meter = Meter()
        ages = [age_ns(sock.recv()) for _ in range(order["count"])]
        facts = meter.facts()
        say(**facts, **quantiles(ages, (facts["end"] - facts["start"]) / 1e9))


def writer(options: Options) -> None:
    """Order ``bytes`` and ``syncs``: write so many bytes to a new file with so many fdatasyncs, evenly spread."""
    say(ready=True)
    for order in orders():
        piece = os.urandom(-(-order["bytes"] // order["syncs"]))
        meter = Meter()
        descriptor = os.open(options["path"], os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        for _ in range(order["syncs"]):
            rest = memoryview(piece)
            while rest:
                rest = rest[os.write(descriptor, rest) :]
            os.fdatasync(descriptor)
        say(**meter.facts())
        os.close(descriptor)
        os.unlink(options["path"])


def socket_echo(options: Options) -> None:
    """Sends back what comes over a stream of TCP."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        say(port=server.getsockname()[1])
        stream, _ = server.accept()
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while found := stream.recv(65536):
            stream.sendall(found)


def socket_pinger(options: Options) -> None:
    """Order ``count``: so many records there and back over a stream of TCP, one after the other."""
    with socket.create_connection(("127.0.0.1", options["port"])) as stream:
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        say(ready=True)
        for order in orders():
            meter = Meter()
            times = []
            for _ in range(order["count"]):
                sent = time.monotonic_ns()
                stream.sendall(stamped())
                left = RECORD_BYTES
                while left:
                    left -= len(stream.recv(left)) or sys.exit("the echo has ended")
                times.append(time.monotonic_ns() - sent)
            facts = meter.facts()
            say(**facts, **quantiles(times, (facts["end"] - facts["start"]) / 1e9))


ROLES: dict[str, Callable[[Options], None]] = {
    each.__name__: each
    for each in (
        publisher,
        proxy,
        subscriber,
        paced_publisher,
        timing_subscriber,
        writer,
        socket_echo,
        socket_pinger,
    )
}

if __name__ == "__main__":
    tether()
    ROLES[sys.argv[1]](json.loads(sys.argv[2]))
