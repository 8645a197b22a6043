"""The newest value of each topic, kept where somebody asks for it, and told to subscribers that begin late.

An endpoint that keeps last values has the newest message of data of each topic that it publishes, takes or passes on,
whoever published it. It says so by a prefix in its filter. The endpoint of a subscriber that wants last values asks
each endpoint that may have some, once, and again when one was out of reach. An answer goes to the asker alone.

Two messages of one publisher and topic are compared by their places (``mesh.places``), or by their numbers where
another counting began. A subscriber with last values gets only what is newer than everything it had of that publisher
and topic, whether it comes live or as an answer. So two keepers, or a keeper and the publisher, bring a value once, and
never an older one after a newer one. Of two publishers of one topic a keeper tells the one that it heard last.

Question and answer are payloads of data for one endpoint, with topics that nobody else may publish to::

    <$>/last/ask    u64 number of the subscriber, a filter (``mesh.messages``)
    <$>/last/told   u64 number of the subscriber, u8 (1: this is all), of each message: origin 16, u64 number,
                    u64 place, u16 length of the topic, u32 length of the payload, topic, payload

An endpoint that keeps nothing, and is asked because it wants everything, answers that this is all. An asker without an
answer asks again, a few times.

Source: the ZeroMQ Guide, chapter 5, its last value caching proxy.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from math import inf
from typing import Final

from chappe.defaults import (
    LAST_ASKED_AGAIN_S,
    LAST_HAD_MAX,
    LAST_QUESTIONS_MAX,
    LAST_TRIES,
    LAST_VALUES_BYTES_MAX,
    MESH_BATCH_BYTES_MAX,
)
from chappe.errors import ProtocolError
from chappe.mesh.filters import LAST_ASK, LAST_TOLD, Filter, matches, minimal
from chappe.mesh.flows import inner, parse_publications
from chappe.mesh.messages import DATA, ID_BYTES, NOBODY, Message, pack_filter, parse_filter
from chappe.mesh.places import COUNT_MAX

_NUMBER: Final = struct.Struct(">Q")
_HEAD: Final = struct.Struct(">QB")
_ENTRY: Final = struct.Struct(">16sQQHI")
_ALL: Final = 1
TOPICS: Final = frozenset({LAST_ASK, LAST_TOLD})


def is_newer(place: int, number: int, than: tuple[int, int]) -> bool:
    """Return whether a message was published later than another of the same origin and topic."""
    if place | COUNT_MAX == than[0] | COUNT_MAX:
        return place > than[0]
    return number > than[1]


class KeptLastValues:
    """The newest message of ``topics_max`` topics, ``LAST_VALUES_BYTES_MAX`` in all; the longest silent go first."""

    def __init__(self, topics_max: int) -> None:
        self._max = topics_max
        self._messages: dict[bytes, Message] = {}
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._messages)

    def pass_on(self, body: bytes) -> None:
        """Keep the last message of a sound body of FLOWS that passes, if it is data for everybody."""
        message = parse_publications(inner(body), NOBODY)[-1]
        if message.kind == DATA and message.receiver == NOBODY:
            self.note(message)

    def note(self, message: Message) -> None:
        """Keep a message, unless a newer one of its origin is there."""
        topic, size = message.topic, len(message.topic) + len(message.payload)
        former = self._messages.get(topic)
        same = former is not None and former.origin == message.origin
        if same and former and not is_newer(message.place, message.sequence, (former.place, former.sequence)):
            return
        self._forget(topic)
        if size > LAST_VALUES_BYTES_MAX:
            return
        self._messages[topic] = message
        self._bytes += size
        while len(self._messages) > self._max or self._bytes > LAST_VALUES_BYTES_MAX:
            self._forget(next(iter(self._messages)))

    def topics(self, wanted: Filter) -> list[bytes]:
        return [topic for topic in self._messages if matches(wanted, topic)]

    def get(self, topic: bytes) -> Message | None:
        return self._messages.get(topic)

    def invariants(self) -> list[str]:
        size = sum([len(each.topic) + len(each.payload) for each in self._messages.values()])
        right = size == self._bytes <= LAST_VALUES_BYTES_MAX and len(self._messages) <= self._max
        return [] if right else [f"{len(self)} last values have {size} bytes, and are counted as {self._bytes}"]

    def _forget(self, topic: bytes) -> None:
        former = self._messages.pop(topic, None)
        if former is not None:
            self._bytes -= len(topic) + len(former.payload)


class Newest:
    """One subscriber's newest message by publisher and topic; beyond the bound it gets no answers: they may be old."""

    def __init__(self, had_max: int = LAST_HAD_MAX) -> None:
        self.full = False
        self._max = had_max
        self._had: dict[tuple[bytes, bytes], tuple[int, int]] = {}  # place and number

    def fresh(self, messages: Iterable[Message]) -> list[Message]:
        """Return messages that are newer than all before; several with one place were sealed together."""
        found: list[Message] = []
        for message in messages:
            if not message.place:
                found.append(message)
                continue
            key = message.origin, message.topic
            had = self._had.get(key)
            if had is None and len(self._had) >= self._max:
                self.full = True
                self._had.clear()
            if had is None or is_newer(message.place, message.sequence, had):
                self._had[key] = message.place, message.sequence
            elif message.place != had[0] or not found or (found[-1].origin, found[-1].topic) != key:
                continue
            found.append(message)
        return found


