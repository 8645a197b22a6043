"""Data stores for asyncio: reading is as it is, writing and waiting are coroutines that do not block the event loop."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self

from chappe.api.asked import Asked
from chappe.api.attaching import attach_master, begin_clone, take_ready
from chappe.api.data_store import MISSING, WAIT_S, DataStore, Method, chunks, number_tag
from chappe.api.store_proxy import StoreProxy
from chappe.api.store_watch import StoreEntry, StoreEvent, StoreWatch
from chappe.data.order import SET, STRING, TABLE, VECTOR
from chappe.errors import BufferFull
from chappe.stores.entity import Entity

if TYPE_CHECKING:
    from chappe.api.mesh_aio import AsyncEndpoint, Watch


class AsyncDataStore:
    """As ``DataStore``; made by ``AsyncEndpoint.attach_master`` and ``attach_clone``. See there for each method."""

    def __init__(self, store: DataStore, watch: Watch) -> None:
        self.store = store
        self._watch = watch

    # -- what it is, and reading ----------------------------------------------------------------------

    @property
    def name(self) -> str:
        """Of the store."""
        return self.store.name

    @property
    def role(self) -> Literal["master", "clone"]:
        """``master`` or ``clone``."""
        return self.store.role

    @property
    def entity(self) -> Entity:
        """See ``DataStore.entity``."""
        return self.store.entity

    @property
    def ready(self) -> bool:
        """See ``DataStore.ready``."""
        return self.store.ready

    @property
    def version(self) -> int:
        """See ``DataStore.version``."""
        return self.store.version

    def get(self, key: object, default: Any = None) -> Any:
        """See ``DataStore.get``."""
        return self.store.get(key, default)

    def get_index_from_value(self, key: object, index: object, default: Any = None) -> Any:
        """See ``DataStore.get_index_from_value``."""
        return self.store.get_index_from_value(key, index, default)

    def exists(self, key: object) -> bool:
        """See ``DataStore.exists``."""
        return self.store.exists(key)

    def keys(self) -> list[Any]:
        """See ``DataStore.keys``."""
        return self.store.keys()

    def items(self) -> list[tuple[Any, Any]]:
        """See ``DataStore.items``."""
        return self.store.items()

    def snapshot(self) -> list[StoreEntry]:
        """See ``DataStore.snapshot``."""
        return self.store.snapshot()

    def changes_since(self, version: int) -> list[StoreEvent] | None:
        """See ``DataStore.changes_since``."""
        return self.store.changes_since(version)

    def __getitem__(self, key: object) -> Any:
        return self.store[key]

    def __contains__(self, key: object) -> bool:
        return key in self.store

    def __len__(self) -> int:
        return len(self.store)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.store)

    def __bool__(self) -> bool:
        return True

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
        await self._write(self.store.core.put, (key, value), expiry_s, wait, timeout)

    async def put_unique(
        self, key: object, value: object, *, expiry_s: float | None = None, timeout: float | None = WAIT_S
    ) -> bool:
        """See ``DataStore.put_unique``."""
        return await self._write(self.store.core.put_unique, (key, value), expiry_s, True, timeout) is True

    async def put_many(
        self,
        items: Mapping[Any, Any] | Iterable[tuple[object, object]],
        *,
        expiry_s: float | None = None,
        timeout: float | None = None,
    ) -> None:
        """See ``DataStore.put_many``."""
        deadline = _deadline(timeout)
        asked: list[Asked] = []
        failed: list[Exception] = []
        for chunk in chunks(items):
            left = chunk
            while left:
                taken, problem = self.store.try_put_many(left, expiry_s, asked)
                left = left[taken:]
                if isinstance(problem, BufferFull):
                    await self._wait_for_room(deadline)
                elif problem is not None:
                    failed.append(problem)
                    left = left[1:]
            await asyncio.sleep(0)
        for each in asked:
            try:
                await self._outcome(each, _left(deadline))
            except Exception as problem:
                failed.append(problem)
        if failed:
            raise failed[0]

    async def increment(
        self,
        key: object,
        by: object = 1,
        *,
        expiry_s: float | None = None,
        wait: bool = True,
        timeout: float | None = WAIT_S,
    ) -> None:
        """See ``DataStore.increment``."""
        await self._write(self.store.core.add, (key, by, number_tag(by)), expiry_s, wait, timeout)

    async def decrement(
        self,
        key: object,
        by: object = 1,
        *,
        expiry_s: float | None = None,
        wait: bool = True,
        timeout: float | None = WAIT_S,
    ) -> None:
        """See ``DataStore.decrement``."""
        await self._write(self.store.core.subtract, (key, by), expiry_s, wait, timeout)

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
        await self._write(self.store.core.add, (key, text, STRING), expiry_s, wait, timeout)

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
        args = (key, index, SET) if value is MISSING else (key, (index, value), TABLE)
        await self._write(self.store.core.add, args, expiry_s, wait, timeout)

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
        await self._write(self.store.core.subtract, (key, index), expiry_s, wait, timeout)

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
        await self._write(self.store.core.add, (key, value, VECTOR), expiry_s, wait, timeout)

    async def pop(
        self, key: object, *, expiry_s: float | None = None, wait: bool = True, timeout: float | None = WAIT_S
    ) -> None:
        """See ``DataStore.pop``."""
        await self._write(self.store.core.subtract, (key, key), expiry_s, wait, timeout)

    async def erase(self, key: object, *, wait: bool = True, timeout: float | None = WAIT_S) -> None:
        """See ``DataStore.erase``."""
        await self._write(self.store.core.erase, (key,), None, wait, timeout)

    async def clear(self, *, wait: bool = True, timeout: float | None = WAIT_S) -> None:
        """See ``DataStore.clear``."""
        await self._write(self.store.core.clear, (), None, wait, timeout)

    # -- waiting and watching -------------------------------------------------------------------------

    async def await_idle(self, timeout: float | None = WAIT_S) -> bool:
        """See ``DataStore.await_idle``."""
        asked = self.store.begin_await_idle(timeout)
        await self._watch.wait(asked.done)
        return self.store.idle_outcome(asked)

    def watch(self, **options: Any) -> AsyncStoreWatch:
        """See ``DataStore.watch``."""
        return AsyncStoreWatch(self.store.watch(**options), self._watch)

    def proxy(self) -> StoreProxy:
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

    async def _write(
        self, method: Method, args: tuple[object, ...], expiry_s: float | None, wait: bool, timeout: float | None
    ) -> Any:
        deadline: float | None = None
        while True:
            try:
                asked = self.store.try_write(method, args, expiry_s, wait)
                return None if asked is None else await self._outcome(asked, timeout)
            except BufferFull:
                deadline = _deadline(timeout) if deadline is None else deadline
                await self._wait_for_room(deadline)

    async def _wait_for_room(self, deadline: float) -> None:
        if not await self._watch.wait(self.store.room, _left(deadline)):
            self.store.no_room()

    async def _outcome(self, asked: Asked, timeout: float | None) -> Any:
        await self._watch.wait(asked.done, timeout)
        return asked.take(self.store.too_late())


class AsyncStoreWatch:
    """As ``StoreWatch``: ``async for event in watch``, or ``await watch.get()``."""

    def __init__(self, source: StoreWatch, watch: Watch) -> None:
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

    async def get(self, timeout: float | None = None) -> StoreEvent | None:
        """See ``StoreWatch.get``."""
        found = await self.get_many(1, timeout)
        return found[0] if found else None

    async def get_many(self, n: int, timeout: float | None = None) -> list[StoreEvent]:
        """See ``StoreWatch.get_many``."""
        while True:
            ready = self.source.available > 0 or await self._watch.wait(self.source.ready, timeout)
            found = self.source.get_many(n, 0.0)
            if found or not ready:
                return found

    async def __aiter__(self) -> AsyncIterator[StoreEvent]:
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
    endpoint: AsyncEndpoint, watch: Watch, name: str, backend: str, options: dict[str, Any]
) -> AsyncDataStore:
    """See ``Endpoint.attach_master``; the files are opened in a thread."""
    return AsyncDataStore(await asyncio.to_thread(attach_master, endpoint.endpoint, name, backend, options), watch)


async def attach_clone_aio(
    endpoint: AsyncEndpoint,
    watch: Watch,
    name: str,
    resync_s: float,
    stale_s: float,
    buffer_s: float,
    timeout: float | None,
) -> AsyncDataStore:
    """See ``Endpoint.attach_clone``."""
    made = begin_clone(endpoint.endpoint, name, resync_s, stale_s, buffer_s)
    if timeout != 0:
        try:
            asked = made.begin_await_ready()
            await watch.wait(asked.done, timeout)
            take_ready(made, asked, timeout)
        except BaseException:  # a cancellation too
            await asyncio.to_thread(made.close)
            raise
    return AsyncDataStore(made, watch)


def _deadline(timeout: float | None) -> float:
    return math.inf if timeout is None else time.monotonic() + timeout


def _left(deadline: float) -> float | None:
    return None if deadline == math.inf else max(0.0, deadline - time.monotonic())
