"""The ZeroMQ sockets of a test: the simulator's links and dialogues, with what members use of ``zmq.Socket``."""

from __future__ import annotations

import errno
import struct
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, cast

import zmq

from chappe.core import Ask, Dial, Reply
from chappe.sim.pubsub import REDIAL_S, Pipe, SimLink
from chappe.testing.ground import Net, Socket, Station

ASKED_MAX: Final = 1_000  # questions, or answers, on the way to one socket
_EVENT: Final = struct.Struct("=hi")  # what a monitor says: which event, and a number
_NOTHING: Final[Mapping[str, str]] = {}
ENDED: Final = -1  # the descriptor of what a socket says of a connection that has ended


def _port_of(endpoint: str) -> str:
    return endpoint.rpartition(":")[2]


class _Frame:
    """A part of a message, which knows the connection that it came over."""

    __slots__ = ("_descriptor", "_properties", "bytes")

    def __init__(self, raw: bytes, properties: Mapping[str, str], descriptor: int) -> None:
        self.bytes = raw
        self._properties = properties
        self._descriptor = descriptor

    @property
    def buffer(self) -> memoryview:
        return memoryview(self.bytes)

    def __len__(self) -> int:
        return len(self.bytes)

    def get(self, option: int | str) -> Any:
        if option == zmq.SRCFD and self._descriptor != ENDED:
            return self._descriptor
        if option not in self._properties:
            raise zmq.ZMQError(errno.EINVAL)
        return self._properties[str(option)]


class Context:
    """A ZeroMQ context of a host."""

    def __init__(self, host: Station) -> None:
        self._host = host

    def socket(self, kind: int) -> _Socket:
        return KINDS[kind](self._host)


class _Keys:
    """The keys with which one endpoint is dialled, or of one that is bound; there are none where ``public`` is empty.

    A key is a name here: who gives a public key has its secret one.
    """

    def __init__(self, options: Mapping[int, Any], *, listens: bool) -> None:
        on = bool(options.get(zmq.CURVE_SERVER)) if listens else zmq.CURVE_SERVERKEY in options
        self.public: bytes = options[zmq.CURVE_PUBLICKEY] if on else b""
        self.server: bytes = options.get(zmq.CURVE_SERVERKEY, b"")
        self.domain: bytes = options.get(zmq.ZAP_DOMAIN, b"")


class _Connection:
    """The two ends of a connection.

    Attributes:
        listener: The socket that was dialled, at ``port``.
        properties: What the listener knows of messages over it.
        descriptor: Another one each time it is made.
    """

    dialler: _Socket
    listener: _Socket
    keys: _Keys
    port: str
    properties: Mapping[str, str] = _NOTHING
    descriptor = ENDED

    def shake(self, listener: _Socket) -> bool:
        """Return whether the listener lets the dialler in, and tell both if it does not."""
        self.listener = listener
        door = listener.doors[self.port]
        if bool(door.public) != bool(self.keys.public):
            return self._refused(zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL, zmq.PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH)
        if door.public and door.public != self.keys.server:
            return self._refused(zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL, 0)
        if door.public:
            request = [b"1.0", b"", door.domain, b"127.0.0.1", b"", b"CURVE", self.keys.public]
            reply = [] if listener.host.admit is None else listener.host.admit(request)
            if reply[2:3] != [b"200"]:
                self.dialler.tell_monitor(zmq.EVENT_HANDSHAKE_FAILED_AUTH, 400, self.port)
                return False
            self.properties = {"User-Id": reply[4].decode(), **_properties(reply[5])}
        net = listener.net
        net.last_descriptor += 1
        self.descriptor = net.last_descriptor
        net.shaken[self.descriptor] = self
        return True

    def _refused(self, event: int, number: int) -> bool:
        for each in (self.dialler, self.listener):
            each.tell_monitor(event, number, self.port)
        return False

    def known_to(self, sock: _Socket) -> Mapping[str, str]:
        return self.properties if sock is self.listener else _NOTHING

    def parted(self) -> None:
        if self.descriptor != ENDED:
            self.listener.net.shaken.pop(self.descriptor, None)

    def break_(self) -> None:
        raise NotImplementedError


