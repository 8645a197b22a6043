"""Counting messages, commands of data stores included, without keeping them."""

from __future__ import annotations

from collections.abc import Iterable

from chappe.api.mesh.arguments import encode_topic
from chappe.api.mesh.hosting import EndpointHost
from chappe.mesh.messages import COMMAND, DATA, Message
from chappe.system import time


class Tally:
    """Counts the messages to prefixes of topics; notes the times of the last one, and of number ``wanted``."""

    def __init__(self, endpoint: EndpointHost, topics: Iterable[str], wanted: int) -> None:
        self.count = 0
        self.last_at: float | None = None
        self.done_at: float | None = None
        self._wanted = wanted
        raw = [encode_topic(each) for each in topics]
        for kind in (DATA, COMMAND):
            endpoint.take(self, raw, kind)

    def deliver(self, messages: list[Message]) -> None:
        """Take messages from the core; the lock is held."""
        self.count += len(messages)
        self.last_at = time.monotonic()
        if self.done_at is None and self.count >= self._wanted:
            self.done_at = self.last_at

    def close(self) -> None:
        """Do nothing: a closed endpoint leaves nothing to release."""
