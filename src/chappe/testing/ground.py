"""What the sockets of a test stand on: the simulator's network in good weather, and numbers for files and ports."""

from __future__ import annotations

from itertools import cycle
from typing import Any, Final

from chappe.sim.network import Network
from chappe.sim.pubsub import PubSub
from chappe.sim.streams import Streams
from chappe.sim.world import World
from chappe.testing.scheduler import Scheduler

DELAY_S: Final = 0.000_1  # of the network
WINDOW_BYTES: Final = 1_048_576  # on the way in one direction of a connection
QUEUE_MAX: Final = 10_000  # messages on the way to a subscriber
FIRST_FILE: Final = 1 << 30  # no descriptor of the system is so high
PORTS: Final = range(10_240, 32_768)  # that are free; systems give away higher ones


class _Calm(PubSub):
    def __init__(self, world: World) -> None:
        super().__init__(world)
        Network.__init__(self, world, DELAY_S)
        self.queue_max = QUEUE_MAX


class File:
    """What a descriptor is; made ready by whoever has it."""

    tells_once = False  # it is readable until somebody heard of it, as those of ZeroMQ are
    readable = False
    writable = False

    def __init__(self, ground: Ground) -> None:
        self.ground = ground
        self.number = ground.next_file
        ground.next_file += 1
        ground.files[self.number] = self

    def fileno(self) -> int:
        """The descriptor."""
        return self.number

    def mask(self) -> int:
        """What it is ready for, as ``selectors.EVENT_READ`` and ``EVENT_WRITE``."""
        return (1 if self.readable else 0) | (2 if self.writable else 0)


class Socket(File):
    """What all sockets of a host have in common."""

    def __init__(self, host: Station) -> None:
        super().__init__(host.ground)
        self.host = host
        self.name = host.name
        self.alive = True  # for the simulator, whose members may still have something under way for it
        self.closed = False
        self.port = ""
        host.sockets.add(self)

    def leave(self) -> None:
        """It is closed, and its port is free."""
        self.closed = True
        self.ground.files.pop(self.number, None)
        self.ground.ports.pop(self.port, None)
        self.host.sockets.discard(self)

    def kill(self) -> None:
        """Close it as the system does when its process is killed."""
        raise NotImplementedError

    def take_port(self, port: str) -> bool:
        """Bind to a port, ``*`` for any that is free; whether it was."""
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

    def __init__(self, ground: Ground, name: str) -> None:
        self.ground = ground
        self.name = name
        self.sockets: set[Socket] = set()


class Ground:
    """One for each world."""

    def __init__(self, seed: int) -> None:
        world = World(seed)
        self.net: PubSub = _Calm(world)
        self.streams = Streams(self.net, lambda side, frames: None, (WINDOW_BYTES,))
        self.files: dict[int, File] = {}
        self.ports: dict[str, Any] = {}  # sockets that listen; all names and addresses are one machine's
        self.next_file = FIRST_FILE
        self.free_ports = cycle(PORTS)  # one that was closed is not given to another one soon
        self.scheduler = Scheduler(world.clock, lambda number: number in self.files and bool(self.files[number].mask()))
