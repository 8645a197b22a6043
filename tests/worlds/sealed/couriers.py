"""Files of the authority travel in a world of the log, between members and towers."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any, Final

from tests.worlds.log.standin.towers import Line, Tower
from tests.worlds.sealed.hosts import NAMES, SealedWorld
from tests.worlds.sealing import LOOK_S, Machine

from chappe.log.handing_on import PERMISSIONS, VERSION, WORD_BYTES, Middle, PermissionsMember

LOST: Final = 0.1  # of what is handed on
FORGED: Final = 0.3  # of the seconds somebody hands on what nobody has made


class Couriers:
    """Of one world."""

    def __init__(self, world: SealedWorld) -> None:
        self._world = world
        self._forge_rng = Random(f"keys {world.seed}")
        self.loss = LOST
        self.deaf: dict[str, float] = {}  # to whom nothing is handed, until when
        self._middles: dict[str, Middle] = {}  # of towers, by name
        self._lives: dict[str, int] = {}
        self._members: dict[Any, PermissionsMember] = {}  # by host
        self._met: dict[Line, int] = {}  # lives of connections over which somebody has subscribed

    def begin(self) -> None:
        """Have towers hand on what they have."""
        self._look()

    def join(self, host: Any, machine: Machine) -> None:
        """A program of a machine begins."""
        word = b"%0*d" % (WORD_BYTES, len(self._members))
        self._members[host] = PermissionsMember(machine, lambda frames: self._up(host, frames), word)

    def _look(self) -> None:
        world = self._world
        world.clock.after(LOOK_S, self._look)
        for tower in world.towers:
            if not tower.alive:
                continue
            middle = self._middle(tower)
            for line in list(tower.lines):
                if line.up and line.heard and self._met.get(line) != line.life and line.host in self._members:
                    self._met[line] = line.life
                    middle.joined(world.now)
            middle.look(world.now)
        self._forge()

    def _forge(self) -> None:
        """Somebody hands on keys that the authority has not made so."""
        world, rng = self._world, self._forge_rng
        machine = world.known(rng.choice(NAMES))
        if machine is None or rng.random() > FORGED:
            return
        group = rng.choice(sorted(world.authority.chains))
        chain = world.authority.chains[group]
        raw = bytearray(chain.after(machine.versions()[group]) or chain.after(rng.randrange(chain.version)))
        raw[rng.randrange(len(raw))] ^= 1 << rng.randrange(8)
        if machine.offer_keys(group, bytes(raw)):
            world.fail("forgeries", f"{machine.name} takes keys of {group} that the authority has not made")

    def _middle(self, tower: Tower) -> Middle:
        if self._lives.get(tower.name) != tower.life:
            machine = self._world.machine(tower.name)
            machine.restarted()
            self._lives[tower.name] = tower.life
            self._middles[tower.name] = Middle(machine, lambda frames: self._down(tower, frames))
        return self._middles[tower.name]

    def _lost(self) -> bool:
        return self.loss > 0 and self._world.seal_rng.random() < self.loss

    def _up(self, host: Any, frames: Sequence[bytes]) -> None:
        world = self._world
        for line in host.lines:
            if line.up and line.heard and not self._lost():
                world.clock.after(world.net.delay(), self._brought, line.tower, line.tower.life, list(frames))

    def _brought(self, tower: Tower, life: int, frames: list[bytes]) -> None:
        if tower.alive and tower.life == life:
            self._middle(tower).hear(frames, self._world.now)

    def _down(self, tower: Tower, frames: list[bytes]) -> None:
        world = self._world
        newest = {group: world.machine(tower.name).newest(group) for group in world.authority.chains}
        for line in list(tower.lines):
            if line.up and self._met.get(line) == line.life and not self._lost():
                world.clock.after(world.net.delay(), self._told, line, line.life, list(frames), newest)

    def _told(self, line: Line, life: int, frames: list[bytes], newest: dict[str, int]) -> None:
        host = line.host
        member = self._members.get(host)
        if member is None or line.life != life or not host.alive or self.deaf.get(host.name, 0.0) > self._world.now:
            return
        if host.stalled_until > self._world.now:
            self._world.clock.at(host.stalled_until, self._told, line, life, frames, newest)
        elif any(frames[0] == kind or (kind != PERMISSIONS and frames[0].startswith(kind)) for kind in member.kinds):
            if frames[0] == VERSION:
                self._world.told[host] = {group: (epoch, self._world.now) for group, epoch in newest.items()}
            member.hear(frames, self._world.now)
