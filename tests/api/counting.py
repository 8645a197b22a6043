"""Who increments a counter of a data store while its masters die."""

from __future__ import annotations

import threading
import time

from tests.endpoints import PATIENCE_S, until

from chappe import DataStore


class Writer:
    """Increments a counter, one after the other, until it is told to stop; ``confirmed`` counts those that were."""

    def __init__(self, store: DataStore) -> None:
        self.store = store
        self.confirmed = 0
        self.longest_s = 0.0  # that one of them took
        self.failed: list[Exception] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                began = time.monotonic()
                self.store.increment("n", timeout=PATIENCE_S)
                self.longest_s = max(self.longest_s, time.monotonic() - began)
                self.confirmed += 1
        except Exception as error:
            self.failed.append(error)

    def more(self, count: int = 20) -> None:
        """Wait until so many more were confirmed."""
        wanted = self.confirmed + count
        until(lambda: self.confirmed >= wanted or self.failed)
        assert self.failed == []

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(PATIENCE_S)
        assert self.failed == []
