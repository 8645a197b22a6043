"""Stores among themselves: what one missed or lost to damage it reads from the others."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from tests.log.store_rig import WALL, StoreRig, asks, published, writes

from chappe.core import Ask, Effect, Persist, Publish, Reply, Report
from chappe.defaults import POLL_HEADS_S, RETRY_S
from chappe.errors import ProtocolError
from chappe.limits import LOG_LIMITS, LogLimits
from chappe.log.batch import encode_batch
from chappe.log.events import DamageFound, DamageHealed, RecordsLost
from chappe.log.messages import Ack, Fetch, StoreInfo
from chappe.log.queries import ErrorAnswer, HeadsAnswer, HeadsRequest, ReadAnswer, ReadRequest, heads_answer
from chappe.log.sources import ANSWER_S
from chappe.log.storage import PartitionInfo, WriteRecords


class Stores:
    """Some stores that reach each other's query sockets; time passes for all of them together."""

    def __init__(self, *rigs: StoreRig) -> None:
        self.rigs = {rig.endpoint: rig for rig in rigs}
        self.others: list[Effect] = []  # what is neither a question nor a write
        for rig in rigs:
            for other in rigs:
                if other is not rig:
                    self.do(rig, rig.meet(other))

    def do(self, rig: StoreRig, actions: Sequence[Effect]) -> None:
        for action in actions:
            if isinstance(action, Persist) and isinstance(action.job, WriteRecords):
                self.do(rig, rig.finish(action.job))
            elif isinstance(action, Ask):
                other = self.rigs.get(action.to)
                if other is not None:
                    reply, *more = other.core.handle_request(b"", b"12345678", action.request, b"", other.now)
                    assert isinstance(reply, Reply)
                    self.do(other, more)
                    self.do(rig, rig.answer(action, reply.message.answer, *reply.message.batches))
            else:
                self.others.append(action)

    def wait(self, seconds: float, step: float = 0.05) -> None:
        for _ in range(round(seconds / step)):
            for rig in self.rigs.values():
                rig.now += step
                if rig.now >= rig.core.next_timeout():
                    self.do(rig, rig.core.handle_timeout(rig.now))

    def events(self) -> list[object]:
        return [each.event for each in self.others if isinstance(each, Report)]


def test_a_store_that_comes_late_gets_everything_from_another_though_the_producer_is_gone() -> None:
    """An original store asks only producers: it never gets those partitions."""
    old, new = StoreRig("A"), StoreRig("B")
    for base in range(0, 500, 5):
        old.keep(base, *[b"%d" % n for n in range(base, base + 5)])
    stores = Stores(old, new)
    stores.wait(3.0)

    assert new.contents() == old.contents()
    assert Publish(Ack("P", "hello", 499)) in stores.others


def test_stores_that_hold_different_partitions_converge() -> None:
    rigs = [StoreRig("A"), StoreRig("B"), StoreRig("C")]
    for number, rig in enumerate(rigs):
        rig.keep(0, b"x", b"y", partition=f"P{number}")
    Stores(*rigs).wait(5.0)

    for partition in ("P0", "P1", "P2"):
        assert [rig.contents(partition) for rig in rigs] == [[(0, b"x"), (1, b"y")]] * 3


def test_many_partitions_come_over_page_by_page() -> None:
    old, new = StoreRig("A", limits=LogLimits(heads_page=7)), StoreRig("B")
    for number in range(100):
        old.keep(0, b"x", partition=f"P{number}")
    Stores(old, new).wait(6.0)

    assert len(new.storage.changed("", 0, 1000)) == 100


def test_a_store_begins_where_the_others_begin_when_they_removed_what_came_before() -> None:
    old, new = StoreRig("A"), StoreRig("B")
    old.keep(40, b"x", b"y")
    stores = Stores(old, new)
    stores.wait(6.0)

    assert new.contents() == [(40, b"x"), (41, b"y")]
    assert not [each for each in stores.events() if isinstance(each, RecordsLost)]


def test_a_store_that_has_some_asks_the_producer_before_it_goes_on_where_another_begins() -> None:
    other, ours = StoreRig("A"), StoreRig("B")
    other.keep(40, b"x", b"y")
    ours.keep(0, b"a")
    stores = Stores(other, ours)
    stores.wait(3.0)
    assert Publish(Fetch("P", "B", "hello", 1, 41)) in stores.others
    assert ours.contents() == [(0, b"a")]

    stores.wait(LOG_LIMITS.give_up_s)
    assert ours.contents() == [(0, b"a"), (40, b"x"), (41, b"y")]
    assert [each for each in stores.events() if isinstance(each, RecordsLost)]


