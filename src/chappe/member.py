"""One member of the mesh: an endpoint with its requests and queues, and the masters and clones attached to it. No I/O.

The driver runs a ``Member``. It gets the endpoint's effects but for messages to data stores, answers to requests and
what members of a queue elsewhere own: those take them, and what they send is published by the endpoint.

    connections    handle_link, handle_frames, handle_gone
    the disk       handle_done, of ``StoreCommit``, ``OfferRules`` and ``OfferKeys``
    the clock      handle_timeout, next_timeout
    users          call the endpoint's core, and have ``take`` look at its effects
    users of data  ``attach`` makes a ``KvPart``; they call its role, and have ``wrote`` or ``answered`` look at its
    stores         effects

Commands for the chain of a master go to the number of its part, ``Send(number, commands, CHAIN)``; what the chain says
comes by ``KvPart.hear_chain``.

``now`` is monotonic seconds. Where the time of data stores is simulated, they get that, and it stands still until
``Member.advance``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import Any, Final, TypeAlias

from chappe.compiled import Frozen
from chappe.core import Clock, Deliver, Effect, Flush, Persist, Report, Send
from chappe.data.values import Value
from chappe.defaults import CHANNEL_TICK_S, MASTER_CONFLICT_S
from chappe.errors import Address, BufferFull, Closed, StorageError
from chappe.kv.backend import Commit
from chappe.kv.commands import from_far, sender_endpoint, to_far
from chappe.kv.engine import Entry, Index
from chappe.kv.entity import check_name, master_topic
from chappe.kv.events import CommandRefused
from chappe.kv.role import CHAIN, KvRole
from chappe.kv.simulated_clock import SimulatedClock
from chappe.mesh.endpoint import EndpointCore
from chappe.mesh.events import EndpointUnreachable, PeerLost
from chappe.mesh.filters import Filter, matches, minimal
from chappe.mesh.forwarding.group_keys import KeysHere
from chappe.mesh.link_reports import ASK_LINKS, LINKS_TOLD, LIVES_MAX, Reporting, StoreReport, named
from chappe.mesh.messages import COMMAND, DATA, NOBODY, Message
from chappe.mesh.queues import MessageQueues
from chappe.mesh.requests import Requests
from chappe.mesh.rules import MeshRules

_NOTHING: Final[tuple[Effect, ...]] = ()
_REPORTS: Final = -1  # the subscriber that hears questions about links, ...
_INBOX: Final = -2  # ... that which hears answers to our requests, ...
_QUEUES: Final = -3  # ... and that which hears announcements of queues


class StoreCommit(Frozen, frozen=True):
    """A job for the disk of the data store ``number``."""

    number: int
    commit: Commit


Record: TypeAlias = Callable[[bytes, bytes, int], None]  # topic, payload and kind of what was published to all
Seals: TypeAlias = Callable[[bytes, list[bytes], bytes], list[bytes]]  # topic, payloads, receiver: what to publish
Tapped: TypeAlias = Callable[[bytes, bytes, int, bytes], None]  # of all that was published, also its receiver


class KvPart:
    """A master or clone, and what it is to the member that it is a part of.

    ``entries`` may be read without the driver's lock; None if nothing can be read at present. Methods that do something
    return actions.
    """

    role: KvRole | Any  # simulated worlds put something before it, that is of no class that is compiled

    def __init__(self, member: MeshMember, role: KvRole | Any, number: int) -> None:
        self.role = role
        self.number = number
        role.known_as(number)
        self.topics: dict[int, bytes] = {}  # what it subscribes to, by subscriber
        self.closing = False
        self.due = -math.inf  # when ``handle_timeout`` has something to do; infinity while simulated time stands still
        self.entries: dict[Index, Entry] | None = None
        self.master_topic = master_topic(check_name(role.name))
        self._member = member
        self._endpoint = member.endpoint
        self._router = member.endpoint.router
        self._full: set[object] = set()  # those who have no room for further changes
        self._far = False  # whether anything has come over an original
        self._refused_at = -math.inf  # when it was told last that somebody spoke in another's name

    # -- its users --------------------------------------------------------------------------------------------

    def start(self, now: float) -> list[Effect]:
        """Take part.

        Raises:
            UsageError: The endpoint has too many subscriptions to be announced; then nothing is left of this.
        """
        actions: list[Effect] = []
        member = self._member
        member.parts[self.number] = self
        for topic in self.role.topics:
            member.last_subscriber -= 1
            self.topics[member.last_subscriber] = topic
            member.hearing[member.last_subscriber] = self
        for subscriber, topic in self.topics.items():
            try:
                actions += member.take(self._endpoint.subscribe(subscriber, [topic], COMMAND, now=now), now)
            except BaseException:
                self.close(now)
                raise
        return actions + self.answered(self.role.start(self._member.time(now)), now)

    def time(self, now: float) -> float:
        """Monotonic seconds as the role is to be told them."""
        clock = self._member.simulated
        return now if clock is None else clock.now

    def check(self, now: float) -> float:
        """Raise BufferFull if there is no ``room`` for a write, or Closed; returns the time as the role is told it."""
        if self.closing:
            raise Closed(f"store {self.role.name!r} was closed")
        if not self.room():
            raise BufferFull(f"store {self.role.name!r} takes no more writes at present")
        clock = self._member.simulated
        return now if clock is None else clock.now

    def wrote(self, actions: Sequence[Effect], now: float, *, expires: bool) -> Sequence[Effect]:
        """Follow a call of the role's that writes; returns what is to be done."""
        # Without expiry a write brings nothing that is due earlier.
        if expires or self.due > now + CHANNEL_TICK_S:
            return self.answered(actions, now)
        self.due = min(self.due, self.role.held_until)
        return self._publish(actions, now) if actions else _NOTHING

    def let_go(self, now: float) -> list[Effect]:
        """Send now what writes before wanted to be sent, where it is held for those that follow."""
        return self._publish(self.role.let_go(), now)

    def room(self) -> bool:
        """Return True if ``write`` takes another write, or refuses it for another reason than too little room."""
        return not self._full and self._router.room(None, NOBODY) and (self.role.immediate or self.role.room)

    def handle_full(self, watcher: object, full: bool) -> bool:
        """A watcher has no room for further changes, or has some again; nothing is written meanwhile.

        Returns whether ``Member.handle_full`` is to be told the same of this part: nothing is to be read either.
        """
        (self._full.add if full else self._full.discard)(watcher)
        return bool(self._full) is full

    def close(self, now: float) -> list[Effect]:
        self.halt()
        actions = self._publish(self.role.leave(), now)
        self._member.parts.pop(self.number, None)
        for subscriber in self.topics:
            self._member.hearing.pop(subscriber, None)
            actions += self._member.take(self._endpoint.unsubscribe(subscriber, None, now), now)
        return actions

    # -- its driver and its member ----------------------------------------------------------------------------

    def hear(self, topic: bytes, messages: list[Message], now: float) -> list[Effect]:
        actions: list[Effect] = []
        payloads = self._believed(topic, messages, now, actions)
        if not payloads:
            return self._publish(actions, now)
        clock = self._member.simulated
        actions += self.role.handle_message(topic, payloads, now if clock is None else clock.now)
        return self.answered(actions, now)

    def handle_gone(self, endpoint: bytes, now: float) -> list[Effect]:
        """An endpoint is out of reach, or was for a moment."""
        return self.answered(self.role.handle_gone(endpoint, self._member.time(now)), now)

    def handle_subscription(self, holders: frozenset[bytes], now: float) -> list[Effect]:
        """Subscriptions have changed: ``holders`` are all endpoints that may have the master."""
        reaches = self._router.topology.reaches
        return self.answered(self.role.handle_subscription(holders, reaches, self._member.time(now)), now)

    def handle_timeout(self, now: float) -> list[Effect]:
        """Do what is due; called too early it does nothing."""
        if now < self.due:
            return []
        return self.answered(self.role.handle_timeout(self._member.time(now)), now)

    def handle_done(self, job: Commit, error: StorageError | None, now: float) -> list[Effect]:
        """A commit is durable, or was refused because of ``error``."""
        return self.answered(self.role.handle_done(job, error, self._member.time(now)), now)

    def hear_chain(self, news: Sequence[object], now: float) -> list[Effect]:
        """The chain of a master has committed something, or this server has another place there."""
        return self.answered(self.role.handle_message(CHAIN, news, self._member.time(now)), now)

    def advanced(self, now: float) -> list[Effect]:
        """Simulated time has gone on: do what is due by it."""
        self.due = -math.inf
        return self.handle_timeout(now)

    def halt(self) -> None:
        """Nothing can be read or written any more."""
        self.closing = True
        self.entries = None

    # -- inside -----------------------------------------------------------------------------------------------

    def _believed(self, topic: bytes, messages: list[Message], now: float, actions: list[Effect]) -> list[bytes]:
        """The messages whose sender can have sent them; others are refused, and reported now and then.

        A clone takes only those of who is still in reach, or whom an original brought that is: what a master said last
        is read after its link has ended, and is not a sign of life.
        """
        topology = self._router.topology
        seeks = self.role.kind == "clone"
        there: bytes | None = None  # in reach, as was just seen
        known: dict[tuple[bytes, bytes], bool] = {}
        payloads = []
        for message in messages:
            if message.topic != topic:
                continue
            payload, origin = message.payload, message.origin
            speaker = sender_endpoint(payload)
            if seeks:
                through = origin if origin == speaker else message.sender
                if through != there and not topology.reaches(through):
                    continue
                there = through
            if speaker is None or origin == speaker:
                payloads.append(payload)
                continue
            way = (origin, speaker)
            if way not in known:
                known[way] = topology.vouches(*way)
            if known[way]:
                self._far = True
                payloads.append(from_far(payload))
            elif now >= self._refused_at + MASTER_CONFLICT_S:
                self._refused_at = now
                by = message.sender.hex() if origin == NOBODY else origin.hex()
                reason = f"{by} has sent a command in the name of endpoint {speaker.hex()}"
                actions.append(Report(CommandRefused(self.role.name, reason)))
        return payloads

    def answered(self, actions: Sequence[Effect], now: float) -> list[Effect]:
        """After nearly every call: when to call again, and whether the data may be read; then what was answered."""
        role = self.role
        clock = self._member.simulated
        if clock is None:
            self.due = role.next_timeout()
        else:  # changes that are held for a moment would be held until the next advance
            actions = [*actions, *role.let_go()]
            self.due = -math.inf if role.next_timeout() <= clock.now else math.inf
        self.entries = role.engine.entries if role.readable and not self.closing else None
        return self._publish(actions, now)

    def _publish(self, actions: Sequence[Effect], now: float) -> list[Effect]:
        """Publish what is to be sent; what else was answered is for the driver, before the sockets are written to."""
        rest: list[Effect] = []
        flushes: dict[int, Flush] = {}
        record, tapped, seals = self._member.record, self._member.tapped, self._member.seals
        if seals is not None:
            actions = [each for run in _runs(actions) for each in self._sealed(run, seals)]
        for action in actions:
            if isinstance(action, Send):
                if action.to == CHAIN:
                    rest.append(Send(self.number, action.message, CHAIN))
                    continue
                payload = to_far(action.message) if self._far and seals is None else action.message
                if record is not None and not action.to:
                    record(action.topic, payload, COMMAND)
                if tapped is not None:
                    tapped(action.topic, payload, COMMAND, action.to or NOBODY)
                for flush in self._router.publish(action.topic, payload, COMMAND, action.to or NOBODY, now):
                    flushes[flush.link] = flush
            elif isinstance(action, Persist):
                rest.append(Persist(StoreCommit(self.number, action.job)))
            else:
                rest.append(action)
        return [*rest, *flushes.values()] if rest else list(flushes.values())

    def _sealed(self, run: list[Effect], seals: Seals) -> list[Effect]:
        """Messages to the same, as they are to be published."""
        first = run[0]
        if not isinstance(first, Send) or first.to == CHAIN:
            return run
        payloads = [each.message for each in run if isinstance(each, Send)]
        if self._far:
            payloads = [to_far(each) for each in payloads]
        receiver = first.to or NOBODY
        return [Send(first.to, each, first.topic) for each in seals(first.topic, payloads, receiver)]


