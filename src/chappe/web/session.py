"""One client, and the frames of the JSON protocol.

The client's first frame is an array of topic prefixes, and the server's answer
``{"type":"ack","endpoint":ID,"version":V}``. Then both send data messages; ``chappe.data.json`` says how they look.
The server answers unusable frames with ``{"type":"error","code":CODE,"context":TEXT}``; the connection stays.

A client that sends faster than the peers of the endpoint take is slowed down: nothing more is read from it until there
is room. One that takes less than it subscribed to has a queue of its own, whose policy applies; nobody else notices.

Source: ``protocols/broker.md`` section 3.6. Departures: what goes to the client is legal JSON that loses nothing; the
original wrote NaN, milliseconds and six decimals. A value that legal JSON cannot express (NaN, bytes that are not text)
is replaced by an error with the code ``serialization_failed``.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketDisconnected

from chappe import __version__
from chappe.api.mesh.aio import AsyncEndpoint, AsyncSubscriber
from chappe.api.mesh.arguments import encode_topic, encode_value
from chappe.api.mesh.identity import Behind
from chappe.api.mesh.told import OWN
from chappe.data.json import dumps_message, loads_message
from chappe.defaults import WEBSOCKET_SPEAK_S
from chappe.errors import (
    BufferFull,
    ChappeError,
    Closed,
    InvalidData,
    NotPermitted,
    Sealed,
    UnsupportedValue,
    UsageError,
)

PATH: Final = "/v1/messages/json"
PROTOCOL: Final = "chappe.json"  # a subprotocol for clients that offer their token as one, and have to be given another
DESERIALIZATION_FAILED: Final = "deserialization_failed"
SERIALIZATION_FAILED: Final = "serialization_failed"
INVALID_DATA: Final = "invalid_data"
NOT_PERMITTED: Final = "not_permitted"


def read_filter(text: str) -> list[str]:
    """Return the topic prefixes of a client's first frame; raises InvalidData."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, list) or not all(isinstance(each, str) for each in found):
        raise InvalidData('the first frame is an array of topic prefixes, such as ["/zeek/"]')
    try:
        "".join(found).encode()
    except UnicodeEncodeError:
        raise InvalidData("a topic prefix holds half of a surrogate pair") from None
    if any(each.startswith(OWN) for each in found):
        raise InvalidData("topics that begin with <$>/local/ never leave their endpoint")
    return found


def frame(kind: str, **members: str) -> str:
    return json.dumps({"type": kind, **members}, separators=(",", ":"))


logger = logging.getLogger(__name__)

CHUNK: Final = 64  # messages taken from the queue at once
TURN: Final = 64  # frames of one client; then others have their turn
GOING_AWAY: Final = 1001
DEFECT: Final = 1011
TRY_AGAIN: Final = 1013
POLICY: Final = 1008
REASON_BYTES_MAX: Final = 123  # of a close frame
_GAVE_WAY: Final = "there are too many clients, and others had fewer, or had something to say: try again later"


class _GoneAway(Exception):
    """The server ends the session; the text tells the client why."""

    def __init__(self, why: str, code: int = TRY_AGAIN) -> None:
        super().__init__(why)
        self.code = code


@dataclass(frozen=True, slots=True)
class Rights:
    """The permissions of a client, and the end of its stay in seconds since 1970."""

    of: Behind
    end: float


