"""One member of the mesh: an endpoint with the masters and clones of data stores that are attached to it. No I/O.

The driver calls the endpoint through ``Member``, and gets the endpoint's actions back but for what is for data stores:
that is handed to them, and what they have to say is published. What a data store asks of its driver, and of those who
use it, comes as ``Serve``.

    messages       handle_frames, and every other call into the endpoint by ``call``
    the clock      handle_timeout, next_timeout
    its users      ``attach`` makes a ``KvPart``: start, write, ask, handle_full, close
    its disk       KvPart.handle_committed, as an answer to ``Commit``

``now`` is monotonic seconds. Where the time of data stores is simulated, they get that, and it stands still until
``Member.advance``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import groupby
from typing import Any, Final, TypeAlias

from chappe.compiled import Frozen
from chappe.core import Clock, Report
from chappe.data.values import Value
from chappe.defaults import CHANNEL_TICK_S, MASTER_CONFLICT_S
from chappe.errors import BufferFull, Closed, StorageError
from chappe.kv.actions import Action as KvAction
from chappe.kv.actions import Commit, Notify, Propose, Resolve, Send
from chappe.kv.commands import from_far, sender_endpoint, to_far
from chappe.kv.engine import Entry, Index
from chappe.kv.events import CommandRefused
from chappe.kv.role import Hear, KvRole
from chappe.kv.simulated_clock import SimulatedClock
from chappe.kv.topics import check_name, master_topic
from chappe.mesh.actions import Action as MeshAction
from chappe.mesh.actions import Deliver, Flush
from chappe.mesh.endpoint import EndpointCore
from chappe.mesh.events import EndpointUnreachable, PeerLost
from chappe.mesh.filters import Filter, matches
from chappe.mesh.link_reports import ASK_LINKS, LINKS_TOLD, LIVES_MAX, Reporting, StoreReport, named
from chappe.mesh.messages import COMMAND, DATA, NOBODY, Message

_NOTHING: Final[tuple[MeshAction, ...]] = ()
_REPORTS: Final = -1  # the subscriber that hears questions about links


class Serve(Frozen, frozen=True):
    """Do what the data store ``number`` asks for, in order."""

    number: int
    actions: list[Notify | Resolve | Commit | Propose | Report]


Action: TypeAlias = MeshAction | Serve
Record: TypeAlias = Callable[[bytes, bytes, int], None]  # topic, payload and kind of what was published to all
Seals: TypeAlias = Callable[[bytes, list[bytes], bytes], list[bytes]]  # topic, payloads, receiver: what to publish
Tapped: TypeAlias = Callable[[bytes, bytes, int, bytes], None]  # of all that was published, also its receiver


class KvPart:
    """A master or clone, and what it is to the member that it is a part of.

    ``entries`` may be read without the driver's lock; None if nothing can be read at present. Methods that do something
    return actions.
    """

    role: KvRole | Any  # simulated worlds put something before it, that is of no class that is compiled

    def __init__(self, member: Member, role: KvRole | Any, number: int) -> None:
        self.role = role
        self.number = number
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

    def start(self, now: float) -> list[Action]:
        """Take part.

        Raises:
            UsageError: The endpoint has too many subscriptions to be announced; then nothing is left of this.
        """
        actions: list[Action] = []
        subscribe = partial(self._member.call, self._endpoint.subscribe, now=now)
        member = self._member
        member.parts[self.number] = self
        for topic, hear in self.role.hears.items():
            member.last_subscriber -= 1
            self.topics[member.last_subscriber] = topic
            member.hearing[member.last_subscriber] = partial(self.handle_messages, topic, hear)
        for subscriber, topic in self.topics.items():
            try:
                actions += subscribe(subscriber, [topic], COMMAND)
            except BaseException:
                self.close(now)
                raise
        return actions + self._answer(self.role.start(self._member.time(now)), now)

    def write(
        self, method: Callable[..., list[KvAction]], args: Iterable[object], options: dict[str, Any], now: float,
    ) -> Sequence[Action]:  # fmt: skip
        """Make one call of the role's that writes.

        Raises:
            BufferFull: There is no ``room``: call again when there is.
            Closed: The data store was closed.
            ChappeError: What ``method`` raises.
        """
        if self.closing:
            raise Closed(f"store {self.role.name!r} was closed")
        if not self.room():
            raise BufferFull(f"store {self.role.name!r} takes no more writes at present")
        clock = self._member.simulated
        actions = method(*args, now=now if clock is None else clock.now, **options)
        # Without expiry a write brings nothing that is due earlier.
        if "expiry_ns" in options or self.due > now + CHANNEL_TICK_S:
            return self._answer(actions, now)
        self.due = min(self.due, self.role.held_until)
        return self._publish(actions, now) if actions else _NOTHING

    def let_go(self, now: float) -> list[Action]:
        """Send now what writes before wanted to be sent, where it is held for those that follow."""
        return self._publish(self.role.let_go(), now)

    def ask(self, method: Callable[..., list[KvAction]], args: Iterable[object], now: float) -> list[Action]:
        """Make one call of the role's that a ``Resolve`` answers."""
        return self._answer(method(*args, now=self._member.time(now)), now)

    def room(self) -> bool:
        """Whether ``write`` takes another write, or refuses it for another reason than too little room."""
        return not self._full and self._router.room(None, NOBODY) and (self.role.immediate or self.role.room)

    def handle_full(self, watcher: object, full: bool) -> bool:
        """A watcher has no room for further changes, or has some again; nothing is written meanwhile.

        Returns whether ``Member.handle_full`` is to be told the same of this part: nothing is to be read either.
        """
        (self._full.add if full else self._full.discard)(watcher)
        return bool(self._full) is full

    def close(self, now: float) -> list[Action]:
        """Stop taking part."""
        self.halt()
        actions = self._publish(self.role.leave(), now)
        self._member.parts.pop(self.number, None)
        for subscriber in self.topics:
            self._member.hearing.pop(subscriber, None)
            actions += self._member.call(self._endpoint.unsubscribe, subscriber, None, now=now)
        return actions

    # -- its driver and its member ----------------------------------------------------------------------------

    def handle_messages(self, topic: bytes, hear: Hear, messages: list[Message], now: float) -> list[Action]:
        """Command messages have come."""
        actions: list[KvAction] = []
        payloads = self._believed(topic, messages, now, actions)
        if not payloads:
            return self._publish(actions, now)
        clock = self._member.simulated
        actions += hear(payloads, now if clock is None else clock.now)
        return self._answer(actions, now)

    def handle_gone(self, endpoint: bytes, now: float) -> list[Action]:
        """An endpoint is out of reach, or was for a moment."""
        return self._answer(self.role.handle_gone(endpoint, self._member.time(now)), now)

    def handle_network(self, holders: frozenset[bytes], now: float) -> list[Action]:
        """The network has changed: ``holders`` are all that may have the master."""
        reaches = self._router.topology.reaches
        return self._answer(self.role.handle_network(holders, reaches, self._member.time(now)), now)

    def handle_timeout(self, now: float) -> list[Action]:
        """Do what is due; called too early it does nothing."""
        if now < self.due:
            return []
        return self._answer(self.role.handle_timeout(self._member.time(now)), now)

    def handle_committed(self, number: int, error: StorageError | None, now: float) -> list[Action]:
        """A ``Commit`` is durable, or was refused because of ``error``."""
        at = self._member.time(now)
        if error is None:
            return self._answer(self.role.handle_committed(number, at), now)
        return self._answer(self.role.handle_commit_failed(number, error, at), now)

    def handle_chain(self, method: Callable[..., list[KvAction]], told: object, now: float) -> list[Action]:
        """The chain of a master has told something, for this method of the role's."""
        return self._answer(method(told, self._member.time(now)), now)

    def handle_advance(self, now: float) -> list[Action]:
        """Simulated time has gone on: do what is due by it."""
        self.due = -math.inf
        return self.handle_timeout(now)

    def halt(self) -> None:
        """Nothing can be read or written any more."""
        self.closing = True
        self.entries = None

    # -- inside -----------------------------------------------------------------------------------------------

    def _believed(self, topic: bytes, messages: list[Message], now: float, actions: list[KvAction]) -> list[bytes]:
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

    def _answer(self, actions: Sequence[KvAction], now: float) -> list[Action]:
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

    def _publish(self, actions: Sequence[KvAction], now: float) -> list[Action]:
        """Publish what is to be sent; what else was answered is for the driver, before the sockets are written to."""
        rest: list[Notify | Resolve | Commit | Propose | Report] = []
        flushes: dict[int, Flush] = {}
        record, tapped, seals = self._member.record, self._member.tapped, self._member.seals
        if seals is not None:
            actions = [each for run in _runs(actions) for each in self._sealed(run, seals)]
        for action in actions:
            if isinstance(action, Send):
                payload = to_far(action.payload) if self._far and seals is None else action.payload
                if record is not None and not action.receiver:
                    record(action.topic, payload, COMMAND)
                if tapped is not None:
                    tapped(action.topic, payload, COMMAND, action.receiver or NOBODY)
                for flush in self._router.publish(action.topic, payload, COMMAND, action.receiver or NOBODY, now):
                    flushes[flush.conn] = flush
            else:
                rest.append(action)
        return [Serve(self.number, rest), *flushes.values()] if rest else list(flushes.values())

    def _sealed(self, run: list[KvAction], seals: Seals) -> list[KvAction]:
        """Messages to the same, as they are to be published."""
        first = run[0]
        if not isinstance(first, Send):
            return run
        payloads = [each.payload for each in run if isinstance(each, Send)]
        if self._far:
            payloads = [to_far(each) for each in payloads]
        receiver = first.receiver or NOBODY
        return [Send(first.topic, first.receiver, each) for each in seals(first.topic, payloads, receiver)]


