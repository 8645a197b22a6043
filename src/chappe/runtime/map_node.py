"""Servers and clients of shared maps on their sockets: ZeroMQ, the process's loop, the disk."""

from __future__ import annotations

import itertools
import math
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final

import zmq

from chappe.defaults import MAP_SERVER_FILES
from chappe.errors import ProtocolError, StorageError
from chappe.kv.actions import Commit, Resolve
from chappe.kv.backend import Backend
from chappe.kv.chp.actions import Action, Ask, Listen, Offer, Publish, Reopen, Told, Withdraw, Write
from chappe.kv.chp.client import MapClientCore
from chappe.kv.chp.events import MapServerFull
from chappe.kv.chp.messages import HUGZ
from chappe.kv.chp.pair import PairedMapServer
from chappe.kv.chp.server import MapServerCore
from chappe.runtime.kv_node import CLOSE_S
from chappe.runtime.kv_node import commit as commit_to
from chappe.runtime.map_rules import MapRules
from chappe.runtime.socket_node import GATE_S, Frames, SocketNode
from chappe.runtime.worker import DISKS, Lane
from chappe.system import time
from chappe.system.limits import has_descriptors
from chappe.transports import resolving
from chappe.transports.gate import Gate
from chappe.transports.maps import UPDATES_MAX, MapAddress, ServerSockets, requester, send, subscriber
from chappe.transports.zeromq import open_socket

EMPTY_MAX: Final = 4  # clients that are offered more in one go, some thousand messages: heartbeats are to be in time
FULL_MAX: Final = 8  # clients with a full queue that are tried again in one go
RETRY_S: Final = 0.005  # how often a client with a full queue is tried again
FULL_TOLD_S: Final = 60.0  # how often at most it is told that no further client can connect


class Connections:
    """The sockets by which a node follows servers: of each one that hears, and one that asks."""

    def __init__(self, node: SocketNode, servers: Sequence[MapAddress],
                 published: Callable[[int, Frames], Sequence[object]],
                 answered: Callable[[int, Frames], Sequence[object]]) -> None:  # fmt: skip
        self._node = node
        self._servers = servers
        self._answered = answered
        self._hearing: list[zmq.Socket[bytes]] = []
        self._asking: list[zmq.Socket[bytes]] = []
        self._waiting: list[deque[Frames]] = [deque() for _ in servers]  # what a full queue did not take
        for place, address in enumerate(servers):
            heard = subscriber(node.gate)
            node.watch(heard, lambda frames, place=place: published(place, frames))  # type: ignore[misc]
            node.dial(heard, address.endpoint(1), hear=True)
            self._hearing.append(heard)
            self._asking.append(self._open(place))
        node.table |= {Listen: self._listen, Ask: self._ask, Reopen: self._reopen}
        node.retrying.append(self.retry)

    def _open(self, place: int) -> zmq.Socket[bytes]:
        made = requester(self._node.gate)
        self._node.watch(made, lambda frames: self._answered(place, frames))
        self._node.dial(made, self._servers[place].endpoint(0))
        return made

    def _listen(self, action: Listen) -> None:
        sock = self._hearing[action.server]
        sock.setsockopt(zmq.SUBSCRIBE if action.on else zmq.UNSUBSCRIBE, action.prefix)
        self._node.used(sock)

    def _ask(self, action: Ask) -> None:
        self._waiting[action.server].append(action.frames)
        self._send(action.server)

    def _send(self, place: int) -> None:
        sock, waiting = self._asking[place], self._waiting[place]
        while waiting:
            try:
                send(sock, waiting[0])
            except zmq.Again:
                self._node.look_at(time.monotonic() + RETRY_S)
                break
            waiting.popleft()
        self._node.used(sock)

    def retry(self) -> None:
        """Try again what a full queue did not take."""
        for place, waiting in enumerate(self._waiting):
            if waiting:
                self._send(place)

    def _reopen(self, action: Reopen) -> None:
        self._waiting[action.server].clear()
        self._node.unwatch(self._asking[action.server])
        self._asking[action.server] = self._open(action.server)


class _Box:
    """What waits for one client of a server."""

    __slots__ = ("ask", "messages")

    def __init__(self) -> None:
        self.messages: deque[Frames] = deque()
        self.ask = False


