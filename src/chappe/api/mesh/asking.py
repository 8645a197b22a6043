"""Requests to topics of the mesh, and those who answer them."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from inspect import isawaitable
from typing import TYPE_CHECKING, Any
from uuid import UUID

from msgspec.structs import replace

from chappe.api.faces import Seconds, Steps, awaited, run, run_async
from chappe.api.mesh.arguments import encode_topic, encode_value
from chappe.api.mesh.hosting import CLOSED, EndpointHost
from chappe.api.mesh.received import Received
from chappe.api.mesh.subscriber import MessageSource
from chappe.api.mesh.waiting import deadline_after
from chappe.data.binary import decode, encode
from chappe.data.convert import to_python
from chappe.data.values import Value
from chappe.defaults import REQUEST_ANSWERS_MAX, REQUEST_ERROR_MAX
from chappe.errors import Closed, InvalidData, NoResponders, RequestFailed, TimedOut, Unreachable, UsageError
from chappe.mesh.forwarding.boxes import SubscriberInbox
from chappe.mesh.messages import Message
from chappe.mesh.requests import (
    INBOX,
    AnswerHead,
    RequestHead,
    SeenRequests,
    pack_answer,
    pack_request,
    parse_request,
    receiver_of,
)
from chappe.system import time

if TYPE_CHECKING:
    from chappe.api.mesh.loop_watch import Watch

logger = logging.getLogger("chappe.mesh")


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer to a request: ``value``, as a message has it, or ``error``. ``responder`` is the answering endpoint."""

    responder: str
    payload: bytes
    error: RequestFailed | None = None

    @property
    def data(self) -> Value:
        """The value with its types; raises ``error`` if there is one, and InvalidData if the payload is not a value."""
        if self.error is not None:
            raise self.error
        return decode(self.payload)

    @property
    def value(self) -> Any:
        """The value as natural Python objects; raises as ``data``."""
        return to_python(self.data)


def _answer_of(head: AnswerHead) -> Answer:
    responder = str(UUID(bytes=head.endpoint))
    if not head.failed:
        return Answer(responder, head.payload)
    try:
        text = str(to_python(decode(head.payload)))[:REQUEST_ERROR_MAX]
    except InvalidData:
        text = "its error cannot be read"
    return Answer(responder, b"", RequestFailed(text, responder))


def ask(
    endpoint: EndpointHost, topic: str, value: object, timeout: Seconds, answers: int | None
) -> Steps[list[Answer]]:
    """Publish a request and wait for its answers, in steps. Raises as ``Endpoint.request``."""
    wanted = 1 if answers is None else answers
    if isinstance(wanted, bool) or not isinstance(wanted, int) or not 1 <= wanted <= REQUEST_ANSWERS_MAX:
        raise UsageError(f"answers is a number from 1 to {REQUEST_ANSWERS_MAX}, not {answers!r}")
    if timeout is not None and not timeout > 0:
        raise UsageError(f"timeout is a number of seconds above 0, or None to wait for ever, not {timeout!r}")
    raw, payload = encode_topic(topic), encode_value(value)
    member, lock, number = endpoint.node.member, endpoint.node.lock, int.from_bytes(os.urandom(8), "big")
    deadline = deadline_after(timeout)
    with lock:
        endpoint.require_subscribe([member.requests.inbox])
        asked = endpoint.question()
    try:
        with lock:
            endpoint.node.do(member.ask(number, asked.ticket, wanted, deadline, time.monotonic()))
        body = pack_request(number, member.requests.inbox, payload)
        if not (yield from endpoint.publishing(raw, body, deadline=deadline)):
            raise NoResponders(f"nobody in reach subscribes to {topic!r}: start a responder, or wait for it")
        yield asked.done, None
        found = asked.take(CLOSED)
    finally:
        asked.forget()
        with lock:
            member.requests.forget(number)
    if not found:
        raise TimedOut(f"nobody answered the request to {topic!r} within {timeout:g} s")
    shown = [_answer_of(each) for each in found]
    if answers is None and shown[0].error is not None:
        raise shown[0].error
    return shown


