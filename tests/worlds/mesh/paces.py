"""Worlds with one subscriber, or peer, that takes little: it slows down only what it wants itself."""

from __future__ import annotations

from collections import Counter
from typing import Final

from tests.worlds.mesh.base import MeshHost
from tests.worlds.mesh.faults import FLOOD_BYTES, FLOODED_READ_S, MeshFaults
from tests.worlds.mesh.originals import OriginalHost
from tests.worlds.mesh.population import PREFIXES, PopulatedMesh
from tests.worlds.mesh.record import Publication
from tests.worlds.mesh.subjects import INBOX_MAX, EndpointSubject
from tests.worlds.mesh.world import TOPICS, MeshWorld

from chappe.defaults import DROPS_REPORT_S, LOST_AFTER
from chappe.mesh.events import LostElsewhere, MessagesDropped, PeerLost
from chappe.mesh.messages import DATA, Message
from chappe.sim.world import Checker

BEGINS_S: Final = 5.0  # by then everybody has known everybody for a while
LASTS_S: Final = 10.0
STOPS_S: Final = 16.0  # longer than one that has stopped is waited for
SIPS: Final = (3.0, 10.0, 30.0)  # messages per second, of INBOX_MAX that wait: seconds, which nobody else may be late
SURPLUS: Final = 2_048  # more than what is on its way in the longest line, as with the usual bounds
MESSAGES: Final = (5, 20, 40)  # at once
LINE_S: Final = 1.5 * 0.05  # what comes takes so long over one link at most; see ``Streams``
MORE_S: Final = 0.3  # pauses of those who publish, and of the subscriber


class SlowSubscriber(MeshFaults):
    """Somebody takes little of some topics, and nothing else goes wrong."""

    def __init__(self, world: PopulatedMesh) -> None:
        super().__init__(world)
        self.slow: MeshHost | None = None
        self.since = self.until = 0.0
        self.sips = False  # its subscriber takes little, while its endpoint reads all

    def plan(self, until: float) -> float:
        """Choose who it is; returns when it is to be healed."""
        world, rng = self.world, self.world.pace_rng
        world.stops = rng.random() < 0.2
        hosts: list[MeshHost] = [*world.hosts.values()]
        sips = world.stops or rng.random() < 0.6
        if sips:
            hosts = [*world.alive(EndpointSubject)]
        else:
            hosts = [each for each in hosts if len(world.wires_of(each)) == 1] or hosts
        slow = self.slow = rng.choice(hosts)
        slow.want([*slow.topics, *rng.sample(PREFIXES, rng.choice((1, 1, 2)))])
        if isinstance(slow, EndpointSubject) and (sips or len(world.wires_of(slow)) > 1):
            self.sips = True
            slow.want_quickly(rng.sample(PREFIXES, rng.choice((1, 1, 2))))
        self.since, self.until = BEGINS_S, BEGINS_S + (STOPS_S if world.stops else LASTS_S)
        self.at(self.since, self._begin)
        return self.until

    def _begin(self) -> None:
        world, rng, slow = self.world, self.world.pace_rng, self.slow
        assert slow is not None
        world.record.eased.end(world.now)
        if isinstance(slow, EndpointSubject) and self.sips:
            slow.sip(1e-6 if world.stops else rng.choice(SIPS))
        else:
            slow.read_s = rng.choice(FLOODED_READ_S)
            world.record.sound[slow.life].end(world.now)
        world.trace(slow, "takes little of %s", slow.topics)
        wanted = [each for each in TOPICS if self.is_for_slow(each, None)]
        for topics in (wanted, wanted, TOPICS):
            name = rng.choice([each for each in sorted(world.hosts) if each != slow.name])
            self._publish_until(name, rng.choice(topics), rng.choice(MESSAGES), FLOOD_BYTES, self.until)

    def is_for_slow(self, topic: bytes, receiver: MeshHost | None) -> bool:
        """Whether something is for a slow subscriber."""
        slow = self.slow
        if receiver not in (None, slow):
            return False
        prefixes = slow.filter if isinstance(slow, OriginalHost) else slow.topics if slow is not None else ()
        return any(map(topic.startswith, prefixes))


