"""A link: the non-blocking socket of one connection, TLS on it if wanted, and the frames in it.

A frame is a u32 length and so many bytes. What does not make a whole frame yet is kept; a length beyond the bound ends
the link before anything is kept for it.
"""

from __future__ import annotations

import math
import socket
import ssl
import struct
from collections.abc import Callable
from typing import Final

from chappe.defaults import FRAME_BYTES_S, FRAME_S, KIB, UNFINISHED_BYTES_MAX
from chappe.mesh.flows import portion
from chappe.transports.tls import Contexts, TlsWire, explain, key_of, named_identity, named_ids

READ_BYTES: Final = 256 * KIB  # taken from a socket at once
WRITE_BYTES: Final = 256 * KIB  # joined for one write
_TLS_READ_BYTES: Final = 64 * KIB  # OpenSSL gives one record, at most 16 KiB, at a time
_SMALL: Final = 4 * KIB  # parts of a frame up to this are joined at once
_LENGTH: Final = 4
_MESSAGE_BYTES: Final = 4  # which a message in a batch has at least
_TLS_CONTENT: Final = (0x15, 0x16)  # the first byte of what a TLS endpoint says first: an alert, or its hello
_TLS_MAJOR: Final = 3

# What the system keeps beyond what the peer has room for only adds to what is lost with a link, and to delays.
_NOTSENT: Final[int] = getattr(socket, "TCP_NOTSENT_LOWAT", -1)  # -1: this system does not limit it

_buffers: Final[list[memoryview]] = []  # to read into: as many as threads ever read at the same time
_unpack_length: Final = struct.Struct(">I").unpack_from


class LinkLost(Exception):
    """The connection is of no further use; the text says why."""


