"""A world of the mesh: what hosts share, the wires between them, and what happened so far."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import inf
from random import Random
from typing import Any

from tests.worlds.mesh.base import MeshHost
from tests.worlds.mesh.charters import Charter
from tests.worlds.mesh.filters import is_held
from tests.worlds.mesh.record import Publication, Record, Spans
from tests.worlds.mesh.wires import Written
from tests.worlds.stage import Replaced, Stage, StagedWorld

from chappe.api.mesh import hosting
from chappe.limits import MESH_LIMITS, MeshLimits
from chappe.mesh.endpoint import EndpointCore, EndpointOptions
from chappe.mesh.messages import DATA
from chappe.security import Keys, Security
from chappe.sim.streams import PREFIX, StreamSide
from chappe.sim.world import WALL_START_US, Settings, Violation

PORT = 9_000
TOPICS = (b"/a", b"/a/x", b"/b", b"/c/long/topic")
DIRECTED = 0.2  # of what is published, as far as somebody wants it
NUMBERS = (2**24, 2**24, 2**32, 2**53, 2**62)  # that endpoints begin behind
LOOP_COPIES = 130  # of one message at one host: of two endpoints on a loop each finds it after 64
ROGUES = 0.25  # of the worlds have one
ONLY_FLOODS = 0.1  # of the worlds
BATCHES = 0.7  # of the worlds publish much at once, too
FAR = 0.04  # of the worlds are long chains
SINGLE = 0.08  # of the worlds have one fault after the other, and all is well in between
SHORTCUTS = 0.08  # of the worlds have shortcuts that come and go, while much is published
PACES = 0.08  # of the worlds have a slow subscriber, and everybody else is to get on
AHEAD = 0.3  # of the worlds have publishers wait for confirmations
AHEAD_MAX = 8
AHEAD_BYTES = 1_000
AGES = 0.2  # of the worlds have endpoints that ask when messages were published, and steady clocks that differ
LASTS = 0.3  # of the worlds have endpoints that keep last values, and subscribers that ask for them
RESTS = 0.08  # of the worlds go on until what is gone is forgotten
PACES_WINDOWS_BYTES = (131_072, 1_048_576)  # of which a line fills but a part
SHORTCUTS_WINDOWS_BYTES = (65_536, 131_072)
PLAIN_WINDOWS_BYTES = (16_384, 16_384, 131_072, 1_048_576)
SMALL_WINDOWS_BYTES = (16_384, 16_384, 65_536)


class MeshWorld(StagedWorld):
    """Everything that one seed decides."""

    lengths_s = (3.0, 6.0, 10.0)
    settle_max_s = 40.0  # silence is noticed, dialling tried again and again, and everybody told
    settled_s = 0.75
    filtering = 0.0  # of the worlds have endpoints that hold back and change what they pass on; see ``filters``
    ordinary = False  # whether nothing is drawn that few worlds have, and no original takes part
    charter: Charter | None = None  # knows endpoints of the mesh by name, and nobody else, where there are permissions
    mark = b""  # before all that is published
    per_message = 1  # so many that are published at once travel as one
    hosts: dict[str, MeshHost]

    def __init__(
        self,
        seed: int,
        settings: Settings | None = None,
        tell: Callable[[str], None] | None = None,
        core: type[EndpointCore] = EndpointCore,
    ) -> None:
        super().__init__(seed, settings, tell)
        self.core = core
        self._ports: dict[str, int] = {}
        self._views: dict[StreamSide, Written] = {}
        self.first_number = 0  # of the endpoint that was made last
        self.rogue_rng = Random(f"rogue {seed}")  # of its own: worlds without a rogue are what they would be anyway
        self.rogue_until = -inf
        self.more_rng = more = Random(f"more {seed}")  # for what plain worlds do not have
        self.numbers_from = 0 if self.settings.plain else more.choice(NUMBERS)
        self.rogue_comes = self.rogue_rng.random() < ROGUES and not self.ordinary
        # A rogue with one connection, in a world in which nothing else goes wrong, can speak for nobody else.
        self.rogue_alone = self.rogue_comes and not self.settings.plain and more.random() < 0.4
        self.mesh_limits = MESH_LIMITS
        rare = not (self.settings.plain or self.ordinary)
        self.far = rare and more.random() < FAR  # a chain that is longer than a message goes
        # Somebody takes little of what others publish, and nothing else goes wrong.
        self.only_floods = rare and not (self.rogue_comes or self.far) and more.random() < ONLY_FLOODS
        # What publishers bring is held back on its way.
        self.flood_rng = floods = Random(f"floods {seed}")
        self.holds_back = self.only_floods and floods.random() < 0.5
        if not (self.settings.plain or self.holds_back):
            floods.random()  # so that kept seeds mean the worlds that they did
        # Somebody's subscriber takes little of some topics, or nothing; all that others want passes.
        self.pace_rng = paces = Random(f"pace {seed}")
        self.paces = paces.random() < PACES and rare and not (self.rogue_comes or self.far)
        self.stops = False  # it takes nothing at all
        if self.paces:
            self.only_floods = True
            self.holds_back = paces.random() < 0.6
        self.batch_rng = batches = Random(f"batches {seed}")
        self.batches = not self.settings.plain and batches.random() < BATCHES
        self.last_rng = lasts = Random(f"lasts {seed}")
        self.lasts = lasts.random() < LASTS and rare and not (self.rogue_comes or self.far or self.only_floods)
        self.paths_rng = Random(f"paths {seed}")  # for who publishes in two ways
        self.single_rng = singles = Random(f"single {seed}")
        # Faults come one at a time, so that whatever is lost is told: whoever tells it is not lost, too.
        self.single = singles.random() < SINGLE and rare and not (self.rogue_comes or self.far or self.only_floods)
        self.shortcut_rng = shortcuts = Random(f"shortcuts {seed}")
        self.shortcuts = (
            shortcuts.random() < SHORTCUTS
            and rare
            and not (self.rogue_comes or self.far or self.only_floods or self.single)
        )
        self.lasts = self.lasts and not (self.single or self.shortcuts)
        self.accounts = (
            self.single or self.paces or self.shortcuts
        )  # what does not arrive is compared with what is told, message by message
        special = not rare or self.rogue_comes or self.far or self.only_floods or self.accounts
        self.filters = not special and Random(f"filters {seed}").random() < self.filtering
        self.lasts = self.lasts and not self.filters
        self.rests = not self.settings.plain and more.random() < RESTS
        if self.rogue_comes and not self.settings.plain:  # its numbers would drive out what little is remembered
            self.mesh_limits = MeshLimits(doubts_max=more.choice((4, MESH_LIMITS.doubts_max)))
        elif not self.settings.plain:
            self.mesh_limits = MeshLimits(
                seen_max=more.choice((8, 60, MESH_LIMITS.seen_max)),
                seen_total_max=more.choice((300, MESH_LIMITS.seen_total_max)),
                routes_max=more.choice((3, MESH_LIMITS.routes_max)),
            )
        if self.only_floods or self.single or self.shortcuts or self.ordinary:
            self.mesh_limits = MESH_LIMITS  # what is missed is compared with what is told
        self.ahead = not (self.settings.plain or self.paces) and Random(f"ahead {seed}").random() < AHEAD
        if self.ahead:
            self.mesh_limits = replace(self.mesh_limits, ahead_max=AHEAD_MAX, ahead_bytes=AHEAD_BYTES)
        self.age_rng = ages = Random(f"ages {seed}")
        self.ages = not self.settings.plain and ages.random() < AGES
        self.ahead_s: dict[str, float] = {}  # steady clocks of hosts, where they differ
        self.suspended: dict[str, float] = {}  # hosts that stand still with their clocks: since when
        windows: Sequence[int] | None = None if more.random() < 0.5 else SMALL_WINDOWS_BYTES
        windows = SMALL_WINDOWS_BYTES if self.holds_back or self.single else windows
        windows = SHORTCUTS_WINDOWS_BYTES if self.shortcuts else windows
        windows = PACES_WINDOWS_BYTES if self.paces else windows
        windows = PLAIN_WINDOWS_BYTES if self.settings.plain else windows
        self.stage = Stage(self, self.replaced())
        self.streams = self.stage.streams
        self.streams.look = self._written
        self.streams.windows = windows or self.streams.windows
        self.record = Record()
        self.wires: set[tuple[str, str]] = set()  # who dials whom
        self.lives: dict[bytes, str] = {}  # by id
        self.stopped: dict[str, float] = {}  # life: frozen since
        self.thawed: dict[str, float] = {}  # life: goes on since
        self.cuts: set[frozenset[str]] = set()  # pairs of lives between which a connection was cut
        self.loops = False  # originals are linked with each other, so that nobody sees the loops
        self.originals_alone = False  # they alone publish, so that only what they say shows a loop
        self.dues = 0  # deliveries that were checked
        self.calm = False  # since a while nothing has changed
        self.quiet_since: float | None = None
        self._serial = 0

    def replaced(self) -> list[Replaced]:
        """What means something else while this world is played."""
        return [(hosting, "EndpointCore", self._core)]

    def security(self, host: Any) -> Security | Keys:
        """The keys of an endpoint that begins."""
        return None

    def _core(self, own_id: bytes, options: EndpointOptions, now: float) -> EndpointCore:
        """Make a core with the limits and numbers of this world, which raises what is a defect."""
        first = self.first_number = options.first_number - WALL_START_US + self.numbers_from + 1
        return self.core(own_id, replace(options, limits=self.mesh_limits, first_number=first), now)

    def port_of(self, name: str) -> int:
        """Where a host listens: the stage has one address for all."""
        return self._ports.setdefault(name, PORT + len(self._ports))

    def steady(self, name: str) -> float:
        """What the steady clock of a host shows."""
        if not self.ages:
            return self.now
        if name not in self.ahead_s:
            self.ahead_s[name] = self.age_rng.choice((0.0, 1.0, 3_600.0, 1e6)) * self.age_rng.random()
        return self.suspended.get(name, self.now) + self.ahead_s[name]

    def suspend(self, host: MeshHost, on: bool) -> None:
        """Have the clock of a host that is frozen stand still, too; or go on."""
        if on:
            self.suspended[host.name] = self.now
        elif host.name in self.suspended:
            self.ahead_s[host.name] -= self.now - self.suspended.pop(host.name)
            self.see("on_resumed", host)
        if not on:
            self.stage.host(host.name).steady_s = self.steady(host.name) - self.now

    def keeps(self) -> int:
        """Of how many topics the next endpoint keeps last values."""
        return self.last_rng.choice((0, 0, 2, 100)) if self.lasts else 0

    def asks_times(self) -> bool:
        """Whether the next endpoint is to ask when messages were published."""
        return self.ages and self.age_rng.random() < 0.6

    def count(self) -> int:
        """Messages that were published."""
        return len(self.record.publications)

    def wires_of(self, host: MeshHost) -> list[MeshHost]:
        """The hosts that a host is to be peered with."""
        names = {one if two == host.name else two for one, two in self.wires if host.name in (one, two)}
        return [self.hosts[name] for name in sorted(names)]

    def reachable(self, host: MeshHost) -> list[MeshHost]:
        """Who can be reached from a host, if all wires stand: over hosts of chappe that forward."""
        found = {host.name}
        edge = [host]
        while edge:
            at = edge.pop()
            if at is not host and (at.original or not self.record.forwards[at.life]):
                continue
            for other in self.wires_of(at):
                if other.name not in found:
                    found.add(other.name)
                    edge.append(other)
        return [self.hosts[name] for name in sorted(found - {host.name})]

    def endpoints(self) -> list[Any]:
        """All that run, but originals."""
        return [each for each in self.hosts.values() if each.alive and not each.original]

    def ran(self, life: str, since: float) -> bool:
        """Whether a life that goes on was never stopped since then."""
        return life not in self.stopped and self.thawed.get(life, 0.0) < since

    def publish(
        self, host: MeshHost, topic: bytes | None = None, size: int = 0, kind: int = DATA,
        receiver: MeshHost | None = None,
    ) -> bytes | None:  # fmt: skip
        """Publish something of at least so many bytes; None if there was no room."""
        payload = (b"%b%d of %b" % (self.mark, self.next_serial(), host.life.encode())).ljust(size)
        chosen = topic or self.rng.choice(TOPICS)
        if topic is None and not self.settings.plain:
            receiver = self._receiver(host, chosen)
        return payload if host.publish(chosen, payload, kind, receiver) else None

    def publish_many(self, host: MeshHost, topic: bytes, count: int, size: int = 0) -> bool:
        """Publish so many messages at once; False if there was no room for some."""
        life = host.life.encode()
        return host.publish_many(
            topic, [(b"%b%d of %b" % (self.mark, self.next_serial(), life)).ljust(size) for _ in range(count)]
        )

    def _receiver(self, host: MeshHost, topic: bytes) -> MeshHost | None:
        """Now and then one alone of those who want a message."""
        if host.original or self.more_rng.random() > DIRECTED:
            return None
        wanting = [each for each in self.reachable(host) if not each.original and topic.startswith(tuple(each.topics))]
        return self.more_rng.choice(wanting) if wanting else None

    def reads(self, payload: bytes, life: str) -> bool:
        """Whether a life can read what was published, where topics are sealed."""
        return True

    def withholds(self, payload: bytes, kind: int) -> bool:
        """Whether nobody passes on what was published so."""
        return self.filters and kind == DATA and is_held(payload)

    def lane(self, topic: bytes) -> str:
        """What keeps its order with this topic: all does, but where topics are sealed."""
        return ""

    def copies_max(self, publication: Publication) -> float:
        """How often a host may get it. Where originals close a loop it ends when the loop is found."""
        if self.is_exact(publication):
            return 1
        quiet = self.quiet_since is not None and publication.at >= self.quiet_since
        return LOOP_COPIES if quiet or not self.loops else inf

    @property
    def forgetful(self) -> bool:
        """Whether so little is remembered that what comes late may be refused."""
        return self.mesh_limits.seen_max < 60 or self.mesh_limits.seen_total_max < MESH_LIMITS.seen_total_max

    def is_exact(self, publication: Publication) -> bool:
        """Whether ids follow a message on all its ways: with originals beside it only while nothing changes."""
        if self.loops:
            return False
        if not any(host.original for host in self.hosts.values()):
            return True
        return self.quiet_since is not None and publication.at >= self.quiet_since

    def born(self, life: str, forwards: bool) -> None:
        """A life begins."""
        self.record.sound.setdefault(life, Spans()).begin(self.now)
        self.record.forwards[life] = forwards

    def next_serial(self) -> int:
        """A fresh number."""
        self._serial += 1
        return self._serial

    # -- connections --------------------------------------------------------------------------------------------

    def host_of(self, side: StreamSide) -> Any:
        """Whose end of a connection it is."""
        return side.host if isinstance(side.host, MeshHost) else self.hosts[side.host.name]

    def is_closed(self, side: StreamSide) -> bool:
        """Whether its host has done with a connection, of which the system still has something to write."""
        return getattr(side.host, "closed", False)

    def _view(self, side: StreamSide) -> Written:
        if side not in self._views:
            one = self._views[side] = Written(self.host_of(side))
            other = self._views[side.other] = Written(self.host_of(side.other))
            one.other, other.other = other, one
        return self._views[side]

    def _written(self, side: StreamSide, frames: list[bytes]) -> None:
        view = self._view(side)
        try:
            self.see("on_written", view, view.frames.cut([each[PREFIX:] for each in frames]))
        except Violation as violation:
            self.broken = self.broken or violation

    def has_read(self, host: Any, link: int, frames: list[bytes]) -> None:
        """An endpoint has read frames from a peer."""
        side = host.face.node._links[link]._sock._side
        self.see("on_read", self._view(side), frames)
