"""Runs tests as if the machine were many times busier, without loading it: ``python -m tests.slowly 15 tests/api``.

Everything that the tests start is stopped most of the time: with 15, of each 0.4 seconds it gets a fifteenth, so that
what takes a second takes fifteen, and time passes between any two instructions. ``--switch-s`` is how long a thread of
the tests' own process runs before another one may: 0.000001 shuffles them, 0.5 lets each do as much as it can. All
further arguments are pytest's. For those who maintain the tests; Linux and macOS.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable

import psutil  # type: ignore[import-untyped, unused-ignore]
import pytest

# shorter than any silence for which one of ours takes another for dead, or itself for having stood still
PERIOD_S = 0.4
SWITCH = "CHAPPE_TESTS_SWITCH_S"


def pytest_configure(config: pytest.Config) -> None:
    """As a plugin of pytest."""
    sys.setswitchinterval(float(os.environ[SWITCH]))


def send(processes: Iterable[psutil.Process], what: signal.Signals) -> None:
    for each in processes:
        try:
            each.send_signal(what)  # not to another process that has got its number
        except psutil.Error:
            pass


def slow_down(tests: subprocess.Popen[bytes], factor: float) -> int:
    """Stop and continue it and its descendants by turns until it ends; returns its exit code."""
    root = psutil.Process(tests.pid)
    while tests.poll() is None:
        family = [root, *root.children(recursive=True)]
        try:
            send(family, signal.SIGSTOP)
            time.sleep(PERIOD_S * (1 - 1 / factor))
        finally:
            send(family, signal.SIGCONT)
        time.sleep(PERIOD_S / factor)
    return tests.returncode


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.slowly", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("factor", type=float, help="how many times slower")
    parser.add_argument("--switch-s", type=float, default=sys.getswitchinterval(), help="how long a thread runs")
    options, rest = parser.parse_known_args()
    if options.factor <= 1 or options.switch_s <= 0:
        parser.error("the factor is above 1, and --switch-s above 0")
    command = [sys.executable, "-m", "pytest", "-p", "tests.slowly", *rest]
    # in a session of its own: a shell would take its foreground job for stopped
    tests = subprocess.Popen(command, env=os.environ | {SWITCH: str(options.switch_s)}, start_new_session=True)
    while True:
        try:
            return slow_down(tests, options.factor)
        except KeyboardInterrupt:
            tests.send_signal(signal.SIGINT)
        except psutil.NoSuchProcess:
            return tests.wait()


if __name__ == "__main__":
    sys.exit(main())
