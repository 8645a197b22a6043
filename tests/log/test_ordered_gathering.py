"""Records of one writer on their way to a chain."""

from __future__ import annotations

import pytest
from tests.fixed_clock import FixedClock

from chappe.errors import RecordTooLarge, UsageError
from chappe.log.batch import Batch, encode_batch
from chappe.log.ordered.commands import ANY, BODY_BYTES_MAX, Append, encode
from chappe.log.ordered.gathering import UNDER_WAY_MAX, Gathering, LeavingBatch
from chappe.replication.chain.messages import COMMAND_BYTES_MAX

WALL = 1_700_000_000_000_000
CLOCK = FixedClock(us=WALL)


def add(
    found: Gathering, value: bytes | None, key: bytes | None = None, partition: int | None = None
) -> list[LeavingBatch]:
    return found.add(value, key, (), None, partition)


def values(leaving: list[LeavingBatch]) -> list[list[bytes | None]]:
    return [Batch.parse(each.body).values() for each in leaving]


def test_a_record_leaves_at_once_and_what_comes_meanwhile_leaves_together() -> None:
    found = Gathering(1, CLOCK)
    first = add(found, b"a")
    assert values(first) == [[b"a"]]
    assert add(found, b"b") == add(found, None) == []

    second = found.confirmed(first[0])

    assert values(second) == [[b"b", None]]
    assert found.confirmed(second[0]) == []
    assert found.empty
    assert found.taken == 3


def test_full_batches_leave_without_waiting_up_to_so_many() -> None:
    found = Gathering(1, CLOCK, batch_bytes=1_000)
    left = [each for n in range(40) for each in add(found, bytes([n]) * 500)]

    assert len(left) == UNDER_WAY_MAX
    more = [each for leaving in left for each in found.confirmed(leaving)]
    while any(done := [each for leaving in more for each in found.confirmed(leaving)]):
        left, more = left + more, done
    left += more

    sent = [value for batch in values(left) for value in batch]
    assert sent == [bytes([n]) * 500 for n in range(40)]
    assert found.empty


def test_many_at_once_leave_as_they_would_one_by_one() -> None:
    some = [bytes([n]) * (17 * n % 400) if n % 5 else None for n in range(200)] + [bytes(1_500), b"", bytes(3_000)]
    one, many = Gathering(1, CLOCK, batch_bytes=1_000), Gathering(1, CLOCK, batch_bytes=1_000)
    for found in one, many:
        assert len(add(found, b"first")) == 1

    singly = [each for value in some for each in one.add(value, None, (), 7, None)]

    assert many.add_values(some, 7, None) == singly
    assert (many.bytes, many.taken) == (one.bytes, one.taken)
    assert many.push(0) == one.push(0)


def test_many_at_once_go_to_all_partitions_batch_by_batch() -> None:
    left = Gathering(3, CLOCK, batch_bytes=1_000).add_values([b"%d" % n + bytes(300) for n in range(8)], None, None)

    assert [(each.partition, each.records) for each in left] == [
        (0, 2),
        (1, 2),
        (2, 2),
    ]  # the last two wait, as a batch of theirs is under way


def test_of_many_with_one_that_is_too_large_none_is_added() -> None:
    found = Gathering(1, CLOCK)
    with pytest.raises(RecordTooLarge):
        found.add_values([b"a", bytes(BODY_BYTES_MAX)], None, None)
    with pytest.raises(UsageError, match="no partition 1"):
        found.add_values([b"a"], None, 1)
    assert found.empty


def test_keys_choose_partitions_and_records_without_one_change_them_batch_by_batch() -> None:
    found = Gathering(4, CLOCK)

    assert {add(found, b"v", key=b"k%d" % n, partition=None) is None for n in range(3)} == {False}
    assert found.partition_of(b"k1", None) == found.partition_of(b"k1", None)
    assert {found.partition_of(b"key %d" % n, None) for n in range(100)} == {0, 1, 2, 3}
    assert found.partition_of(b"k1", 3) == 3
    where = [each.partition for _ in range(8) for each in add(Gathering(1, CLOCK), b"x")]
    assert where == [0] * 8
    turns = Gathering(4, CLOCK)
    assert [each.partition for _ in range(4) for each in add(turns, b"x")] == [0, 1, 2, 3]


def test_keys_go_where_they_have_always_gone() -> None:
    found = Gathering(8, CLOCK)

    assert [found.partition_of(each, None) for each in (b"", b"a", b"b", b"user-1", b"user-2")] == [0, 0, 4, 4, 0]


def test_keys_headers_and_times_come_along() -> None:
    found = Gathering(1, CLOCK)
    found.add(b"a", None, (), None, None)
    found.add(b"b", b"k", (("h", b"v"),), 7, None)
    found.add(b"c", None, (), None, None)

    CLOCK.ns = (WALL + 1) * 1000
    (leaving,) = found.push(0)
    batch = Batch.parse(leaving.body)

    assert batch.keys() == [b"k", None]
    assert batch.headers() == [(("h", b"v"),), ()]
    assert list(batch.timestamps()) == [7, WALL + 1]


def test_a_batch_goes_between_what_came_before_and_after() -> None:
    found = Gathering(2, CLOCK)
    ready = Batch.parse(encode_batch(0, [b"x", b"y"], WALL))
    left = add(found, b"a", partition=1)
    add(found, b"b", partition=1)
    left += found.add_batch(ready, 1)
    left += add(found, b"c", partition=1)
    left += found.push(1)

    assert values(left) == [[b"a"], [b"b"], [b"x", b"y"], [b"c"]]


def test_what_cannot_be_carried_is_not_added() -> None:
    found = Gathering(2, CLOCK)

    with pytest.raises(RecordTooLarge, match="ordered topic"):
        add(found, bytes(BODY_BYTES_MAX))
    with pytest.raises(RecordTooLarge):
        found.add_batch(Batch.parse(encode_batch(0, [bytes(BODY_BYTES_MAX)], WALL)), 0)
    with pytest.raises(UsageError, match="no partition 2"):
        add(found, b"", partition=2)
    with pytest.raises(UsageError, match="64 bits"):
        found.add(b"", None, (), 1 << 63, None)
    with pytest.raises(UsageError):
        found.add(b"", None, (("n" * 70_000, b""),), None, None)

    assert found.empty
    assert found.taken == 0


def test_the_largest_record_fits_a_command_of_a_chain() -> None:
    found = Gathering(1, CLOCK)
    (leaving,) = add(found, bytes(BODY_BYTES_MAX - 64), partition=0)

    assert len(leaving.body) <= BODY_BYTES_MAX
    assert len(encode(Append(b"t" * 255, 1_023, ANY, bytes(BODY_BYTES_MAX)))) <= COMMAND_BYTES_MAX


def test_a_large_record_is_a_batch_of_its_own() -> None:
    found = Gathering(1, CLOCK, batch_bytes=1_000)
    left = [*add(found, b"a"), *add(found, b"b"), *add(found, bytes(5_000)), *add(found, b"c")]
    left += found.push(0)

    assert values(left) == [[b"a"], [b"b"], [bytes(5_000)], [b"c"]]
