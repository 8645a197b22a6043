"""An event loop at an endpoint: it reads the sockets itself, and its coroutines wait for changes."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from typing import Generic

from chappe.api.faces import AsyncCloseable, Seconds, own_loop
from chappe.api.mesh.source import Item, Source
from chappe.runtime.turns import Turns
from chappe.system.forking import own


class Watch:
    """Lets coroutines of one event loop wait for conditions of a member; errors name ``what``, its asyncio face."""

    def __init__(self, turns: Turns, what: str) -> None:
        self._what = what
        self._loop = own_loop(None, what)
        self._thread = threading.get_ident()
        self._turns = turns
        self._waiters: dict[asyncio.Future[None], Callable[[], bool]] = {}  # changed by the loop's thread alone
        self._called = False  # the loop was asked from another thread to look
        self._descriptor: int | None = self._turns.watch(self._changed)
        self._loop.add_reader(self._descriptor, self._turns.serve)

    async def wait(self, until: Callable[[], bool], timeout: float | None = None) -> bool:
        """Wait until ``until()`` holds or ``timeout`` expires; return its value. Raises as ``check``."""
        self.check()
        turns = self._turns
        future = self._loop.create_future()
        with turns.lock:
            if until() or turns.closed or turns.halted is not None:
                return until()
            self._waiters[future] = until
        expiry = None if timeout is None else self._loop.call_later(timeout, _end, future)
        try:
            await future
        finally:
            self._waiters.pop(future, None)
            if expiry is not None:
                expiry.cancel()
        return until()

    def check(self) -> None:
        """Raise UsageError unless this watch's event loop is the running one."""
        own_loop(self._loop, self._what)

    def _changed(self) -> None:
        """Wake the loop for waiting coroutines; the lock is held."""
        if not self._waiters:
            return
        if threading.get_ident() == self._thread:
            self._look()
        elif not self._called:
            self._called = True
            try:
                self._loop.call_soon_threadsafe(self._look)
            except RuntimeError:
                pass  # the loop is closed: nobody waits

    def _look(self) -> None:
        with self._turns.lock:
            self._called = False
            ended = self._turns.closed or self._turns.halted is not None
            over = [future for future, until in self._waiters.items() if ended or until()]
        for future in over:
            del self._waiters[future]
            _end(future)

    def unread(self) -> None:
        """Stop reading in the loop; waiting coroutines still hear of changes."""
        if self._descriptor is not None:
            if not self._loop.is_closed():
                self._loop.remove_reader(self._descriptor)
            self._descriptor = None
            self._turns.unserve()

    def leave(self) -> None:
        """Stop reading in the loop, and hearing of changes."""
        self.unread()
        self._turns.unwatch(self._changed)


class AsyncSource(AsyncCloseable, Generic[Item]):
    """A ``Source`` for an event loop."""

    def __init__(self, source: Source[Item], watch: Watch) -> None:
        own(self)
        self.source = source
        self._watch = watch

    @property
    def available(self) -> int:
        return self.source.available

    @property
    def dropped(self) -> int:
        return self.source.dropped

    async def get(self, timeout: Seconds = None) -> Item | None:
        while True:
            ready = await self._ready(timeout)
            found = self.source.get(0.0)
            if found is not None or not ready:
                return found

    async def get_many(self, n: int, timeout: Seconds = None) -> list[Item]:
        while True:
            ready = await self._ready(timeout)
            found = self.source.get_many(n, 0.0)
            if found or not ready:
                return found

    async def _ready(self, timeout: Seconds) -> bool:
        self._watch.check()
        return self.source.available > 0 or await self._watch.wait(self.source.ready, timeout)

    async def __aiter__(self) -> AsyncIterator[Item]:
        """Iterate over items for ever."""
        while True:
            found = await self.get()
            assert found is not None
            yield found

    async def close(self) -> None:
        await asyncio.to_thread(self.source.close)


def _end(future: asyncio.Future[None]) -> None:
    if not future.done():  # or cancelled just now
        future.set_result(None)
