"""A chain of simulated endpoints, of which the first publishes and the last reads."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, Final

from tests.worlds.mesh.hosts import EndpointHost
from tests.worlds.mesh.originals import OriginalHost
from tests.worlds.mesh.record import Spans
from tests.worlds.mesh.scenario import MeshScenario

from chappe.mesh.endpoint import EndpointCore, EndpointOptions
from chappe.mesh.forwarding.boxes import Policy

SIZE: Final = 400
BURST: Final = 100  # published at once, if there is room; much more than any slow reader takes
TOPIC: Final = b"/t"


class Chain(MeshScenario):
    """``e0`` publishes all that there is room for; the last host reads slowly."""

    def __init__(self, hops: int, policy: Policy = Policy.BLOCK, original: bool = False) -> None:
        super().__init__(1)
        self.events: dict[str, list[object]] = {}
        for number in range(hops):
            self.add(f"e{number}", policy=policy)
        if original:
            self._remember(OriginalHost(self, "last", "last#1", self.rng.randbytes(16)))
            self.record.originals.add("last#1")
        else:
            self.add("last", policy=policy)
        names = list(self.hosts)
        self.hosts["last"].want([TOPIC])
        for one, two in pairwise(names):
            self.wires.add((one, two))
            self.hosts[one].peer(self.hosts[two].address, 1.0)
        self.settle()

    def add(self, name: str, own_id: bytes | None = None, policy: Policy = Policy.BLOCK) -> None:
        """Add an endpoint that is linked to nobody."""
        options = EndpointOptions(heartbeat_s=2.0, peer_messages_max=64, peer_policy=policy)
        host = EndpointHost(self, name, f"{name}#1", own_id or self.rng.randbytes(16), options, EndpointCore)
        self._remember(host)
        heard = self.events[name] = []
        note = host._note

        def listen(event: object) -> None:
            heard.append(event)
            note(event)

        host._note = listen  # type: ignore[method-assign]

    def _remember(self, host: Any) -> None:
        self.record.sound[host.life] = Spans()
        self.record.forwards[host.life] = True

    def feed(self, seconds: float) -> tuple[int, int]:
        """Publish for this long, let everything arrive; returns how many were published and how many delivered."""
        until = self.now + seconds
        while self.now < until:
            for _ in range(BURST):
                if self.publish(self.hosts["e0"], TOPIC, SIZE) is None:
                    break
            self.pass_time(self.now + 0.1, 0.1)
        last = self.hosts["last"]
        last.read_s = 0.0
        if isinstance(last, EndpointHost):
            last.sip(0.0)
        self.pass_time(self.now + 20.0)
        assert all(each.unsettled() is None for each in self.checkers)
        found = [each.delivered.get(last.life, 0) for each in self.record.publications.values()]
        assert max(found) <= 1
        return len(found), sum(found)

    def told(self, name: str, kind: type) -> list[Any]:
        return [each for each in self.events[name] if isinstance(each, kind)]
