"""Requests and their answers: values on topics, with a number that joins an answer to its request.

A request is published to a topic as any value is; a *responder* subscribes to it, and publishes its answer to the inbox
of the *originator*, a topic of its endpoint. All are vectors of the mesh's values, which endpoints of Broker pass on::

    request   enum value chappe::request, count number, string inbox, any value
    answer    enum value chappe::answer, count number, string endpoint, count responder, any value
    error     enum value chappe::error, count number, string endpoint, count responder, string text

``number`` is a random one of the originator's; ``endpoint``, an id as text, and ``responder``, a number there, name the
sender of an answer. The heads are read here; the value at the end stays encoded.

``Requests`` is the originator's side: which requests wait, for how many answers and until when.

Source: none; Broker has no requests. After NATS: an inbox, and no responders where nobody subscribes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from math import inf
from typing import Final
from uuid import UUID

from chappe.compiled import Frozen
from chappe.core import Effect, Resolve
from chappe.data.binary import encode, pack_varbyte, parse_varbyte
from chappe.data.order import COUNT, STRING, VECTOR
from chappe.data.scalars import EnumValue
from chappe.deadlines import Deadlines
from chappe.defaults import REQUEST_ANSWERS_BYTES_MAX, REQUEST_INBOX_BYTES_MAX, REQUESTS_MAX, REQUESTS_SEEN_MAX
from chappe.errors import BufferFull, ProtocolError
from chappe.mesh.messages import ID_BYTES, NOBODY, Message

INBOX: Final = b"<$>/inbox/"  # and the originator's endpoint id

_COUNT_BYTES: Final = 9  # tag and number


def _head(kind: str, elements: int) -> bytes:
    return bytes((VECTOR, elements)) + encode(EnumValue(f"chappe::{kind}"))


_REQUEST: Final = _head("request", 4)
_ANSWER: Final = _head("answer", 5)
_ERROR: Final = _head("error", 5)


class RequestHead(Frozen, frozen=True):
    """A request: its number, the topic that its answer goes to, and its value, encoded."""

    number: int
    inbox: bytes
    payload: bytes


class AnswerHead(Frozen, frozen=True):
    """An answer: who answers, and its value, encoded; of an error that is the text."""

    number: int
    endpoint: bytes
    responder: int
    payload: bytes
    failed: bool


def inbox_of(endpoint: bytes) -> bytes:
    """Return the topic of answers to an endpoint."""
    return INBOX + str(UUID(bytes=endpoint)).encode()


def pack_request(number: int, inbox: bytes, payload: bytes) -> bytes:
    return b"".join((_REQUEST, _count(number), _text(inbox), payload))


def pack_answer(number: int, endpoint: bytes, responder: int, payload: bytes, *, failed: bool = False) -> bytes:
    who = _text(str(UUID(bytes=endpoint)).encode())
    return b"".join((_ERROR if failed else _ANSWER, _count(number), who, _count(responder), payload))


def parse_request(body: bytes) -> RequestHead | None:
    """Return the request in a payload; None if it is another value."""
    if not body.startswith(_REQUEST):
        return None
    try:
        number, at = _count_at(body, len(_REQUEST))
        inbox, at = _text_at(body, at)
    except ProtocolError:
        return None
    return RequestHead(number, inbox, body[at:]) if inbox.startswith(INBOX) and at < len(body) else None


def parse_answer(body: bytes) -> AnswerHead | None:
    """Return the answer in a payload; None if it is another value."""
    failed = body.startswith(_ERROR)
    if not failed and not body.startswith(_ANSWER):
        return None
    try:
        number, at = _count_at(body, len(_ERROR if failed else _ANSWER))
        who, at = _text_at(body, at)
        responder, at = _count_at(body, at)
        endpoint = UUID(who.decode("ascii")).bytes
    except (ProtocolError, ValueError):
        return None
    return AnswerHead(number, endpoint, responder, body[at:], failed) if at < len(body) else None


def _count(number: int) -> bytes:
    return bytes((COUNT,)) + number.to_bytes(8, "big")


def _text(raw: bytes) -> bytes:
    return bytes((STRING,)) + pack_varbyte(len(raw)) + raw


def _count_at(body: bytes, at: int) -> tuple[int, int]:
    end = at + _COUNT_BYTES
    if body[at : at + 1] != bytes((COUNT,)) or end > len(body):
        raise ProtocolError("a count is missing")
    return int.from_bytes(body[at + 1 : end], "big"), end


def _text_at(body: bytes, at: int) -> tuple[bytes, int]:
    if body[at : at + 1] != bytes((STRING,)):
        raise ProtocolError("a string is missing")
    length, at = parse_varbyte(body, at + 1)
    end = at + length
    if length > REQUEST_INBOX_BYTES_MAX or end > len(body):
        raise ProtocolError("a string is cut off or too long")
    return body[at:end], end


@dataclass(slots=True)
class _PendingRequest:
    """A request that waits, with the first answer of each responder."""

    ticket: int
    wanted: int
    answers: dict[tuple[bytes, int], AnswerHead] = field(default_factory=dict)
    size: int = 0


class Requests:
    """The requests of one endpoint, which ``Resolve`` with the answers that came: none if the time is over.

    Args:
        vouches: Tells whether a message of an origin can come from an endpoint, as ``Topology.vouches``.
    """

    def __init__(self, own: bytes, vouches: Callable[[bytes, bytes], bool]) -> None:
        assert len(own) == ID_BYTES
        self.inbox = inbox_of(own)
        self._own = own
        self._vouches = vouches
        self.pending: dict[int, _PendingRequest] = {}  # by number
        self._deadlines: Deadlines[int] = Deadlines()

    def ask(self, number: int, ticket: int, wanted: int, until: float) -> None:
        """Await ``wanted`` answers until a time, maybe infinity. Raises BufferFull: too many requests wait."""
        if len(self.pending) >= REQUESTS_MAX:
            raise BufferFull(f"{REQUESTS_MAX} requests wait for answers: ask again when some have come")
        self.pending[number] = _PendingRequest(ticket, wanted)
        if until < inf:
            self._deadlines.set(number, until)

    def forget(self, number: int) -> None:
        """Wait no longer for a request; answers that come later are dropped."""
        self.pending.pop(number, None)
        self._deadlines.clear(number)

    def hear(self, messages: Iterable[Message]) -> list[Effect]:
        """Take answers that came to the inbox."""
        found: list[Effect] = []
        for message in messages:
            answer = parse_answer(message.payload) if message.topic == self.inbox else None
            pending = None if answer is None else self.pending.get(answer.number)
            if answer is None or pending is None or not self._is_of(message.origin, answer.endpoint):
                continue
            who = answer.endpoint, answer.responder
            if who in pending.answers:
                continue
            pending.answers[who] = answer
            pending.size += len(answer.payload)
            if len(pending.answers) >= pending.wanted or pending.size >= REQUEST_ANSWERS_BYTES_MAX:
                found.append(self._over(answer.number))
        return found

    def next_timeout(self) -> float:
        return self._deadlines.next

    def handle_timeout(self, now: float) -> list[Effect]:
        return [self._over(number) for number in self._deadlines.due(now)]

    def invariants(self) -> list[str]:
        found = [] if len(self._deadlines) <= len(self.pending) else ["deadlines are left of requests that are over"]
        late = [each for each in self.pending.values() if len(each.answers) >= each.wanted]
        return found + [f"request of ticket {each.ticket} waits with all its answers" for each in late]

    def _is_of(self, origin: bytes, endpoint: bytes) -> bool:
        return origin == endpoint or self._vouches(origin, endpoint)

    def _over(self, number: int) -> Resolve:
        pending = self.pending[number]
        self.forget(number)
        return Resolve(pending.ticket, tuple(pending.answers.values()))


class SeenRequests:
    """The requests that one responder has taken: over originals one may come on several ways."""

    def __init__(self) -> None:
        self._seen: dict[tuple[bytes, int], None] = {}

    def is_new(self, request: RequestHead) -> bool:
        """Note a request; return False if it came before, of the last 16,384."""
        key = request.inbox, request.number
        if key in self._seen:
            return False
        if len(self._seen) >= REQUESTS_SEEN_MAX:
            del self._seen[next(iter(self._seen))]
        self._seen[key] = None
        return True


def receiver_of(message: Message, request: RequestHead) -> bytes:
    """Return the one endpoint that an answer is for; NOBODY if originals, which pass on topics only, are between."""
    return message.origin if request.inbox == inbox_of(message.origin) else NOBODY
