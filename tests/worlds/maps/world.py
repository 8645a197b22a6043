"""The world of a pair of map servers, and what goes wrong with them.

Without a witness, and without disks, what may be lost is what the docs say; ``excused`` notes it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any, Final

from tests.worlds.backends import SimBackend
from tests.worlds.faults import Schedule
from tests.worlds.maps.hosts import COMMITS_S, SERVERS, ClientHost, ServerHost
from tests.worlds.maps.lines import Lines

from chappe.limits import MAP_LIMITS
from chappe.replication.binary_star.messages import WITNESS
from chappe.replication.binary_star.witness import Grant
from chappe.sim.host import SimMember
from chappe.sim.world import Settings, SimWorld

DRIFTS: Final = (0.0, 0.01, 0.1)
ALL: Final = 10**9  # more than is ever written
SESSIONS: Final = 0.3  # of the worlds have values that end with their clients


class MapWorld(SimWorld):
    """Two servers, perhaps a witness, and what goes wrong with them."""

    lengths_s = (5.0, 15.0, 30.0)
    settle_max_s = 30.0
    events_max = 3_000_000

    def __init__(self, seed: int, settings: Settings | None = None, tell: Callable[[str], None] | None = None) -> None:
        super().__init__(seed, settings, tell)
        rng = self.rng
        self.witnessed = rng.random() < 0.6
        self.durable = rng.random() < 0.6
        self.drift = rng.choice(DRIFTS)
        self.commit_s = rng.choice(COMMITS_S)
        self.granted: dict[bytes, Grant] = {}
        self.witness_full = False  # its disk
        self.backends = {name: SimBackend() if self.durable else None for name in SERVERS}
        self.written: list[Any] = []
        self.excused = 0  # so many of the writes may be lost
        self.working = True
        self.parts = False  # without a witness: whether cuts are among what happens
        self.places: dict[str, SimMember] = {}
        self.schedule = Schedule(self)
        self._lives = 0
        self.limits = MAP_LIMITS
        if not self.settings.plain:
            self.limits = replace(
                MAP_LIMITS, piece_bytes=rng.choice((100, 10_000)), window=rng.choice((4, 16)),
                recent_max=rng.choice((10, 1_000)), views_max=rng.choice((1, 4)), view_shared_s=rng.choice((0.0, 1.0)),
                outcomes_max=Random(f"outcomes {seed}").choice((3, 20, MAP_LIMITS.outcomes_max)),
            )  # fmt: skip
        self.lines = Lines(self)
        self.stuffed: dict[tuple[str, str], float] = {}  # server and client, and until when that takes nothing
        self.stalled: dict[str, float] = {}  # server: until when its disk takes nothing
        self.more_rng = Random(f"more {seed}")  # for what was added later: worlds without it are what they were
        self.session_rng = Random(f"sessions of {seed}")  # likewise
        self.sessions = self.session_rng.random() < SESSIONS
        if self.sessions and not self.settings.plain:
            most = self.session_rng.choice((5, MAP_LIMITS.session_values_max))
            self.limits = replace(self.limits, session_values_max=most)
        self.heard: dict[str, float] = {}  # clients: when an active server heard of them last

    def running(self) -> list[ServerHost]:
        """The servers that run."""
        return self.alive(ServerHost)

    def clients(self) -> list[ClientHost]:
        """Clients that live."""
        return self.alive(ClientHost)

    # -- what hosts ask for ----------------------------------------------------------------------------------------

    def next_life(self) -> int:
        """A number that no other life has."""
        self._lives += 1
        return self._lives

    def random(self, size: int) -> bytes:
        """Random bytes."""
        return self.rng.randbytes(size)

    def noted(self, written: Any) -> Any:
        """Remember what is written."""
        self.written.append(written)
        return written

    def count(self) -> int:
        """Writes."""
        return len(self.written)

    # -- faults ----------------------------------------------------------------------------------------------------

    def plan_pair(self, until: float, kinds: list[Callable[[], None]], witnessed: list[Callable[[], None]]) -> float:
        """Plan what happens: of these kinds, of these with a witness, and of those that all pairs have."""
        if not self.settings.disturb:
            return until
        if self.witnessed:
            kinds += [self.kill_both, self.cut, self.cut, self.part, self.part, self.kill_witness, self.cut_witness]
            kinds += [self.fill_witness, *witnessed]
        elif self.parts:
            kinds += [self.part, self.cut]
        else:
            kinds += [self.kill_in_turn]
        if self.durable:
            kinds.append(self.fill)
        at = 3.0
        while (at := at + self.rng.expovariate(0.7)) < until:
            self.schedule.at(at, self.rng.choice(kinds))
        return until

    def heal(self) -> None:
        """Everybody lives, reaches everybody and has room."""
        self.schedule.on = False
        self.working = False
        self.lines.mend()
        self.witness_full = False
        for backend in self.backends.values():
            if backend is not None:
                backend.full = False
        for member in [*self.places.values(), *self.members]:
            host: Any = member.host
            if host.frozen:
                host.resume()
            member.restart()

    def active(self) -> Any:
        """The one that serves, if there is one."""
        return next((each for each in self.running() if each.core.active), None)

    def calm(self) -> bool:
        """Both run and are paired: without a witness nothing else may begin to go wrong."""
        hosts = self.running()
        return len(hosts) == 2 and not any(each.frozen for each in hosts) and any(
            each.core.active and each.core.star.confirms == "paired" for each in hosts
        )  # fmt: skip

    def other(self, name: str) -> str:
        """The other one of the two."""
        return SERVERS[1 - SERVERS.index(name)]

    def pick(self) -> str:
        """One of the two."""
        return self.rng.choice(SERVERS)

    def kill_one(self, name: str) -> None:
        """Kill it, if it lives."""
        host = self.places[name].host
        if not host.alive:
            return
        if not self.durable and self._is_needed(host):
            self.trace(None, "what was written up to now may be lost")
            self.excused = len(self.written)
        self.trace(host, "is killed")
        self.places[name].crash()

    def restart_after(self, seconds: float, name: str) -> None:
        """Have it live again."""
        self.clock.after(seconds, self.places[name].restart)

    def _is_needed(self, host: Any) -> bool:
        """Whether nobody else surely has what was confirmed."""
        other = next((each for each in self.running() if each is not host), None)
        if other is None:
            return True
        ours, theirs = host.core.star, other.core.star
        if ours.term > theirs.term:
            return bool(ours.confirms == "alone" or not theirs._in_step)
        return bool(not theirs.term or ours.record > theirs.record)

    def kill(self) -> None:
        """One is killed, and comes back."""
        if self.witnessed or self.calm():
            name = self.pick()
            self.kill_one(name)
            self.restart_after(self.rng.choice((0.1, 1.0, 3.0)), name)

    def kill_both(self) -> None:
        """Both are killed at once."""
        for name in SERVERS:
            self.kill_one(name)
            self.restart_after(self.rng.choice((0.1, 1.0, 3.0)), name)

    def part_and_kill(self) -> None:
        """The active one no longer reaches the passive one, and is killed before it could go on alone."""
        active = self.active()
        if active is not None and self.calm():
            for one, two in (SERVERS, SERVERS[::-1]):
                self.lines.cut(one, two, self.now + 0.4, lost=True)
            self.clock.after(0.4, self.kill_one, active.name)
            self.restart_after(3.0, active.name)

    def kill_in_turn(self) -> None:
        """The passive backup is killed, then the primary, which went on alone; the backup comes back first."""
        primary, backup = SERVERS
        active = self.active()
        if active is not None and active.name == primary and self.calm():
            self.kill_one(backup)
            self.clock.after(2.0, self.kill_one, primary)
            self.restart_after(2.1, backup)
            self.restart_after(5.0, primary)

    def freeze(self) -> None:
        """One stands still."""
        if self.witnessed or self.calm():
            self.freeze_one(self.places[self.pick()].host)

    def freeze_client(self) -> None:
        """Who follows them stands still."""
        clients = self.clients()
        if clients:
            self.freeze_one(self.rng.choice(clients))

    def freeze_one(self, host: Any) -> None:
        """Have a host stand still for a while."""
        if host.alive and not host.frozen:
            self.trace(host, "stands still")
            seconds = self.rng.choice((0.3, 0.6, 1.5, 4.0))
            host.stalled_until = self.now + seconds
            self.clock.after(seconds, host.resume)

    def part(self) -> None:
        """The two do not reach each other, in one direction or both."""
        self.cut_between(*SERVERS)

    def cut(self) -> None:
        """Who follows and one of the two do not reach each other, in one direction or both."""
        clients = self.clients()
        if clients:
            self.cut_between(self.rng.choice(clients).name, self.pick())

    def cut_witness(self) -> None:
        """One of the two and the witness do not reach each other."""
        self.cut_between(WITNESS, self.pick())

    def cut_between(self, one: str, two: str, seconds: float | None = None) -> None:
        """Have two hosts not reach each other, in one direction or both."""
        if not self.witnessed:
            self.excused = ALL
        until = self.now + (seconds or self.rng.choice((0.3, 1.0, 3.0)))
        lost = self.rng.random() < 0.5
        way = self.rng.choice((1, 2, 3))
        self.trace(None, "%s and %s are parted %s", one, two, ("", "one way", "the other way", "wholly")[way])
        if way & 1:
            self.lines.cut(one, two, until, lost=lost)
        if way & 2:
            self.lines.cut(two, one, until, lost=lost)

    def kill_witness(self) -> None:
        """The witness is killed, and comes back."""
        self.places[WITNESS].crash()
        self.restart_after(self.rng.choice((0.1, 2.0)), WITNESS)

    def fill_witness(self) -> None:
        """The witness's disk is full for a while."""
        self.witness_full = True
        self.clock.after(self.rng.choice((0.1, 1.0)), setattr, self, "witness_full", False)

    def fill(self) -> None:
        """A disk is full for a while."""
        self.fill_one(self.pick(), (0.1, 1.0))

    def fill_one(self, name: str, seconds: tuple[float, ...]) -> None:
        """Have the disk of one be full for some of these seconds."""
        backend = self.backends[name]
        assert backend is not None
        backend.full = True
        self.clock.after(self.rng.choice(seconds), setattr, backend, "full", False)
