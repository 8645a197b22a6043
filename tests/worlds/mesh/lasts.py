"""Last values: a subscriber that begins late has the newest message of each topic that somebody in reach keeps."""

from __future__ import annotations

from tests.worlds.mesh.subjects import LAST, EndpointSubject
from tests.worlds.mesh.world import MeshWorld

from chappe.mesh.forwarding.last_values import is_newer
from chappe.mesh.messages import Message
from chappe.sim.world import Checker


class Lasts(Checker[MeshWorld]):
    """Each value comes once, none behind a newer one of its publisher, and the newest that is kept comes to all."""

    name = "lasts"

    def __init__(self, world: MeshWorld) -> None:
        super().__init__(world)
        self.told = 0  # values that were compared at the end
        self._had: dict[tuple[str, str, bytes], int] = {}  # life, publisher, topic: ``Publication.nth``
        self._newest: dict[tuple[str, bytes, bytes], Message] = {}  # life, origin, topic

    def on_last(self, host: EndpointSubject, message: Message) -> None:
        """Compare with what came before."""
        publication = self.world.record.publications.get(message.payload)
        if publication is None or publication.topic != message.topic:
            self.fail(f"{host.life} got a message that nobody published: {message}")
            return
        if not any(map(message.topic.startswith, host.lasting)):
            self.fail(f"{host.life} got {message.topic!r}, which it does not want")
        if message.place:
            self._newest[host.life, message.origin, message.topic] = message
        if self.world.record.originals or not publication.nth:
            return
        key = host.life, publication.publisher, message.topic
        if publication.nth <= self._had.get(key, 0):
            self.fail(f"{host.life} got {publication.publisher}'s message {publication.nth} behind {self._had[key]}")
        self._had[key] = publication.nth

    def on_lasts(self) -> None:
        """Everybody has just asked for everything."""
        for host in self.world.alive(EndpointSubject):
            newest = host.core.router.lasts.newest.get(LAST)
            for keeper in [host, *self.world.reachable(host)]:
                if isinstance(keeper, EndpointSubject) and keeper.core.router.last_values is not None:
                    for topic in keeper.core.router.last_values.topics((b"",)):
                        kept = keeper.core.router.last_values.get(topic)
                        if kept is not None and kept.origin != host.own_id and not (newest and newest.full):
                            self._look(host, keeper, kept)

    def _look(self, host: EndpointSubject, keeper: EndpointSubject, kept: Message) -> None:
        self.told += 1
        had = self._newest.get((host.life, kept.origin, kept.topic))
        if had is None or is_newer(kept.place, kept.sequence, (had.place, had.sequence)):
            self.fail(f"{host.life} never got {kept.payload!r}, {kept.topic!r}, which {keeper.life} keeps")
