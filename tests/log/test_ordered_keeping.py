"""Records of ordered topics between the machine of a chain and the store of its member."""

from __future__ import annotations

import math

from tests.log.memory_storage import MemoryLogStorage
from tests.log.store_rig import WALL, StoreRig, asks, published, writes

from chappe.core import Effect, Reply
from chappe.errors import StorageError
from chappe.log.backfill import FOUND_S
from chappe.log.batch import Batch, encode_batch
from chappe.log.messages import BatchMessage, Head, RecordMessage
from chappe.log.ordered.keeping import LOOK_S, OTHERS_S, PATIENCE_S, Keeping, OrderedRole
from chappe.log.ordered.machine import PartitionEnd, Placed
from chappe.log.queries import HeadsAnswer, HeadsRequest, ReadRequest
from chappe.log.storage import WriteRecords

PARTITION = "0123456789AB5DEF8123456789ABCDEF"
KEY = ("hello", PARTITION)


class Kept(StoreRig):
    """A store of a chain's member, and what its machine does."""

    def __init__(
        self, name: str = "S", *, bytes_max: int = 1_000, live: bool = True, storage: MemoryLogStorage | None = None
    ):
        super().__init__(name, storage)
        self.keeping = Keeping(bytes_max)
        self.role = OrderedRole(self.core, self.keeping)
        if live:
            self.keeping.live()

    def place(self, base: int, *values: bytes) -> None:
        batch = Batch.parse(encode_batch(base, values, WALL))
        self.keeping.place(Placed("hello", PARTITION, batch))

    def go(self) -> list[Effect]:
        """What is done at once."""
        assert self.role.next_timeout() <= self.now
        return self.role.handle_timeout(self.now)

    def look(self) -> list[Effect]:
        """What is done the next time that it is looked."""
        self.now += LOOK_S
        return self.role.handle_timeout(self.now)

    def serve(self, other: StoreRig, actions: list[Effect]) -> None:
        """Have another store answer what is asked, until nothing is."""
        while questions := asks(self.settle(actions)):
            actions = []
            for each in questions:
                (reply,) = other.core.handle_request(b"", b"", each.request, b"", other.now)
                assert isinstance(reply, Reply)
                actions += self.answer(each, reply.message.answer, *reply.message.batches)

    @property
    def values(self) -> list[bytes | None]:
        return [value for _, value in self.contents(PARTITION)]


def test_what_is_committed_is_published_by_the_tail_and_written_by_all() -> None:
    tail, other = Kept(), Kept()
    for member in (tail, other):
        member.place(0, b"a", b"b")
        assert not member.keeping.news  # not before the chain hands it over
        member.keeping.hand_over(shown=member is tail)
        actions = member.go()
        assert [each for each in published(actions) if isinstance(each, BatchMessage)] == (
            [BatchMessage("hello", PARTITION, "hello", encode_batch(0, [b"a", b"b"], WALL))] if member is tail else []
        )
        member.settle(actions)
        assert member.values == [b"a", b"b"]


def test_originals_get_single_records() -> None:
    tail = Kept()
    tail.subscribe(b"Mhello")
    tail.place(0, b"a", b"b")
    tail.keeping.hand_over(shown=True)

    singles = [each for each in published(tail.go()) if isinstance(each, RecordMessage)]

    assert singles == [RecordMessage("hello", PARTITION, "hello", n, v) for n, v in enumerate((b"a", b"b"))]


def test_what_is_handed_over_settles_when_it_is_on_disk() -> None:
    member = Kept()
    member.place(0, b"a")
    member.place(1, b"b")
    mark = member.keeping.mark()
    member.keeping.hand_over(shown=False)
    actions = member.go()
    member.look()
    assert member.keeping.settled < mark == 2

    member.settle(actions)
    member.look()

    assert member.keeping.settled == mark
    assert not member.keeping.busy
    assert member.role.next_timeout() == member.core.next_timeout()


def test_a_member_that_has_much_to_write_is_full_until_it_is_written() -> None:
    member = Kept(bytes_max=1_000)
    member.place(0, bytes(400))
    assert not member.keeping.full
    member.place(1, b"")
    assert member.keeping.full  # small ones take memory, too
    member.keeping.hand_over(shown=False)
    actions = member.go()
    member.look()
    assert member.keeping.full

    member.settle(actions)
    member.look()

    assert not member.keeping.full


