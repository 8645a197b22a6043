"""Helpers of the tests on real sockets."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from chappe.api.consumer import Consumer
from chappe.log.batch import Record

PATIENCE_S = 20.0  # far more than anything takes; a busy machine is no bug


@contextmanager
def patience(member: Consumer) -> Iterator[None]:
    """Close a member whose caller waits for ever, so that the test fails instead of hanging."""
    timer = threading.Timer(PATIENCE_S, member.close)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def wait_until(true: Callable[[], object]) -> None:
    """Wait until something is so, with a bound."""
    deadline = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < deadline, "it never became so"
        time.sleep(0.005)


def read(consumer: Consumer, count: int) -> list[Record]:
    """The next ``count`` records."""
    deadline = time.monotonic() + PATIENCE_S
    found: list[Record] = []
    while len(found) < count:
        batch = consumer.poll(0.5)
        assert time.monotonic() < deadline, f"only {len(found)} of {count} records came"
        found += list(batch or ())
    assert len(found) == count
    return found


def values(records: list[Record]) -> list[bytes | None]:
    return [record.value for record in records]