def test_a_damaged_range_is_healed_from_another_store() -> None:
    whole, hurt = StoreRig("A"), StoreRig("B")
    for rig in (whole, hurt):
        for base in range(0, 12, 3):
            rig.keep(base, *[b"%d" % n for n in range(base, base + 3)])
    hurt.storage.damage("hello", "P", 4)
    stores = Stores(whole, hurt)
    stores.wait(3.0)

    assert hurt.contents() == whole.contents()
    assert stores.events() == [DamageFound("hello", "P", 3, 5, "damaged"), DamageHealed("hello", "P", 3, 5)]
    assert not hurt.storage.holes()


def test_only_the_damaged_part_of_a_larger_batch_is_written() -> None:
    whole, hurt = StoreRig("A"), StoreRig("B")
    whole.keep(0, *[b"%d" % n for n in range(10)])
    for base in range(10):
        hurt.keep(base, b"%d" % base)
    for offset in (4, 5):
        hurt.storage.damage("hello", "P", offset)
    stores = Stores(whole, hurt)
    stores.wait(3.0)

    assert hurt.contents() == whole.contents()
    assert DamageHealed("hello", "P", 4, 5) in stores.events()


def test_a_hole_that_one_store_shares_is_healed_by_the_next() -> None:
    rigs = [StoreRig("A"), StoreRig("B"), StoreRig("C")]
    for rig in rigs:
        for base in range(3):
            rig.keep(base, b"%d" % base)
    for rig in rigs[:2]:
        rig.storage.damage("hello", "P", 1)
    Stores(*rigs).wait(8.0)

    assert [rig.contents() for rig in rigs] == [rigs[2].contents()] * 3
    assert not [hole for rig in rigs for hole in rig.storage.holes()]


def test_the_end_of_a_hole_is_healed_from_a_store_that_begins_within_it() -> None:
    late, hurt = StoreRig("A"), StoreRig("B")
    late.keep(4, b"4", b"5", b"6")
    hurt.keep(0, *[b"%d" % n for n in range(6)])
    hurt.keep(6, b"6")
    hurt.storage.damage("hello", "P", 0)
    Stores(late, hurt).wait(3.0)
    assert hurt.contents() == [(4, b"4"), (5, b"5"), (6, b"6")]


def test_damage_that_nobody_can_heal_stays_reported_once_and_does_no_further_harm() -> None:
    rigs = [StoreRig("A"), StoreRig("B")]
    for rig in rigs:
        for base in range(3):
            rig.keep(base, b"%d" % base)
        rig.storage.damage("hello", "P", 1)
    stores = Stores(*rigs)
    stores.wait(10.0)

    assert stores.events() == [DamageFound("hello", "P", 1, 1, "damaged")] * 2
    assert rigs[0].contents() == [(0, b"0"), (2, b"2")]


# -- one store and answers made by hand -------------------------------------------------------------------


def with_other(*partitions: PartitionInfo) -> tuple[StoreRig, Ask]:
    """A store that just asked another one for its partitions, got them, and asks for the first of them."""
    rig = StoreRig()
    (poll,) = asks(rig.core.handle_message(StoreInfo("", "O", "id-O", "tcp://O:1"), rig.now))
    assert poll.request == HeadsRequest(b"", 0, store="S", catalogue=0)
    actions = rig.answer(poll, heads_answer(partitions, 0, 1000, 9))
    reads = asks(actions or rig.wait(0.2))
    return rig, reads[0]


def info(name: str = "P", first: int = 0, next_: int = 3) -> PartitionInfo:
    return PartitionInfo("hello", name, first, next_, 100, WALL, WALL, 9)


def answered(first: int = 0, next_: int = 3) -> ReadAnswer:
    return ReadAnswer(b"hello", b"P", first, next_, known=True)


def test_what_another_store_has_more_of_is_read_from_our_end() -> None:
    rig, read = with_other(info())

    assert (read.to, read.request) == ("tcp://O:1", ReadRequest(b"hello", b"P", 0))
    after = rig.answer(read, answered(), encode_batch(0, [b"a", b"b", b"c"], WALL))
    assert rig.settle(after) == [Publish(Ack("P", "hello", 2))]


def test_a_batch_that_is_none_does_not_take_the_good_ones_with_it() -> None:
    """The write of the good one must not be lost: nothing would ever be written again."""
    rig, read = with_other(info())

    with pytest.raises(ProtocolError):
        rig.answer(read, answered(), encode_batch(0, [b"a"], WALL), b"garbage")

    assert rig.settle(rig.batch(0, b"a", partition="Q")) == [Publish(Ack("Q", "hello", 0))]
    again = asks(rig.wait(ANSWER_S + 0.1))
    assert ReadRequest(b"hello", b"P", 0) in [each.request for each in again]


