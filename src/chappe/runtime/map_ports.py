"""Servers and clients of shared maps on their sockets and their disk."""

from __future__ import annotations

import itertools
import math
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

import zmq

from chappe.core import Ask, Close, Deliver, Dial, Effect, Flush, Publish, Reply, Resolve, Send, Subscribe
from chappe.defaults import MAP_SERVER_FILES
from chappe.errors import StorageError
from chappe.kv.backend import Backend, Commit
from chappe.kv.chp.client import MapClientCore, PlainWrite
from chappe.kv.chp.events import MapServerFull
from chappe.kv.chp.messages import HUGZ
from chappe.kv.chp.pair import PairedMapServer
from chappe.kv.chp.server import PEER, UPDATES, MapServerCore
from chappe.replication.binary_star.messages import PARTNER, WITNESS
from chappe.runtime.commits import commit
from chappe.runtime.dialling import Connections
from chappe.runtime.driver import Driver, Frames, Inlet, Ports
from chappe.runtime.map_pair_link import LISTENERS, PairAddresses, PairLink, subscription
from chappe.runtime.map_rules import MapRules
from chappe.system import time
from chappe.system.limits import has_descriptors
from chappe.transports import resolving
from chappe.transports.gate import Gate, sender_of
from chappe.transports.maps import UPDATES_MAX, MapAddress, ServerSockets, requester, send, subscriber
from chappe.transports.zeromq import open_socket

EMPTY_MAX: Final = 4  # clients that are given more in one go, some thousand messages: heartbeats are to be in time
FULL_MAX: Final = 8  # clients with a full queue that are tried again in one go
RETRY_S: Final = 0.005  # how often a client, or a server, with a full queue is tried again
LOOK_S: Final = 1.0  # how often a server looks for descriptors and changed permissions
FULL_TOLD_S: Final = 60.0  # how often at most it is told that no further client can connect
REQUESTS: Final = "requests"  # links of a server, beside those of its pair and of ``Followed``
SUBSCRIPTIONS: Final = "subscriptions"
PUBLISHED: Final = "published"  # links of ``Followed``, each with the place of a server
ANSWERED: Final = "answered"
COLLECTING: Final = "collecting"  # a client's, likewise: a server subscribes to updates


class Followed:
    """The sockets by which a member follows servers: for each one to hear, and one to ask."""

    def __init__(self, driver: Driver, dialling: Connections, gate: Gate | None, servers: Sequence[MapAddress]) -> None:
        self.retry_at = math.inf
        self._driver = driver
        self._dialling = dialling
        self._gate = gate
        self._servers = servers
        self._hearing: list[Inlet] = []
        self._asking: list[Inlet] = []
        self._waiting: list[deque[Frames]] = [deque() for _ in servers]  # messages that a full queue did not take
        for place, address in enumerate(servers):
            heard = driver.watch(Inlet(subscriber(gate), (PUBLISHED, place)))
            dialling.connect(heard, address.endpoint(1), hear=True)
            self._hearing.append(heard)
            self._asking.append(self._open(place))

    def subscribe(self, effect: Subscribe) -> None:
        inlet = self._hearing[effect.to]
        inlet.sock.setsockopt(zmq.SUBSCRIBE if effect.on else zmq.UNSUBSCRIBE, effect.prefix)
        self._driver.suspect(inlet)

    def send(self, place: int, frames: Frames) -> None:
        self._waiting[place].append(frames)
        self._send(place)

    def dial(self, place: int) -> None:
        """Ask over a new connection: answers to the last one do not come."""
        self._waiting[place].clear()
        self._dialling.close(self._asking[place])
        self._asking[place] = self._open(place)

    def retry(self) -> None:
        self.retry_at = math.inf
        for place, waiting in enumerate(self._waiting):
            if waiting:
                self._send(place)

    def _open(self, place: int) -> Inlet:
        made = self._driver.watch(Inlet(requester(self._gate), (ANSWERED, place)))
        self._dialling.connect(made, self._servers[place].endpoint(0))
        return made

    def _send(self, place: int) -> None:
        inlet, waiting = self._asking[place], self._waiting[place]
        while waiting:
            try:
                send(inlet.sock, waiting[0])
            except zmq.Again:
                self.retry_at = time.monotonic() + RETRY_S
                break
            waiting.popleft()
        self._driver.suspect(inlet)


