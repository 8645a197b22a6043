"""Addresses as users write them, and the sockets that they become."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import zmq

from chappe.defaults import FORWARDER_PORT, TOWER_HOST, TOWER_PUB_PORT, TOWER_SUB_PORT
from chappe.errors import AddressInUse, UsageError
from chappe.system import time
from chappe.transports.gate import Gate

# What ZeroMQ dials; for anything else it has no sentence. One that only listens may also say ``*``, or port 0.
_NAMES: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,63}")
_DIALLED: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9.%;_-]*", re.ASCII)

CLOSES_S: Final = 1.0  # a port where we listened may be in use so long after its socket was closed
_ours: Final[set[tuple[str, int]]] = set()  # where this process has listened: addresses that it was told


@dataclass(frozen=True, slots=True)
class TowerAddress:
    """A tower: nodes publish beacons to ``sub_port`` and hear of others from ``pub_port``."""

    host: str
    sub_port: int
    pub_port: int
    name: str = ""  # of its identity, where that is not clear

    @classmethod
    def parse(cls, text: str) -> TowerAddress:
        """Parse ``[NAME@]HOST[:SUBPORT[:PUBPORT]]``; the original's defaults, PUBPORT is SUBPORT + 1. 0: any free port.
        Raises UsageError: it is not of that form.
        """
        if not isinstance(text, str):
            raise cls._refused(text)
        if not text.strip():
            raise UsageError("the address of a tower is empty: HOST:PORT or HOST:PORT:PORT is wanted")
        name, address = named(text.strip().removeprefix("tcp://"))
        parts = address.split(":")
        host, *ports = parts if len(parts) <= 3 else [text]
        try:
            numbers = [int(port) for port in ports]
        except ValueError:
            numbers = [-1]
        if not numbers:
            numbers = [TOWER_SUB_PORT, TOWER_PUB_PORT]
        if len(numbers) == 1:
            numbers.append(numbers[0] + 1 if numbers[0] else 0)
        is_host = host.isprintable() and not any(c in host for c in " /:")
        if not is_host or not all(0 <= number < 65536 for number in numbers):
            raise cls._refused(text)
        return cls(host or TOWER_HOST, numbers[0], numbers[1], name)

    @classmethod
    def parse_many(cls, text: str) -> list[TowerAddress]:
        """Parse addresses to dial, separated by commas. Raises UsageError also for those that can only listen."""
        found: list[TowerAddress] = []
        for each in text.split(",") if isinstance(text, str) else [text]:
            found.append(made := cls.parse(each))
            if not (is_dialled(made.host) and made.sub_port and made.pub_port):
                raise cls._refused(each)
        return found

    @staticmethod
    def _refused(text: object) -> UsageError:
        return UsageError(f"{text!a} is not the address of a tower: HOST:PORT or HOST:PORT:PORT is wanted")

    def __str__(self) -> str:
        return f"{self.name}{'@' if self.name else ''}{self.host}:{self.sub_port}:{self.pub_port}"


@dataclass(frozen=True, slots=True)
class ForwarderAddress:
    """A forwarder: members publish to ``in_port``, listen at ``out_port`` and ask at ``query_port``."""

    host: str
    in_port: int
    out_port: int
    query_port: int
    name: str = ""  # of its identity, where that is not clear

    @classmethod
    def parse(cls, text: str) -> ForwarderAddress:
        """Parse ``[NAME@]HOST[:PORT]``, where the other two ports follow, or ``HOST:PORT:PORT:PORT``. 0: any free port.
        Raises UsageError: it is not of that form.
        """
        if not isinstance(text, str):
            raise cls._refused(text)
        name, address = named(text.strip().removeprefix("tcp://"))
        host, *ports = address.split(":")
        numbers = [int(each) if each.isascii() and each.isdecimal() else -1 for each in ports] or [FORWARDER_PORT]
        if len(numbers) == 1:
            numbers = [numbers[0], numbers[0] + 1, numbers[0] + 2] if numbers[0] else [0, 0, 0]
        is_host = host.isprintable() and not any(each in host for each in " /")
        if not text.strip() or not is_host or len(numbers) != 3 or not all(0 <= each < 65536 for each in numbers):
            raise cls._refused(text)
        return cls(host or TOWER_HOST, numbers[0], numbers[1], numbers[2], name)

    @classmethod
    def parse_many(cls, text: str | Sequence[str]) -> list[ForwarderAddress]:
        """Parse several that are dialled, separated by commas or in a list; else like ``TowerAddress.parse_many``."""
        found: list[ForwarderAddress] = []
        for each in text.split(",") if isinstance(text, str) else text if isinstance(text, Iterable) else [text]:
            found.append(made := cls.parse(each))
            if not (is_dialled(made.host) and made.in_port and made.out_port and made.query_port):
                raise cls._refused(each)
        return found

    @staticmethod
    def _refused(text: object) -> UsageError:
        return UsageError(
            f"{text!a} is not the address of a forwarder: HOST, HOST:PORT or HOST:PORT:PORT:PORT is wanted"
        )

    def __str__(self) -> str:
        first = self.in_port
        follow = (self.out_port, self.query_port) == (first + 1, first + 2)
        said = f"{self.host}:{first}" if follow else f"{self.host}:{first}:{self.out_port}:{self.query_port}"
        return f"{self.name}@{said}" if self.name else said


def named(text: str) -> tuple[str, str]:
    """Split the name of an identity before an ``@`` from the rest; an invalid name stays in the rest."""
    name, at, rest = text.partition("@")
    return (name, rest) if at and _NAMES.fullmatch(name) else ("", text)


def is_dialled(host: str) -> bool:
    """Return True if ZeroMQ can connect to a host of this name or address; listening also takes ``*``."""
    return _DIALLED.fullmatch(host) is not None


def bind(socket: zmq.Socket[bytes], host: str, port: int = 0, gate: Gate | None = None) -> int:
    """Bind to ``host``; a ``gate`` decides who is let in. Return the port.

    Raises AddressInUse or UsageError with what to do.
    """
    if not host.isprintable():  # ZeroMQ takes UTF-8 only
        raise UsageError(f"{host!a} is not a name or address of this machine")
    if gate is not None:
        gate.listen(socket)
    try:
        _bind(socket, host, port)
    except zmq.ZMQError as error:
        if error.errno == zmq.EADDRINUSE:
            raise AddressInUse(
                f"port {port} on {host} is in use: stop the program that listens there, or choose another port"
            ) from None
        raise UsageError(f"cannot listen on {host}:{port or '*'}: {error.strerror}") from None
    endpoint: bytes = socket.getsockopt(zmq.LAST_ENDPOINT)  # type: ignore[assignment]
    port = int(endpoint.decode().rstrip("\0").rpartition(":")[2])
    if gate is not None:
        gate.listens(socket, port)
    return port


def _bind(socket: zmq.Socket[bytes], host: str, port: int) -> None:
    """Bind; at an earlier address of ours, wait until ZeroMQ's own thread has released the closed socket."""
    patient_until = time.monotonic() + CLOSES_S if (host, port) in _ours else -math.inf
    while True:
        try:
            socket.bind(f"tcp://{host}:{port or '*'}")
        except zmq.ZMQError as error:
            if error.errno != zmq.EADDRINUSE or time.monotonic() >= patient_until:
                raise
            time.sleep(CLOSES_S / 100)
        else:
            if port:
                _ours.add((host, port))
            return


def reachable_host(listen: str) -> str:
    """The host that others use to reach a socket listening on ``listen``."""
    if listen not in ("*", "0.0.0.0", "::"):
        return listen
    import socket

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # sends nothing: it only asks which interface would be used
            return str(probe.getsockname()[0])
        except OSError:
            return "127.0.0.1"
