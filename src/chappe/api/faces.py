"""Common parts of the faces that users hold, blocking and asyncio."""

from __future__ import annotations

import threading
import weakref
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Generator
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Self, TypeVar, cast

from chappe.errors import UsageError

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

T = TypeVar("T")
Seconds = float | None  # of a timeout: None is for ever
# What one face waits for in a thread and the other in an event loop, one step after the other: until something is so,
# at most so long; None lets others have a turn. Each wait returns whether it is so.
Steps = Generator[tuple[Callable[[], bool], Seconds] | None, bool, T]
P = ParamSpec("P")
R = TypeVar("R")


class Closeable(ABC):
    """A context that closes at its end."""

    @abstractmethod
    def close(self) -> None:
        """Leave; each class says what that means."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class AsyncCloseable(ABC):
    """An asynchronous context that closes at its end."""

    @abstractmethod
    async def close(self) -> None:
        """Leave, without blocking the event loop."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


def weakly(method: Callable[P, None]) -> Callable[P, None]:
    """Return a function that calls a bound method while its object lives, and does not keep it alive."""
    find = weakref.WeakMethod(method)

    def call(*args: P.args, **options: P.kwargs) -> None:
        found = find()
        if found is not None:
            found(*args, **options)

    return call


def happened(events: deque[object], check: Callable[[], None]) -> list[object]:
    """Take the events since the last call; if there are none, ``check`` raises for a member that has stopped.

    It takes no lock, which may be held while a disk syncs: event loops ask, too.
    """
    found: list[object] = []
    with suppress(IndexError):  # somebody else asks at the same time
        for _ in range(len(events)):
            found.append(events.popleft())
    if not found:
        check()
    return found


def own_loop(loop: AbstractEventLoop | None, what: str) -> AbstractEventLoop:
    """Return the running event loop. Raises UsageError if ``what`` belongs to another one."""
    import asyncio  # takes a tenth of the time that a command needs to start

    try:
        running = asyncio.get_running_loop()
    except RuntimeError:
        raise UsageError(f"an {what} is made where an event loop runs: inside of a coroutine") from None
    if loop is not None and loop is not running:
        raise UsageError(f"this {what} belongs to another event loop: make one in each loop, and close it there")
    return running


async def made_in_thread(make: Callable[[], T], unmake: Callable[[T], object]) -> T:
    """Call ``make`` in a thread; on cancellation pass its result to ``unmake``, in a thread too."""
    import asyncio

    guard = threading.Lock()
    made: list[T] = []
    cancelled = False

    def work() -> T:
        found = make()
        with guard:
            made.append(found)
            wanted = not cancelled
        if not wanted:
            unmake(found)
        return found

    try:
        return await asyncio.to_thread(work)
    except asyncio.CancelledError:
        with guard:
            cancelled = True
            left = [*made]
        for each in left:
            await asyncio.to_thread(unmake, each)
        raise


def awaited(method: Callable[Concatenate[Any, P], R]) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, R]]:
    """Make a method of a blocking face one of the asyncio face.

    It is the same function: it returns the result of the face's own ``_run``, which waits there, and is a coroutine
    here.
    """
    return cast(Callable[Concatenate[Any, P], Coroutine[Any, Any, R]], method)


def run(steps: Steps[T], wait: Callable[[Callable[[], bool], Seconds], bool]) -> T:
    """Wait for all steps in this thread; return their result."""
    try:
        step = next(steps)
        while True:
            step = steps.send(step is None or wait(*step))
    except StopIteration as end:
        found: T = end.value
        return found
    except BaseException:  # Ctrl-C
        steps.close()
        raise


async def run_async(steps: Steps[T], wait: Callable[[Callable[[], bool], Seconds], Awaitable[bool]]) -> T:
    """Wait for all steps in an event loop; return their result."""
    import asyncio  # takes a tenth of the time that a command needs to start

    try:
        step = next(steps)
        while True:
            step = steps.send(await (asyncio.sleep(0, True) if step is None else wait(*step)))
    except StopIteration as end:
        found: T = end.value
        return found
    except BaseException:  # a cancellation
        steps.close()
        raise
