"""A process that gives way to others, in all its threads and those to come."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(not hasattr(os, "SCHED_BATCH"), reason="this system has no such scheduler")

PROGRAM = """
import os, threading
from chappe.system.cpus import give_way

def later(number):
    found[number] = os.sched_getscheduler(0)

found, go = {}, threading.Event()
before = threading.Thread(target=lambda: (go.wait(), later(1)))
before.start()
give_way()
go.set()
after = threading.Thread(target=later, args=(2,))
after.start()
before.join(), after.join(), later(0)
print([found[each] for each in range(3)])
"""


def ran(before: str = "") -> str:
    return subprocess.run([sys.executable, "-c", before + PROGRAM], capture_output=True, text=True, check=True).stdout


def test_all_threads_give_way_and_those_that_begin_later() -> None:
    assert ran() == f"{[os.SCHED_BATCH] * 3}\n"


def test_a_scheduler_that_was_chosen_stays() -> None:
    chosen = "import os; os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))\n"
    assert ran(chosen) == f"{[os.SCHED_IDLE] * 3}\n"


def test_elsewhere_nothing_changes() -> None:
    assert ran("import os; batch = os.SCHED_BATCH; del os.SCHED_BATCH\n") == f"{[os.SCHED_OTHER] * 3}\n"