def test_what_the_disk_refuses_is_handed_over_again() -> None:
    member = Kept()
    member.place(0, b"a")
    member.keeping.hand_over(shown=False)
    assert writes(member.go())
    member.core.handle_done(WriteRecords(()), StorageError("full"), member.now)
    member.place(1, b"b")
    member.keeping.hand_over(shown=False)
    assert not writes(member.go())  # it refuses for a while
    assert member.keeping.settled == 0

    member.now += 60.0
    member.settle(member.look())
    member.settle(member.look())

    assert member.values == [b"a", b"b"]
    member.look()
    assert member.keeping.settled == 2


def test_what_is_on_disk_already_is_not_written_again() -> None:
    member = Kept(live=False)
    member.keep(0, b"a", b"b", partition=PARTITION)
    member.place(0, b"a")
    member.place(1, b"b", b"c")

    member.settle(member.go())
    member.look()

    assert member.values == [b"a", b"b", b"c"]
    assert member.keeping.settled == 2


def test_a_joiner_is_complete_when_it_has_read_the_records_of_its_state_from_others() -> None:
    other, joiner = Kept("other"), Kept("joiner")
    other.keep(0, b"a", b"b", partition=PARTITION)
    joiner.keeping.begin([PartitionEnd("hello", PARTITION, 2)])
    assert not joiner.keeping.complete
    joiner.place(2, b"c")
    joiner.keeping.hand_over(shown=False)
    assert not writes(joiner.go())  # something is missing before it
    assert not joiner.keeping.complete

    joiner.serve(other, joiner.meet(other))
    joiner.settle(joiner.look())
    joiner.look()

    assert joiner.values == [b"a", b"b", b"c"]
    assert joiner.keeping.complete
    assert joiner.keeping.settled == joiner.keeping.mark()


def test_a_joiner_that_hears_first_of_a_store_that_removed_all_gets_it_from_the_other_one() -> None:
    short, other, joiner = Kept("short"), Kept("other"), Kept("joiner")
    for each in (short, other):
        each.keep(0, b"a", partition=PARTITION)
    short.storage.reset("hello", PARTITION, 1)  # its retention is a short one
    joiner.keeping.begin([PartitionEnd("hello", PARTITION, 1)])
    joiner.go()

    joiner.serve(short, joiner.meet(short))
    joiner.serve(other, [*joiner.look(), *joiner.meet(other)])
    joiner.now += FOUND_S
    joiner.serve(other, joiner.look())
    joiner.settle(joiner.look())

    assert joiner.values == [b"a"]
    assert joiner.keeping.complete


def test_a_joiner_that_hears_first_of_a_store_that_removed_some_begins_where_the_other_one_does() -> None:
    short, other, joiner = Kept("short"), Kept("other"), Kept("joiner")
    for each in (short, other):
        each.keep(0, b"a", b"b", partition=PARTITION)
    short.storage.reset("hello", PARTITION, 1)
    short.keep(1, b"b", partition=PARTITION)
    joiner.keeping.begin([PartitionEnd("hello", PARTITION, 2)])
    joiner.go()

    joiner.serve(short, joiner.meet(short))
    joiner.serve(other, [*joiner.look(), *joiner.meet(other)])
    joiner.now += FOUND_S
    for _ in range(3):
        joiner.serve(other, joiner.look())

    assert joiner.values == [b"a", b"b"]
    assert joiner.keeping.complete


def test_a_joiner_does_not_wait_for_what_no_store_keeps_any_more() -> None:
    other, joiner = Kept("other"), Kept("joiner")
    other.keep(0, b"a", partition=PARTITION)
    other.storage.reset("hello", PARTITION, 1)
    joiner.keeping.begin([PartitionEnd("hello", PARTITION, 1)])
    joiner.place(1, b"b")
    joiner.keeping.hand_over(shown=False)
    joiner.go()

    joiner.serve(other, joiner.meet(other))
    joiner.settle(joiner.look())
    assert not joiner.keeping.complete  # another store may be there that is not heard yet
    joiner.now += OTHERS_S
    joiner.settle(joiner.look())
    joiner.settle(joiner.look())

    assert joiner.keeping.complete
    assert joiner.contents(PARTITION) == [(1, b"b")]


