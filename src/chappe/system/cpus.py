"""Binds threads and processes to processors."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from contextlib import suppress

from chappe.errors import UsageError


def check(cpus: Iterable[int]) -> tuple[int, ...]:
    """The processors in the order given.

    Raises:
        UsageError: None is given, one may not be used by this process, or the system cannot bind.
    """
    found = tuple(cpus)
    if sys.platform != "linux":
        raise UsageError("cpus needs Linux: this system does not bind processes to processors")
    allowed = os.sched_getaffinity(0)
    if not found or not allowed.issuperset(found):
        raise UsageError(f"cpus are some of the processors {sorted(allowed)} that this process may use, not {found}")
    return found


def bind(pid: int, cpu: int) -> None:
    """Have a process, or the calling thread if ``pid`` is 0, run on one processor."""
    if sys.platform == "linux":
        with suppress(ProcessLookupError):  # it has ended already
            os.sched_setaffinity(pid, {cpu})
