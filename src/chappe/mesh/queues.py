"""Queues: subscribers with one name, of which one gets each message, without a centre.

Every member tells all others what it wants, on the queue's topic; each computes the same owner of a message, and only
the owner's subscriber gets it. The owner is, of the members that want the topic, the one with the highest weight: 8
bytes of BLAKE2b of the member's identity, its endpoint's id and a u64, and the message's (*rendezvous hashing*). A
member that comes or goes moves no message between others.

The identity is the publisher's id, the topic and the message's place (``mesh.places``). Over originals the publisher is
not told, so while one is in the network it is topic and payload: then equal messages go to one member.

An announcement is a value on ``<$>/queue/NAME``, once in ``QUEUE_ANNOUNCE_S``, whenever something changes, and to each
endpoint that begins to want that topic. An endpoint that is silent for ``QUEUE_LEASE_S``, or out of reach, has no
members any more::

    vector: enum value chappe::queue, string endpoint, vector of members: each a vector of count number and prefixes

A member counts itself at once and forever, others when they are heard of. So with members that are alive, the one with
the highest weight always takes a message: while one joins, two may. A message goes to none if its owner is gone, and
others do not know it yet.

Source: none; Broker has no queues. After NATS's queue groups, and rendezvous hashing (Thaler and Ravishankar, 1998).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from math import inf
from typing import Final, TypeAlias
from uuid import UUID

from chappe.core import Effect, Send
from chappe.data.binary import decode, encode
from chappe.data.scalars import Count, EnumValue
from chappe.defaults import (
    MESH_TOPIC_BYTES_MAX,
    QUEUE_ANNOUNCE_S,
    QUEUE_ANNOUNCEMENT_BYTES_MAX,
    QUEUE_LEASE_S,
    QUEUE_MEMBERS_MAX,
    QUEUE_NAME_BYTES_MAX,
)
from chappe.errors import InvalidData, ProtocolError, UsageError
from chappe.mesh.filters import Filter, matches, minimal
from chappe.mesh.messages import NOBODY, Message
from chappe.mesh.topology import Topology

QUEUE: Final = b"<$>/queue/"  # and the queue's name

_KIND: Final = EnumValue("chappe::queue")
_U64: Final = 8

Members: TypeAlias = dict[int, Filter]  # of one endpoint: their numbers there, and what they want


def topic_of(name: bytes) -> bytes:
    """Return the topic of a queue's announcements. Raises UsageError for an invalid name."""
    if not 0 < len(name) <= QUEUE_NAME_BYTES_MAX:
        raise UsageError(f"the name of a queue has 1 to {QUEUE_NAME_BYTES_MAX} bytes, not {len(name)}")
    return QUEUE + name


def pack_announcement(endpoint: bytes, members: Members) -> bytes:
    """Return the payload that tells of the members at an endpoint. Raises UsageError if it is too large."""
    rows = tuple([(Count(number), *wanted) for number, wanted in members.items()])
    found = encode((_KIND, str(UUID(bytes=endpoint)), rows))
    if len(found) > QUEUE_ANNOUNCEMENT_BYTES_MAX or len(members) > QUEUE_MEMBERS_MAX:
        raise UsageError(
            f"the prefixes of a queue's subscribers here have {len(found)} bytes, more than the "
            f"{QUEUE_ANNOUNCEMENT_BYTES_MAX} that can be announced: subscribe to common prefixes instead"
        )
    return found


def parse_announcement(payload: bytes) -> tuple[bytes, Members]:
    """Return endpoint and members of an announcement. Raises ProtocolError."""
    if len(payload) > QUEUE_ANNOUNCEMENT_BYTES_MAX:
        raise ProtocolError("the announcement of a queue is too large")
    try:
        found = decode(payload)
    except InvalidData as error:
        raise ProtocolError(f"announcement of a queue: {error}") from None
    if not isinstance(found, tuple) or len(found) != 3 or found[0] != _KIND or not isinstance(found[0], EnumValue):
        raise ProtocolError("not the announcement of a queue")
    try:
        endpoint = UUID(found[1]).bytes if isinstance(found[1], str) else b""
    except ValueError:
        endpoint = b""
    rows = found[2]
    if not endpoint or not isinstance(rows, tuple) or len(rows) > QUEUE_MEMBERS_MAX:
        raise ProtocolError("the announcement of a queue names no endpoint, or too many members")
    members: Members = {}
    for row in rows:
        if not isinstance(row, tuple) or not row or not isinstance(row[0], Count):
            raise ProtocolError("a member in the announcement of a queue has no number")
        members[int(row[0])] = minimal([_prefix(each) for each in row[1:]])
    return endpoint, members


