"""Slow things run in order on their lane, beside other lanes, and their results come back with the lock held."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.endpoints import PATIENCE_S, until

from chappe.runtime import worker
from chappe.runtime.worker import Lane, Pool, run_once


class Place:
    """Where results come back to."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.found: list[object] = []
        self.defects: list[Exception] = []

    def run(self, function: Callable[..., None], *args: Any) -> None:
        with self.lock:
            try:
                function(*args)
            except Exception as error:
                self.defects.append(error)


@pytest.fixture
def place() -> Place:
    return Place()


@pytest.fixture
def pool() -> Iterator[Pool]:
    made = Pool("test-pool", 2)
    yield made
    until(lambda: not threads())


def threads() -> list[threading.Thread]:
    return [each for each in threading.enumerate() if each.name == "test-pool"]


def test_jobs_of_a_lane_run_in_order_and_come_back_with_the_lock_held(pool: Pool, place: Place) -> None:
    def took(number: int) -> None:
        assert place.lock._is_owned()  # type: ignore[attr-defined]
        place.found.append(number)

    lane = Lane(pool, place.run)
    for number in range(100):
        lane.do(lambda number=number: number, took)  # type: ignore[misc]
    assert lane.close(PATIENCE_S)
    assert place.found == list(range(100))
    assert not place.defects


def test_a_lane_that_is_stuck_holds_up_no_other_and_threads_are_bounded(pool: Pool, place: Place) -> None:
    stuck, free = threading.Event(), threading.Event()
    lanes = [Lane(pool, place.run) for _ in range(3)]
    lanes[0].do(stuck.set)
    lanes[0].do(free.wait)
    assert stuck.wait(PATIENCE_S)
    lanes[1].do(lambda: 1, place.found.append)
    until(lambda: place.found == [1])
    stuck.clear()
    lanes[1].do(stuck.set)
    lanes[1].do(free.wait)
    assert stuck.wait(PATIENCE_S)
    lanes[2].do(lambda: 2, place.found.append)  # both threads are taken
    assert len(threads()) == 2
    assert not lanes[2].close(0.01)
    free.set()
    until(lambda: place.found == [1, 2])
    for lane in lanes:
        assert lane.close(PATIENCE_S)


def test_idle_threads_end_but_one_while_a_lane_is_open(
    pool: Pool, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "IDLE_S", 0.01)
    both = threading.Barrier(2)
    lanes = [Lane(pool, place.run) for _ in range(2)]
    for lane in lanes:
        lane.do(lambda: both.wait(PATIENCE_S), place.found.append)
    until(lambda: len(place.found) == 2)
    until(lambda: len(threads()) == 1)
    lanes[0].do(lambda: 3, place.found.append)
    until(lambda: len(place.found) == 3)
    assert len(threads()) == 1
    for lane in lanes:
        lane.close(PATIENCE_S)
    until(lambda: not threads())


def test_what_a_job_raises_is_a_defect_of_the_member_and_the_lane_goes_on(
    pool: Pool, place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> None:
        raise SystemExit("a defect")

    lane = Lane(pool, place.run)
    lane.do(fail, place.found.append)
    lane.do(fail)
    lane.do(lambda: 1, place.found.append)
    assert lane.close(PATIENCE_S)
    assert place.found == [1]
    assert "a defect" in str(place.defects)
    assert "failed" in caplog.text


def test_the_last_act_comes_last_and_a_job_that_closes_its_lane_does_not_wait(pool: Pool, place: Place) -> None:
    lane = Lane(pool, place.run)
    lane.do(lambda: lane.close(None, lambda: place.found.append("last")), place.found.append)
    lane.do(lambda: 1, place.found.append)
    until(lambda: place.found == [False, 1, "last"])
    assert lane.close(PATIENCE_S, lambda: place.found.append("again"))
    assert place.found == [False, 1, "last"]


def test_what_comes_after_the_end_of_a_lane_is_not_run_and_nobody_is_told(pool: Pool, place: Place) -> None:
    lane = Lane(pool, place.run)
    assert lane.close(PATIENCE_S, lambda: place.found.append("last"))
    lane.do(lambda: place.found.append("late"), place.found.append)
    assert lane.close(PATIENCE_S)
    assert place.found == ["last"]


def test_a_single_job_leaves_no_thread(pool: Pool, place: Place) -> None:
    run_once(pool, place.run, lambda: 1, place.found.append)
    until(lambda: place.found == [1])
    until(lambda: not threads())


def test_closing_does_what_waits_itself_when_no_thread_can_be_made(
    pool: Pool, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        lane = Lane(pool, place.run)
        lane.do(lambda: 1, place.found.append)
        assert not place.found
        assert lane.close(0, lambda: place.found.append("last"))
    assert place.found == [1, "last"]


@pytest.mark.process
def test_a_forked_child_has_threads_of_its_own(pool: Pool, place: Place) -> None:
    free = threading.Event()
    lane = Lane(pool, place.run)
    lane.do(free.wait)
    child = os.fork()
    if not child:
        done = threading.Event()
        Lane(pool, place.run).do(done.set)
        os._exit(0 if done.wait(PATIENCE_S) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    free.set()
    assert lane.close(PATIENCE_S)
