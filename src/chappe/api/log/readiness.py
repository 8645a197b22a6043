"""Waiting until a member has met whom it needs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from chappe.errors import TimedOut
from chappe.runtime.log_seats import Seat
from chappe.system import time

LOOK_S: Final = 0.02


def wait_until(
    node: Seat[Any],
    check: Callable[[], None],
    ready: Callable[[], bool],
    missing: Callable[[str], str],
    timeout: float | None,
) -> None:
    """Wait until ``ready``, which is called with the lock held; ``check`` raises what every call of the member does.

    Raises:
        TimedOut: With what ``missing`` says is not there.
    """
    deadline = None if timeout is None else time.monotonic() + timeout
    while True:
        with node.lock:
            check()
            if ready():
                return
        left = LOOK_S if deadline is None else deadline - time.monotonic()
        if left <= 0:
            raise TimedOut(missing(f"within {timeout:g} s"))
        node.pump(min(left, LOOK_S), ready)


def no_tower(tower: str, when: str) -> str:
    """The sentence for who cannot meet anybody."""
    return f"no tower answers at {tower} {when}; start one with: chappe up"
