"""Where users' objects live in a world: the ground of ``chappe.testing``, played by one thread from a seed alone.

What is drawn at random elsewhere is drawn from the seed here: addresses, ids of stores, salts. Objects of the API take
their limits and the classes of their cores from the world, as hosts of the simulator do.
"""

from __future__ import annotations

import gc
import os
import shutil
import tempfile
import uuid
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from tests.worlds.log.world import Cores

from chappe.api.log import consumer as consumers
from chappe.api.log import store as stores
from chappe.api.log import topic_writers
from chappe.limits import LogLimits
from chappe.log.consuming import ConsumingMember
from chappe.log.exactly_once.staged import recover
from chappe.runtime import log_seats, store_ports
from chappe.sim.world import SimWorld
from chappe.storage.segments import SegmentStorage
from chappe.testing.ground import Ground
from chappe.testing.world import World as TestWorld


class Stage(TestWorld):
    """The hosts of one world.

    Args:
        world: Has the clock and the source of chance.
        limits: Of all cores.
        cores: Which classes they have.
        storage: What stores keep their records in.
    """

    def __init__(self, world: SimWorld, limits: LogLimits, cores: Cores, storage: type[SegmentStorage]) -> None:
        self.scratch = Path(tempfile.mkdtemp(prefix="chappe-world-", dir=_memory()))
        self._begin(self.scratch / "users", Ground(world, rough=True, alone=True))
        self.net = self._ground.net
        self.streams = self._ground.streams
        self._limits = limits
        self._cores = cores
        self._storage = storage
        self._rng = Random(f"names {world.seed}")  # of its own: what happens does not depend on how many are drawn
        self._collects = False

    def begin(self) -> None:
        """Put the world in the place of the machine."""
        limits, cores = self._limits, self._cores
        for home, name, ours in (
            (os, "urandom", self._rng.randbytes),
            (uuid, "uuid4", lambda: uuid.UUID(bytes=self._rng.randbytes(16), version=4)),
            (consumers, "LogConsumer", partial(_consumer, cores.consumer, limits)),
            (topic_writers, "LogProducer", cores.producer),
            (topic_writers, "LOG_LIMITS", limits),
            (log_seats, "ConsumingMember", _kind(ConsumingMember, lambda name: ConsumingMember(name, limits))),
            (store_ports, "LogStore", partial(cores.store, limits=limits)),
            (store_ports, "recover", partial(recover, limits=limits)),
            (stores, "SegmentStorage", self._storage),
        ):
            self._restore.append(partial(setattr, home, name, getattr(home, name)))
            setattr(home, name, ours)
        self._collects = gc.isenabled()
        gc.disable()  # when it runs depends on what was played before
        self.__enter__()

    def end(self) -> None:
        """Give the machine back, and remove all files."""
        try:
            self.__exit__(None, None, None)
        finally:
            if self._collects:
                gc.enable()
            shutil.rmtree(self.scratch, ignore_errors=True)

    # -- what the network does beside cuts ------------------------------------------------------------------

    def links(self, *names: str) -> list[Any]:
        """The connections of publish and subscribe at the hosts of these names."""
        return [
            link
            for publisher in dict.fromkeys(self.net.publishers.values())
            for link in publisher.listeners
            if publisher.name in names or link.subscriber.name in names
        ]


def _kind(kind: type, make: Callable[..., Any]) -> type:
    """A stand-in for a class, of which no other can be made: calls ``make``, and knows the instances of the class."""

    class Kind(type):
        def __call__(cls, *arguments: Any, **options: Any) -> Any:
            return make(*arguments, **options)

        def __instancecheck__(cls, found: object) -> bool:
            return isinstance(found, kind)

    return Kind(kind.__name__, (), {})


def _consumer(kind: Callable[..., Any], limits: LogLimits, *arguments: Any, **options: Any) -> Any:
    return kind(*arguments, limits=limits, **options)


def _memory() -> str | None:
    """Where files cost least: nothing of a world outlives it."""
    return "/dev/shm" if os.path.isdir("/dev/shm") else None
