"""Many producers and consumers in one process: they share threads and sockets, and go on without each other."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
from tests.api.members import PATIENCE_S, values, wait_until
from tests.waiting import new_threads

from chappe.api.log.consumer import Consumer
from chappe.api.log.producer import Producer
from chappe.api.log.store import Store
from chappe.errors import MemberStopped
from chappe.runtime import log_seats

MANY = 300
FOLDER = Path("/proc/self/fd")


def open_descriptors() -> int:
    """Sockets and the like; a store's files are not counted."""
    found = 0
    for each in FOLDER.iterdir():
        with suppress(FileNotFoundError):  # that of the folder itself
            found += os.readlink(each).startswith(("socket:", "anon_inode:", "pipe:"))
    return found


@pytest.fixture
def closing() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.mark.skipif(not FOLDER.is_dir(), reason="descriptors are counted where Linux lists them")
def test_hundreds_take_a_few_threads_and_descriptors(tower: str, store: Store, closing: ExitStack) -> None:
    threads, descriptors = set(threading.enumerate()), open_descriptors()
    producers = [closing.enter_context(Producer(f"topic{number}", tower=tower)) for number in range(MANY)]
    consumers = [closing.enter_context(Consumer(f"topic{number}", tower=tower)) for number in range(MANY)]
    for number, producer in enumerate(producers):
        producer.send(b"%d" % number)
    for producer in producers:
        producer.flush(PATIENCE_S)

    for number, consumer in enumerate(consumers):
        assert values(list(consumer.to_end(PATIENCE_S))) == [b"%d" % number]
    assert len(new_threads(threads)) <= 2  # a store's disk, and callbacks
    assert open_descriptors() <= descriptors + 60  # some forty; of 600 members each would have had twenty
    assert {each._node.node for each in producers} == {producers[0]._node.node}
    assert {each._node.node for each in consumers} == {consumers[0]._node.node}


def test_one_that_is_closed_leaves_the_others(tower: str, store: Store) -> None:
    with Producer("hello", tower=tower) as stays, Consumer("hello", tower=tower) as consumer:
        with Producer("hello", tower=tower) as leaves, Consumer("hello", tower=tower) as other:
            leaves.send(b"a")
            leaves.flush(PATIENCE_S)
            assert values(list(other.to_end(PATIENCE_S))) == [b"a"]
        assert leaves._node.closed
        stays.send(b"b")
        stays.flush(PATIENCE_S)
        assert sorted(filter(None, values(list(consumer.to_end(PATIENCE_S))))) == [b"a", b"b"]
        assert not stays._node.node.driver.turns.closed
    assert stays._node.node.driver.turns.closed


def test_one_that_comes_later_meets_those_that_are_there(tower: str, store: Store) -> None:
    with Producer("hello", tower=tower) as first, Consumer("hello", tower=tower) as early:
        first.send(b"a")
        first.flush(PATIENCE_S)
        assert values(list(early.to_end(PATIENCE_S))) == [b"a"]
        with Producer("hello", tower=tower) as second, Consumer("hello", tower=tower) as late:
            second.wait_ready(PATIENCE_S)
            late.wait_ready(PATIENCE_S)
            assert values(list(late.to_end(PATIENCE_S))) == [b"a"]
            second.send(b"b")
            second.flush(PATIENCE_S)
            for consumer in (early, late):
                batch = consumer.poll(PATIENCE_S)
                assert batch is not None
                assert values(list(consumer.iterate(batch))) == [b"b"]


@pytest.mark.provokes_defects
def test_a_defect_of_one_stops_it_alone(tower: str, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> object:
        raise ZeroDivisionError("defect")

    with Producer("hello", tower=tower) as good:
        bad = Producer("hello", tower=tower)
        assert bad._node.node is good._node.node
        with bad._lock:
            monkeypatch.setattr(bad._core, "handle_message", broken)
        bad.send(b"x")
        with pytest.raises(MemberStopped, match="ZeroDivisionError"):
            bad.flush(PATIENCE_S)
        with pytest.raises(MemberStopped):
            bad.close()
        good.send(b"y")
        good.flush(PATIENCE_S)
        assert good.stored == 1


def test_beyond_the_seats_of_a_node_there_is_another_one(
    tower: str, store: Store, closing: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_seats, "SEATS_MAX", 2)
    producers = [closing.enter_context(Producer("hello", tower=tower)) for _ in range(5)]
    assert len({each._node.node for each in producers}) == 3
    for producer in producers:
        producer.send(b"x")
        producer.flush(PATIENCE_S)


def test_who_waits_for_no_store_has_a_node_of_its_own(tower: str) -> None:
    with Producer("hello", tower=tower) as durable, Producer("hello", tower=tower, min_acks=0) as live:
        assert durable._node.node is not live._node.node


def test_consumers_in_several_threads_are_each_woken_by_their_records(tower: str, store: Store) -> None:
    found: dict[int, bytes | None] = {}

    def read(number: int, consumer: Consumer) -> None:
        batch = consumer.poll(PATIENCE_S)
        assert batch is not None
        found[number] = next(iter(consumer.iterate(batch))).value

    with ExitStack() as stack:
        consumers = [stack.enter_context(Consumer(f"topic{number}", tower=tower)) for number in range(4)]
        threads = [threading.Thread(target=read, args=each) for each in enumerate(consumers)]
        for thread in threads:
            thread.start()
        with Producer(tower=tower) as producer:
            for number in (2, 0, 3, 1):
                producer.send(b"%d" % number, topic=f"topic{number}")
                wait_until(lambda number=number: found.get(number) == b"%d" % number)  # type: ignore[misc]
        for thread in threads:
            thread.join(PATIENCE_S)
