"""Event loops on the clock of a test: every loop of asyncio that runs while a world is there waits by it."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from chappe.testing.ground import FIRST_FILE, Ground
from chappe.testing.machine import Selector

Start = Callable[..., Future[Any]]  # calls a function with arguments, by a thread of this thread's host


class _Selector(selectors.BaseSelector):
    """Waits for the world's files, and for the descriptors of the system that a loop has."""

    def __init__(self, ground: Ground, real: selectors.BaseSelector) -> None:
        self._scheduler = ground.scheduler
        self._real = real
        self.ours = Selector(ground)

    def _of(self, file: Any) -> selectors.BaseSelector:
        return self.ours if isinstance(file, int) and file >= FIRST_FILE else self._real

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        return self._of(fileobj).register(fileobj, events, data)

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return self._of(fileobj).unregister(fileobj)

    def modify(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        return self._of(fileobj).modify(fileobj, events, data)

    def get_key(self, fileobj: Any) -> selectors.SelectorKey:
        return self._of(fileobj).get_key(fileobj)

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return {**(self._real.get_map() or {}), **(self.ours.get_map() or {})}

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is not None and timeout <= 0:
            self._scheduler.run_now()
        else:
            self._scheduler.wait(lambda: bool(self._real.select(0) or self.ours.is_ready()), timeout)
        return self._real.select(0) + self.ours.select(0)


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
    loop._selector = waiting = _Selector(ground, selector)
    loop.time = ground.scheduler.monotonic
    loop._default_executor = _Executor(start)
    try:
        yield
    finally:
        loop._selector, loop._default_executor = selector, executor
        del loop.time
        waiting.ours.close()


def run_forever(ground: Ground, start: Start) -> Callable[[asyncio.BaseEventLoop], None]:
    """What ``BaseEventLoop.run_forever`` is in a world."""
    real = asyncio.BaseEventLoop.run_forever

    def run(loop: asyncio.BaseEventLoop) -> None:
        if ground.scheduler.is_outside() or not isinstance(loop, asyncio.SelectorEventLoop):
            return real(loop)
        with _on_the_clock(loop, ground, start):
            return real(loop)

    return run
