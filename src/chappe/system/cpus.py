"""Binds threads and processes to processors, and lets other programs go first."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from chappe.errors import UsageError


def give_way() -> None:
    """Keep threads of this process, and those that they start later, from preempting other programs on wake-up.

    For background work, such as a store: records reach their consumers sooner. The process gets as much of
    the processors as before. On Linux; elsewhere, and for threads whose scheduler was chosen (``chrt``), nothing
    changes.
    """
    if not hasattr(os, "SCHED_BATCH"):
        return
    with suppress(OSError):  # no /proc
        for each in Path("/proc/self/task").iterdir():
            with suppress(OSError):  # it has just ended
                if os.sched_getscheduler(int(each.name)) == os.SCHED_OTHER:
                    os.sched_setscheduler(int(each.name), os.SCHED_BATCH, os.sched_param(0))


def check(cpus: Iterable[int]) -> tuple[int, ...]:
    """Return the processors as given. Raises UsageError: none, one that is not ours, or the system cannot bind."""
    found = tuple(cpus)
    if sys.platform != "linux":
        raise UsageError("cpus needs Linux: this system does not bind processes to processors")
    allowed = os.sched_getaffinity(0)
    if not found or not allowed.issuperset(found):
        raise UsageError(f"cpus are some of the processors {sorted(allowed)} that this process may use, not {found}")
    return found


def bind(pid: int, cpu: int) -> None:
    """Bind a process, or the calling thread if ``pid`` is 0, to one processor."""
    if sys.platform == "linux":
        with suppress(ProcessLookupError):  # it has ended already
            os.sched_setaffinity(pid, {cpu})