def _properties(raw: bytes) -> dict[str, str]:
    """Return the properties that ZAP's answer gives a connection, as ZMTP writes them."""
    found = {}
    while raw:
        name, raw = raw[1 : 1 + raw[0]], raw[1 + raw[0] :]
        size = 4 + int.from_bytes(raw[:4])
        found[name.decode()], raw = raw[4:size].decode(), raw[size:]
    return found


class _Link(SimLink, _Connection):
    """A connection of one who subscribes to one who publishes; ``dialler`` is either of them."""

    def __init__(self, net: Net, subscriber: _Listening, endpoint: str, dialler: _Socket, port: str) -> None:
        self.dialler = dialler
        self.keys = dialler.dialling()
        self.port = port
        super().__init__(net, subscriber, endpoint)

    def admitted(self, publisher: Any) -> bool:
        return self.shake(cast(_Socket, self.subscriber) if publisher is self.dialler else publisher)

    def hearing(self) -> Callable[[Any], None]:
        return partial(cast(_Listening, self.subscriber).on_message, link=self)

    def break_(self, notice_s: float = 0.0) -> None:
        self.parted()
        super().break_(notice_s)


class _Socket(Socket):
    tells_once = True

    def __init__(self, host: Station) -> None:
        super().__init__(host)
        self.net = host.ground.net
        self.doors: dict[str, _Keys] = {}  # of ports where it is bound
        self.options: dict[int, Any] = {}
        self._monitor: tuple[str, int] = "", 0  # where it is told of events, and of which
        self._inbox: deque[tuple[list[bytes], Mapping[str, str], int]] = deque()
        self._parts: list[bytes] = []  # of what is sent next

    def getsockopt(self, option: int) -> Any:
        if option == zmq.FD:
            return self.number
        if option == zmq.LAST_ENDPOINT:
            return f"tcp://127.0.0.1:{self.port}\0".encode()
        assert option == zmq.EVENTS
        return zmq.POLLIN if self._inbox else 0

    def setsockopt(self, option: int, value: Any) -> None:
        self.options[option] = value  # bounds and the like are the network's

    def bind(self, endpoint: str) -> None:
        if not self.take_port(_port_of(endpoint)):
            raise zmq.ZMQError(errno.EADDRINUSE)
        self.doors[self.port] = _Keys(self.options, listens=True)
        self.bound()

    def dialling(self) -> _Keys:
        return _Keys(self.options, listens=False)

    def bound(self) -> None:
        pass

    def unbind(self, endpoint: str) -> None:
        self.ground.ports.pop(self.port, None)

    def recv_multipart(self, flags: int = 0, copy: bool = True) -> list[Any]:
        if not self._inbox:
            raise zmq.Again
        frames, properties, descriptor = self._inbox.popleft()
        if len(self._inbox) == self.net.inbox_max - 1:
            self.resume()
        return frames if copy else [_Frame(each, properties, descriptor) for each in frames]

    def resume(self) -> None:
        pass

    def send_multipart(self, frames: Sequence[bytes], flags: int = 0, copy: bool = True) -> None:
        raise NotImplementedError

    def send(self, frame: bytes, flags: int = 0) -> None:
        self._parts.append(frame)
        if not flags & zmq.SNDMORE:
            frames, self._parts = self._parts, []
            self.send_multipart(frames)

    @property
    def context(self) -> Context:
        return Context(self.host)

    def monitor(self, where: str, events: int) -> None:
        self._monitor = where, events

    def disable_monitor(self) -> None:
        self._monitor = "", 0

    def tell_monitor(self, event: int, number: int, port: str) -> None:
        where, events = self._monitor
        if event & events and where in self.net.monitors:
            self.net.monitors[where].arrived([_EVENT.pack(event, number), f"tcp://127.0.0.1:{port}".encode()])

    def connect(self, endpoint: str) -> None:
        """Hear of what is told at an endpoint, as a socket that monitors does."""
        self.net.monitors[endpoint] = self
        self.port = endpoint

    def poll(self, timeout_ms: int) -> int:
        if not timeout_ms:
            return int(bool(self._inbox))
        return int(self.ground.scheduler.wait(lambda: bool(self._inbox), timeout_ms / 1000))

    def close(self, linger: int | None = None) -> None:
        if not self.closed:
            self.alive = False
            self.leave()

    kill = close

    def leave(self) -> None:
        super().leave()
        self.net.monitors.pop(self.port, None)
        for port in self.doors:
            self.ground.ports.pop(port, None)

    def arrived(self, frames: list[bytes], properties: Mapping[str, str] = _NOTHING, descriptor: int = ENDED) -> None:
        self._inbox.append((frames, properties, descriptor))
        self.readable = True


