"""What must hold in every world of the mesh; each checker names its promise."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from tests.worlds.mesh.base import MeshHost
from tests.worlds.mesh.record import Publication
from tests.worlds.mesh.rogues import NAME as ROGUE
from tests.worlds.mesh.subjects import EndpointSubject
from tests.worlds.mesh.world import TOPICS, MeshWorld

from chappe.defaults import MESH_BATCH_BYTES_MAX
from chappe.mesh.events import LinkEnded, LostElsewhere, MessagesDropped
from chappe.mesh.filters import minimal, union
from chappe.mesh.flows import FLOWS, HEAD_BYTES, KIND_AT, parse_head
from chappe.mesh.forwarding.losses import LossReason
from chappe.mesh.messages import LINK_STATE, NOBODY, Message, OpenedMessage
from chappe.sim.streams import PREFIX, StreamSide
from chappe.sim.world import Checker

BEFORE_S = 3.0  # a path that stands for this long is known to all on it
LATE_S = 1.0  # what is due is done by then
AFTER_S = 11.0  # a message arrives within this, though somebody on its tree may have to be found silent first
FRAME_BYTES = MESH_BATCH_BYTES_MAX + 2_000  # of one message, or of a batch, at most
CONTROL_BYTES = 200_000  # of control frames beside what waits; far less than their own bound
CLOGGED_S = 3.0  # by then what is dropped is told
FULL = frozenset({LossReason.FULL.text, LossReason.FULL_ON_ONE.text})
NO_WAY = frozenset({LossReason.NO_WAY.text, LossReason.NO_WAY_ON_ONE.text})
SILENT = "nothing came from it"  # how the reason begins why a silent peer is lost


class Delivery(Checker[MeshWorld]):
    """At most once always; exactly once while a path stands, but for what is told as dropped where no more is taken."""

    name = "delivery"

    def __init__(self, world: MeshWorld) -> None:
        super().__init__(world)
        self._dropped: Counter[tuple[str, bytes]] = Counter()  # life that published them, and topic; empty for any
        self._missing: Counter[tuple[str, bytes, str]] = Counter()  # the same, and who did not get them

    def on_report(self, host: EndpointSubject, event: object) -> None:
        """Add up what is dropped as a connection takes no more: what is published at once may be more than it takes."""
        match event:
            case LostElsewhere() if event.origin == host.own_id and event.reason in FULL:
                if self._is_clogged(event.place, event.towards):
                    self._dropped[host.life, event.topic] += event.count
            case MessagesDropped(where, count) if where.endswith(LossReason.FULL.text):
                if self._is_clogged(host.own_id, bytes.fromhex(where.removeprefix("to ").partition(",")[0])):
                    self._dropped[host.life, b""] += count

    def _is_clogged(self, writer: bytes, reader: bytes) -> bool:
        lives = self.world.lives
        one, two = [lives.get(each, "").partition("#")[0] for each in (writer, reader)]
        clogged_at: float = self.world.streams.clogged.get((one, two), -CLOGGED_S)
        return clogged_at > self.world.now - CLOGGED_S

    def on_delivered(self, host: MeshHost, message: Message) -> None:
        """Count, and see whether it was wanted."""
        publication = self.world.record.publications.get(message.payload)
        if publication is None or publication.topic != message.topic:
            self.fail(f"{host.life} got a message that nobody published: {message}")
            return
        if not any(map(message.topic.startswith, host.topics)):
            self.fail(f"{host.life} got {message.topic!r}, which it does not want")
        waited = isinstance(message, OpenedMessage)  # for keys, longer than the link stood perhaps
        if isinstance(host, EndpointSubject) and message.sender not in host.peered and not waited:
            self.fail(f"{host.life} got a message of {self.world.lives[message.sender]}, with which it is not peered")
        # An id is what a message is for: somebody who did not see its endpoint die may still bring it to its next life.
        if publication.receiver not in (None, host.life) and message.receiver != host.own_id:
            self.fail(f"{host.life} got {message.payload!r}, which is for {publication.receiver} alone")
        count = publication.delivered[host.life] = publication.delivered.get(host.life, 0) + 1
        if publication.publisher == host.life and self.world.is_exact(publication):
            self.fail(f"{host.life} got its own message")
        limit = self.world.copies_max(publication)
        if count > limit:
            self.fail(f"{host.life} got {message.payload!r} of {publication.publisher} {count} times")

    def at_end(self) -> None:
        """Everything that was due is there."""
        record, now = self.world.record, self.world.now
        if self.world.forgetful:
            return
        for payload, publication in record.publications.items():
            if publication.publisher in record.originals or publication.at + AFTER_S > now:
                continue
            if publication.at - BEFORE_S < self.world.rogue_until:
                continue  # it speaks for endpoints that are out of reach for a moment
            for life in sorted(filter(self._may(publication), record.due(publication, BEFORE_S, AFTER_S))):
                if not self.world.reads(payload, life) or not self._passes(payload, publication, life):
                    continue
                self.world.dues += 1
                if publication.delivered.get(life, 0) < 1 and not self._is_told(publication, life):
                    self.fail(
                        f"{life} never got {payload!r}, {publication.topic!r}, published at {publication.at:.3f} by "
                        f"{publication.publisher}, though there was a path"
                    )

    def _may(self, publication: Publication) -> Callable[[str], bool]:
        """Whether a life is to get it by the permissions, as long as they are the same everywhere."""
        charter = self.world.charter
        if charter is None:
            return lambda life: True
        publisher, topic, at = name_of(publication.publisher), publication.topic, publication.at
        return lambda life: charter.allow(publisher, name_of(life), topic, at - BEFORE_S, at + AFTER_S)

    def _passes(self, payload: bytes, publication: Publication, life: str) -> bool:
        """Whether a life is to get it though nobody passes it on, as it is beside its publisher."""
        if not self.world.withholds(payload, publication.kind):
            return True
        start, stop, record = publication.at - BEFORE_S, publication.at + AFTER_S, self.world.record
        ends = (publication.publisher, life), (life, publication.publisher)
        return all(record.link(*each).covers(start, stop) for each in ends)

    def _is_told(self, publication: Publication, life: str) -> bool:
        publisher, topic = publication.publisher, publication.topic
        self._missing[publisher, topic, life] += 1
        dropped = self._dropped[publisher, topic] + self._dropped[publisher, b""]
        return self._missing[publisher, topic, life] <= dropped * self.world.per_message


def name_of(life: str) -> str:
    """Whose life it is."""
    return life.partition("#")[0]


class Permitted(Checker[MeshWorld]):
    """Nobody gets what it may not, or what its publisher may not publish, by no permissions that somebody goes by."""

    name = "permitted"

    def __init__(self, world: MeshWorld) -> None:
        super().__init__(world)
        if world.charter is not None:
            world.record.barred = self._barred

    def on_delivered(self, host: MeshHost, message: Message) -> None:
        """Ask all versions that somebody went by since it was published."""
        charter, publication = self.world.charter, self.world.record.publications.get(message.payload)
        if charter is None or publication is None:
            return
        versions = charter.between(publication.at, self.world.now)
        if not any(each.publishes(name_of(publication.publisher), publication.topic) for each in versions):
            self.fail(f"{host.life} got {publication.topic!r} of {publication.publisher}, which may not publish it")
        if not any(each.gets(host.name, publication.topic) for each in versions):
            self.fail(f"{host.life} got {publication.topic!r}, which it may not have")

    def unsettled(self) -> str | None:
        """Whether the last version is everywhere."""
        charter = self.world.charter
        if charter is None:
            return None
        late = [
            each.life for each in self.world.alive(EndpointSubject) if charter.held[each.name] < len(charter.versions)
        ]
        return f"{late[0]} has older permissions" if late else None

    def _barred(self, life: str, start: float, stop: float) -> bool:
        charter = self.world.charter
        assert charter is not None
        return not all(each.forwards(name_of(life)) for each in charter.between(start, stop))


class Storms(Checker[Any]):
    """A publication crosses each link at most once in each direction along one tree."""

    name = "storms"

    def __init__(self, world: Any) -> None:
        super().__init__(world)
        self._crossed: set[tuple[StreamSide, bytes, int, int]] = set()

    def on_written(self, side: StreamSide, frames: list[bytes]) -> None:
        """Look at messages between endpoints of chappe."""
        for origin, number, tree in _flowing(side, frames):
            if (side, origin, number, tree) in self._crossed:
                self.fail(f"{side.host.name} sends {number} of {origin.hex()} to {side.other.host.name} twice")
            self._crossed.add((side, origin, number, tree))


def _flowing(side: StreamSide, frames: list[bytes]) -> Iterator[tuple[bytes, int, int]]:
    """Each numbered message that an endpoint of chappe has written: the origin, number and tree."""
    for frame in frames if side.host.name != ROGUE else ():
        if len(frame) >= PREFIX + HEAD_BYTES and frame[PREFIX + KIND_AT] in FLOWS:
            origin, number, tree, _ = parse_head(frame[PREFIX:])
            yield origin, number, tree


class LinkOrder(Checker[MeshWorld]):
    """Over one link what an endpoint has published comes in the order in which it did so."""

    name = "order"

    def __init__(self, world: MeshWorld) -> None:
        super().__init__(world)
        self._last: dict[StreamSide, int] = {}

    def on_written(self, side: StreamSide, frames: list[bytes]) -> None:
        """Look at the numbers of what comes from the writer itself."""
        host: Any = side.host
        for origin, number, _ in _flowing(side, frames):
            if origin == host.own_id:
                if number < self._last.get(side, -1):  # the same comes again where two ways begin with one link
                    self.fail(f"{host.name} sends {number} behind {self._last[side]}")
                self._last[side] = number


class OriginOrder(Checker[MeshWorld]):
    """What one endpoint has published comes to each subscriber in the order in which it did so."""

    name = "order of origins"

    def __init__(self, world: MeshWorld) -> None:
        super().__init__(world)
        self._last: dict[
            tuple[str, int, bytes, str, str], int
        ] = {}  # life, kind, origin, publisher, lane: the last number
        self._told: set[bytes] = set()  # origins that were told that no way was left for something

    def on_report(self, host: EndpointSubject, event: object) -> None:
        """Note who gave something up; a hop that was cut off with it may yet bring it when it is back."""
        if isinstance(event, LostElsewhere) and event.reason in NO_WAY:
            self._told.add(event.origin)

    def on_delivered(self, host: MeshHost, message: Message) -> None:
        """Look at the numbers; originals have none, and what they bring may be brought by another endpoint later.

        What was dropped on another way may still be read from a connection that one side believes to be broken. After
        5 s without any progress, as where somebody on the way is frozen, the order is given up.
        """
        publication = self.world.record.publications.get(message.payload)
        if publication is None or publication.publisher in (ROGUE, *self.world.record.originals):
            return
        if host.original or message.origin == NOBODY:
            return
        # The next life of an origin may begin with an earlier clock.
        key = host.life, message.kind, message.origin, publication.publisher, self.world.lane(message.topic)
        last = self._last.get(key, -1)
        if message.sequence < last and message.origin not in self._told and not self._is_excused():
            self.fail(f"{host.life} got {message.sequence} of {publication.publisher} behind {last}")
        self._last[key] = message.sequence

    def _is_excused(self) -> bool:
        cores = [host.core for host in self.world.alive(EndpointSubject)]
        return any(each.dropped or each.router.trees.order.given_up for each in cores)


class Drops(Checker[MeshWorld]):
    """Every message that is dropped is counted and reported where it is; none where all wait for full ones."""

    name = "drops"

    def at_end(self) -> None:
        """Compare what was counted with what was reported."""
        for host in self.world.alive(EndpointSubject):
            if self.world.holds_back and not self.world.paces and host.told_dropped:
                self.fail(f"{host.life} has dropped {host.told_dropped} messages, though all wait for full ones")
            if host.told_dropped != host.core.router.drops.total:
                self.fail(
                    f"{host.life} has dropped {host.core.router.drops.total} messages, and reported {host.told_dropped}"
                )


class Calm(Checker[MeshWorld]):
    """While nothing changes nobody tells link states."""

    name = "calm"

    def on_written(self, side: StreamSide, frames: list[bytes]) -> None:
        """Look for link states; where originals close a loop, cutting it changes what is wanted."""
        if not self.world.calm or self.world.loops:
            return
        for frame in frames:
            if len(frame) > PREFIX + 32 and frame[PREFIX + 32] == LINK_STATE:
                self.fail(f"{side.host.name} tells {side.other.host.name} a link state, though nothing changed")


class Room(Checker[MeshWorld]):
    """Once all have taken what was published, nobody is to wait."""

    name = "room"

    def on_quiet(self) -> None:
        """Ask the cores."""
        for host in self.world.alive(EndpointSubject):
            for topic in TOPICS:
                if not host.core.room((topic,)):
                    self.fail(f"{host.life} is to wait with {topic!r}, though nobody is slow any more")


class Bounds(Checker[Any]):
    """What waits for a peer, and what is remembered, has a bound; one connection for each pair."""

    name = "bounds"

    def on_tick(self) -> None:
        """Ask the cores."""
        for host in self.world.endpoints():
            found = host.core.invariants()
            if found:
                self.fail(f"{host.life}: {found[0]}")
            peers = [each.peer_id for each in host.core.peers() if each.peer_id is not None]
            if len(peers) != len(set(peers)):
                self.fail(f"{host.life} has two links to one peer")
            boxes = [link.outbox for link in host.core.router.links.values()]
            if any(box.bytes > 2 * box.bytes_max + FRAME_BYTES or box.control_bytes > CONTROL_BYTES for box in boxes):
                self.fail(f"{host.life} keeps {max(box.bytes for box in boxes)} bytes for a peer")
            if len(peers) > host.connections:
                self.fail(f"{host.life} keeps {len(peers)} links on {host.connections} connections")

    def on_quiet(self) -> None:
        """Everything is confirmed, and nobody keeps a tree that whoever told of it does not use any more."""
        hosts = {host.own_id: host for host in self.world.alive(EndpointSubject)}
        for own_id, host in hosts.items():
            busy = [each.origin for each in host.core.router.trees._labels.values() if each.busy]
            if busy and not self.world.rogue_comes:
                self.fail(f"{host.life} still keeps what {self.world.lives[busy[0]]} has published")
            for peer in [each for each in host.core.router.links if each in hosts]:
                link = hosts[peer].core.router.links.get(own_id)
                told = hosts[peer].core.router.trees.told_over(link.conn) if link is not None else frozenset[int]()
                left = host.core.router.trees.told_by(peer) - told
                if left:
                    self.fail(f"{host.life} keeps {len(left)} trees that {hosts[peer].life} does not use any more")


class Liveness(Checker[MeshWorld]):
    """A peer that is silent for three heartbeats is lost."""

    name = "liveness"

    def on_tick(self) -> None:
        """Look for links to hosts that stopped long ago."""
        for host in self.world.hosts.values():
            stopped = self.world.stopped.get(host.life)
            if stopped is None:
                continue
            for other in self.world.alive(EndpointSubject):
                limit = 3 * other.options.heartbeat_s + 1.0
                since = max(stopped, self.world.thawed.get(other.life, 0.0))
                ran = self.world.record.sound[other.life].covers(self.world.now - limit, self.world.now)
                if ran and self.world.now - since > limit and host.life in other.peer_lives():
                    self.fail(f"{other.life} has not noticed that {host.life} stopped {limit:.1f} s ago")


class Patience(Checker[Any]):
    """A peer that runs and can be reached is not lost for its silence."""

    name = "patience"

    def on_lost(self, host: Any, status: LinkEnded) -> None:
        """Look whether it was dead, or the way to it cut."""
        life, reason = self.world.lives[status.peer_id], status.reason
        if not reason.startswith(SILENT) or frozenset((host.life, life)) in self.world.cuts:
            return
        since = self.world.now - 3 * host.heartbeat_s - 1.0
        alive = any(each.life == life and each.alive for each in self.world.hosts.values())
        ran = all(self.world.ran(each, since) for each in (life, host.life))
        if alive and ran:
            self.fail(f"{host.life} gives {life} up, which runs: {reason}")


class Convergence(Checker[MeshWorld]):
    """Everybody who can be reached is known with the filter that it has, and nothing else is."""

    name = "convergence"

    def unsettled(self) -> str | None:
        """The first thing that is not yet so."""
        if any(side.cut and not self.world.is_closed(side) for side in self.world.streams.sides):
            return "a link is cut and not yet noticed"
        for host in self.world.hosts.values():
            lives = host.peer_lives()
            for other in self.world.wires_of(host):
                if other.life not in lives:
                    return f"{host.life} is not peered with {other.life}"
            for life in lives:
                if life not in {each.life for each in self.world.hosts.values()}:
                    return f"{host.life} is peered with {life}, which is dead"
        return next(
            (text for host in self.world.alive(EndpointSubject) if (text := self._unsettled(host)) is not None), None
        )

    def _unsettled(self, host: EndpointSubject) -> str | None:
        expected = {each.own_id for each in self.world.reachable(host)}
        if host.discovered != expected:
            names = sorted(self.world.lives.get(each, each.hex()) for each in host.discovered ^ expected)
            return f"{host.life} is wrong about whether {names} can be reached"
        filters = host.core.filters()
        for other in self.world.reachable(host):
            if other.original:
                continue
            has = filters.get(other.own_id)
            if self.world.charter is not None:
                if not self._is_fitting(other, set(has or ())):
                    return f"{host.life} believes that {other.life} wants {has}, of {minimal(other.wanted)}"
            elif has != minimal(other.wanted):
                return f"{host.life} believes that {other.life} wants {has}, it wants {minimal(other.wanted)}"
        wanted = union([minimal(other.wanted) for other in self.world.reachable(host) if not other.original])
        if (
            self.world.charter is None
            and not any(each.original and each.alive for each in self.world.hosts.values())
            and host.core.peer_subscriptions() != wanted
        ):
            return f"{host.life} believes that others want {host.core.peer_subscriptions()}, they want {wanted}"
        return None

    def _is_fitting(self, other: MeshHost, has: set[bytes]) -> bool:
        """Whether a filter has everything of which somebody may have something, and nothing that it does not want."""
        charter, wanted = self.world.charter, minimal(other.wanted)
        assert charter is not None
        may = [topic for topic in TOPICS if charter.versions[-1].gets(other.name, topic)]
        due = {each for each in wanted if any(topic.startswith(each) for topic in may)}
        return due <= has <= set(wanted)


class Completeness(Checker[MeshWorld]):
    """Without faults everything is delivered exactly once, through originals and to them."""

    name = "completeness"

    def expect(self, payloads: list[bytes]) -> None:
        """All of these were published in quiet, and have had time to arrive."""
        record = self.world.record
        lives = {host.life: host for host in self.world.hosts.values()}
        for payload in payloads:
            publication = record.publications[payload]
            publisher = lives[publication.publisher]
            wanting = {
                host.life
                for host in self.world.reachable(publisher)
                if any(map(publication.topic.startswith, host.topics)) and publication.receiver in (None, host.life)
                if self._may(publisher, host, publication.topic) and self.world.reads(payload, host.life)
                if not self.world.withholds(payload, publication.kind) or host in self.world.wires_of(publisher)
            }
            got = {life: count for life, count in publication.delivered.items() if life in lives}
            if got != dict.fromkeys(wanting, 1):
                wrong = sorted(set(wanting) ^ set(got)) or got
                self.fail(f"{payload!r}, {publication.topic!r}, of {publisher.life} came wrongly to {wrong}")

    def _may(self, publisher: MeshHost, host: MeshHost, topic: bytes) -> bool:
        charter = self.world.charter
        if charter is None:
            return True
        last = charter.versions[-1]
        return last.publishes(publisher.name, topic) and last.gets(host.name, topic)


def all_checkers(world: MeshWorld) -> list[Checker[Any]]:
    """Every checker; the order of statuses is checked where they are reported (``EndpointSubject``)."""
    kinds = (
        *(Delivery, Storms, LinkOrder, OriginOrder, Drops, Calm, Room, Bounds, Liveness, Patience, Convergence),
        *(Completeness, Permitted),
    )
    return [each(world) for each in kinds]
