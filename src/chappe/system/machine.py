"""The machine of members, apart from the clock: sockets, selectors, threads, syncs and a place for files.

A member takes it from the machine that was current when the member was made. That is the operating system, unless a
test has put another one in its place (``chappe.testing``).
"""

from __future__ import annotations

import os
import selectors
import socket
import sys
import threading
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

if TYPE_CHECKING:
    import zmq

_ONE: Final = (1).to_bytes(8, sys.byteorder)
T = TypeVar("T")
Target = tuple[int, Any]  # family and socket address


class Latch(Protocol):
    """A wait of one thread, used once."""

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """Wait for ``release``, at most ``timeout`` seconds."""

    def release(self) -> None:
        """End the wait, now or when it comes."""


class Event(Protocol):
    def is_set(self) -> bool: ...

    def set(self) -> None: ...

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for ``set``, at most ``timeout`` seconds; return False if the time is up."""


@cache  # one for all members of the process
def _eventfd_calls() -> tuple[Callable[[int, int], object], Callable[[int], object]] | None:
    """Return calls that write and read an eventfd without releasing the GIL, which those of ``os`` release.

    The waking thread, and often the woken one, holds a lock. Threads that ran just then would all contend for it, and
    each would cost two more context switches. None where the C library has no such calls.
    """
    import ctypes  # where nobody waits it is not needed

    try:
        library = ctypes.PyDLL(None)
        write, read = library.eventfd_write, library.eventfd_read
    except (OSError, AttributeError):
        return None
    write.argtypes = (ctypes.c_int, ctypes.c_uint64)
    read.argtypes = (ctypes.c_int, ctypes.c_void_p)
    counted = ctypes.create_string_buffer(8)  # of no interest
    return write, lambda descriptor: read(descriptor, counted)


class Wakeup:
    """A descriptor that is readable from ``set`` to ``clear``. One descriptor on Linux, two elsewhere."""

    def __init__(self) -> None:
        self._calls: tuple[Callable[[int, int], object], Callable[[int], object]] | None = None
        if sys.platform == "linux":
            self._read = self._write = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
            self._calls = _eventfd_calls()
        else:
            self._read, self._write = os.pipe()
            os.set_blocking(self._read, False)
            os.set_blocking(self._write, False)

    def fileno(self) -> int:
        """The descriptor to be waited on."""
        return self._read

    def set(self) -> None:
        """Make it readable; not after ``close``."""
        if self._calls is not None:
            self._calls[0](self._write, 1)  # full: it is readable
            return
        try:
            os.write(self._write, _ONE)
        except OSError:
            pass  # full: it is readable

    def clear(self) -> None:
        """Make it readable no more."""
        if self._calls is not None:
            self._calls[1](self._read)
            return
        try:
            os.read(self._read, 4096)
        except OSError:
            pass

    def close(self) -> None:
        """Give the descriptors back; safe to call twice."""
        for each in {self._read, self._write} - {-1}:
            os.close(each)
        self._read = self._write = -1


class Machine:
    """The operating system. Another machine is a subclass that replaces all of it."""

    driver: Any = None  # a ``runtime.loop.Driver``; None: the process's loop, which has a thread
    syncs = True  # files are to last

    # -- waiting ---------------------------------------------------------------------------------------

    def selector(self) -> selectors.BaseSelector:
        return selectors.DefaultSelector()

    def wakeup(self) -> Wakeup:
        return Wakeup()

    def latch(self) -> Latch:
        made = threading.Lock()  # cheaper than an Event, of which every wait would need one
        made.acquire()
        return made

    def event(self) -> Event:
        return threading.Event()

    def watched(self) -> None:
        """An event loop joins a member."""

    # -- threads ---------------------------------------------------------------------------------------

    def thread(self, target: Callable[[], object], name: str) -> threading.Thread:
        """A new thread that does not keep the program from ending; not started."""
        return threading.Thread(target=target, name=name, daemon=True)

    def pool(self, pool: Any) -> Any:
        """Return the pool that runs slow work; a simulated machine replaces ``runtime.worker.Pool``."""
        return pool

    # -- sockets ---------------------------------------------------------------------------------------

    def stream(self, family: int) -> socket.socket:
        """A new socket of TCP."""
        return socket.socket(family, socket.SOCK_STREAM)

    def listen(self, host: str, port: int, backlog: int) -> socket.socket:
        """A socket of TCP that listens; ``*`` or nothing is every address of this machine."""
        everywhere = host in ("*", "")
        dual = everywhere and socket.has_dualstack_ipv6()
        family = socket.AF_INET6 if dual or ":" in host else socket.AF_INET
        return socket.create_server(
            ("" if everywhere else host, port), family=family, backlog=backlog, dualstack_ipv6=dual
        )

    def look_up(self, host: str, port: int) -> list[Target]:
        """The addresses of a name; may take long. Raises OSError or UnicodeError."""
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        return [(family, address) for family, _, _, _, address in found]

    def zeromq(self, kind: int, sockets_max: int) -> zmq.Socket[bytes]:
        """A new socket of ZeroMQ. Raises ZMQError."""
        import zmq  # not where only Parquet is read

        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context.instance()
        context.set(zmq.MAX_SOCKETS, sockets_max)  # counts before the first socket is made
        return context.socket(kind)

    def files(self, system: T) -> T:
        """The calls for files: ``system`` makes those of the operating system (``storage.segments.files``)."""
        return system

    # -- the rest --------------------------------------------------------------------------------------

    def data_path(self) -> Path:
        from chappe.system.places import users

        return users("data")

    def owns(self, member: object) -> None: ...


SYSTEM: Final = Machine()
_current: Machine = SYSTEM
_outside: frozenset[int] = frozenset()  # threads that stay on the operating system
_driving = threading.local()  # the machine of the member that a thread drives for others


def current() -> Machine:
    """The machine for what is made now, by this thread."""
    if _current is SYSTEM:
        return SYSTEM
    driven: Machine | None = getattr(_driving, "machine", None)
    return driven or (SYSTEM if threading.get_ident() in _outside else _current)


def use(machine: Machine, outside: frozenset[int] = frozenset()) -> Machine:
    """Make new members run on another machine; returns the one before.

    Args:
        outside: Threads that stay on the operating system.
    """
    global _current, _outside
    before, _current, _outside = _current, machine, outside
    return before


def outside() -> frozenset[int]:
    """The threads that stay on the operating system while another machine is used."""
    return _outside


def drive(machine: Machine | None) -> Machine | None:
    """This thread drives a member of that machine, or no longer; returns the one before."""
    before: Machine | None = getattr(_driving, "machine", None)
    _driving.machine = machine
    return before
