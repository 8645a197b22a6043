"""Shared maps for asyncio: writing and waiting are coroutines that do not block the event loop."""

from __future__ import annotations

import asyncio
from typing import Any, Generic, Literal, Unpack, overload

from chappe.api.faces import AsyncCloseable, Steps, T, awaited, run_async
from chappe.api.kv.map_member import MapMember
from chappe.api.kv.map_values import MapChange, MapOptions, V
from chappe.api.kv.shared_map import ReadableMap, SharedMap
from chappe.api.mesh.loop_watch import AsyncSource, Watch
from chappe.defaults import SUBSCRIBER_MESSAGES_MAX
from chappe.system.forking import own


class AsyncSharedMap(AsyncCloseable, ReadableMap[V]):
    """``SharedMap`` for asyncio, made where a loop runs: ``async with AsyncSharedMap(...) as shared``.

    ``set``, ``delete``, ``set_many``, ``step``, ``compare_and_set``, ``wait_for``, ``wait_ready`` and ``close`` are
    coroutines; a new map is ready when ``async with`` begins, or after ``wait_ready``.
    """

    @overload
    def __init__(self: AsyncSharedMap[bytes], *servers: str, **options: Unpack[MapOptions]) -> None: ...
    @overload
    def __init__(
        self: AsyncSharedMap[Any], *servers: str, values: Literal["json"], **options: Unpack[MapOptions]
    ) -> None: ...
    @overload
    def __init__(self, *servers: str, values: type[V], **options: Unpack[MapOptions]) -> None: ...
    def __init__(self, *servers: str, values: Any = bytes, **options: Unpack[MapOptions]) -> None:
        own(self)
        self.member = MapMember(servers, values, **options)
        self._watch = Watch(self.member.driver.turns, "AsyncSharedMap")

    async def __aenter__(self) -> AsyncSharedMap[V]:
        try:
            await self.wait_ready()
        except BaseException:  # a cancellation too
            await self.close()
            raise
        return self

    set = awaited(SharedMap.set)
    delete = awaited(SharedMap.delete)
    set_many = awaited(SharedMap.set_many)
    step = awaited(SharedMap.step)
    compare_and_set = awaited(SharedMap.compare_and_set)
    wait_for = awaited(SharedMap.wait_for)
    wait_ready = awaited(SharedMap.wait_ready)

    def get(self, key: str, default: Any = None) -> Any:
        entry = self.member.find(key)
        return default if entry is None else self.member.body(entry)

    def watch(
        self,
        *,
        key: str | None = None,
        prefix: str | None = None,
        on_full: Literal["drop_oldest", "disconnect"] = "drop_oldest",
        messages_max: int = SUBSCRIBER_MESSAGES_MAX,
    ) -> AsyncMapWatch[V]:
        return AsyncMapWatch(self.member.watch(key, prefix, messages_max, on_full), self._watch)

    async def close(self) -> None:
        self._watch.unread()
        await asyncio.to_thread(self.member.leave)
        self._watch.leave()

    def __repr__(self) -> str:
        return f"<AsyncSharedMap of {', '.join(self.member.core.servers)}, {self.state}, {len(self):,} keys>"

    async def _run(self, steps: Steps[T]) -> T:
        return await run_async(steps, self._watch.wait)


class AsyncMapWatch(AsyncSource[MapChange[V]], Generic[V]):
    """``MapWatch`` for asyncio: ``async for change in watch``, or ``await watch.get()``."""
