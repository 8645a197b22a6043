"""Masters and clones of data stores on a mesh node: their messages, their timers, and the commits of durable masters.

All but ``close`` runs with the node's lock held. A durable master's backend commits on a lane of its own: one commit is
under way while the next one gathers.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, Protocol

from chappe.core import Report
from chappe.defaults import CHANNEL_TICK_S, MASTER_CONFLICT_S
from chappe.errors import BufferFull, Closed, StorageError
from chappe.kv.actions import Action, Commit, Notify, Resolve, Send
from chappe.kv.backend import Backend
from chappe.kv.clone import KvClone
from chappe.kv.commands import from_far, sender_endpoint, to_far
from chappe.kv.engine import Entry, Index
from chappe.kv.events import CommandRefused
from chappe.kv.master import KvMaster
from chappe.kv.topics import check_name, clone_topic, master_topic
from chappe.mesh.endpoint import EndpointCore
from chappe.mesh.filters import matches
from chappe.mesh.messages import COMMAND, NOBODY, Message
from chappe.runtime.turns import Turns
from chappe.runtime.worker import DISKS, Lane
from chappe.transports.gathering import Gatherer

logger = logging.getLogger(__name__)

CLOSE_S: Final = 2.0  # closing waits so long for what is under way: commits, and confirmations of a clone's writes


class Listener(Protocol):
    """Who uses a store: told what it answers, with the lock held."""

    def resolved(self, ticket: int, outcome: object) -> None:
        """A call is over; ``outcome`` is its result or an exception."""

    def notified(self, action: Notify) -> None:
        """A key has changed."""

    def reported(self, event: object) -> None:
        """Something happened (``stores.events``)."""


class KvHost(Protocol):
    """The part of ``MeshNode`` that stores use."""

    core: EndpointCore
    turns: Turns
    gatherer: Gatherer
    lock: threading.RLock
    stores: KvNodes

    def call(self, method: Callable[..., Sequence[Any]], *args: Any) -> None:
        """See ``MeshNode.call``."""


class KvNode:
    """A master or clone on a node.

    Args:
        node: The node.
        core: The master or clone.
        numbers: Hands out the numbers of subscribers.
        backend: Of a durable master; closed at the end.
    """

    def __init__(
        self,
        node: KvHost,
        core: KvMaster | KvClone,
        numbers: Callable[[], int],
        listener: Listener,
        backend: Backend | None = None,
    ) -> None:
        self.node = node
        self.core = core
        self.closing = False
        self.due = -math.inf
        self.master = core if isinstance(core, KvMaster) else None
        self.clone = core if isinstance(core, KvClone) else None
        raw = check_name(core.name)
        self.master_topic = master_topic(raw)
        self.clone_topic = clone_topic(raw)
        self.topics: dict[int, bytes] = {numbers(): self.clone_topic}
        if self.master is not None:
            self.topics[numbers()] = self.master_topic
        self.entries: dict[Index, Entry] | None = None  # to be read without the lock; None: not at present
        self.stopped: set[object] = set()  # those who have no room for further changes
        self._listener = listener
        self._far = False  # whether anything has come over an original
        self._refused_at = -math.inf  # when it was told last that somebody spoke in another's name
        self._full_at = math.inf  # writes that were unconfirmed when one found no room
        self._backend = backend
        self._commits = None if backend is None else Lane(DISKS, node.turns.run)
        self._committing = False
        # A master in memory has room as long as the endpoint has.
        in_memory = self.master is not None and backend is None
        self._room: Callable[[], bool] = node.core.room if in_memory else self._room_here

    def start(self) -> None:
        """Take part; raises UsageError if the endpoint has too many subscriptions to be announced."""
        self.node.stores.add(self)
        try:
            for number, topic in self.topics.items():
                self.node.call(self.node.core.subscribe, number, [topic], COMMAND)
        except BaseException:
            self.closing = True
            self._detach()
            self._close_backend(CLOSE_S)
            raise
        self._look()
        if self.master is not None:
            self.perform(self.master.start(time.monotonic(), time.time_ns()))
        elif self.clone is not None:
            self.perform(self.clone.start(time.monotonic()))
        self._planned()

    # -- application --------------------------------------------------------------------------------------------

    def write(
        self, method: Callable[..., list[Action]], args: tuple[object, ...], options: dict[str, Any], hurry: bool
    ) -> None:
        """Make one call into the core that writes. Without ``hurry`` it may be sent a moment later, with others.

        Raises:
            BufferFull: There is no ``room``: call again when there is.
            Closed: The store was closed.
            MemberStopped: A defect has stopped the endpoint.
            ChappeError: What ``method`` raises.
        """
        self.node.turns.check()
        if self.closing:
            raise Closed(f"store {self.core.name!r} was closed")
        if self.stopped or not self._room():
            raise BufferFull(f"store {self.core.name!r} takes no more writes at present")
        now = time.monotonic()
        if self.master is not None:
            actions = method(*args, now=now, wall_ns=time.time_ns(), **options)
            if not actions and not options:
                return  # in memory, and nobody is to hear of it
        else:
            actions = self._write_clone(method, args, options, now)
        self.perform(actions, hurry)
        if options or self.due > now + CHANNEL_TICK_S:  # without expiry a write brings nothing that is due earlier
            self._planned()

    def _write_clone(
        self, method: Callable[..., list[Action]], args: tuple[object, ...], options: dict[str, Any], now: float
    ) -> list[Action]:
        assert self.clone is not None
        try:
            return method(*args, now=now, **options)
        except BufferFull:
            self._full_at = self.clone.unconfirmed
            raise

    def ask(self, method: Callable[..., list[Action]], *args: object) -> None:
        """Make one call into the core that a ``Resolve`` answers. Raises MemberStopped."""
        self.node.turns.check()
        self.perform(method(*args, now=time.monotonic()))
        self.node.gatherer.at_once()
        self._planned()

    def room(self) -> bool:
        """Whether ``write`` takes another write, or refuses it for another reason than too little room."""
        return not self.stopped and self._room()

    def _room_here(self) -> bool:
        """As ``room``, but for who watches."""
        if not self.node.core.room():
            return False
        if self.clone is None:
            return self.core.room
        if self._full_at != math.inf and not self.clone.refusing:
            if self.clone.unconfirmed >= self._full_at:
                return False
            self._full_at = math.inf
        return self.clone.room or self.clone.refusing

    # -- world --------------------------------------------------------------------------------------------------

    def deliver(self, subscriber: int, messages: Sequence[Message]) -> None:
        """Command messages have come."""
        topic = self.topics[subscriber]
        now = time.monotonic()
        payloads = self._believed([each for each in messages if each.topic == topic], now)
        if self.clone is not None:
            self.perform(self.clone.handle_messages(payloads, now))
        elif self.master is not None and topic is self.master_topic:
            self.perform(self.master.handle_messages(payloads, now, time.time_ns()))
        elif self.master is not None:
            for payload in payloads:
                self.perform(self.master.handle_clone_topic(payload, now))
        self._planned()

    def _believed(self, messages: Sequence[Message], now: float) -> list[bytes]:
        """The messages whose sender can have sent them; others are refused, and reported now and then."""
        known: dict[tuple[bytes, bytes], bool] = {}
        payloads = []
        for each in messages:
            speaker = sender_endpoint(each.payload)
            if self.clone is not None and not self._is_there(each, speaker):
                continue
            if speaker is None or each.origin == speaker:
                payloads.append(each.payload)
                continue
            way = (each.origin, speaker)
            if way not in known:
                known[way] = self.node.core.vouches(*way)
            if known[way]:
                self._far = True
                payloads.append(from_far(each.payload))
            elif now >= self._refused_at + MASTER_CONFLICT_S:
                self._refused_at = now
                by = each.sender.hex() if each.origin == NOBODY else each.origin.hex()
                reason = f"{by} has sent a command in the name of endpoint {speaker.hex()}"
                self._listener.reported(CommandRefused(self.core.name, reason))
        return payloads

    def _is_there(self, message: Message, speaker: bytes | None) -> bool:
        """Whether who sent a message is still in reach, or the original that brought it is.

        What a master said last is read after its link has ended: a clone must not take it for a sign of life.
        """
        near = speaker is not None and message.origin == speaker
        return self.node.core.reaches(speaker if near and speaker is not None else message.sender)

    def gone(self, endpoint: bytes) -> None:
        """An endpoint is out of reach, or was for a moment."""
        self.perform(self.core.handle_gone(endpoint, time.monotonic()))
        self._planned()

    def look_for_master(self, holders: frozenset[bytes]) -> None:
        """The network has changed: ``holders`` are all that may have the master."""
        clone = self.clone
        if clone is None:
            return
        if clone.connected:
            assert clone.master is not None
            master = clone.master.endpoint
            # Of who is behind an original nobody knows what it wants, nor that it is there: silence tells.
            if master not in holders and (clone.master.is_chappe or self.node.core.reaches(master)):
                self.gone(master)
        elif holders:
            clone.hurry(time.monotonic())
            self._planned()

    def do_what_is_due(self) -> None:
        """Have the core do it now, if it was not done in time: the machine is busy."""
        if not self.closing and time.monotonic() >= self.due:
            self.handle_timeout()

    def handle_timeout(self) -> None:
        """Have the core do what is due."""
        now = time.monotonic()
        if self.master is not None:
            self.perform(self.master.handle_timeout(now, time.time_ns()))
        elif self.clone is not None:
            self.perform(self.clone.handle_timeout(now))
        self._planned()

    def perform(self, actions: Iterable[Action], hurry: bool = True) -> None:
        """Carry out what the core has answered; sockets are written to once, at the end, or later without ``hurry``."""
        gatherer = self.node.gatherer
        listener = self._listener
        publish = self.node.core.publish
        now = time.monotonic()
        sent = False
        for action in actions:
            if type(action) is Send:
                payload = to_far(action.payload) if self._far else action.payload
                gatherer.add(publish(action.topic, payload, COMMAND, action.receiver or NOBODY, now))
                sent = True
            elif isinstance(action, Resolve):
                listener.resolved(action.ticket, action.outcome)
            elif isinstance(action, Notify):
                listener.notified(action)
            elif isinstance(action, Commit):
                self._commit(action)
            elif isinstance(action, Report):
                listener.reported(action.event)
        if sent and hurry:
            gatherer.at_once()
        elif sent:
            gatherer.soon(now)

    # -- the end ------------------------------------------------------------------------------------------------

    def close(self, timeout_s: float = CLOSE_S) -> None:
        """Take no more writes, wait until those under way are done, and end; the lock is not held.

        Waits at most ``timeout_s`` each for a clone's writes to be confirmed, if it has a master, and for a backend.
        """
        with self.node.lock:
            self.closing = True
        if not self.node.turns.closed:
            self.node.turns.wait(self._settled, timeout_s)
        self._close_backend(timeout_s)
        with self.node.lock:
            self.entries = None
            if not self.node.turns.closed and self.node.turns.halted is None:
                self.perform([] if self.clone is None else self.clone.leave())
                self.node.gatherer.at_once()
            self._detach()

    def _detach(self) -> None:
        self.node.stores.remove(self)
        for number in self.topics:
            self.node.call(self.node.core.unsubscribe, number, None)

    def _settled(self) -> bool:
        if self.clone is not None:
            return not self.clone.connected or not self.clone.unconfirmed
        return not self._committing

    # -- the backend --------------------------------------------------------------------------------------------

    def _commit(self, commit: Commit) -> None:
        assert self._commits is not None
        assert self._backend is not None
        self._committing = True
        backend = self._backend
        self._commits.do(lambda: _commit(backend, commit), lambda error: self._committed(commit, error))

    def _committed(self, commit: Commit, error: StorageError | None) -> None:
        assert self.master is not None
        self._committing = False
        now = time.monotonic()
        if error is None:
            self.perform(self.master.handle_committed(commit.number, now, time.time_ns()))
        else:
            self.perform(self.master.handle_commit_failed(commit.number, error, now))
        self._planned()
        self.node.turns.news = True  # there may be room again

    def _close_backend(self, timeout_s: float) -> None:
        """Let go of it after what is under way."""
        if self._commits is not None and self._backend is not None:
            self._commits.close(timeout_s, self._backend.close)

    # -- inside -------------------------------------------------------------------------------------------------

    def _planned(self) -> None:
        """After every call: when to call again, and whether the data may be read."""
        if self.master is not None:
            self.due = self.master.next_timeout(time.monotonic(), time.time_ns())
        elif self.clone is not None:
            self.due = self.clone.next_timeout()
        self._look()
        self.node.turns.look_again_at(self.due)

    def _look(self) -> None:
        readable = self.clone is None or self.clone.readable
        stopped = self.closing or self.node.turns.halted is not None
        self.entries = self.core.engine.entries if readable and not stopped else None


def _commit(backend: Backend, commit: Commit) -> StorageError | None:
    """Have it commit; returns why it could not."""
    try:
        backend.commit(commit.operations)
    except StorageError as problem:
        return problem
    except Exception as problem:  # a defect of the backend's: refuse the writes, rather than hang
        logger.exception("a commit failed")
        return StorageError(f"the backend failed: {problem!r}")
    return None


class KvNodes:
    """The masters and clones of one node."""

    def __init__(self, core: EndpointCore) -> None:
        self._core = core
        self._stores: list[KvNode] = []
        self._by_subscriber: dict[int, KvNode] = {}
        self._settled = 0  # what of the network was looked at

    def add(self, store: KvNode) -> None:
        """One more."""
        self._stores.append(store)
        self._by_subscriber |= dict.fromkeys(store.topics, store)

    def remove(self, store: KvNode) -> None:
        """One less; safe to call twice."""
        if store in self._stores:
            self._stores.remove(store)
            for number in store.topics:
                del self._by_subscriber[number]

    def deliver(self, subscriber: int, messages: Sequence[Message]) -> bool:
        """Messages have come; False if they are for somebody else."""
        store = self._by_subscriber.get(subscriber)
        if store is None:
            return False
        store.deliver(subscriber, messages)
        return True

    def halt(self) -> None:
        """Nothing can be read or written any more."""
        for store in self._stores:
            store.entries = None

    def gone(self, endpoint: bytes) -> None:
        """An endpoint is out of reach, or was for a moment."""
        for store in list(self._stores):
            store.gone(endpoint)

    def due(self) -> float:
        """When something is to be done."""
        return min([store.due for store in self._stores], default=math.inf)

    def handle_timeouts(self) -> None:
        """Do what is due, and look at what has changed in the network."""
        if not self._stores:
            return
        if self._settled != self._core.settled:
            self._settled = self._core.settled
            filters = self._core.filters()
            for store in list(self._stores):
                if store.clone is not None:
                    wanting = [each for each, wanted in filters.items() if matches(wanted, store.master_topic)]
                    store.look_for_master(frozenset(wanting))
        now = time.monotonic()
        for store in list(self._stores):
            if now >= store.due:
                store.handle_timeout()

    def has_master_in_reach(self, name: str) -> bool:
        """Whether another endpoint says that it has a master of the name; not seen if it subscribed to more."""
        topic = master_topic(check_name(name))
        return any(topic in wanted for wanted in self._core.filters().values())

    def has_own_master(self, name: str) -> bool:
        """Whether this node has the master of the name."""
        topic = master_topic(check_name(name))
        return any(store.master is not None and store.master_topic == topic for store in self._stores)

    def has_clone(self, name: str) -> bool:
        """Whether this node has a clone of the name."""
        topic = master_topic(check_name(name))
        return any(store.clone is not None and store.master_topic == topic for store in self._stores)
