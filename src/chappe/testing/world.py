"""A world for one test: hosts, the network between them, a clock that takes no time, and a tower with a store."""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from chappe.api import at_exit
from chappe.api.log.consumer import Consumer
from chappe.api.log.producer import Producer
from chappe.api.log.store import Store
from chappe.api.log.tower import Tower
from chappe.errors import Closed
from chappe.log.batch import Record
from chappe.sim.world import SimWorld
from chappe.system import forking, machine
from chappe.system import time as clocks
from chappe.testing.disk import Disk
from chappe.testing.ground import Ground
from chappe.testing.machine import Host, run_forever
from chappe.testing.scheduler import Scheduler, check_alive

HERE: Final = "test"  # the host of what says nothing else
BY_TEST: Final = "test"  # why a host stands still


class _Outcome(Future[Any]):
    """The result of a program; waiting for it takes no time."""

    def __init__(self, scheduler: Scheduler) -> None:
        super().__init__()
        self._scheduler = scheduler
        self.asked = False

    def result(self, timeout: float | None = None) -> Any:
        self.asked = True
        self._scheduler.wait(self.done, timeout)
        return super().result(0)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        self.asked = True
        self._scheduler.wait(self.done, timeout)
        return super().exception(0)


class World:
    """A world in which all parts of chappe live that are made meanwhile. Use it in a ``with``, or as the fixture
    ``chappe_world``.

    Towers, stores, producers, consumers, endpoints and data stores are the real ones, on sockets of the simulator's
    network. Files are real; syncs take no time. ``time.sleep``, ``time.time`` and ``time.monotonic``, and the loops of
    asyncio, go by the clock of the world, which jumps ahead when everybody waits.

    Args:
        directory: Replaces the user's data directory for members.
        seed: Of the delays in the network, and of the faults of disks.
        rough: Whether the network is slow and uneven, and has little room on the way, so that queues and windows are
            full now and then; how much of that there is is drawn from the seed.
    """

    def __init__(self, directory: str | Path, seed: int = 0, *, rough: bool = False) -> None:
        self._begin(directory, Ground(SimWorld(seed), rough=rough))

    def _begin(self, directory: str | Path, ground: Ground) -> None:
        self.directory = Path(directory)
        self._ground = ground
        self._scheduler = ground.scheduler
        self._disks: dict[str, Disk] = {}
        self._hosts: dict[str, Host] = {}
        self._programs: list[_Outcome] = []
        self._restore: list[Callable[[], object]] = []

    def __enter__(self) -> Self:
        scheduler = self._scheduler
        before = machine.use(self.host(), scheduler.outside)
        clocks.use((scheduler.monotonic, scheduler.time_ns, scheduler.sleep))
        self._restore += [lambda: machine.use(before), lambda: clocks.use(None)]
        for home, name, ours in (
            (time, "monotonic", scheduler.monotonic),
            (time, "monotonic_ns", lambda: int(scheduler.monotonic() * 1e9)),
            (time, "time", lambda: scheduler.time_ns() / 1e9),
            (time, "time_ns", scheduler.time_ns),
            (time, "sleep", scheduler.sleep),
            (asyncio.BaseEventLoop, "run_forever", run_forever(self._ground, self._start)),
        ):
            self._restore.append(partial(setattr, home, name, getattr(home, name)))
            setattr(home, name, ours)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            for name in list(self._hosts):
                self.kill(name)
            self._scheduler.wait(lambda: not any(getattr(each, "killed", False) for each in threading.enumerate()), 1.0)
        finally:
            for each in reversed(self._restore):
                each()
            self._scheduler.close()
        for program in self._programs:
            if error is None and not program.asked and program.done() and not program.cancelled():
                program.result()

    # -- time -------------------------------------------------------------------------------------------

    @property
    def now(self) -> float:
        """Seconds since the world began."""
        return self._scheduler.clock.now

    def advance(self, seconds: float) -> None:
        """Let time pass, with everything that is due until then."""
        self._scheduler.since = self.now + seconds
        self._scheduler.wait(lambda: False, seconds)

    def wait_until(self, condition: Callable[[], object], timeout: float = 10.0) -> None:
        """Let time pass until ``condition()`` is true. Raises AssertionError: it is not within ``timeout`` seconds."""
        end = self.now + timeout
        while not condition():
            assert self.now < end, f"what was waited for is not so after {timeout:g} s"
            self._scheduler.wait(lambda: False, 0.001)

    def set_clock(self, name: str, seconds: float, *, drift: float = 0.0) -> None:
        """Set the time of day of a host: so far ahead of the world's, or behind it. Its steady clock goes on.

        Args:
            seconds: How far ahead; negative for behind.
            drift: It gains so many seconds in each second, from now on; negative if it loses some.
        """
        self.host(name).set_clock(seconds, drift)

    def be_patient(self, seconds: float) -> None:
        """Wait so long in vain, ten minutes by default, until NothingHappens is raised."""
        self._scheduler.patience_s = seconds

    # -- who lives here ---------------------------------------------------------------------------------

    def host(self, name: str = HERE) -> Host:
        """The machine of that name, as it is now."""
        if name not in self._hosts:
            self._hosts[name] = Host(self._ground, name, self.directory / name, self.disk(name))
        return self._hosts[name]

    @contextmanager
    def on(self, name: str) -> Iterator[None]:
        """Make everything in the ``with`` on the host ``name``, which can be cut off and killed."""
        before = machine.drive(self.host(name))
        try:
            yield
        finally:
            machine.drive(before)

    def start(self, program: Callable[..., Any], *args: Any, host: str = HERE, **options: Any) -> Future[Any]:
        """Run ``program(*args, **options)`` on a thread of a host; it ends with the test at the latest.

        The future has its result. An exception fails the test, unless the future was asked.
        """
        with self.on(host):
            made = self._start(program, *args, **options)
        self._programs.append(made)
        return made

    def _start(self, program: Callable[..., Any], *args: Any, **options: Any) -> _Outcome:
        outcome = _Outcome(self._scheduler)

        def run() -> None:
            try:
                found = program(*args, **options)
            except Exception as error:
                check_alive()
                outcome.set_exception(error)
            else:
                outcome.set_result(found)
            finally:
                outcome.cancel()  # of no effect, unless the host was killed

        machine.current().thread(run, getattr(program, "__name__", "program")).start()
        return outcome

    # -- faults -----------------------------------------------------------------------------------------

    def kill(self, name: str, *, power_cut: bool = False) -> None:
        """End everything on a host as ``kill -9`` does. Members made there afterwards are another life of it.

        Args:
            power_cut: Whether its machine loses power, too: writes to its disk that were not synced are lost then,
                or some of them.
        """
        host = self._hosts.pop(name, None)
        if host is None:
            return
        if self._ground.alone:
            self._end(host)
        else:
            with self._scheduler.alone(host):  # in the midst of a call, its thread would meet what is half left behind
                self._end(host)
        if power_cut:
            self.disk(name).cut_power()

    def _end(self, host: Host) -> None:
        before = machine.drive(host)
        try:
            host.killed = True
            host.tear()
            for sock in list(host.sockets):
                sock.kill()
            members = [each for ref in host.members if (each := ref()) is not None]
            for each in members:
                if type(each).__hash__ is not None:  # a map has none; its member is forgotten itself
                    self._scheduler.remove(each)
                    at_exit.remove(each)
            forking.abandon(members, "of a killed host", _killed)
            host.leave()
        finally:
            machine.drive(before)

    def pause(self, name: str) -> None:
        """Stop everything on a host, as SIGSTOP does: nobody is told, and messages wait for it.

        A thread of another host that uses its members goes on; so start the host's programs with ``start``.
        """
        self.host(name).hold(BY_TEST)

    def resume(self, name: str) -> None:
        """Let a paused host go on."""
        self.host(name).go_on(BY_TEST)

    def disk(self, name: str = HERE) -> Disk:
        """The disk of a host, over all its lives."""
        if name not in self._disks:
            self._disks[name] = Disk(self._ground.rng)
        return self._disks[name]

    def cut(self, one: str, other: str, *, one_way: bool = False) -> None:
        """Let nothing pass between two hosts; nobody is told.

        Args:
            one, other: Names of hosts.
            one_way: Whether only messages from ``one`` to ``other`` are lost; new connections need both directions.
        """
        if one_way:
            self._cut_one_way(one, other)
            return
        self._ground.net.cut(one, other, math.inf)
        for publisher in dict.fromkeys(self._ground.net.publishers.values()):
            for link in list(publisher.listeners):
                if {link.subscriber.name, publisher.name} == {one, other}:
                    link.break_()
        for each in list(self._ground.net.connections):
            if {each.asker.name, each.router.name} == {one, other}:
                each.break_()
        for side in self._ground.streams.between(one, other):
            side.cut = True

    def _cut_one_way(self, source: str, target: str) -> None:
        net = self._ground.net
        net.cut_one_way(source, target)
        for publisher in dict.fromkeys(net.publishers.values()):
            for link in publisher.listeners:
                for pipe, writer, reader in (
                    (link.down, publisher.name, link.subscriber.name),
                    (link.up, link.subscriber.name, publisher.name),
                ):
                    if pipe is not None and (writer, reader) == (source, target):
                        pipe.held_until = math.inf
        for each in net.connections:
            if {each.asker.name, each.router.name} == {source, target}:
                each.pipe(source).held_until = math.inf
        for side in self._ground.streams.between(source, target):
            side.mute = side.mute or side.host.name == source

    def mend(self) -> None:
        """End all cuts. Connections that were cut are lost: members dial again."""
        net = self._ground.net
        net.mend()
        for publisher in dict.fromkeys(net.publishers.values()):
            for link in publisher.listeners:
                for pipe in (link.up, link.down):
                    if pipe is not None:
                        pipe.held_until = 0.0
        for each in net.connections:
            each.up.held_until = each.down.held_until = 0.0
        net.unstick()
        for side in list(self._ground.streams.sides):
            if side.cut or side.mute:
                side.reset("connection timed out")


