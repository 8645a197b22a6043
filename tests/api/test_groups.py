"""Consumer groups as programs use them, on a simulated machine."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.api.group_soak import run

from chappe import AsyncConsumer, Consumer, Producer, Rebalance
from chappe.errors import Fenced, TimedOut, UsageError
from chappe.testing import Log, World


@pytest.fixture
def numbers(chappe_log: Log) -> Iterator[Log]:
    """Six partitions of a topic, each with a hundred records."""
    with ExitStack() as stack:
        for _ in range(6):
            producer = stack.enter_context(Producer("numbers"))
            for number in range(100):
                producer.send(str(number), key=f"k{number % 7}")
            producer.flush(timeout=10)
        yield chappe_log


class Worker:
    """A program that reads as a member of a group, at a host of its own."""

    def __init__(self, world: World, host: str, **options: Any) -> None:
        self.read: list[tuple[str, int]] = []
        self.changes: list[Rebalance] = []
        self.error: Exception | None = None
        self._options: dict[str, Any] = {"group": "billing", "on_rebalance": self.changes.append, **options}
        self.thread = world.start(self._run, host=host)

    def _run(self) -> None:
        try:
            with Consumer("numbers", **self._options) as consumer:
                for record in consumer:
                    self.read.append((record.partition, record.offset))
        except Fenced as error:
            self.error = error


def held(worker: Worker) -> set[tuple[str, str]]:
    """The partitions that a worker has by its own account."""
    found: set[tuple[str, str]] = set()
    for change in worker.changes:
        found = (found - {*change.revoked, *change.lost}) | set(change.assigned)
    return found


def everything(workers: list[Worker]) -> Counter[tuple[str, int]]:
    return Counter(each for worker in workers for each in worker.read)


def test_members_share_what_there_is(numbers: Log) -> None:
    world = numbers.world
    workers = [Worker(world, f"host{number}") for number in range(3)]
    world.advance(20)
    assert len(everything(workers)) == 600
    assert [len(held(each)) for each in workers] == [2, 2, 2]


def test_the_share_of_a_killed_member_goes_on_elsewhere(numbers: Log) -> None:
    world = numbers.world
    workers = [Worker(world, f"host{number}") for number in range(3)]
    world.advance(20)
    world.kill("host0")
    with ExitStack() as stack:
        for _ in range(3):
            producer = stack.enter_context(Producer("numbers"))
            producer.send("later")
            producer.flush(timeout=10)
        world.advance(20)
    assert len(everything(workers)) == 603
    assert [len(held(each)) for each in workers[1:]] in ([4, 5], [5, 4])


def test_positions_are_where_the_last_member_left(numbers: Log) -> None:
    with Consumer("numbers", group="billing") as first:
        read = [next(iter(first)).value for _ in range(1)]
        for number, record in enumerate(first.to_end()):
            read.append(record.value)
            if number == 250:
                break
    with Consumer("numbers", group="billing") as second:
        read += [record.value for record in second.to_end()]
    assert len(read) == 600
    with Consumer("numbers", group="another") as third:
        assert len(list(third.to_end())) == 600


def test_what_an_exception_interrupted_comes_again(numbers: Log) -> None:
    def work() -> None:
        with Consumer("numbers", group="billing") as consumer:
            for _ in consumer:
                raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        work()
    with Consumer("numbers", group="billing") as again:
        assert len(list(again.to_end())) == 600


def test_only_what_is_committed_counts_without_auto_commit(numbers: Log) -> None:
    with Consumer("numbers", group="billing", auto_commit=False) as consumer:
        for number, _ in enumerate(consumer.to_end(), 1):
            if number == 100:
                consumer.commit()
                committed = sum(consumer.position().values())
    with Consumer("numbers", group="billing") as again:
        assert len(list(again.to_end())) == 600 - committed == 500


def test_a_commit_without_a_store_is_an_error(numbers: Log) -> None:
    with Consumer("numbers", group="billing", auto_commit=False) as consumer:
        list(consumer.to_end())
        numbers.store.close()
        with pytest.raises(TimedOut):
            consumer.commit(timeout=5)


def test_a_partition_of_others_is_not_committed(numbers: Log) -> None:
    with Consumer("numbers", group="billing") as consumer:
        list(consumer.to_end())
        with pytest.raises(Fenced, match="are read by others by now"):
            consumer.commit({("numbers", "nobody's"): 3})


def test_a_paused_member_learns_what_it_has_lost(numbers: Log) -> None:
    world = numbers.world
    workers = [Worker(world, f"host{number}") for number in range(2)]
    world.advance(20)
    had = held(workers[0])
    assert len(had) == 3
    world.pause("host0")
    world.advance(20)
    world.resume("host0")
    world.advance(20)
    assert any(set(change.lost) >= had for change in workers[0].changes)
    assert [len(held(each)) for each in workers] == [3, 3]
    assert len(everything(workers)) == 600


def test_a_member_with_a_name_has_its_partitions_again(numbers: Log) -> None:
    world = numbers.world
    one, two = Worker(world, "host0", member="one"), Worker(world, "host1", member="two")
    world.advance(20)
    had = held(one)
    changes = len(two.changes)
    world.kill("host0")
    again = Worker(world, "host0", member="one")
    world.advance(20)
    assert held(again) == had
    assert len(two.changes) == changes


def test_two_programs_are_not_one_member(numbers: Log) -> None:
    world = numbers.world
    one = Worker(world, "host0", member="one")
    world.advance(10)
    Worker(world, "host1", member="one")
    world.advance(10)
    assert "another program goes on as member one" in str(one.error)


def test_a_callback_seeks_and_commits(numbers: Log) -> None:
    offsets: dict[tuple[str, str], int] = {}

    def moved(change: Rebalance) -> None:
        for topic, partition in change.assigned:
            consumer.seek(topic, partition, 90)
            offsets[topic, partition] = 90

    with Consumer("numbers", group="billing", on_rebalance=moved) as consumer:
        assert len(list(consumer.to_end())) == 60
    assert len(offsets) == 6


def test_an_asyncio_member(numbers: Log) -> None:
    async def read() -> int:
        async with AsyncConsumer("numbers", group="billing") as consumer:
            count = 0
            async for _ in consumer.to_end():
                count += 1
            await consumer.commit()
            return count

    assert asyncio.run(read()) == 600
    assert asyncio.run(read()) == 0


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"member": "one"}, "member and on_rebalance need a group"),
        ({"group": ""}, "1 to 255 characters"),
        ({"group": "g", "identity": "i"}, "give the consumer one of them"),
        ({"group": "g", "reset": "last-value"}, "goes on from its positions"),
        ({"group": "g", "session_s": 0.1}, "0.5 to 300 seconds"),
    ],
)
def test_what_does_not_fit(chappe_log: Log, options: dict[str, Any], problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        Consumer("numbers", **options)


@pytest.mark.process
def test_members_that_are_killed_and_stopped_leave_no_record_unread(tmp_path: Path) -> None:
    sent, again, _ = run(tmp_path, kills=4)
    assert sent > 0
    assert again < sent