def _prefix(value: object) -> bytes:
    raw = value.encode("utf-8", "surrogateescape") if type(value) is str else value
    if type(raw) is not bytes or len(raw) > MESH_TOPIC_BYTES_MAX:
        raise ProtocolError("a member in the announcement of a queue wants something else than prefixes")
    return raw


@dataclass(slots=True)
class _Elsewhere:
    members: Members  # none: it has left
    until: float  # its lease
    near: bool  # reached without an original in between
    sequence: int  # of its last announcement


@dataclass(slots=True)
class _Queue:
    topic: bytes
    here: Members = field(default_factory=dict)
    others: dict[bytes, _Elsewhere] = field(default_factory=dict)  # by endpoint
    told: frozenset[bytes] = frozenset()  # endpoints that want the queue's topic, and were told of the members here
    announce_at: float = inf
    everybody: list[tuple[bytes, bytes, int, Filter]] = field(default_factory=list)  # salt, endpoint, number, wishes


class MessageQueues:
    """The queues that subscribers of one endpoint are in. It publishes by ``Send``, to None for all."""

    def __init__(self, own: bytes, topology: Topology) -> None:
        self.of: dict[int, _Queue] = {}  # by subscriber
        self._own = own
        self._topology = topology
        self._queues: dict[bytes, _Queue] = {}  # by topic
        self._due = inf

    @property
    def topics(self) -> list[bytes]:
        return list(self._queues)

    # -- members here -------------------------------------------------------------------------------------------

    def put(self, subscriber: int, topic: bytes, wanted: Filter, now: float) -> list[Effect]:
        """Make a subscriber a member of the queue with this topic, or change what it wants.

        Raises:
            UsageError: It, and others here, want too much to be announced; nothing is changed.
        """
        queue = self._queues.get(topic) or _Queue(topic)
        pack_announcement(self._own, {**queue.here, subscriber: wanted})
        self._queues[topic] = queue
        self.of[subscriber] = queue
        queue.here[subscriber] = wanted
        return self._announce(queue, now)

    def remove(self, subscriber: int, now: float) -> list[Effect]:
        """Make a subscriber leave its queue, if it is in one; others hear of it at once."""
        queue = self.of.pop(subscriber, None)
        if queue is None:
            return []
        del queue.here[subscriber]
        effects = self._announce(queue, now)
        if not queue.here:
            del self._queues[queue.topic]
            self._look()
        return effects

    def own(self, subscriber: int, messages: Sequence[Message]) -> list[Message]:
        """Return the messages, of those that came for a member here, that it owns."""
        queue = self.of[subscriber]
        if len(queue.everybody) == 1:
            return list(messages)
        by_content = self._topology.has_originals
        return [each for each in messages if self._owner(queue, each, by_content) == (self._own, subscriber)]

    def _owner(self, queue: _Queue, message: Message, by_content: bool) -> tuple[bytes, int]:
        topic, rules = message.topic, self._topology.states.rules
        # Others do not get what is for this endpoint alone, or what an original brings to one that passes nothing on.
        alone = message.receiver != NOBODY or (message.origin == NOBODY and not self._topology.forwards)
        if by_content or not message.place:
            identity = blake2b(len(topic).to_bytes(_U64, "big") + topic + message.payload, digest_size=32).digest()
        else:
            identity = message.origin + message.place.to_bytes(_U64, "big") + topic
        best, owner = b"", (NOBODY, 0)
        for salt, endpoint, number, wanted in queue.everybody:
            if (alone and endpoint != self._own) or not matches(wanted, topic):
                continue
            if rules is not None and not rules.gets_as(endpoint, topic):
                continue
            weight = blake2b(salt + identity, digest_size=_U64).digest()
            if weight > best:
                best, owner = weight, (endpoint, number)
        return owner

    # -- members elsewhere --------------------------------------------------------------------------------------

    def hear(self, messages: Sequence[Message], now: float) -> None:
        """Take announcements; one that an endpoint cannot have sent, or that is malformed, is dropped."""
        for message in messages:
            queue = self._queues.get(message.topic)
            if queue is None:  # of a queue whose name only begins like one of ours
                continue
            try:
                endpoint, members = parse_announcement(message.payload)
            except ProtocolError:
                continue
            near = message.origin == endpoint
            if endpoint == self._own or not (near or self._topology.vouches(message.origin, endpoint)):
                continue
            known = queue.others.get(endpoint)
            if known is not None and near and message.sequence < known.sequence:
                continue  # it was overtaken on its way
            if known is not None and (known.members, known.near) == (members, near):
                known.until, known.sequence = now + QUEUE_LEASE_S, message.sequence
                continue
            queue.others[endpoint] = _Elsewhere(members, now + QUEUE_LEASE_S, near, message.sequence)
            if sum([max(1, len(each.members)) for each in queue.others.values()]) > QUEUE_MEMBERS_MAX:
                del queue.others[endpoint]
            if known is None and members and not near:
                queue.announce_at = now
            self._gather(queue)

    def handle_subscription(self, filters: Mapping[bytes, Filter]) -> list[Effect]:
        """Tell new endpoints in reach, and forget those that are gone; a member beyond originals has its lease."""
        effects: list[Effect] = []
        topology = self._topology
        for queue in self._queues.values():
            for endpoint in [each for each, known in queue.others.items() if known.near and not topology.reaches(each)]:
                del queue.others[endpoint]
            self._gather(queue)
            found = [
                each for each, wanted in filters.items() if matches(wanted, queue.topic) and topology.has_way(each)
            ]
            new = [each for each in found if each not in queue.told]
            queue.told = frozenset(found)
            effects += [Send(each, pack_announcement(self._own, queue.here), queue.topic) for each in new]
        return effects

    # -- the clock ----------------------------------------------------------------------------------------------

    def next_timeout(self) -> float:
        return self._due

    def handle_timeout(self, now: float) -> list[Effect]:
        if now < self._due:
            return []
        effects: list[Effect] = []
        for queue in self._queues.values():
            for endpoint in [each for each, known in queue.others.items() if known.until <= now]:
                del queue.others[endpoint]
            if queue.announce_at <= now:
                effects += self._announce(queue, now)
            self._gather(queue)
        return effects

    def invariants(self) -> list[str]:
        found = []
        if sorted(self.of) != sorted([number for each in self._queues.values() for number in each.here]):
            found.append("members of queues here are not those that are counted")
        for queue in self._queues.values():
            count = sum([len(each.members) for each in queue.others.values()])
            if len(queue.everybody) != len(queue.here) + count or count > QUEUE_MEMBERS_MAX:
                found.append(f"{queue.topic!r} has {count} members elsewhere, and other ones are counted")
        return found

    def story(self, topic: bytes) -> list[tuple[bytes, int]]:
        """Return endpoint and number of each member of a queue that is known here."""
        return [(endpoint, number) for _, endpoint, number, _ in self._queues[topic].everybody]

    # -- inside -------------------------------------------------------------------------------------------------

    def _announce(self, queue: _Queue, now: float) -> list[Effect]:
        queue.announce_at = now + QUEUE_ANNOUNCE_S
        self._gather(queue)
        return [Send(None, pack_announcement(self._own, queue.here), queue.topic)]

    def _gather(self, queue: _Queue) -> None:
        """Note all members of a queue anew, and when to do something next."""
        found = [(self._own, queue.here), *[(each, known.members) for each, known in queue.others.items()]]
        queue.everybody = [
            (endpoint + number.to_bytes(_U64, "big"), endpoint, number, wanted)
            for endpoint, members in found
            for number, wanted in members.items()
        ]
        self._look()

    def _look(self) -> None:
        dues = [each.announce_at for each in self._queues.values()]
        dues += [known.until for each in self._queues.values() for known in each.others.values()]
        self._due = min(dues, default=inf)
