"""A process of a benchmark gets orders and tells facts: lines of JSON on standard input and output.

When standard input ends, the parent is gone, and the process ends at once.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, NoReturn

from chappe.errors import ChappeError


class Orders:
    """Orders that have come and are not done yet, oldest first; a thread of its own reads them."""

    def __init__(self) -> None:
        self.on_orphaned: Callable[[], None] = lambda: None  # called before this process ends with its parent
        self._found: deque[dict[str, Any]] = deque()
        self._came = threading.Event()
        threading.Thread(target=self._read, name="orders", daemon=True).start()

    @property
    def waiting(self) -> bool:
        return bool(self._found)

    def next(self, kind: str) -> dict[str, Any]:
        """Wait for the next one, which has to be of this kind."""
        while not self._found:
            self._came.wait()
            self._came.clear()
        order = self._found.popleft()
        assert order["order"] == kind, order
        return order

    def wait(self, timeout_s: float) -> bool:
        if not self._found:
            self._came.wait(timeout_s)
            self._came.clear()
        return bool(self._found)

    def _read(self) -> None:
        for line in sys.stdin.buffer:
            self._found.append(json.loads(line))
            self._came.set()
        self.on_orphaned()
        os._exit(1)


def say(event: str, **facts: object) -> None:
    sys.stdout.write(json.dumps({"event": event, **facts}) + "\n")
    sys.stdout.flush()


def process(run: Callable[[Orders], None]) -> NoReturn:
    """Be such a process: do what the orders say until they are done, and exit."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to the whole group; the parent decides
    code = 0
    try:
        run(Orders())
    except (ChappeError, OSError) as error:
        say("failed", reason=str(error))
        code = 1
    sys.stdout.flush()
    os._exit(code)  # the thread that reads holds standard input