class TcpLink:
    """One connection.

    Args:
        sock: Connected, not blocking.
        number: The core's name for it.
        security: What its TLS is made of; None for a plain connection.
        host: The host that was dialled; None for an accepted connection.
    """

    __slots__ = (
        "_check_id",
        "_first",
        "_need",
        "_parts",
        "_sock",
        "_unsent",
        "_wire",
        "begun_at",
        "bytes_max",
        "closing_at",
        "counted",
        "drained",
        "established",
        "handshaking",
        "identity",
        "key",
        "lost",
        "more",
        "named",
        "number",
        "reading",
        "sent_bytes",
        "stated",
        "unfinished",
        "watched",
        "writing",
    )

    def __init__(self, sock: socket.socket, number: int, security: Contexts | None, host: str | None) -> None:
        self._sock = sock
        self.number = number
        self.lost = False  # the node has closed it
        self.watched = False  # the node's selector knows it
        self.reading = True  # whether the node looks whether something came
        self.writing = False  # whether something waits for room in the socket
        self.established = False
        self.sent_bytes = 0  # taken by the socket
        self.bytes_max = 0
        self.closing_at: float | None = None  # when it is closed even if something is unsent
        self._wire: TlsWire | None = None if security is None else security.wrap(host)
        self._check_id = security is not None and security.check == "id"
        self.named: frozenset[bytes] = frozenset()  # the ids that the peer's certificate names
        self.identity = ""  # that it names
        self.key: bytes | None = None  # of this certificate
        self.stated: bytes | None = None  # the id that the peer says it has
        self._parts: list[bytes] = []  # of a frame that is not complete
        self.begun_at: float | None = None  # since when such a frame is unfinished, for its owner
        self.unfinished = 0  # bytes in them
        self.counted = 0  # of these, what ``Unfinished`` has counted
        self.more = False  # ``frames`` stopped at its limit with input left: call it again
        self.drained = False  # the last read has taken all that was there
        self._need = _LENGTH  # bytes that make it worth to look again
        self._unsent: bytes | memoryview = b""
        self._first = True
        self.handshaking = self._wire is not None
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if _NOTSENT >= 0:
            sock.setsockopt(socket.IPPROTO_TCP, _NOTSENT, WRITE_BYTES)

    def fileno(self) -> int:
        return self._sock.fileno()

    def close(self) -> None:
        """Close the socket; unsent bytes are lost."""
        self._sock.close()

    # -- in -------------------------------------------------------------------------------------------

    def receive(self) -> bool:
        """Read once; False: nothing was there. Raises LinkLost: the peer closed, or its TLS is malformed or fails."""
        try:
            buffer = _buffers.pop()
        except IndexError:
            buffer = memoryview(bytearray(READ_BYTES))
        try:
            size = self._sock.recv_into(buffer)
            data = bytes(buffer[:size])
        except (BlockingIOError, InterruptedError):
            return False
        except OSError as error:
            raise self._ended(f"the connection broke ({(error.strerror or str(error)).lower()})") from None
        finally:
            _buffers.append(buffer)
        if not data:
            raise self._ended("the peer closed the connection")
        self.drained = len(data) < READ_BYTES
        if self._first:
            self._look_at_first(data)
        if self._wire is not None:
            data = self._decrypt(self._wire, data)
        if data:
            self._keep(data)
        return True

    def _keep(self, data: bytes) -> None:
        parts = self._parts
        if parts and len(parts[-1]) + len(data) <= _SMALL:  # a part for each byte would take fifty times as much
            parts[-1] += data
        else:
            parts.append(data)
        self.unfinished += len(data)

    def too_late_at(self) -> float:
        return math.inf if self.begun_at is None else self.begun_at + FRAME_S + self._need / FRAME_BYTES_S

    def _ended(self, how: str) -> LinkLost:
        if self.handshaking:
            return LinkLost(f"{how} during the TLS handshake: give both ends the same security")
        if self._first:
            return LinkLost(f"{how} before it said anything: if it wants TLS, give both ends the same security")
        return LinkLost(how)

    def _look_at_first(self, data: bytes) -> None:
        self._first = False
        speaks_tls = data[0] in _TLS_CONTENT and data[1:2] in (b"", bytes((_TLS_MAJOR,)))
        if speaks_tls and self._wire is None:
            raise LinkLost("the peer speaks TLS and we do not: give both ends the same security")
        if not speaks_tls and self._wire is not None:
            raise LinkLost("we speak TLS and the peer does not: give both ends the same security")

    def _decrypt(self, wire: TlsWire, data: bytes) -> bytes:
        wire.incoming.write(data)
        found: list[bytes] = []
        try:
            if self.handshaking:
                wire.tls.do_handshake()
                self._secured(wire)
            read = wire.tls.read
            while piece := read(_TLS_READ_BYTES):
                found.append(piece)
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLZeroReturnError:
            raise LinkLost("the peer closed the connection") from None
        except ssl.SSLError as error:
            self._send_alert(wire)
            raise LinkLost(explain(error)) from None
        return b"".join(found)

    def _secured(self, wire: TlsWire) -> None:
        self.handshaking = False
        self.named = named_ids(wire.tls)
        self.identity = named_identity(wire.tls)
        self.key = key_of(wire.tls)
        if self._check_id and not self.named:
            raise LinkLost("the peer's certificate names no endpoint id: make one with `chappe keys add`")

    def _send_alert(self, wire: TlsWire) -> None:
        """Send the peer the reason; waiting for it is useless."""
        try:
            self._sock.send(wire.outgoing.read())
        except OSError:
            pass

    def frames(self, count_max: int, size_max: int) -> list[bytes]:
        """Take complete frames, without their lengths, but at least one if there is one.

        They have at most ``count_max`` messages, and end where ``size_max`` bytes are reached.

        Raises:
            LinkLost: A frame is larger than ``bytes_max``.
        """
        if self.unfinished < self._need:
            return []
        parts = self._parts
        data = parts[0] if len(parts) == 1 else b"".join(parts)
        found: list[bytes] = []
        add = found.append
        at, end, bytes_max = 0, len(data), self.bytes_max
        need = _LENGTH
        self.more = False
        while end - at >= _LENGTH:
            # Before the size check: a handshake among the frames found may raise the bound.
            if len(found) == count_max or at >= size_max:
                self.more = True
                break
            (size,) = _unpack_length(data, at)
            if size > bytes_max:
                raise LinkLost(f"the peer sent a message of {size} bytes, at most {bytes_max} are taken")
            stop = at + _LENGTH + size
            if stop > end:
                need = _LENGTH + size
                break
            add(data[at + _LENGTH : stop])
            at = stop
        if at > count_max * _MESSAGE_BYTES and (end_of := portion(found, count_max)) < len(found):
            at -= sum(map(len, found[end_of:])) + _LENGTH * (len(found) - end_of)
            del found[end_of:]
            need = _LENGTH
            self.more = True
        if at:
            self.begun_at = None
        self._parts = [data[at:]] if at < end else []
        self.unfinished = end - at
        self._need = need
        return found

    # -- out ------------------------------------------------------------------------------------------

    def send(self, take: Callable[[int, int], list[bytes]]) -> bool:
        """Write ``take``'s frames until none is left; False: no more room. Raises LinkLost: the connection broke."""
        try:
            while True:
                if self._unsent:
                    sent = self._sock.send(self._unsent)
                    self.sent_bytes += sent
                    if sent < len(self._unsent):
                        self._unsent = memoryview(self._unsent)[sent:]
                        continue  # until it says that it would block
                    self._unsent = b""
                wire = self._wire
                if self.handshaking:
                    assert wire is not None
                    self._unsent = wire.outgoing.read()
                elif parts := take(self.number, WRITE_BYTES):
                    data = parts[0] if len(parts) == 1 else b"".join(parts)
                    if wire is not None:
                        wire.tls.write(data)
                        data = wire.outgoing.read()
                    self._unsent = data
                elif wire is not None and wire.outgoing.pending:
                    self._unsent = wire.outgoing.read()
                if not self._unsent:
                    return True
        except (BlockingIOError, InterruptedError):
            return False
        except ssl.SSLError as error:
            raise LinkLost(explain(error)) from None
        except OSError as error:
            raise LinkLost(f"the connection broke: {error.strerror or error}") from None

    def start(self) -> None:
        """Begin the TLS handshake, if any; ``send`` carries it on. Raises LinkLost: TLS refuses the dialled host."""
        if self._wire is None:
            return
        try:
            self._wire.tls.do_handshake()
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError as error:
            raise LinkLost(explain(error)) from None


