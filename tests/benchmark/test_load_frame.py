"""The loop that sends: at a rate each call is stamped with the time when it was due, and all bounds hold."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from chappe.benchmark.load.frame import NS, Meter, SourceLoad, send
from chappe.benchmark.orders import Orders


class Ordered(Orders):
    """Orders that are there from the beginning, or come after so many looks."""

    def __init__(self, at_ns: int, stop_after: int = 10**9) -> None:
        self._at_ns, self._left, self._stopped = at_ns, stop_after, False

    @property
    def waiting(self) -> bool:
        self._left -= 1
        self._stopped = self._stopped or self._left < 0
        return self._stopped

    def wait(self, timeout_s: float) -> bool:
        time.sleep(min(timeout_s, 0.01))
        return self._stopped

    def next(self, kind: str) -> dict[str, Any]:
        return {"at_ns": self._at_ns}


def sent(
    load: SourceLoad, capsys: pytest.CaptureFixture[str], stop_after: int = 10**9
) -> tuple[list[tuple[int, int]], int]:
    """Calls by their time since the start, and the count that was reported."""
    at_ns = time.monotonic_ns()
    orders = Ordered(at_ns, stop_after)
    calls: list[tuple[int, int]] = []

    def end() -> None:
        orders._stopped = True

    send(orders, load, Meter(), lambda stamp, count: calls.append((stamp - at_ns, count)), end)
    told = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [each["event"] for each in told if each["event"] != "progress"] == ["sent", "result"]
    return calls, told[-1]["count"]


def test_calls_at_a_rate_are_stamped_with_the_time_when_they_were_due(capsys: pytest.CaptureFixture[str]) -> None:
    calls, count = sent(SourceLoad(25, None, 100, 10, 2_000.0, 0.5), capsys)
    assert calls == [(2_500_000, 10), (7_500_000, 10), (12_500_000, 5)]
    assert count == 25


def test_no_call_is_due_after_the_end(capsys: pytest.CaptureFixture[str]) -> None:
    calls, _ = sent(SourceLoad(None, 0.02, 100, 1, 500.0), capsys)
    assert calls == [(2_000_000 * each, 1) for each in range(len(calls))]
    assert 1 <= len(calls) <= 10


def test_as_fast_as_possible_ends_by_count_or_time(capsys: pytest.CaptureFixture[str]) -> None:
    calls, count = sent(SourceLoad(25, None, 100, 10, None), capsys)
    assert ([each for _, each in calls], count) == ([10, 10, 5], 25)
    calls, count = sent(SourceLoad(None, 0.01, 100, 10, None), capsys)
    assert count == 10 * len(calls)
    assert all(0 <= stamp < 0.01 * NS for stamp, _ in calls)


def test_the_parent_ends_it_at_any_time(capsys: pytest.CaptureFixture[str]) -> None:
    calls, count = sent(SourceLoad(None, None, 100, 10, None), capsys, stop_after=7)
    assert (len(calls), count) == (7, 70)
