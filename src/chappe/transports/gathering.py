"""When what was published leaves: at once after silence, in a fast sequence together with what follows."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from chappe.core import Flush
from chappe.system import time

GAP_S: Final = 0.00005  # what follows so soon belongs to a sequence ...
MANY: Final = 64  # ... of which so many leave together, if there is room for them ...
LONGEST_S: Final = 0.001  # ... or as many as there are so long after the first


class LinkWriter(Protocol):
    def flush(self, effect: Flush) -> None: ...

    def look_again_at(self, due: float) -> None:
        """Call ``WriteGatherer.at_once`` then, monotonic seconds, if its ``due`` still says so."""


class WriteGatherer:
    """Gathers messages for sockets, so that each is written to once for many; the node's lock is held.

    Outboxes keep the order: whichever call writes to a socket, everything put there before leaves too.

    Args:
        writer: Has the sockets.
        room: How many messages may be gathered ...
        bytes_max: ... and about how many bytes of them; one message may always be.
        clock: Tells the time, monotonic seconds.
    """

    def __init__(
        self,
        writer: LinkWriter,
        room: int,
        bytes_max: int,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self.due = math.inf
        self.many = False  # several messages left last: who publishes does well to read what comes back
        self._clock = clock or time.monotonic
        self._writer = writer
        self._many = min(MANY, room)
        self._bytes_max = bytes_max
        self._waiting: dict[int, Flush] = {}  # by connection
        self._last: Sequence[Flush] = ()  # added last
        self._count = 0
        self._bytes = 0
        self._asked_at = -math.inf
        self._held = False

    def add(self, flushes: Sequence[Flush], size: int = 0) -> None:
        """Note a message of so many bytes for these sockets; ``soon`` or ``at_once`` follows."""
        if flushes:
            self._count += 1
            self._bytes += size
            if flushes is not self._last:  # as a rule they are those of the message before
                self._last = flushes
                for each in flushes:
                    self._waiting[each.link] = each

    def soon(self, now: float) -> None:
        """Let the last message leave with later ones, as nobody waits for it."""
        quick = now < self._asked_at + GAP_S
        self._asked_at = now
        if not quick or self._count >= self._many or self._bytes >= self._bytes_max or now >= self.due:
            self.at_once()
            self._asked_at = self._clock()  # writing to many peers takes longer than the gap, and is no pause
        elif self.due == math.inf and self._waiting and not self._held:
            self.due = now + LONGEST_S
            self._writer.look_again_at(self.due)

    def at_once(self) -> None:
        if self._held:
            return
        self.many = self._count > 1
        self._count = self._bytes = 0
        self.due = math.inf
        self._last = ()
        waiting, self._waiting = self._waiting, {}
        for each in waiting.values():
            self._writer.flush(each)

    def hold(self) -> None:
        """Write nothing until ``let_go``; the lock is held all the time between."""
        self._held = True

    def let_go(self) -> None:
        self._held = False
        self.at_once()