def test_a_state_that_means_nothing_more_than_is_there_is_complete_at_once() -> None:
    member = Kept()
    member.keep(0, b"a", partition=PARTITION)
    member.keeping.begin([PartitionEnd("hello", PARTITION, 1)])
    assert not member.keeping.complete

    member.go()

    assert member.keeping.complete


def test_nobody_but_the_chain_writes_ordered_partitions() -> None:
    member = Kept()
    body = encode_batch(0, [b"forged"], WALL)
    for message in (
        BatchMessage("hello", PARTITION, "hello", body),
        RecordMessage("hello", PARTITION, "hello", 0, b"forged"),
        Head("hello", PARTITION, "hello", 5),
    ):
        assert member.role.handle_message(message, member.now) == []
    assert member.role.next_timeout() < math.inf

    ordinary = BatchMessage("hello", "P", "hello", body)
    member.settle(member.role.handle_message(ordinary, member.now))

    assert member.contents() == [(0, b"forged")]
    assert member.values == []


def test_asks_of_stores_are_answered_as_by_any_store() -> None:
    member = Kept()
    member.keep(0, b"a", partition=PARTITION)

    (reply,) = member.core.handle_request(b"", b"", ReadRequest(b"hello", PARTITION.encode(), 0, 100), b"", member.now)

    assert isinstance(reply, Reply)
    assert len(reply.message.batches) == 1


def test_who_asks_where_partitions_end_hears_of_all_that_is_confirmed() -> None:
    member = Kept()
    member.place(0, b"a")
    member.keeping.hand_over(shown=False)
    ask = HeadsRequest(b"hello", 0, 10)
    assert member.role.handle_request(b"C", b"1", ask, b"", member.now) == []

    actions = member.go()
    assert not [each for each in actions if isinstance(each, Reply)]
    member.settle(actions)
    (reply,) = [each for each in member.role.handle_done(WriteRecords(()), None, member.now) if isinstance(each, Reply)]

    assert isinstance(reply.message.answer, HeadsAnswer)
    assert [(each.partition, each.next) for each in reply.message.answer.infos()] == [(PARTITION, 1)]
    (again,) = member.role.handle_request(b"C", b"2", ask, b"", member.now)
    assert isinstance(again, Reply)


def test_who_asks_where_partitions_end_does_not_wait_for_a_disk_that_refuses() -> None:
    member = Kept()
    member.place(0, b"a")
    member.keeping.hand_over(shown=False)
    (write,) = writes(member.go())
    member.core.handle_done(WriteRecords(()), StorageError("full"), member.now)
    assert member.role.handle_request(b"C", b"1", HeadsRequest(b"hello", 0, 10), b"", member.now) == []

    member.now += PATIENCE_S
    replies = [each for each in member.look() if isinstance(each, Reply)]

    assert len(replies) == len(write.appends) == 1


def test_a_joiner_keeps_no_more_than_its_bound_while_it_reads_the_rest() -> None:
    other, joiner = Kept("other"), Kept("joiner", bytes_max=1_000)
    other.keep(0, b"a", partition=PARTITION)
    joiner.keeping.begin([PartitionEnd("hello", PARTITION, 1)])
    joiner.go()
    most = ways = 0
    for base in range(1, 101):
        joiner.place(base, bytes(400))
        joiner.keeping.hand_over(shown=False)
        joiner.look()
        most = max(most, joiner.keeping.held_bytes)
        ways = max(ways, len(joiner.keeping._order))
    assert most <= 1_000
    assert ways <= 3  # nor of what it is to wait for

    joiner.serve(other, joiner.meet(other))
    joiner.settle(joiner.look())
    joiner.look()
    assert joiner.values == [b"a"]
    assert not joiner.keeping.complete  # what it has let go of is still to come
    assert joiner.keeping.settled == 0
    for base in range(1, 101):
        other.keep(base, bytes(400), partition=PARTITION)
    for _ in range(5):
        joiner.now += 1.0
        joiner.serve(other, joiner.look())

    assert joiner.values == [b"a", *[bytes(400)] * 100]
    assert joiner.keeping.complete
    assert joiner.keeping.settled == joiner.keeping.mark()
    assert joiner.keeping.held_bytes == 0
