"""What wakes a thread that sleeps on descriptors."""

from __future__ import annotations

import select
import sys
from collections.abc import Callable

import pytest
from tests.interpreter import others_go_on

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
@pytest.mark.parametrize("act", [Wakeup.set, Wakeup.clear])
def test_who_wakes_and_who_was_woken_keep_the_interpreter(act: Callable[[Wakeup], None]) -> None:
    wakeup = Wakeup()
    with others_go_on() as count:

        def unmoved() -> bool:
            began = count()
            for _ in range(20_000):
                act(wakeup)
            return count() == began

        assert any(unmoved() for _ in range(10))
    wakeup.close()