class MapServerNode(SocketNode):
    """Runs one server.

    Args:
        address: Where to listen; port 0: three free ones in a row.
        core: Made with what ``backend`` has.
        peer: Of two servers the other one.
        published: Writes are published to the collector (model 6), and not pushed (model 5).
        name: Of the map, which rules go by.
        gate: Of a server with keys.
    """

    def __init__(
        self,
        address: MapAddress,
        core: MapServerCore | PairedMapServer,
        *,
        backend: Backend | None = None,
        peer: MapAddress | None = None,
        published: bool,
        name: str = "",
        gate: Gate | None = None,
        on_report: Callable[[Any], None],
    ) -> None:
        super().__init__(core, "map server", on_report, gate)
        self.core = core
        self.rules = None if gate is None else MapRules(gate, name, "" if peer is None else peer.name)
        self._backend = backend
        self._commits = None if backend is None else Lane(DISKS, self.turns.run)
        self._boxes: dict[bytes, _Box] = {}
        self._full: dict[bytes, None] = {}  # whose queues are full
        self._empty: deque[bytes] = deque()  # who has taken all, and is to be asked about
        self._told_full_at = -math.inf
        self._gate_at = time.monotonic() + GATE_S
        self.table |= {Offer: self._offer, Withdraw: self._withdraw, Publish: self._publish, Commit: self._commit}
        try:
            self._sockets = ServerSockets(address, published=published, gate=gate)
            self.address = MapAddress(address.host, self._sockets.port, "" if gate is None else gate.name)
            self._hear = self.watch(self._sockets.publisher, self._on_subscription)
            self.watch(self._sockets.router, self._on_request, judge=self._judge_request)
            self._collect = self.watch(
                self._sockets.collector,
                lambda frames: core.handle_update(frames, time.monotonic()),
                lambda: core.crowded,
                self._refuse_update,
            )
            if peer is not None:
                Connections(self, [peer], self._on_peer_publication, self._on_peer_answer)
        except BaseException:
            self.release()
            self._close_backend()
            raise

    def start(self) -> None:
        """Begin."""
        with self.lock:
            self.perform(self.core.start(time.monotonic()))
        self.turns.start()

    def close(self) -> None:
        """Finish the commits under way, and release everything."""
        if not self.turns.closed:
            self._close_backend()
        super().close()

    def _close_backend(self) -> None:
        if self._commits is not None and self._backend is not None:
            self._commits.close(CLOSE_S, self._backend.close)

    # -- sockets -----------------------------------------------------------------------------------------------------

    def _on_request(self, frames: Frames) -> Sequence[object]:
        self._hear()  # who asks has subscribed before: what follows is to be published to him
        return self.core.handle_request(frames[0], frames[1:], time.monotonic())

    def _judge_request(self, who: str, frames: Frames) -> Sequence[object]:
        """A request to a server with keys."""
        self._hear()
        assert self.rules is not None
        found, passes = self.rules.request(who, frames[1:])
        if passes:
            return self.core.handle_request(frames[0], found, time.monotonic())
        return [Withdraw(frames[0]), Offer(frames[0], (found,))] if found else []

    def _refuse_update(self, who: str, frames: Frames) -> Sequence[object]:
        """Those with keys write by steps."""
        assert self.gate is not None
        assert self.rules is not None
        self.gate.refuse(self.rules.update(who))
        return []

    def look(self) -> None:
        """See ``SocketNode.look``; who may do less than before is found out by asking anew."""
        self._look_for_descriptors()
        if self.gate is not None:
            super().look()
        if self.rules is not None and self.rules.changed():
            self.perform(self.core.begin_anew())

    def _look_for_descriptors(self) -> None:
        """Say when there are none for further clients: ZeroMQ lets these wait without a word."""
        now = time.monotonic()
        if now >= self._told_full_at + FULL_TOLD_S and not has_descriptors():
            self._told_full_at = now
            self._on_report(MapServerFull(self.core.clients, MAP_SERVER_FILES))

    def _on_subscription(self, frames: Frames) -> Sequence[object]:
        if len(frames) != 1 or frames[0][:1] not in (b"\0", b"\1"):
            raise ProtocolError("a message to a publishing socket")
        if self.rules is not None:  # what is published of keys is for other programs: rules cannot tell who hears it
            if frames[0][1:] != HUGZ:
                return []
            if frames[0][0]:  # who leaves is forgotten by the socket
                self._sockets.publisher.setsockopt(zmq.SUBSCRIBE, HUGZ)
        return self.core.handle_subscription(frames[0][1:], frames[0][0] == 1, time.monotonic())

    def _on_peer_publication(self, place: int, frames: Frames) -> Sequence[object]:
        return self.core.handle_peer_publication(frames, time.monotonic())

    def _on_peer_answer(self, place: int, frames: Frames) -> Sequence[object]:
        return self.core.handle_peer_answer(frames, time.monotonic())

    def _publish(self, action: Publish) -> None:
        send(self._sockets.publisher, action.frames)
        self._suspect(self._hear)

    def _offer(self, action: Offer) -> None:
        client = action.client
        box = self._boxes.get(client)
        if box is None:
            box = self._boxes[client] = _Box()
        box.messages.extend(action.messages)
        box.ask |= action.ask
        if client not in self._full:
            self._send(client, box)

    def _withdraw(self, action: Withdraw) -> None:
        self._boxes.pop(action.client, None)
        self._full.pop(action.client, None)

    def _send(self, client: bytes, box: _Box) -> None:
        """Send what waits for a client, as far as it takes it."""
        router = self._sockets.router
        self.used(router)
        while box.messages:
            try:
                send(router, [client, *box.messages[0]])
            except zmq.Again:
                self._full[client] = None
                self.look_at(time.monotonic() + RETRY_S)
                return
            except zmq.ZMQError:  # it is not there any more
                self._withdraw(Withdraw(client))
                self.perform(self.core.handle_unroutable(client, time.monotonic()))
                return
            box.messages.popleft()
        del self._boxes[client]
        if box.ask:
            self._empty.append(client)
            self.look_at(0.0)

    def _retry(self, now: float) -> None:
        if now < self._look_at:
            return
        super()._retry(now)
        for _ in range(min(len(self._empty), EMPTY_MAX)):
            self.perform(self.core.handle_taken(self._empty.popleft(), now))
        if self._empty:
            self.look_at(0.0)
        if len(self._full) > FULL_MAX:
            self.look_at(now + RETRY_S)
        for client in list(itertools.islice(self._full, FULL_MAX)):
            del self._full[client]
            box = self._boxes.get(client)
            if box is not None:
                self._send(client, box)

    # -- the disk ----------------------------------------------------------------------------------------------------

    def _commit(self, action: Commit) -> None:
        assert self._commits is not None
        assert self._backend is not None
        backend = self._backend
        self._commits.do(lambda: commit_to(backend, action), lambda error: self._committed(action.number, error))

    def _committed(self, number: int, error: StorageError | None) -> None:
        self.do(self.core.handle_committed(number, error, time.monotonic()))
        if not self.core.crowded:
            self._suspect(self._collect)
            self.look_at(0.0)


