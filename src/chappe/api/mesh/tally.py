"""Counting what comes, commands of data stores included, and keeping nothing of it."""

from __future__ import annotations

from collections.abc import Iterable

from chappe.api.mesh.arguments import encode_topic
from chappe.api.mesh.hosting import EndpointHost
from chappe.mesh.messages import COMMAND, DATA, Message
from chappe.system import time


class Tally:
    """How many messages have come to these prefixes, and when, by ``time.monotonic``, the last one did.

    Args:
        endpoint: Where; the counting ends with it.
        topics: Prefixes.
        wanted: ``done_at`` is when so many had come.
    """

    def __init__(self, endpoint: EndpointHost, topics: Iterable[str], wanted: int) -> None:
        self.count = 0
        self.last_at: float | None = None
        self.done_at: float | None = None
        self._wanted = wanted
        raw = [encode_topic(each) for each in topics]
        for kind in (DATA, COMMAND):
            endpoint.take(self, raw, kind)

    def deliver(self, messages: list[Message]) -> None:
        """The core has messages; the lock is held."""
        self.count += len(messages)
        self.last_at = time.monotonic()
        if self.done_at is None and self.count >= self._wanted:
            self.done_at = self.last_at

    def close(self) -> None:
        """The endpoint is closed: nothing is to be released."""
