"""Leases of viewers on open things: a viewer that does not renew its lease has left, in whatever way."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Hashable
from typing import Final

from chappe.errors import ChappeError

logger = logging.getLogger("chappe")

LEASE_S: Final = 10.0
LOOK_S: Final = 2.0


class Leases:
    """Closes what nobody touches any more. Use from several threads is safe."""

    def __init__(self, lease_s: float = LEASE_S) -> None:
        self._lease_s = lease_s
        self._until: dict[Hashable, tuple[float, Callable[[], object]]] = {}
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="chappe-leases", daemon=True)
        self._thread.start()

    def __len__(self) -> int:
        return len(self._until)

    def touch(self, key: Hashable, close: Callable[[], object]) -> None:
        """Somebody looks at it: if nobody does so again for some seconds, ``close`` is called, from another thread."""
        with self._lock:
            self._until[key] = (time.monotonic() + self._lease_s, close)

    def end(self, key: Hashable) -> None:
        with self._lock:
            self._until.pop(key, None)

    def close(self) -> None:
        self._ended.set()
        self._thread.join()
        self._expire(float("inf"))

    def _run(self) -> None:
        while not self._ended.wait(min(LOOK_S, self._lease_s)):
            self._expire(time.monotonic())

    def _expire(self, now: float) -> None:
        with self._lock:
            over = [key for key, (until, _) in self._until.items() if until <= now]
            closing = [self._until.pop(key)[1] for key in over]
        for close in closing:
            try:
                close()
            except (ChappeError, OSError) as error:
                logger.info("%s", error)
            except Exception:  # a thread that ended here would close nothing any more
                logger.exception("something that nobody looks at any more cannot be closed because of a defect")
