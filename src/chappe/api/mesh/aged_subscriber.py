"""Subscribers that take nothing that has waited for too long.

A message of the mesh has no time: a subscriber can only tell how long ago it came to its endpoint. So what is delivered
at once is noted with one time. The inbox gives away what it has at the front alone, taken or dropped; so whatever has
been taken out of it meanwhile, the newest notes are those of what is left.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from itertools import takewhile

from chappe.api.ages import OnStale, Stale
from chappe.api.faces import Seconds
from chappe.api.mesh.hosting import Host
from chappe.api.mesh.received import Received
from chappe.api.mesh.source import Source
from chappe.api.mesh.subscriber import Subscriber
from chappe.errors import TooSlow
from chappe.mesh.events import MessagesDropped
from chappe.mesh.forwarding.boxes import Inbox
from chappe.mesh.messages import Message
from chappe.mesh.policy import Policy
from chappe.system import time


class AgedSubscriber(Subscriber):
    """As ``Subscriber``, with a bound for how long a message may have waited when it is taken."""

    def __init__(
        self,
        endpoint: Host,
        number: int,
        topics: Iterable[str],
        inbox: Inbox,
        messages_max: int,
        bytes_max: int,
        max_age_s: float,
        on_stale: OnStale,
    ) -> None:
        self._came: deque[tuple[float, int]] = deque()  # when, and how many
        self._noted = 0  # of all of these
        self._stale = Stale(max_age_s, on_stale, self._report_stale)
        self._ended: TooSlow | None = None
        super().__init__(endpoint, number, topics, inbox, messages_max, bytes_max)

    def get(self, timeout: Seconds = None) -> Received | None:
        """See ``Source.get``."""
        return Source.get(self, timeout)

    @property
    def dropped(self) -> int:  # type: ignore[override]
        """How many messages were dropped because this subscriber was too slow, or they had waited too long."""
        return super().dropped + self._stale.dropped

    # -- inside ---------------------------------------------------------------------------------------

    def deliver(self, messages: list[Message]) -> None:
        """See ``Subscriber.deliver``."""
        if self._ended is not None:
            return
        before = self._inbox.dropped
        super().deliver(messages)
        refused = 0 if self._inbox.policy is Policy.DROP_OLDEST else self._inbox.dropped - before
        if len(messages) > refused:
            self._came.append((time.monotonic(), len(messages) - refused))
            self._noted += len(messages) - refused
        self._trim()

    def ready(self) -> bool:
        """See ``Subscriber.ready``."""
        return super().ready() or self._ended is not None

    def _check(self) -> None:
        super()._check()
        if self._ended is not None:
            raise self._ended.with_traceback(None)

    def _take(self, n: int) -> list[Message]:
        self._trim()
        before = time.monotonic() - self._stale.max_age_s
        stale = sum(count for _, count in takewhile(lambda note: note[0] < before, self._came))
        if stale:
            age_s = time.monotonic() - self._came[0][0]
            if self._stale.ends:
                topic = super()._take(1)[0].topic.decode("utf-8", "backslashreplace")
                self._ended = self._stale.error(f"a message to {topic!r}", age_s, stale)
                self._leave()
                self._empty()
                raise self._ended
            super()._take(stale)
            self._stale.drop(stale, age_s)
            self._waiting.changed()  # though nothing may be left to be taken
            self._node.turns.tell()  # and those that are held back may go on
        found = super()._take(n)
        self._trim()
        return found

    def _leave(self) -> None:
        super()._leave()
        self._stale.tell()

    def _empty(self) -> None:
        self._inbox.take_many(len(self._inbox))
        self._trim()
        self._waiting.changed()
        self._node.turns.news = True  # others who wait are to hear of it
        self._node.turns.tell()

    def _trim(self) -> None:
        """Forget when those came that have left the inbox."""
        gone = self._noted - len(self._inbox)
        self._noted -= gone
        while gone:
            at, count = self._came.popleft()
            if count > gone:
                self._came.appendleft((at, count - gone))
            gone -= min(gone, count)

    def _report_stale(self, count: int, age_s: float) -> None:
        whose = ", ".join(sorted(self._topics)) or "everything"
        why = f"had waited longer than {self._stale.max_age_s:g} s, up to {age_s:.1f} s"
        self._endpoint.report(MessagesDropped(f"for a subscriber to {whose}: they {why}", count))
