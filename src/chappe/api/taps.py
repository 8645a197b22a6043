"""Taps of members of this process, and a client that looks at a tap."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import chain
from typing import Final

import zmq
from msgspec.structs import replace

from chappe.api.faces import Closeable
from chappe.errors import ChappeError, ProtocolError, TimedOut, UsageError
from chappe.mesh.endpoint import EndpointCore
from chappe.mesh.messages import DATA, NOBODY
from chappe.permissions.rules import STORE
from chappe.runtime.log_ports import LogPorts
from chappe.runtime.tap_ports import Feed
from chappe.security import IDENTITY, LogSecurity
from chappe.system import time
from chappe.system.forking import own
from chappe.tapping.frames import KINDS, named, published, read_log, read_mesh
from chappe.tapping.messages import (
    CONTENT_BYTES,
    Look,
    Passed,
    Refused,
    Seen,
    Shown,
    Subscribed,
    decode_answer,
    decode_look,
    encode,
)
from chappe.tapping.sessions import Wants
from chappe.transports import addresses
from chappe.transports.dialled import Dialled
from chappe.transports.gate import Gate, check_listening, gate_of, keys_of
from chappe.transports.zeromq import open_socket

__all__ = ["CONTENT_BYTES", "LogTap", "MeshTap", "Passed", "Shown", "Subscribed", "Tap"]

ANSWER_S: Final = 1.0  # a question is repeated after so long without an answer, and twice as long each time ...
ANSWER_DOUBLED_MAX: Final = 3  # ... so many times


def _now_us() -> int:
    return time.time_ns() // 1000


def tap_gate(security: LogSecurity, host: str) -> Gate | None:
    """Return the gate for viewers of a tap. Raises UsageError if other machines could look without a choice."""
    check_listening(security, host, "tap")
    return gate_of(keys_of(security))


class MeshTap:
    """Feeds the traffic of an endpoint; called with its lock held, except the constructor."""

    def __init__(self, core: EndpointCore, feed: Feed) -> None:
        self._links = core.links
        self._feed = feed

    def came(self, conn: int, bodies: list[bytes]) -> None:
        link = self._links[conn]
        read = partial(read_mesh, _now_us(), named(link.peer_id), link.peer_id, link.chappe, bodies)
        self._feed.put(len(bodies), sum(map(len, bodies)), read)

    def published(self, topic: bytes, payload: bytes, kind: int, receiver: bytes) -> None:
        at_us = _now_us()

        def read(wanted: tuple[bytes, ...]) -> Iterable[tuple[int, Passed]]:
            return ((1, published(at_us, topic, payload, kind, receiver)),) if topic.startswith(wanted) else ()

        self._feed.put(1, len(topic) + len(payload), read)

    def published_many(self, chunk: Sequence[tuple[bytes, bytes]]) -> None:
        """Feed messages to all receivers at once, as each call costs the publisher time."""
        at_us = _now_us()

        def read(wanted: tuple[bytes, ...]) -> Iterator[tuple[int, Passed]]:
            for place, (topic, payload) in enumerate(chunk, 1):
                if topic.startswith(wanted):
                    yield place, published(at_us, topic, payload, DATA, NOBODY)

        self._feed.put(len(chunk), sum(map(len, chain.from_iterable(chunk))), read)


class LogTap:
    def __init__(self, node: LogPorts) -> None:
        self._node = node
        self._changes = -1

    def feed(self, feed: Feed | None) -> None:
        def came(frames: list[bytes]) -> None:
            at_us = _now_us()

            def read(wanted: tuple[bytes, ...]) -> Iterable[tuple[int, Passed]]:
                found = read_log(at_us, frames, wanted)
                return () if found is None else ((1, found),)

            assert feed is not None
            feed.put(1, sum(map(len, frames)), read)

        with self._node.driver.lock:
            self._node.tapped = None if feed is None else came

    def wants(self) -> Wants | None:
        with self._node.driver.lock:
            changes, ask = self._node.subscriptions()
            if changes == self._changes:
                return None
            self._changes = changes
            subscriptions = ask()
        wants: dict[tuple[str, bytes], tuple[str, ...]] = {}
        for who, prefixes in subscriptions.items():
            for prefix in prefixes:
                if prefix[:1] in KINDS:
                    key = (who, prefix[1:])
                    wants[key] = (*wants.get(key, ()), KINDS[prefix[:1]])
        return wants


class Tap(Closeable):
    """Looks at the traffic of a member with a tap; a slow viewer misses messages, and learns how many.

    Args:
        host: The address of the member's tap; ``NAME@HOST`` where several identities are possible.
        topics: Prefixes; without any: all topics.
        security: Our identity, if the member has keys; by default that of ``CHAPPE_IDENTITY``.

    Raises:
        UsageError: There are too many prefixes, or too long ones; or several identities are possible there.
    """

    def __init__(self, host: str, port: int, topics: Sequence[str] = (), *, security: LogSecurity = None) -> None:
        own(self)
        raw = tuple(each.encode("utf-8", "surrogateescape") for each in topics)
        self._question = Look(raw)
        try:
            decode_look(encode(self._question))
        except ProtocolError as error:
            raise UsageError(str(error)) from None
        self._where = f"{host}:{port}"
        name, host = addresses.named(host)
        gate = gate_of(keys_of(security))
        if gate is None and name:
            raise UsageError(f"{self._where} has keys, and we have none: name an identity ({IDENTITY})")
        if gate is not None:
            name = name or gate.server(STORE, host, "")
        self._socket = open_socket(zmq.DEALER, gate)
        self._socket.setsockopt(zmq.SNDHWM, 1)
        self._refusal = ""
        self._dialled = Dialled(self._socket, gate, self._refused)
        self._dialled.listen()
        self._dialled.connect(f"tcp://{host}:{port}{'#' if name else ''}{name}")
        self._asked_at: float | None = None  # the time of a question without an answer yet
        self._answered = 0  # the number of the question to which the last answer was
        self._seen: list[Seen] = []  # of answers to earlier questions
        self._missed = 0

    def look(self, timeout_s: float) -> Shown:
        """Return the traffic since the last call, as far as one answer has room. Ctrl-C ends the wait.

        Raises:
            TimedOut: There was no answer within ``timeout_s``.
            ChappeError: The tap has too many viewers, or another program answers.
        """
        deadline = time.monotonic() + timeout_s
        if self._asked_at is None:
            self._ask()
        while (answer := self._answer(deadline)).number < self._question.number:
            self._seen += answer.seen  # it came late, when it had been asked for once more
            self._missed += answer.missed
        shown = Shown([*self._seen, *answer.seen], self._missed + answer.missed)
        self._asked_at, self._seen, self._missed = None, [], 0
        self._question = replace(self._question, again=True)
        return shown

    def _ask(self) -> None:
        question = replace(self._question, number=self._question.number + 1)
        self._asked_at = time.monotonic()
        with suppress(zmq.Again):  # nobody has taken the last one yet: one is enough
            self._socket.send(encode(question), zmq.NOBLOCK)
            self._question = question

    def _answer(self, deadline: float) -> Shown:
        """Wait for an answer, and repeat the question if none comes."""
        while not self._socket.poll(max(0, int((min(deadline, self._ask_at()) - time.monotonic()) * 1000))):
            now = time.monotonic()
            self._dialled.look()
            if now >= self._ask_at():
                self._ask()
            if now >= deadline:
                text = f"no tap answers at {self._where}: was the program there started with --tap?"
                raise TimedOut(self._refusal or text)
        frames = self._socket.recv_multipart()
        try:
            answer = decode_answer(frames[-1])
            if isinstance(answer, Shown) and not self._answered < answer.number <= self._question.number:
                raise ProtocolError("an answer to no question")
        except ProtocolError as error:
            self._asked_at = None
            raise ChappeError(f"what answers at {self._where} is not a tap: {error}") from None
        if isinstance(answer, Refused):
            self._asked_at = None
            raise ChappeError(f"the tap at {self._where} refuses: {answer.reason}")
        self._answered = answer.number
        return answer

    def _ask_at(self) -> float:
        """Return when to repeat the question: ever later, as a slow member has to answer each."""
        assert self._asked_at is not None
        return self._asked_at + ANSWER_S * 2.0 ** min(self._question.number - self._answered - 1, ANSWER_DOUBLED_MAX)

    def _refused(self, event: object) -> None:
        self._refusal = str(event)

    def close(self) -> None:
        self._dialled.close()
        self._socket.close()
