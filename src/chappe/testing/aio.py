"""Event loops on the clock of a test: every loop of asyncio that runs while a world is there waits by it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from chappe.testing.ground import Ground
from chappe.testing.machine import Selector

Start = Callable[..., Future[Any]]  # calls a function with arguments, by a thread of this thread's host


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
    loop._selector = waiting = Selector(ground, selector)
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