class LastQuestions:
    def __init__(self) -> None:
        self.due = inf
        self._subscribers: set[int] = set()
        self._asked: dict[tuple[int, bytes], tuple[int, float]] = {}  # subscriber, keeper: how often, and when again

    def begin(self, subscriber: int) -> None:
        """Note a subscriber that wants last values, or those of further topics."""
        self.forget(subscriber)
        self._subscribers.add(subscriber)
        self.due = -inf

    def forget(self, subscriber: int) -> None:
        self._subscribers.discard(subscriber)
        for key in [key for key in self._asked if key[0] == subscriber]:
            del self._asked[key]

    def look(self) -> None:
        if self._subscribers:
            self.due = -inf

    def ask(self, keepers: frozenset[bytes], now: float) -> list[tuple[int, bytes]]:
        """Return which subscribers' questions go to which endpoints that may keep a value."""
        self._asked = {key: said for key, said in self._asked.items() if key[1] in keepers}
        found = []
        for subscriber in sorted(self._subscribers):
            for keeper in sorted(keepers):
                tries, again = self._asked.get((subscriber, keeper), (0, -inf))
                if now >= again:
                    self._asked[subscriber, keeper] = tries + 1, now + LAST_ASKED_AGAIN_S
                    if tries < LAST_TRIES:
                        found.append((subscriber, keeper))
                    else:
                        self._asked[subscriber, keeper] = tries, inf
        self.due = min([again for _, again in self._asked.values()], default=inf)
        return found

    def answered(self, subscriber: int, keeper: bytes, complete: bool, now: float) -> bool:
        """Note a keeper's answer; return False if it was not asked."""
        said = self._asked.get((subscriber, keeper))
        if said is None:
            return False
        self._asked[subscriber, keeper] = said[0], inf if complete else now + LAST_ASKED_AGAIN_S
        return True


class LastAnswers:
    """The answers that one endpoint owes, in parts as there is room for them."""

    def __init__(self) -> None:
        self._owed: dict[tuple[bytes, int], Iterator[bytes]] = {}  # asker, and number of its subscriber

    def owe(self, asker: bytes, subscriber: int, parts: Iterator[bytes]) -> bool:
        """Note an endpoint's question; return False if too many have asked."""
        if len(self._owed) >= LAST_QUESTIONS_MAX and (asker, subscriber) not in self._owed:
            return False
        self._owed[asker, subscriber] = parts
        return True

    def __bool__(self) -> bool:
        return bool(self._owed)

    def askers(self) -> list[tuple[bytes, int]]:
        return list(self._owed)

    def next_part(self, key: tuple[bytes, int]) -> bytes | None:
        """Return the next payload for an asker; after the last one None, and nothing more is owed."""
        part = next(self._owed[key], None)
        if part is None:
            del self._owed[key]
        return part

    def forget(self, key: tuple[bytes, int]) -> None:
        del self._owed[key]


def pack_question(subscriber: int, prefixes: Iterable[bytes]) -> bytes:
    return _NUMBER.pack(subscriber) + pack_filter(minimal(prefixes))


def parse_question(payload: bytes) -> tuple[int, Filter]:
    """Return the number of the subscriber, and what it wants."""
    if len(payload) < _NUMBER.size:
        raise ProtocolError("a question for last values is cut off")
    return _NUMBER.unpack_from(payload)[0], minimal(parse_filter(payload[_NUMBER.size :]))


def pack_answers(subscriber: int, messages: Iterable[Message]) -> Iterator[bytes]:
    """Return the payloads that tell ``messages``, which are taken as they are needed; the last one says that it is."""
    entries: list[bytes] = []
    size = 0
    for each in messages:
        head = _ENTRY.pack(each.origin, each.sequence, each.place, len(each.topic), len(each.payload))
        if entries and size + len(head) + len(each.topic) + len(each.payload) > MESH_BATCH_BYTES_MAX:
            yield b"".join((_HEAD.pack(subscriber, 0), *entries))
            entries, size = [], 0
        entries += (head, each.topic, each.payload)
        size += len(head) + len(each.topic) + len(each.payload)
    yield b"".join((_HEAD.pack(subscriber, _ALL), *entries))


def parse_answer(payload: bytes, sender: bytes) -> tuple[int, bool, list[Message]]:
    """Return the number of the subscriber, whether that is all, and the messages."""
    if len(payload) < _HEAD.size:
        raise ProtocolError("an answer with last values is cut off")
    subscriber, flags = _HEAD.unpack_from(payload)
    at, found = _HEAD.size, []
    while at < len(payload):
        if at + _ENTRY.size > len(payload):
            raise ProtocolError("a last value is cut off")
        origin, number, place, topic_size, size = _ENTRY.unpack_from(payload, at)
        at += _ENTRY.size
        topic, value = payload[at : at + topic_size], payload[at + topic_size : at + topic_size + size]
        at += topic_size + size
        if at > len(payload) or not place & COUNT_MAX or len(origin) != ID_BYTES:
            raise ProtocolError("a last value is cut off, or has no place")
        found.append(Message(topic, value, DATA, sender, NOBODY, 0, origin, number, None, place))
    return subscriber, bool(flags & _ALL), found
