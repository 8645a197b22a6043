"""One client of the JSON protocol.

A client that sends faster than the peers of the endpoint take is slowed down: nothing more is read from it until there
is room. One that takes less than it subscribed to has a queue of its own, whose policy applies; nobody else notices.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketDisconnected

from chappe import __version__
from chappe.api.mesh.aio import AsyncEndpoint, AsyncSubscriber
from chappe.api.mesh.arguments import OnFull, encode_topic, encode_value
from chappe.data.json import loads_message
from chappe.defaults import WEBSOCKET_SPEAK_S
from chappe.errors import BufferFull, ChappeError, Closed, InvalidData, UsageError
from chappe.web.protocol import (
    DESERIALIZATION_FAILED,
    INVALID_DATA,
    SERIALIZATION_FAILED,
    read_filter,
    write_ack,
    write_error,
    write_message,
)

logger = logging.getLogger(__name__)

CHUNK: Final = 64  # messages taken from the queue at once
TURN: Final = 64  # frames of one client; then others have their turn
GOING_AWAY: Final = 1001
DEFECT: Final = 1011
TRY_AGAIN: Final = 1013
REASON_BYTES_MAX: Final = 123  # of a close frame
_GAVE_WAY: Final = "there are too many clients, and others had fewer, or had something to say: try again later"


class _GoneAway(Exception):
    """The server ends the session; the text tells the client why."""


@dataclass(frozen=True, slots=True)
class Queue:
    """What waits for one client at most, and what happens then."""

    on_full: OnFull
    messages_max: int
    bytes_max: int


class Session:
    """A client whose connection is accepted. ``spoke`` is called once its first frame is understood."""

    def __init__(
        self, socket: WebSocket, endpoint: AsyncEndpoint, queue: Queue, spoke: Callable[[Session], None]
    ) -> None:
        self._spoke = spoke
        self._given_way: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._socket = socket
        self._endpoint = endpoint
        self._queue = queue

    async def run(self) -> None:
        """Serve the client until it goes, or the endpoint is closed."""
        try:
            subscriber = await self._subscribe_soon()
            self._spoke(self)
            try:
                await self._send(write_ack(self._endpoint.id, __version__))
                await self._both_ways(subscriber)
            finally:
                subscriber.source.close()
        except (WebSocketDisconnect, WebSocketDisconnected):
            pass
        except _GoneAway as why:
            await self._close(TRY_AGAIN, str(why))
        except BufferFull:
            await self._close(TRY_AGAIN, "you took less than you subscribed to: connect again, or to fewer topics")
        except Closed:
            await self._close(GOING_AWAY, "the endpoint was closed")
        except Exception:
            logger.exception("a WebSocket client was cut off because of a defect")
            await self._close(DEFECT, "a defect of the server")

    def give_way(self) -> None:
        """Others need the room."""
        if not self._given_way.done():
            self._given_way.set_result(None)

    async def _subscribe_soon(self) -> AsyncSubscriber:
        task = asyncio.create_task(self._subscribe())
        try:
            either: list[asyncio.Future[Any]] = [task, self._given_way]
            await asyncio.wait(either, timeout=WEBSOCKET_SPEAK_S, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
            if self._given_way.done():
                raise _GoneAway(_GAVE_WAY)
            raise _GoneAway(f"say what you subscribe to within {WEBSOCKET_SPEAK_S:g} s")
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _subscribe(self) -> AsyncSubscriber:
        queue = self._queue
        while True:
            try:
                topics = read_filter(await self._receive())
                return self._endpoint.subscribe(
                    *topics, on_full=queue.on_full, messages_max=queue.messages_max, bytes_max=queue.bytes_max
                )
            except (InvalidData, UsageError) as problem:
                await self._send(write_error(DESERIALIZATION_FAILED, str(problem)))

    async def _both_ways(self, subscriber: AsyncSubscriber) -> None:
        tasks = [asyncio.create_task(self._read(subscriber)), asyncio.create_task(self._write(subscriber))]
        try:
            done, _ = await asyncio.wait([*tasks, self._given_way], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        for task in tasks:
            if task in done:
                task.result()
        raise _GoneAway(_GAVE_WAY)

    async def _read(self, subscriber: AsyncSubscriber) -> None:
        publish = self._endpoint.endpoint.try_publish
        frames = 0
        while True:
            try:
                topic, value = loads_message(await self._receive())
                raw, payload = encode_topic(topic), encode_value(value)
                while publish(raw, payload, source=subscriber.source.number) is None:
                    await self._endpoint.room()
            except InvalidData as problem:
                await self._send(write_error(DESERIALIZATION_FAILED, str(problem)))
            except UsageError as problem:  # a topic that is reserved or too long
                await self._send(write_error(INVALID_DATA, str(problem)))
            frames += 1
            if frames % TURN == 0:
                await asyncio.sleep(0)

    async def _write(self, subscriber: AsyncSubscriber) -> None:
        while True:
            for message in await subscriber.get_many(CHUNK):
                try:
                    text = write_message(message.topic, message.data)
                except InvalidData as problem:  # of a faulty peer
                    text = write_error(SERIALIZATION_FAILED, f"a message to {message.topic!a} is left out: {problem}")
                await self._send(text)
            await asyncio.sleep(0)

    async def _receive(self) -> str:
        message = await self._socket.receive()
        if message["type"] == "websocket.disconnect":
            raise WebSocketDisconnect(message.get("code", 1006))
        text = message.get("text")
        if text is None:
            raise InvalidData("frames are text, not binary")
        assert isinstance(text, str)
        return text

    async def _send(self, text: str) -> None:
        await self._socket.send_text(text)

    async def _close(self, code: int, reason: str) -> None:
        assert len(reason.encode()) <= REASON_BYTES_MAX
        try:
            await self._socket.close(code, reason)
        except (WebSocketDisconnect, RuntimeError, ChappeError):
            pass  # it is gone
