"""The machines that members of a test run on: each host of a world is one. And event loops on the world's clock."""

from __future__ import annotations

import asyncio
import math
import selectors
import socket
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from chappe.runtime.worker import CALLBACKS, DISKS
from chappe.system import machine
from chappe.testing.disk import Disk, DiskOps
from chappe.testing.ground import FIRST_FILE, File, Ground, Station
from chappe.testing.pubsub import KINDS, Context
from chappe.testing.scheduler import Killed, Scheduler, Thread
from chappe.testing.streams import new_listener, new_stream

T = TypeVar("T")
WAITS_FOR_DISK: Final = "disk"
TORN_MAX: Final = 6  # changes of files that a process still makes before it is killed
Start = Callable[..., Future[Any]]  # calls a function with arguments, by a thread of this thread's host

if TYPE_CHECKING:
    import zmq

    from chappe.runtime.worker import Lane


class Selector(selectors.BaseSelector, File):
    """Waits for files, and is one itself: readable while one of its files is ready. For its methods see ``selectors``.

    Args:
        real: Of an event loop: waits for descriptors of the system.
        host: Where it waits; while that stands still nothing is ready.
        called: Of an event loop: true if it has callbacks to run. Its thread does the work of others while it waits,
            and a call from that work does not wake it as another thread's does.
    """

    def __init__(
        self,
        ground: Ground,
        real: selectors.BaseSelector | None = None,
        called: Callable[[], bool] = lambda: False,
        *,
        host: Station,
    ) -> None:
        File.__init__(self, ground)
        self._host = host
        self.idle = False  # none of these has become ready since none was
        self._real = real
        self._called = called
        self._keys: dict[int, tuple[selectors.SelectorKey, File]] = {}

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        number = fileobj if isinstance(fileobj, int) else fileobj.fileno()
        if self._real is not None and number < FIRST_FILE:
            return self._real.register(fileobj, events, data)
        key = selectors.SelectorKey(fileobj, number, events, data)
        file = self.ground.files[number]
        file.watchers[self] = None
        self._keys[number] = key, file
        self.idle = False
        return key

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        for number, (key, file) in self._keys.items():
            if fileobj in (number, key.fileobj):
                file.watchers.pop(self, None)
                del self._keys[number]
                return key
        if self._real is None:
            raise KeyError(fileobj)
        return self._real.unregister(fileobj)

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        real = {} if self._real is None else {key.fd: key for key in (self._real.get_map() or {}).values()}
        return {**real, **{number: key for number, (key, _) in self._keys.items()}}

    def mask(self) -> int:
        return selectors.EVENT_READ if self._is_ready() else 0

    def _is_ready(self) -> bool:
        if self._host.paused or self.idle:
            return False
        ready = any(file.mask() & key.events for key, file in list(self._keys.values()))
        self.idle = not ready and self._real is None
        return ready or self._called() or (self._real is not None and bool(self._real.select(0)))

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Return ready files, after waiting for one on the world's clock."""
        if timeout is None or timeout > 0:
            self.ground.scheduler.wait(self._is_ready, timeout)
        elif self._real is not None:
            self.ground.scheduler.run_now()  # an event loop that never waits lets others go on
        if self._host.paused:
            return []
        found = [] if self._real is None else self._real.select(0)
        for key, file in list(self._keys.values()):
            if mask := file.mask() & key.events:
                found.append((key, mask))
                file.readable = file.readable and not file.tells_once
        return found

    def leave(self) -> None:
        self.ground.files.pop(self.number, None)

    def close(self) -> None:
        self.leave()
        if self._real is not None:
            self._real.close()


class _Wakeup(File):
    def set(self) -> None:
        self.readable = True

    def clear(self) -> None:
        self.readable = False

    def close(self) -> None:
        self.ground.files.pop(self.number, None)


