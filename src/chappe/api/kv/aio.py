"""Data stores for asyncio: writing and waiting are coroutines that do not block the event loop."""

from __future__ import annotations

import asyncio
from typing import Any

from chappe.api.faces import AsyncCloseable, Seconds, Steps, T, awaited, run_async
from chappe.api.kv.attached import WAIT_S
from chappe.api.kv.data_store import DataStore
from chappe.api.kv.proxy import DataStoreProxy
from chappe.api.kv.reading import ReadableStore
from chappe.api.kv.watch import DataStoreEvent
from chappe.api.mesh.loop_watch import AsyncSource, Watch


class AsyncDataStore(AsyncCloseable, ReadableStore):
    """``DataStore`` for asyncio, made by ``AsyncEndpoint.attach_master`` and ``attach_clone``.

    Writing, ``history``, ``await_idle`` and ``close`` are coroutines; reading does not wait. A ``proxy`` never blocks:
    await its ``receive``.
    """

    def __init__(self, store: DataStore, watch: Watch) -> None:
        super().__init__(store.attached)
        self.store = store
        self._watch = watch

    async def put(
        self, key: object, value: object, *, expiry_s: Seconds = None, wait: bool = True, timeout: Seconds = WAIT_S
    ) -> None:
        await self._write(self.core.put, (key, value), expiry_s, wait, timeout)

    put_unique = awaited(DataStore.put_unique)
    put_many = awaited(DataStore.put_many)
    put_if = awaited(DataStore.put_if)
    erase_if = awaited(DataStore.erase_if)
    increment = awaited(DataStore.increment)
    decrement = awaited(DataStore.decrement)
    append = awaited(DataStore.append)
    insert_into = awaited(DataStore.insert_into)
    remove_from = awaited(DataStore.remove_from)
    push = awaited(DataStore.push)
    pop = awaited(DataStore.pop)
    erase = awaited(DataStore.erase)
    clear = awaited(DataStore.clear)
    history = awaited(DataStore.history)

    async def _run(self, steps: Steps[T]) -> T:
        return await run_async(steps, self._watch.wait)

    async def await_idle(self, timeout: float | None = WAIT_S) -> bool:
        asked = self.attached.begin_await_idle(timeout)
        await self._watch.wait(asked.done)
        return self.attached.idle_outcome(asked)

    def watch(self, **options: Any) -> AsyncDataStoreWatch:
        return AsyncDataStoreWatch(self.store.watch(**options), self._watch)

    def proxy(self) -> DataStoreProxy:
        return self.store.proxy()

    async def close(self) -> None:
        await asyncio.to_thread(self.store.close)


class AsyncDataStoreWatch(AsyncSource[DataStoreEvent]):
    """``DataStoreWatch`` for asyncio: ``async for event in watch``, or ``await watch.get()``."""
