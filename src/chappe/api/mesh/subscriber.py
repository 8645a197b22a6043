"""Subscribing to topics of the mesh."""

from __future__ import annotations

import math
import sys
from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from chappe.api.faces import Seconds
from chappe.api.mesh.arguments import encode_topic
from chappe.api.mesh.hosting import EndpointHost
from chappe.api.mesh.received import Received
from chappe.api.mesh.source import JOIN_S, EndpointSource, Item
from chappe.api.mesh.waiting import deadline_after, time_left
from chappe.columns import reader
from chappe.defaults import DROPS_REPORT_S, KIB, SURPLUS_BYTES_MAX, SURPLUS_MESSAGES_MAX
from chappe.errors import BufferFull, UsageError
from chappe.mesh.events import Gap, MessagesMalformed
from chappe.mesh.filters import minimal
from chappe.mesh.forwarding.boxes import Policy, SubscriberInbox
from chappe.mesh.messages import DATA, Message
from chappe.mesh.places import MessageGaps
from chappe.system import time

if TYPE_CHECKING:
    import pyarrow as pa

    from chappe.columns.events import EventColumns

OnGap: TypeAlias = Callable[[Gap], object]
CHUNK: Final = 256  # messages that ``get`` takes from the queue at once ...
CHUNK_SHARE: Final = 64  # ... or this part of the queue's bound, so that a short queue stays fresh ...
CHUNK_BYTES: Final = 256 * KIB  # ... or so many bytes of them, and at least one


