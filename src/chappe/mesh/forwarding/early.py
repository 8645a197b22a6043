"""Messages that came before the news that their origin is behind who brings them.

When a link comes, what goes over it may be faster than what is told of it: a link state counts only from where its
endpoint is known to be, which may be the longer way, and is not passed on to a neighbour of its endpoint. So what
nobody may bring yet waits for a moment, in the order in which it came. Nothing of it is confirmed meanwhile.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from math import inf

from chappe.defaults import EARLY_BYTES_MAX, EARLY_MAX, EARLY_S
from chappe.errors import ProtocolError
from chappe.mesh.links.link import Link


class LossesElsewhere(ProtocolError):
    """The origin of a message is not behind who brings it, as far as is known here."""


class Early:
    """What waits."""

    def __init__(self) -> None:
        self.due = inf  # when the first has waited for long enough
        self._waiting: deque[tuple[float, Link, bytes]] = deque()  # until when, who brought it, and its body
        self._bytes = 0
        self._looked = -1  # what the network was when it was tried last

    def keep(self, link: Link, body: bytes, network: int, now: float) -> bool:
        """Have a message wait; False if too much does."""
        if len(self._waiting) >= EARLY_MAX or self._bytes + len(body) > EARLY_BYTES_MAX:
            return False
        self._add(now + EARLY_S, link, body)
        self._looked = network
        return True

    def _add(self, until: float, link: Link, body: bytes) -> None:
        self._waiting.append((until, link, body))
        self._bytes += len(body)
        self.due = self._waiting[0][0]

    def is_due(self, network: int) -> bool:
        """Whether something waits, and the network is another one than when it was tried last."""
        return bool(self._waiting) and network != self._looked

    def try_again(self, network: int, take: Callable[[Link, bytes], None]) -> None:
        """Have all that waits taken; what raises Elsewhere again stays."""
        self._looked = network
        waiting, self._waiting, self._bytes, self.due = self._waiting, deque(), 0, inf
        for until, link, body in waiting:
            try:
                take(link, body)
            except LossesElsewhere:
                self._add(until, link, body)

    def give_up(self, now: float) -> list[bytes]:
        """What has waited for long enough."""
        found = []
        while self._waiting and self._waiting[0][0] <= now:
            found.append(self._waiting.popleft()[2])
            self._bytes -= len(found[-1])
        self.due = self._waiting[0][0] if self._waiting else inf
        return found