class Request(Received):
    """A request, with its value as a message has it. It is answered once, by ``reply`` or ``fail``."""

    __slots__ = ("_endpoint", "_head", "_responder", "answered")

    def __init__(self, message: Message, head: RequestHead, endpoint: EndpointHost, responder: int) -> None:
        super().__init__(replace(message, payload=head.payload))
        self.answered = False  # True once it was
        self._head = head
        self._endpoint = endpoint
        self._responder = responder

    @property
    def originator(self) -> str:
        """The id of the endpoint that asks, by its own word."""
        return self._head.inbox[len(INBOX) :].decode("utf-8", "replace")

    def reply(self, value: object) -> bool:
        """Answer with a value. Returns False if the originator is out of reach.

        It waits for room as ``Endpoint.publish`` does.

        Raises:
            UsageError: It was answered before, or the message is larger than 64 MiB.
            UnsupportedValue: The value cannot be converted.
            NotPermitted: The permissions do not let this identity publish to the originator's inbox.
            Closed: The endpoint was closed.
        """
        found: bool = self._run(self._answer(encode_value(value), failed=False))
        return found

    def fail(self, text: str) -> bool:
        """Answer with an error, of which the first 1,000 characters reach the originator. Returns and raises as
        ``reply``.
        """
        found: bool = self._run(self._answer(encode(text[:REQUEST_ERROR_MAX]), failed=True))
        return found

    def _answer(self, payload: bytes, *, failed: bool) -> Steps[bool]:
        if self.answered:
            raise UsageError("this request was answered before")
        head, endpoint, own = self._head, self._endpoint, self._endpoint.core.own_id
        body = pack_answer(head.number, own, self._responder, payload, failed=failed)
        receiver = receiver_of(self.message, head)
        if receiver == own:  # of a queue that has a member at the originator
            with endpoint.node.lock:
                answer = Message(head.inbox, body, sender=own, origin=own)
                endpoint.node.do(endpoint.node.member.requests.hear([answer]))
            reached = 1
        else:
            try:
                reached = yield from endpoint.publishing(head.inbox, body, receiver)
            except Unreachable:
                reached = 0
        self.answered = True
        return reached > 0

    def _run(self, steps: Steps[bool]) -> Any:
        return run(steps, self._endpoint.node.turns.wait)

    def __repr__(self) -> str:
        return f"Request({self.topic!r}, {len(self.payload)} bytes)"


class AsyncRequest(Request):
    """``Request`` for asyncio: ``reply`` and ``fail`` are coroutines."""

    __slots__ = ("_watch",)

    def __init__(
        self, message: Message, head: RequestHead, endpoint: EndpointHost, responder: int, watch: Watch
    ) -> None:
        super().__init__(message, head, endpoint, responder)
        self._watch = watch

    reply = awaited(Request.reply)  # type: ignore[assignment]
    fail = awaited(Request.fail)  # type: ignore[assignment]

    def _run(self, steps: Steps[bool]) -> Any:
        return run_async(steps, self._watch.wait)


class Responder(MessageSource[Request]):
    """Requests to topics that start with one of the wanted prefixes, in the order in which they came.

    Made by ``Endpoint.responder``. ``for request in responder: request.reply(...)``. Use from several threads is safe;
    each request goes to one of them. A request that comes again, over originals, is left out, as far as the last 16,384
    tell; so are messages that are not requests, which ``ignored`` counts.
    """

    watch: Watch | None = None  # of the event loop that takes the requests

    def __init__(
        self, endpoint: EndpointHost, number: int, topics: Iterable[str], inbox: SubscriberInbox,
        messages_max: int, bytes_max: int,
    ) -> None:  # fmt: skip
        self.ignored = 0
        self._seen = SeenRequests()
        super().__init__(endpoint, number, topics, inbox, messages_max, bytes_max)

    def deliver(self, messages: list[Message]) -> None:
        """Take requests from the core; the lock is held."""
        heads = [parse_request(each.payload) for each in messages]
        self.ignored += heads.count(None)
        found = [each for each, head in zip(messages, heads, strict=True) if head and self._seen.is_new(head)]
        if found:
            super().deliver(found)

    def _shown(self, found: list[Message]) -> list[Request]:
        return [self._request(each) for each in found]

    def _request(self, message: Message) -> Request:
        head = parse_request(message.payload)
        assert head is not None
        if self.watch is None:
            return Request(message, head, self._endpoint, self.number)
        return AsyncRequest(message, head, self._endpoint, self.number, self.watch)


def respond_with(function: Callable[[Request], object]) -> Callable[[Request], None]:
    """Return a callback that answers a request with what ``function`` returns, or with its exception."""

    def respond(request: Request) -> None:
        try:
            found = function(request)
            if not request.answered:
                request.reply(found)
        except Closed:
            raise
        except Exception as error:
            if request.answered:
                raise
            logger.exception("a responder to %r failed; the originator gets the error", request.topic)
            request.fail(_text_of(error))

    return respond


async def respond_to(request: AsyncRequest, function: Callable[[AsyncRequest], object]) -> None:
    """Answer a request with what ``function``, which may be a coroutine function, returns or raises."""
    try:
        found = function(request)
        if isawaitable(found):
            found = await found
        if not request.answered:
            await request.reply(found)
    except Closed:
        raise
    except Exception as error:
        logger.exception("a responder to %r failed; the originator gets the error", request.topic)
        if not request.answered:
            await request.fail(_text_of(error))


def _text_of(error: Exception) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
