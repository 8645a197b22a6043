"""The partitions that one member writes: one for each topic, all with its address.

A partition is named by its topic and its address, and every message carries both. So one member is the producer of
several topics over one set of sockets: what arrives goes to the partition of its subject, and one subscription to the
address serves them all.
"""

from __future__ import annotations

import math

from chappe.core import Clock, Effect, Publish
from chappe.errors import StorageError
from chappe.log.answering import KeptBytes
from chappe.log.messages import Ack, AskClock, ClockTold, Fetch, GetHeads, Message, Stored
from chappe.log.producer import STORES, JournalBatch, JournalTrim, LogProducer, questions_for, subscriptions_of
from chappe.log.subscriptions import PeerSubscriptions


class LogProducers:
    """All partitions with one address. ``subscriptions``: of the node, where that counts them for several producers."""

    def __init__(self, address: str, subscriptions: PeerSubscriptions | None = None, *, clock: Clock) -> None:
        self.address = address
        self.clock = clock  # for each partition, too
        self.subscriptions = PeerSubscriptions() if subscriptions is None else subscriptions  # for each partition, too
        self.kept = KeptBytes()  # likewise
        self._parts: dict[str, LogProducer] = {}
        self._started = False

    @property
    def kept_bytes(self) -> int:
        """Bytes of batches that are kept until they are stored, of all topics."""
        return self.kept.total

    def partitions(self) -> list[LogProducer]:
        """One for each topic."""
        return list(self._parts.values())

    def __len__(self) -> int:
        return len(self._parts)

    @property
    def stores(self) -> int:
        """Number of stores that listen to us."""
        return self.subscriptions.count(STORES)

    @property
    def wanted(self) -> bool:
        """Whether anybody listens to one of the topics."""
        return any(each.wanted for each in self._parts.values())

    def add(self, part: LogProducer, now: float) -> list[Effect]:
        """Write one more topic; it was made with our address, ``subscriptions`` and ``kept``."""
        assert part.address == self.address
        assert part.topic not in self._parts
        self._parts[part.topic] = part
        if self._started:
            part.begin(now)
            return [questions_for(part.topic)]
        return []

    def start(self, now: float) -> list[Effect]:
        """Subscribe to what is meant for us."""
        self._started = True
        for part in self._parts.values():
            part.begin(now)
        return [*subscriptions_of(self.address), *map(questions_for, self._parts)]

    def handle_message(self, message: Message, now: float) -> list[Effect]:
        """An acknowledgement, a request for what somebody missed, or a question for the time here."""
        match message:
            case AskClock(_, asker, number):
                return [Publish(ClockTold(asker, self.address, self.address, number, self.clock.wall_ns() // 1000))]
            case Stored() | Ack() | Fetch():
                part = self._parts.get(message.subject)
                return [] if part is None else part.handle_message(message, now)
            case GetHeads():
                return [action for part in self._parts.values() for action in part.handle_message(message, now)]
        return []

    def handle_done(self, job: JournalBatch | JournalTrim, outcome: StorageError | None, now: float) -> list[Effect]:
        """The journal of a topic has done a job."""
        return self._parts[job.topic].handle_done(job, outcome, now)

    def handle_timeout(self, now: float) -> list[Effect]:
        """Do what is due."""
        actions: list[Effect] = []
        for part in self._parts.values():
            if now >= part.next_timeout():
                actions += part.handle_timeout(now)
        return actions

    def next_timeout(self) -> float:
        """When something is to be sent."""
        return min([each.next_timeout() for each in self._parts.values()], default=math.inf)

    def invariants(self) -> list[str]:
        """What is not as it must be in its own state, one sentence each."""
        kept = sum(each.kept_bytes for each in self._parts.values())
        found = [] if kept == self.kept.total else [f"{self.kept.total} kept bytes are counted, {kept} are kept"]
        return found + [wrong for each in self._parts.values() for wrong in each.invariants()]
