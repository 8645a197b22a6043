"""Data stores for asyncio: reading is as it is, writing and waiting are coroutines that do not block the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from chappe.api.kv import writes
from chappe.api.kv.attached import Write
from chappe.api.kv.attaching import attach_master, begin_clone, take_ready
from chappe.api.kv.data_store import DataStore
from chappe.api.kv.proxy import DataStoreProxy
from chappe.api.kv.reading import ReadableStore
from chappe.api.kv.watch import DataStoreEvent, DataStoreWatch
from chappe.api.kv.writes import WAIT_S, ManyPuts
from chappe.api.mesh.arguments import MISSING
from chappe.api.mesh.questions import Asked
from chappe.api.mesh.waiting import deadline_after, time_left
from chappe.errors import BufferFull
from chappe.system.forking import own

if TYPE_CHECKING:
    from chappe.api.mesh.hosting import Host
    from chappe.api.mesh.loop_watch import Watch


class AsyncDataStore(ReadableStore):
    """As ``DataStore``; made by ``AsyncEndpoint.attach_master`` and ``attach_clone``. See there for each method."""

    def __init__(self, store: DataStore, watch: Watch) -> None:
        super().__init__(store.attached)
        self.store = store
        self._watch = watch

    # -- writing --------------------------------------------------------------------------------------

    async def put(
        self,
        key: object,
        value: object,
        *,
        expiry_s: float | None = None,
        wait: bool = True,
        timeout: float | None = WAIT_S,
    ) -> None:
        """See ``DataStore.put``."""
        await self._write(writes.put(self.core, key, value), expiry_s, wait, timeout)

    async def put_unique(
        self, key: object, value: object, *, expiry_s: float | None = None, timeout: float | None = WAIT_S
    ) -> bool:
        """See ``DataStore.put_unique``."""
        return await self._write(writes.put_unique(self.core, key, value), expiry_s, True, timeout) is True

    async def put_many(
        self,
        items: Mapping[Any, Any] | Iterable[tuple[object, object]],
        *,
        expiry_s: float | None = None,
        timeout: float | None = None,
    ) -> None:
        """See ``DataStore.put_many``."""
        deadline = deadline_after(timeout)
        puts = ManyPuts(self.attached, items, expiry_s)
        for full in puts.make():
            if full:
                await self._wait_for_room(deadline)
            else:
                await asyncio.sleep(0)
        for each in puts.asked:
            try:
                await self._outcome(each, time_left(deadline))
            except Exception as problem:
                puts.failed.append(problem)
        puts.check()

    async def increment(
        self,
        key: object,
        by: object = 1,
        *,
        expiry_s: float | None = None,
        wait: bool = True,
        timeout: float | None = WAIT_S,
    ) -> Any:
        """See ``DataStore.increment``."""
        return await self._change(writes.increment(self.core, key, by), expiry_s, wait, timeout)

    async def decrement(
        self,
        key: object,
        by: object = 1,
        *,
        expiry_s: float | None = None,
        wait: bool = True,
        timeout: float | None = WAIT_S,
    ) -> Any:
        """See ``DataStore.decrement``."""
        return await self._change(writes.decrement(self.core, key, by), expiry_s, wait, timeout)

    async def append(
        self,
        key: object,
        text: str | bytes,
        *,
        expiry_s: float | None = None,
        wait: bool = True,
        timeout: float | None = WAIT_S,
    ) -> None:
        """See ``DataStore.append``."""
        await self._write(writes.append(self.core, key, text), expiry_s, wait, timeout)

    async def insert_into(
        self,
        key: object,
        index: object,
        value: object = MISSING,
        *,
        expiry_s: float | None = None,
        wait: bool = True,
        timeout: float | None = WAIT_S,
    ) -> None:
        """See ``DataStore.insert_into``."""
        await self._write(writes.insert_into(self.core, key, index, value), expiry_s, wait, timeout)

    async def remove_from(
        self,
        key: object,
        index: object,
        *,
        expiry_s: float | None = None,
        wait: bool = True,
        timeout: float | None = WAIT_S,
    ) -> None:
        """See ``DataStore.remove_from``."""
        await self._write(writes.remove_from(self.core, key, index), expiry_s, wait, timeout)

    async def push(
        self,
        key: object,
        value: object,
        *,
        expiry_s: float | None = None,
        wait: bool = True,
        timeout: float | None = WAIT_S,
    ) -> None:
        """See ``DataStore.push``."""
        await self._write(writes.push(self.core, key, value), expiry_s, wait, timeout)

    async def pop(
        self, key: object, *, expiry_s: float | None = None, wait: bool = True, timeout: float | None = WAIT_S
    ) -> None:
        """See ``DataStore.pop``."""
        await self._write(writes.pop(self.core, key), expiry_s, wait, timeout)

    async def erase(self, key: object, *, wait: bool = True, timeout: float | None = WAIT_S) -> None:
        """See ``DataStore.erase``."""
        await self._write(writes.erase(self.core, key), None, wait, timeout)

    async def clear(self, *, wait: bool = True, timeout: float | None = WAIT_S) -> None:
        """See ``DataStore.clear``."""
        await self._write(writes.clear(self.core), None, wait, timeout)

    # -- waiting and watching -------------------------------------------------------------------------

    async def await_idle(self, timeout: float | None = WAIT_S) -> bool:
        """See ``DataStore.await_idle``."""
        asked = self.attached.begin_await_idle(timeout)
        await self._watch.wait(asked.done)
        return self.attached.idle_outcome(asked)

    def watch(self, **options: Any) -> AsyncDataStoreWatch:
        """See ``DataStore.watch``."""
        return AsyncDataStoreWatch(self.store.watch(**options), self._watch)

    def proxy(self) -> DataStoreProxy:
        """See ``DataStore.proxy``: asking never blocks; await ``receive`` of this object for the answers."""
        return self.store.proxy()

    # -- the end --------------------------------------------------------------------------------------

    async def close(self) -> None:
        """See ``DataStore.close``."""
        await asyncio.to_thread(self.store.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    # -- inside ---------------------------------------------------------------------------------------

    async def _write(self, write: Write, expiry_s: float | None, wait: bool, timeout: float | None) -> Any:
        asked = await self._begin(write, expiry_s, wait, timeout)
        return None if asked is None else await self._outcome(asked, timeout)

    async def _change(self, write: Write, expiry_s: float | None, wait: bool, timeout: float | None) -> Any:
        found: list[Any] = []
        asked = await self._begin(write, expiry_s, wait, timeout, found)
        if asked is not None:
            await self._outcome(asked, timeout)
        return found[0] if found and (wait or self.attached.immediate) else None

    async def _begin(
        self,
        write: Write,
        expiry_s: float | None,
        wait: bool,
        timeout: float | None,
        found: list[Any] | None = None,
    ) -> Asked | None:
        deadline: float | None = None
        while True:
            try:
                return self.attached.try_write(write, expiry_s, wait, found)
            except BufferFull:
                deadline = deadline_after(timeout) if deadline is None else deadline
                await self._wait_for_room(deadline)

    async def _wait_for_room(self, deadline: float) -> None:
        if not await self._watch.wait(self.attached.room, time_left(deadline)):
            self.attached.no_room()

    async def _outcome(self, asked: Asked, timeout: float | None) -> Any:
        await self._watch.wait(asked.done, timeout)
        return asked.take(self.attached.too_late)


class AsyncDataStoreWatch:
    """As ``DataStoreWatch``: ``async for event in watch``, or ``await watch.get()``."""

    def __init__(self, source: DataStoreWatch, watch: Watch) -> None:
        own(self)
        self.source = source
        self._watch = watch

    @property
    def available(self) -> int:
        """How many events are there."""
        return self.source.available

    @property
    def dropped(self) -> int:
        """How many events the policy has dropped."""
        return self.source.dropped

    async def get(self, timeout: float | None = None) -> DataStoreEvent | None:
        """See ``DataStoreWatch.get``."""
        found = await self.get_many(1, timeout)
        return found[0] if found else None

    async def get_many(self, n: int, timeout: float | None = None) -> list[DataStoreEvent]:
        """See ``DataStoreWatch.get_many``."""
        while True:
            ready = self.source.available > 0 or await self._watch.wait(self.source.ready, timeout)
            found = self.source.get_many(n, 0.0)
            if found or not ready:
                return found

    async def __aiter__(self) -> AsyncIterator[DataStoreEvent]:
        """Events one after the other, for ever."""
        while True:
            for event in await self.get_many(1):
                yield event

    async def close(self) -> None:
        """Watch no more."""
        await asyncio.to_thread(self.source.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


async def attach_master_aio(
    endpoint: Host, watch: Watch, name: str, backend: str, options: dict[str, Any]
) -> AsyncDataStore:
    """See ``Endpoint.attach_master``; the files are opened in a thread."""
    return AsyncDataStore(await asyncio.to_thread(attach_master, endpoint, name, backend, options), watch)


async def attach_clone_aio(
    endpoint: Host,
    watch: Watch,
    name: str,
    resync_s: float,
    stale_s: float,
    buffer_s: float,
    timeout: float | None,
) -> AsyncDataStore:
    """See ``Endpoint.attach_clone``."""
    made = begin_clone(endpoint, name, resync_s, stale_s, buffer_s)
    if timeout != 0:
        try:
            asked = made.begin_await_ready()
            await watch.wait(asked.done, timeout)
            take_ready(made, asked, timeout)
        except BaseException:  # a cancellation too
            await asyncio.to_thread(made.close)
            raise
    return AsyncDataStore(DataStore(made), watch)
