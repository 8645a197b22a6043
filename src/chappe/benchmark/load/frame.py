"""A worker's side of a load test: the loops that send and take, and the numbers that they report.

Orders come in this sequence: ``begin`` (answered by ``ready``), perhaps ``meet`` (``met``), ``start`` (``progress``,
again and again; ``sent`` of one that sends), ``stop`` (``result``) and ``leave``, when all have been stopped. Times are
``time.monotonic_ns``, which all processes of a machine share.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from chappe.benchmark.load.histogram import Histogram
from chappe.benchmark.orders import Orders, say

PROGRESS_NS: Final = 200_000_000
WAIT_S: Final = 0.1  # one that waits looks for orders this often
READY_S: Final = 30.0  # a member gets this long to find the others
FLUSH_S: Final = 20.0
STAMP_BYTES: Final = 8
NS: Final = 1_000_000_000


@dataclass(frozen=True, slots=True)
class SourceLoad:
    """The load of one source.

    Args:
        count: How many; None: as many as the time allows.
        seconds: How long; None: until all are sent.
        size: Bytes of each.
        batch: How many in one call.
        rate: How many a second; None: as fast as possible.
        phase: Where between two of its calls the first one is, from 0 to 1, so that sources take turns.
    """

    count: int | None
    seconds: float | None
    size: int
    batch: int
    rate: float | None
    phase: float = 0.0

    @classmethod
    def of(cls, options: dict[str, Any]) -> SourceLoad:
        return cls(**options["load"])


class Meter:
    """Counts what one process has done since the start, and reports it several times a second."""

    def __init__(self, *latencies: str) -> None:
        self.count = 0
        self.dropped = 0
        self.problem = ""
        self.latencies = {name: Histogram() for name in latencies}
        self._at_ns = self._last_ns = self._say_ns = 0
        self._cpu_s = 0.0

    def begin(self, orders: Orders) -> int:
        """Wait for the common start, and return when it is."""
        at_ns: int = orders.next("start")["at_ns"]
        self._cpu_s = time.process_time()
        while (left_ns := at_ns - time.monotonic_ns()) > 0 and not orders.wait(left_ns / NS):
            pass
        self._at_ns = self._last_ns = at_ns
        return at_ns

    def add(self, count: int) -> None:
        self.count += count
        self._last_ns = time.monotonic_ns()

    def touch(self) -> None:
        """Move the time of the last count to this moment: only now is it confirmed."""
        self._last_ns = time.monotonic_ns()

    def say(self, event: str = "progress") -> None:
        """Report: ``progress`` not more often than it is of use, other events at once."""
        now = time.monotonic_ns()
        if event == "progress":
            if now < self._say_ns:
                return
            self._say_ns = now + PROGRESS_NS
        say(
            event,
            count=self.count,
            seconds=(self._last_ns - self._at_ns) / NS,
            cpu_s=time.process_time() - self._cpu_s,
            dropped=self.dropped,
            problem=self.problem,
            latencies={name: each.packed() for name, each in self.latencies.items()},
        )


def send(
    orders: Orders, load: SourceLoad, meter: Meter, call: Callable[[int, int], None], end: Callable[[], None]
) -> None:
    """Call until all is sent, the time is over or the parent stops it.

    Args:
        call: Sends as many as its second argument says, stamped with its first: when they were due, if there is a
            rate, so that one that is late does not look faster than it is.
        end: Waits until all is confirmed.
    """
    at_ns = meter.begin(orders)
    step_ns = NS * load.batch / load.rate if load.rate else 0.0
    end_ns = sys.maxsize if load.seconds is None else at_ns + int(load.seconds * NS)
    left, calls = sys.maxsize if load.count is None else load.count, 0
    while left and not orders.waiting and (stamp := time.monotonic_ns()) < end_ns:
        if step_ns:
            due_ns = at_ns + int((calls + load.phase) * step_ns)
            if due_ns >= end_ns:
                break
            if due_ns > stamp:
                orders.wait((due_ns - stamp) / NS)
                meter.say()
                if time.monotonic_ns() < due_ns:
                    continue
            stamp = due_ns
        count = min(load.batch, left)
        call(stamp, count)
        calls += 1
        left -= count
        meter.add(count)
        meter.say()
    end()
    meter.say("sent")
    rest(orders, meter)


def take(orders: Orders, meter: Meter, call: Callable[[], None]) -> None:
    """Call, each time for ``WAIT_S`` at most, until the parent stops it."""
    meter.begin(orders)
    while not orders.waiting:
        call()
        meter.say()
    rest(orders, meter)


def serve(orders: Orders, meter: Meter) -> None:
    """Do nothing but what members do in their own threads, until the parent stops it."""
    meter.begin(orders)
    rest(orders, meter)


def rest(orders: Orders, meter: Meter) -> None:
    """Wait for the end, tell the last numbers, and stay for the others until they have told theirs."""
    while not orders.wait(WAIT_S):
        meter.say()
    orders.next("stop")
    meter.say("result")
    orders.next("leave")