class _Listening(_Socket):
    """SUB, which connects to publishers, and XSUB, which publishers connect to."""

    def __init__(self, host: Station) -> None:
        super().__init__(host)
        self.wants: dict[bytes, int] = {}
        self.links: dict[str, SimLink] = {}

    def setsockopt(self, option: int, value: Any) -> None:
        if option in (zmq.SUBSCRIBE, zmq.UNSUBSCRIBE):
            self._want(value, option == zmq.SUBSCRIBE)
        else:
            super().setsockopt(option, value)

    def send_multipart(self, frames: Sequence[bytes], flags: int = 0, copy: bool = True) -> None:
        self._want(frames[0][1:], frames[0][:1] == b"\1")

    def _want(self, prefix: bytes, on: bool) -> None:
        count = self.wants.get(prefix, 0) + (1 if on else -1)
        if count > 0:
            self.wants[prefix] = count
        elif self.wants.pop(prefix, None) is None:
            return
        if count == on:  # the first one, or the last one
            for link in self.links.values():
                link.subscribe(on, prefix)

    def connect(self, endpoint: str) -> None:
        if endpoint not in self.links:
            port = _port_of(endpoint)
            self.links[endpoint] = _Link(self.net, self, port, self, port)

    def disconnect(self, endpoint: str) -> None:
        link = self.links.pop(endpoint, None)
        if link is None:
            raise zmq.ZMQError(errno.ENOENT)
        link.close()

    def on_message(self, message: Any, link: _Connection | None = None) -> None:
        if message[0].startswith(tuple(self.wants)):
            self.arrived(message, _NOTHING if link is None else link.known_to(self))

    def paused(self) -> bool:
        return len(self._inbox) >= self.net.inbox_max

    def flush(self) -> None:
        pass  # the socket's reader finds its end

    def resume(self) -> None:
        for link in self.links.values():
            link.resume()

    def leave(self) -> None:
        super().leave()
        links, self.links = self.links, {}
        for name, link in links.items():
            link.close()
            publisher = self.net.publishers.get(name)
            if isinstance(publisher, _Publishing):
                publisher.dialled_gone(link)  # also if it was cut off just then, so that nobody was told


