"""Thousands of clients of a shared map in one process: ``python -m benchmarks.map_clients_members hold OPTIONS``.

Each client is chappe's own core with connections of its own. They speak ZeroMQ's transport (ZMTP 3.0, without keys) on
plain sockets: two descriptors a server, where a socket of ZeroMQ takes a further one, and no thread beside this one, so
that what is measured at the server is not disturbed by what its clients cost.
"""

from __future__ import annotations

import errno
import heapq
import json
import selectors
import socket
import sys
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

from benchmarks.link import Crowd, Meter, orders, say, tether
from chappe import SharedMap
from chappe.core import Dial, Send, Subscribe
from chappe.kv.chp import messages as chp
from chappe.kv.chp.client import MapClientCore
from chappe.kv.chp.stream import MARK
from chappe.runtime.driver import SYSTEM_CLOCK

MEMBERS: Final = "benchmarks.map_clients_members"
JOINING_MAX: Final = 200  # clients that connect at once, of each holder: a kernel lets few wait to be accepted
AGAIN_S: Final = (
    3.0  # a connection that ended is tried again; ZeroMQ does so each second, but here are thousands in a thread
)
TICK_S: Final = 0.05
TIMERS_S: Final = 0.25  # how often all clients' timers are looked at
JOIN_S: Final = 300.0
_GREETING: Final = b"\xff" + bytes(8) + b"\x7f" + b"\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32)


def _frame(payload: bytes, flags: int) -> bytes:
    if len(payload) < 256:
        return bytes((flags, len(payload))) + payload
    return bytes((flags | 2,)) + len(payload).to_bytes(8, "big") + payload


def _ready(kind: bytes) -> bytes:
    properties = b"\x0bSocket-Type" + len(kind).to_bytes(4, "big") + kind
    return _frame(b"\x05READY" + properties, 4)


class Line:
    """One connection: the messages that come over it are handed on; it is made again when it ends."""

    def __init__(self, crowd: Holder, client: Client, place: int, port: int, kind: bytes) -> None:
        self.client = client
        self.kind = kind
        self.up = False
        self._crowd = crowd
        self._place = place
        self._port = port
        self._socket: socket.socket | None = None
        self._rest = b""
        self._greeted = False
        self._frames: list[bytes] = []
        self._alone = b""  # what came together, and may be one message
        self._unsent: list[bytes] = []
        self.prefixes: list[bytes] = []

    def connect(self) -> None:
        """Begin to connect."""
        self._socket = made = socket.socket()
        made.setblocking(False)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._greeted = False
        self._rest = b""
        self._frames = []
        code = made.connect_ex(("127.0.0.1", self._port))
        if code not in (0, errno.EINPROGRESS):
            self.lose()
            return
        self._crowd.selector.register(made, selectors.EVENT_WRITE, self)

    def close(self) -> None:
        """End the connection."""
        if self._socket is not None:
            if self._socket in self._crowd.selector.get_map():
                self._crowd.selector.unregister(self._socket)
            self._socket.close()
        self._socket = None
        self.up = False

    def renew(self) -> None:
        """End the connection, forget what was to go over it, and begin another one."""
        self.close()
        self._unsent.clear()
        self.connect()

    def lose(self) -> None:
        """It ended, or could not be made."""
        self.close()
        self._crowd.lost(self)

    def ready(self, mask: int) -> None:
        """Something has come, or it is connected."""
        if self._socket is None:  # ended by what came to another line just before
            return
        if mask & selectors.EVENT_WRITE:
            if self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
                self.lose()
                return
            self._crowd.selector.modify(self._socket, selectors.EVENT_READ, self)
            self._write(_GREETING + _ready(self.kind))
            return
        try:
            piece = self._socket.recv(262_144)
        except BlockingIOError:
            return
        except OSError:
            piece = b""
        if not piece:
            self.lose()
            return
        if self.kind == b"SUB" and self.up and not self._rest and not self._frames:
            if piece == self._crowd.last[0]:  # a heartbeat, as others have it
                self.client.heard(self._place, self.kind, self._crowd.last[1])
                return
            self._alone = piece
        self._rest += piece
        if not self._greeted:
            if len(self._rest) < 64:
                return
            self._rest = self._rest[64:]
            self._greeted = True
        self._parse()

    def _parse(self) -> None:
        data, at, end = self._rest, 0, len(self._rest)
        while end - at >= 2:
            flags = data[at]
            if flags & 2:
                if end - at < 9:
                    break
                size, begin = int.from_bytes(data[at + 1 : at + 9], "big"), at + 9
            else:
                size, begin = data[at + 1], at + 2
            if end - begin < size:
                break
            payload, at = data[begin : begin + size], begin + size
            if flags & 4:
                self._command(payload)
                continue
            self._frames.append(payload)
            if not flags & 1:
                frames, self._frames = self._frames, []
                if self._alone and at == end:
                    self._crowd.last = self._alone, frames
                self._alone = b""
                self.client.heard(self._place, self.kind, frames)
                if self._socket is None:
                    return
        self._rest = data[at:]

    def _command(self, payload: bytes) -> None:
        if payload.startswith(b"\x05READY"):
            self.up = True
            waiting = [_frame(b"\1" + each, 0) for each in self.prefixes] if self.kind == b"SUB" else self._unsent
            self._unsent = []
            self._write(b"".join(waiting))
        elif payload.startswith(b"\x04PING"):
            self._write(_frame(b"\x04PONG" + payload[7:], 4))

    def send(self, frames: Sequence[bytes]) -> None:
        """Send a message, or keep it until it is connected."""
        last = len(frames) - 1
        encoded = b"".join([_frame(each, int(number < last)) for number, each in enumerate(frames)])
        if self.up:
            self._write(encoded)
        else:
            self._unsent.append(encoded)

    def listen(self, prefix: bytes, on: bool) -> None:
        """Subscribe, or no longer."""
        (self.prefixes.append if on else self.prefixes.remove)(prefix)
        if self.up:
            self._write(_frame((b"\1" if on else b"\0") + prefix, 0))

    def _write(self, data: bytes) -> None:
        if self._socket is None or not data:
            return
        try:
            if self._socket.send(data) != len(data):
                sys.exit("a server does not read what a client says")
        except OSError:
            self.lose()


