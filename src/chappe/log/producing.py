"""The producers of one node: who of them an acknowledgement, a request or a listener concerns."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable
from typing import Protocol

from chappe.core import Effect
from chappe.data.topic import encode_topic
from chappe.errors import StorageError
from chappe.log.beacon import PRODUCING
from chappe.log.member import Carrying
from chappe.log.messages import Ack, AskClock, Fetch, GetHeads, Message, Stored
from chappe.log.producer import STORES, JournalBatch, JournalTrim, LogProducer
from chappe.log.producers import LogProducers
from chappe.log.subscriptions import PeerSubscriptions


class Claims(Protocol):
    """Tells other nodes which identities go on here."""

    def claim(self, identity: str, now: float) -> list[Effect]:
        """Tell everybody that we go on with an identity."""

    def disclaim(self, identity: str) -> list[Effect]:
        """Take a claim back."""


class ProducingMember(Carrying[LogProducers]):
    """Carries producers; no other node has its ``name``."""

    def __init__(self, name: str) -> None:
        super().__init__(PRODUCING + name)
        self.subscriptions = PeerSubscriptions()  # to be given to each producer
        self._topics: dict[bytes, dict[str, LogProducer]] = {}  # topic -> its partitions here, by address
        self._sorted: list[bytes] = []  # these topics
        self._identities: dict[str, None] = {}
        self.claims: Claims | None = None  # of the node, if anybody hears of them

    # -- the parts ------------------------------------------------------------------------------------

    def add(self, part: LogProducers, now: float, identity: bool = False) -> list[Effect]:
        """Carry one more producer; if it goes on with an identity, others are told so."""
        assert part.subscriptions is self.subscriptions
        actions = self._begin(part, now)
        if not identity:
            return actions
        self._identities[part.address] = None
        return actions if self.claims is None else [*actions, *self.claims.claim(part.address, now)]

    def add_topic(self, part: LogProducers, partition: LogProducer, now: float) -> list[Effect]:
        """A producer writes one more topic."""
        raw = encode_topic(partition.topic)
        if raw not in self._topics:
            self._topics[raw] = {}
            insort(self._sorted, raw)
        self._topics[raw][part.address] = partition
        return self.carry(part, part.add(partition, now))

    def remove(self, address: str, now: float) -> list[Effect]:
        """See ``Carrying.remove``."""
        part = self._parts.get(address)
        for partition in () if part is None else part.partitions():
            raw = encode_topic(partition.topic)
            del self._topics[raw][address]
            if not self._topics[raw]:
                del self._topics[raw]
                del self._sorted[bisect_left(self._sorted, raw)]
        actions = super().remove(address, now)
        if address in self._identities:
            del self._identities[address]
            actions += [] if self.claims is None else self.claims.disclaim(address)
        return actions

    # -- the world ------------------------------------------------------------------------------------

    def handle_subscription(self, prefix: bytes, on: bool, now: float) -> list[Effect]:
        """A listener came or went."""
        self.subscriptions.change(prefix, on)
        if prefix[:1] == b"R" and on:
            concerned = self._starting(prefix[1:])
        elif prefix in (b"", b"M", STORES) or (prefix[:1] in (b"W", b"E") and on):
            concerned = self._starting(b"")
        else:
            return []
        return self._tell_each(concerned, lambda each: each.listened(prefix, on, now), now)

    def handle_message(self, message: Message, now: float) -> list[Effect]:
        """An acknowledgement, or a question."""
        match message:
            case Stored() | Ack() | Fetch() | AskClock():
                part = self._parts.get(message.topic)
                return [] if part is None else self._tell(part, part.handle_message, message, now, now=now)
            case GetHeads(prefix):
                concerned = self._starting(encode_topic(prefix))
                return self._tell_each(concerned, lambda each: each.handle_message(message, now), now)
        return []

    def handle_done(self, job: JournalBatch | JournalTrim, outcome: StorageError | None, now: float) -> list[Effect]:
        """A producer's journal has done a job."""
        part = self._parts.get(job.address)
        return [] if part is None else self._tell(part, part.handle_done, job, outcome, now, now=now)

    def handle_gone(self, address: str, now: float) -> list[Effect]:
        """A node left: its subscriptions end by themselves."""
        return []

    def _tell_each(
        self, partitions: Iterable[LogProducer], method: Callable[[LogProducer], list[Effect]], now: float
    ) -> list[Effect]:
        actions: list[Effect] = []
        for partition in partitions:
            actions += self._tell(self._parts[partition.address], method, partition, now=now)
        return actions

    def _starting(self, prefix: bytes) -> list[LogProducer]:
        """All partitions of topics that start so."""
        found: list[LogProducer] = []
        for index in range(bisect_left(self._sorted, prefix), len(self._sorted)):
            raw = self._sorted[index]
            if not raw.startswith(prefix):
                break
            found += self._topics[raw].values()
        return found
