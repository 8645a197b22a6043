"""What endpoints say of what went wrong must be true, and every call must end."""

from __future__ import annotations

from collections import Counter
from typing import Any

from tests.worlds.mesh.base import MeshHost, messages_of
from tests.worlds.mesh.checkers import AFTER_S, BEFORE_S, LATE_S
from tests.worlds.mesh.rogues import NAME as ROGUE
from tests.worlds.mesh.subjects import EndpointSubject
from tests.worlds.mesh.world import MeshWorld

from chappe.mesh.events import LinkEnded, LostElsewhere, PeerAdded, PeerLost
from chappe.mesh.flows import DETOUR, FLOW_BATCH, FLOW_COMMAND, FLOW_DATA, FLOW_LOSS, messages_in
from chappe.mesh.forwarding.losses import Loss, LossReason
from chappe.mesh.messages import (
    BYE,
    COMMAND,
    DATA,
    LOSS,
    NOBODY,
    PING,
    Message,
)
from chappe.sim.streams import PREFIX, StreamSide
from chappe.sim.world import Checker

_KIND_AT = 32  # of a body
STANDS_S = 6.0  # a network without faults stands by then
_MESSAGES = frozenset({DATA, COMMAND, FLOW_DATA, FLOW_COMMAND, FLOW_BATCH, DETOUR})


class Unconfirmed(Checker[MeshWorld]):
    """Of what was sent over a link that broke, all that did not arrive is among the unconfirmed."""

    name = "unconfirmed"

    def __init__(self, world: MeshWorld) -> None:
        super().__init__(world)
        self._sides: dict[tuple[str, bytes], StreamSide] = {}  # by life of the writer and id of the reader
        self._written: Counter[StreamSide] = Counter()
        self._read: Counter[StreamSide] = Counter()

    def on_written(self, side: StreamSide, frames: list[bytes]) -> None:
        """Count messages."""
        count = sum([_messages_in(each[PREFIX:]) for each in frames])
        one, two = side.host, side.other.host
        if count and isinstance(one, MeshHost) and isinstance(two, MeshHost):
            self._written[side] += count
            self._sides[one.life, two.own_id] = side

    def on_read(self, side: StreamSide, bodies: list[bytes]) -> None:
        """Count messages."""
        self._read[side.other] += sum(map(_messages_in, bodies))

    def on_lost(self, host: EndpointSubject, status: LinkEnded) -> None:
        """Compare."""
        side = self._sides.pop((host.life, status.peer_id), None)
        if side is None or not isinstance(side.other.host, EndpointSubject):
            return
        if not isinstance(status, PeerLost) or status.left:
            return
        missing = self._written[side] - self._read[side]
        if missing > status.unconfirmed:
            self.fail(f"{host.life} says that {status.unconfirmed} are unconfirmed, {missing} have not arrived")


def _messages_in(body: bytes) -> int:
    return messages_in(body) if len(body) > _KIND_AT and body[_KIND_AT] in _MESSAGES else 0


class Goodbyes(Checker[MeshWorld]):
    """What was published before a peering is ended is sent before the goodbye."""

    name = "goodbyes"

    def __init__(self, world: MeshWorld) -> None:
        super().__init__(world)
        self._left: dict[StreamSide, float] = {}  # when somebody left over a connection

    def on_written(self, side: StreamSide, frames: list[bytes]) -> None:
        """Look for what comes behind a goodbye."""
        host = side.host
        for frame in frames:
            kind = frame[PREFIX + _KIND_AT] if len(frame) > PREFIX + _KIND_AT else 0
            if not isinstance(host, EndpointSubject):
                return
            if kind == PING:
                if messages_of(frame[PREFIX:])[0].payload.startswith(BYE):
                    self._left[side] = host.left.get(side.other.host.name, 0.0)
            elif kind in _MESSAGES and kind != DETOUR and side in self._left:  # a detour is for a link that ended since
                for message in messages_of(frame[PREFIX:]):
                    found = self.world.record.publications.get(message.payload)
                    if found is None or found.publisher != host.life or not self.world.is_exact(found):
                        continue
                    if found.at < self._left[side]:
                        self.fail(f"{host.name} left, and sends only then what it published {found.at:.3f}")


class Calls(Checker[MeshWorld]):
    """Whoever waits for a peer, or for its answer, is told in time how that ends."""

    name = "calls"

    def on_tick(self) -> None:
        """Look for what is overdue."""
        now = self.world.now
        for host in self.world.alive(EndpointSubject):
            for ticket, (made_at, until) in list(host.calls.items()):
                if ticket in host.resolved:
                    del host.calls[ticket]
                elif now > until + LATE_S and self.world.ran(host.life, made_at):
                    self.fail(f"call {ticket} of {host.life} was to end {now - until:.1f} s ago")

    def at_end(self) -> None:
        """Nobody waits for an answer any more."""
        for host in self.world.alive(EndpointSubject):
            waiting = [each for each in host.calls if each not in host.resolved]
            if waiting:
                self.fail(f"{host.life} still waits for {waiting}")


