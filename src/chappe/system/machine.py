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
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from chappe.system import time

if TYPE_CHECKING:
    import zmq

ZAP: Final = "inproc://zeromq.zap.01"  # where ZeroMQ asks who may come in
LOOK_S: Final = 1.0  # between two looks of who is asked
DESCRIPTORS: Final = ("/proc/self/fd", "/dev/fd")  # of this process, on Linux and on macOS
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


@contextmanager
def doubled(descriptor: int) -> Iterator[socket.socket]:
    """Yield the socket behind a descriptor, which stays as it is.

    Other threads go on meanwhile: it may have ended, and something else, a file that is locked, say, may have its
    number. So nothing of it is kept in any case.

    Raises:
        OSError: It has ended, or is not a socket.
    """
    found = os.dup(descriptor)
    try:
        sock = socket.socket(fileno=found)
        try:
            yield sock
        finally:
            sock.detach()
    finally:
        os.close(found)


Admit = Callable[[list[bytes]], list[bytes]]  # answers a request of ZAP (RFC 27)


class Machine:
    """The operating system. Another machine is a subclass that replaces all of it.

    Attributes:
        once: The things of which a process has one; a forked child begins without any.
    """

    once: dict[object, Any]

    def __init__(self) -> None:
        self.once = {}

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

    def admitting(self, admit: Admit, look: Callable[[], None]) -> zmq.Context[zmq.Socket[bytes]]:
        """Return a context of sockets with keys. Raises ZMQError.

        Its thread asks ``admit`` who may come in, and calls ``look`` once a second.
        """
        import zmq

        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        context.set(zmq.MAX_SOCKETS, 16_384)
        asked: zmq.Socket[bytes] = context.socket(zmq.REP)
        asked.setsockopt(zmq.LINGER, 0)
        asked.bind(ZAP)

        def run() -> None:
            look_at = time.monotonic() + LOOK_S
            while True:
                if asked.poll(round(1000 * min(max(0.0, look_at - time.monotonic()), LOOK_S))):
                    asked.send_multipart(admit(asked.recv_multipart()))
                now = time.monotonic()
                if not now < look_at <= now + LOOK_S:  # a test may have put the clock forward and back
                    look_at = now + LOOK_S
                    look()

        threading.Thread(target=run, name="chappe-gate", daemon=True).start()
        return context

    def ends(self, descriptor: int) -> Any:
        """Return the addresses of both ends of a connection, the other one first; None if it has ended."""
        try:
            with doubled(descriptor) as sock:
                return sock.getpeername(), sock.getsockname()
        except OSError:
            return None

    def shut_down(self, descriptor: int) -> bool:
        """End a connection; return whether it was there."""
        try:
            with doubled(descriptor) as sock:
                sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            return False
        return True

    def cut(self, ports: set[int]) -> None:
        """End all connections that were accepted at these ports of this process."""
        home = next(each for each in DESCRIPTORS if os.path.isdir(each))
        for each in os.listdir(home):
            try:
                with doubled(int(each)) as sock:
                    if sock.family in (socket.AF_INET, socket.AF_INET6) and sock.getsockname()[1] in ports:
                        sock.getpeername()  # one that listens has none
                        sock.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue  # it has ended, or is no connection

    def files(self, system: T) -> T:
        """The calls for files: ``system`` makes those of the operating system (``storage.segments.files``)."""
        return system

    # -- the rest --------------------------------------------------------------------------------------

    def data_path(self) -> Path:
        from chappe.system.places import users

        return users("data")

    def owns(self, member: object) -> None: ...


SYSTEM: Final = Machine()
_parents: Final[list[dict[object, Any]]] = []  # nothing of theirs may run here, nor be thrown away


def _forked() -> None:
    _parents.append(SYSTEM.once)
    SYSTEM.once = {}


os.register_at_fork(after_in_child=_forked)
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
    """Make new members run on ``machine``; return the former one. ``outside``: threads that stay on the system."""
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