class _Publishing(_Socket):
    """XPUB: the socket on which nodes publish and send beacons, and a tower hands these on."""

    def __init__(self, host: Station) -> None:
        super().__init__(host)
        self.listeners: dict[SimLink, None] = {}
        self._sources: deque[SimLink] = deque()  # of what waits to be received
        self._source: SimLink | None = None  # of what was received last
        self._dials: dict[str, SimLink | None] = {}  # to sockets that subscribe here once they are connected
        self._keys: dict[str, _Keys] = {}  # to dial them with
        self._name = f"publisher {self.number}"

    def setsockopt(self, option: int, value: Any) -> None:
        if option in (zmq.SUBSCRIBE, zmq.UNSUBSCRIBE):
            if self._source is not None:
                self._source.want(value, option == zmq.SUBSCRIBE)
        else:
            super().setsockopt(option, value)

    def bound(self) -> None:
        self.net.publishers[self.port] = self

    def connect(self, endpoint: str) -> None:
        port = _port_of(endpoint)
        self.net.publishers[self._name] = self
        self._dials[port], self._keys[port] = None, self.dialling()
        self.net.clock.after(self.net.delay(), self._dial, port)

    def disconnect(self, endpoint: str) -> None:
        link = self._dials.pop(_port_of(endpoint), None)
        if link is not None:
            link.subscriber.links.pop(self._name, None)  # type: ignore[attr-defined]
            link.close()

    def _dial(self, port: str) -> None:
        if self.closed or self._dials.get(port, self) is not None:
            return
        found = self.ground.ports.get(port)
        if isinstance(found, _Listening) and self.net.reachable(self.name, found.name):
            made = _Link(self.net, found, self._name, self, port)
            made.keys = self._keys[port]
            self._dials[port] = found.links[self._name] = made
        else:
            self._redial(port)

    def _redial(self, port: str) -> None:
        self.net.clock.after(self.net.clock.rng.uniform(*REDIAL_S), self._dial, port)

    def on_subscription(self, link: SimLink, prefix: bytes, on: bool) -> None:
        welcome: bytes | None = self.options.get(zmq.XPUB_WELCOME_MSG)
        if on and welcome is not None and link.asked == [prefix] and link.down is not None:
            link.down.send([welcome])
        if not self.options.get(zmq.XPUB_MANUAL):
            link.want(prefix, on)
        told = on or self.options.get(zmq.XPUB_MANUAL) or self.options.get(zmq.XPUB_VERBOSER)
        if told or not any(prefix in each.asked for each in self.listeners):
            self._sources.append(link)
            descriptor = link.descriptor if link.publisher is self else ENDED  # type: ignore[attr-defined]
            known = link.known_to(self)  # type: ignore[attr-defined]
            self.arrived([(b"\1" if on else b"\0") + prefix], known, descriptor)

    def on_listener_gone(self, link: SimLink, asked: list[bytes]) -> None:
        if self.closed or link.publisher is self:
            return  # it has dialled again, and subscribed, before this was noticed; perhaps at who came after us
        self.listeners.pop(link, None)
        for prefix in dict.fromkeys(asked):
            self.on_subscription(link, prefix, False)
        if link.closed:
            self.dialled_gone(link)

    def dialled_gone(self, link: SimLink) -> None:
        for port, dialled in self._dials.items():
            if dialled is link:
                self._dials[port] = None
                self._redial(port)

    def recv_multipart(self, flags: int = 0, copy: bool = True) -> list[Any]:
        frames = super().recv_multipart(flags, copy)
        self._source = self._sources.popleft()
        return frames

    def send(self, frame: bytes, flags: int = 0) -> None:
        if not self._parts and self.options.get(zmq.XPUB_NODROP) and any(each.full(frame) for each in self.listeners):
            raise zmq.Again
        self._parts.append(frame)
        if not flags & zmq.SNDMORE:
            frames, self._parts = self._parts, []
            for link in list(self.listeners):
                link.offer(frames[0], frames)  # type: ignore[arg-type]

    def send_multipart(self, frames: Sequence[bytes], flags: int = 0, copy: bool = True) -> None:
        for each in frames[:-1]:
            self.send(each, zmq.SNDMORE)
        self.send(frames[-1])

    def leave(self) -> None:
        super().leave()
        for name in (*self.doors, self._name):
            self.net.publishers.pop(name, None)
        for link in list(self.listeners):
            link.break_()
        for dialled in self._dials.values():
            if dialled is not None:
                dialled.close()


