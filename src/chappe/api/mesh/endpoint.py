"""An endpoint of the mesh: it peers, subscribes and publishes."""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Iterable, Iterator
from itertools import count
from typing import Any, Final
from uuid import UUID

from chappe.api import at_exit
from chappe.api.faces import Closeable
from chappe.api.kv.attached import AttachedStore
from chappe.api.kv.attaching import attach_clone, attach_master
from chappe.api.kv.data_store import DataStore
from chappe.api.mesh.arguments import (
    OnFull,
    as_id,
    as_policy,
    check_bounds,
    check_port,
    check_retry,
    chunks,
    encode_topic,
    encode_value,
    own_id,
)
from chappe.api.mesh.publisher import Publisher
from chappe.api.mesh.questions import Asked, Questions
from chappe.api.mesh.received import Received
from chappe.api.mesh.statuses import StatusSubscriber
from chappe.api.mesh.subscriber import Subscriber
from chappe.api.mesh.waiting import Waiting
from chappe.core import Report
from chappe.defaults import (
    CLONE_BUFFER_S,
    CLONE_RESYNC_S,
    CLONE_STALE_S,
    CLOSE_S,
    HEARTBEAT_S,
    KIB,
    PEER_BYTES_MAX,
    PEER_MESSAGES_MAX,
    SUBSCRIBER_BYTES_MAX,
    SUBSCRIBER_MESSAGES_MAX,
    TTL,
)
from chappe.errors import Closed, Unreachable, UsageError
from chappe.mesh.actions import Deliver, Resolve
from chappe.mesh.endpoint import EndpointCore, EndpointOptions, PeerInfo
from chappe.mesh.events import DefectContained, PeerLost
from chappe.mesh.forwarding.inbox import Inbox
from chappe.mesh.messages import DATA, NOBODY
from chappe.mesh.policy import Policy
from chappe.runtime.mesh_node import MeshNode
from chappe.security import Security, check_reach, check_security
from chappe.system import machine, time
from chappe.system.forking import own
from chappe.transports.tcp import READ_BYTES
from chappe.transports.tls import contexts

logger = logging.getLogger("chappe")

RETRY_S: Final = 10.0  # as the original
AWAIT_S: Final = 10.0  # as the original
CHUNK: Final = 1024  # messages of an iterable handed over at once ...
CHUNK_BYTES: Final = 256 * KIB  # ... or so many bytes of them; both never more than what may wait for a peer
CLOSE_JOIN_S: Final = 1.0  # of callbacks that are running
_CLOSED: Final = "the endpoint was closed"


