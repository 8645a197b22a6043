"""Helpers of the tests on real sockets."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from tests.waiting import PATIENCE_S as PATIENCE_S
from tests.waiting import until

from chappe.api.log.consumer import Consumer
from chappe.log.batch import Record

wait_until = until


@contextmanager
def patience(member: Consumer) -> Iterator[None]:
    """Close a member whose caller waits for ever, so that the test fails instead of hanging."""
    timer = threading.Timer(PATIENCE_S, member.close)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


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
