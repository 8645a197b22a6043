"""Lowers the priority at which this process wakes up."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


def give_way() -> None:
    """Have no thread of this process, or one that these begin later, interrupt another program as it wakes up.

    That is for who works in the background, such as a store: a record is at its consumers sooner. It gets as much of
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