class WebSocketSession:
    """A client whose connection is accepted. ``spoke`` is called once its first frame is understood.

    ``queue`` says what waits for it at most, and what happens then: arguments of ``subscribe``. Without ``rights`` it
    may do what the endpoint may.
    """

    def __init__(
        self,
        socket: WebSocket,
        endpoint: AsyncEndpoint,
        queue: dict[str, Any],
        spoke: Callable[[WebSocketSession], None],
        rights: Rights | None = None,
    ) -> None:
        self._spoke = spoke
        self._ended: asyncio.Future[_GoneAway] = asyncio.get_running_loop().create_future()
        self._socket = socket
        self._endpoint = endpoint
        self._queue = queue
        self._rights = rights

    async def run(self) -> None:
        try:
            subscriber = await self._subscribe_soon()
            self._spoke(self)
            try:
                await self._send(frame("ack", endpoint=self._endpoint.id, version=__version__))
                await self._both_ways(subscriber)
            finally:
                subscriber.source.close()
        except (WebSocketDisconnect, WebSocketDisconnected):
            pass
        except _GoneAway as why:
            await self._close(why.code, str(why))
        except BufferFull:
            await self._close(TRY_AGAIN, "you took less than you subscribed to: connect again, or to fewer topics")
        except Closed:
            await self._close(GOING_AWAY, "the endpoint was closed")
        except Exception:
            logger.exception("a WebSocket client was cut off because of a defect")
            await self._close(DEFECT, "a defect of the server")

    def give_way(self) -> None:
        self._end(_GoneAway(_GAVE_WAY))

    def look(self, now: float) -> None:
        """End the session of a client that may no longer be here."""
        if self._rights is None:
            return
        if now >= self._rights.end:
            self._end(_GoneAway("the token has expired: connect again with another one", POLICY))
        elif why := self._rights.of.refusal():
            self._end(_GoneAway(why[:REASON_BYTES_MAX], POLICY))

    def _end(self, why: _GoneAway) -> None:
        if not self._ended.done():
            self._ended.set_result(why)

    async def _subscribe_soon(self) -> AsyncSubscriber:
        task = asyncio.create_task(self._subscribe())
        try:
            either: list[asyncio.Future[Any]] = [task, self._ended]
            await asyncio.wait(either, timeout=WEBSOCKET_SPEAK_S, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
            if self._ended.done():
                raise self._ended.result()
            raise _GoneAway(f"say what you subscribe to within {WEBSOCKET_SPEAK_S:g} s")
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _subscribe(self) -> AsyncSubscriber:
        while True:
            try:
                wanted = read_filter(await self._receive())
                if self._rights is not None:
                    self._rights.of.subscribe([encode_topic(each) for each in wanted])
                return self._endpoint.subscribe(*wanted, **self._queue)
            except (NotPermitted, Sealed) as problem:
                await self._send(frame("error", code=NOT_PERMITTED, context=str(problem)))
            except (InvalidData, UsageError) as problem:
                await self._send(frame("error", code=DESERIALIZATION_FAILED, context=str(problem)))

    async def _both_ways(self, subscriber: AsyncSubscriber) -> None:
        tasks = [asyncio.create_task(self._read(subscriber)), asyncio.create_task(self._write(subscriber))]
        try:
            either: list[asyncio.Future[Any]] = [*tasks, self._ended]
            done, _ = await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        for task in tasks:
            if task in done:
                task.result()
        raise self._ended.result()

    async def _read(self, subscriber: AsyncSubscriber) -> None:
        publish = self._endpoint.endpoint.try_publish
        frames = 0
        while True:
            try:
                topic, value = loads_message(await self._receive())
                raw, payload = encode_topic(topic), encode_value(value)
                if self._rights is not None:
                    self._rights.of.publish(raw)
                while publish(raw, payload, source=subscriber.source.number) is None:
                    await self._endpoint.room((raw,))
            except InvalidData as problem:
                await self._send(frame("error", code=DESERIALIZATION_FAILED, context=str(problem)))
            except (NotPermitted, Sealed) as problem:
                await self._send(frame("error", code=NOT_PERMITTED, context=str(problem)))
            except UsageError as problem:  # a topic that is reserved or too long
                await self._send(frame("error", code=INVALID_DATA, context=str(problem)))
            frames += 1
            if frames % TURN == 0:
                await asyncio.sleep(0)

    async def _write(self, subscriber: AsyncSubscriber) -> None:
        while True:
            for message in await subscriber.get_many(CHUNK):
                if self._rights is not None and not self._rights.of.gets(message.message.topic):
                    continue
                try:
                    text = dumps_message(message.topic, message.data, legal=True)
                except (
                    InvalidData,
                    UnsupportedValue,
                    Sealed,
                ) as problem:  # of a faulty peer; what legal JSON cannot express
                    left_out = f"a message to {message.topic!a} is left out: {problem}"
                    text = frame("error", code=SERIALIZATION_FAILED, context=left_out)
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
        with suppress(WebSocketDisconnect, RuntimeError, ChappeError):  # it is gone
            await self._socket.close(code, reason)
