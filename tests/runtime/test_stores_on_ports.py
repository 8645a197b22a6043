"""Stores on the ports of an endpoint: when sockets are written to, which messages count, and what the network tells."""

from __future__ import annotations

import threading
from pathlib import Path
from statistics import median

import pytest
from tests.calls import calls_inside_chappe
from tests.endpoints import PATIENCE_S, Make, deliver, endpoint_of, until

from chappe import DataStore
from chappe.core import Flush
from chappe.errors import UsageError
from chappe.kv import following
from chappe.kv.events import CommandRefused, MasterLost
from chappe.mesh.forwarding import routes as subscriptions
from chappe.mesh.messages import COMMAND, Message
from chappe.runtime.mesh_ports import MeshPorts
from chappe.transports import gathering


def joined(make: Make) -> tuple[DataStore, DataStore]:
    one, two = make(), make()
    master = one.attach_master("s")
    two.peer("127.0.0.1", one.listen())
    return master, two.attach_clone("s")


@pytest.fixture
def flushed(make: Make, monkeypatch: pytest.MonkeyPatch) -> tuple[DataStore, list[Flush]]:
    """A clone whose node flushes nothing by time alone, and what it was asked to write."""
    for name in ("GAP_S", "LONGEST_S"):
        monkeypatch.setattr(gathering, name, 1_000.0)
    _, clone = joined(make)
    node, written = clone.endpoint.node, MeshPorts.flush
    flushes: list[Flush] = []

    def flush(self: MeshPorts, effect: Flush) -> None:
        if self is node:
            flushes.append(effect)
        written(self, effect)

    clone.put("first", 0, wait=False)  # leaves at once, as it comes after silence
    clone.put("second", 0)
    monkeypatch.setattr(MeshPorts, "flush", flush)
    return clone, flushes


def test_writes_that_nobody_waits_for_go_out_together(
    flushed: tuple[DataStore, list[Flush]], monkeypatch: pytest.MonkeyPatch
) -> None:
    clone, flushes = flushed
    monkeypatch.setattr(clone.endpoint.node, "keep_up", lambda: None)  # what the master answers is answered, too
    with clone.endpoint.node.lock:  # nothing else happens meanwhile
        for number in range(gathering.MANY - 1):
            clone.put("k", number, wait=False)
        assert len(flushes) == 0
        clone.put("k", "last", wait=False)
        assert len(flushes) == 1


def test_a_write_that_somebody_waits_for_takes_the_others_along(flushed: tuple[DataStore, list[Flush]]) -> None:
    clone, _ = flushed
    clone.put("k", 1, wait=False)
    clone.put("k2", 2, timeout=PATIENCE_S)
    assert (clone["k"], clone["k2"]) == (1, 2)


def test_waiting_until_idle_and_closing_send_what_waits(flushed: tuple[DataStore, list[Flush]]) -> None:
    clone, _ = flushed
    clone.put("k", 1, wait=False)
    assert clone.await_idle(PATIENCE_S)
    assert clone["k"] == 1


def test_a_write_alone_is_sent_although_nobody_waits(make: Make) -> None:
    master, clone = joined(make)
    clone.put("k", 1, wait=False)
    clone.put("k", 2, wait=False)
    until(lambda: master.get("k") == 2)


def test_a_write_of_a_clone_and_back_costs_few_calls(make: Make) -> None:
    _, clone = joined(make)
    counts = [calls_inside_chappe(lambda: clone.put("k", 1)) for _ in range(100)]
    assert median(counts) <= 180  # some of them for changes that may follow, and leave in the same message


def test_only_messages_on_the_topic_of_a_store_are_for_it(make: Make) -> None:
    master, _ = joined(make)
    statuses = endpoint_of(master).statuses()
    (number,) = [number for number, topic in master.part.topics.items() if topic.endswith(b"/master")]
    deliver(master, number, Message(b"s/<$>/data/master2", b"nonsense", kind=COMMAND))
    assert not statuses.available
    deliver(master, number, Message(b"s/<$>/data/master", b"nonsense", kind=COMMAND))
    assert [type(each) for each in statuses.poll()] == [CommandRefused]


def test_a_clone_hears_from_the_network_that_its_master_is_gone_from_its_endpoint(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "MASTER_SILENT_S", 10 * PATIENCE_S)  # silence alone would tell nothing
    master, clone = joined(make)
    statuses = endpoint_of(clone).statuses()
    master.close()
    until(lambda: any(isinstance(each, MasterLost) for each in statuses.poll()))


def test_nothing_of_a_store_is_left_when_it_is_closed(make: Make) -> None:
    master, clone = joined(make)
    for store in (master, clone):
        store.close()
        node = store.endpoint.node
        assert not node.backends
        assert not node.member.parts
        assert not node.member.has("master", "s")
        assert not node.member.has("clone", "s")
    until(lambda: not clone.endpoint.node.member.holders("s"))


def test_a_store_that_cannot_be_announced_leaves_nothing(
    make: Make, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    endpoint = make()
    threads = set(threading.enumerate())
    monkeypatch.setattr(subscriptions, "_FILTER_TOPICS_MAX", 1)
    with pytest.raises(UsageError, match="too many to be announced"):
        endpoint.attach_master("s", "sqlite", path=tmp_path / "s")
    monkeypatch.undo()
    until(lambda: set(threading.enumerate()) <= threads)
    endpoint.attach_master("s", "sqlite", path=tmp_path / "s").put("k", 1)
