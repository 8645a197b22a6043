"""The gaps that subscribers are told of: exactly the messages that match and were not delivered."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from tests.worlds.mesh.base import MeshHost
from tests.worlds.mesh.subjects import EndpointSubject
from tests.worlds.mesh.world import MeshWorld

from chappe.limits import MESH_LIMITS
from chappe.mesh.events import Gap
from chappe.mesh.messages import DATA, Message
from chappe.mesh.places import COUNT_MAX
from chappe.sim.world import Checker


@dataclass
class _Window:
    """Since a subscriber got the first message of one publisher and topic; messages by ``Publication.nth``."""

    counting: int
    first: int
    last: int
    came: int = 1
    told: int = 0  # as missing

    @property
    def missing(self) -> int:
        return self.last - self.first + 1 - self.came


class Missing(Checker[MeshWorld]):
    """Whoever subscribes is told how many messages are missing, of each publisher and topic, and never too many."""

    name = "gaps"

    def __init__(self, world: MeshWorld) -> None:
        super().__init__(world)
        self.gaps = 0  # that were told
        self._windows: dict[tuple[str, bytes, bytes], _Window] = {}  # life, origin and topic
        self._former: set[bytes] = set()  # origins of which messages of a former life came
        self._touched: set[tuple[str, bytes, bytes]] = set()

    @property
    def _counts(self) -> bool:
        """Not where an origin also counts what it brings in from originals, or as one what was sealed together."""
        return not self.world.record.originals and self.world.per_message == 1

    def on_wanted(self, host: EndpointSubject) -> None:
        """What a subscriber no longer wants is not missing."""
        for life, origin, topic in [*self._windows]:
            if life == host.life and not any(map(topic.startswith, host.topics)):
                del self._windows[life, origin, topic]

    def on_delivered(self, host: MeshHost, message: Message) -> None:
        """Count it in."""
        publication = self.world.record.publications.get(message.payload)
        if publication is None or not isinstance(host, EndpointSubject) or message.kind != DATA or not message.place:
            return
        if self.world.lives.get(message.origin) != publication.publisher:
            self._former.add(message.origin)
            return
        if not self._counts:
            return
        counting, nth = message.place & ~COUNT_MAX, publication.nth
        if self.world.mesh_limits.routes_max == MESH_LIMITS.routes_max and message.place & COUNT_MAX != nth:
            self.fail(
                f"{message.payload!r} is {publication.publisher}'s message {nth}, not {message.place & COUNT_MAX}"
            )
        key = host.life, message.origin, message.topic
        window = self._windows.get(key)
        if window is None:
            self._windows[key] = _Window(counting, nth, nth)
        elif window.counting != counting:  # what is missing of the former may still be told
            self._windows[key] = _Window(counting, nth, nth, told=window.told - window.missing)
        elif nth > window.last:
            window.last = nth
            window.came += 1
        elif nth >= window.first:
            window.came += 1
        self._touched.add(key)

    def on_gap(self, host: EndpointSubject, gap: Gap) -> None:
        """Add it up."""
        key = host.life, UUID(gap.origin).bytes, gap.topic.encode()
        self.gaps += 1
        if key in self._windows:
            self._windows[key].told += gap.missing
            self._touched.add(key)
        elif self._counts and key[1] not in self._former:
            self.fail(f"{host.life} is told of a gap before it has a message: {gap}")

    def on_tick(self) -> None:
        """Compare."""
        for key in self._touched:
            window = self._windows.get(key)
            if window is not None and window.told != window.missing:
                life, origin, topic = key
                self.fail(
                    f"{life} is told that {window.told} messages of {self.world.lives[origin]} to {topic!r} are missing"
                    f", and it is {window.missing} of those from {window.first} to {window.last}"
                )
        self._touched.clear()

    def at_end(self) -> None:
        """Compare once more."""
        self.on_tick()
