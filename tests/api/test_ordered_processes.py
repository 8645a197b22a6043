"""Stores of a chain as processes that die or stand still while many write and read."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from tests.api.ordered_rig import NAMES, Stores, serving
from tests.waiting import until

from chappe import Chain, Consumer, OrderedProducer
from chappe.errors import OffsetConflict

pytestmark = pytest.mark.process

WRITERS = 3
ROUND = 20  # records between two waits of a writer


class Writer(threading.Thread):
    """Writes numbered records under keys of its own until it is told to stop."""

    def __init__(self, stores: Stores, name: str) -> None:
        super().__init__(name=name)
        self.stores = stores
        self.confirmed = 0
        self.failed: BaseException | None = None
        self.stopping = threading.Event()
        self.start()

    def run(self) -> None:
        try:
            with OrderedProducer("t", chain=self.stores.configuration, partitions=2, timeout=None) as producer:
                while not self.stopping.is_set():
                    for number in range(self.confirmed, self.confirmed + ROUND):
                        producer.send(f"{self.name} {number}", key=f"{self.name} {number % 5}")
                    producer.flush()
                    self.confirmed += ROUND
        except BaseException as error:
            self.failed = error

    def went_on(self, records: int) -> bool:
        assert self.failed is None, self.failed
        return self.confirmed >= records


class Reader(threading.Thread):
    """Consumes all that there is."""

    def __init__(self, tower: str) -> None:
        super().__init__(name="reader")
        self.found: dict[str, list[bytes | None]] = {}
        self.stopping = threading.Event()
        self.failed: BaseException | None = None
        self.tower = tower
        self.start()

    def run(self) -> None:
        try:
            with Consumer("t", tower=self.tower) as consumer:
                while not self.stopping.is_set():
                    for record in consumer.poll(0.05) or ():
                        part = self.found.setdefault(record.partition, [])
                        assert record.offset == len(part)
                        part.append(record.value)
        except BaseException as error:
            self.failed = error

    def count(self) -> int:
        assert self.failed is None, self.failed
        return sum(map(len, self.found.values()))


def all_go_on(writers: list[Writer]) -> None:
    """Wait until each writer was told of more."""
    goals = [each.confirmed + 2 * ROUND for each in writers]
    until(lambda: all(each.went_on(goal) for each, goal in zip(writers, goals, strict=True)))


def in_order(values: list[bytes | None], writer: str, key: int) -> list[int]:
    """The numbers that a writer gave its records of one key, in a partition."""
    texts = [value.decode().split() for value in values if value is not None]
    return [int(number) for name, number in texts if name == writer and int(number) % 5 == key]


def test_stores_die_and_every_confirmed_record_is_there_once_and_in_one_order(tmp_path: Path, tower: str) -> None:
    with serving(tmp_path, tower) as stores, Chain(stores.configuration) as chain:
        reader = Reader(tower)
        writers = [Writer(stores, f"w{number}") for number in range(WRITERS)]
        try:
            all_go_on(writers)
            for place in (0, 1, 2, 0):  # head, middle and tail
                victim = stores.of[stores.members(chain)[place]]
                victim.kill()
                all_go_on(writers)
                victim.start()
                victim.started()
                until(lambda: stores.whole(chain), lambda: str(chain.status()))
            frozen = stores.of[stores.members(chain)[-1]]
            frozen.signal(signal.SIGSTOP)
            all_go_on(writers)
            frozen.signal(signal.SIGCONT)
            until(lambda: stores.whole(chain), lambda: str(chain.status()))
        finally:
            for writer in writers:
                writer.stopping.set()
            for writer in writers:
                writer.join()
        assert [each.failed for each in writers] == [None] * WRITERS
        total = sum(each.confirmed for each in writers)

        contents = [stores.contents(name, "t", total) for name in NAMES]
        until(lambda: reader.count() >= total, lambda: f"{reader.count()} of {total}")
        reader.stopping.set()
        reader.join()

        assert contents == [contents[0]] * 3
        assert reader.found == contents[0]
        for writer in writers:
            found = sorted(number for part in contents[0].values() for key in range(5) for number in
                           in_order(part, writer.name, key))  # fmt: skip
            assert found == list(range(writer.confirmed))
            for key in range(5):
                one = [each for part in contents[0].values() if (each := in_order(part, writer.name, key))]
                assert one == [sorted(one[0])]  # in one partition, and as it was sent


def test_who_appends_where_it_expects_to_wins_alone_though_the_tail_dies(tmp_path: Path, tower: str) -> None:
    with serving(tmp_path, tower) as stores, Chain(stores.configuration) as chain:
        won: list[int] = []
        failed: list[BaseException] = []
        stopping = threading.Event()

        def compete() -> None:
            with OrderedProducer("t", chain=stores.configuration, timeout=None) as producer:
                while not stopping.is_set():
                    (end,) = producer.ends(timeout=None)
                    with suppress(OffsetConflict):
                        assert producer.append([b"%d" % end], expected_offset=end, timeout=None) == range(end, end + 1)
                        won.append(end)

        threads = [threading.Thread(target=_noting(compete, failed)) for _ in range(WRITERS)]
        for each in threads:
            each.start()
        try:
            for _ in range(2):
                _more(won, failed)
                victim = stores.of[stores.members(chain)[-1]]
                victim.kill()
                _more(won, failed)
                victim.start()
                victim.started()
                until(lambda: stores.whole(chain))
        finally:
            stopping.set()
            for each in threads:
                each.join()
        assert failed == []

        (values,) = stores.contents("a", "t", len(won)).values()

        assert sorted(won) == list(range(len(won)))
        assert values == [b"%d" % number for number in range(len(won))]


def _more(won: list[int], failed: list[BaseException]) -> None:
    """Wait until more was appended."""
    goal = len(won) + 20
    until(lambda: failed or len(won) > goal)


def _noting(run: Callable[[], None], failed: list[BaseException]) -> Callable[[], None]:
    def noted() -> None:
        try:
            run()
        except BaseException as error:
            failed.append(error)

    return noted
