"""A chain of endpoints, of which the first publishes and the last reads."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any, Final

from tests.worlds.mesh.originals import OriginalHost
from tests.worlds.mesh.record import Spans
from tests.worlds.mesh.scenario import Mesh
from tests.worlds.mesh.subjects import EndpointSubject

from chappe.mesh.endpoint import EndpointCore, EndpointOptions
from chappe.mesh.forwarding.boxes import Policy
from chappe.sim.streams import WINDOWS_BYTES
from chappe.sim.world import Settings

SIZE: Final = 400
BURST: Final = 100  # published at once, if there is room; much more than any slow reader takes
TOPIC: Final = b"/t"


class Chain(Mesh):
    """``e0`` publishes all that there is room for; the last host reads slowly."""

    def __init__(self) -> None:
        super().__init__(1, Settings(plain=True))
        self.events: dict[str, list[object]] = {}

    @property
    def first(self) -> EndpointSubject:
        found = self.hosts["e0"]
        assert isinstance(found, EndpointSubject)
        return found

    @property
    def last(self) -> Any:
        return self.hosts["last"]

    def add(
        self, name: str, own_id: bytes | None = None, policy: Policy = Policy.BLOCK, original: bool = False
    ) -> None:
        """Add a host that is linked to nobody."""
        life, own_id = f"{name}#1", own_id or self.rng.randbytes(16)
        self.record.sound[life] = Spans()
        self.record.forwards[life] = True
        if original:
            self.record.originals.add(life)
            OriginalHost(self, name, life, own_id)
            return
        options = EndpointOptions(heartbeat_s=2.0, peer_messages_max=64, peer_policy=policy)
        host = EndpointSubject(self, name, life, own_id, options, EndpointCore)
        heard = self.events[name] = []
        note = host._note

        def listen(event: object) -> None:
            heard.append(event)
            note(event)

        host._note = listen  # type: ignore[method-assign]

    def link(self, wires: Iterable[Sequence[str]]) -> None:
        """Have the first of each two dial the second."""
        for one, two in wires:
            self.wires.add((one, two))
            self.hosts[one].peer(self.hosts[two].address, 1.0)

    def feed(self, seconds: float) -> tuple[int, int]:
        """Publish for this long, let everything arrive; returns how many were published and how many delivered."""
        until = self.now + seconds
        while self.now < until:
            for _ in range(BURST):
                if self.publish(self.first, TOPIC, SIZE) is None:
                    break
            self.pass_time(self.now + 0.1, 0.1)
        self.last.read_s = 0.0
        if isinstance(self.last, EndpointSubject):
            self.last.sip(0.0)
        self.pass_time(self.now + 20.0)
        assert all(each.unsettled() is None for each in self.checkers)
        found = [each.delivered.get(self.last.life, 0) for each in self.record.publications.values()]
        assert max(found) <= 1
        return len(found), sum(found)

    def told(self, name: str, kind: type) -> list[Any]:
        return [each for each in self.events[name] if isinstance(each, kind)]


@contextmanager
def staged(world: Chain) -> Iterator[Chain]:
    """Put a world in the place of the machine."""
    world.stage.begin()
    try:
        yield world
    finally:
        world.stage.end()


@contextmanager
def chain(
    hops: int, policy: Policy = Policy.BLOCK, original: bool = False, windows: Sequence[int] = WINDOWS_BYTES
) -> Iterator[Chain]:
    """Yield a chain that is linked."""
    with staged(Chain()) as world:
        world.streams.windows = windows
        for number in range(hops):
            world.add(f"e{number}", policy=policy)
        world.add("last", policy=policy, original=original)
        world.last.want([TOPIC])
        world.link(pairwise(list(world.hosts)))
        world.settle()
        yield world