class MessageSource(EndpointSource[Item]):
    """A subscription, and its queue. The lock is held by whoever delivers."""

    def __init__(
        self, endpoint: EndpointHost, number: int, topics: Iterable[str], inbox: SubscriberInbox,
        messages_max: int, bytes_max: int, on_gap: OnGap | None = None,
        last: bool = False,
    ) -> None:  # fmt: skip
        self.number = number
        self._topics = set(topics)
        self._inbox = inbox
        self._messages_max = messages_max
        self._bytes_max = bytes_max
        self._chunk = max(1, min(CHUNK, messages_max // CHUNK_SHARE))
        self._ahead: deque[Message] = deque()  # taken from the queue, not yet handed out
        self._not_taken = 0  # messages that the endpoint dropped for this one, counted here once it is closed
        self._last = last
        self.queue = b""  # the topic of the queue that it is in
        self._on_gap = on_gap
        self._gaps = None if on_gap is None else MessageGaps()
        if self._gaps is not None:
            inbox.on_drop = self._gaps.dropped
        self._level = 0  # 1: full; 2: beyond what is on its way as a rule; 3: beyond twice that
        super().__init__(endpoint)

    # -- reading --------------------------------------------------------------------------------------

    def _taken(self, n: int, timeout: Seconds) -> list[Message]:
        if self._gaps is not None:  # who takes is told first, so that nothing is lost if ``on_gap`` raises
            deadline = deadline_after(timeout)
            there = self._wait(deadline)
            self._tell_gaps()
            if not there:
                return []
            timeout = time_left(deadline)
        return super()._taken(n, timeout)

    def _miss(self, dropped: list[Message]) -> None:
        if self._gaps is not None:
            for each in dropped:
                self._gaps.dropped(each)

    def _tell_gaps(self) -> None:
        if self._gaps is not None and self._gaps.untold and self._on_gap is not None:
            with self._lock:
                found = self._gaps.take()
            for each in found:
                self._on_gap(each)

    def _wait(self, deadline: float) -> bool:
        if not self._filled():
            with self._lock:
                self._check()
            if not self._waiting.wait(time_left(deadline)):
                self._waiting.check()
                return False
        return True

    @property
    def available(self) -> int:
        """The number of messages that are there."""
        return len(self._ahead) + len(self._inbox)

    @property
    def dropped(self) -> int:  # type: ignore[override]
        """The number of messages that the policy has dropped because this subscriber was too slow."""
        here = self._endpoint.core.router.dropped_here
        return self._inbox.dropped + self._not_taken + here.get(self.number, 0)

    def fd(self) -> int:
        """Return a descriptor for select, poll and event loops, readable while messages are there; do not read it."""
        with self._lock:
            self._chunk = 1  # so that the descriptor tells of all that is there
            return self._waiting.fileno()

    # -- topics ---------------------------------------------------------------------------------------

    @property
    def topics(self) -> frozenset[str]:
        """The prefixes that are wanted."""
        return frozenset(self._topics)

    def add(self, *topics: str) -> None:
        """Add prefixes; publications of peers that have heard of it arrive. Raises as ``Endpoint.subscribe``."""
        with self._lock:
            self._waiting.check()
            raw = [encode_topic(each) for each in topics]
            self._endpoint.require_subscribe(raw)
            if self._node.runs():
                core, now = self._endpoint.core, time.monotonic()
                self._node.do(core.subscribe(self.number, raw, DATA, False, self._last, now=now))
                try:
                    self._tell_queue(now)
                except UsageError:
                    had = {encode_topic(each) for each in self._topics}
                    self._node.do(core.unsubscribe(self.number, [each for each in raw if each not in had], now))
                    raise
            self._topics.update(topics)

    def remove(self, *topics: str) -> None:
        """Remove prefixes; unknown ones are ignored."""
        with self._lock:
            self._waiting.check()
            if self._node.runs():
                raw, now = [encode_topic(each) for each in topics], time.monotonic()
                self._node.do(self._endpoint.core.unsubscribe(self.number, raw, now))
                self._tell_queue(now)
            self._topics.difference_update(topics)
            if self._gaps is not None:
                self._gaps.wants(minimal(map(encode_topic, self._topics)))

    # -- inside ---------------------------------------------------------------------------------------

    def _tell_queue(self, now: float) -> None:
        if self.queue:
            self._node.do(self._node.member.put_in_queue(self.number, self.queue, now))

    def deliver(self, messages: list[Message]) -> None:
        """Take messages from the core; the lock is held."""
        inbox = self._inbox
        if self._gaps is not None:
            self._gaps.came(messages)
        inbox.put_many(messages)
        if inbox.dropped != self._reported:
            self._report_dropped(inbox.dropped, f"a subscriber to {', '.join(sorted(self._topics)) or 'everything'}")
        if inbox.policy is Policy.BLOCK:
            self._fill(max(self._level, self._found_level()))
        elif inbox.overflowed:
            self._endpoint.forget(self.number)
            self._node.turns.news = True
        self._waiting.changed()

    def _found_level(self) -> int:
        """Return how many bounds are met: the subscriber's own, and those of the surplus."""
        messages, size = len(self._inbox) - self._messages_max, self._inbox.bytes - self._bytes_max
        if messages < 0 and size < 0:
            return 0
        return 1 + min(2, max(messages // SURPLUS_MESSAGES_MAX, size // SURPLUS_BYTES_MAX))

    def _fill(self, level: int) -> None:
        if level != self._level:
            self._level = level
            self._node.fill(self.number, level > 0, level > 1, level > 2)

    def ready(self) -> bool:
        """True if ``get`` would not wait."""
        return self._filled() or self._inbox.overflowed or self._waiting.closed

    def _filled(self) -> bool:
        return bool(self._ahead) or len(self._inbox) > 0

    def _check(self) -> None:
        self._waiting.check()
        if self._inbox.overflowed:
            raise BufferFull(
                f"this subscriber was too slow, {self._inbox.dropped} messages were lost and its subscription has "
                "ended: subscribe again, with a larger queue or another policy"
            )

    def _take(self, n: int) -> list[Message]:
        found = [self._ahead.popleft() for _ in range(min(n, len(self._ahead)))]
        return found + self._take_queued(n - len(found)) if len(found) < n else found

    def _take_queued(self, count: int, size: float = math.inf) -> list[Message]:
        inbox = self._inbox
        if not len(inbox) or self._waiting.closed:
            return []
        found = inbox.take_many(count, size)
        if self._level:
            self._node.drained(self.number, len(found))
            if 2 * len(inbox) <= self._messages_max and 2 * inbox.bytes <= self._bytes_max:
                self._fill(0)
            elif self._level > 1:
                self._fill(max(1, min(self._level, self._found_level())))
        return found

    def _leave(self) -> None:
        self._endpoint.forget(self.number)
        self._fill(0)
        self._not_taken += self._endpoint.core.router.dropped_here.pop(self.number, 0)
        self._ahead.clear()


class Subscriber(MessageSource[Received]):
    """Messages whose topic starts with one of the wanted prefixes, in the order in which they came.

    Made by ``Endpoint.subscribe``. Use from several threads is safe; each message goes to one of them.
    """

    _malformed = _malformed_told = 0
    _malformed_at = -math.inf  # the time of the last report of malformed messages

    def get(self, timeout: Seconds = None) -> Received | None:
        """Return the next message, or None after ``timeout`` seconds. Raises as ``Source.get``."""
        ahead = self._ahead
        deadline: float | None = None
        while True:
            if self._on_gap is not None:
                self._tell_gaps()
            try:
                message = ahead.popleft()
            except IndexError:
                deadline = deadline_after(timeout) if deadline is None else deadline
                if not self._wait(deadline):
                    return None
                with self._lock:
                    self._ahead.extend(self._take_queued(self._chunk, CHUNK_BYTES))
                    self._waiting.changed()  # there may be something for other threads too
                    self._node.turns.tell()
            else:
                if self._chunk == 1:
                    with self._lock:
                        self._waiting.changed()
                return Received(message)

    def read_arrow(self, timeout: Seconds = None) -> list[pa.RecordBatch]:
        """Return all messages that are there as columns; wait for one, at most ``timeout`` seconds (None: for ever).

        There is a record batch for each event and types of its arguments, in the order of their first rows; its rows
        are in the order in which the messages came. Each message of a batch of Zeek is a row. Columns:

        - ``topic``: string;
        - ``event``: string, the event's name; null for a value that is not an event;
        - ``network_time``: timestamp[ns, UTC], the event's time by Zeek's clock, if it has one;
        - ``_1``, ``_2``, ...: the arguments; of any other vector its elements, else the one value.

        A column has the one type of Arrow that its values have (``chappe.columns.shapes`` has the table); none is null
        in any of them. Messages with other types of arguments, or another number of them, are in another batch.
        Messages that are not a value, are sealed and cannot be opened here, or have more than 100 arguments, are left
        out, counted in ``malformed`` and reported to ``Endpoint.statuses``.

        A batch holds at most 256 MiB of payloads; further messages are in further batches.

        Returns:
            An empty list after ``timeout``.

        Raises:
            UsageError: pyarrow or numpy is not installed: ``pip install 'chappe[arrow]'``. Nothing was taken.
            BufferFull, TooSlow, Closed: As ``get``.
        """
        read = reader()
        deadline = deadline_after(timeout)
        while messages := self.take_messages(sys.maxsize, time_left(deadline)):
            batches = self.count_malformed(read([m.topic for m in messages], [m.payload for m in messages]))
            if batches:
                return batches
        return []

    @property
    def malformed(self) -> int:
        """The number of messages, those in batches of Zeek included, that ``read_arrow`` could not decode."""
        return self._malformed

    def take_messages(self, n: int, timeout: Seconds = None) -> list[Message]:
        """Take messages as ``get_many`` does, with ids and topics as bytes: for forwarders and decoders."""
        return self._taken(n, timeout)

    # -- inside ---------------------------------------------------------------------------------------

    def put_back(self, messages: list[Message]) -> None:
        """Put the messages that were taken last back in front."""
        with self._lock:
            self._ahead.extendleft(reversed(messages))
            self._waiting.changed()

    def count_malformed(self, found: EventColumns) -> list[pa.RecordBatch]:
        """Return the batches that ``read_arrow`` has decoded; count malformed messages, and report them at times."""
        if found.malformed:
            with self._lock:
                self._malformed += found.malformed
                now = time.monotonic()
                if now - self._malformed_at >= DROPS_REPORT_S:
                    news = self._malformed - self._malformed_told
                    self._malformed_at, self._malformed_told = now, self._malformed
                    self._endpoint.report(MessagesMalformed(found.topic, news, found.reason))
        return found.batches

    def _shown(self, found: list[Message]) -> list[Received]:
        return [Received(each) for each in found]


EVENTS_MAX: Final = 1_000  # that wait for one subscriber; then the oldest are dropped and counted


class StatusSubscriber(EndpointSource[Any]):
    """Statuses and errors of an endpoint: the classes of ``chappe.mesh.events``, whose text is a sentence for people.

    Made by ``Endpoint.statuses``. Use from several threads is safe; each event goes to one of them. When the endpoint
    is closed, remaining events can still be taken.
    """

    called_by = "chappe-statuses"

    def __init__(self, endpoint: EndpointHost) -> None:
        self.dropped = 0
        super().__init__(endpoint)

    def end(self) -> None:
        """Release waiting threads when the endpoint is closed."""
        with self._lock:
            self._waiting.close()
        self._waiting.join(JOIN_S)

    def report(self, event: object) -> None:
        """Take an event; the lock is held."""
        if len(self._queue) >= EVENTS_MAX:
            self._queue.popleft()
            self.dropped += 1
        self._queue.append(event)
        self._waiting.changed()

    def _leave(self) -> None:
        self._endpoint.listening.pop(self, None)