class _Event:
    """A ``threading.Event``, and a ``machine.Latch``."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._set = False

    def is_set(self) -> bool:
        return self._set

    def set(self) -> None:
        self._set = True

    release = set

    def wait(self, timeout: float | None = None) -> bool:
        found = self._scheduler.wait(self.is_set, timeout)
        host: Any = machine.current()
        if host.at_work and host.killed:
            raise Killed
        return found

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        return self.wait(None if timeout < 0 else timeout)


class _Pool:
    """A ``runtime.worker.Pool``: each job has a new thread, or the one that does everything. Disks take their time."""

    def __init__(self, host: Host, name: str) -> None:
        self._host = host
        self._name = name
        self._ends = name != CALLBACKS.name
        self._waits = name == DISKS.name

    def open(self, lane: Lane) -> None:
        pass

    close = open

    def help(self) -> None:
        pass

    def submit(self, lane: Lane) -> None:
        if self._host.ground.alone:
            self._host.jobs[lane] = None
            self._host.ground.scheduler.clock.after(self._takes_s(), self._step, lane)
            return

        def work() -> None:
            while True:
                if takes_s := self._takes_s():
                    self._host.ground.scheduler.sleep(takes_s)
                if not lane.step():
                    break

        Thread(self._host.ground.scheduler, self._host, work, self._name, ends=self._ends).start()

    def _takes_s(self) -> float:
        return self._host.disk.takes_s() if self._waits else 0.0

    def _step(self, lane: Lane) -> None:
        host = self._host
        if host.killed:
            return
        if host.paused:
            host.later.append(partial(self._step, lane))
            return
        before = machine.drive(host)
        host.at_work += 1
        try:
            more = lane.step()
        except (Killed, Exception):
            if not host.killed:  # while it waited
                raise
            return
        finally:
            host.at_work -= 1
            machine.drive(before)
        if more:
            host.ground.scheduler.clock.after(self._takes_s(), self._step, lane)
        else:
            host.jobs.pop(lane, None)


class Host(machine.Machine, Station):
    """One life of a host; for its methods see ``Machine``."""

    syncs = False

    def __init__(self, ground: Ground, name: str, directory: Path, disk: Disk) -> None:
        machine.Machine.__init__(self)
        Station.__init__(self, ground, name)
        self.disk = disk
        self._ops = DiskOps(disk, self._syncing)
        self.jobs: dict[Lane, None] = {}  # what is slow and under way, where one thread does everything
        self.later: list[Callable[[], None]] = []  # what is done once it goes on
        self.at_work = 0  # such jobs under way just now
        self._holds: set[str] = set()  # why it stands still
        self._stalled_until = 0.0
        self.driver = self._scheduler = ground.scheduler
        self.killed = False
        self.rate = 1.0  # of its steady clock; set before anything is made here
        self._ahead = (0.0, 0.0, 0.0)  # its time of day before the world's: since when, seconds, and more by the second
        self.members: list[weakref.ref[Any]] = []
        self._directory = directory

    def selector(self) -> selectors.BaseSelector:
        return Selector(self.ground, host=self)

    def wakeup(self) -> machine.Wakeup:
        return cast(machine.Wakeup, _Wakeup(self.ground))

    def latch(self) -> machine.Latch:
        return _Event(self._scheduler)

    def event(self) -> machine.Event:
        return _Event(self._scheduler)

    def thread(self, target: Callable[[], object], name: str) -> threading.Thread:
        return Thread(self._scheduler, self, target, name)

    def pool(self, pool: Any) -> Any:
        return _Pool(self, pool.name)

    def stream(self, family: int) -> socket.socket:
        return new_stream(self)

    def listen(self, host: str, port: int, backlog: int) -> socket.socket:
        if not 0 <= port < 65_536:
            raise OverflowError
        return new_listener(self, port)

    def look_up(self, host: str, port: int) -> list[machine.Target]:
        return [(socket.AF_INET, ("127.0.0.1", port))]  # every name is this machine: the port says who is meant

    def zeromq(self, kind: int, sockets_max: int) -> zmq.Socket[bytes]:
        return cast("zmq.Socket[bytes]", KINDS[kind](self))

    def admitting(self, admit: machine.Admit, look: Callable[[], None]) -> zmq.Context[zmq.Socket[bytes]]:
        self.admit = admit
        self._look(look)
        return cast("zmq.Context[zmq.Socket[bytes]]", Context(self))

    def _look(self, look: Callable[[], None]) -> None:
        """Call something each second, while the host runs."""
        if self.killed:
            return
        if self.paused:
            self.later.append(partial(self._look, look))
            return
        before = machine.drive(self)
        try:
            look()
        finally:
            machine.drive(before)
        self._scheduler.clock.after(machine.LOOK_S, self._look, look)

    def ends(self, descriptor: int) -> Any:
        found = self.ground.net.shaken.get(descriptor)
        return None if found is None else (("127.0.0.1", descriptor), ("127.0.0.1", int(found.port)))

    def shut_down(self, descriptor: int) -> bool:
        found = self.ground.net.shaken.get(descriptor)
        if found is not None:
            found.break_()
        return found is not None

    def cut(self, ports: set[int]) -> None:
        for each in list(self.ground.net.shaken.values()):
            if each.listener.host is self and int(each.port) in ports:
                each.break_()

    def data_path(self) -> Path:
        return self._directory

    def files(self, system: T) -> T:
        return cast(T, self._ops)

    def ahead_ns(self, now: float) -> int:
        """Return how far its time of day is ahead of the world's."""
        since, seconds, drift = self._ahead
        return round((seconds + drift * (now - since)) * 1e9)

    def set_clock(self, seconds: float, drift: float) -> None:
        self._ahead = self._scheduler.clock.now, seconds, drift

    # -- what befalls it ----------------------------------------------------------------------------------

    def hold(self, why: str) -> None:
        self._holds.add(why)
        self.paused = True
        for each in self.sockets:
            each.stalled_until = math.inf

    def go_on(self, why: str) -> None:
        self._holds.discard(why)
        if self._holds or not self.paused or self.killed:
            return
        self.paused = False
        for each in self.sockets:
            each.stalled_until = 0.0
        self.ground.net.unstick()
        for side in list(self.ground.streams.sides):
            if getattr(side.host, "host", None) is self:
                side.resume()
                side.write()
        later, self.later = self.later, []
        for call in later:
            call()

    def _syncing(self) -> None:
        """Make everything that this thread drives wait for a sync outside of the disk's threads."""
        thread = threading.current_thread()
        if not self.disk.slow_s or self.at_work or (isinstance(thread, Thread) and thread.ends):
            return
        clock = self._scheduler.clock
        self._stalled_until = max(self._stalled_until, clock.now) + self.disk.takes_s()
        self.hold(WAITS_FOR_DISK)
        clock.at(self._stalled_until, self._synced, self._stalled_until)

    def _synced(self, until: float) -> None:
        if until == self._stalled_until:
            self.go_on(WAITS_FOR_DISK)

    def tear(self) -> None:
        """Kill the process in the midst of its disk's jobs, where one thread does everything."""
        for lane in self.jobs:
            if lane.pending and self.ground.rng.random() < 0.5:
                self._ops.changes_left = self.ground.rng.randint(0, TORN_MAX)
                with suppress(Killed, Exception):
                    lane.try_next()
                break  # it dies once
        self.jobs.clear()
        self.later.clear()

    def leave(self) -> None:
        self._ops.leave()

    def owns(self, member: object) -> None:
        self.members.append(weakref.ref(member))