class Endpoint(Closeable):
    """One member of the mesh.

    Any number of them can be in one process. Use from several threads is safe. Close it, or use it in a ``with``.

    Args:
        id: A UUID; by default the one that its certificate names, else a random one.
        security: See ``chappe.security``. By default connections are plain and only within this machine.
        forwarding: Whether messages pass through this endpoint from one peer to another.
        on_full: What happens when a peer takes less than is published: ``publish`` waits (``block``), ``drop_oldest``,
            ``drop_newest``, or ``disconnect`` (and dial again, if we dialled). What is dropped is counted and reported.
        peer_messages_max: How many messages may wait for each peer; then ``on_full`` applies.
        peer_bytes_max: How many bytes.
        heartbeat_s: A peer that was silent for three times so long is lost, unless it still takes what is sent.

    Raises:
        UsageError: An argument or a file of the security is wrong.
    """

    def __init__(
        self,
        *,
        id: str | UUID | None = None,
        security: Security = None,
        forwarding: bool = True,
        on_full: OnFull = "block",
        peer_messages_max: int = PEER_MESSAGES_MAX,
        peer_bytes_max: int = PEER_BYTES_MAX,
        heartbeat_s: float = HEARTBEAT_S,
    ) -> None:
        own(self)
        self.security = check_security(security)
        check_bounds(peer_messages_max, peer_bytes_max)
        if not 0 < heartbeat_s < math.inf:
            raise UsageError(f"heartbeat_s is a number of seconds above 0, not {heartbeat_s!r}")
        made = contexts(security)
        raw_id = own_id(id, made)
        self.id = str(UUID(bytes=raw_id))
        self.capacity = peer_messages_max
        self._chunk_bytes = min(CHUNK_BYTES, peer_bytes_max)
        self.core = EndpointCore(
            raw_id,
            EndpointOptions(
                forwarding=forwarding,
                heartbeat_s=heartbeat_s,
                peer_messages_max=peer_messages_max,
                peer_bytes_max=peer_bytes_max,
                peer_policy=as_policy(on_full),
                contains=True,
                first_number=time.time_ns() // 1000,  # above those of an earlier life of this id
            ),
            time.monotonic(),
        )
        self._numbers = count(1)
        self._questions = Questions()
        self._subscribers: dict[int, Subscriber] = {}
        self._statuses: list[StatusSubscriber] = []
        self._stores: list[AttachedStore] = []
        self._closing = False  # we say goodbye: what is published now would reach nobody
        self._rooms: list[Waiting] = []  # publishers that a descriptor tells whether there is room
        self._threads: list[threading.Thread] = []
        self.node = MeshNode(self.core, made, {Deliver: self._deliver, Resolve: self._resolve, Report: self._report})
        self._turns = self.node.turns
        self._lock = self.node.lock
        at_exit.add(self)

    # -- peers ----------------------------------------------------------------------------------------

    def listen(self, host: str = "127.0.0.1", port: int = 0) -> int:
        """Accept peers; returns the port, which is any free one by default. ``*`` listens on all interfaces.

        Raises:
            AddressInUse: Somebody listens there.
            UsageError: The host is not of this machine, or reachable from others and no security was chosen.
        """
        check_reach(self.security, host)
        self._check()
        return self.node.listen(host, port)

    def peer(self, host: str, port: int, *, retry_s: float = RETRY_S, timeout: float | None = None) -> str:
        """Dial until a peering stands; returns the peer's id. Ctrl-C ends the wait, and so does ``close``.

        A peering that is lost later is dialled again, at once and then every ``retry_s``, until ``unpeer``.

        Args:
            host: Name or address.
            port: Its port.
            retry_s: How long to wait between attempts; 0 for a single attempt.
            timeout: Seconds after which TimedOut is raised; dialling goes on in the background.

        Raises:
            PeerUnavailable: The only attempt failed; the text says why.
            PeerIncompatible: The other side speaks no version of the protocol that we do.
            TimedOut: There is no peering yet; there may be one later.
        """
        asked = self.begin_peer(host, port, retry_s)
        asked.wait(timeout)
        return str(UUID(bytes=asked.take(f"no peering with {host}:{port} yet: is an endpoint listening there?")))

    def begin_peer(self, host: str, port: int, retry_s: float) -> Asked:
        """``peer`` up to the wait."""
        check_reach(self.security, host)
        return self._ask(self.core.peer, host, check_port(port), check_retry(retry_s))

    def peer_nosync(self, host: str, port: int, *, retry_s: float = RETRY_S) -> None:
        """As ``peer``, without waiting: statuses and errors tell what became of it."""
        self.begin_peer(host, port, retry_s).forget()

    def unpeer(self, host: str, port: int, *, timeout: float | None = None) -> None:
        """End the peering with what was dialled there, after everything published before has arrived; dial no more.

        Raises:
            PeerInvalid: There is no such peering.
            TimedOut: The peer has not answered yet; the peering ends anyway.
        """
        asked = self.begin_unpeer(host, port)
        asked.wait(timeout)
        asked.take(f"{host}:{port} has not said goodbye yet")

    def begin_unpeer(self, host: str, port: int) -> Asked:
        """``unpeer`` up to the wait."""
        return self._ask(self.core.unpeer, host, check_port(port))

    def unpeer_nosync(self, host: str, port: int) -> None:
        """As ``unpeer``, without waiting."""
        self.begin_unpeer(host, port).forget()

    def peers(self) -> list[PeerInfo]:
        """The direct peers, and what is being dialled."""
        with self._lock:
            self._turns.check()
            return self.core.peers()

    def await_peer(
        self,
        id: str | UUID,
        timeout: float | None = AWAIT_S,
        *,
        callback: Callable[[bool], object] | None = None,
    ) -> bool:
        """Wait until the endpoint ``id`` can be reached, directly or over others; False if not within ``timeout`` s.

        Then what it wants is known, so that what is published from now on reaches it, at most 17 hops away.

        With ``callback`` it returns True at once, and the callback gets the answer, in a thread of its own; False also
        if the endpoint is closed meanwhile.
        """
        asked = self.begin_await_peer(id, timeout)
        if callback is None:
            asked.wait(None)
            return asked.take(_CLOSED) is True
        self.call_when_done(asked, lambda outcome: callback(outcome is True), "chappe-await-peer")
        return True

    def begin_await_peer(self, id: str | UUID, timeout: float | None) -> Asked:
        """``await_peer`` up to the wait."""
        return self._ask(self.core.await_peer, as_id(id).bytes, timeout)

    def ping(self, id: str | UUID, timeout: float | None = AWAIT_S) -> float:
        """Have a direct peer answer; returns the seconds that it took, there and back.

        Raises:
            PeerInvalid: It is no direct peer.
            PeerUnavailable: The peering ended meanwhile.
            TimedOut: It has not answered yet.
        """
        began = time.monotonic()
        asked = self._ask(self.core.ping, as_id(id).bytes)
        asked.wait(timeout)
        asked.take(f"{id} has not answered yet")
        return time.monotonic() - began

    def forward(self, *topics: str) -> None:
        """Have peers send these prefixes here too, to be passed on to other peers, though nobody here wants them.

        Between endpoints of chappe that is never needed: they find out who wants what.
        """
        self._check()
        self.node.call(self.core.forward, [encode_topic(each) for each in topics])

    # -- subscribing ----------------------------------------------------------------------------------

    def subscribe(
        self,
        *topics: str,
        on_full: OnFull = "drop_oldest",
        messages_max: int = SUBSCRIBER_MESSAGES_MAX,
        bytes_max: int = SUBSCRIBER_BYTES_MAX,
        callback: Callable[[Received], object] | None = None,
    ) -> Subscriber:
        """Get what others publish to topics that start with one of these prefixes; the empty one is all.

        Args:
            topics: Prefixes; more can be added and taken back later.
            on_full: What happens when more waits than the bounds: ``drop_oldest``, ``drop_newest``, ``block`` (nothing
                more is read from any peer until there is room: publishers are slowed down), or ``disconnect`` (the
                subscription ends). Dropped messages are counted and reported.
            messages_max: How many messages may wait.
            bytes_max: How many bytes.
            callback: Called with each message, by a thread that this subscriber has for it.
        """
        check_bounds(messages_max, bytes_max)
        policy = as_policy(on_full)
        # Reading stops at the bounds; what one read brought beyond them is kept, for nothing may be lost.
        beyond = READ_BYTES if policy is Policy.BLOCK else 0
        inbox = Inbox(messages_max + beyond, bytes_max + beyond, policy)
        with self._lock:
            self._check()
            number = next(self._numbers)
            made = Subscriber(self, number, topics, inbox, messages_max, bytes_max)
            self._subscribers[number] = made
            self.node.call(self.core.subscribe, number, [encode_topic(each) for each in topics])
        if callback is not None:
            made.call_back(callback)
        return made

    def statuses(self, *, callback: Callable[[Any], object] | None = None) -> StatusSubscriber:
        """Hear of peers that come and go, of failures and of dropped messages, from now on and in order."""
        with self._lock:
            self._check()
            made = StatusSubscriber(self)
            self._statuses.append(made)
        if callback is not None:
            made.call_back(callback)
        return made

    # -- data stores ----------------------------------------------------------------------------------

    def attach_master(self, name: str, backend: str = "memory", **options: Any) -> DataStore:
        """Have the master of a data store here: everything written to the store goes through it.

        Args:
            name: Of the store, at most 1,024 bytes.
            backend: ``memory``; ``sqlite``, a file, or ``rocksdb``, a folder, at ``path=...``: then a write is done
                when it is on the disk, and the store is there again after a restart.
            options: For ``sqlite`` also ``synchronous``, ``journal_mode``, ``failure_mode`` and ``integrity_check``.

        Raises:
            UsageError: The name, the backend or an option is not valid; or the package of ``rocksdb`` is missing.
            MasterExists: The store has a master in reach, or this endpoint has a clone of it.
            StorageLocked: Another process has the file open.
            StorageFormat: The file was written by a newer chappe, or by something else.
            Damaged: The file is damaged.
        """
        return attach_master(self, name, backend, options)

    def attach_clone(
        self,
        name: str,
        resync_s: float = CLONE_RESYNC_S,
        stale_s: float = CLONE_STALE_S,
        mutation_buffer_s: float = CLONE_BUFFER_S,
        *,
        timeout: float | None = AWAIT_S,
    ) -> DataStore:
        """Have a clone of a data store here: all its data in memory; writes go to its master, wherever that is.

        Waits until the data is there. A clone that loses its master looks for it, or another, until it is closed, and
        becomes equal to it again.

        Args:
            name: Of the store.
            resync_s: Longest pause between two attempts to find a master; at least 0.2.
            stale_s: Without a master for longer, or without changes that it missed, reading raises StaleData; negative
                for never.
            mutation_buffer_s: Without a master, writes are kept so long, then refused; 0 refuses them at once. At most
                12 hours.
            timeout: Seconds to wait for the data; None for ever, 0 not at all.

        Raises:
            NoMaster: There was no master in time; nothing is attached then.
            MasterExists: This endpoint has the master.
            UsageError: An argument is out of its bounds.
        """
        return attach_clone(self, name, resync_s, stale_s, mutation_buffer_s, timeout)

    # -- publishing -----------------------------------------------------------------------------------

    def publisher(self, topic: str) -> Publisher:
        """Publish to one topic, and see how much room there is."""
        encode_topic(topic)
        self._check()
        return Publisher(self, topic)

    def publish(self, topic: str, value: object, *, to: str | UUID | None = None) -> int:
        """Send a value to everybody who subscribed to a prefix of ``topic``, or ``to`` one endpoint alone.

        Returns to how many peers it was handed: 0 if nobody in reach has subscribed, so that it went nowhere. It is on
        its way when this returns, and nobody confirms it. One's own subscribers do not get it. If a peer has
        no room and the policy is ``block``, this waits (Ctrl-C ends the wait).

        Args:
            topic: At most 65,535 bytes.
            value: Anything that ``chappe.data.convert`` can convert, or a message of ``chappe.data.zeek``.
            to: Id of the only receiver, whatever it subscribed to: a subscriber there gets it if its prefix fits.

        Raises:
            UnsupportedValue: The value cannot be converted.
            UsageError: The topic is too long or reserved, or the message larger than 64 MiB.
            Unreachable: There is no way to the endpoint ``to``, or one of more than 17 hops.
            Closed: The endpoint was closed.
        """
        raw, payload = encode_topic(topic), encode_value(value)
        receiver = NOBODY if to is None else as_id(to).bytes
        while (peers := self.try_publish(raw, payload, receiver)) is None:
            self._wait_for_room()
        return peers

    def try_publish(
        self, topic: bytes, payload: bytes, receiver: bytes = NOBODY, source: Subscriber | None = None
    ) -> int | None:
        """Publish what is encoded already; None if there is no room. Returns and raises as ``publish``.

        ``source`` is of somebody behind this endpoint who publishes through it, as a peer would: then one's own other
        subscribers get it too.
        """
        with self._lock:
            if not self.core.room():
                return None
            self._check()
            now = time.monotonic()
            if receiver != NOBODY and self.core.is_too_far(receiver):
                name = UUID(bytes=receiver)
                raise Unreachable(f"endpoint {name} is more than {TTL + 1} hops away: peer with one nearer to it")
            flushes = self.core.publish(topic, payload, DATA, receiver, now)
            if receiver != NOBODY and not flushes:
                raise Unreachable(f"there is no way to endpoint {UUID(bytes=receiver)}: wait for it with await_peer")
            self.node.send_soon(flushes, now)
            if source is not None:
                self.node.perform(self.core.deliver_here(topic, payload, source.number))
            self._done()
            return len(flushes)

    def publish_batch(self, messages: Iterable[tuple[str, object]]) -> int:
        """Send many messages, each a topic and a value: much faster than one by one. Raises as ``publish``.

        Returns how many were handed to at least one peer; nobody in reach has subscribed to the others. What was sent
        before a value that cannot be converted stays sent.
        """
        total = 0
        for chunk in self.chunks(messages):
            while (wanted := self.try_publish_many(chunk)) is None:
                self._wait_for_room()
            total += wanted
        return total

    def chunks(self, messages: Iterable[tuple[str, object]]) -> Iterator[list[tuple[bytes, bytes]]]:
        """Encoded, and in lists as large as ``try_publish_many`` takes them."""
        return chunks(messages, min(CHUNK, self.capacity), self._chunk_bytes)

    def try_publish_many(self, chunk: list[tuple[bytes, bytes]]) -> int | None:
        """Publish what is encoded already; None if there is no room. Returns and raises as ``publish_batch``."""
        with self._lock:
            if not self.core.room():
                return None
            self._check()
            flushes, wanted = self.core.publish_many(chunk, time.monotonic())
            self.node.perform(flushes)
            self._done()
            return wanted

    def room(self) -> bool:
        """Whether ``publish`` would not wait now."""
        return self.core.room()

    @property
    def buffered(self) -> int:
        """How many messages wait for the peer that is furthest behind."""
        with self._lock:
            return self.core.buffered()

    @property
    def dropped(self) -> int:
        """How many messages this endpoint has dropped, for whatever reason: statuses tell where and why."""
        with self._lock:
            return self.core.dropped

    # -- the end --------------------------------------------------------------------------------------

    def close(self) -> None:
        """Say goodbye to all peers and release everything; takes at most about five seconds. Safe to call twice.

        What was published before reaches the peers that take it in that time.
        """
        at_exit.remove(self)
        self._close(math.inf)

    def begin_leave(self) -> None:
        """The program ends, see ``at_exit``: write what is gathered to the sockets."""
        with self._lock:
            if not self._turns.closed and self._turns.halted is None:
                self.node.gatherer.at_once()

    def leave(self, timeout_s: float) -> list[str]:
        """The program ends, see ``at_exit``: close within so long, and tell what is left."""
        deadline = time.monotonic() + timeout_s
        with self._lock:
            stores = list(self._stores)
        for store in stores:
            store.close(max(0.0, deadline - time.monotonic()))
        self._turns.wait(lambda: not self.core.buffered(), max(0.0, deadline - time.monotonic()))
        ended = f"the program ended without closing endpoint {self.id}:"
        left = [
            f"{ended} {store.unconfirmed} writes to data store {store.name!r} were not confirmed by its master and "
            "may be lost"
            for store in stores
            if store.unconfirmed
        ]
        with self._lock:
            if waiting := self.core.buffered():
                left.append(f"{ended} {waiting} messages still waited for a peer, which does not get them")
        self._close(deadline)
        return left

    def _close(self, deadline: float) -> None:
        with self._lock:
            stores = list(self._stores)
            subscribers = list(self._subscribers.values())
        for store in stores:
            store.close(_left(deadline))
        for each in subscribers:
            each.close()
        with self._lock:
            self._closing = True
        self.node.close(_left(deadline))
        with self._lock:
            statuses = list(self._statuses)
            for waiting in self._rooms:
                waiting.close()
            self._rooms.clear()
        for heard in statuses:
            heard.end()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(min(CLOSE_JOIN_S, _left(deadline)))

    def __repr__(self) -> str:
        state = "closed" if self._closing or self._turns.closed else f"{self.node.links} connections"
        return f"<Endpoint {self.id}, {state}>"

    # -- for subscribers, publishers and stores, with the lock held -----------------------------------

    def check(self) -> None:
        """Raise Closed, or MemberStopped if a defect has stopped the endpoint."""
        self._check()

    def new_number(self) -> int:
        """A number that no ticket and no subscriber has."""
        return next(self._numbers)

    def add_store(self, store: AttachedStore) -> None:
        """A store is attached."""
        self._stores.append(store)

    def forget_store(self, store: AttachedStore) -> None:
        """A store is closed."""
        if store in self._stores:
            self._stores.remove(store)

    def call_when_done(self, asked: Asked, function: Callable[[Any], object], name: str) -> None:
        """Have ``function`` called with the outcome of a question, by a thread of its own; without the lock."""

        def answer() -> None:
            asked.wait(None)
            function(asked.outcome)

        thread = machine.current().thread(answer, name)
        self._threads = [each for each in self._threads if each.is_alive()]
        self._threads.append(thread)
        thread.start()

    def forget(self, number: int) -> None:
        """A subscription ends."""
        if self._subscribers.pop(number, None) is not None:
            self.node.call(self.core.unsubscribe, number, None)

    def forget_statuses(self, subscriber: StatusSubscriber) -> None:
        """A subscriber to statuses is closed."""
        if subscriber in self._statuses:
            self._statuses.remove(subscriber)

    def pause(self, number: int, on: bool) -> None:
        """A subscriber wants nothing to be read for a while, or no longer."""
        self.node.pause(number, on)

    def watch_room(self, waiting: Waiting, on: bool) -> None:
        """Tell a publisher's descriptor whether there is room, or no longer."""
        with self._lock:
            if on:
                self._rooms.append(waiting)
            elif waiting in self._rooms:
                self._rooms.remove(waiting)
                waiting.close()

    def report(self, event: object) -> None:
        """Something happened of which whoever wants statuses is to hear."""
        if isinstance(event, DefectContained):
            logger.error("%s", event, exc_info=event.error, extra={"defect": True})
        else:
            logger.info("%s", event)
        if isinstance(event, PeerLost):
            for store in self._stores:
                store.lost_peer = event
        for each in self._statuses:
            each.report(event)

    # -- inside ---------------------------------------------------------------------------------------

    def _ask(self, method: Callable[..., Any], *args: object) -> Asked:
        with self._lock:
            self._check()
            return self._questions.ask(self.node, next(self._numbers), method, *args)

    def _done(self) -> None:
        self._turns.tell()  # publishing brings nothing that is due earlier than who sleeps looks anyway
        if self._rooms:
            for waiting in self._rooms:
                waiting.changed()

    def _wait_for_room(self) -> None:
        self._turns.wait(self.room)
        self._check()

    def _check(self) -> None:
        if self._closing or self._turns.closed:
            raise Closed(_CLOSED)
        self._turns.check()

    def _deliver(self, action: Deliver) -> None:
        subscriber = self._subscribers.get(action.subscriber)
        if subscriber is not None:
            subscriber.deliver(action.messages)

    def _resolve(self, action: Resolve) -> None:
        if self._questions.resolve(action.ticket, action.outcome):
            self._turns.news = True

    def _report(self, action: Report) -> None:
        self.report(action.event)


def _left(deadline: float) -> float:
    """Seconds that a step of closing may take."""
    return max(0.0, min(CLOSE_S, deadline - time.monotonic()))
