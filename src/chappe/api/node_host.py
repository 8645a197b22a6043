"""Common parts of servers of maps, pairs and chains: events, waiting and the end."""

from __future__ import annotations

import logging
from collections import deque
from typing import ClassVar, Final

from chappe.api import at_exit
from chappe.api.faces import Closeable, happened
from chappe.runtime.driver import Driver
from chappe.system.forking import own

logger = logging.getLogger("chappe.kv")

EVENTS_MAX: Final = 1_000


class NodeHost(at_exit.Collectable, Closeable):
    """Serves in this process until it is closed."""

    _good: ClassVar[tuple[type, ...]]  # events that are not worth a warning
    _node: Driver

    def __init__(self) -> None:
        own(self)
        self._events: deque[object] = deque(maxlen=EVENTS_MAX)

    def _begin(self) -> None:
        self._node.start()
        at_exit.opened(self)

    def _report(self, event: object) -> None:
        logger.log(logging.INFO if isinstance(event, self._good) else logging.WARNING, "%s", event)
        self._events.append(event)

    def events(self) -> list[object]:
        """Return the events since the last call: grants, refused commits and the like.

        The events are those of ``chappe.kv.chp.events``, ``chappe.replication.binary_star.events`` and
        ``chappe.replication.chain.events``. Raises MemberStopped if there are none, because of a defect.
        """
        return happened(self._events, self._node.turns.check)

    def wait(self, timeout: float | None = None) -> None:
        """Wait while it runs, or ``timeout`` seconds; Ctrl-C ends the wait. Raises MemberStopped: a defect ended it."""
        self._node.halt_event.wait(timeout)
        self._node.turns.check()

    def close(self) -> None:
        """Finish the commits under way, and stop. Safe to call twice."""
        at_exit.closed(self)
        self._node.close()
