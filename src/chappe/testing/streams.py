"""The TCP sockets of a test: bytes over the simulator's connections, with what members use of ``socket.socket``."""

from __future__ import annotations

import errno
import os
import socket
from collections import deque
from typing import Any, Final, cast

from chappe.sim.streams import PREFIX, StreamSide
from chappe.testing.ground import DELAY_S, FIRST_FILE, Socket, Station

UNREAD_MAX: Final = 16  # pieces that wait to be read; further ones wait on the way
_LENGTH: Final = bytes(PREFIX)  # the simulator's connections carry frames, of which the length is not looked at here
_CLOSED: Final = "the peer closed the connection"


def new_stream(host: Station) -> socket.socket:
    return cast(socket.socket, _Stream(host))


def new_listener(host: Station, port: int) -> socket.socket:
    return cast(socket.socket, _Listener(host, port))


def _port(number: int) -> int:
    """Return the port of a socket: one that dials has one of those that systems give away, by its file."""
    return number if number < FIRST_FILE else 32_768 + number % 28_232


def _error(code: int) -> OSError:
    return OSError(code, os.strerror(code))


class _Stream(Socket):
    """One end of a connection, also before there is one."""

    original = False

    def __init__(self, host: Station) -> None:
        super().__init__(host)
        self._side: StreamSide | None = None
        self._error = 0
        self._end: str | None = None  # why nothing more will come
        self._unread: deque[bytes] = deque()
        self._unsent = memoryview(b"")

    @property
    def frozen(self) -> bool:
        return self.host.paused

    @property
    def read_s(self) -> float:
        return self.host.read_s

    def fileno(self) -> int:
        return -1 if self.closed else self.number

    def setblocking(self, on: bool) -> None:
        pass  # it never blocks

    def setsockopt(self, level: int, option: int, value: int) -> None:
        pass  # what there is to choose is the network's

    def getsockopt(self, level: int, option: int) -> int:
        return self._error

    def getsockname(self) -> tuple[str, int]:
        return "127.0.0.1", _port(self.number)

    def getpeername(self) -> tuple[str, int]:
        if self._side is None:
            raise _error(errno.ENOTCONN)
        return "127.0.0.1", _port(self._side.address[1])

    def connect_ex(self, address: tuple[Any, ...]) -> int:
        names = [name for name, port in self.ground.streams.listeners if port == address[1]]
        self.ground.streams.dial(self, self.number, (names[0] if names else "", address[1]))
        return errno.EINPROGRESS

    def send(self, data: bytes | memoryview) -> int:
        if self._side is None or self._end is not None:
            raise _error(errno.EPIPE)
        if self._unsent:
            raise BlockingIOError
        self._unsent = memoryview(bytes(data))
        self.writable = False
        self._side.write()
        if self._unsent:
            self._side.note_clogged()
        return len(data)

    def recv_into(self, buffer: memoryview) -> int:
        size = 0
        was_full = len(self._unread) >= UNREAD_MAX
        while self._unread and size + len(self._unread[0]) <= len(buffer):
            piece = self._unread.popleft()
            buffer[size : size + len(piece)] = piece
            size += len(piece)
        self.readable = bool(self._unread) or self._end is not None
        if was_full and self._side is not None:
            self._side.resume()
        if size or self._end == _CLOSED:
            return size
        if self._end is not None:
            raise _error(errno.ECONNRESET)
        raise BlockingIOError

    def close(self) -> None:
        if not self.closed:
            self.leave()
            if self._side is not None and self._side.open:
                self._side.close()

    def kill(self) -> None:
        if not self.closed:
            self.leave()
            self.alive = False
            if self._side is not None:
                self.ground.streams.drop(self._side)

    def connected(self, dial: int, side: StreamSide) -> None:
        self._side = side
        if not self.ground.net.rough:
            side.delay_s = DELAY_S
        self.writable = True
        if self.closed:
            side.close()

    def dial_failed(self, dial: int, reason: str) -> None:
        self._error = errno.ECONNREFUSED if "refused" in reason else errno.ETIMEDOUT
        self.writable = True

    def take(self, conn: int, bytes_max: int) -> list[bytes]:
        piece, self._unsent = self._unsent[:bytes_max], self._unsent[bytes_max:]
        self.writable = not self._unsent
        return [_LENGTH + piece] if piece else []

    def moved(self, side: StreamSide) -> None:
        pass

    def reads(self, side: StreamSide) -> bool:
        return len(self._unread) < UNREAD_MAX and not self.host.paused

    def read(self, side: StreamSide, bodies: list[bytes]) -> None:
        if not self.closed:
            self._unread += bodies
            self.readable = True

    def broken(self, side: StreamSide, reason: str) -> None:
        self._end = reason
        self.readable = self.writable = True

    def accept(self, side: StreamSide | None = None) -> Any:
        raise NotImplementedError


class _Listener(_Stream):
    """A socket that listens; for the simulator, a host to which connections come in."""

    def __init__(self, host: Station, port: int) -> None:
        super().__init__(host)
        self._backlog: deque[_Stream] = deque()
        if not self.take_port(str(port or "*")):
            self.leave()
            raise _error(errno.EADDRINUSE)
        self.ground.streams.listeners[self.name, int(self.port)] = self

    def getsockname(self) -> tuple[str, int]:
        return "127.0.0.1", int(self.port)

    def accept(self, side: StreamSide | None = None) -> Any:
        if side is not None:
            made = _Stream(self.host)
            made.connected(0, side)
            side.host = made
            self._backlog.append(made)
            self.readable = True
            return None
        if not self._backlog:
            raise BlockingIOError
        made = self._backlog.popleft()
        self.readable = bool(self._backlog)
        return made, made.getpeername()

    def leave(self) -> None:
        super().leave()
        self.alive = False
        if self.port:
            del self.ground.streams.listeners[self.name, int(self.port)]
        for made in list(self._backlog):
            made.kill()
