"""Publishing to one topic of the mesh."""

from __future__ import annotations

from collections.abc import Iterable

from chappe.api.faces import Closeable
from chappe.api.mesh.hosting import Host
from chappe.api.mesh.waiting import Waiting
from chappe.system.forking import own


class Publisher(Closeable):
    """Publishes to one topic, and tells how much room there is.

    Made by ``Endpoint.publisher``. Use from several threads is safe.
    """

    def __init__(self, endpoint: Host, topic: str) -> None:
        own(self)
        self.topic = topic
        self._endpoint = endpoint
        self._waiting = Waiting(endpoint.node.turns, endpoint.core.room)
        endpoint.watch_room(self._waiting, True)

    def publish(self, value: object) -> int:
        """See ``Endpoint.publish``."""
        return self._endpoint.publish(self.topic, value)

    def publish_batch(self, values: Iterable[object]) -> int:
        """See ``Endpoint.publish_batch``."""
        topic = self.topic
        return self._endpoint.publish_batch((topic, value) for value in values)

    @property
    def buffered(self) -> int:
        """How many messages wait for the peer that is furthest behind."""
        return self._endpoint.buffered

    @property
    def capacity(self) -> int:
        """How many messages can wait for one peer; then the endpoint's policy ``on_full`` applies."""
        return self._endpoint.capacity

    def fd(self) -> int:
        """A descriptor that is readable while ``publish`` does not wait: for select, poll and event loops."""
        return self._waiting.fileno()

    def close(self) -> None:
        """Release the descriptor; what was published is still sent."""
        self._endpoint.watch_room(self._waiting, False)
