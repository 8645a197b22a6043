"""Clones whose master is killed with its process: what they read, write and hear meanwhile and after."""

from __future__ import annotations

import signal
from typing import Any

import pytest
from tests.api.store_process import Process
from tests.endpoints import PATIENCE_S, Make, until

from chappe import StatusSubscriber
from chappe.errors import NoMaster, StaleData
from chappe.kv.events import CloneStale, MasterFound, MasterLost, TwoMasters

pytestmark = pytest.mark.process


def heard(statuses: StatusSubscriber, kind: type) -> Any:
    """The next status of a kind."""
    while (found := statuses.get(PATIENCE_S)) is not None:
        if isinstance(found, kind):
            return found
    raise AssertionError(f"no {kind.__name__} came")


def test_a_master_that_is_replaced_by_another_is_followed_by_the_difference(make: Make) -> None:
    master = Process(None, entries={"kept": 1, "changed": 1, "gone": 1})
    try:
        endpoint = make()
        endpoint.peer("127.0.0.1", master.port, retry_s=0.05)
        clone, statuses = endpoint.attach_clone("s"), endpoint.statuses()
        with clone.watch() as watch:
            master.kill()
            heard(statuses, MasterLost)
            assert clone["gone"] == 1  # it reads what it has
            master = Process(None, master.port, entries={"kept": 1, "changed": 2, "new": 1})
            heard(statuses, MasterFound)
            events = [watch.get(PATIENCE_S) for _ in range(3)]
            assert {(each.kind, each.key, each.value) for each in events if each is not None} == {
                ("update", "changed", 2),
                ("insert", "new", 1),
                ("erase", "gone", None),
            }
            assert not watch.available
        assert dict(clone.items()) == {"kept": 1, "changed": 2, "new": 1}
    finally:
        master.kill()


def test_writes_without_a_master_are_done_in_order_and_once_when_it_is_back(make: Make) -> None:
    master = Process(None)
    try:
        endpoint = make()
        endpoint.peer("127.0.0.1", master.port, retry_s=0.05)
        clone, statuses = endpoint.attach_clone("s"), endpoint.statuses()
        clone.put("log", ())
        master.kill()
        heard(statuses, MasterLost)
        for number in range(500):
            clone.push("log", number, wait=False)
        master = Process(None, master.port)
        until(lambda: clone.await_idle(0.2))
        assert list(clone["log"]) == [*range(500)]
    finally:
        master.kill()


def test_without_a_master_for_too_long_reads_and_writes_are_refused_aloud(make: Make) -> None:
    master = Process(None, entries={"k": 1})
    try:
        endpoint = make()
        endpoint.peer("127.0.0.1", master.port, retry_s=0.05)
        clone, statuses = endpoint.attach_clone("s", stale_s=0.3, mutation_buffer_s=0.3), endpoint.statuses()
        master.kill()
        heard(statuses, CloneStale)
        with pytest.raises(StaleData):
            clone.get("k")
        with pytest.raises(NoMaster):
            clone.put("k", 2)
        master = Process(None, master.port, entries={"k": 3})
        heard(statuses, MasterFound)
        assert clone["k"] == 3
        clone.put("k", 4)
        assert clone["k"] == 4
    finally:
        master.kill()


def test_a_master_that_stops_and_goes_on_loses_nothing(make: Make) -> None:
    master = Process(None)
    try:
        endpoint = make(heartbeat_s=0.3)
        endpoint.peer("127.0.0.1", master.port, retry_s=0.05)
        clone, statuses = endpoint.attach_clone("s"), endpoint.statuses()
        clone.increment("n")
        master.process.send_signal(signal.SIGSTOP)
        heard(statuses, MasterLost)
        clone.increment("n", wait=False)
        master.process.send_signal(signal.SIGCONT)
        until(lambda: clone.await_idle(0.2))
        assert clone["n"] == 2
    finally:
        master.kill()


def test_two_masters_that_meet_are_told_of(make: Make) -> None:
    one, other = Process(None), Process(None)
    try:
        endpoint = make()
        endpoint.peer("127.0.0.1", one.port, retry_s=0.05)
        clone, statuses = endpoint.attach_clone("s"), endpoint.statuses()
        endpoint.peer("127.0.0.1", other.port, retry_s=0.05)
        found = heard(statuses, TwoMasters)
        assert found.followed != found.other
        assert clone.ready
    finally:
        one.kill()
        other.kill()
