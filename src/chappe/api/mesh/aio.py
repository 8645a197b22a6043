"""The mesh for asyncio: nothing here blocks the event loop, and the loop itself reads the endpoint's sockets."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from inspect import isawaitable
from typing import TYPE_CHECKING, Any, overload
from uuid import UUID

from chappe.api.faces import AsyncCloseable, Seconds, made_in_thread, run_async
from chappe.api.kv.aio import AsyncDataStore
from chappe.api.kv.attaching import begin_clone, take_ready
from chappe.api.kv.data_store import DataStore
from chappe.api.mesh.arguments import as_id, check_retry, encode_topic, encode_value, topics_of
from chappe.api.mesh.asking import Answer, AsyncRequest, Responder, ask, respond_to
from chappe.api.mesh.endpoint import AWAIT_S, CLOSE_JOIN_S, RETRY_S, Endpoint
from chappe.api.mesh.hooks import Hooks, named_hooks
from chappe.api.mesh.hosting import hook_call
from chappe.api.mesh.loop_watch import AsyncSource, Watch
from chappe.api.mesh.received import Received
from chappe.api.mesh.subscriber import Subscriber
from chappe.api.mesh.waiting import KeysWait
from chappe.columns import reader
from chappe.defaults import CLONE_BUFFER_S, CLONE_RESYNC_S, CLONE_STALE_S, REQUEST_S
from chappe.errors import ChappeError, Sealed
from chappe.mesh.endpoint import PeerInfo
from chappe.mesh.events import EndpointDiscovered, EndpointUnreachable, PeerAdded, PeerLost, PeerRemoved
from chappe.mesh.messages import NOBODY
from chappe.mesh.network import Network
from chappe.system import time

if TYPE_CHECKING:
    import pyarrow as pa

logger = logging.getLogger("chappe.mesh")


class AsyncSubscriber(AsyncSource[Received]):
    """``Subscriber`` for asyncio: ``async for topic, value in subscriber``, or ``await subscriber.get()``."""

    source: Subscriber

    def add(self, *topics: str) -> None:
        self.source.add(*topics)

    def remove(self, *topics: str) -> None:
        self.source.remove(*topics)

    async def read_arrow(self, timeout: Seconds = None) -> list[pa.RecordBatch]:
        """Read columns as ``Subscriber.read_arrow`` does; a thread decodes. A cancellation puts messages back."""
        read = reader()
        while True:
            ready = await self._ready(timeout)
            messages = self.source.take_messages(sys.maxsize, 0.0)
            if not messages:
                if ready:
                    continue  # somebody else has taken them
                return []
            try:
                found = await asyncio.to_thread(read, [m.topic for m in messages], [m.payload for m in messages])
            except BaseException:
                self.source.put_back(messages)
                raise
            if batches := self.source.count_malformed(found):
                return batches

    @property
    def malformed(self) -> int:
        return self.source.malformed


class AsyncResponder(AsyncSource[AsyncRequest]):
    """``Responder`` for asyncio: ``async for request in responder: await request.reply(...)``."""

    source: Responder  # type: ignore[assignment]
    _task: asyncio.Task[None] | None = None

    def __init__(self, source: Responder, watch: Watch) -> None:
        super().__init__(source, watch)  # type: ignore[arg-type]
        source.watch = watch

    def answer_with(self, function: Callable[[AsyncRequest], object]) -> None:
        """Answer each request with what ``function`` returns, until this is closed; for the maker of this."""
        self._task = asyncio.get_running_loop().create_task(self._answer(function), name="chappe-responder")

    async def _answer(self, function: Callable[[AsyncRequest], object]) -> None:
        with suppress(ChappeError):  # closed, or a defect has stopped the endpoint
            async for request in self:
                try:
                    await respond_to(request, function)
                except Exception:
                    logger.exception("a request to %r was not answered", request.topic)

    @property
    def ignored(self) -> int:
        return self.source.ignored


class AsyncStatusSubscriber(AsyncSource[Any]):
    """``StatusSubscriber`` for asyncio: ``async for event in statuses``, or ``await statuses.get()``."""


async def _call_hooks(waiting: AsyncSource[Any]) -> None:
    hooks = waiting.source
    assert isinstance(hooks, Hooks)
    with suppress(ChappeError):  # the endpoint was closed, or a defect has stopped it
        while True:
            event = await waiting.get()
            if event is None:
                continue  # nobody else takes them, but the wait may end early
            with hooks.call(event) as function:
                found = function(event)
                if isawaitable(found):
                    await found


class AsyncEndpoint(AsyncCloseable):
    """``Endpoint`` for asyncio, made where a loop runs: ``async with AsyncEndpoint() as endpoint``.

    Methods that may wait are coroutines: ``listen``, ``peer``, ``unpeer``, ``topology``, ``await_peer``,
    ``attach_master``, ``attach_clone``, ``room``, ``publish``, ``publish_batch``, ``request`` and ``close``. Hooks
    are called in the event loop, and may be coroutine functions.
    """

    _hooks: asyncio.Task[None] | None = None

    def __init__(
        self,
        *,
        on_discovered: Callable[[EndpointDiscovered], object] | None = None,
        on_connected: Callable[[PeerAdded], object] | None = None,
        on_disconnected: Callable[[PeerLost], object] | None = None,
        on_removed: Callable[[PeerRemoved], object] | None = None,
        on_unreachable: Callable[[EndpointUnreachable], object] | None = None,
        **options: Any,
    ) -> None:
        hooks = named_hooks(on_discovered, on_connected, on_disconnected, on_removed, on_unreachable, coroutines=True)
        self.endpoint = Endpoint(**options)
        self._watch = Watch(self.endpoint.node.turns, "AsyncEndpoint")
        if any(hooks.values()):
            waiting = AsyncSource(Hooks(self.endpoint, hooks), self._watch)
            self._hooks = asyncio.get_running_loop().create_task(_call_hooks(waiting), name="chappe-hooks")

    @classmethod
    def of(cls, endpoint: Endpoint) -> AsyncEndpoint:
        """Attach the running event loop to an existing endpoint; ``leave`` it before the loop ends."""
        made = cls.__new__(cls)
        made.endpoint = endpoint
        made._watch = Watch(endpoint.node.turns, "AsyncEndpoint")
        return made

    @property
    def id(self) -> str:
        return self.endpoint.id

    async def listen(self, host: str = "127.0.0.1", port: int = 0) -> int:
        return await asyncio.to_thread(self.endpoint.listen, host, port)

    async def peer(
        self,
        host: str,
        port: int,
        *,
        retry_s: float = RETRY_S,
        retry_max_s: float | None = None,
        attempts: int | None = None,
        timeout: float | None = None,
    ) -> str:
        asked = self.endpoint.begin_peer(host, port, check_retry(retry_s, retry_max_s, attempts))
        await self._watch.wait(asked.done, timeout)
        return str(UUID(bytes=asked.take(f"no peering with {host}:{port} yet: is an endpoint listening there?")))

    def peer_nosync(
        self,
        host: str,
        port: int,
        *,
        retry_s: float = RETRY_S,
        retry_max_s: float | None = None,
        attempts: int | None = None,
    ) -> None:
        self.endpoint.peer_nosync(host, port, retry_s=retry_s, retry_max_s=retry_max_s, attempts=attempts)

    async def unpeer(self, host: str, port: int, *, timeout: float | None = None) -> None:
        asked = self.endpoint.begin_unpeer(host, port)
        await self._watch.wait(asked.done, timeout)
        asked.take(f"{host}:{port} has not said goodbye yet")

    def peers(self) -> list[PeerInfo]:
        return self.endpoint.peers()

    async def topology(self) -> Network:
        return await asyncio.to_thread(self.endpoint.topology)  # of thousands of endpoints it takes a while

    async def await_peer(self, id: str | UUID, timeout: float | None = AWAIT_S) -> bool:
        asked = self.endpoint.begin_await_peer(id, timeout)
        await self._watch.wait(asked.done)
        return asked.take("the endpoint was closed") is True

    def forward(self, *topics: str) -> None:
        self.endpoint.forward(*topics)

    def subscribe(self, *topics: str, **options: Any) -> AsyncSubscriber:
        return AsyncSubscriber(self.endpoint.subscribe(*topics, **options), self._watch)

    def statuses(self) -> AsyncStatusSubscriber:
        return AsyncStatusSubscriber(self.endpoint.statuses(), self._watch)

    async def attach_master(self, name: str, backend: str = "memory", **options: Any) -> AsyncDataStore:
        attach = partial(self.endpoint.attach_master, name, backend, **options)  # it opens files
        return AsyncDataStore(await made_in_thread(attach, DataStore.close), self._watch)

    async def attach_clone(
        self,
        name: str,
        resync_s: float = CLONE_RESYNC_S,
        stale_s: float = CLONE_STALE_S,
        mutation_buffer_s: float = CLONE_BUFFER_S,
        *,
        timeout: float | None = AWAIT_S,
    ) -> AsyncDataStore:
        made = begin_clone(self.endpoint, name, resync_s, stale_s, mutation_buffer_s)
        if timeout != 0:
            try:
                asked = made.begin_await_ready()
                await self._watch.wait(asked.done, timeout)
                take_ready(made, asked, timeout)
            except BaseException:  # a cancellation too
                await asyncio.to_thread(made.close)
                raise
        return AsyncDataStore(DataStore(made), self._watch)

    async def room(self, topics: Iterable[bytes], receiver: bytes = NOBODY) -> None:
        """Wait until ``Endpoint.publish`` to these topics would not wait."""
        asked, call = tuple(topics), hook_call.get()
        if not self.endpoint.room(asked, receiver, call):
            await self._watch.wait(lambda: self.endpoint.room(asked, receiver, call))

    async def publish(self, topic: str, value: object, *, to: str | UUID | None = None) -> int:
        receiver = NOBODY if to is None else as_id(to).bytes
        publishing = self.endpoint.publishing(encode_topic(topic), encode_value(value), receiver)
        return await run_async(publishing, self._watch.wait)

    async def publish_batch(self, messages: Iterable[tuple[str, object]]) -> int:
        total = 0
        for chunk in self.endpoint.chunks(messages):
            since = wanted = None
            keys = KeysWait(self.endpoint.waits)
            while wanted is None:
                try:
                    wanted = self.endpoint.try_publish_many(chunk, since)
                except Sealed as error:
                    await asyncio.sleep(keys.wait_s(error))
                    continue
                if wanted is None:
                    since = since or time.monotonic()
                    await self.room(dict.fromkeys(topics_of(chunk)))
            total += wanted
        return total

    @overload
    async def request(self, topic: str, value: object, *, timeout: Seconds = ...) -> Answer: ...

    @overload
    async def request(self, topic: str, value: object, *, timeout: Seconds = ..., answers: int) -> list[Answer]: ...

    async def request(
        self, topic: str, value: object, *, timeout: Seconds = REQUEST_S, answers: int | None = None
    ) -> Answer | list[Answer]:
        """Ask as ``Endpoint.request`` does. A cancellation forgets the request."""
        found = await run_async(ask(self.endpoint, topic, value, timeout, answers), self._watch.wait)
        return found[0] if answers is None else found

    def responder(self, *topics: str, **options: Any) -> AsyncResponder:
        return AsyncResponder(self.endpoint.responder(*topics, **options), self._watch)

    def respond(self, topic: str, function: Callable[[AsyncRequest], object], **options: Any) -> AsyncResponder:
        """Answer requests as ``Endpoint.respond`` does, in a task of the event loop, one after the other; ``function``
        may be a coroutine function.
        """
        made = self.responder(topic, **options)
        made.answer_with(function)
        return made

    @property
    def dropped(self) -> int:
        return self.endpoint.dropped

    def leave(self) -> None:
        """Stop reading the endpoint's sockets in the event loop; the endpoint stays."""
        self._watch.leave()

    async def close(self) -> None:
        self._watch.unread()
        await asyncio.to_thread(self.endpoint.close)
        if self._hooks is not None and self._hooks is not asyncio.current_task():
            await asyncio.wait((self._hooks,), timeout=CLOSE_JOIN_S)
        self._watch.leave()