class Missing(Checker[MeshWorld]):
    """While no link breaks, who publishes is told of all that is dropped on its way."""

    name = "missing"

    def __init__(self, world: MeshWorld) -> None:
        super().__init__(world)
        self._told: Counter[str] = Counter()  # lives

    def on_report(self, host: EndpointSubject, event: object) -> None:
        """Add up what is reported."""
        if isinstance(event, LostElsewhere) and event.origin in (host.own_id, NOBODY):
            self._told[host.life] += event.count

    def at_end(self) -> None:
        """Compare with what did not arrive."""
        world = self.world
        if not world.only_floods or world.forgetful:
            return
        missing: Counter[tuple[str, str]] = Counter()
        for publication in world.record.publications.values():
            if publication.at + AFTER_S <= world.now:
                due = world.record.due(publication, BEFORE_S, AFTER_S, full=True)
                missing.update([(publication.publisher, each) for each in due if each not in publication.delivered])
        for host in world.alive(EndpointSubject):
            most = max([count for (publisher, _), count in missing.items() if publisher == host.life], default=0)
            if most > self._told[host.life] + host.told_dropped:
                told = f"{self._told[host.life]} and {host.told_dropped}"
                self.fail(
                    f"{most} messages of {host.life} did not arrive, {told} are told as dropped elsewhere and here"
                )


class Names(Checker[MeshWorld]):
    """What somebody publishes in the name of another endpoint is taken from nobody who is not on the way to it."""

    name = "names"

    def on_delivered(self, host: MeshHost, message: Message) -> None:
        """Look whose name a rogue has used, where it is a leaf of a network that stands."""
        world = self.world
        publication = world.record.publications.get(message.payload)
        if not world.rogue_alone or publication is None or publication.publisher != ROGUE or world.now < STANDS_S:
            return
        known = {each.own_id for each in world.hosts.values() if each.alive and not each.original}
        start, life = publication.at - BEFORE_S, world.lives.get(message.origin, "")
        if message.origin not in known or not world.record.is_quiet(start, world.now):
            return
        # Without a way to somebody nobody can tell whether it is behind the rogue, as that says.
        if world.record.has_way(life, host.life, start, world.now):
            self.fail(f"{host.life} takes from a rogue what says that it is of {life}")


class Losses(Checker[MeshWorld]):
    """Who misses messages, or published them, is told of as many as were dropped elsewhere, and no more."""

    name = "losses"

    def __init__(self, world: MeshWorld) -> None:
        super().__init__(world)
        self._told: dict[tuple[bytes, int], Loss] = {}  # by place and number
        self._heard: Counter[tuple[str, bytes, bytes, bytes, str]] = Counter()
        self._owed: Counter[tuple[str, bytes]] = Counter()  # life and peer: messages that waited when a link ended
        self._due: Counter[tuple[str, bytes]] = Counter()  # of these, to be told: the peer is back
        self._told_of: Counter[tuple[str, bytes]] = Counter()

    def on_written(self, side: StreamSide, frames: list[bytes]) -> None:
        """Note what is told to others."""
        host = side.host
        for frame in frames:
            if (
                len(frame) <= PREFIX + _KIND_AT
                or frame[PREFIX + _KIND_AT] not in (FLOW_LOSS, DETOUR)
                or not isinstance(host, EndpointSubject)
            ):
                continue
            message = messages_of(frame[PREFIX:])[0]
            if message.origin != host.own_id or message.kind != LOSS:
                continue
            loss = Loss.parse(message.payload)
            self._told[message.origin, message.sequence] = loss
            if loss.why is LossReason.LINK_ENDED:
                self._told_of[host.life, loss.towards] += loss.count

    def on_report(self, host: EndpointSubject, event: object) -> None:
        """Count what is reported of losses elsewhere, and what is owed to peers."""
        match event:
            case LostElsewhere() if event.place != host.own_id and not self.world.rogue_comes:
                key = (event.place, event.towards, event.origin, event.reason)
                self._heard[host.life, *key] += event.count
                told = [
                    each.count for (place, _), each in self._told.items()
                    if (place, each.towards, each.origin, each.why.text) == key
                ]  # fmt: skip
                if self._heard[host.life, *key] > sum(told):
                    self.fail(
                        f"{host.life} reports {self._heard[host.life, *key]} messages lost, {sum(told)} are: {event}"
                    )
            case LinkEnded():
                self._owed[host.life, event.peer_id] += event.lost
            case PeerAdded():
                self._due[host.life, event.peer_id] = self._owed[host.life, event.peer_id]

    def at_end(self) -> None:
        """Everything is told that could be."""
        for host in self.world.alive(EndpointSubject):
            for peer in sorted(host.peered):
                due, told = self._due[host.life, peer], self._told_of[host.life, peer]
                if told < due and self.world.lives[peer] not in self.world.record.originals:
                    self.fail(f"{host.life} never told {self.world.lives[peer]} that it misses some messages")


class News(Checker[MeshWorld]):
    """Where nobody lies, stands still or is slow, the news of an origin come while its first messages wait for them."""

    name = "news"

    def on_report(self, host: EndpointSubject, event: object) -> None:
        """Somebody has refused messages as their origin was not known to be where they came from."""
        if not isinstance(event, LostElsewhere) or event.reason != LossReason.EARLY.text or self.world.rogue_comes:
            return
        record, now = self.world.record, self.world.now
        lives = [each.life for each in self.world.alive(EndpointSubject)]
        born = {each.life: each.born_at for each in self.world.alive(EndpointSubject)}
        if all(record.sound[each].covers(max(born[each], now - STANDS_S), now) for each in lives):
            self.fail(f"{host.life} is told that {event.count} messages came before the news that it is there")


def accounts(world: MeshWorld) -> list[Checker[Any]]:
    """Every checker of what is said."""
    return [
        Unconfirmed(world),
        Goodbyes(world),
        Calls(world),
        Losses(world),
        Names(world),
        Missing(world),
        News(world),
    ]
