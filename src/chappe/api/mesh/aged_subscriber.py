"""Subscribers with a bound on the age of messages since their publication, whatever their route.

Endpoints of chappe tell each other the time of publication, once a subscriber asks (``mesh.links.link``). The age of
a message without one, from or over an original, counts from the first endpoint of chappe that could tell; at
the latest from its arrival here.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from chappe.api.ages import OnStale, Stale
from chappe.api.faces import Seconds
from chappe.api.mesh.hosting import EndpointHost
from chappe.api.mesh.received import Received
from chappe.api.mesh.source import Source
from chappe.api.mesh.subscriber import OnGap, Subscriber
from chappe.errors import TooSlow
from chappe.mesh.events import MessagesDropped
from chappe.mesh.forwarding.boxes import SubscriberInbox
from chappe.mesh.messages import Message
from chappe.system import time


class AgedSubscriber(Subscriber):
    """A ``Subscriber`` with a bound on the age of a message when it is taken."""

    def __init__(
        self,
        endpoint: EndpointHost,
        number: int,
        topics: Iterable[str],
        inbox: SubscriberInbox,
        messages_max: int,
        bytes_max: int,
        max_age_s: float,
        on_stale: OnStale,
        on_gap: OnGap | None = None,
    ) -> None:
        self._stale = Stale(max_age_s, on_stale, self._report_stale)
        self._ended: TooSlow | None = None
        super().__init__(endpoint, number, topics, inbox, messages_max, bytes_max, on_gap)

    def get(self, timeout: Seconds = None) -> Received | None:
        return Source.get(self, timeout)

    @property
    def dropped(self) -> int:  # type: ignore[override]
        """The number of messages that were dropped, by the policy or because they were too old."""
        return super().dropped + self._stale.dropped

    # -- inside ---------------------------------------------------------------------------------------

    def deliver(self, messages: list[Message]) -> None:
        if self._ended is None:
            now = time.monotonic()
            super().deliver([replace(each, published=now) if each.published is None else each for each in messages])

    def ready(self) -> bool:
        return super().ready() or self._ended is not None

    def _check(self) -> None:
        super()._check()
        if self._ended is not None:
            raise self._ended.with_traceback(None)

    def _take(self, n: int) -> list[Message]:
        now = time.monotonic()
        found: list[Message] = []
        while len(found) < n and (taken := super()._take(n - len(found))):
            stale = self._stale_of(taken, now)
            if not stale:
                found += taken
            elif self._stale.ends:
                found += taken[: taken.index(stale[0])]
                self._end(stale, now)
                if not found:
                    self._check()
                break
            else:
                found += [each for each in taken if _age_s(each, now) <= self._stale.max_age_s]
                self._stale.drop(len(stale), max(_age_s(each, now) for each in stale))
                self._miss(stale)
                self._waiting.changed()  # though nothing may be left to be taken
                self._node.turns.tell()  # and those that are held back may go on
        return found

    def _stale_of(self, messages: list[Message], now: float) -> list[Message]:
        return [each for each in messages if _age_s(each, now) > self._stale.max_age_s]

    def _end(self, stale: list[Message], now: float) -> None:
        """End the subscription: the first of ``stale``, and of the waiting messages, is too old."""
        first = stale[0]
        topic = first.topic.decode("utf-8", "backslashreplace")
        self._leave()
        stale += self._stale_of(self._inbox.take_many(len(self._inbox)), now)
        self._ended = self._stale.error(f"a message to {topic!r}", _age_s(first, now), len(stale))
        self._waiting.changed()
        self._node.turns.news = True  # others who wait are to hear of it
        self._node.turns.tell()

    def _leave(self) -> None:
        super()._leave()
        self._stale.tell()

    def _report_stale(self, count: int, age_s: float) -> None:
        whose = ", ".join(sorted(self._topics)) or "everything"
        why = f"were older than {self._stale.max_age_s:g} s, up to {age_s:.1f} s"
        self._endpoint.report(MessagesDropped(f"for a subscriber to {whose}: they {why}", count))


def _age_s(message: Message, now: float) -> float:
    assert message.published is not None
    return now - message.published