@pytest.mark.parametrize("answer", [ErrorAnswer("no"), answered(0, 0), HeadsAnswer([], 0, more=False)], ids=str)
def test_a_store_that_does_not_answer_what_was_asked_is_not_asked_in_a_loop(
    answer: ErrorAnswer | ReadAnswer | HeadsAnswer,
) -> None:
    rig, read = with_other(info())

    assert not asks(rig.answer(read, answer))
    assert len([each for each in asks(rig.wait(RETRY_S * 0.9)) if isinstance(each.request, ReadRequest)]) == 0


def test_a_store_that_does_not_answer_at_all_is_passed_over_for_a_while() -> None:
    rig, _ = with_other(info())

    assert len(reads(rig, ANSWER_S * 1.9)) == 0
    assert len(reads(rig, ANSWER_S * 0.2)) == 1
    assert len(reads(rig, ANSWER_S * 10)) >= 4  # it is not forgotten, however long that lasts


def reads(rig: StoreRig, seconds: float) -> list[Ask]:
    """The reads asked for in this time; questions for news are answered, the reads are not."""
    found = []
    for _ in range(round(seconds / 0.1)):
        for each in asks(rig.wait(0.1)):
            if isinstance(each.request, ReadRequest):
                found.append(each)
            else:
                rig.answer(each, HeadsAnswer([], 9, more=False))
    return found


def test_what_a_store_that_left_did_not_answer_is_asked_of_the_producer() -> None:
    rig, _ = with_other(info())
    actions = [*rig.core.handle_gone("O", rig.now), *rig.wait(2.0)]

    assert Fetch("P", "S", "hello", 0, 3) in published(actions)


def test_an_answer_nobody_waits_for_is_ignored() -> None:
    rig, read = with_other(info())
    rig.answer(read, answered(), encode_batch(0, [b"a", b"b", b"c"], WALL))

    assert rig.answer(read, answered(), encode_batch(3, [b"d"], WALL)) == []


def test_others_are_asked_for_news_once_a_second_and_only_for_news() -> None:
    rig = StoreRig()
    (poll,) = asks(rig.core.handle_message(StoreInfo("", "O", "id-O", "tcp://O:1"), rig.now))
    rig.answer(poll, HeadsAnswer([], 17, more=False))

    assert not asks(rig.wait(POLL_HEADS_S * 0.9))
    (again,) = asks(rig.wait(POLL_HEADS_S * 0.2))
    assert again.request == HeadsRequest(b"", 17, store="S", catalogue=0)


def test_while_a_producer_speaks_its_partition_is_not_read_from_stores() -> None:
    """Each store would otherwise get everything twice."""
    rig = StoreRig()
    (write,) = writes(rig.batch(0, b"a"))
    (poll,) = asks(rig.core.handle_message(StoreInfo("", "O", "id-O", "tcp://O:1"), rig.now))

    assert not asks(rig.answer(poll, heads_answer([info()], 0, 1000, 9)))
    rig.settle(rig.finish(write))
    rig.settle(rig.batch(1, b"b", b"c"))
    assert not [each for each in asks(rig.wait(3.0)) if isinstance(each.request, ReadRequest)]


def test_a_second_beacon_of_the_same_store_asks_nothing_new() -> None:
    rig = StoreRig()
    (poll,) = asks(rig.core.handle_message(StoreInfo("", "O", "id-O", "tcp://O:1"), rig.now))
    rig.answer(poll, HeadsAnswer([], 17, more=False))

    assert rig.core.handle_message(StoreInfo("", "O", "id-O", "tcp://O:1"), rig.now) == []
    moved = asks(rig.core.handle_message(StoreInfo("", "O", "id-O", "tcp://O:2"), rig.now))
    assert [(each.to, each.request) for each in moved] == [("tcp://O:2", HeadsRequest(b"", 0, store="S", catalogue=0))]


def test_a_healed_range_is_not_written_twice_while_the_first_write_runs() -> None:
    rig = StoreRig()
    for base in range(3):
        rig.keep(base, b"%d" % base)
    rig.storage.damage("hello", "P", 1)
    (poll,) = asks(rig.core.handle_message(StoreInfo("", "O", "id-O", "tcp://O:1"), rig.now))
    rig.answer(poll, HeadsAnswer([], 1, more=False))
    (first, *_) = [each for each in asks(rig.wait(1.1)) if isinstance(each.request, ReadRequest)]
    actions = rig.answer(first, answered(), encode_batch(1, [b"1"], WALL))
    (write,) = writes(actions)
    (second, *_) = [each for each in asks(rig.wait(1.1)) if isinstance(each.request, ReadRequest)]

    assert not writes(rig.answer(second, answered(), encode_batch(1, [b"1"], WALL)))
    assert Report(DamageHealed("hello", "P", 1, 1)) in rig.finish(write)
