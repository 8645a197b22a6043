"""Towers in the simulation, and the members' connections to them."""

from __future__ import annotations

from typing import Any

from chappe.core import Effect, Publish, Send, Subscribe
from chappe.log.beacon import BEACON, WELCOME, TowerCore
from chappe.sim.network import SimNetwork
from chappe.sim.world import SimWorld

REDIAL_S = 0.3


class Line:
    """One member's two connections to one tower: beacons up, beacons of others down."""

    def __init__(self, tower: Tower, host: Any) -> None:
        self.tower = tower
        self.host = host
        self._closed = False
        self.life = 0  # grows with every connection and its end
        self.up = False
        self.heard = False  # the tower's subscription reached the member, so its beacons are sent
        tower.world.clock.after(tower.net.delay(), self._dial)

    def _dial(self) -> None:
        tower, host = self.tower, self.host
        if self._closed or self.up:
            return
        net, clock = tower.net, tower.world.clock
        if not tower.alive or not net.reachable(host.name, tower.name):
            clock.after(REDIAL_S, self._dial)
            return
        self.up, self.heard = True, False
        self.life += 1
        life = self.life
        clock.after(net.delay(), self.down, life, [WELCOME])
        for prefix in (b"B", b"G", b"W"):
            clock.after(net.delay(), self._subscribed, life, prefix)
        if tower.subscribed:
            clock.after(net.delay(), self.relayed, life)

    def _subscribed(self, life: int, prefix: bytes) -> None:
        if life == self.life and self.tower.alive:
            self.tower.perform(self.tower.core.handle_subscription(prefix, True, self.tower.world.now))

    def relayed(self, life: int) -> None:
        """The tower's subscription to beacons arrives at the member."""
        if life == self.life and self.host.alive:
            self.heard = True
            self.host.on_tower_ready()
        else:
            self.tower.world.failed[Subscribe] += 1

    def beacon(self, frames: tuple[bytes, ...]) -> None:
        """Send a beacon up, if the tower is known to listen."""
        if self.up and self.heard:
            tower = self.tower
            if tower.net.reachable(self.host.name, tower.name):
                tower.world.clock.after(tower.net.delay(), tower.on_beacon, tower.life, list(frames), self.host.name)
                return
        self.tower.world.failed[Send] += 1

    def down(self, life: int, frames: list[bytes]) -> None:
        """A beacon or a welcome arrives from the tower."""
        host, world = self.host, self.tower.world
        if life != self.life or not host.alive or not self.tower.net.reachable(host.name, self.tower.name):
            world.failed[Publish] += 1
        elif host.stalled_until > world.now:
            world.clock.at(host.stalled_until, self.down, life, frames)
        else:
            host.on_beacon(frames)

    def break_(self) -> None:
        """The connections break; the member redials."""
        if self.up:
            self.up = self.heard = False
            self.life += 1
            self.tower.world.clock.after(REDIAL_S, self._dial)

    def close(self) -> None:
        """The member is gone."""
        self._closed = True
        self.up = False
        self.life += 1
        self.tower.lines.pop(self, None)


class Tower:
    """One tower; after a crash it begins with nothing."""

    def __init__(self, world: SimWorld, net: SimNetwork, name: str) -> None:
        self.world = world
        self.net = net
        self.name = name
        self.alive = True
        self.life = 0
        self.core = TowerCore("127.0.0.1")
        self.subscribed = False  # somebody listens to beacons, so members are asked for theirs
        self.lines: dict[Line, None] = {}
        self._timer_at = float("inf")

    def line_to(self, host: Any) -> Line:
        """The connections of a new member."""
        line = Line(self, host)
        self.lines[line] = None
        return line

    def crash(self) -> None:
        """Stop at once."""
        self.alive = False
        self.life += 1
        self.world.trace(self, "dies")
        for line in list(self.lines):
            line.break_()

    def restart(self) -> None:
        """Begin anew."""
        self.alive = True
        self.core = TowerCore("127.0.0.1")
        self.subscribed = False
        self._timer_at = float("inf")
        self.world.trace(self, "starts again")

    def on_beacon(self, life: int, frames: list[bytes], name: str) -> None:
        """A member's beacon arrives."""
        if self.alive and life == self.life:
            self.perform(self.core.handle_frames(frames, "127.0.0.1", "", self.world.now))

    def perform(self, actions: list[Effect]) -> None:
        """Carry out what the core wants."""
        clock, net = self.world.clock, self.net
        for action in actions:
            if isinstance(action, Publish):
                lines = [(line, line.life) for line in self.lines if line.up]
                clock.after(net.delay(), self._forwarded, lines, list(action.message))
            elif isinstance(action, Subscribe) and action.on and action.prefix == BEACON:
                self.subscribed = True
                for line in self.lines:
                    if line.up:
                        clock.after(net.delay(), line.relayed, line.life)
        due = self.core.next_timeout()
        if due < self._timer_at:
            self._timer_at = due
            clock.at(due, self._timer, self.life)

    def _forwarded(self, lines: list[tuple[Line, int]], frames: list[bytes]) -> None:
        for line, life in lines:
            line.down(life, frames)

    def _timer(self, life: int) -> None:
        self._timer_at = float("inf")
        if self.alive and life == self.life:
            self.perform(self.core.handle_timeout(self.world.now))