def _runs(actions: Sequence[KvAction]) -> list[list[KvAction]]:
    """Neighbours that are messages to the same."""
    runs = groupby(actions, lambda each: (each.topic, each.receiver) if isinstance(each, Send) else None)
    return [list(run) for _, run in runs]


class Member:
    """See the module.

    Args:
        endpoint: New; everything that returns actions is called through ``call``, ``handle_frames`` and
            ``handle_timeout``, the rest directly.
        clock: The time of day of its data stores.
    """

    def __init__(self, endpoint: EndpointCore, clock: Clock) -> None:
        self.clock = clock
        self.endpoint = endpoint
        self.router = endpoint.router
        self.paused = False  # somebody has no room: nothing is to be read from peers
        self._full: set[int] = set()  # who has none
        self.parts: dict[int, KvPart] = {}
        self.hearing: dict[int, Callable[[list[Message], float], list[Action]]] = {}  # by subscriber, below 0
        self.reporting = Reporting()
        self.simulated: SimulatedClock | None = None  # the time of its data stores, where that is simulated
        self.last_subscriber = _REPORTS
        self.hearing[_REPORTS] = self._asked_of_links
        endpoint.router.subscriptions.add(_REPORTS, [ASK_LINKS], DATA)
        self.record: Record | None = None  # is told of every command that is published to all who want it
        self.note_filter: Callable[[Filter], None] | None = None  # is told what the endpoint subscribes to
        self.seals: Seals | None = None  # seals what data stores say, where somebody can
        self.tapped: Tapped | None = None  # is shown every command that is published here, while somebody looks
        self._seen = 0  # what of the network was looked at, as ``EndpointCore.settled`` counts it

    # -- the driver -------------------------------------------------------------------------------------------

    def handle_frames(self, conn: int, frames: Sequence[bytes], now: float) -> Sequence[Action]:
        """See ``EndpointCore.handle_frames``. A defect of a data store's ends the connection that brought it."""
        actions = self.endpoint.handle_frames(conn, frames, now)
        if not actions:
            return actions
        handled, defect = self._hand_on(actions, now)
        if defect is not None:  # the actions that follow are carried out first
            handled += self._hand_on(self.endpoint.contain(conn, defect, frames[0], now), now)[0]
        return handled

    def call(self, method: Callable[..., Sequence[MeshAction]], *args: Any, now: float) -> Sequence[Action]:
        """Make any other call into the endpoint's core."""
        actions = method(*args, now=now)
        if self.note_filter is not None:
            self.note_filter(self.router.subscriptions.filter)
        if not actions:
            return actions
        handled, defect = self._hand_on(actions, now)
        if defect is not None:
            raise defect
        return handled

    def handle_timeout(self, now: float) -> Sequence[Action]:
        """Do what is due at ``now``; called too early it does nothing."""
        actions: list[Action] = []
        if now >= self.endpoint.next_timeout():
            actions += self.call(self.endpoint.handle_timeout, now=now)
        if self.parts:
            if self._seen != self.router.settled:
                actions += self._look_at_network(now)
            for part in list(self.parts.values()):
                actions += part.handle_timeout(now)
        return actions

    def next_timeout(self) -> float:
        """When ``handle_timeout`` wants to be called; infinity for never."""
        due = self.endpoint.next_timeout()
        if self.parts:
            if self._seen != self.router.settled:
                return -math.inf
            for part in self.parts.values():
                due = min(due, part.due)
        return due

    def advance(self, to_ns: int, now: float) -> Sequence[Action]:
        """Advance the simulated time of data stores to a time of day; nothing happens if that is not later."""
        if self.simulated is None or not self.simulated.advance(to_ns):
            return _NOTHING
        actions: list[Action] = []
        for part in list(self.parts.values()):
            actions += part.handle_advance(now)
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
            self.endpoint.handle_paused(self.paused, now)

    def halt(self) -> None:
        """A defect has stopped the driver."""
        for part in self.parts.values():
            part.halt()

    # -- data stores ------------------------------------------------------------------------------------------

    def attach(self, role: KvRole | Any, number: int) -> KvPart:
        """Make a master or clone a part; ``number`` is no other part's, and no subscriber's. ``start`` begins it."""
        return KvPart(self, role, number)

    def holders(self, name: str) -> list[bytes]:
        """The other endpoints that say that they have the master of a name; not who subscribed to more than that."""
        topic = master_topic(check_name(name))
        return [endpoint for endpoint, wanted in self.router.topology.filters().items() if topic in wanted]

    def has(self, kind: str, name: str) -> bool:
        """Whether the ``"master"``, or a ``"clone"``, of a name is attached."""
        return any(part.role.kind == kind and part.role.name == name for part in self.parts.values())

    # -- inside -----------------------------------------------------------------------------------------------

    def _hand_on(self, actions: Sequence[MeshAction], now: float) -> tuple[list[Action], Exception | None]:
        """Give data stores what is theirs. Returns what is left to do, and the defect that one of them met."""
        found: list[Action] = []
        defect: Exception | None = None
        for action in actions:
            if type(action) is Deliver and action.subscriber in self.hearing:
                try:
                    found += self.hearing[action.subscriber](action.messages, now)
                except Exception as problem:
                    defect = problem
                continue
            found.append(action)
            if type(action) is Report and isinstance(action.event, EndpointUnreachable | PeerLost):
                for part in list(self.parts.values()):
                    found += part.handle_gone(action.event.peer_id, now)
        return found, defect

    def _asked_of_links(self, messages: list[Message], now: float) -> list[Action]:
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
                    flushes[flush.conn] = flush
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

    def _look_at_network(self, now: float) -> list[Action]:
        self._seen = self.router.settled
        filters = self.router.topology.filters()
        actions: list[Action] = []
        for part in list(self.parts.values()):
            wanting = [each for each, wanted in filters.items() if matches(wanted, part.master_topic)]
            actions += part.handle_network(frozenset(wanting), now)
        return actions
