"""An endpoint of the mesh: it peers, subscribes and publishes."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final, TypeVar, overload
from uuid import UUID

from chappe.api import at_exit
from chappe.api.ages import OnStale, check_age
from chappe.api.chain.configuration import ChainConfiguration
from chappe.api.faces import Closeable, Seconds, run
from chappe.api.kv.attaching import attach_clone, attach_master
from chappe.api.kv.chained import chaining
from chappe.api.kv.data_store import DataStore
from chappe.api.mesh.aged_subscriber import AgedSubscriber
from chappe.api.mesh.arguments import (
    OnFull,
    as_id,
    as_policy,
    as_recording,
    check_bounds,
    check_port,
    check_retry,
    encode_topic,
)
from chappe.api.mesh.asking import Answer, Request, Responder, ask, respond_with
from chappe.api.mesh.forwarded import Forwarding, OnForward, check_on_forward
from chappe.api.mesh.hooks import Hooks, named_hooks
from chappe.api.mesh.hosting import CLOSED, EndpointHost, Publisher
from chappe.api.mesh.received import Received
from chappe.api.mesh.subscriber import MessageSource, OnGap, StatusSubscriber, Subscriber
from chappe.api.mesh.waiting import Asked
from chappe.api.taps import tap_gate
from chappe.defaults import (
    CLONE_BUFFER_S,
    CLONE_RESYNC_S,
    CLONE_STALE_S,
    CLOSE_S,
    HEARTBEAT_S,
    PEER_BYTES_MAX,
    PEER_MESSAGES_MAX,
    REQUEST_S,
    SUBSCRIBER_BYTES_MAX,
    SUBSCRIBER_MESSAGES_MAX,
    SURPLUS_BYTES_MAX,
    SURPLUS_MESSAGES_MAX,
)
from chappe.errors import UsageError
from chappe.mesh.endpoint import EndpointOptions, PeerInfo
from chappe.mesh.events import EndpointDiscovered, EndpointUnreachable, PeerAdded, PeerLost, PeerRemoved
from chappe.mesh.forwarding.boxes import Policy, SubscriberInbox
from chappe.mesh.forwarding.judging import Refusal
from chappe.mesh.links.dialling import Retry
from chappe.mesh.messages import DATA
from chappe.mesh.network import Network
from chappe.mesh.queues import topic_of
from chappe.runtime.tap_ports import TapPorts
from chappe.security import Keys, Security, check_reach
from chappe.system import time
from chappe.transports.tcp import READ_BYTES

RETRY_S: Final = 10.0  # as the original
AWAIT_S: Final = 10.0  # as the original
CLOSE_JOIN_S: Final = 1.0  # of callbacks that are running
S = TypeVar("S", bound=MessageSource[Any])


class Endpoint(at_exit.Collectable, Closeable, EndpointHost):
    """One member of the mesh.

    Any number of them can be in one process. Use from several threads is safe. Close it, or use it in a ``with``.

    Args:
        id: A UUID; by default that of its certificate, else a random one.
        security: ``chappe.security`` lists the choices. By default connections are plain and only within this machine.
        forwarding: Forward messages from one peer to another.
        paths: The number of routes of a publication to each receiver. With 2 it goes along two trees, which
            share no endpoint and no link except those that every route to the receiver has: when one dies, the other
            copy is on its way, without a wait for a new route. Subscribers get each message once.
        on_full: The policy when a peer is slower than publications: ``publish`` waits (``block``), ``drop_oldest``,
            ``drop_newest``, or ``disconnect`` (and dial again, if we dialled). Dropped messages are counted and
            reported.
        peer_messages_max: How many messages may wait for each peer; then ``on_full`` applies. With ``block`` messages
            on their way from others are taken beyond that, up to twice as many and 131,072 more.
        peer_bytes_max: How many bytes; twice as many in the same way.
        heartbeat_s: A peer that is silent for three times as long is lost, unless it still takes data.
        last_values: The number of topics whose newest message is kept, of those published here, received or forwarded:
            for subscribers that begin later with ``last=True``. At most 64 MiB of them; the topics that were silent
            longest are forgotten first. ``forward`` requests topics that no subscriber here wants.
        recording_directory: A folder, made if missing, that gets the shapes, without contents, of this endpoint's
            publications, its subscriptions and its peers: for ``chappe mesh generate``. A former recording there is
            replaced.
        output_generator_file_cap: How many messages are recorded at most; by default without a limit.
        on_discovered: A hook, called when there is a route to an endpoint; each hook gets the status. Hooks are called
            in a thread, one after the other, in the order of the statuses. They may call everything here, and wait.
            Other publications here wait, 5 s at most, until those hooks have returned that were called before. An
            exception of a hook is reported as ``HookFailed`` and logged, and the endpoint goes on.
        on_connected: Called when a peering is established.
        on_disconnected: Called when a peering is lost.
        on_removed: Called when we ended a peering.
        on_unreachable: Called when the last route to an endpoint is gone.
        on_forward: Called with each message of others that passes from one peer to another here, and returns it,
            ``message.with_value(...)``, or None to hold it back. Subscribers here get the unchanged message. It is
            called while the endpoint works, and so holds it up: it may not call the endpoint, nor wait. After an
            exception the message is held back, counted in ``dropped`` and logged.

    Raises:
        UsageError: An argument or a file of the security is wrong.
        StorageError: Nothing can be recorded in the folder; StorageLocked: another endpoint records there.
    """

    def __init__(
        self,
        *,
        id: str | UUID | None = None,
        security: Security | Keys = None,
        forwarding: bool = True,
        paths: int = 1,
        on_full: OnFull = "block",
        peer_messages_max: int = PEER_MESSAGES_MAX,
        peer_bytes_max: int = PEER_BYTES_MAX,
        heartbeat_s: float = HEARTBEAT_S,
        last_values: int = 0,
        recording_directory: str | Path | None = None,
        output_generator_file_cap: int | None = None,
        on_discovered: Callable[[EndpointDiscovered], object] | None = None,
        on_connected: Callable[[PeerAdded], object] | None = None,
        on_disconnected: Callable[[PeerLost], object] | None = None,
        on_removed: Callable[[PeerRemoved], object] | None = None,
        on_unreachable: Callable[[EndpointUnreachable], object] | None = None,
        on_forward: OnForward | None = None,
    ) -> None:
        hooks = named_hooks(on_discovered, on_connected, on_disconnected, on_removed, on_unreachable)
        check_on_forward(on_forward, forwarding)
        check_bounds(peer_messages_max, peer_bytes_max)
        if not 0 < heartbeat_s < math.inf:
            raise UsageError(f"heartbeat_s is a number of seconds above 0, not {heartbeat_s!r}")
        if paths not in (1, 2):
            raise UsageError(f"paths is 1 or 2, not {paths!r}")
        if isinstance(last_values, bool) or not isinstance(last_values, int) or last_values < 0:
            raise UsageError(f"last_values is a number of topics, 0 for none, not {last_values!r}")
        options = EndpointOptions(
            last_values=last_values,
            forwarding=forwarding,
            paths=paths,
            heartbeat_s=heartbeat_s,
            peer_messages_max=peer_messages_max,
            peer_surplus=2 * SURPLUS_MESSAGES_MAX,
            peer_bytes_max=peer_bytes_max,
            peer_policy=as_policy(on_full),
            contains=True,
            first_number=time.time_ns() // 1000,  # above those of an earlier life of this id
        )
        recording = as_recording(recording_directory, output_generator_file_cap)
        self._keys = security if isinstance(security, Keys) else None
        super().__init__(id, security, options, recording)
        at_exit.add(self)
        if on_forward is not None:
            self.core.router.passing.shows = Forwarding(on_forward, self._turns)
        if any(hooks.values()):
            Hooks(self, hooks).start()

    # -- peers ----------------------------------------------------------------------------------------

    def listen(self, host: str = "127.0.0.1", port: int = 0) -> int:
        """Accept peers; return the port, which is any free one by default. ``*`` listens on all interfaces.

        Raises:
            AddressInUse: Another program listens there.
            UsageError: The host is not of this machine, or reachable from others and no security was chosen.
        """
        check_reach(self.security, host)
        self.check()
        return self.node.listen(host, port)

    def tap(self, host: str = "127.0.0.1", port: int = 0) -> int:
        """Let ``chappe tap`` see the traffic of this endpoint; return the port, by default any free one.

        A tap without a viewer costs nothing, and viewers slow no member down. With an identity (``security=Keys(...)``
        or ``CHAPPE_IDENTITY``) it shows topics only to identities that may ``administer`` them, encrypted; otherwise to
        any program that reaches the port, on this machine alone unless the endpoint's security is ``"plain"``.

        Raises:
            AddressInUse: Another program listens there.
            UsageError: The host is not of this machine, or reachable from others and there is no identity.
        """
        self.check()
        made = TapPorts(self, host, port, tap_gate("plain" if self.security == "plain" else self._keys, host))
        with self._lock:
            self._taps.append(made)
        return made.port

    def peer(
        self,
        host: str,
        port: int,
        *,
        retry_s: float = RETRY_S,
        retry_max_s: float | None = None,
        attempts: int | None = None,
        timeout: float | None = None,
    ) -> str:
        """Dial until a peering is established; return the peer's id. Ctrl-C ends the wait, and so does ``close``.

        A peering that is lost later is dialled again in the same way, at once to begin with, until ``unpeer``.

        Args:
            host: Name or address.
            port: Its port.
            retry_s: How long to wait between attempts; 0 for a single attempt.
            retry_max_s: Each wait is twice as long as the one before, up to this, less a random part of up to half;
                None: all are ``retry_s``.
            attempts: How many in a row may fail before dialling ends; None: any number.
            timeout: Seconds after which TimedOut is raised; dialling goes on in the background.

        Raises:
            PeerUnavailable: The last of the attempts failed; the text says why.
            PeerIncompatible: The other side speaks no version of the protocol that we do.
            TimedOut: There is no peering yet; there may be one later.
        """
        asked = self.begin_peer(host, port, check_retry(retry_s, retry_max_s, attempts))
        asked.wait(timeout)
        return str(UUID(bytes=asked.take(f"no peering with {host}:{port} yet: is an endpoint listening there?")))

    def begin_peer(self, host: str, port: int, retry: Retry) -> Asked:
        """Begin ``peer``, without the wait."""
        check_reach(self.security, host)
        check_port(port)
        with self._lock:
            asked = self.question()
            self.node.do(self.core.peer(host, port, retry, asked.ticket, time.monotonic()))
            return asked

    def peer_nosync(
        self,
        host: str,
        port: int,
        *,
        retry_s: float = RETRY_S,
        retry_max_s: float | None = None,
        attempts: int | None = None,
    ) -> None:
        """Dial as ``peer`` without waiting: statuses and errors report the outcome."""
        self.begin_peer(host, port, check_retry(retry_s, retry_max_s, attempts)).forget()

    def unpeer(self, host: str, port: int, *, timeout: float | None = None) -> None:
        """End the peering with this address, after everything published before has arrived; dial no more.

        Raises:
            PeerInvalid: There is no such peering.
            TimedOut: The peer has not answered yet; the peering ends anyway.
        """
        asked = self.begin_unpeer(host, port)
        asked.wait(timeout)
        asked.take(f"{host}:{port} has not said goodbye yet")

    def begin_unpeer(self, host: str, port: int) -> Asked:
        """Begin ``unpeer``, without the wait."""
        check_port(port)
        with self._lock:
            asked = self.question()
            self.node.do(self.core.unpeer(host, port, asked.ticket, time.monotonic()))
            return asked

    def unpeer_nosync(self, host: str, port: int) -> None:
        """End a peering as ``unpeer`` without waiting."""
        self.begin_unpeer(host, port).forget()

    def peers(self) -> list[PeerInfo]:
        """Return the direct peers, and addresses being dialled."""
        with self._lock:
            self._turns.check()
            return self.core.peers()

    def topology(self) -> Network:
        """Return the network as this endpoint sees it: endpoints, links, filters, distances; ``to_dict``, ``to_dot``.

        Distant changes are seen as soon as their news is here. Links of originals are not seen.
        """
        with self._lock:
            self._turns.check()
            facts = self.core.network()
        return Network.of(facts)

    def await_peer(
        self, id: str | UUID, timeout: float | None = AWAIT_S, *, callback: Callable[[bool], object] | None = None
    ) -> bool:
        """Wait until the endpoint ``id`` can be reached, directly or over others; False if not within ``timeout`` s.

        Then its subscriptions are known: publications from now on reach it.

        With ``callback`` it returns True at once, and the callback gets the answer, in a thread of its own; False also
        if the endpoint is closed meanwhile.
        """
        asked = self.begin_await_peer(id, timeout)
        if callback is None:
            asked.wait(None)
            return asked.take(CLOSED) is True
        self.call_when_done(asked, lambda outcome: callback(outcome is True), "chappe-await-peer")
        return True

    def begin_await_peer(self, id: str | UUID, timeout: float | None) -> Asked:
        """Begin ``await_peer``, without the wait."""
        raw = as_id(id).bytes
        with self._lock:
            asked = self.question()
            self.node.do(self.core.await_peer(raw, timeout, asked.ticket, time.monotonic()))
            return asked

    def ping(self, id: str | UUID, timeout: float | None = AWAIT_S) -> float:
        """Send a ping to a direct peer; return the seconds until its answer.

        Raises:
            PeerInvalid: It is not a direct peer.
            PeerUnavailable: The peering ended meanwhile.
            TimedOut: It has not answered yet.
        """
        began = time.monotonic()
        raw = as_id(id).bytes
        with self._lock:
            asked = self.question()
            self.node.do(self.core.ping(raw, asked.ticket, time.monotonic()))
        asked.wait(timeout)
        asked.take(f"{id} has not answered yet")
        return time.monotonic() - began

    def forward(self, *topics: str) -> None:
        """Ask peers to send these prefixes here too, to be forwarded to other peers, without a subscriber here.

        Between endpoints of chappe that is needed only to keep last values of topics that no subscriber wants: they
        know each other's subscriptions.
        """
        raw = [encode_topic(each) for each in topics]
        with self._lock:
            self.check()
            self.node.do(self.core.forward(raw, time.monotonic()))

    # -- subscribing ----------------------------------------------------------------------------------

    def subscribe(
        self,
        *topics: str,
        on_full: OnFull = "drop_oldest",
        messages_max: int = SUBSCRIBER_MESSAGES_MAX,
        bytes_max: int = SUBSCRIBER_BYTES_MAX,
        callback: Callable[[Received], object] | None = None,
        max_age_s: float | None = None,
        on_stale: OnStale = "end",
        on_gap: OnGap | None = None,
        last: bool = False,
        queue: str | None = None,
    ) -> Subscriber:
        """Get the publications of others to topics that start with one of these prefixes; the empty one is all.

        Args:
            topics: Prefixes; more can be added and removed later.
            on_full: The policy when more waits than the bounds: ``drop_oldest``, ``drop_newest``, ``block`` (its
                publishers wait, over any number of endpoints, and others do not), or ``disconnect`` (the
                subscription ends). Dropped messages are counted and reported. With ``block`` up to 65,536 messages and
                64 MiB more than the bounds may wait: those already on their way. A publisher that does not wait, and
                sends more than half of that, loses it; so do all while this subscriber takes nothing for three
                heartbeats.
            messages_max: How many messages may wait.
            bytes_max: How many bytes.
            callback: Called with each message, by a thread of this subscriber.
            max_age_s: The greatest time since publication when a message is taken; None: no limit. Of
                messages of originals: since the first endpoint of chappe got it.
            on_stale: The policy for an older message: taking it raises TooSlow, and the subscription ends (``end``); or
                such messages are dropped, counted and reported (``drop``).
            on_gap: Called with a ``Gap`` when messages are missing that a publisher sent to one of these topics after
                the first one that came, wherever they were lost: on their way, in a full queue, or here as too old. It
                is called by the taker of messages, before any is taken; its exceptions come out of that call.
            last: Get the newest message of each topic at once from endpoints in reach that keep last values, and from
                those that come later; each once, and never one behind a newer one of its publisher.
            queue: The name of a queue, at most 255 bytes: of all subscribers in the mesh with this name, each message
                goes to one that wants its topic, also to one of the publisher's own endpoint. While members come and go
                a message may go to two, and those of a member that is gone to none until the others know: at once
                where its connection ends, else within three heartbeats; 6 s over originals. At most 1,024 members, and
                64 KiB of prefixes at each endpoint.

        Raises:
            NotPermitted: The permissions let this identity have nothing of a prefix, of others it gets its share; or
                not subscribe and publish to ``<$>/queue/`` and the queue's name.
        """
        check_age(max_age_s, on_stale)
        if last and max_age_s is not None:
            raise UsageError("last=True gets values of any age: leave out max_age_s, or last")
        if queue is not None and (last or on_gap is not None):
            raise UsageError("messages of a queue go to others too: leave out last and on_gap, or queue")
        inbox = _inbox(on_full, messages_max, bytes_max)

        def make(number: int) -> Subscriber:
            if max_age_s is None:
                return Subscriber(self, number, topics, inbox, messages_max, bytes_max, on_gap, last)
            return AgedSubscriber(self, number, topics, inbox, messages_max, bytes_max, max_age_s, on_stale, on_gap)

        made = self._subscribe(make, topics, queue, times=max_age_s is not None, last=last)
        if callback is not None:
            made.call_back(callback)
        return made

    def _subscribe(
        self,
        make: Callable[[int], S],
        topics: Iterable[str],
        queue: str | None,
        *,
        times: bool = False,
        last: bool = False,
    ) -> S:
        encoded = [encode_topic(each) for each in topics]
        shared = b"" if queue is None else topic_of(encode_topic(queue))
        with self._lock:
            self.check()
            self.require_subscribe([*encoded, shared] if shared else encoded)
            if shared and self.permitted is not None:
                self.permitted.publish((shared,), DATA)
            made = make(next(self.numbers))
            made.queue = shared
            self._subscribers[made.number] = made
            now = time.monotonic()
            effects = self.core.subscribe(made.number, encoded, DATA, times, last, now=now)
            try:
                effects += self.node.member.put_in_queue(made.number, shared, now) if shared else []
            except UsageError:
                self.forget(made.number)
                raise
            self.node.do(effects)
        return made

    # -- requests -------------------------------------------------------------------------------------

    @overload
    def request(self, topic: str, value: object, *, timeout: Seconds = ...) -> Answer: ...

    @overload
    def request(self, topic: str, value: object, *, timeout: Seconds = ..., answers: int) -> list[Answer]: ...

    def request(
        self, topic: str, value: object, *, timeout: Seconds = REQUEST_S, answers: int | None = None
    ) -> Answer | list[Answer]:
        """Publish a request, and wait for its answer; Ctrl-C ends the wait.

        All subscribers to the topic get the request; responders answer it. Nothing is sent again: a request or an
        answer that is lost ends in TimedOut, and a responder may have done its work.

        Args:
            topic: As ``publish`` has it.
            value: Likewise.
            timeout: Seconds, the wait for room included; None: no bound.
            answers: How many to wait for, 1 to 10,000: then those that came by ``timeout`` are returned as a list, also
                if they are fewer, and an answer that is an error has it as ``error``. 64 MiB of them end the wait, too.
                By default the first one is returned, alone.

        Raises:
            NoResponders: Nobody in reach subscribes to the topic. Originals in between tell only what they want.
            RequestFailed: The responder answered with an error. Without ``answers``.
            TimedOut: No answer came within ``timeout``.
            BufferFull: 65,536 requests wait for answers.
            NotPermitted: The permissions do not let this identity publish there, or not subscribe to its inbox,
                ``<$>/inbox/`` and the endpoint's id.
            UnsupportedValue, UsageError, Sealed, Closed: As ``publish``.
        """
        found = run(ask(self, topic, value, timeout, answers), self._turns.wait)
        return found[0] if answers is None else found

    def responder(
        self,
        *topics: str,
        queue: str | None = None,
        on_full: OnFull = "drop_oldest",
        messages_max: int = SUBSCRIBER_MESSAGES_MAX,
        bytes_max: int = SUBSCRIBER_BYTES_MAX,
    ) -> Responder:
        """Get the requests of others to topics that start with one of these prefixes, each to be answered.

        The arguments are those of ``subscribe``; with ``queue`` each request goes to one of its members. Raises as
        ``subscribe``.
        """
        inbox = _inbox(on_full, messages_max, bytes_max)
        make = lambda number: Responder(self, number, topics, inbox, messages_max, bytes_max)  # noqa: E731
        return self._subscribe(make, topics, queue)

    def respond(self, topic: str, function: Callable[[Request], object], **options: Any) -> Responder:
        """Answer requests with the results of ``function``, which a thread calls, until the responder is closed.

        It is called with one request after the other. Its exception is an answer too: type and text reach the
        originator, the traceback is logged here. It may answer by ``request.reply``; then its result is ignored.
        ``options`` are those of ``responder``, which this raises as.
        """
        made = self.responder(topic, **options)
        made.call_back(respond_with(function))
        return made

    def statuses(self, *, callback: Callable[[Any], object] | None = None) -> StatusSubscriber:
        """Report peers that come and go, failures and dropped messages, from now on and in order."""
        with self._lock:
            self.check()
            made = StatusSubscriber(self)
            self.listening[made] = None
        if callback is not None:
            made.call_back(callback)
        return made

    # -- data stores ----------------------------------------------------------------------------------

    def attach_master(
        self,
        name: str,
        backend: str = "memory",
        *,
        chain: ChainConfiguration | str | Path | None = None,
        server: str | None = None,
        directory: str | Path | None = None,
        history: int = 0,
        **options: Any,
    ) -> DataStore:
        """Hold the master of a data store here: all writes to the store go through it.

        Args:
            name: The store's name, at most 1,024 bytes.
            backend: ``memory``; ``sqlite``, a file, or ``rocksdb``, a folder, at ``path=...``: then a write is done
                when it is on the disk, and the store is there again after a restart.
            chain: The configuration of a chain whose servers all are masters of this store, or its file:
                the one at its head is active, and when that dies another one goes on with everything that was
                confirmed. Clones need to be linked with all of them, directly or not. The servers listen at their
                addresses in the configuration; they have keys if ``CHAPPE_IDENTITY`` names an identity. The store can
                be read here once the chain is founded, or has taken this server in.
            server: This server's name in the configuration.
            directory: The chain's log and state, if the chain is durable; made if missing.
            history: How many changes of each key are kept for ``DataStore.history``, at most 64; 0 keeps none. A
                backend and a chain keep them with the entries; a master that is attached without drops former ones.
            options: For ``sqlite`` also ``synchronous``, ``journal_mode``, ``failure_mode`` and ``integrity_check``.

        Raises:
            UsageError: The name, the backend or an option is not valid; or the package of ``rocksdb`` is missing.
            NotPermitted: The permissions do not let this identity hold the master.
            MasterExists: The store has a master in reach, or this endpoint has a clone of it.
            StorageLocked: Another process has the file open.
            StorageFormat: The file was written by a newer chappe, or by something else.
            Damaged: The file, or the directory, is damaged.
            ConfigError: The chain's configuration cannot be read.
            AddressInUse: Another program listens at the address of the chain's server.
            IdentityInUse: Another process uses the directory.
            Sealed: The store is sealed: a chain keeps its state in plain.
        """
        chained = chaining(chain, server, directory, backend, options)
        return attach_master(self, name, backend, options, chained, history)

    def attach_clone(
        self,
        name: str,
        resync_s: float = CLONE_RESYNC_S,
        stale_s: float = CLONE_STALE_S,
        mutation_buffer_s: float = CLONE_BUFFER_S,
        *,
        timeout: float | None = AWAIT_S,
    ) -> DataStore:
        """Hold a clone of a data store here: all its data in memory; writes go to its master, wherever that is.

        Waits until the data is there. A clone that loses its master looks for it, or another, until it is closed, and
        becomes equal to it again.

        Args:
            name: The store's name.
            resync_s: Longest pause between two attempts to find a master; at least 0.2.
            stale_s: Without a master for longer, or without changes that it missed, reading raises StaleData; negative
                for never.
            mutation_buffer_s: Without a master, how long writes are kept before they are refused; 0 refuses them at
                once. At most 12 hours.
            timeout: Seconds to wait for the data; None for ever, 0 not at all.

        Raises:
            NoMaster: There was no master in time; nothing is attached then.
            MasterExists: This endpoint has the master.
            NotPermitted: The permissions do not let this identity hold a clone.
            UsageError: An argument is out of its bounds.
        """
        return attach_clone(self, name, resync_s, stale_s, mutation_buffer_s, timeout)

    # -- publishing -----------------------------------------------------------------------------------

    def publisher(self, topic: str) -> Publisher:
        """Return a publisher to one topic, which tells how much room there is."""
        encode_topic(topic)
        self.check()
        return Publisher(self, topic)

    @property
    def dropped(self) -> int:
        """The number of messages this endpoint has dropped, for any reason: statuses say where and why."""
        with self._lock:
            return self.core.dropped

    @property
    def filtered(self) -> int:
        """The number of messages that ``on_forward`` has held back by returning None."""
        return self.core.router.passing.filtered

    @property
    def refused(self) -> int:
        """The number of refusals to neighbours by the permissions; ``refusals`` has the details."""
        return self.core.router.refusals.total

    def refusals(self) -> list[Refusal]:
        """Return the refusals to neighbours by the permissions so far: counts by identity and verb."""
        with self._lock:
            return self.core.router.refusals.listed()

    @property
    def unopened(self) -> int:
        """The number of messages of sealed topics that could not be opened; statuses say why."""
        return 0 if self.node.sealing is None else self.node.sealing.refused

    # -- the end --------------------------------------------------------------------------------------

    def close(self) -> None:
        """Say goodbye to all peers and release everything; takes at most about five seconds. Safe to call twice.

        Earlier publications reach the peers that take them in that time.
        """
        self._turns.check_caller()
        at_exit.remove(self)
        self._close(math.inf)

    def begin_leave(self) -> None:
        """Write gathered messages to the sockets at the end of the program."""
        with self._lock:
            if not self._turns.closed and self._turns.halted is None:
                self.node.gatherer.at_once()

    def leave(self, timeout_s: float) -> list[str]:
        """Close within ``timeout_s`` at the end of the program; return sentences about the rest."""
        deadline = time.monotonic() + timeout_s
        with self._lock:
            stores = list(self.stores)
        for store in stores:
            store.close(max(0.0, deadline - time.monotonic()))
        self._turns.wait(lambda: not self.core.buffered(), max(0.0, deadline - time.monotonic()))
        ended = f"the program ended without closing endpoint {self.id}:"
        left = [
            f"{ended} {store.core.unconfirmed} writes to data store {store.name!r} were not confirmed by its master "
            "and may be lost"
            for store in stores
            if store.core.unconfirmed
        ]
        with self._lock:
            if waiting := self.core.buffered():
                left.append(f"{ended} {waiting} messages still waited for a peer, which does not get them")
        self._close(deadline)
        return left

    def _close(self, deadline: float) -> None:
        with self._lock:
            stores = list(self.stores)
            subscribers = list(self._subscribers.values())
        for tap in self._taps:
            tap.close()
        for store in stores:
            store.close(_left(deadline))
        for each in subscribers:
            each.close()
        with self._lock:
            self._closing = True
        self.node.close(_left(deadline))
        if self._recorder is not None:
            self._recorder.close()
        with self._lock:
            statuses = list(self.listening)
            for waiting in self._rooms:
                waiting.close()
            self._rooms.clear()
        for heard in statuses:
            heard.end()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(min(CLOSE_JOIN_S, _left(deadline)))

    def __repr__(self) -> str:
        state = "closed" if self.closing else f"{self.node.links} connections"
        return f"<Endpoint {self.id}, {state}>"


def _inbox(on_full: OnFull, messages_max: int, bytes_max: int) -> SubscriberInbox:
    check_bounds(messages_max, bytes_max)
    policy = as_policy(on_full)
    # Beyond the bounds publishers wait, and reading stops; what one read brought then is kept, for nothing is lost.
    blocks = policy is Policy.BLOCK
    return SubscriberInbox(
        messages_max + (2 * SURPLUS_MESSAGES_MAX + READ_BYTES if blocks else 0),
        bytes_max + (2 * SURPLUS_BYTES_MAX + READ_BYTES if blocks else 0),
        policy,
    )


def _left(deadline: float) -> float:
    """Return the seconds that a step of closing may take."""
    return max(0.0, min(CLOSE_S, deadline - time.monotonic()))
