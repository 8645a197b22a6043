"""A forwarder: a store that passes on what it takes, so that producers and consumers need to know nobody else.

Members dial it. What a producer publishes there goes on at once to whoever subscribed, under the producer's own
address, and into the store; an acknowledgement means "on disk" as ever. So a consumer recognises what it has from
another forwarder, and several work side by side without knowing of each other's state.

What the store has is answered by it. A FETCH for what it has not, as when its disk refuses, goes on to the producer,
and the producer's answer to who asked.

Those who know batches are sent batches and originals single records, whichever the producer sent.

Source: chappe's own, after the ZeroMQ Guide's forwarder; the messages are Dafka's.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from chappe.data.topic import encode_topic
from chappe.deadlines import Deadlines
from chappe.defaults import BATCH_RECORDS_MAX, BEACON_INTERVAL_S
from chappe.log.actions import Action, Publish, Subscribe, Unsubscribe
from chappe.log.batch import Batch, encode_batch
from chappe.log.messages import BatchMessage, Fetch, Head, Message, RecordMessage
from chappe.log.queries import Answer
from chappe.log.sources import Key
from chappe.log.store import LogStore

ASKERS_MAX: Final = 1_000  # who is passed answers of producers at once; a further one asks again
ANSWER_S: Final = 5.0  # so long after it has asked last


@dataclass(slots=True)
class _Singles:
    """Records that follow each other."""

    base: int
    wall_us: int
    contents: list[bytes]
    bytes: int


class LogForwarder:
    """What a node runs around a store that forwards."""

    def __init__(self, store: LogStore, *, now: float) -> None:
        self.address = store.address
        self.passed = 0  # messages with records
        self._store = store
        self._beat_at = now
        self._askers: Deadlines[bytes] = Deadlines()  # until when each is passed what producers answer
        self._singles: dict[Key, _Singles] = {}  # of originals, to go on as batches at once

    def start(self, now: float) -> list[Action]:
        """See ``LogStore.start``."""
        return self._store.start(now)

    @property
    def paused(self) -> bool:
        """See ``LogStore.paused``."""
        return self._store.paused

    def handle_subscription(self, prefix: bytes, on: bool, now: float) -> list[Action]:
        """See ``LogStore.handle_subscription``."""
        return self._store.handle_subscription(prefix, on, now)

    def handle_message(self, message: Message, now: float, wall_us: int) -> list[Action]:
        """Something a member published: take it, and pass it on. Raises ProtocolError for a malformed batch."""
        store = self._store
        match message:
            case BatchMessage() | RecordMessage() if message.direct and message.topic != self.address:
                return [Publish(message)]  # an answer to somebody else
            case BatchMessage() | RecordMessage() if not message.direct:
                known = store.duplicates
                actions = store.handle_message(message, now, wall_us)
                known_already = store.duplicates > known or not (message.subject and message.address)
                return actions if known_already else [*self._pass_on(message, wall_us), *actions]
            case Head() if not message.direct:
                return [Publish(message), *store.handle_message(message, now, wall_us)]
            case Fetch():
                return [*self._pass_question(message, now), *store.handle_message(message, now, wall_us)]
        return store.handle_message(message, now, wall_us)

    def handle_answer(self, request_id: int, answer: Answer, batches: list[bytes], now: float) -> list[Action]:
        """See ``LogStore.handle_answer``."""
        return self._store.handle_answer(request_id, answer, batches, now)

    def handle_gone(self, address: str, now: float) -> list[Action]:
        """See ``LogStore.handle_gone``."""
        return self._store.handle_gone(address, now)

    def handle_timeout(self, now: float) -> list[Action]:
        """Do what is due; say who we are."""
        after = self._store.handle_timeout(now)  # first: if it raises, nothing is taken out here
        actions = self._pass_singles()
        for requester in self._askers.due(now):
            actions += [Unsubscribe(b"S" + requester), Unsubscribe(b"D" + requester)]
        if now >= self._beat_at:
            self._beat_at = now + BEACON_INTERVAL_S
            actions.append(Publish(self._store.info()))
        return [*actions, *after]

    def next_timeout(self) -> float:
        """When something is due."""
        if self._singles:
            return -math.inf
        return min(self._beat_at, self._askers.next, self._store.next_timeout())

    # -- passing on -----------------------------------------------------------------------------------

    def _pass_on(self, message: BatchMessage | RecordMessage, wall_us: int) -> list[Action]:
        topic, partition = message.subject, message.address
        self.passed += 1
        originals = self._store.subscriptions.originals(encode_topic(topic))
        if isinstance(message, RecordMessage):
            actions = self._gather(message, wall_us)
            return [*actions, Publish(message)] if originals else actions
        if not originals:
            return [Publish(message)]
        batch = Batch.parse(message.body, check=False)
        singles = enumerate(batch.values(), batch.base)
        return [
            Publish(message),
            *(Publish(RecordMessage(topic, partition, topic, offset, value or b"")) for offset, value in singles),
        ]

    def _gather(self, message: RecordMessage, wall_us: int) -> list[Action]:
        """Keep a single record until what came with it is handled, too; returns what it does not fit or follow.

        That may take a second, as when the machine refuses something.
        """
        key, size = (message.subject, message.address), len(message.content)
        found = self._singles.get(key)
        if (
            found is not None
            and message.sequence == found.base + len(found.contents) < found.base + BATCH_RECORDS_MAX
            and found.bytes + size <= self._store.limits.batch_bytes
        ):
            found.contents.append(message.content)
            found.bytes += size
            return []
        actions = [] if found is None else [_batch(key, found)]
        self._singles[key] = _Singles(message.sequence, wall_us, [message.content], size)
        return actions

    def _pass_singles(self) -> list[Action]:
        singles, self._singles = self._singles, {}
        return [_batch(key, found) for key, found in singles.items()]

    def _pass_question(self, message: Fetch, now: float) -> list[Action]:
        """Members of chappe have asked the stores before; an original is to get from the producer what we have not."""
        requester = encode_topic(message.address)
        info = self._store.storage.partition(message.subject, message.topic)
        have = info is not None and info.first <= message.sequence < info.next
        if message.address == self.address or (have and self._store.subscriptions.original(requester)):
            return []
        actions: list[Action] = [Publish(message)]
        if requester not in self._askers:
            if len(self._askers) >= ASKERS_MAX:
                return []
            actions = [Subscribe(b"S" + requester), Subscribe(b"D" + requester), *actions]
        self._askers.set(requester, now + ANSWER_S)
        return actions


def _batch(key: Key, singles: _Singles) -> Action:
    body = encode_batch(singles.base, singles.contents, singles.wall_us)
    return Publish(BatchMessage(key[0], key[1], key[0], body))