class Client:
    """A core, and its connections to each server."""

    def __init__(self, crowd: Holder, number: int, ports: Sequence[int]) -> None:
        self._crowd = crowd
        session = chp.session_of(number.to_bytes(chp.SESSION_BYTES, "big"))
        self.core = MapClientCore([f"127.0.0.1:{port}" for port in ports], (b"",), session, clock=SYSTEM_CLOCK)
        self.lines = {
            (place, kind): Line(crowd, self, place, port + offset, kind)
            for place, port in enumerate(ports)
            for kind, offset in ((b"DEALER", 0), (b"SUB", 1))
        }

    def start(self) -> None:
        """Connect, and begin."""
        self.act(self.core.start(time.monotonic()))
        for each in self.lines.values():
            each.connect()

    @property
    def connected(self) -> bool:
        """Whether some server is reached by all that it takes."""
        up = [each.up for each in self.lines.values()]
        return any(one and two for one, two in zip(up[::2], up[1::2], strict=True))

    def heard(self, place: int, kind: bytes, frames: list[bytes]) -> None:
        """A server has said something."""
        now = time.monotonic()
        if kind == b"SUB":
            self._crowd.beats += 1
            self.act(self.core.handle_message(place, frames, now))
        else:
            self._crowd.messages += 1
            self._crowd.plain += frames[0] != MARK
            self.act(self.core.handle_answer(place, frames, now))

    def timeout(self, now: float) -> None:
        """Do what is due."""
        if self.core.next_timeout() <= now:
            self.act(self.core.handle_timeout(now))

    def act(self, actions: list[Any]) -> None:
        """Carry out actions, and what follows from them."""
        for action in [*actions, *self.core.flush(time.monotonic())]:
            if isinstance(action, Send):
                self.lines[action.to, b"DEALER"].send(action.message)
            elif isinstance(action, Subscribe):
                self.lines[action.to, b"SUB"].listen(action.prefix, action.on)
            elif isinstance(action, Dial):
                self.lines[action.link, b"DEALER"].renew()
            else:
                self._crowd.told[type(getattr(action, "event", action)).__name__] += 1