class _Executor(ThreadPoolExecutor):
    """The executor for slow calls of a loop: a new thread for each, which goes on when it is its turn."""

    def __init__(self, start: Start) -> None:
        super().__init__(1)
        self._start = start

    def submit(self, call: Callable[..., Any], /, *args: Any, **options: Any) -> Future[Any]:
        return self._start(call, *args, **options)


@contextmanager
def _on_the_clock(loop: Any, ground: Ground, start: Start) -> Iterator[None]:
    """Let a loop wait on the world's clock."""
    selector, executor = loop._selector, loop._default_executor
    host = cast(Host, machine.current())
    loop._selector = waiting = Selector(ground, selector, lambda: bool(loop._ready), host=host)
    loop.time = ground.scheduler.monotonic
    loop._default_executor = _Executor(start)
    try:
        yield
    finally:
        loop._selector, loop._default_executor = selector, executor
        del loop.time
        waiting.leave()


def run_forever(ground: Ground, start: Start) -> Callable[[asyncio.BaseEventLoop], None]:
    """Return the ``BaseEventLoop.run_forever`` of a world."""
    real = asyncio.BaseEventLoop.run_forever

    def run(loop: asyncio.BaseEventLoop) -> None:
        if ground.scheduler.is_outside() or not isinstance(loop, asyncio.SelectorEventLoop):
            return real(loop)
        with _on_the_clock(loop, ground, start):
            return real(loop)

    return run