class Log:
    """The fixture ``chappe_log``: a tower on the host ``tower``, at the usual address, and a store on ``store``."""

    def __init__(self, world: World, directory: Path) -> None:
        self.world = world
        self.directory = directory
        self.tower = self.start_tower()
        self.store = self.start_store()

    def start_tower(self) -> Tower:
        """Start it again, after it was closed or its host was killed."""
        with self.world.on("tower"):
            self.tower = Tower()
        return self.tower

    def start_store(self, **options: Any) -> Store:
        """Start it again on the same files, after it was closed or its host was killed."""
        with self.world.on("store"):
            self.store = Store(self.directory, **options)
        return self.store

    def write(self, topic: str, *values: bytes | str | None, timeout: float = 10.0) -> None:
        """Make records, and wait until they are stored. Raises TimedOut."""
        with Producer(topic) as producer:
            producer.send_many(values)
            producer.flush(timeout)

    def read(self, topic: str, timeout: float = 10.0) -> list[Record]:
        """Return all stored records. Raises TimedOut."""
        with Consumer(topic) as consumer:
            return list(consumer.to_end(timeout))

    def wait_for(self, topic: str, count: int, timeout: float = 10.0) -> list[Record]:
        """Return a topic's first ``count`` records; AssertionError if they are not there within ``timeout`` seconds."""
        found: list[Record] = []
        end = self.world.now + timeout
        with Consumer(topic) as consumer:
            while len(found) < count and (batch := consumer.poll(max(0.0, end - self.world.now))) is not None:
                found += consumer.iterate(batch)
        assert len(found) >= count, (
            f"there are {len(found)} records of topic {topic!r} after {timeout:g} s, not {count}"
        )
        return found[:count]


def _killed(name: str) -> Closed:
    return Closed(f"this {name} was on a host that the test has killed: make another one")
