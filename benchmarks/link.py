"""A child's side of its conversation with the suite; standard library only, for peers' interpreters use it too.

Orders come as lines of JSON on standard input, facts leave as lines of JSON on standard output. Instants are
``time.monotonic_ns()``, which all processes of a machine share.
"""

from __future__ import annotations

import ctypes
import itertools
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

RECORD_BYTES = 100
LIST_RECORDS = 10_000  # records made beforehand and sent again and again
LISTS_BYTES = 8 << 20  # fewer of them, where they are larger
SIP_S = 0.005
_PR_SET_PDEATHSIG = 1


def tether(ending: signal.Signals = signal.SIGKILL) -> None:
    """Have the kernel send ``ending`` to this process when the suite dies, however it dies; Linux only."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, ending)
        if os.getppid() == 1:
            sys.exit(1)


def say(**fact: object) -> None:
    """Tell the suite a fact."""
    sys.stdout.write(json.dumps(fact) + "\n")
    sys.stdout.flush()


def orders() -> Iterator[dict[str, Any]]:
    """What the suite wants, one after the other, until it closes the pipe."""
    for line in sys.stdin:
        yield json.loads(line)


def records(size: int = RECORD_BYTES) -> list[bytes]:
    """Different records of ``size`` bytes each, eight or more of them."""
    return [b"%0*d" % (size, number) for number in range(min(LIST_RECORDS, LISTS_BYTES // size))]


def json_lines() -> list[bytes]:
    """As many different lines of a log, of about a hundred bytes each."""
    return [
        b'{"level":"info","ts":%d,"service":"auth","text":"user %d logged in from 10.0.%d.%d"}'
        % (1_700_000_000_000 + 7 * n, n * 7919 % 10_007, n % 200, n * 31 % 250)
        for n in range(LIST_RECORDS)
    ]


def lists(count: int, size: int = RECORD_BYTES, whole: list[bytes] | None = None) -> Iterator[list[bytes]]:
    """Lists of records, ``count`` records in all."""
    whole = records(size) if whole is None else whole
    for _ in range(count // len(whole)):
        yield whole
    if count % len(whole):
        yield whole[: count % len(whole)]


def singles(count: int) -> Iterator[bytes]:
    """``count`` records, one by one."""
    return itertools.islice(itertools.cycle(records()), count)


class Meter:
    """Wall and processor time of one order in this process, all threads."""

    def __init__(self) -> None:
        self.start = time.monotonic_ns()
        self._cpu = time.process_time()

    def facts(self) -> dict[str, float]:
        """Instants of begin and now, and processor seconds between them."""
        return {"start": self.start, "end": time.monotonic_ns(), "cpu_s": time.process_time() - self._cpu}


class Crowd:
    """What many members of this process take of it, all in all; begins when it is made, before the members are."""

    def __init__(self) -> None:
        self._descriptors, self._kib = _descriptors(), _resident_kib()

    def facts(self, members: int, meter: Meter) -> dict[str, float]:
        """Threads, further descriptors and memory of each member, and the processor since ``meter`` began."""
        facts = meter.facts()
        seconds = (facts["end"] - facts["start"]) / 1e9
        return {
            "threads": threading.active_count(),
            "descriptors": _descriptors() - self._descriptors,
            "kib": (_resident_kib() - self._kib) / members,
            "cpu_share": facts["cpu_s"] / seconds,
            "cpu_s": facts["cpu_s"],
            "seconds": seconds,
        }

    def idle(self, members: int, seconds: float) -> dict[str, float]:
        """The same, after nothing has happened for so long."""
        meter = Meter()
        time.sleep(seconds)
        return self.facts(members, meter)


def _descriptors() -> int:
    return len(os.listdir("/dev/fd"))


def _resident_kib() -> float:
    """Linux only."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1024


def pace(count: int, rate: int) -> Iterator[int]:
    """Yield ``count`` times, ``rate`` times a second, when each was due; late turns follow each other at once."""
    step = 1_000_000_000 // rate
    due = time.monotonic_ns()
    for _ in range(count):
        wait = due - time.monotonic_ns()
        if wait > 0:
            time.sleep(wait / 1e9)
        yield due
        due += step


def sips(rate: float) -> Iterator[None]:
    """Yield ``rate`` times a second without end; who was kept waiting makes up for a second at most."""
    step, due = 1 / rate, time.monotonic()
    while True:
        ahead = due - time.monotonic()
        if ahead > SIP_S:  # some at once, as going to sleep costs more than a message
            time.sleep(ahead)
        elif ahead < -1:
            due = time.monotonic() - 1
        yield
        due += step


class Sequence:
    """What became of messages numbered from 0."""

    def __init__(self) -> None:
        self.taken = self.next = self.missing = self.back = 0

    def take(self, number: int) -> None:
        """The next one that came."""
        self.taken += 1
        self.missing += max(0, number - self.next)
        self.back += number < self.next  # a second time, or out of order
        self.next = max(self.next, number + 1)

    def facts(self) -> dict[str, int]:
        """For ``say``."""
        return {"taken": self.taken, "missing": self.missing, "back": self.back}


def stamped(instant: int | None = None) -> bytes:
    """A record that begins with an instant, the present one by default.

    What is sent at a pace is stamped when it was due: a sender that was held up would else hide how late it is.
    """
    instant = time.monotonic_ns() if instant is None else instant
    return instant.to_bytes(8, "little").ljust(RECORD_BYTES, b".")


def age_ns(record: bytes) -> int:
    """Nanoseconds since ``record`` was stamped."""
    return time.monotonic_ns() - int.from_bytes(record[:8], "little")


def quantiles(ages: list[int], seconds: float) -> dict[str, float]:
    """Microseconds at 50, 99 and 99.9 percent, and the rate at which the records came."""
    ages = sorted(ages)
    last = len(ages) - 1
    return {
        "p50_us": ages[last // 2] / 1000,
        "p99_us": ages[last * 99 // 100] / 1000,
        "p999_us": ages[last * 999 // 1000] / 1000,
        "max_us": ages[-1] / 1000,
        "rate": len(ages) / seconds,
    }


def _end_group(number: int, frame: object) -> None:
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":  # python -m benchmarks.link PROGRAM ARGUMENTS: a program that ends with the suite
    signal.signal(signal.SIGTERM, _end_group)  # itself and all that it started, for a script may not be the server
    tether(signal.SIGTERM)
    sys.exit(subprocess.call(sys.argv[1:]))