class MapServerPorts(Ports):
    """The sockets and the disk of one server, alone or one of two.

    Args:
        address: Where to listen; port 0: three free ones in a row.
        core: Made with the content of ``backend``.
        pair: Of one of two servers.
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
        pair: PairAddresses | None = None,
        published: bool,
        name: str = "",
        gate: Gate | None = None,
        on_report: Callable[[object], None],
    ) -> None:
        self.core = core
        self.rules = None if gate is None else MapRules(gate, name, "" if pair is None else pair.peer.name)
        self._backend = backend
        self.gate = gate
        self._on_report = on_report
        self._waiting: dict[bytes, deque[Frames]] = {}  # answers that a client's full queue did not take
        self._asking: set[bytes] = set()  # of these clients: the core has more for them
        self._empty: deque[bytes] = deque()  # clients that have taken all, and the core has more for them
        self._retry_at = math.inf
        self._look_at = time.monotonic() + LOOK_S
        self._told_full_at = -math.inf
        self._peer: Followed | None = None
        self._pair: PairLink | None = None
        try:
            driver = Driver(core, self, "map server")
        except BaseException:
            self.close_files()
            raise
        self._dialling = Connections(driver, gate)
        try:
            self._sockets = ServerSockets(address, published=published, gate=gate)
            self.address = MapAddress(address.host, self._sockets.port, "" if gate is None else gate.name)
            self._subscriptions = driver.watch(Inlet(self._sockets.publisher, SUBSCRIPTIONS))
            self._requests = driver.watch(Inlet(self._sockets.router, REQUESTS, copied=gate is None))
            driver.watch(Inlet(self._sockets.collector, UPDATES, copied=gate is None))
            if pair is not None:
                self._peer = Followed(driver, self._dialling, gate, [pair.peer])
                self._pair = PairLink(driver, self._dialling, pair, gate, self.rules)
        except BaseException:
            driver.release()
            raise

    # -- input ---------------------------------------------------------------------------------------------------------

    def hear(self, link: Any, frames: Frames) -> Sequence[Effect]:
        """Pass a message to the core. Those with keys are judged first."""
        now = time.monotonic()
        if link == REQUESTS:
            self.driver.drain(self._subscriptions)  # who asks has subscribed before, and hears what follows
            if self.rules is None:
                return self.core.handle_request(frames[0], frames[1:], now)
            return self._judge(self.rules, sender_of(frames), [each.bytes for each in frames], now)
        if link == SUBSCRIPTIONS:
            return self._subscribed(frames, now)
        if link == UPDATES:
            if self.gate is not None and self.rules is not None:  # those with keys write by steps
                self.gate.refuse(self.rules.update(sender_of(frames)))
                return ()
            return self.core.handle_message(UPDATES, frames, now)
        if link == LISTENERS:
            assert self._pair is not None
            self._pair.hear(frames)
            return ()
        if link == PARTNER:
            return self.core.handle_message(PARTNER, frames, now)
        if link == WITNESS:
            return self.core.handle_answer(WITNESS, frames, now)
        if link[0] == PUBLISHED:
            return self.core.handle_message(PEER, frames, now)
        return self.core.handle_answer(PEER, frames, now)

    def _judge(self, rules: MapRules, who: str, frames: list[bytes], now: float) -> Sequence[Effect]:
        found, passes = rules.request(who, frames[1:])
        if passes:
            return self.core.handle_request(frames[0], found, now)
        return [Close(frames[0]), Reply(frames[0], (found,))] if found else ()

    def _subscribed(self, frames: Frames, now: float) -> Sequence[Effect]:
        on, prefix = subscription(frames)
        if self.rules is not None:  # what is published of keys is for other programs: rules cannot tell who hears it
            if prefix != HUGZ:
                return ()
            if on:  # who leaves is forgotten by the socket
                self._sockets.publisher.setsockopt(zmq.SUBSCRIBE, HUGZ)
        return self.core.handle_subscription(prefix, on, now)

    def holds(self, link: Any) -> bool:
        """Return True to leave updates in their socket while too many wait for the disk."""
        return link == UPDATES and self.core.crowded

    # -- effects -------------------------------------------------------------------------------------------------------

    def reply(self, effect: Reply) -> None:
        """Send messages to a client, behind those that its full queue did not take."""
        waiting = self._waiting.get(effect.to)
        if waiting is None:
            self._send(effect.to, deque(effect.message))
        else:
            waiting.extend(effect.message)

    def _send(self, client: bytes, messages: deque[Frames]) -> None:
        router = self._sockets.router
        self.driver.suspect(self._requests)
        while messages:
            try:
                send(router, [client, *messages[0]])
            except zmq.Again:
                self._waiting[client] = messages
                self._retry_at = min(self._retry_at, time.monotonic() + RETRY_S)
                return
            except zmq.ZMQError:  # it is not there any more
                self._asking.discard(client)
                self.driver.perform(self.core.handle_gone(client, time.monotonic()))
                return
            messages.popleft()
        if client in self._asking:
            self._asking.discard(client)
            self._ask_more(client)

    def flush(self, effect: Flush) -> None:
        """Ask the core for more once a client has taken everything."""
        if effect.link in self._waiting:
            self._asking.add(effect.link)
        else:
            self._ask_more(effect.link)

    def _ask_more(self, client: bytes) -> None:
        self._empty.append(client)
        self._retry_at = -math.inf

    def close_link(self, effect: Close) -> None:
        self._waiting.pop(effect.link, None)
        self._asking.discard(effect.link)

    def publish(self, effect: Publish) -> None:
        send(self._sockets.publisher, effect.message)
        self.driver.suspect(self._subscriptions)

    def send(self, effect: Send) -> None:
        """Ask the other server of the map, or send the pair's partner a heartbeat; they are the same."""
        assert self._peer is not None
        assert self._pair is not None
        if effect.to == PARTNER:
            self._pair.tell(effect.message)
        else:
            self._peer.send(PEER, effect.message)

    def subscribe(self, effect: Subscribe) -> None:
        assert self._peer is not None
        self._peer.subscribe(effect)

    def dial(self, effect: Dial) -> None:
        assert self._peer is not None
        self._peer.dial(effect.link)

    def ask(self, effect: Ask) -> None:
        assert self._pair is not None
        self._pair.ask(effect.request)

    def report(self, event: object) -> None:
        self._on_report(event)

    # -- the disk ------------------------------------------------------------------------------------------------------

    def carry_out(self, job: Commit) -> StorageError | None:
        """Write a commit to the backend; return the error that it was refused with."""
        assert self._backend is not None
        return commit(self._backend, job)

    def done(self, job: Commit, outcome: StorageError | None, now: float) -> Sequence[Effect]:
        return self.core.handle_done(job, outcome, now)

    def close_files(self) -> None:
        if self._backend is not None:
            self._backend.close()

    # -- time and end --------------------------------------------------------------------------------------------------

    def next_timeout(self) -> float:
        """Return when a full queue is tried again, or descriptors are looked at."""
        due = min(self._retry_at, self._look_at)
        return due if self._peer is None else min(due, self._peer.retry_at)

    def handle_timeout(self, now: float) -> None:
        """Try full queues again, ask the core for more, look at descriptors and permissions."""
        if now >= self._look_at:
            self._look_at = now + LOOK_S
            self._look(now)
        if self._peer is not None and now >= self._peer.retry_at:
            self._peer.retry()
        if now >= self._retry_at:
            self._retry(now)

    def _look(self, now: float) -> None:
        if now >= self._told_full_at + FULL_TOLD_S and not has_descriptors():
            # ZeroMQ lets further clients wait without a word.
            self._told_full_at = now
            self._on_report(MapServerFull(self.core.clients, MAP_SERVER_FILES))
        if self.rules is not None and self.rules.changed():  # clients ask anew, and learn whether they still may
            self.driver.perform(self.core.begin_anew())

    def _retry(self, now: float) -> None:
        self._retry_at = math.inf
        for _ in range(min(len(self._empty), EMPTY_MAX)):
            self.driver.perform(self.core.handle_taken(self._empty.popleft(), now))
        if self._empty:
            self._retry_at = -math.inf
        if len(self._waiting) > FULL_MAX:
            self._retry_at = min(self._retry_at, now + RETRY_S)
        for client in list(itertools.islice(self._waiting, FULL_MAX)):
            messages = self._waiting.pop(client, None)
            if messages is not None:
                self._send(client, messages)

    def release(self) -> None:
        self._dialling.release()


