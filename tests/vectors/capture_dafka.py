"""Captures what the original programs of Dafka say to each other, in the form of ``dafka/session.json``.

CHAPPE_DAFKA=/path/to/bin python -m tests.vectors.capture_dafka session.json

A tower, a store, a consumer that reads from the beginning, a producer of three records and a second consumer run in a
network namespace of their own (``unshare``, ``ip``; no privileges are needed), so nothing else is on its loopback. All
TCP connections there are listened to, put together again and cut into the frames of ZMTP. Nothing of chappe takes part:
neither in the session nor in reading it.
"""

from __future__ import annotations

import json
import os
import re
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

VARIABLE: Final = "CHAPPE_DAFKA"
INSIDE: Final = "CHAPPE_CAPTURE_INSIDE"
TOWER: Final = (5556, 5557)  # its XSUB and its XPUB
NETWORK: Final = (
    "ip link set lo up && ip link add d0 type bridge && ip addr add 10.77.0.1/24 dev d0 && ip link set d0 up"
)
GREETING_BYTES: Final = 64
MORE, LONG, COMMAND = 1, 2, 4
SYN, FIN, RST = 2, 1, 4
ALL: Final = 3  # every protocol (ETH_P_ALL)
STEP_S: Final = 2.0  # originals do not tell when they are connected
End = tuple[str, int]


@dataclass
class Stream:
    """The bytes of one direction, in order."""

    following: int = 0  # the next sequence number
    data: bytearray = field(default_factory=bytearray)
    arrivals: list[tuple[int, float]] = field(default_factory=list)  # how many bytes were there when
    later: dict[int, bytes] = field(default_factory=dict)  # segments that came too early

    def add(self, number: int, segment: bytes, at: float) -> None:
        """Take a segment; one that came before is passed over."""
        self.later[number] = segment
        while self.following in self.later:
            found = self.later.pop(self.following)
            self.following = (self.following + len(found)) % (1 << 32)
            self.data += found
        self.arrivals.append((len(self.data), at))

    def time_of(self, end: int) -> float:
        """When the first ``end`` bytes were there."""
        return next(at for length, at in self.arrivals if length >= end)


@dataclass
class Connection:
    """One TCP connection, from the one that dialled to the one that listened."""

    client: End
    server: End
    opened: float
    closed: float | None = None
    streams: dict[End, Stream] = field(default_factory=dict)


