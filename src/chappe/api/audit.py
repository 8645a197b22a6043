"""Refusals as records of a topic: identity, action, rule and time."""

from __future__ import annotations

import json
import logging
import math
import threading
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Final

from chappe.api.faces import Closeable
from chappe.api.log.producer import Producer
from chappe.defaults import KEYS_COME_S
from chappe.errors import BufferFull, ChappeError, Sealed, UsageError
from chappe.permissions.rules import PRODUCE
from chappe.runtime.log_seats import Where
from chappe.security import LogSecurity
from chappe.system import time
from chappe.system.forking import own
from chappe.transports.refusals import NotedRefusal, audited

logger = logging.getLogger("chappe")

AUDIT_S: Final = 1.0  # between two looks; in each at most so many records are written as ``refusals.NOTED_MAX`` says
TOPIC_AGAIN_S: Final = 3600.0  # of refusals about the audit topic itself one of each identity is written in that time
IDENTITIES_MAX: Final = 1_000  # that are remembered for it; then the one that was told first is forgotten
AGAIN_S: Final = 10.0  # until it is tried again to reach the log
CLOSE_S: Final = 5.0  # what was refused before the end is written for so long


class Audit(Closeable):
    """Writes the refusals of members of this process to a topic, until it is closed.

    Members are those with an identity: towers, stores, forwarders, producers, consumers, map servers, witnesses,
    servers of chains, taps, endpoints of the mesh, WebSocket faces. A record has the identity that was refused as
    its key, and as its value an object of JSON: ``at`` (UTC), ``by`` (the identity of this process), ``who`` (empty
    for a stranger), ``verb`` (of the permissions, or ``join``), ``topic`` (with ``*`` behind a prefix; empty where
    there is none), ``why`` (with the line of the rule), ``count``. Of the same who, verb and topic there is one record
    a second, and 100 a second in all; further refusals are counted in one record without ``who``, whose ``verb`` is
    ``left out``.

    Refusals about the audit topic itself give one record an hour for each identity: two members that refuse each
    other's records would else write about that for ever.

    The log is reached at the first refusal. While that fails it is tried every ten seconds, and the log of Python says
    why; refusals meanwhile are lost except for their number. An audit holds up no member.

    Raises:
        UsageError: An argument is wrong, or this process has an ``Audit`` already.
        NotPermitted: The identity may not produce the topic.
    """

    def __init__(
        self,
        topic: str,
        *,
        tower: str | None = None,
        listen: str | None = None,
        forwarders: str | Sequence[str] | None = None,
        security: LogSecurity = None,
    ) -> None:
        own(self)
        Where.parse(tower, listen, forwarders, security).require(PRODUCE, topic)
        self.topic = topic
        self._tower = tower
        self._listen = listen
        self._forwarders = forwarders
        self._security = security
        self._producer: Producer | None = None
        self._by = ""
        self._lost = 0
        self._told_at: dict[str, float] = {}  # refusals about the topic itself, by identity, the oldest first
        self._again_at = 0.0
        self._ended = threading.Event()
        if not audited.begin():
            raise UsageError("this process writes down what it refuses already: close the other Audit first")
        self._thread = threading.Thread(target=self._run, name="chappe-audit", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Write the refusals so far, and no more. Safe to call twice."""
        if self._ended.is_set():
            return
        self._ended.set()
        self._thread.join()
        audited.end()
        if self._producer is not None:
            with suppress(ChappeError):  # nobody is there to store it
                self._producer.close(CLOSE_S)

    # -- inside ---------------------------------------------------------------------------------------

    def _run(self) -> None:
        ended = False
        while not ended:
            ended = self._ended.wait(AUDIT_S)
            try:
                self._look()
            except Exception:  # a thread that ended here would write nothing any more
                logger.exception("what was refused is not written to topic %s because of a defect", self.topic)

    def _look(self) -> None:
        noted, left_out = audited.take()
        if not noted:
            return
        self._lost += left_out
        if self._producer is None and not self._open():
            self._lost += sum(each.count for each in noted)
            return
        assert self._producer is not None
        lines = [(each.who, self._line(each)) for each in noted if not self._own(each) and not self._known(each)]
        if self._lost:
            lines.append(
                (
                    "",
                    self._line(
                        NotedRefusal("", "left out", "", "more was refused than is written", time.time_ns(), self._lost)
                    ),
                )
            )
        lost, self._lost = self._lost, 0
        try:
            for who, line in lines:
                self._send(self._producer, who, line)
        except (BufferFull, ChappeError) as error:
            self._lost = lost + sum(each.count for each in noted)
            self._complain(error)
            if not isinstance(error, BufferFull):
                self._give_up()

    def _send(self, producer: Producer, who: str, line: bytes) -> None:
        """Send a record; wait for keys if the topic is sealed and they may come."""
        until = time.monotonic() + KEYS_COME_S
        while True:
            try:
                producer.send(line, key=who.encode())
                return
            except Sealed as error:
                if not error.passing or time.monotonic() >= until or self._ended.wait(AUDIT_S):
                    raise

    def _own(self, noted: NotedRefusal) -> bool:
        """True for a refusal about this topic, written by us: recording it would never end."""
        return (noted.who, noted.topic) == (self._by, self.topic)

    def _known(self, noted: NotedRefusal) -> bool:
        """True for a refusal about this topic whose identity had a record not long ago."""
        if noted.topic != self.topic:
            return False
        now, before = time.monotonic(), self._told_at.get(noted.who, -math.inf)
        if now - before < TOPIC_AGAIN_S:
            return True
        self._told_at.pop(noted.who, None)
        self._told_at[noted.who] = now
        if len(self._told_at) > IDENTITIES_MAX:
            del self._told_at[next(iter(self._told_at))]
        return False

    def _line(self, noted: NotedRefusal) -> bytes:
        at = datetime.fromtimestamp(noted.at_ns / 1e9, UTC).isoformat(timespec="milliseconds")
        facts = {"at": at, "by": self._by, "who": noted.who, "verb": noted.verb, "topic": noted.topic}
        return json.dumps({**facts, "why": noted.why, "count": noted.count}).encode()

    def _open(self) -> bool:
        now = time.monotonic()
        if now < self._again_at:
            return False
        self._again_at = now + AGAIN_S
        try:
            where = Where.parse(self._tower, self._listen, self._forwarders, self._security)
            self._by = where.keys.name if where.keys is not None else ""
            self._producer = Producer(
                self.topic,
                tower=self._tower,
                listen=self._listen,
                forwarders=self._forwarders,
                on_full="error",
                security=self._security,
            )
        except ChappeError as error:
            self._complain(error)
            return False
        return True

    def _complain(self, error: Exception) -> None:
        logger.warning("what was refused is not written to topic %s: %s", self.topic, error)

    def _give_up(self) -> None:
        assert self._producer is not None
        with suppress(ChappeError):
            self._producer.close(0.0)
        self._producer = None
        self._again_at = time.monotonic() + AGAIN_S