class Holder:
    """All clients of this process."""

    def __init__(self, first: int, count: int, ports: Sequence[int]) -> None:
        self.selector = selectors.EpollSelector()
        self.messages = self.beats = 0
        self.plain = 0  # messages to clients that took the server for one of the Guide's
        self.told: Counter[str] = Counter()
        self.last: tuple[bytes, list[bytes]] = (b"", [])  # what was published last, and came to one client by itself
        self._joining: list[Client] = []
        self._again: list[tuple[float, int, Line]] = []
        self._calls = 0
        self.clients: list[Client] = []
        self._waiting = [Client(self, first + number, ports) for number in range(count)]
        self.count = count
        self.servers = [f"127.0.0.1:{port}" for port in ports]
        self._tick_at = 0.0

    def lost(self, line: Line) -> None:
        """It is to be made again."""
        self._calls += 1
        heapq.heappush(self._again, (time.monotonic() + AGAIN_S, self._calls, line))

    def turn(self) -> None:
        """Do what is to be done now."""
        now = time.monotonic()
        while self._again and self._again[0][0] <= now:
            heapq.heappop(self._again)[2].connect()
        if self._waiting:
            self._joining = [each for each in self._joining if not each.connected]
            while self._waiting and len(self._joining) < JOINING_MAX:
                client = self._waiting.pop()
                self.clients.append(client)
                self._joining.append(client)
                client.start()
        for key, mask in self.selector.select(TICK_S):
            key.data.ready(mask)
        if now >= self._tick_at:
            self._tick_at = now + TIMERS_S
            for each in self.clients:
                each.timeout(now)

    def following(self, place: int | None = None) -> int:
        """How many follow a server, or that one."""
        servers = [each.core.server for each in self.clients]
        return len(servers) - servers.count(None) if place is None else servers.count(self.servers[place])

    def having(self, key: str, value: bytes) -> int:
        """How many have a value."""
        count = 0
        for each in self.clients:
            entry = each.core.engine.find(key)
            count += entry is not None and entry.value[0] == value  # type: ignore[index]
        return count

    def facts(self, meter: Meter) -> dict[str, Any]:
        """What has happened since this was asked last."""
        told = {
            **meter.facts(), "count": self.count, "following": self.following(), "messages": self.messages,
            "plain": self.plain, "beats": self.beats, "told": dict(self.told),
        }  # fmt: skip
        self.messages = self.plain = self.beats = 0
        self.told.clear()
        return told


def hold(options: dict[str, Any]) -> None:
    """Clients that follow; each order waits for something, or for some seconds, and is answered with what happened."""
    reader = selectors.DefaultSelector()
    reader.register(sys.stdin, selectors.EVENT_READ)
    holder = Holder(options["first"], options["count"], options["ports"])
    order: dict[str, Any] | None = {"until": "following", "seconds": options.get("seconds", JOIN_S)}
    meter, began, seen = Meter(), time.monotonic(), 0.0
    while True:
        holder.turn()
        now = time.monotonic()
        if order is None:
            if reader.select(0):
                line = sys.stdin.readline()
                if not line:
                    return
                order = json.loads(line)
                meter, began = Meter(), now
            continue
        if now < seen + TICK_S:
            continue
        seen = now
        done = now > began + order["seconds"]
        if order.get("until") == "following":
            done = done or holder.following() == holder.count
        elif order.get("until") == "server":
            done = done or holder.following(order["server"]) == holder.count
        elif order.get("until") == "value":
            done = done or holder.having(order["key"], order["value"].encode()) == holder.count
        if done:
            say(**holder.facts(meter), having=holder.having(order.get("key", ""), order.get("value", "").encode()))
            order = None


def maps(options: dict[str, Any]) -> None:
    """Maps as users make them, in one process; each order is answered with what they take."""
    crowd, meter = Crowd(), Meter()
    made = [SharedMap(f"127.0.0.1:{options['port']}") for _ in range(options["count"])]
    say(**crowd.facts(len(made), meter))
    for order in orders():
        say(**crowd.idle(len(made), order["seconds"]))


if __name__ == "__main__":
    tether()
    {"hold": hold, "maps": maps}[sys.argv[1]](json.loads(sys.argv[2]))
