"""What endpoints say of what went wrong must be true, and every call must end."""

from __future__ import annotations

from collections import Counter

from chappe.mesh.events import LinkEnded, PeerLost
from chappe.mesh.messages import BYE, COMMAND, DATA, ORIGIN_COMMAND, ORIGIN_DATA, PING, parse_message
from chappe.sim.scenarios.mesh.base import MeshHost
from chappe.sim.scenarios.mesh.checkers import LATE_S, MeshChecker
from chappe.sim.scenarios.mesh.hosts import EndpointHost
from chappe.sim.scenarios.mesh.world import MeshWorld
from chappe.sim.streams import PREFIX, Side
from chappe.sim.world import Checker

_KIND_AT = 32  # of a body
_MESSAGES = frozenset({DATA, COMMAND, ORIGIN_DATA, ORIGIN_COMMAND})


class Unconfirmed(MeshChecker):
    """Who lost a peer says how much of what was sent may not have arrived."""

    name = "unconfirmed"
    promise = "of what was sent over a link that broke, all that did not arrive is among the unconfirmed"

    def __init__(self, world: MeshWorld) -> None:
        super().__init__(world)
        self._sides: dict[tuple[str, bytes], Side] = {}  # by life of the writer and id of the reader: the last one
        self._written: Counter[Side] = Counter()
        self._read: Counter[Side] = Counter()

    def on_written(self, side: Side, frames: list[bytes]) -> None:
        """Count messages."""
        count = sum([len(each) > PREFIX + _KIND_AT and each[PREFIX + _KIND_AT] in _MESSAGES for each in frames])
        one, two = side.host, side.other.host
        if count and isinstance(one, MeshHost) and isinstance(two, MeshHost):
            self._written[side] += count
            self._sides[one.life, two.own_id] = side

    def on_read(self, side: Side, bodies: list[bytes]) -> None:
        """Count messages."""
        count = sum([len(each) > _KIND_AT and each[_KIND_AT] in _MESSAGES for each in bodies])
        self._read[side.other] += count

    def on_lost(self, host: EndpointHost, status: LinkEnded) -> None:
        """Compare."""
        side = self._sides.pop((host.life, status.peer_id), None)
        if side is None or not isinstance(side.other.host, EndpointHost):
            return
        if not isinstance(status, PeerLost) or status.left:
            return
        missing = self._written[side] - self._read[side]
        if missing > status.unconfirmed:
            self.fail(f"{host.life} says that {status.unconfirmed} are unconfirmed, {missing} have not arrived")


class Goodbyes(MeshChecker):
    """Who leaves sends everything before."""

    name = "goodbyes"
    promise = "what was published before a peering is ended is sent before the goodbye"

    def __init__(self, world: MeshWorld) -> None:
        super().__init__(world)
        self._left: dict[Side, float] = {}  # when somebody left over a connection

    def on_written(self, side: Side, frames: list[bytes]) -> None:
        """Look for what comes behind a goodbye."""
        host = side.host
        for frame in frames:
            kind = frame[PREFIX + _KIND_AT] if len(frame) > PREFIX + _KIND_AT else 0
            if not isinstance(host, EndpointHost):
                return
            if kind == PING:
                if parse_message(frame[PREFIX:]).payload.startswith(BYE):
                    self._left[side] = host.left.get(side.other.host.name, 0.0)
            elif kind in _MESSAGES and side in self._left:
                found = self.world.record.publications.get(parse_message(frame[PREFIX:]).payload)
                if found is None or found.publisher != host.life or not self.world.is_exact(found):
                    continue
                if found.at < self._left[side]:
                    self.fail(f"{host.name} left, and sends only then what it published {found.at:.3f}")


class Calls(MeshChecker):
    """Every call ends."""

    name = "calls"
    promise = "whoever waits for a peer, or for its answer, is told in time how that ends"

    def on_tick(self) -> None:
        """Look for what is overdue."""
        now = self.world.now
        for host in self.world.alive(EndpointHost):
            for ticket, (made_at, until) in list(host.calls.items()):
                if ticket in host.resolved:
                    del host.calls[ticket]
                elif now > until + LATE_S and self.world.ran(host.life, made_at):
                    self.fail(f"call {ticket} of {host.life} was to end {now - until:.1f} s ago")

    def at_end(self) -> None:
        """Nobody waits for an answer any more."""
        for host in self.world.alive(EndpointHost):
            waiting = [each for each in host.calls if each not in host.resolved]
            if waiting:
                self.fail(f"{host.life} still waits for {waiting}")


def accounts(world: MeshWorld) -> list[Checker]:
    """Every checker of what is said."""
    return [Unconfirmed(world), Goodbyes(world), Calls(world)]
