"""Waiting for what must happen, on a machine of any speed.

A wait ends when the thing has happened; the time-out only decides when a test that would hang fails. So it is far
longer than anything takes even where thirty others work. A test must not pass or fail by how long something took.
"""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Final

import pytest

from chappe.system import time as clocks

PATIENCE_S: Final = 300.0  # for what takes a process a second or two alone; a float, as compat.broker counts by int
SPARK_S: Final = 3000  # for what starts Java, or waits for somebody who does
LOOK_S: Final = 0.005


def until(happened: Callable[[], object], what: str | Callable[[], object] = "", timeout_s: float = PATIENCE_S) -> None:
    """Wait for what no event tells. ``what`` says, when it did not happen, what was waited for."""
    deadline = time.monotonic() + timeout_s
    while not happened():
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {timeout_s:g} s: {(what() if callable(what) else what) or happened}")
        time.sleep(LOOK_S)


def ask_until(happened: Callable[[], object], timeout_s: float = PATIENCE_S / 5) -> None:
    """Ask again and again, as programs do, and take it that nobody takes the interpreter from us meanwhile."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(2 * timeout_s)
    try:
        deadline = time.monotonic() + timeout_s
        while not happened():
            assert time.monotonic() < deadline, "whoever asks keeps others from making it happen"
    finally:
        sys.setswitchinterval(interval)


def new_threads(before: set[threading.Thread]) -> list[str]:
    """The names of the threads that run beside those of ``before``, of which some may have ended."""
    return [each.name for each in threading.enumerate() if each not in before]


def interrupt(wait: Callable[[], object]) -> None:
    """Have Ctrl-C end a wait that never ends by itself.

    What it raises where an object is freed is lost, above all in pyzmq: it is pressed once more then.
    """
    # Polars, once it was used, has a handler of its own, after which waits go on.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    presses: list[threading.Timer] = []
    tell = sys.unraisablehook

    def press() -> None:
        timer = threading.Timer(0.1, signal.pthread_kill, (threading.main_thread().ident, signal.SIGINT))
        presses.append(timer)
        timer.start()

    def hear(lost: sys.UnraisableHookArgs) -> None:
        if lost.exc_type is KeyboardInterrupt:
            press()
        else:
            tell(lost)

    def run() -> None:
        press()  # the signal comes while KeyboardInterrupt is expected, however late we wait
        wait()

    sys.unraisablehook = hear
    try:
        with pytest.raises(KeyboardInterrupt):
            run()
    finally:
        sys.unraisablehook = tell
    for each in presses:
        each.join()


class Clock:
    """The clocks of this process, which a test can put forward instead of waiting. Waits under way go on."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.forward_s = 0.0
        monotonic, time_ns = time.monotonic, time.time_ns
        for each in (time, clocks):
            patch.setattr(each, "monotonic", lambda: monotonic() + self.forward_s)
            patch.setattr(each, "time_ns", lambda: time_ns() + int(self.forward_s * 1e9))