class Capture:
    """Listens to loopback until it is stopped."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ALL))
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 24)
        self._socket.bind(("lo", 0))
        self._socket.settimeout(0.1)
        self._began = time.monotonic()
        self._stopped = False
        self.connections: list[Connection] = []
        self.refused: dict[str, int] = {}
        self._open: dict[frozenset[End], Connection] = {}
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def stop(self) -> None:
        """End it; everything heard is there then."""
        self._stopped = True
        self._thread.join()

    def _run(self) -> None:
        while not self._stopped:
            try:
                packet, (_, _, kind, _, _) = self._socket.recvfrom(1 << 16)
            except TimeoutError:
                continue
            if kind != socket.PACKET_OUTGOING:  # loopback shows each packet twice
                self._take(packet[14:], time.monotonic() - self._began)

    def _take(self, packet: bytes, at: float) -> None:
        if packet[0] >> 4 != 4 or packet[9] != socket.IPPROTO_TCP:
            return
        tcp = packet[(packet[0] & 15) * 4 : int.from_bytes(packet[2:4])]
        source_port, port, number = struct.unpack_from(">HHI", tcp)
        flags, segment = tcp[13], tcp[(tcp[12] >> 4) * 4 :]
        source, target = (socket.inet_ntoa(packet[12:16]), source_port), (socket.inet_ntoa(packet[16:20]), port)
        pair = frozenset((source, target))
        if flags & SYN:
            if pair not in self._open:
                self._open[pair] = Connection(source, target, at)
                self.connections.append(self._open[pair])
            self._open[pair].streams[source] = Stream(number + 1)
            return
        connection = self._open.get(pair)
        if connection is None:
            return
        if flags & (FIN | RST):
            connection.closed = connection.closed or at
        if flags & RST and len(connection.streams) == 1:  # nobody listened
            self.connections.remove(self._open.pop(pair))
            self.refused[str(connection.server[1])] = self.refused.get(str(connection.server[1]), 0) + 1
        elif segment and source in connection.streams:
            connection.streams[source].add(number, segment, at)


def events_of(connection: Connection) -> list[dict[str, Any]]:
    """What both sides said, by time."""
    found = []
    for end, stream in connection.streams.items():
        direction = "client->server" if end == connection.client else "server->client"
        found += [{"t": round(at, 6), "dir": direction, **each} for at, each in _frames(stream)]
    return sorted(found, key=lambda each: each["t"])


def _frames(stream: Stream) -> list[tuple[float, dict[str, Any]]]:
    """Greeting, commands and messages of one direction (ZMTP 3.1, RFC 37); what is cut at the end is left out."""
    raw = bytes(stream.data)
    found: list[tuple[float, dict[str, Any]]] = []
    if len(raw) < GREETING_BYTES:
        return []
    greeting = {"version": f"{raw[10]}.{raw[11]}", "mechanism": raw[12:32].rstrip(b"\0").decode()}
    found.append((stream.time_of(GREETING_BYTES), {"kind": "greeting", **greeting, "hex": raw[:GREETING_BYTES].hex()}))
    parts: list[str] = []
    at = GREETING_BYTES
    while at + 2 <= len(raw):
        flags = raw[at]
        start = at + (9 if flags & LONG else 2)
        end = start + int.from_bytes(raw[at + 1 : start])
        if end > len(raw):
            break
        body, at = raw[start:end], end
        if flags & COMMAND:
            name = body[1 : 1 + body[0]].decode()
            command = {"kind": "command", "name": name, "hex": body.hex()}
            if name in ("SUBSCRIBE", "CANCEL"):
                command["subscription"] = body[1 + len(name) :].decode()
            found.append((stream.time_of(end), command))
            continue
        parts.append(body.hex())
        if not flags & MORE:
            found.append((stream.time_of(end), {"kind": "message", "frames": parts}))
            parts = []
    return found


def _socket_type(events: list[dict[str, Any]], direction: str) -> str:
    ready = (each["hex"] for each in events if each["dir"] == direction and each.get("name") == "READY")
    match = re.search(rb"Socket-Type\0\0\0.([A-Z]+)", bytes.fromhex(next(ready, "")), re.DOTALL)
    return match[1].decode() if match else "?"


def play(programs: Path, directory: Path) -> tuple[Capture, dict[str, tuple[float, float]]]:
    """Run the session; when each program was started, and when the next one."""
    (directory / "node.cfg").write_text('beacon\n    address = "127.0.0.1"\n')
    (directory / "store.cfg").write_text(f'beacon\n    address = "127.0.0.1"\nstore\n    db = "{directory}/db"\n')
    capture = Capture()
    steps = {
        "tower": ("dafka_towerd",),
        "store": ("dafka_stored", "-c", "store.cfg"),
        "consumer": ("dafka_console_consumer", "hello", "-c", "node.cfg", "--from-beginning"),
        "producer": ("dafka_console_producer", "hello", "-c", "node.cfg"),
        "second consumer": ("dafka_console_consumer", "hello", "-c", "node.cfg", "--from-beginning"),
    }
    running: list[subprocess.Popen[bytes]] = []
    times: dict[str, tuple[float, float]] = {}
    try:
        for name, (program, *options) in steps.items():
            began = time.monotonic() - capture._began
            command = [str(programs / program), *options]
            quiet = subprocess.DEVNULL
            running.append(subprocess.Popen(command, cwd=directory, stdin=subprocess.PIPE, stdout=quiet, stderr=quiet))
            time.sleep(STEP_S)
            if name == "producer":
                stdin = running[-1].stdin
                assert stdin is not None
                stdin.write(b"one\ntwo\nthree\n")
                stdin.flush()
                time.sleep(STEP_S)
            times[name] = (began, time.monotonic() - capture._began)
        time.sleep(STEP_S)
        ended = [name for name, each in zip(steps, running, strict=True) if each.poll() is not None]
        assert not ended, f"these programs have ended by themselves: {', '.join(ended)}"
    finally:
        for each in running:
            each.kill()
            each.wait()
        capture.stop()
    return capture, times


def described(capture: Capture, times: dict[str, tuple[float, float]]) -> dict[str, Any]:
    """The session as the file has it."""
    connections = []
    roles: dict[str, str] = {}
    ports: dict[str, list[str]] = {}
    for each in capture.connections:
        events = events_of(each)
        client, server = _socket_type(events, "client->server"), _socket_type(events, "server->client")
        beacon = "beacon " if each.server[1] in TOWER else ""
        for event in events:
            if event["kind"] == "message" and len(event["frames"]) == 4 and beacon:
                _, address, _, port = (bytes.fromhex(frame).decode() for frame in event["frames"])
                began = (name for name, (start, end) in times.items() if start <= event["t"] < end)
                roles.setdefault(address, next(began, "?"))
                ports.setdefault(port, [])
                ports[port] += [] if address in ports[port] else [address]
        connections.append({
            "socket_pair": f"{beacon}{client} -> {'tower ' if beacon else ''}{server}",
            "client": "{}:{}".format(*each.client),
            "server": "{}:{}".format(*each.server),
            "t_connect": round(each.opened, 6),
            "t_close": each.closed,
            "events": events,
        })  # fmt: skip
    about = (
        "Passive capture (AF_PACKET on lo of a network namespace, TCP reassembly, ZMTP parse) of the real C nodes by "
        "capture_dafka.py; t = seconds since capture start. One entry per TCP connection."
    )
    found = {"about": about, "roles": roles, "ports": ports}
    return {**found, "refused_connection_attempts_by_port": capture.refused, "connections": connections}


def main() -> None:
    """Capture a session into the file that is named."""
    if len(sys.argv) != 2 or VARIABLE not in os.environ:
        sys.exit(__doc__)
    if INSIDE not in os.environ:
        command = f"{NETWORK} && exec '{sys.executable}' -m tests.vectors.capture_dafka \"$0\""
        sys.exit(subprocess.call(["unshare", "-rn", "sh", "-c", command, sys.argv[1]], env={**os.environ, INSIDE: "1"}))
    with tempfile.TemporaryDirectory() as directory:
        found = described(*play(Path(os.environ[VARIABLE]).absolute(), Path(directory)))
    Path(sys.argv[1]).write_text(json.dumps(found, indent=1) + "\n")
    messages = sum(event["kind"] == "message" for each in found["connections"] for event in each["events"])
    print(f"captured {len(found['connections'])} connections with {messages} messages")


if __name__ == "__main__":
    main()