class MapClientNode(SocketNode):
    """Runs one client.

    Args:
        servers: In the order in which they are tried.
        published: Writes to servers of other programs are published to all of them (model 6), and not pushed to the
            one that is followed (model 5).
        perform: What is done, with the lock held, for ``Resolve``, ``Told`` and ``Report`` actions.
        gate: Of a client with keys.
    """

    def __init__(
        self,
        servers: Sequence[MapAddress],
        core: MapClientCore,
        *,
        published: bool,
        on_resolve: Callable[[Resolve], None],
        on_told: Callable[[Told], None],
        on_report: Callable[[Any], None],
        gate: Gate | None = None,
    ) -> None:
        super().__init__(core, "map", on_report, gate)
        self.core = core
        self._servers = servers
        self._published = published
        self._writing: dict[int, zmq.Socket[bytes]] = {}
        self._reached: set[int] = set()  # servers that take what is published to them
        self._unsent: dict[int, deque[Frames]] = {}
        self.table |= {Resolve: on_resolve, Told: on_told, Write: self._write}
        try:
            Connections(self, servers, self._on_publication, self._on_answer)
        except BaseException:
            self.release()
            raise

    def start(self) -> None:
        """Begin."""
        with self.lock:
            self.perform(self.core.start(time.monotonic()))
        self.turns.start()

    def close(self) -> None:
        """Leave; what is not confirmed may be lost."""
        with self.lock:
            if not self.turns.closed and self.turns.halted is None:
                self.perform(self.core.close())
        super().close()
        for each in self._writing.values():
            each.close()

    def _on_publication(self, place: int, frames: Frames) -> Sequence[Action]:
        return self.core.handle_publication(place, frames, time.monotonic())

    def _on_answer(self, place: int, frames: Frames) -> Sequence[Action]:
        return self.core.handle_answer(place, frames, time.monotonic())

    # -- writing to servers of other programs --------------------------------------------------------------------------

    def _write(self, action: Write) -> None:
        if self.gate is not None:
            return  # other programs have no keys; nobody will know of it
        if not self._published:
            sock = self._writing.get(action.server)
            if sock is None:
                sock = self._writing[action.server] = open_socket(zmq.PUSH)
                sock.setsockopt(zmq.SNDHWM, UPDATES_MAX)
                resolving.connect(sock, self._servers[action.server].endpoint(2))
            try:
                send(sock, action.frames)
            except zmq.Again:
                pass  # it does not come back: the writer is told that nobody knows of it
            return
        for place in range(len(self._servers)):  # a socket each, as each is reached at another time
            if place not in self._writing:
                self._open_publisher(place)
            self._unsent[place].append(action.frames)
            self._send_unsent(place)

    def _open_publisher(self, place: int) -> None:
        made = self._writing[place] = open_socket(zmq.XPUB)
        made.setsockopt(zmq.SNDHWM, UPDATES_MAX)
        resolving.connect(made, self._servers[place].endpoint(2))
        self._unsent[place] = deque(maxlen=UPDATES_MAX)
        self.watch(made, lambda frames: self._on_reached(place, frames))

    def _on_reached(self, place: int, frames: Frames) -> Sequence[Action]:
        """A server has subscribed to what we publish: not before then anything can be sent."""
        if frames[0][:1] == b"\1":
            self._reached.add(place)
        else:
            self._reached.discard(place)
        self._send_unsent(place)
        return ()

    def _send_unsent(self, place: int) -> None:
        unsent = self._unsent[place]
        while place in self._reached and unsent:
            send(self._writing[place], unsent.popleft())
        self.used(self._writing[place])
