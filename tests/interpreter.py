"""Whether something lets other threads have the interpreter meanwhile."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def others_go_on() -> Iterator[Callable[[], int]]:
    """Another thread that always wants the interpreter: how often it had it, which nobody is made to give up.

    Once it may have it all the same, as it had asked for it before.
    """
    count = 0
    over = False

    def want_it() -> None:
        nonlocal count
        while not over:
            count += 1
            time.sleep(0)

    before = sys.getswitchinterval()
    thread = threading.Thread(target=want_it, daemon=True)
    try:
        thread.start()
        while not count:
            time.sleep(0)
        sys.setswitchinterval(600.0)
        yield lambda: count
    finally:
        over = True
        sys.setswitchinterval(before)
        thread.join()