TOO_MUCH: Final = (
    "it has begun a message and sends it slower than others, and all begun messages are too large together"
)


class Unfinished:
    """The links of one node that have begun a frame; their bytes have a common bound, and the lock is held.

    A link that has begun a frame has a time to finish it that grows with its size. Where all begun frames together are
    too large, the link that has been the slowest with its own is given up: it may only want to use up memory.
    """

    def __init__(self) -> None:
        self.links: dict[int, TcpLink] = {}  # by number
        self._bytes = 0

    def note(self, link: TcpLink, now: float) -> None:
        self._count(link, link.unfinished)
        if not link.unfinished:
            link.begun_at = None
        elif link.begun_at is None:
            link.begun_at = now

    def forget(self, link: TcpLink) -> None:
        self._count(link, 0)

    def begin_again(self, link: TcpLink, now: float) -> None:
        """Restart the time of a link that we did not read for a while."""
        if link.begun_at is not None:
            link.begun_at = now

    def surplus(self, now: float) -> TcpLink | None:
        """Return the slowest link, if all together have too much."""
        if self._bytes <= UNFINISHED_BYTES_MAX:
            return None
        return min(self.links.values(), key=lambda link: _speed(link, now))

    def due(self) -> float:
        return min([link.too_late_at() for link in self.links.values() if link.reading], default=math.inf)

    def too_late(self, now: float) -> list[TcpLink]:
        return [link for link in self.links.values() if link.reading and now >= link.too_late_at()]

    def _count(self, link: TcpLink, size: int) -> None:
        self._bytes += size - link.counted
        link.counted = size
        if size:
            self.links[link.number] = link
        else:
            self.links.pop(link.number, None)


def _speed(link: TcpLink, now: float) -> float:
    return link.unfinished / max(1e-3, now - (now if link.begun_at is None else link.begun_at))
