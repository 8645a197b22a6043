"""Chooses among several addresses of a name, of which ZeroMQ dials the first one whether it answers or not.

An address that accepts a connection wins. If none does yet, a socket that may have several peers dials all of
them; a socket that distributes its messages gets the name, as ZeroMQ resolves it.
"""

from __future__ import annotations

import selectors
import socket
from collections.abc import Sequence
from contextlib import ExitStack
from ipaddress import ip_address
from typing import Final

import zmq

from chappe.system import machine, time
from chappe.system.machine import Target

PROBE_S: Final = 0.25  # time for all addresses to accept, in parallel
ADDRESSES_MAX: Final = 16  # of one name that are probed
_FANS: Final = (zmq.SUB, zmq.XPUB, zmq.PUB)  # with several connections these receive from, or send to, all


def connect(sock: zmq.Socket[bytes], endpoint: str) -> list[str]:
    """Connect to ``tcp://HOST:PORT``; return the connected endpoints. Raises ZMQError for an invalid address."""
    found = _found(endpoint)
    places = found if len(found) < 2 or sock.type in _FANS else [endpoint]
    for each in places:
        if each.startswith("tcp://["):
            sock.setsockopt(zmq.IPV6, 1)
        sock.connect(each)
    return places


def _found(endpoint: str) -> list[str]:
    """Return the endpoint itself, its host's address that answers, or all addresses if none does."""
    host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
    if machine.current() is not machine.SYSTEM or not port.isdecimal() or _is_address(host):
        return [endpoint]
    try:
        targets = machine.SYSTEM.look_up(host, int(port))[:ADDRESSES_MAX]
    except (OSError, UnicodeError):
        return [endpoint]  # ZeroMQ resolves it again on each attempt
    if len(targets) < 2 and all(family == socket.AF_INET for family, _ in targets):
        return [endpoint]
    found = _answering(targets)
    if found is not None:
        return [_literal(found)]
    return list(dict.fromkeys(map(_literal, targets)))


def _is_address(host: str) -> bool:
    try:
        ip_address(host.strip("[]").partition("%")[0])
    except ValueError:
        return host in ("", "*")
    return True


def _literal(target: Target) -> str:
    family, address = target
    return f"tcp://[{address[0]}]:{address[1]}" if family == socket.AF_INET6 else f"tcp://{address[0]}:{address[1]}"


def _answering(targets: Sequence[Target]) -> Target | None:
    end = time.monotonic() + PROBE_S
    with ExitStack() as opened:
        selector = opened.enter_context(selectors.DefaultSelector())
        for target in targets:
            try:
                probe = opened.enter_context(socket.socket(target[0], socket.SOCK_STREAM))
                probe.setblocking(False)
                probe.connect_ex(target[1])
                selector.register(probe, selectors.EVENT_WRITE, (probe, target))
            except OSError:
                continue  # no such address family here, or no route
        while selector.get_map() and (left := end - time.monotonic()) > 0:
            for key, _ in selector.select(left):
                probe, target = key.data
                if probe.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0:
                    found: Target = target
                    return found
                selector.unregister(probe)
    return None
