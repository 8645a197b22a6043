"""The ZeroMQ sockets of a test: the simulator's links and dialogues, with what members use of ``zmq.Socket``."""

from __future__ import annotations

import errno
from collections import deque
from collections.abc import Sequence
from typing import Any, Final

import zmq

from chappe.sim.pubsub import REDIAL_S, Dialogue, SimLink
from chappe.testing.ground import Socket, Station


def _port_of(endpoint: str) -> str:
    return endpoint.rpartition(":")[2]


class _Socket(Socket):
    """What all kinds have in common."""

    tells_once = True

    def __init__(self, host: Station) -> None:
        super().__init__(host)
        self.net = host.ground.net
        self._inbox: deque[list[bytes]] = deque()

    def getsockopt(self, option: int) -> Any:
        if option == zmq.FD:
            return self.number
        if option == zmq.LAST_ENDPOINT:
            return f"tcp://127.0.0.1:{self.port}\0".encode()
        assert option == zmq.EVENTS
        return zmq.POLLIN if self._inbox else 0

    def setsockopt(self, option: int, value: Any) -> None:
        pass  # bounds and the like are the network's

    def bind(self, endpoint: str) -> None:
        if not self.take_port(_port_of(endpoint)):
            raise zmq.ZMQError(errno.EADDRINUSE)
        self.bound()

    def bound(self) -> None:
        pass

    def recv_multipart(self, flags: int = 0, copy: bool = True) -> list[Any]:
        if not self._inbox:
            raise zmq.Again
        frames = self._inbox.popleft()
        if len(self._inbox) == self.net.inbox_max - 1:
            self.resume()
        return frames if copy else [zmq.Frame(each) for each in frames]

    def resume(self) -> None:
        pass

    def send_multipart(self, frames: Sequence[bytes], flags: int = 0, copy: bool = True) -> None:
        raise NotImplementedError

    def send(self, frame: bytes, flags: int = 0) -> None:
        self.send_multipart([frame])

    def poll(self, timeout_ms: int) -> int:
        return int(self.ground.scheduler.wait(lambda: bool(self._inbox), timeout_ms / 1000))

    def close(self, linger: int | None = None) -> None:
        if not self.closed:
            self.alive = False
            self.leave()

    kill = close

    def arrived(self, frames: list[bytes]) -> None:
        self._inbox.append(frames)
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
            self.links[endpoint] = SimLink(self.net, self, _port_of(endpoint))

    def disconnect(self, endpoint: str) -> None:
        link = self.links.pop(endpoint, None)
        if link is None:
            raise zmq.ZMQError(errno.ENOENT)
        link.close()

    def on_message(self, message: Any) -> None:
        if message[0].startswith(tuple(self.wants)):
            self.arrived(message)

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
    """XPUB: what nodes publish on, what they send beacons with, and what a tower hands them on with."""

    def __init__(self, host: Station) -> None:
        super().__init__(host)
        self.listeners: dict[SimLink, None] = {}
        self._options: dict[int, Any] = {}
        self._sources: deque[SimLink] = deque()  # of what waits to be received
        self._source: SimLink | None = None  # of what was received last
        self._parts: list[bytes] = []
        self._dials: dict[str, SimLink | None] = {}  # to sockets that subscribe here once they are connected
        self._name = f"publisher {self.number}"

    def setsockopt(self, option: int, value: Any) -> None:
        if option in (zmq.SUBSCRIBE, zmq.UNSUBSCRIBE):
            if self._source is not None:
                self._source.want(value, option == zmq.SUBSCRIBE)
        else:
            self._options[option] = value

    def bound(self) -> None:
        self.net.publishers[self.port] = self

    def connect(self, endpoint: str) -> None:
        self.net.publishers[self._name] = self
        self._dials[_port_of(endpoint)] = None
        self.net.clock.after(self.net.delay(), self._dial, _port_of(endpoint))

    def _dial(self, port: str) -> None:
        if self.closed or self._dials.get(port) is not None:
            return
        found = self.ground.ports.get(port)
        if isinstance(found, _Listening) and self.net.reachable(self.name, found.name):
            self._dials[port] = found.links[self._name] = SimLink(self.net, found, self._name)
        else:
            self._redial(port)

    def _redial(self, port: str) -> None:
        self.net.clock.after(self.net.clock.rng.uniform(*REDIAL_S), self._dial, port)

    def on_subscription(self, link: SimLink, prefix: bytes, on: bool) -> None:
        welcome: bytes | None = self._options.get(zmq.XPUB_WELCOME_MSG)
        if on and welcome is not None and link.asked == [prefix] and link.down is not None:
            link.down.send([welcome])
        if not self._options.get(zmq.XPUB_MANUAL):
            link.want(prefix, on)
        if on or self._options.get(zmq.XPUB_MANUAL) or not any(prefix in each.asked for each in self.listeners):
            self._sources.append(link)
            self.arrived([(b"\1" if on else b"\0") + prefix])

    def on_listener_gone(self, link: SimLink, asked: list[bytes]) -> None:
        if self.closed or link.publisher is self:
            return  # it has dialled again, and subscribed, before this was noticed; perhaps at who came after us
        self.listeners.pop(link, None)
        for prefix in dict.fromkeys(asked):
            self.on_subscription(link, prefix, False)
        if link.closed:
            self.dialled_gone(link)

    def dialled_gone(self, link: SimLink) -> None:
        """Who was dialled has closed the connection for good."""
        for port, dialled in self._dials.items():
            if dialled is link:
                self._dials[port] = None
                self._redial(port)

    def recv_multipart(self, flags: int = 0, copy: bool = True) -> list[Any]:
        frames = super().recv_multipart(flags, copy)
        self._source = self._sources.popleft()
        return frames

    def send(self, frame: bytes, flags: int = 0) -> None:
        if not self._parts and self._options.get(zmq.XPUB_NODROP) and any(each.full(frame) for each in self.listeners):
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
        for name in (self.port, self._name):
            self.net.publishers.pop(name, None)
        for link in list(self.listeners):
            link.break_()
        for dialled in self._dials.values():
            if dialled is not None:
                dialled.close()


