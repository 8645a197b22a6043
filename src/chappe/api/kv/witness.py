"""The witness of pairs of servers, in this process."""

from __future__ import annotations

import logging
from collections import deque
from pathlib import Path
from typing import Final, Literal

from chappe.api.faces import Closeable
from chappe.api.kv.attaching import open_backend
from chappe.defaults import TOWER_HOST, WITNESS_PORT
from chappe.errors import UsageError
from chappe.replication.binary_star.events import Granted
from chappe.runtime.map_pair_node import WitnessNode
from chappe.system.forking import own
from chappe.transports.maps import MapAddress

logger = logging.getLogger("chappe")

EVENTS_MAX: Final = 1_000


class Witness(Closeable):
    """Decides which server of a pair serves while the two do not see each other; any number of pairs may ask it.

    It belongs on a third machine. It has no data but a few numbers for each pair, and is asked only when a pair parts
    or comes together again: without it a pair that is together goes on, and one that has parted does not serve until it
    answers.

    Args:
        listen: ``HOST:PORT``; port 0: a free one.
        path: Of the file in which it keeps what it has granted, which must not be lost.
        backend: What the file is: ``sqlite`` or ``rocksdb``.

    Raises:
        AddressInUse: The port is taken.
        StorageError: The path cannot be used.
    """

    def __init__(
        self,
        listen: str = f"{TOWER_HOST}:{WITNESS_PORT}",
        *,
        path: str | Path,
        backend: Literal["sqlite", "rocksdb"] = "sqlite",
    ) -> None:
        own(self)
        address = MapAddress.parse(listen)
        opened = open_backend(backend, {"path": path})
        if opened is None:
            raise UsageError("a witness keeps what it has granted: its backend is sqlite or rocksdb")
        self._events: deque[object] = deque(maxlen=EVENTS_MAX)
        self._node = WitnessNode(address, opened, self._report)
        self._node.start()

    def _report(self, event: object) -> None:
        logger.log(logging.INFO if isinstance(event, Granted) else logging.WARNING, "%s", event)
        self._events.append(event)

    @property
    def address(self) -> str:
        """What the servers of pairs are given."""
        return str(self._node.address)

    def events(self) -> list[object]:
        """What happened since the last call: what was granted and refused.

        Raises MemberStopped if nothing did, because it met a defect.
        """
        with self._node.lock:
            found = list(self._events)
            self._events.clear()
        if not found:
            self._node.turns.check()
        return found

    def wait(self, timeout: float | None = None) -> None:
        """Wait while it runs, at most ``timeout`` seconds (None: for ever; Ctrl-C ends the wait).

        Raises:
            MemberStopped: It met a defect, and answers nobody any more.
        """
        self._node.halt_event.wait(timeout)
        self._node.turns.check()

    def close(self) -> None:
        """Stop. Safe to call twice."""
        self._node.close()

    def __repr__(self) -> str:
        return f"<Witness {self.address}>"
