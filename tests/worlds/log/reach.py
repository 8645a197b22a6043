"""What has to reach whom: single records and whole answers the originals, and known stores all that share a node."""

from __future__ import annotations

from tests.worlds.log.members import ProducerHost
from tests.worlds.log.node import NodeHost
from tests.worlds.log.originals import OriginalHost
from tests.worlds.log.subjects import ConsumerSubject
from tests.worlds.log.world import LogWorld, WatchedLog

from chappe.log.batch import Batch
from chappe.log.forwarder import LogForwarder
from chappe.log.messages import BatchMessage, Fetch, Message, RecordMessage
from chappe.log.sources import Key
from chappe.sim.world import Checker

Asker = tuple[str, Key]  # an address, and the partition that it asks for


class Originals(Checker[LogWorld]):
    """An original that listens gets every record when it is published; of an answer, none is left out."""

    name = "originals"

    def __init__(self, world: LogWorld) -> None:
        super().__init__(world)
        self._owed: dict[ProducerHost, set[int]] = {}  # published in batches, and not yet one by one
        self._asked: dict[NodeHost, dict[Asker, set[int]]] = {}  # where answers of a host may begin, and go on

    def on_fetched(self, host: NodeHost, message: Fetch) -> None:
        """Somebody asks: an answer may begin there."""
        asker = (message.address, (message.subject, message.topic))
        self._asked.setdefault(host, {}).setdefault(asker, set()).add(message.sequence)

    def on_published(self, host: NodeHost, message: Message) -> None:
        """Follow batches, single records, and answers."""
        if isinstance(message, RecordMessage):
            if message.direct and not isinstance(host.role, LogForwarder):
                self._answers(host, message)  # a forwarder passes on what of a producer's answer has come to it
            elif isinstance(host, ProducerHost):
                self._owed.get(host, set()).discard(message.sequence)
        elif isinstance(message, BatchMessage) and not message.direct and isinstance(host, ProducerHost):
            record = b"M" + message.topic.encode()
            listening = (link.wanted for link in host.listeners if isinstance(link.subscriber, OriginalHost))
            if any(record.startswith(prefix) for wanted in listening for prefix in wanted):
                batch = Batch.parse(message.body, check=False)
                self._owed.setdefault(host, set()).update(range(batch.base, batch.next))

    def _answers(self, host: NodeHost, message: RecordMessage) -> None:
        asker = (message.topic, (message.subject, message.address))
        places = self._asked.get(host, {}).get(asker, set())
        if message.sequence not in places:
            self.fail(f"{host.name} answers {asker[0]} with {asker[1]} {message.sequence}, to follow were {places}")
        places.add(message.sequence + 1)

    def on_tick(self) -> None:
        """What was published is not owed any more."""
        for host, owed in self._owed.items():
            if owed and host.alive:
                self.fail(f"{host.name} has not sent an original that listens {sorted(owed)} of {host.key}")


class Shared(Checker[WatchedLog]):
    """Consumers that share a node know the same stores, whoever came first."""

    name = "shared node"

    def on_tick(self) -> None:
        """Compare those of each node."""
        for host in self.world.alive(ConsumerSubject):
            known, theirs = set(host.core.store_addresses), set(host.home.core.store_addresses)
            if known != theirs:
                self.fail(
                    f"{host.name} does not know the same stores as {host.home.name} in its node: {known ^ theirs}"
                )
