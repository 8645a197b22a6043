"""What wakes a thread that sleeps on descriptors."""

from __future__ import annotations

import select
import sys
import threading
import time

import pytest

from chappe.system.machine import Wakeup


def _readable(wakeup: Wakeup) -> bool:
    return bool(select.select([wakeup], [], [], 0)[0])


def test_a_wakeup_is_readable_from_set_to_clear() -> None:
    wakeup = Wakeup()
    try:
        assert not _readable(wakeup)
        wakeup.set()
        wakeup.set()
        assert _readable(wakeup)
        wakeup.clear()
        assert not _readable(wakeup)
    finally:
        wakeup.close()


@pytest.mark.skipif(sys.platform != "linux", reason="only there another thread has to wait meanwhile")
def test_who_wakes_keeps_the_interpreter() -> None:
    wakeup = Wakeup()
    count = 0
    over = False

    def want_it() -> None:
        nonlocal count
        while not over:
            count += 1
            time.sleep(0)

    def unmoved() -> bool:
        began = count
        for _ in range(20_000):
            wakeup.set()
        return count == began

    before = sys.getswitchinterval()
    thread = threading.Thread(target=want_it, daemon=True)
    try:
        thread.start()
        while not count:
            time.sleep(0)
        sys.setswitchinterval(600.0)  # nobody takes it from us
        assert any(unmoved() for _ in range(10))  # what it asked for before is still granted, once
    finally:
        over = True
        sys.setswitchinterval(before)
        thread.join()
        wakeup.close()
