"""A descriptor that becomes readable after a while, where the system has such: Linux's timerfd.

Setting it is one system call, and wakes nobody before its time.
"""

from __future__ import annotations

import ctypes
import os
import sys
import time
from typing import Final

_NANOSECONDS: Final = 1_000_000_000


class _Timer(ctypes.Structure):
    """``struct itimerspec``: seconds and nanoseconds of the interval, and until it is due first."""

    _fields_ = [(name, ctypes.c_long) for name in ("every_s", "every_ns", "due_s", "due_ns")]


class Alarm:
    """A timer whose descriptor is readable from its due time to ``clear``. Raises OSError if the system has none."""

    def __init__(self) -> None:
        if sys.platform != "linux":
            raise OSError("there is no timerfd")
        library = ctypes.PyDLL(None, use_errno=True)  # a call is too short to let other threads go on meanwhile
        self._settime = library.timerfd_settime
        self._settime.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
        self._timer = _Timer()
        self._where = ctypes.addressof(self._timer)
        self._descriptor: int = library.timerfd_create(time.CLOCK_MONOTONIC, os.O_CLOEXEC | os.O_NONBLOCK)
        if self._descriptor < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))

    def fileno(self) -> int:
        return self._descriptor

    def set(self, seconds: float) -> None:
        """Set the due time, more than 0 seconds from now; it replaces an earlier one. Not thread-safe."""
        self._timer.due_s, self._timer.due_ns = divmod(max(1, int(seconds * _NANOSECONDS)), _NANOSECONDS)
        self._settime(self._descriptor, 0, self._where, None)

    def clear(self) -> None:
        try:
            os.read(self._descriptor, 8)
        except BlockingIOError:
            pass  # it was set again

    def close(self) -> None:
        """Give the descriptor back; safe to call twice."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)
