"""The machines that members of a test run on: each host of a world is one. And event loops on the world's clock."""

from __future__ import annotations

import asyncio
import selectors
import socket
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from chappe.runtime.worker import CALLBACKS
from chappe.system import machine
from chappe.testing.ground import FIRST_FILE, File, Ground, Station
from chappe.testing.pubsub import KINDS
from chappe.testing.scheduler import Scheduler, Thread
from chappe.testing.streams import new_listener, new_stream

Start = Callable[..., Future[Any]]  # calls a function with arguments, by a thread of this thread's host

if TYPE_CHECKING:
    import zmq

    from chappe.runtime.worker import Lane


class Selector(selectors.BaseSelector, File):
    """Waits for files, and is one itself: readable while one of its files is ready. For its methods see ``selectors``.

    Args:
        real: Of an event loop: waits for descriptors of the system.
        called: Of an event loop: true if it has callbacks to run. Its thread does the work of others while it waits,
            and what it is told then does not wake it as what another thread tells.
    """

    def __init__(
        self,
        ground: Ground,
        real: selectors.BaseSelector | None = None,
        called: Callable[[], bool] = lambda: False,
    ) -> None:
        File.__init__(self, ground)
        self._real = real
        self._called = called
        self._keys: dict[int, tuple[selectors.SelectorKey, File]] = {}

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        number = fileobj if isinstance(fileobj, int) else fileobj.fileno()
        if self._real is not None and number < FIRST_FILE:
            return self._real.register(fileobj, events, data)
        key = selectors.SelectorKey(fileobj, number, events, data)
        self._keys[number] = key, self.ground.files[number]
        return key

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        for number, (key, _) in self._keys.items():
            if fileobj in (number, key.fileobj):
                del self._keys[number]
                return key
        if self._real is None:
            raise KeyError(fileobj)
        return self._real.unregister(fileobj)

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        real = {} if self._real is None else {key.fd: key for key in (self._real.get_map() or {}).values()}
        return {**real, **{number: key for number, (key, _) in self._keys.items()}}

    def mask(self) -> int:
        """Whether one is ready."""
        return selectors.EVENT_READ if self._is_ready() else 0

    def _is_ready(self) -> bool:
        ready = any(file.mask() & key.events for key, file in list(self._keys.values()))
        return ready or self._called() or (self._real is not None and bool(self._real.select(0)))

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Those that are ready, after waiting for one on the world's clock."""
        if timeout is None or timeout > 0:
            self.ground.scheduler.wait(self._is_ready, timeout)
        elif self._real is not None:
            self.ground.scheduler.run_now()  # an event loop that never waits lets others go on
        found = [] if self._real is None else self._real.select(0)
        for key, file in list(self._keys.values()):
            if mask := file.mask() & key.events:
                found.append((key, mask))
                file.readable = file.readable and not file.tells_once
        return found

    def leave(self) -> None:
        """Forget all that are of the world."""
        self.ground.files.pop(self.number, None)

    def close(self) -> None:
        self.leave()
        if self._real is not None:
            self._real.close()


class _Wakeup(File):
    """As ``machine.Wakeup``."""

    def set(self) -> None:
        self.readable = True

    def clear(self) -> None:
        self.readable = False

    def close(self) -> None:
        self.ground.files.pop(self.number, None)


class _Event:
    """As ``threading.Event``, and as a ``machine.Latch``."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._set = False

    def is_set(self) -> bool:
        return self._set

    def set(self) -> None:
        self._set = True

    release = set

    def wait(self, timeout: float | None = None) -> bool:
        return self._scheduler.wait(self.is_set, timeout)

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        return self.wait(None if timeout < 0 else timeout)


class _Pool:
    """As ``runtime.worker.Pool``: each job has a new thread, which goes on when it is its turn."""

    def __init__(self, host: Host, name: str) -> None:
        self._host = host
        self._name = name
        self._ends = name != CALLBACKS.name

    def open(self, lane: Lane) -> None:
        pass

    close = open

    def help(self) -> None:
        pass

    def submit(self, lane: Lane) -> None:
        def work() -> None:
            while lane.step():
                pass

        Thread(self._host.ground.scheduler, self._host, work, self._name, ends=self._ends).start()


class Host(machine.Machine, Station):
    """One life of a host; for its methods see ``Machine``."""

    syncs = False

    def __init__(self, ground: Ground, name: str, directory: Path) -> None:
        super().__init__(ground, name)
        self.driver = self._scheduler = ground.scheduler
        self.killed = False
        self.ahead_ns = 0  # its time of day, of the world's
        self.members: list[weakref.ref[Any]] = []
        self._directory = directory

    def selector(self) -> selectors.BaseSelector:
        return Selector(self.ground)

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

    def data_path(self) -> Path:
        return self._directory

    def owns(self, member: object) -> None:
        self.members.append(weakref.ref(member))


class _Executor(ThreadPoolExecutor):
    """What a loop has slow calls made by: a new thread for each, which goes on when it is its turn."""

    def __init__(self, start: Start) -> None:
        super().__init__(1)
        self._start = start

    def submit(self, call: Callable[..., Any], /, *args: Any, **options: Any) -> Future[Any]:
        return self._start(call, *args, **options)


@contextmanager
def _on_the_clock(loop: Any, ground: Ground, start: Start) -> Iterator[None]:
    """Have a loop wait on the world's clock."""
    selector, executor = loop._selector, loop._default_executor
    loop._selector = waiting = Selector(ground, selector, lambda: bool(loop._ready))
    loop.time = ground.scheduler.monotonic
    loop._default_executor = _Executor(start)
    try:
        yield
    finally:
        loop._selector, loop._default_executor = selector, executor
        del loop.time
        waiting.leave()


def run_forever(ground: Ground, start: Start) -> Callable[[asyncio.BaseEventLoop], None]:
    """What ``BaseEventLoop.run_forever`` is in a world."""
    real = asyncio.BaseEventLoop.run_forever

    def run(loop: asyncio.BaseEventLoop) -> None:
        if ground.scheduler.is_outside() or not isinstance(loop, asyncio.SelectorEventLoop):
            return real(loop)
        with _on_the_clock(loop, ground, start):
            return real(loop)

    return run
