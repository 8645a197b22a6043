"""Worlds of a pair of map servers as users run it: perhaps with disks and a witness, and maps, on hosts that fail."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from random import Random
from typing import Any, ClassVar, Final

from tests.worlds.maps.checkers import Convergence, Sessions, Survival, Terms, Watches
from tests.worlds.maps.faults import PairFaults
from tests.worlds.maps.members import (
    SERVERS,
    GuidePorts,
    GuideResident,
    HostsBackend,
    MapLife,
    MapResident,
    ServerLife,
    ServerPlace,
    ServerResident,
    WatchedMapPorts,
    WatchedServerPorts,
    WitnessBackend,
    WitnessResident,
    Written,
)
from tests.worlds.residents import Place, Resident
from tests.worlds.stage import DisturbedWorld, Stage, kind_made_by

from chappe.api.kv import map_member, map_server, witness
from chappe.kv.chp.client import MapClientCore
from chappe.kv.chp.pair import PairedMapServer
from chappe.limits import MAP_LIMITS
from chappe.replication.binary_star.messages import WITNESS
from chappe.sim.world import Settings
from chappe.system import machine

USUAL_S: Final = (0.001, 0.01, 0.05)  # how long disks take
DRIFTS: Final = (0.0, 0.01, 0.1)  # by which part of it steady clocks may differ in speed
SESSIONS: Final = 0.3  # of the worlds have values that end with their clients
GUIDE: Final = "guide"
GUIDES: Final = 0.3  # of the worlds have a client of the Guide's kind


def _ports_here(*arguments: Any, **options: Any) -> WatchedMapPorts:
    kind = GuidePorts if getattr(machine.current(), "name", "") == GUIDE else WatchedMapPorts
    return kind(*arguments, **options)


class Maps(DisturbedWorld):
    """A pair of map servers, perhaps with disks and a witness, and maps, as users run them."""

    lengths_s: ClassVar[tuple[float, ...]] = (5.0, 15.0, 30.0)
    settle_max_s: ClassVar[float] = 100.0
    events_max: ClassVar[int] = 3_000_000

    def __init__(self, seed: int, settings: Settings | None = None, tell: Callable[[str], None] | None = None) -> None:
        super().__init__(seed, settings, tell)
        rng = self.rng
        self.witnessed = rng.random() < 0.6
        self.durable = rng.random() < 0.6
        self.parts = rng.random() < 0.3  # without a witness: whether cuts are among what happens
        self.usual_disk_s = rng.choice(USUAL_S)
        self.drift_rng = Random(f"drift {seed}")
        self.drift = self.drift_rng.choice(DRIFTS)
        self.limits = MAP_LIMITS
        self.session_rng = Random(f"sessions of {seed}")
        self.sessions = self.session_rng.random() < SESSIONS
        if not self.settings.plain:
            self.limits = replace(
                MAP_LIMITS, piece_bytes=rng.choice((400, 10_000)), window=rng.choice((4, 16)),
                recent_max=rng.choice((10, 1_000)), views_max=rng.choice((1, 4)), view_shared_s=rng.choice((0.0, 1.0)),
                outcomes_max=rng.choice((3, 20, MAP_LIMITS.outcomes_max)),
                session_values_max=rng.choice((5, MAP_LIMITS.session_values_max)),
            )  # fmt: skip
        self.written: list[Written] = []
        self.plain: set[tuple[bytes, bytes]] = set()  # what was written in the Guide's way, which promises nothing
        self.excused = 0  # so many of the writes may be lost
        self.heard: dict[str, float] = {}  # clients: when an active server heard of them last
        self.quiet_until = 0.0  # nobody writes until then
        self.working = True
        self.stage = Stage(
            self,
            (
                (map_server, "open_backend", lambda kind, options: HostsBackend(**options) if options else None),
                (map_server, "PairedMapServer", self._limited(PairedMapServer)),
                (map_server, "MapServerPorts", WatchedServerPorts),
                (witness, "open_backend", lambda kind, options: WitnessBackend(**options)),
                (map_member, "MapClientCore", self._limited(MapClientCore)),
                (map_member, "MapClientPorts", _ports_here),
                *((kind, "world", self) for kind in (WitnessBackend, WatchedServerPorts, WatchedMapPorts)),
            ),
        )
        self.watch(Terms(self), Survival(self), Convergence(self), Sessions(self), Watches(self))
        self.ground_faults = PairFaults(self)

    def _limited(self, kind: type) -> type:
        return kind_made_by(kind, partial(kind, limits=self.limits))

    def running(self) -> list[ServerLife]:
        """The servers that run."""
        return self.alive(ServerLife)

    def active(self) -> ServerLife | None:
        """The one that serves, if there is one."""
        return next((each for each in self.running() if each.core.active), None)

    def clients(self) -> list[MapLife]:
        """The maps that are open."""
        return self.alive(MapLife)

    def begin(self) -> None:
        """Make everybody."""
        kinds: list[tuple[str, type[Resident]]] = [(WITNESS, WitnessResident)] if self.witnessed else []
        kinds += [(name, ServerResident) for name in SERVERS]
        kinds += [(f"map{number}", MapResident) for number in range(self.few(self.rng.choice((1, 2, 4))))]
        if not self.settings.plain and self.rng.random() < GUIDES:
            kinds.append((GUIDE, GuideResident))
        for name, kind in kinds:
            place = (ServerPlace if name in SERVERS else Place)(self, name)
            self.stage.disk(name).slow(self.usual_disk_s)
            self.move_in(kind(self, name, place))

    def excuse_end_of(self, place: Place) -> None:
        """What is confirmed may be lost with a server, if no disk has it and nobody else surely does."""
        for host in place.lives() if not self.durable else ():
            if self._is_needed(host):
                self.trace(None, "what was written up to now may be lost")
                self.excused = max(self.excused, len(self.written))

    def _is_needed(self, host: Any) -> bool:
        other = next((each for each in self.running() if each is not host), None)
        if other is None:
            return True
        ours, theirs = host.core.star, other.core.star
        if ours.term > theirs.term:
            return bool(ours.confirms == "alone" or not theirs._in_step)
        return bool(not theirs.term or ours.record > theirs.record)

    def stop(self) -> None:
        """Write nothing more."""
        self.working = False

    def count(self) -> int:
        """Writes."""
        return len(self.written)
