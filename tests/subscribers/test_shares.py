"""The core of readers with workers: nothing is lost, keys keep their order, no position is ahead of the work."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from zlib import crc32

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chappe.log.batch import Record
from chappe.subscribers.shares import CHUNK, WINDOW_FIRST, WINDOW_MIN, By, Shares, split, stream_of


def record(offset: int, key: bytes | None = None, partition: str = "p", topic: str = "t") -> Record:
    return Record(topic, partition, offset, 0, key, b"%d" % offset, ())


class World:
    """Shares, their workers, and a store of positions; the records are those of one partition for each letter."""

    def __init__(self, workers: int, **bounds: int) -> None:
        self.shares = Shares(workers, **bounds)
        self.workers = workers
        self.by: By = "key"
        self.read: dict[tuple[str, str], int] = {}
        self.seen: list[list[Record]] = [[] for _ in range(workers)]  # what the worker of each share did, in all lives
        self.hands: list[list[Record]] = [[] for _ in range(workers)]  # sent to the one that lives, and not done
        self.told: list[int] = [0] * workers  # done, and not told yet

    def add(self, partition: str, keys: list[bytes | None]) -> None:
        at = self.read.get(("t", partition), 0)
        records = [record(at + n, key, partition) for n, key in enumerate(keys)]
        self.read["t", partition] = at + len(keys)
        self.shares.add(split(records, self.workers, self.by), 7 * len(keys) + 3)

    def send(self, number: int) -> None:
        while (portion := self.shares.take(number)) is not None:
            self.hands[number] += portion.records

    def work(self, number: int, count: int) -> None:
        """Do some, without telling."""
        done = self.hands[number][self.told[number] :][:count]
        self.seen[number] += done
        self.told[number] += len(done)

    def tell(self, number: int) -> None:
        assert self.shares.done(number, self.told[number], 0.0)
        del self.hands[number][: self.told[number]]
        self.told[number] = 0

    def kill(self, number: int) -> None:
        self.shares.lost(number)
        self.hands[number].clear()
        self.told[number] = 0

    def done_offsets(self, partition: str) -> set[int]:
        return {each.offset for row in self.seen for each in row if each.partition == partition}

    def check(self) -> None:
        assert self.shares.invariants() == []
        for (_, partition), offset in self.shares.positions(self.read).items():
            assert set(range(offset)) <= self.done_offsets(partition)  # nothing is committed that was not done

    def finish(self) -> None:
        for number in range(self.workers):
            while self.shares.next_of(number) is not None:
                self.send(number)
                self.work(number, 1 << 20)
                self.tell(number)
        self.check()
        assert self.shares.positions(self.read) == self.read
        assert (self.shares.records, self.shares.bytes) == (0, 0)
        for (_, partition), end in self.read.items():
            assert self.done_offsets(partition) == set(range(end))  # nothing is lost
        for row in self.seen:
            for key, partition in {(each.key, each.partition) for each in row}:
                offsets = [each.offset for each in row if (each.key, each.partition) == (key, partition)]
                first = list(dict.fromkeys(offsets))
                assert first == sorted(first)  # each for the first time in its order
                for before, after in itertools.pairwise(offsets):  # and a repeat begins a row that goes on as before
                    assert after > before or after in offsets[: offsets.index(before) + 1]
        for key in {each.key for row in self.seen for each in row if each.key is not None}:
            assert sum(any(each.key == key for each in row) for row in self.seen) == 1  # a key has one share


moves = st.one_of(
    st.tuples(
        st.just("add"),
        st.sampled_from("pq"),
        st.lists(st.sampled_from([None, b"a", b"b", b"c", b"d"]), min_size=1, max_size=9),
    ),
    st.tuples(st.sampled_from(["send", "tell", "kill"]), st.integers(0, 2), st.none()),
    st.tuples(st.just("work"), st.integers(0, 2), st.integers(1, 5)),
)


@settings(max_examples=400, deadline=None)
@given(st.lists(moves, max_size=60), st.integers(1, 3), st.integers(1, 8))
def test_whatever_happens_nothing_is_lost_and_keys_keep_their_order(
    steps: list[tuple[str, object, object]], workers: int, window: int
) -> None:
    world = World(workers, window=window)
    for what, where, argument in steps:
        if what == "add":
            world.add(where, argument)  # type: ignore[arg-type]
        elif what == "work":
            world.work(int(where) % workers, argument)  # type: ignore[call-overload, arg-type]
        else:
            getattr(world, what)(int(where) % workers)  # type: ignore[call-overload]
        world.check()
    world.finish()


def orders(depth: int) -> Iterator[tuple[tuple[str, int], ...]]:
    """Every row of so many moves of two workers."""
    one = [(what, number) for what in ("send", "work", "tell", "kill") for number in (0, 1)]
    return itertools.product(one, repeat=depth)


def test_every_order_of_five_moves_of_two_workers() -> None:
    """All 32,768, of a small world: three records of a key for each worker, of two partitions."""
    ours, theirs = (next(key for key in (b"a", b"b", b"c", b"d") if crc32(key) % 2 == share) for share in (0, 1))
    for moves in orders(5):
        world = World(2, window=2)
        world.add("p", [ours, theirs, ours])
        world.add("q", [theirs, ours, theirs])
        for what, number in moves:
            if what == "work":
                world.work(number, 1)
            else:
                getattr(world, what)(number)
        world.check()
        world.finish()


def test_the_first_record_that_is_not_done_bounds_what_is_committed() -> None:
    world = World(1)
    world.add("p", [b"a"] * 5)
    world.send(0)
    assert world.shares.positions(world.read) == {("t", "p"): 0}
    world.work(0, 3)
    world.tell(0)
    assert world.shares.positions(world.read) == {("t", "p"): 3}
    world.work(0, 2)
    world.tell(0)
    assert world.shares.positions(world.read) == {("t", "p"): 5}


def test_gaps_in_offsets_are_passed_over() -> None:
    shares = Shares(1)
    shares.add({0: [record(3), record(9)]}, 10)
    read = {("t", "p"): 20}
    assert shares.take(0) is not None
    assert shares.done(0, 1, 0.0)
    assert shares.positions(read) == {("t", "p"): 9}
    assert shares.done(0, 1, 0.0)
    assert shares.positions(read) == read


def test_a_worker_that_says_more_than_it_was_sent_is_not_believed() -> None:
    shares = Shares(1)
    shares.add({0: [record(0), record(1)]}, 10)
    assert not shares.done(0, 1, 0.0)
    shares.take(0)
    assert not shares.done(0, 3, 0.0)
    assert not shares.done(0, -1, 0.0)
    assert shares.positions({("t", "p"): 2}) == {("t", "p"): 0}
    assert shares.done(0, 2, 0.0)


def test_ends_are_counted_for_one_record() -> None:
    shares = Shares(1)
    assert shares.lost(0) == 0  # it had nothing
    shares.add({0: [record(n) for n in range(5)]}, 10)
    for ends in (1, 2):
        first = shares.take(0)
        assert first is not None
        assert first.careful is (ends > 1)
        assert shares.lost(0) == ends
    shares.take(0)
    assert shares.done(0, 1, 0.0)
    assert shares.lost(0) == 1
    assert shares.next_of(0) == record(1)
    assert shares.again == 5 + 5


def test_what_waits_is_bounded_and_leaves_in_pieces() -> None:
    shares = Shares(2, ahead=1000, window=300)
    shares.add({0: [record(n) for n in range(999)]}, 999)
    assert not shares.full
    shares.add({1: [record(999)]}, 1)
    assert shares.full
    assert pieces(shares) == [WINDOW_FIRST]
    assert shares.done(0, 1, 100.0)
    assert not shares.full
    assert shares.invariants() == []


def pieces(shares: Shares) -> list[int]:
    """How many records are sent at once, as many times as may be."""
    found = []
    while (piece := shares.take(0)) is not None:
        found.append(len(piece.records))
    return found


@pytest.mark.parametrize(("per_s", "expected"), [(1, WINDOW_MIN), (20, 10), (1000, 500), (50_000, 1024)])
def test_a_worker_is_sent_about_what_it_does_in_half_a_second(per_s: int, expected: int) -> None:
    shares = Shares(1)
    for n in range(1, 3 * per_s + 1):
        shares.add({0: [record(2 * n), record(2 * n + 1)]}, 2)  # there is always something left to do
        pieces(shares)
        assert shares.done(0, 1, 100 + n / per_s)
    assert shares.done(0, shares.sent_to(0), 103.0)
    assert expected // 2 < sum(pieces(shares)) <= expected
    assert shares.invariants() == []


def test_a_worker_that_had_nothing_to_do_is_not_taken_for_slow() -> None:
    shares = Shares(1)
    for second in range(100, 1000, 100):
        shares.add({0: [record(second), record(second + 1)]}, 2)
        assert pieces(shares) == [2]
        assert shares.done(0, 2, float(second))
    shares.add({0: [record(n) for n in range(1000, 2000)]}, 1000)
    assert pieces(shares) == [WINDOW_FIRST]


def test_the_most_that_a_worker_is_sent() -> None:
    shares = Shares(1, window=700)
    shares.add({0: [record(n) for n in range(9999)]}, 9999)
    shares._shares[0].window = 5000
    assert pieces(shares) == [CHUNK, CHUNK]  # more only when half of it is done
    assert shares.done(0, 2 * CHUNK - 350, 0.0)
    assert pieces(shares) == [CHUNK]


def test_a_record_beyond_every_bound_passes() -> None:
    shares = Shares(1, ahead_bytes=10)
    shares.add({0: [record(0)]}, 1 << 30)
    assert shares.full
    assert shares.take(0) is not None
    assert shares.done(0, 1, 0.0)
    assert not shares.full


@pytest.mark.parametrize("workers", [1, 2, 7])
def test_shares(workers: int) -> None:
    rows = [record(n, key) for n, key in enumerate([b"a", None, b"b", b"a", None, b"", b"a"])]
    found = split(rows, workers, "key")
    assert sorted(each.offset for part in found.values() for each in part) == list(range(7))
    for part in found.values():
        assert [each.offset for each in part] == sorted(each.offset for each in part)
    where = {each.offset: number for number, part in found.items() for each in part}
    assert where[0] == where[3] == where[6] == crc32(b"a") % workers
    assert where[1] == where[4]
    assert len(split(rows, workers, "topic")) == 1


def test_streams_of_a_topic() -> None:
    assert {stream_of("t", str(n), 3) for n in range(50)} == {"t.0", "t.1", "t.2"}
    assert stream_of("t", "key", 3) == stream_of("t", b"key", 3)
