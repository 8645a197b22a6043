"""What has to reach whom: single records and whole answers the originals, and known stores all that share a node."""

from __future__ import annotations

from typing import Any

from tests.worlds.log.subjects import ConsumerSubject
from tests.worlds.log.world import WatchedLog

from chappe.log.batch import Batch
from chappe.log.forwarder import LogForwarder
from chappe.log.messages import BatchMessage, Fetch, Message, RecordMessage
from chappe.log.sources import Key
from chappe.runtime.log_ports import LogPorts
from chappe.runtime.store_ports import StorePorts
from chappe.sim.world import Checker

Asker = tuple[str, Key]  # an address, and the partition that it asks for


class Originals(Checker[WatchedLog]):
    """An original that listens gets every record when it is published; of an answer, none is left out."""

    name = "originals"

    def __init__(self, world: WatchedLog) -> None:
        super().__init__(world)
        self._owed: dict[tuple[Any, Key], set[int]] = {}  # published in batches, and not yet one by one
        self._asked: dict[tuple[Any, Asker], set[int]] = {}  # where answers of a node may begin, and go on

    def on_fetched(self, ports: LogPorts, message: Fetch) -> None:
        """Somebody asks: an answer may begin there."""
        asker = (message.address, (message.subject, message.topic))
        self._asked.setdefault((ports, asker), set()).add(message.sequence)

    def on_published(self, ports: LogPorts, message: Message) -> None:
        """Follow batches, single records, and answers."""
        if isinstance(message, RecordMessage):
            if not message.direct:
                self._owed.get((ports, (message.topic, message.address)), set()).discard(message.sequence)
            elif not isinstance(ports.core.role, LogForwarder):
                self._answers(ports, message)  # a forwarder passes on what of a producer's answer has come to it
        elif isinstance(message, BatchMessage) and not message.direct and not isinstance(ports, StorePorts):
            record = b"M" + message.topic.encode()
            socket: Any = ports._pub.socket
            listening = (link.wanted for link in socket.listeners if self._is_original(link.subscriber))
            if any(record.startswith(prefix) for wanted in listening for prefix in wanted):
                batch = Batch.parse(message.body, check=False)
                key = (message.topic, message.address)
                self._owed.setdefault((ports, key), set()).update(range(batch.base, batch.next))

    def _is_original(self, subscriber: Any) -> bool:
        return subscriber.name in self.world.originals or subscriber.name.startswith("cproducer")

    def _answers(self, ports: LogPorts, message: RecordMessage) -> None:
        asker = (message.topic, (message.subject, message.address))
        places = self._asked.get((ports, asker), set())
        if message.sequence not in places:
            self.fail(f"{asker[0]} is answered with {asker[1]} {message.sequence}, to follow were {places}")
        places.add(message.sequence + 1)

    def on_tick(self) -> None:
        """What was published is not owed any more."""
        for (ports, key), owed in self._owed.items():
            if owed and not ports.driver.turns.closed and not ports.driver.turns.machine.killed:
                self.fail(f"an original that listens was not sent {sorted(owed)} of {key}")


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
