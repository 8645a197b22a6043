"""A forwarder: a store that passes on what it takes, so that producers and consumers need to know nobody else.

Members dial it. What a producer publishes there goes on at once to whoever subscribed, under the producer's own
address, and into the store; an acknowledgement means "on disk" as ever. So a consumer recognises what it has from
another forwarder, and several work side by side without knowing of each other's state.

What the store has is answered by it. A FETCH for what it has not, as when its disk refuses, goes on to the producer,
and the producer's answer to the one that asked.

A forwarder may hear itself: over another one that passes on what this one says, or because a beacon named its own port
by another name. So nothing is passed on that was passed on a moment ago.

Those who know batches are sent batches and originals single records, whichever the producer sent.

Source: chappe's own, after the ZeroMQ Guide's forwarder; the messages are Dafka's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from chappe.core import Effect, Publish, Subscribe
from chappe.data.topic import encode_topic
from chappe.deadlines import Deadlines
from chappe.defaults import BATCH_RECORDS_MAX, BEACON_INTERVAL_S, RETRY_S
from chappe.log.batch import HEADER, Batch, encode_batch
from chappe.log.messages import BatchMessage, Fetch, Head, Message, RecordMessage
from chappe.log.queries import Answer, Request
from chappe.log.sources import Key
from chappe.log.store import LogStore, StoreJob, StoreOutcome

ASKERS_MAX: Final = 1_000  # who is passed answers of producers at once; a further one asks again
ANSWER_S: Final = 5.0  # so long after it has asked last
ECHO_S: Final = RETRY_S / 2  # what comes again within it is our own; who asks again waits longer
LATELY_MAX: Final = 50_000  # messages of one kind that are passed on within that; a further one is said again


@dataclass(slots=True)
class _PassedSingles:
    base: int
    arrived_us: int
    contents: list[bytes]
    bytes: int


class _Lately:
    def __init__(self) -> None:
        self._passed: dict[tuple[object, ...], tuple[int, float]] = {}  # in order of time

    def repeats(self, what: tuple[object, ...], number: int, now: float) -> bool:
        """Return True if this, or a higher number of it, was passed on a moment ago; if not, it is from now on."""
        passed = self._passed
        while passed and passed[oldest := next(iter(passed))][1] <= now - ECHO_S:
            del passed[oldest]
        before = passed.get(what)
        if len(passed) >= LATELY_MAX if before is None else number <= before[0]:
            return True
        passed.pop(what, None)
        passed[what] = (number, now)
        return False


class LogForwarder:
    def __init__(self, store: LogStore, *, now: float) -> None:
        self.address = store.address
        self.passed = 0  # messages with records
        self._store = store
        self._beat_at = now
        self._answers: Deadlines[bytes] = Deadlines()  # prefixes of answers to others, and until when they are passed
        self._singles: dict[Key, _PassedSingles] = {}  # of originals, to go on as batches at once
        self._heads, self._questions, self._records = _Lately(), _Lately(), _Lately()

    def start(self, now: float) -> list[Effect]:
        return self._store.start(now)

    @property
    def paused(self) -> bool:
        return self._store.paused

    def handle_subscription(self, prefix: bytes, on: bool, now: float) -> list[Effect]:
        return self._store.handle_subscription(prefix, on, now)

    def handle_message(self, message: Message, now: float) -> list[Effect]:
        """Take a message that a member published, and pass it on. Raises ProtocolError for a malformed batch."""
        store = self._store
        match message:
            case BatchMessage() | RecordMessage() if message.direct and message.topic != self.address:
                echo = self._records.repeats((message.topic, *_place(message)), 0, now)
                return [] if echo else [Publish(message)]  # an answer to somebody else
            case BatchMessage() | RecordMessage() if not message.direct:
                known, left = store.duplicates, store.left
                actions = store.handle_message(message, now)
                known_already = store.duplicates > known or not (message.subject and message.address)
                if store.left > left:  # so the store will not know it again
                    known_already = known_already or self._records.repeats(_place(message), 0, now)
                return actions if known_already else [*self._pass_on(message), *actions]
            case Head() if not message.direct:
                actions = store.handle_message(message, now)
                echo = self._heads.repeats((message.subject, message.address), message.sequence, now)
                return actions if echo else [Publish(message), *actions]
            case Fetch():
                return [*self._pass_question(message, now), *store.handle_message(message, now)]
        return store.handle_message(message, now)

    def handle_answer(
        self, request_id: int, answer: Answer, batches: Sequence[bytes | memoryview], now: float
    ) -> list[Effect]:
        return self._store.handle_answer(request_id, answer, batches, now)

    def handle_request(
        self, client: bytes, request_id: bytes, request: Request, payload: bytes, now: float
    ) -> list[Effect]:
        return self._store.handle_request(client, request_id, request, payload, now)

    def handle_done(self, job: StoreJob, outcome: StoreOutcome, now: float) -> list[Effect]:
        return self._store.handle_done(job, outcome, now)

    def handle_gone(self, address: str, now: float) -> list[Effect]:
        return self._store.handle_gone(address, now)

    def handle_timeout(self, now: float) -> list[Effect]:
        """Do what is due; say who we are."""
        after = self._store.handle_timeout(now)  # first: if it raises, nothing is taken out here
        singles, self._singles = self._singles, {}
        actions = [_batch(key, found) for key, found in singles.items()]
        actions += [Subscribe(prefix, False) for prefix in self._answers.due(now)]
        if now >= self._beat_at:
            self._beat_at = now + BEACON_INTERVAL_S
            actions.append(Publish(self._store.info()))
        return [*actions, *after]

    def flush(self, now: float) -> list[Effect]:
        """Do nothing: what is gathered for the disk leaves when the disk is free."""
        return []

    def next_timeout(self) -> float:
        if self._singles:
            return -math.inf
        return min(self._beat_at, self._answers.next, self._store.next_timeout())

    # -- passing on -----------------------------------------------------------------------------------

    def _pass_on(self, message: BatchMessage | RecordMessage) -> list[Effect]:
        topic = message.subject
        self.passed += 1
        originals = self._store.subscriptions.originals(encode_topic(topic))
        if isinstance(message, RecordMessage):
            actions = self._gather(message)
            return [*actions, Publish(message)] if originals else actions
        return published(message, originals=originals)

    def _gather(self, message: RecordMessage) -> list[Effect]:
        """Keep a single record until its neighbours in the queue are handled; return records that it does not follow.

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
        self._singles[key] = _PassedSingles(
            message.sequence, self._store.clock.wall_ns() // 1000, [message.content], size
        )
        return actions

    def _pass_question(self, message: Fetch, now: float) -> list[Effect]:
        """Pass on a FETCH of an original for records that we lack; members of chappe have asked the stores."""
        requester = encode_topic(message.address)
        info = self._store.storage.partition(message.subject, message.topic)
        have = info is not None and info.first <= message.sequence < info.next
        if message.address == self.address or (have and self._store.subscriptions.original(requester)):
            return []
        if self._questions.repeats((message.address, message.topic, message.subject, message.sequence), 0, now):
            return []
        # A producer takes who wants batches to know that there is all that it asks for; an original asks for more.
        ours = self._store.subscriptions.has(b"S" + requester)
        prefixes = [b"S" + requester, b"D" + requester] if ours else [b"D" + requester]
        new = [each for each in prefixes if each not in self._answers]
        if len(self._answers) + len(new) > 2 * ASKERS_MAX:
            return []
        for each in prefixes:
            self._answers.set(each, now + ANSWER_S)
        return [*(Subscribe(each) for each in new), Publish(message)]


def published(message: BatchMessage, *, originals: bool) -> list[Effect]:
    """Return a batch for those who know batches, and its records one by one if originals listen."""
    if not originals:
        return [Publish(message)]
    batch = Batch.parse(message.body, check=False)
    if batch.sealed is not None:
        return [Publish(message)]
    topic, partition = message.topic, message.address
    singles = enumerate(batch.values(), batch.base)
    return [
        Publish(message),
        *(Publish(RecordMessage(topic, partition, topic, offset, value or b"")) for offset, value in singles),
    ]


def _place(message: BatchMessage | RecordMessage) -> tuple[str, str, object]:
    """Return which records of which partition; a batch begins with its checksum and its offset."""
    start = message.sequence if isinstance(message, RecordMessage) else bytes(message.body[: HEADER.size])
    return message.subject, message.address, start


def _batch(key: Key, singles: _PassedSingles) -> Effect:
    body = encode_batch(singles.base, singles.contents, singles.arrived_us)
    return Publish(BatchMessage(key[0], key[1], key[0], body))