class MapUser(Protocol):
    """The application's side of a client; all is called with the lock held."""

    def resolved(self, effect: Resolve) -> None: ...

    def changed(self, effect: Deliver) -> None: ...

    def reported(self, event: object) -> None: ...


class MapClientPorts(Ports):
    """The sockets of one client.

    Args:
        servers: In the order in which they are tried.
        published: Writes to servers of other programs are published to all of them (model 6), and not pushed to the
            one that is followed (model 5).
        user: Held weakly.
        gate: Of a client with keys.
    """

    def __init__(
        self,
        servers: Sequence[MapAddress],
        core: MapClientCore,
        *,
        published: bool,
        user: MapUser,
        gate: Gate | None = None,
    ) -> None:
        self.core = core
        self._servers = servers
        self._published = published
        self._user = weakref.ref(user)
        self._gate = gate
        self._pushing: dict[int, zmq.Socket[bytes]] = {}  # updates to servers of model 5
        self._publishing: dict[int, Inlet] = {}  # ... and of model 6
        self._reached: set[int] = set()  # servers that take what is published to them
        self._unsent: dict[int, deque[Frames]] = {}
        driver = Driver(core, self, "map")
        self._dialling = Connections(driver, gate)
        try:
            self._followed = Followed(driver, self._dialling, gate, servers)
        except BaseException:
            driver.release()
            raise

    def hear(self, link: tuple[str, int], frames: Frames) -> Sequence[Effect]:
        kind, place = link
        if kind == ANSWERED:
            return self.core.handle_answer(place, frames, time.monotonic())
        if kind == PUBLISHED:
            return self.core.handle_message(place, frames, time.monotonic())
        if frames[0][:1] == b"\1":  # nothing can be sent before it has subscribed
            self._reached.add(place)
        else:
            self._reached.discard(place)
        self._send_unsent(place)
        return ()

    # -- effects -------------------------------------------------------------------------------------------------------

    def send(self, effect: Send) -> None:
        self._followed.send(effect.to, effect.message)

    def subscribe(self, effect: Subscribe) -> None:
        self._followed.subscribe(effect)

    def dial(self, effect: Dial) -> None:
        self._followed.dial(effect.link)

    def resolve(self, effect: Resolve) -> None:
        user = self._user()
        if user is not None:
            user.resolved(effect)

    def deliver(self, effect: Deliver) -> None:
        user = self._user()
        if user is not None:
            user.changed(effect)

    def report(self, event: object) -> None:
        user = self._user()
        if user is not None:
            user.reported(event)

    def leave(self) -> None:
        """Disconnect from the server; writes that are not confirmed may be lost."""
        if self.driver.turns.halted is None:
            self.driver.perform(self.core.close())

    def next_timeout(self) -> float:
        return self._followed.retry_at

    def handle_timeout(self, now: float) -> None:
        self._followed.retry()

    def release(self) -> None:
        self._dialling.release()
        for each in self._pushing.values():
            each.close()

    # -- writing to servers of other programs --------------------------------------------------------------------------

    def publish(self, effect: Publish) -> None:
        write: PlainWrite = effect.message
        if self._gate is not None:
            return  # other programs have no keys; nobody will know of it
        if not self._published:
            self._push(write.server, write.frames)
            return
        for place in range(len(self._servers)):  # a socket each, as each is reached at another time
            if place not in self._publishing:
                self._open_publisher(place)
            self._unsent[place].append(write.frames)
            self._send_unsent(place)

    def _push(self, place: int, frames: Frames) -> None:
        sock = self._pushing.get(place)
        if sock is None:
            sock = self._pushing[place] = open_socket(zmq.PUSH)
            sock.setsockopt(zmq.SNDHWM, UPDATES_MAX)
            resolving.connect(sock, self._servers[place].endpoint(2))
        try:
            send(sock, frames)
        except zmq.Again:
            pass  # it does not come back: the writer is told that nobody knows of it

    def _open_publisher(self, place: int) -> None:
        sock = open_socket(zmq.XPUB)
        sock.setsockopt(zmq.SNDHWM, UPDATES_MAX)
        resolving.connect(sock, self._servers[place].endpoint(2))
        self._unsent[place] = deque(maxlen=UPDATES_MAX)
        self._publishing[place] = self.driver.watch(Inlet(sock, (COLLECTING, place)))

    def _send_unsent(self, place: int) -> None:
        unsent, inlet = self._unsent[place], self._publishing[place]
        while place in self._reached and unsent:
            send(inlet.sock, unsent.popleft())
        self.driver.suspect(inlet)
