"""The clocks of this process's members: those of the operating system, unless a test has its own (``chappe.testing``).

Called as those of the module ``time``, and no slower.
"""

from __future__ import annotations

import time as _system
from collections.abc import Callable
from datetime import UTC, datetime

monotonic: Callable[[], float] = _system.monotonic
time_ns: Callable[[], int] = _system.time_ns
sleep: Callable[[float], None] = _system.sleep


def utc_now() -> datetime:
    return datetime.fromtimestamp(time_ns() / 1e9, UTC)


def use(clock: tuple[Callable[[], float], Callable[[], int], Callable[[float], None]] | None) -> None:
    """Make all members use other clocks (``monotonic``, ``time_ns``, ``sleep``); None: the system's again."""
    global monotonic, time_ns, sleep
    monotonic, time_ns, sleep = clock or (_system.monotonic, _system.time_ns, _system.sleep)