def _runs(actions: Sequence[Effect]) -> list[list[Effect]]:
    """Neighbours that are messages to the same."""
    runs = groupby(actions, lambda each: (each.topic, each.to) if isinstance(each, Send) else None)
    return [list(run) for _, run in runs]


class MeshMember:
    """An endpoint with its requests, queues and data stores.

    Args:
        endpoint: New; ``take`` looks at the effects of every call that is not made through this.
        clock: The time of day of its data stores.
    """

    def __init__(self, endpoint: EndpointCore, clock: Clock) -> None:
        self.clock = clock
        self.endpoint = endpoint
        self.router = endpoint.router
        self.paused = False  # somebody has no room: nothing is to be read from peers
        self._full: set[int] = set()  # who has none
        self.parts: dict[int, KvPart] = {}
        self.hearing: dict[int, KvPart] = {}  # by subscriber, below 0
        self.reporting = Reporting()
        self.requests = Requests(endpoint.own_id, endpoint.router.topology.vouches)
        self.queues = MessageQueues(endpoint.own_id, endpoint.router.topology)
        self.simulated: SimulatedClock | None = None  # the time of its data stores, where that is simulated
        self.last_subscriber = _QUEUES
        endpoint.router.subscriptions.add(_REPORTS, [ASK_LINKS], DATA)
        self.record: Record | None = None  # is told of every command that is published to all who want it
        self.note_filter: Callable[[Filter], None] | None = None  # is told what the endpoint subscribes to
        self.seals: Seals | None = None  # seals what data stores say, where somebody can
        self.tapped: Tapped | None = None  # is shown every command that is published here, while somebody looks
        self._seen = 0  # what of the network was looked at, as ``EndpointCore.settled`` counts it

    # -- the driver -------------------------------------------------------------------------------------------

    def handle_frames(self, conn: int, frames: Sequence[bytes], now: float) -> Sequence[Effect]:
        """Take frames of a peer. A defect of a data store ends the connection that brought it."""
        actions = self.endpoint.handle_frames(conn, frames, now)
        if not actions:
            return actions
        handled, defect = self._hand_on(actions, now)
        if defect is not None:  # the actions that follow are carried out first
            handled += self._hand_on(self.endpoint.contain(conn, defect, frames[0], now), now)[0]
        return handled

    def handle_link(self, conn: int, address: Address, now: float) -> Sequence[Effect]:
        return self.take(self.endpoint.handle_link(conn, address, now), now)

    def handle_gone(self, conn: int, reason: str, now: float) -> Sequence[Effect]:
        return self.take(self.endpoint.handle_gone(conn, reason, now), now)

    def handle_done(self, job: object, outcome: Any, now: float) -> Sequence[Effect]:
        """A job is done: a commit with an error or None, or what was offered with what is in force then, or None."""
        if isinstance(job, StoreCommit):
            part = self.parts.get(job.number)
            return _NOTHING if part is None else part.handle_done(job.commit, outcome, now)
        if isinstance(outcome, MeshRules):
            return self.take(self.endpoint.set_rules(outcome, now), now)
        if isinstance(outcome, KeysHere):
            return self.take(self.endpoint.set_keys(outcome, now), now)
        return _NOTHING

    def flush(self, now: float) -> Sequence[Effect]:
        """Nothing is gathered: data stores hold changes for a time that ``next_timeout`` knows."""
        return _NOTHING

    def take(self, actions: Sequence[Effect], now: float) -> Sequence[Effect]:
        """Hand data stores what is theirs of the endpoint's effects; returns the others, and what follows."""
        if self.note_filter is not None:
            self.note_filter(self.router.subscriptions.filter)
        if not actions:
            return actions
        handled, defect = self._hand_on(actions, now)
        if defect is not None:
            raise defect
        return handled

    def handle_timeout(self, now: float) -> Sequence[Effect]:
        """Do what is due at ``now``; called too early it does nothing."""
        actions: list[Effect] = []
        if now >= self.endpoint.next_timeout():
            actions += self.take(self.endpoint.handle_timeout(now), now)
        actions += self.requests.handle_timeout(now)
        actions += self._publish(self.queues.handle_timeout(now), now)
        if self._seen != self.router.settled and self._looks:
            actions += self._look_at_network(now)
        for part in list(self.parts.values()):
            actions += part.handle_timeout(now)
        return actions

    def next_timeout(self) -> float:
        """When ``handle_timeout`` wants to be called; infinity for never."""
        if self._seen != self.router.settled and self._looks:
            return -math.inf
        due = self.endpoint.next_timeout()
        if self.requests.pending:
            due = min(due, self.requests.next_timeout())
        if self.queues.of:
            due = min(due, self.queues.next_timeout())
        for part in self.parts.values():
            due = min(due, part.due)
        return due

    def advance(self, to_ns: int, now: float) -> Sequence[Effect]:
        """Advance the simulated time of data stores to a time of day; nothing happens if that is not later."""
        if self.simulated is None or not self.simulated.advance(to_ns):
            return _NOTHING
        actions: list[Effect] = []
        for part in list(self.parts.values()):
            actions += part.advanced(now)
        return actions

    def simulate(self, clock: SimulatedClock) -> None:
        """Give data stores a clock that stands still; before there are any."""
        self.clock = self.simulated = clock

    def time(self, now: float) -> float:
        """Monotonic seconds as data stores have them."""
        return now if self.simulated is None else self.simulated.now

    def handle_full(self, number: int, full: bool, now: float) -> None:
        """A subscriber, or a data store by its number, has no room, or has some again: see ``paused``."""
        (self._full.add if full else self._full.discard)(number)
        if self.paused is not bool(self._full):
            self.paused = not self.paused
            self.endpoint.pause(self.paused, now)

    def halt(self) -> None:
        """A defect has stopped the driver."""
        for part in self.parts.values():
            part.halt()

    # -- requests and queues ----------------------------------------------------------------------------------

    def ask(self, number: int, ticket: int, wanted: int, until: float, now: float) -> Sequence[Effect]:
        """Expect answers to a request, before it is published. Raises as ``Requests.ask``, and UsageError if the inbox
        is one subscription too many.
        """
        self.requests.ask(number, ticket, wanted, until)
        subscriptions = self.router.subscriptions
        if subscriptions.prefixes(_INBOX):
            return _NOTHING
        try:
            return self.endpoint.subscribe(_INBOX, [self.requests.inbox], DATA, now=now)
        except BaseException:
            self.requests.forget(number)
            raise

    def put_in_queue(self, subscriber: int, topic: bytes, now: float) -> list[Effect]:
        """Make a subscriber a member of the queue with this topic, or tell others what it wants now. Raises as
        ``MessageQueues.put``.
        """
        effects = self.queues.put(subscriber, topic, minimal(self.router.subscriptions.prefixes(subscriber)), now)
        return [*self.endpoint.subscribe(_QUEUES, [topic], DATA, now=now), *self._publish(effects, now)]

    def unsubscribe(self, subscriber: int, now: float) -> list[Effect]:
        """End a subscription; the others in its queue hear of it at once."""
        queue = self.queues.of.get(subscriber)
        left = self._publish(self.queues.remove(subscriber, now), now)
        if queue is not None and queue.topic not in self.queues.topics:
            left += self.endpoint.unsubscribe(_QUEUES, [queue.topic], now)
        return left + self.endpoint.unsubscribe(subscriber, None, now)

    def deliver_published(self, topic: bytes, payload: bytes, source: int | None) -> list[Effect]:
        """Hand what was just published to all here to subscribers: to members of queues, and where it came from a
        ``source`` behind this endpoint to every other subscriber.
        """
        shared = self.queues.of
        found: list[Effect] = []
        if source is not None:
            found += [each for each in self.endpoint.deliver_here(topic, payload, source) if each.to not in shared]
        if shared:
            place = self.router.places.last(topic)
            for each in self.endpoint.deliver_here(topic, payload, source or 0, place):
                found += self._owned(each) if each.to in shared else []
        return found

    def _owned(self, found: Deliver) -> list[Effect]:
        """Return a delivery without what members of its subscriber's queue elsewhere own."""
        if found.to not in self.queues.of:
            return [found]
        messages = self.queues.own(found.to, found.messages)
        return [Deliver(found.to, messages)] if messages else []

    def _publish(self, effects: Sequence[Effect], now: float) -> list[Effect]:
        flushes: dict[int, Flush] = {}
        for each in effects:
            if isinstance(each, Send):
                for flush in self.router.publish(each.topic, each.message, DATA, each.to or NOBODY, now):
                    flushes[flush.link] = flush
        return list(flushes.values())

    # -- data stores ------------------------------------------------------------------------------------------

    def attach(self, role: KvRole | Any, number: int) -> KvPart:
        """Make a master or clone a part; ``number`` is no other part's, and no subscriber's. ``start`` begins it."""
        return KvPart(self, role, number)

    def holders(self, name: str) -> list[bytes]:
        """The other endpoints that say that they have the master of a name; not who subscribed to more than that."""
        topic = master_topic(check_name(name))
        return [endpoint for endpoint, wanted in self.router.topology.filters().items() if topic in wanted]

    def has(self, kind: str, name: str) -> bool:
        """Return True if the ``"master"``, or a ``"clone"``, of a name is attached."""
        return any(part.role.kind == kind and part.role.name == name for part in self.parts.values())

    # -- inside -----------------------------------------------------------------------------------------------

    def _hand_on(self, actions: Sequence[Effect], now: float) -> tuple[list[Effect], Exception | None]:
        """Give data stores what is theirs. Returns what is left to do, and the defect that one of them met."""
        found: list[Effect] = []
        defect: Exception | None = None
        for action in actions:
            if type(action) is Deliver and (action.to < 0 or action.to in self.queues.of):
                try:
                    part = self.hearing.get(action.to)
                    if part is not None:
                        found += part.hear(part.topics[action.to], action.messages, now)
                    elif action.to == _REPORTS:
                        found += self._asked_of_links(action.messages, now)
                    elif action.to == _INBOX:
                        found += self.requests.hear(action.messages)
                    elif action.to == _QUEUES:
                        self.queues.hear(action.messages, now)
                    else:
                        found += self._owned(action)
                except Exception as problem:
                    defect = problem
                continue
            found.append(action)
            if type(action) is Report and isinstance(action.event, EndpointUnreachable | PeerLost):
                for part in list(self.parts.values()):
                    found += part.handle_gone(action.event.peer_id, now)
        return found, defect

    def _asked_of_links(self, messages: list[Message], now: float) -> list[Effect]:
        """Somebody wants to know how much goes over our links."""
        rules = self.router.rules
        flushes: dict[int, Flush] = {}
        for message in messages:
            if message.topic != ASK_LINKS or message.origin == NOBODY or message.receiver != self.endpoint.own_id:
                continue  # what is published to all is no question: everybody would answer
            if rules is not None and not rules.administers_as(message.origin):
                continue
            roles = [each.role for each in self.parts.values()]
            at = self.time(now)
            stores = [StoreReport(e.name, e.kind == "master", len(e.engine.entries), e.age_s(at)) for e in roles]
            lives = self._lives(named(message.payload))
            answer = self.reporting.answer(message.payload, self.endpoint.peers(), stores, now, lives)
            if answer and self.router.room((LINKS_TOLD,), message.origin):
                for flush in self.router.publish(LINKS_TOLD, answer, DATA, message.origin, now):
                    flushes[flush.link] = flush
        return list(flushes.values())

    def _lives(self, store: str) -> Iterator[tuple[Value, float]]:
        """Keys of a data store whose master is here that expire next, and the seconds they have left.

        Where somebody can seal what data stores say, nothing: this goes unsealed.
        """
        roles = [each.role for each in self.parts.values() if each.role.kind == "master" and each.role.name == store]
        for role in roles if self.seals is None else ():
            for entry in role.engine.soonest(LIVES_MAX):
                assert entry.expires_ns is not None
                yield entry.key, max(0.0, (entry.expires_ns - self.clock.wall_ns()) / 1e9)

    @property
    def _looks(self) -> bool:
        """True if data stores or queues follow the network."""
        return bool(self.parts or self.queues.of)

    def _look_at_network(self, now: float) -> list[Effect]:
        self._seen = self.router.settled
        filters = self.router.topology.filters()
        actions: list[Effect] = []
        for part in list(self.parts.values()):
            wanting = [each for each, wanted in filters.items() if matches(wanted, part.master_topic)]
            actions += part.handle_subscription(frozenset(wanting), now)
        return actions + self._publish(self.queues.handle_subscription(filters), now)
