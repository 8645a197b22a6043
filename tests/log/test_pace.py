"""When batches leave, at a pace and after pauses."""

from __future__ import annotations

import pytest

from chappe.log.pace import GATHER_S, OVER_S, BatchPace


class Sender:
    """Sends records at their times, as a producer does; ``left`` has when each batch did, and its first record came."""

    def __init__(self) -> None:
        self.now = 0.0
        self.pace = BatchPace(0)
        self.left: list[tuple[float, float, int]] = []
        self._waiting: list[float] = []
        self._offset = 0

    def send(self, count: int, gap_s: float) -> None:
        for _ in range(count):
            self.now += gap_s
            self._waiting.append(self.now)
            if self.pace.leaves(self.now):
                self._offset += len(self._waiting)
                self.left.append((self.now, self._waiting[0], len(self._waiting)))
                self._waiting.clear()
                self.pace.left(self.now, self._offset)

    def sizes(self) -> set[int]:
        return {size for _, _, size in self.left}


@pytest.mark.parametrize("rate", [1, 20, 1_000, 3_000])
def test_records_that_come_singly_leave_singly(rate: int) -> None:
    sender = Sender()
    sender.send(500, 1 / rate)
    assert sender.sizes() == {1}


@pytest.mark.parametrize(("rate", "records"), [(10_000, 5), (20_000, 10)])
def test_records_that_come_by_the_thousand_leave_together_within_a_moment(rate: int, records: int) -> None:
    sender = Sender()
    sender.send(rate, 1 / rate)
    settled = [each for each in sender.left if each[0] > OVER_S]
    assert {size for _, _, size in settled} <= {records, records + 1}  # as sums of gaps are rounded
    assert all(left - came <= GATHER_S + 1 / rate for left, came, _ in settled)


def test_after_a_pause_a_record_leaves_at_once_and_a_slow_sequence_is_slow_again() -> None:
    sender = Sender()
    sender.send(1_000, 0.000_1)
    sender.left.clear()
    sender.send(1, 10 * GATHER_S)
    assert len(sender.left) == 1
    sender.send(1, 1.0)
    sender.left.clear()
    sender.send(100, 0.000_4)
    assert sender.sizes() == {1}


def test_a_few_at_once_are_no_fast_sequence() -> None:
    sender = Sender()
    for _ in range(50):
        sender.send(1, 0.02)
        sender.send(4, 0.000_05)
    assert sender.sizes() == {1}


def test_between_two_batches_is_the_pause_that_is_asked_for() -> None:
    pace = BatchPace(7)
    assert pace.leaves(100.0, 0.001)
    pace.left(100.0, 8)
    assert not pace.leaves(100.0009, 0.001)
    assert pace.leaves(100.0011, 0.001)
    assert pace.leaves(100.0001)