class RoutedConnection(_Connection):
    """A DEALER's or PUSH's connection to one socket; dialled again when it breaks, it is another one there."""

    def __init__(self, net: Net, asker: _Asking, port: str) -> None:
        self._net = net
        self.asker = self.dialler = asker
        self.keys = asker.dialling()
        self.port = port
        self._refusal = self._ended = False
        self._unsent: deque[list[bytes]] = deque()
        self._dials = False
        self.router: _Answering | None = None
        self.name = b""
        self.up: Pipe | None = None
        self.down: Pipe | None = None

    def ask(self, frames: list[bytes]) -> None:
        """Send a message now, or once somebody is there. Raises Again if there is no room."""
        if self._refusal or len(self._unsent if self.up is None else self.up) >= ASKED_MAX:
            raise zmq.Again
        if self._bad_luck():
            self._net.failed[Ask] += 1
            return
        self._unsent.append(frames)
        if not self._dials:
            self._dial()

    def reply(self, frames: list[bytes]) -> None:
        if self.down is not None and not self._bad_luck():
            self.down.send(frames)
        else:
            self._net.failed[Reply] += 1

    def _dial(self) -> None:
        self._dials = False
        net = self._net
        if self.asker.closed or self._ended:
            return
        if self.up is None:
            router = net.routers.get(self.port)
            if not isinstance(router, _Answering) or not net.reachable(self.asker.name, router.name):
                net.failed[Ask] += 1
                self._redial()
                return
            if not self.shake(router):
                self._refusal = True
                self._unsent.clear()
                net.failed[Dial] += 1
                return
            net.dialogues += 1
            self.router, self.name = router, net.dialogues.to_bytes(5)
            self.up = Pipe(net, router, partial(router.asked, self), ASKED_MAX, what=Ask)
            self.down = Pipe(net, self.asker, self.asker.arrived, router.room(), what=Reply)
            router.clients[self.name] = net.connections[self] = self
        while self._unsent:
            self.up.send(self._unsent.popleft())

    def _redial(self) -> None:
        self._dials = True
        self._net.clock.after(self._net.clock.rng.uniform(*REDIAL_S), self._dial)

    def break_(self) -> None:
        if self.up is not None:
            self.up.close()
            self.close()
            self._redial()

    def end(self) -> None:
        """Break it, and dial no more."""
        self._ended = True
        if self.up is not None:
            self.up.close()
        self.close()

    def close(self) -> None:
        if self.router is not None and self.down is not None:
            self.parted()
            self.down.close()
            del self.router.clients[self.name], self._net.connections[self]
            self.router = self.up = self.down = None

    def pipe(self, source: str) -> Pipe | None:
        return self.up if source == self.asker.name else self.down

    def _bad_luck(self) -> bool:
        return self._net.query_loss > 0 and self._net.clock.rng.random() < self._net.query_loss


class _Asking(_Socket):
    """DEALER, which asks one other socket, and PUSH, which expects no answer."""

    _connection: RoutedConnection | None = None

    def connect(self, endpoint: str) -> None:
        self._connection = RoutedConnection(self.net, self, _port_of(endpoint))

    def disconnect(self, endpoint: str) -> None:
        if self._connection is not None:
            self._connection.end()
            self._connection = None

    def send_multipart(self, frames: Sequence[bytes], flags: int = 0, copy: bool = True) -> None:
        if self._connection is None:
            raise zmq.Again
        self._connection.ask(list(frames))

    def leave(self) -> None:
        super().leave()
        self.disconnect("")


class _Answering(_Socket):
    def __init__(self, host: Station) -> None:
        super().__init__(host)
        self.clients: dict[bytes, RoutedConnection] = {}
        self._mandatory = False

    def setsockopt(self, option: int, value: Any) -> None:
        super().setsockopt(option, value)
        self._mandatory = self._mandatory or option == zmq.ROUTER_MANDATORY

    def bound(self) -> None:
        self.net.routers[self.port] = self

    def room(self) -> int:
        """Return how many answers may be on the way to one client."""
        return self.net.queue_max if self._mandatory else ASKED_MAX

    def asked(self, client: RoutedConnection, frames: list[bytes]) -> None:
        self.arrived([client.name, *frames], client.known_to(self))

    def send_multipart(self, frames: Sequence[bytes], flags: int = 0, copy: bool = True) -> None:
        client = self.clients.get(frames[0])
        if client is None:
            self.net.failed[Reply] += 1
            if self._mandatory:
                raise zmq.ZMQError(errno.EHOSTUNREACH)
            return
        if self._mandatory and client.down is not None and len(client.down) >= self.room():
            self.net.failed[Reply] += 1
            raise zmq.Again
        client.reply(list(frames[1:]))

    def leave(self) -> None:
        super().leave()
        self.net.routers.pop(self.port, None)
        for each in list(self.clients.values()):
            each.break_()


class _Pulling(_Answering):
    """PULL, which is not told who sends."""

    def asked(self, client: RoutedConnection, frames: list[bytes]) -> None:
        self.arrived(frames)


KINDS: Final[dict[int, type[_Socket]]] = {
    zmq.SUB: _Listening,
    zmq.XSUB: _Listening,
    zmq.XPUB: _Publishing,
    zmq.DEALER: _Asking,
    zmq.PUSH: _Asking,
    zmq.ROUTER: _Answering,
    zmq.PULL: _Pulling,
    zmq.PAIR: _Socket,
}