class _Asking(_Socket):
    """DEALER: asks one store."""

    _dialogue: Dialogue | None = None

    def connect(self, endpoint: str) -> None:
        self._dialogue = Dialogue(self.net, self, _port_of(endpoint))

    def send_multipart(self, frames: Sequence[bytes], flags: int = 0, copy: bool = True) -> None:
        assert self._dialogue is not None
        self._dialogue.ask(int.from_bytes(frames[0]), frames[1], b"".join(frames[2:]))

    def on_answer(self, thing: tuple[int, bytes, tuple[bytes, ...]]) -> None:
        number, raw, batches = thing
        self.arrived([number.to_bytes(8), raw, *batches])


class _Answering(_Socket):
    """ROUTER: answers questions."""

    def __init__(self, host: Station) -> None:
        super().__init__(host)
        self._clients: dict[bytes, Dialogue] = {}

    def bound(self) -> None:
        self.net.routers[self.port] = self

    def on_query(self, dialogue: Dialogue, request_id: int, raw: bytes, payload: bytes) -> None:
        client = dialogue.number.to_bytes(5)
        self._clients[client] = dialogue
        self.arrived([client, request_id.to_bytes(8), raw, *([payload] if payload else [])])

    def send_multipart(self, frames: Sequence[bytes], flags: int = 0, copy: bool = True) -> None:
        client = self._clients[frames[0]]
        if self.net.passes(self.name, client.asker.name):
            client.reply(int.from_bytes(frames[1]), frames[2], tuple(frames[3:]))

    def leave(self) -> None:
        super().leave()
        self.net.routers.pop(self.port, None)


KINDS: Final[dict[int, type[_Socket]]] = {
    zmq.SUB: _Listening,
    zmq.XSUB: _Listening,
    zmq.XPUB: _Publishing,
    zmq.DEALER: _Asking,
    zmq.ROUTER: _Answering,
}
