"""The ground of a test's sockets: the simulator's network, and numbers for files and ports."""

from __future__ import annotations

from collections.abc import Callable
from itertools import cycle
from math import inf
from typing import Any, Final

from chappe.sim.network import SimNetwork
from chappe.sim.pubsub import PubSub
from chappe.sim.streams import Streams
from chappe.sim.world import SimWorld
from chappe.testing.scheduler import Scheduler

DELAY_S: Final = 0.000_1  # of the network
WINDOW_BYTES: Final = 1_048_576  # on the way in one direction of a connection
QUEUE_MAX: Final = 10_000  # messages on the way to a subscriber
INBOX_MAX: Final = 10_000  # messages that wait to be received; further ones wait on the way
FIRST_CONNECTION: Final = 1 << 29  # no descriptor of the system is so high
FIRST_FILE: Final = 1 << 30
PORTS: Final = range(10_240, 32_768)  # that are free; systems give away higher ones


class Net(PubSub):
    """The network between hosts: cuts may be in one direction.

    Args:
        rough: Whether queues are small and ways long and uneven, as drawn from the seed.
    """

    def __init__(self, world: SimWorld, *, rough: bool) -> None:
        super().__init__(world)
        self.inbox_max = self.queue_max
        if not rough:
            SimNetwork.__init__(self, world, DELAY_S)
            self.queue_max, self.inbox_max = QUEUE_MAX, INBOX_MAX
        self.rough = rough
        self.connections: dict[Any, Any] = {}  # of those who ask, to those who answer
        self.shaken: dict[int, Any] = {}  # connections, by the descriptors that their messages know
        self.last_descriptor = FIRST_CONNECTION
        self.monitors: dict[str, Any] = {}  # sockets that hear of refusals
        self._mute: set[tuple[str, str]] = set()  # from whom nothing comes to whom

    def passes(self, source: str, target: str) -> bool:
        return super().reachable(source, target) and (source, target) not in self._mute

    def reachable(self, a: str, b: str) -> bool:
        return self.passes(a, b) and (b, a) not in self._mute

    def cut_one_way(self, source: str, target: str) -> None:
        self._mute.add((source, target))

    def mend(self) -> None:
        super().mend()
        self._mute.clear()


class File:
    """The object behind a descriptor; its owner makes it ready."""

    tells_once = False  # it is readable until somebody heard of it, as those of ZeroMQ are

    def __init__(self, ground: Ground) -> None:
        self.ground = ground
        self._readable = False
        self._writable = False
        self.watchers: dict[Any, None] = {}  # selectors that wait for it
        self.number = ground.next_file
        ground.next_file += 1
        ground.files[self.number] = self

    def fileno(self) -> int:
        return self.number

    @property
    def readable(self) -> bool:
        return self._readable

    @readable.setter
    def readable(self, ready: bool) -> None:
        self._readable = ready
        if ready:
            self._became_ready()

    @property
    def writable(self) -> bool:
        return self._writable

    @writable.setter
    def writable(self, ready: bool) -> None:
        self._writable = ready
        if ready:
            self._became_ready()

    def _became_ready(self) -> None:
        self.ground.changes += 1
        for each in self.watchers:
            each.idle = False

    def mask(self) -> int:
        """Return ``selectors.EVENT_READ`` and ``EVENT_WRITE``, as far as it is ready."""
        return (1 if self._readable else 0) | (2 if self._writable else 0)


class Socket(File):
    def __init__(self, host: Station) -> None:
        super().__init__(host.ground)
        self.host = host
        self.name = host.name
        self.alive = True  # for the simulator, whose members may still have something under way for it
        self.closed = False
        self.port = ""
        self.stalled_until = inf if host.paused else 0.0  # for the simulator: it takes nothing before
        host.sockets[self] = None

    def leave(self) -> None:
        self.closed = True
        self.ground.files.pop(self.number, None)
        self.ground.ports.pop(self.port, None)
        self.host.sockets.pop(self, None)

    def kill(self) -> None:
        """Close it as the system does when its process is killed."""
        raise NotImplementedError

    def take_port(self, port: str) -> bool:
        """Bind to a port, ``*`` for any that is free; return False if it is taken."""
        ports = self.ground.ports
        if port == "*":
            port = str(next(each for each in self.ground.free_ports if str(each) not in ports))
        if port in ports:
            return False
        self.port = port
        ports[port] = self
        return True


class Station:
    """A host, as its sockets see it."""

    paused = False
    read_s = 0.0  # for each piece that it reads from a connection
    steady_s = 0.0  # its steady clock is so far before the world's

    def __init__(self, ground: Ground, name: str) -> None:
        self.ground = ground
        self.name = name
        self.admit: Callable[[list[bytes]], list[bytes]] | None = None  # decides who comes in, where there are keys
        self.sockets: dict[Socket, None] = {}  # in the order in which they were made


class Ground:
    """The sockets and files of one world.

    Args:
        world: Has the clock and the source of chance.
        rough: Whether the network is; connections have small windows, too.
        alone: Whether no other thread than one takes part: it also does slow work, and time passes only while it
            waits. So the same seed plays the same world, on clocks that begin at fixed times.
    """

    def __init__(self, world: SimWorld, *, rough: bool = False, alone: bool = False) -> None:
        self.changes = 0  # rises whenever a file becomes ready for something
        self.alone = alone
        self.rng = world.rng
        self.net = Net(world, rough=rough)
        self.streams = Streams(self.net, lambda side, frames: None, None if rough else (WINDOW_BYTES,))
        self.files: dict[int, File] = {}
        self.ports: dict[str, Any] = {}  # sockets that listen; all names and addresses are one machine's
        self.next_file = FIRST_FILE
        self.free_ports = cycle(PORTS)  # one that was closed is not given to another one soon
        self.scheduler = Scheduler(world.clock, self, alone=alone)

    def is_ready(self, number: int) -> bool:
        file = self.files.get(number)
        return file is not None and bool(file.mask())
