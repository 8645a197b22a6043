"""The alarm: a descriptor that becomes readable after a while."""

from __future__ import annotations

import select
import sys
from collections.abc import Iterator

import pytest
from tests.waiting import PATIENCE_S

from chappe.system.alarm import Alarm

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="timerfd is Linux's")


@pytest.fixture
def alarm() -> Iterator[Alarm]:
    made = Alarm()
    yield made
    made.close()


def is_due(alarm: Alarm, timeout_s: float = 0.0) -> bool:
    return bool(select.select([alarm], [], [], timeout_s)[0])


def test_it_is_due_when_its_time_has_come_and_until_it_is_cleared(alarm: Alarm) -> None:
    assert not is_due(alarm)
    alarm.set(0.001)
    assert is_due(alarm, PATIENCE_S)
    assert is_due(alarm)
    alarm.clear()
    assert not is_due(alarm)
    alarm.clear()  # when it is not due, nothing happens


def test_what_was_set_last_counts(alarm: Alarm) -> None:
    alarm.set(1_000.0)
    assert not is_due(alarm)
    alarm.set(0.0)  # which is as soon as can be, and not never
    assert is_due(alarm, PATIENCE_S)
    alarm.set(1_000.5)
    assert not is_due(alarm)


def test_closed_it_has_no_descriptor(alarm: Alarm) -> None:
    alarm.close()
    assert alarm.fileno() == -1
    alarm.close()