class Pace(Checker[MeshWorld]):
    """Who takes little has those wait who publish what it wants, and slows down nothing else; nor does who has stopped.

    Nothing is late by more than what all lines of the world take: a message that waited for who is slow is later by the
    seconds that its subscriber needs for what waits. Nothing is dropped but for who stopped, or does not have all wait.
    """

    name = "pace"

    def __init__(self, world: MeshWorld, plan: SlowSubscriber) -> None:
        super().__init__(world)
        self._plan = plan
        self._came: dict[tuple[str, bytes], float] = {}  # life and payload: when
        self._quick: dict[tuple[str, bytes], float] = {}  # the same, for its further subscriber
        self._told: Counter[tuple[str, bytes]] = Counter()  # life and topic: what who is slow did not take

    @property
    def late_s(self) -> float:
        """So long a message takes at most over all lines of this world, if nobody is slow."""
        return LINE_S * len(self.world.hosts) + MORE_S

    def on_delivered(self, host: MeshHost, message: Message) -> None:
        """Note when."""
        self._came.setdefault((host.life, message.payload), self.world.now)

    def on_quick(self, host: EndpointSubject, message: Message) -> None:
        """Note when."""
        if (host.life, message.payload) in self._quick:
            self.fail(f"a further subscriber of {host.life} got {message.payload!r} twice")
        self._quick[host.life, message.payload] = self.world.now

    def on_refused(self, host: EndpointSubject, topic: bytes, receiver: MeshHost | None) -> None:
        """Somebody is to wait: that is right while somebody who wants the same has no room."""
        plan, now, slow = self._plan, self.world.now, self._plan.slow
        if slow is None or host is slow or not plan.since <= now < plan.until:
            return
        if receiver is slow and not plan.sips:
            return  # that goes over the link that is slow, whether it is wanted there or not
        if not plan.is_for_slow(topic, receiver):
            self.fail(f"{host.life} is to wait with {topic!r}, which {slow.life} does not want that is slow")
        if not plan.sips or not isinstance(slow, EndpointSubject):
            return
        full_at = [(since, until) for since, until in slow.full if until > now - self.late_s]
        if not full_at:
            self.fail(f"{host.life} is to wait with {topic!r}, though {slow.life} has had room for long")
        patience_s = LOST_AFTER * host.options.heartbeat_s + self.late_s
        if now > max(slow.taken_at, full_at[0][0]) + patience_s:
            self.fail(f"{host.life} waits for {slow.life}, which took nothing since {slow.taken_at:.1f}")

    def on_report(self, host: EndpointSubject, event: object) -> None:
        """Nobody is cut off; add up what is told."""
        plan, slow = self._plan, self._plan.slow
        if slow is None:
            return
        if isinstance(event, PeerLost) and self.world.now < plan.until:
            self.fail(f"{host.life} has lost a peer, while {slow.life} is but slow: {event}")
        nothing_drops = self.world.holds_back and not self.world.stops
        if isinstance(event, MessagesDropped) and nothing_drops and self.world.now > plan.since + DROPS_REPORT_S:
            self.fail(f"{host.life} drops messages, though all wait for {slow.life}: {event}")
        if isinstance(event, LostElsewhere) and event.origin == host.own_id and event.place == slow.own_id:
            self._told[host.life, event.topic] += event.count

    def on_tick(self) -> None:
        """What waits for a slow one is what was on its way when its room ran out."""
        plan, slow, world = self._plan, self._plan.slow, self.world
        if not isinstance(slow, EndpointSubject) or not plan.sips or not slow.waiting or world.now >= plan.until:
            return
        if slow.paused:
            self.fail(f"{slow.life} reads nothing, with {slow.waiting:.0f} messages for its subscriber")
        if not world.holds_back or world.stops or world.record.originals:
            return  # what originals bring waits in kernels, and comes as soon as there is room
        since = max([begin for begin, _ in slow.full], default=world.now)
        on_way = [
            each for each in world.record.publications.values()
            if abs(each.at - since) < self.late_s and self._is_for_slow(each)
        ]  # fmt: skip
        if slow.waiting > INBOX_MAX + len(on_way):
            self.fail(
                f"{slow.waiting:.0f} messages wait for the subscriber of {slow.life}, {len(on_way)} were on the way"
            )

    def _is_for_slow(self, publication: Publication) -> bool:
        slow = self._plan.slow
        if slow is None or publication.receiver not in (None, slow.life):
            return False
        return publication.kind == DATA and self._plan.is_for_slow(publication.topic, None)

    def on_quiet(self) -> None:
        """Everything came, in time; or its origin was told."""
        plan, slow, world = self._plan, self._plan.slow, self.world
        if slow is None:
            return
        missing: Counter[tuple[str, bytes]] = Counter()
        near: dict[tuple[str, str], bool] = {}
        for payload, each in world.record.publications.items():
            if not plan.since + self.late_s <= each.at < plan.until - self.late_s:
                continue
            if each.publisher in world.record.originals:
                continue  # nothing is read from it while somebody has no room for what it brings
            for host in world.hosts.values():
                pair = each.publisher, host.life
                if pair not in near:
                    near[pair] = world.record.has_way(*pair, plan.since, plan.until) and host.life != each.publisher
                if near[pair] and each.receiver in (None, host.life):
                    self._look(host, each, payload)
            if plan.sips and self._is_for_slow(each) and slow.own_id in each.to:
                missing[each.publisher, each.topic] += slow.life not in each.delivered
        for key, count in missing.items():
            if count > self._told[key]:
                self.fail(f"{slow.life} did not take {count} messages of {key}, which is told of {self._told[key]}")

    def _look(self, host: MeshHost, publication: Publication, payload: bytes) -> None:
        """Whether something came in time to those who are not slow."""
        topic, found = publication.topic, []
        if host is not self._plan.slow and any(map(topic.startswith, host.topics)):
            found.append(self._came.get((host.life, payload)))
        if isinstance(host, EndpointSubject) and any(map(topic.startswith, host.quick)) and publication.kind == DATA:
            found.append(self._quick.get((host.life, payload)))
        for at in found:
            if at is None or at > publication.at + self.late_s:
                late = "never" if at is None else f"after {at - publication.at:.1f} s"
                self.fail(f"{host.life} got {payload!r} to {topic!r} of {publication.publisher} {late}")
