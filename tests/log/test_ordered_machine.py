"""The machine of ordered topics: offsets, conditions, and a state without the records."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from chappe.errors import ProtocolError
from chappe.log.batch import Batch, encode_batch, encode_sealed
from chappe.log.ordered import machine as ordered
from chappe.log.ordered.commands import (
    ANY,
    Answer,
    Append,
    Appended,
    Command,
    Conflict,
    Create,
    Describe,
    Layout,
    Part,
    Refused,
    decode_answer,
    decode_command,
    decode_query,
    encode,
)
from chappe.log.ordered.machine import OrderedLog, PartitionEnd, Placed, is_ordered
from chappe.replication.chain.replica import ExternalState

SEED = bytes(range(16))


class Shelf:
    """A keeper that has everything on disk at once."""

    settled = 0
    full = False
    complete = True

    def __init__(self) -> None:
        self.placed: list[Placed] = []
        self.ends: list[Sequence[PartitionEnd]] = []

    def mark(self) -> int:
        return len(self.placed)

    def place(self, placed: Placed) -> None:
        self.placed.append(placed)

    def begin(self, ends: Sequence[PartitionEnd]) -> None:
        self.ends.append(ends)


def made(partitions: int = 2) -> tuple[OrderedLog, Shelf]:
    shelf = Shelf()
    log = OrderedLog(shelf)
    do(log, Create(b"t", partitions, SEED))
    return log, shelf


def do(log: OrderedLog, command: Command) -> Answer:
    return decode_answer(log.apply(encode(command)))


def body(*values: bytes, base: int = 0) -> bytes:
    return encode_batch(base, values, 1_000, keys=[b"k"] * len(values))


def test_batches_get_the_offsets_at_which_their_partition_ends() -> None:
    log, shelf = made()

    assert do(log, Append(b"t", 0, ANY, body(b"a", b"b", base=77))) == Appended(0, 2)
    assert do(log, Append(b"t", 1, ANY, body(b"c"))) == Appended(0, 1)
    assert do(log, Append(b"t", 0, ANY, body(b"d"))) == Appended(2, 3)

    found = [(each.batch.base, each.batch.values()) for each in shelf.placed]
    assert found == [(0, [b"a", b"b"]), (0, [b"c"]), (2, [b"d"])]
    assert shelf.placed[0].partition == shelf.placed[2].partition != shelf.placed[1].partition
    assert shelf.placed[0].batch.keys() == [b"k", b"k"]
    for each in shelf.placed:
        Batch.parse(each.batch.raw)  # whose checksum is right


def test_what_is_expected_to_end_elsewhere_is_not_appended() -> None:
    log, shelf = made()
    do(log, Append(b"t", 0, 0, body(b"a")))

    assert do(log, Append(b"t", 0, 0, body(b"b"))) == Conflict(1)
    assert do(log, Append(b"t", 0, 2, body(b"b"))) == Conflict(1)
    assert do(log, Append(b"t", 0, 1, body(b"b"))) == Appended(1, 2)
    assert len(shelf.placed) == 2


def test_a_topic_keeps_the_partitions_that_it_was_created_with() -> None:
    log, _ = made(2)
    before = log.read(encode(Describe(b"t")))

    assert do(log, Create(b"t", 2, bytes(16))) == decode_answer(before)
    assert isinstance(do(log, Create(b"t", 3, bytes(16))), Refused)
    assert log.read(encode(Describe(b"t"))) == before
    assert decode_answer(log.read(encode(Describe(b"u")))) == Layout(())


def test_names_of_partitions_say_that_a_chain_writes_them_and_are_never_used_again() -> None:
    def names(seed: bytes) -> list[str]:
        layout = do(OrderedLog(Shelf()), Create(b"t", 3, seed))
        assert isinstance(layout, Layout)
        return [each.name for each in layout.parts]

    assert names(SEED) == names(SEED)
    assert len({*names(SEED), *names(bytes(16))}) == 6
    assert all(is_ordered(each) for each in names(SEED))
    assert not is_ordered("0123456789AB4DEF8123456789ABCDEF")


@pytest.mark.parametrize(
    "command",
    [
        Append(b"u", 0, ANY, body(b"a")),
        Append(b"t", 2, ANY, body(b"a")),
        Append(b"t", 0, ANY, b"nothing of the kind"),
        Append(b"t", 0, ANY, body(b"a")[:-1] + b"x"),
        Append(b"t", 0, ANY, encode_sealed(7, 1, 1, 1, b"\1" + bytes(79))),
    ],
)
def test_what_cannot_be_done_changes_nothing(command: Command) -> None:
    log, shelf = made()
    before = log.snapshot()

    assert isinstance(do(log, command), Refused)

    assert log.snapshot() == before
    assert shelf.placed == []


def test_garbage_is_refused() -> None:
    log, _ = made()

    assert isinstance(decode_answer(log.apply(b"\xc1")), Refused)
    assert isinstance(decode_answer(log.read(b"\xc1")), Refused)
    for decode in (decode_command, decode_query, decode_answer):
        with pytest.raises(ProtocolError):
            decode(b"\x93\xa6append\x01\x02")
        with pytest.raises(ProtocolError):
            decode(b"\x92\xa1\xff\x01")


def test_there_are_so_many_partitions_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ordered, "ALL_PARTITIONS_MAX", 3)
    log, _ = made(2)

    assert isinstance(do(log, Create(b"u", 2, SEED)), Refused)
    assert isinstance(do(log, Create(b"u", 1, SEED)), Layout)


def test_a_state_is_small_and_its_keeper_hears_what_it_means() -> None:
    log, shelf = made()
    do(log, Append(b"t", 1, ANY, body(*[bytes(1_000)] * 100)))
    other, others = OrderedLog(found := Shelf()), shelf

    assert len(log.snapshot()) < 200
    other.restore(log.snapshot())

    assert other.snapshot() == log.snapshot()
    assert other.read(encode(Describe(b"t"))) == log.read(encode(Describe(b"t")))
    assert list(found.ends[0])[1] == PartitionEnd("t", others.placed[0].partition, 100)
    assert do(other, Append(b"t", 1, 100, body(b"a"))) == Appended(100, 101)
    other.restore(b"")
    assert decode_answer(other.read(encode(Describe(b"t")))) == Layout(())


@pytest.mark.parametrize(
    ("message", "vector"),
    [
        (Create(b"t", 2, SEED), "94a6637265617465c4017402c410" + SEED.hex()),
        (Append(b"t", 1, ANY, b"x"), "95a6617070656e64c4017401ffc40178"),
        (Describe(b"t"), "92a86465736372696265c40174"),
        (Layout((Part("P", 3),)), "92a66c61796f75749192a15003"),
        (Appended(1, 2), "93a8617070656e6465640102"),
        (Conflict(1), "92a8636f6e666c69637401"),
        (Refused("no"), "92a772656675736564a26e6f"),
    ],
)
def test_each_message_has_the_same_bytes_for_ever(message: Command | Describe | Answer, vector: str) -> None:
    assert encode(message).hex() == vector
    decode = decode_query if isinstance(message, Describe) else decode_command
    assert (decode_answer if isinstance(message, Answer) else decode)(bytes.fromhex(vector)) == message


def test_a_chain_asks_it_how_far_its_records_are() -> None:
    log, _ = made()
    do(log, Append(b"t", 0, ANY, body(b"a")))

    assert isinstance(log, ExternalState)
    assert (log.mark(), log.settled, log.full, log.complete) == (1, 0, False, True)


@pytest.mark.parametrize("topic", [b"with\0NUL", b"all*", b"line\n"])
def test_a_name_that_no_topic_can_have_is_refused(topic: bytes) -> None:
    log, _ = made()
    before = log.snapshot()

    assert isinstance(do(log, Create(topic, 1, SEED)), Refused)

    assert isinstance(do(log, Append(topic, 0, ANY, encode_batch(0, [b"a"], 1))), Refused)
    assert log.snapshot() == before
