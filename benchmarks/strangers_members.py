"""Listeners, who uses them, and strangers: ``python -m benchmarks.strangers_members ROLE OPTIONS``; see ``link``."""

from __future__ import annotations

import json
import os
import resource
import socket
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.link import orders, say, tether
from chappe import Endpoint, Keys, MapServer, Producer, SharedMap, Store, Tower

LONG_S = 120.0
CONNECT_S = 5.0
AT_ONCE = 16  # connections that are being made at a time
NONSENSE_BYTES = 1_024
Options = dict[str, Any]


def _more_descriptors() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def log(options: Options) -> None:
    """A tower and a store."""
    _more_descriptors()
    home = options["directory"]
    with Tower("127.0.0.1:0") as tower, Store(home, tower=tower.address):
        say(address=tower.address, ports=_listening())
        sys.stdin.read()


def keys(options: Options) -> None:
    """A tower and a store that have keys."""
    from chappe.api import permissions

    _more_descriptors()
    home = Path(options["directory"]) / "keys"
    permissions.init(home, "hub", "server")
    permissions.add(home, "all", "member")
    hub = Keys(home / "hub")
    with Tower("127.0.0.1:0", security=hub) as tower, Store(home / "kept", tower=tower.address, security=hub):
        say(address=tower.address, ports=_listening(), identity=str(home / "all"))
        sys.stdin.read()


def map(options: Options) -> None:
    """A map server."""
    _more_descriptors()
    with MapServer("127.0.0.1:0") as made:
        say(address=made.address, ports=_listening())
        sys.stdin.read()


def mesh(options: Options) -> None:
    """An endpoint."""
    _more_descriptors()
    with Endpoint() as made:
        say(address=f"127.0.0.1:{made.listen()}", ports=_listening())
        sys.stdin.read()


def web(options: Options) -> None:
    """The WebSocket face of an endpoint."""
    from chappe.web.server import WebSocketServer

    _more_descriptors()
    with Endpoint() as made, WebSocketServer(made) as server:
        say(address=server.url, ports=[server.port])
        sys.stdin.read()


def user(options: Options) -> None:
    """Each order: a new member does one thing with a listener of that kind, and says how long that took."""
    kind, address = options["kind"], options["address"]
    if options["identity"] is not None:
        os.environ["CHAPPE_IDENTITY"] = options["identity"]
    say(ready=True)
    for _ in orders():
        began = time.monotonic()
        USES[kind](address)
        say(ms=1000 * (time.monotonic() - began))


def _use_log(address: str) -> None:
    with Producer(tower=address) as producer:
        producer.send(b"value", topic="strangers")
        producer.flush(LONG_S)


def _use_map(address: str) -> None:
    with SharedMap(address, timeout=LONG_S) as shared:
        shared["key"] = b"value"


def _use_mesh(address: str) -> None:
    host, _, port = address.rpartition(":")
    with Endpoint() as made:
        made.peer(host, int(port), timeout=LONG_S)


def _use_web(address: str) -> None:
    from websockets.sync.client import connect

    with connect(address, open_timeout=LONG_S) as client:
        client.send("[]")
        client.recv(LONG_S)


USES: dict[str, Callable[[str], None]] = {
    "log": _use_log,
    "keys": _use_log,
    "map": _use_map,
    "mesh": _use_mesh,
    "web": _use_web,
}


def strangers(options: Options) -> None:
    """Connects ``count`` times, the ports by turns, says nothing or nonsense, and leaves with the next order."""
    _more_descriptors()
    say(ready=True)
    for order in orders():
        ports, nonsense = order["ports"], order["nonsense"]

        def come(number: int, ports: list[int] = ports, nonsense: bool = nonsense) -> socket.socket | None:
            try:
                made = socket.create_connection(("127.0.0.1", ports[number % len(ports)]), CONNECT_S)
                if nonsense:
                    made.sendall(os.urandom(NONSENSE_BYTES))
                return made
            except OSError:
                return None

        with ThreadPoolExecutor(AT_ONCE) as pool:
            made = [each for each in pool.map(come, range(order["count"])) if each is not None]
        say(connected=len(made))
        next(orders())
        for each in made:
            each.close()
        say(left=True)


def _listening() -> list[int]:
    """The ports at which this process listens; Linux only."""
    own = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            own.add(os.readlink(f"/proc/self/fd/{name}"))
        except FileNotFoundError:
            continue
    with open("/proc/self/net/tcp") as table:
        rows = [line.split() for line in list(table)[1:]]
    return sorted(int(row[1].rpartition(":")[2], 16) for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in own)


ROLES: dict[str, Callable[[Options], None]] = {
    "log": log,
    "keys": keys,
    "map": map,
    "mesh": mesh,
    "web": web,
    "user": user,
    "strangers": strangers,
}

if __name__ == "__main__":
    tether()
    ROLES[sys.argv[1]](json.loads(sys.argv[2]))
